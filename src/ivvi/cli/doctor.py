"""`ivvi doctor`: does this installation work? Versions, optional packages, a quick check."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

import ivvi
from ivvi._io.program_cache import MOST_BYTES, ProgramCache
from ivvi.cli.options import Force, Json
from ivvi.cli.terminal import check_json_target, emit_json, say
from ivvi.errors import IvviWarning

CORE = (
    *("numpy", "scipy", "pyarrow", "duckdb", "jax", "jaxlib", "gymnasium", "typer", "rich"),
    *("jinja2", "matplotlib", "threadpoolctl", "lazy-loader"),
)
OPTIONAL = {
    "dask": ("several processes or machines", "pip install 'ivvi[dask]'"),
    "distributed": ("several processes or machines", "pip install 'ivvi[dask]'"),
    "fsspec": ("logs that are URLs", "pip install 'ivvi[dask]'"),
    "formulaic": ("--formula", "pip install 'ivvi[formula]'"),
    "minari": ("Minari data sets", "pip install 'ivvi[minari]'"),
    "pandas": ("pandas frames as logs", "pip install pandas"),
    "polars": ("polars frames as logs", "pip install polars"),
    "scikit-learn": ("ivvi.sklearn", "pip install 'ivvi[sklearn]'"),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One step of the self-check: its name, its fault ('' if it passed), and its time."""

    name: str
    fault: str
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether the step passed."""
        return not self.fault


@dataclass(frozen=True, slots=True)
class Report:
    """The result of `examine`.

    Attributes
    ----------
    machine
        Python, system, processors, compiled programs.
    versions
        Version of each library that the package needs; None where it is missing.
    optional
        The same for libraries that only some features need.
    findings
        The steps of the self-check, up to the first that failed.
    """

    machine: dict[str, str]
    versions: dict[str, str | None]
    optional: dict[str, str | None]
    findings: tuple[Finding, ...]

    @property
    def sound(self) -> bool:
        """Whether nothing is missing and every step of the self-check passed."""
        return None not in self.versions.values() and all(f.passed for f in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Describe with JSON values."""
        findings = [
            {"what": f.name, "passed": f.passed, "fault": f.fault or None, "seconds": f.seconds}
            for f in self.findings
        ]
        return {
            "ivvi": ivvi.__version__,
            "machine": self.machine,
            "versions": self.versions,
            "optional": self.optional,
            "self_check": findings,
            "sound": self.sound,
        }

    def __str__(self) -> str:
        lines = [f"ivvi {ivvi.__version__} in {Path(ivvi.__file__).parent}"]
        lines += [f"{name:<16}{value}" for name, value in self.machine.items()]
        lines += ["", "needed"]
        lines += [f"  {name:<14}{version or 'MISSING'}" for name, version in self.versions.items()]
        lines += ["", "optional"]
        for name, version in self.optional.items():
            purpose, command = OPTIONAL[name]
            status = f"{version:<12}{purpose}" if version else f"{'-':<12}{purpose}: {command}"
            lines.append(f"  {name:<14}{status}")
        lines += ["", "self-check"]
        for finding in self.findings:
            status = "ok" if finding.passed else f"FAILED: {finding.fault}"
            lines.append(f"  {finding.name:<42}{finding.seconds:5.1f} s  {status}")
        lines += ["", "all is well" if self.sound else "something is wrong; see above"]
        return "\n".join(lines)


def examine() -> Report:
    """Return a report on the installation, and run the self-check."""
    return Report(
        _machine(),
        {name: _version(name) for name in CORE},
        {name: _version(name) for name in OPTIONAL},
        _self_check(),
    )


def _machine() -> dict[str, str]:
    return {
        "Python": f"{platform.python_version()} ({sys.executable})",
        "system": f"{platform.system()} {platform.machine()}",
        "processors": f"{os.cpu_count() or '?'}",
        "programs": _programs(),
    }


def _programs() -> str:
    """Return where compiled programs are kept, how many there are, and their size."""
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return f"kept in {os.environ['JAX_COMPILATION_CACHE_DIR']} (JAX_COMPILATION_CACHE_DIR)"
    cache = ProgramCache.usual()
    if cache is None:
        return "not kept (IVVI_CACHE=off)"
    size, most = (f"{amount / 1024**2:.0f} MiB" for amount in (cache.size, MOST_BYTES))
    return f"{len(cache.programs)} compiled, {size} of at most {most}, in {cache.folder}"


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _self_check() -> tuple[Finding, ...]:
    """Run a log through the whole package; stop at the first step that fails."""
    findings: list[Finding] = []
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="ivvi-doctor-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", IvviWarning)
        results["folder"] = Path(folder)
        for step in STEPS:
            name, started = str(step.__doc__).rstrip("."), time.perf_counter()
            try:
                fault = step(results)
            except Exception as error:  # any error belongs in the report
                fault = f"{type(error).__name__}: {' '.join(str(error).split())}"
            findings.append(Finding(name, fault, time.perf_counter() - started))
            if fault:
                break
    return tuple(findings)


def _write(results: dict[str, Any]) -> str:
    """Write a confounded log."""
    import numpy as np

    rng, x, steps = np.random.default_rng(0), np.full((30, 2), 10.0), []
    for _ in range(100):
        e, z, u = rng.normal(size=(3, *x.shape))
        steps.append((x, z + e + u, z))
        x = 0.5 * x - 0.5 * steps[-1][1] + e
    x, a, z = (np.stack(part, axis=1).reshape(3000, 2) for part in zip(*steps, strict=True))
    number = np.arange(3000)
    columns = {"episode": number // 100, "step": number % 100, "x": x, "a": a, "z": z}
    results["log"] = results["folder"] / "log.parquet"
    ivvi.read_logs(columns).to_parquet(results["log"])
    return ""


def _estimate(results: dict[str, Any]) -> str:
    """Estimate it, and compare with the textbook formula."""
    import numpy as np

    log = ivvi.read_logs(results["log"])
    fit = results["fit"] = ivvi.estimate(log)
    rows = log.to_batch()
    ones = np.ones((len(rows.x), 1))
    Phi, Psi = np.hstack([ones, rows.x, rows.a]), np.hstack([ones, rows.x, rows.z])
    stage = Psi @ np.linalg.lstsq(Psi, Phi, rcond=None)[0]
    W = np.linalg.lstsq(stage, rows.y, rcond=None)[0].T
    difference = float(np.abs(W - fit.W).max())
    return "" if difference < 1e-8 else f"two-stage least squares differs by {difference:.1e}"


def _plan(results: dict[str, Any]) -> str:
    """Plan a policy and ask it for an action."""
    policy = ivvi.plan(
        results["fit"].model, "quadratic:weight=0.05", (-1, 1), horizon=20, method="mpc"
    )
    results["policy"], action = policy, policy([10.0, 10.0]).tolist()
    return "" if action == [1.0, 1.0] else f"the policy chose {action}; expected [1.0, 1.0]"


def _save(results: dict[str, Any]) -> str:
    """Save the policy and load it again."""
    results["policy"].save(results["folder"] / "policy")
    loaded = ivvi.load_policy(results["folder"] / "policy")
    agrees = loaded([10.0, 10.0]).tolist() == [1.0, 1.0]
    return "" if agrees else "the loaded policy differs from the saved one"


STEPS: tuple[Callable[[dict[str, Any]], str], ...] = (_write, _estimate, _plan, _save)


def doctor(json: Json = None, force: Force = False) -> None:
    """Show versions and optional packages, and check in seconds that the installation works."""
    check_json_target(json, force=force)
    report = examine()
    say(str(report), quiet=json == "-")
    emit_json(report, json, force=force)
    if not report.sound:
        raise typer.Exit(1)
