"""docs/api.md: the public names, in the order in which data flows, from their docstrings."""

from __future__ import annotations

import importlib

import ivvi
from imports import read_layers

HEAD = """\
# Python reference

Generated from the docstrings by `python tools/pages.py`. All names but those of
`ivvi.sklearn` are attributes of `ivvi`, and are imported when they are first used.
"""
NOT_AT_THE_TOP = {"ivvi.sklearn": ("IVRegressor",)}


def api_reference() -> str:
    """Return the page: one section for each module that holds public names."""
    parts = [HEAD]
    for module, names in sorted(
        (ivvi._HOME | NOT_AT_THE_TOP).items(), key=lambda item: _place(item[0])
    ):
        found = importlib.import_module(module)
        parts.append(f"## {module}\n\n{(found.__doc__ or '').strip().splitlines()[0]}\n")
        # where a name is defined: a package may hold a module and a function of one name
        parts += [f"::: {getattr(found, name).__module__}.{name}\n" for name in names]
    return "\n".join(parts).rstrip() + "\n"


def _place(module: str) -> tuple[int, str]:
    """Return where a module stands in the flow of data: lower layers come first."""
    flow = [name for layer in reversed(read_layers()) for name in layer]
    top = module.split(".")[1]
    return (flow.index(top) if top in flow else len(flow), module)
