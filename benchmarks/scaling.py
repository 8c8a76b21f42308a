"""Processor time and memory from ten thousand rows to ten million, beside linearmodels.

    python benchmarks/scaling.py [--rows 10000,100000,1000000,10000000] [--plot scaling.png]

From a Parquet file (k = 5; next states derived) to coefficients and standard errors of all outputs,
each tool in a process of its own, start-up included, one BLAS thread. The other tools get
pandas frames whose next states pandas derives, and fit one output after another; they stop at
`--most` rows, because the frames and their copies must fit in memory.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
import tempfile
from pathlib import Path

from streaming import run, write_log

PREPARE = """
import sys, numpy as np, pandas as pd
frame = pd.read_parquet(sys.argv[1])
names = {letter: [f"{letter}{i}" for i in range(5)] for letter in "xaz"}
after = frame.groupby("episode")[names["x"]].shift(-1)
keep = after.notna().all(axis=1)
frame, after = frame[keep].assign(const=1.0), after[keep]
exog, endog = frame[["const", *names["x"]]], frame[names["a"]]
"""
LINEARMODELS = (
    PREPARE
    + """
from linearmodels import IV2SLS
for name in names["x"]:
    model = IV2SLS(after[name], exog, endog, frame[names["z"]])
    model.fit(cov_type="clustered", clusters=frame["episode"]).std_errors
"""
)
STATSMODELS = (
    PREPARE
    + """
from statsmodels.sandbox.regression.gmm import IV2SLS
left, right = pd.concat([exog, endog], axis=1), pd.concat([exog, frame[names["z"]]], axis=1)
for name in names["x"]:
    IV2SLS(after[name].to_numpy(), left.to_numpy(), right.to_numpy()).fit().bse
"""
)


def commands(log: Path, folder: Path) -> dict[str, list[str]]:
    """Return the command of each tool."""
    fit = [
        sys.executable,
        "-m",
        "ivvi.cli.main",
        "fit",
        str(log),
        "--state",
        "x*",
        "--action",
        "a*",
    ]
    fit += ["--instrument", "z*", "--out", str(folder / "model"), "--force"]
    return {
        "ivvi, clustered": fit,
        "ivvi, unadjusted": [*fit, "--se", "unadjusted"],
        "linearmodels, clustered": [sys.executable, "-c", LINEARMODELS, str(log)],
        "statsmodels, unadjusted": [sys.executable, "-c", STATSMODELS, str(log)],
    }


def measure(rows: list[int], most: int) -> dict[str, list[tuple[int, float, float]]]:
    """Return (rows, processor seconds, peak MiB) of each tool."""
    measurements: dict[str, list[tuple[int, float, float]]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for n in rows:
            log = folder / "log.parquet"
            write_log(log, n)
            for tool, command in commands(log, folder).items():
                if tool.startswith("ivvi") or n <= most:
                    seconds, _, peak = run(command)
                    measurements.setdefault(tool, []).append((n, seconds, peak))
                    print(
                        f"{n:>12,} rows  {tool:26}{seconds:9.2f} CPU s{peak:9.0f} MiB", flush=True
                    )
    return measurements


def draw(measurements: dict[str, list[tuple[int, float, float]]], target: Path) -> None:
    """Draw both curves of each tool on logarithmic axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.4), layout="constrained")
    axes = figure.subplots(1, 2)
    for place, (axis, title) in enumerate(
        zip(axes, ("processor seconds", "peak memory, MiB"), strict=True), start=1
    ):
        for tool, points in measurements.items():
            style = "-o" if tool.startswith("ivvi") else "--s"
            axis.loglog([p[0] for p in points], [p[place] for p in points], style, label=tool)
        axis.set_xlabel("rows")
        axis.set_title(title, fontsize=11)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False, fontsize=8)
    figure.savefig(target, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="10000,100000,1000000,10000000")
    parser.add_argument("--most", type=int, default=1_000_000, help="rows of the other tools")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    asked = parser.parse_args()
    measurements = measure([int(n) for n in asked.rows.split(",")], asked.most)
    names = ("linearmodels", "statsmodels", "pandas", "pyarrow", "numpy")
    print({name: importlib.metadata.version(name) for name in names})
    if asked.json:
        asked.json.write_text(json.dumps(measurements, indent=2))
    if asked.plot:
        draw(measurements, asked.plot)


if __name__ == "__main__":
    main()
