"""docs/api.md: the public names, verbs first, then in the order in which data flows."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import ivvi
from imports import read_layers

HEAD = """\
# Python reference

Generated from the docstrings by `python tools/pages.py`. All names but those under *Inside the
packages* are attributes of `ivvi`, and are imported when they are first used.
"""
VERBS = (
    *("read_logs", "fit", "diagnose", "check", "interval", "plan", "value", "sensitivity"),
    *("stability", "update", "curve", "choose_features", "report", "evaluate"),
    *("load_fit", "load_model", "load_policy", "make_env"),
)
INSIDE = {
    "ivvi.estimators": (
        *("Exact", "LeastSquares", "LIML", "Fuller", "KClass", "GMM", "Penalised", "Shrunk"),
    ),
    "ivvi.features": ("FeatureMap", "parse_features", "polynomial", "spline", "fourier"),
    "ivvi.planning": ("Auto", "Cautious"),
    "ivvi.simulators": ("World", "decompose"),
    "ivvi.sklearn": ("IVRegressor",),
}


def api_reference() -> str:
    """Return the page: the verbs, the other public names by module, and those of packages."""
    verbs = [getattr(ivvi, name) for name in VERBS]
    parts = [HEAD, "## Verbs\n", _overview(), *(_entry(verb) for verb in verbs)]
    done = {id(verb) for verb in verbs}
    for module, names in sorted(_public().items(), key=lambda item: _place(item[0])):
        objects = [value for name in names if id(value := getattr(ivvi, name)) not in done]
        if objects:
            parts += [_heading(module), *(_entry(value) for value in objects)]
    parts.append("## Inside the packages\n")
    for module, names in INSIDE.items():
        package = importlib.import_module(module)
        parts += [f"### {module}\n", *(_entry(getattr(package, name)) for name in names)]
    return "\n".join(parts).rstrip() + "\n"


def _overview() -> str:
    """Return a table of the verbs, each with one line on what it does."""
    rows = ["| verb | what it does |", "|---|---|"]
    for name in VERBS:
        verb = getattr(ivvi, name)
        lead = (verb.__doc__ or "").strip().splitlines()[0]
        target = f"{verb.__module__}.{verb.__name__}"
        rows.append(f"| [`ivvi.{name}`][{target}] | {lead} |")
    return "\n".join(rows) + "\n"


def _public() -> dict[str, list[str]]:
    """Return the names of the stub by the module that defines them."""
    tree = ast.parse(Path(ivvi.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module]
    return {f"ivvi.{node.module}": [alias.name for alias in node.names] for node in imports}


def _heading(module: str) -> str:
    lead = (importlib.import_module(module).__doc__ or "").strip().splitlines()[0]
    return f"## {module}\n\n{lead}\n"


def _entry(value: object) -> str:
    return f"::: {value.__module__}.{value.__name__}\n"  # type: ignore[attr-defined]


def _place(module: str) -> tuple[int, str]:
    """Return the place of a module in the flow of data: lower layers come first."""
    flow = [name for layer in reversed(read_layers()) for name in layer]
    top = module.split(".")[1]
    return (flow.index(top) if top in flow else len(flow), module)
