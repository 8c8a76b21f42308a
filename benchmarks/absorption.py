"""Absorbing fixed effects in a Parquet log of ten million rows, beside the fit without them.

    python benchmarks/absorption.py [--rows 10000000] [--folder DIR] [--repeats 3] [--peer]

Rows belong to one of rows / 10 units and one of 200 years; all columns go with the effects of both.
In one log the rows of a unit stand together, in the other they stand in no order. Each command
runs in a process of its own, in turns; printed are the least processor seconds (start-up
included), the peak memory and the ratio to the fit without effects with the same standard errors.
With --peer pyfixest fits the same rows, read into pandas, and the largest difference of the
coefficients is printed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from streaming import run

YEARS, GROUP = 200, 125_000
COLUMNS = ("--state", "x", "--action", "a", "--instrument", "z", "--next-state", "y")
EFFECTS = {"none": (), "unit": ("--absorb", "unit"), "unit, year": ("--absorb", "unit,year")}
PEER = """
import json, sys, warnings
warnings.simplefilter("ignore")
import pandas as pd, pyfixest
frame = pd.read_parquet(sys.argv[1])
fit = pyfixest.feols("y ~ x | unit + year | a ~ z", frame, vcov="iid", fixef_tol=1e-10,
                     store_data=False, copy_data=False)
told = fit.tidy()[["Estimate", "Std. Error"]].loc[["x", "a"]]
json.dump(told.to_numpy().tolist(), open(sys.argv[2], "w"))
"""


def write_log(path: Path, rows: int, *, ordered: bool) -> None:
    """Write a panel whose effects of units and years go with every column."""
    rng = np.random.default_rng(0)
    of_unit, of_year = rng.normal(size=rows // 10), rng.normal(size=YEARS)
    writer = None
    for start in range(0, rows, GROUP):
        n = min(GROUP, rows - start)
        unit = np.arange(start, start + n) // 10 if ordered else rng.integers(rows // 10, size=n)
        year = rng.integers(YEARS, size=n)
        hidden, noise = rng.normal(size=(2, n))
        z = rng.normal(size=n) + of_unit[unit]
        x = rng.normal(size=n) + of_unit[unit] - of_year[year]
        a = 0.5 * z + 0.2 * x + hidden + of_unit[unit] + rng.normal(size=n)
        y = -0.7 * a + 0.4 * x + 2 * of_unit[unit] + of_year[year] + hidden + noise
        table = pa.table({"unit": unit, "year": year, "x": x, "a": a, "z": z, "y": y})
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    writer.close()


def peer(log: Path, folder: Path) -> None:
    """Fit both ways with pyfixest, and compare."""
    cpu, wall, memory = run([sys.executable, "-c", PEER, str(log), str(folder / "peer.json")])
    theirs = np.array(json.loads((folder / "peer.json").read_text()))
    ours = json.loads((folder / "fit.json").read_text())
    at = [ours["phi"].index(name) for name in ("x", "a")]
    of_ivvi = np.array([[ours[key][0][i] for key in ("W", "se")] for i in at])
    gap = np.abs(of_ivvi / theirs - 1).max(axis=0)
    print(f"{'pyfixest, unit and year':<34}{cpu:>8.2f}{wall:>8.2f}{memory:>10.0f}")
    print(f"relative difference of coefficients {gap[0]:.1e}, of standard errors {gap[1]:.1e}")


def measure(log: Path, folder: Path, repeats: int) -> None:
    """Print a row for each fit of one log."""
    timings = {}
    for _ in range(repeats):  # interleaved: a busy machine disturbs all equally
        for se in ("unadjusted", "robust"):
            for name, absorb in EFFECTS.items():
                command = [sys.executable, "-m", "ivvi", "fit", str(log), *COLUMNS, *absorb]
                more = ["--se", se, "--out", str(folder / "model"), "--force"]
                output = ["--json", str(folder / "fit.json")] if se == "unadjusted" else []
                timings.setdefault((se, name), []).append(run([*command, *more, *output]))
    best = {key: np.min(runs, axis=0) for key, runs in timings.items()}
    for (se, name), (cpu, wall, memory) in best.items():
        ratio = cpu / best[se, "none"][0]
        label = f"{log.stem.partition('-')[0]}; {se}; {name}"
        print(f"{label:<34}{cpu:>8.2f}{wall:>8.2f}{memory:>10.0f}{ratio:>9.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peer", action="store_true", help="fit with pyfixest too")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        ordered = options.write.stem.startswith("in order")
        write_log(options.write, options.rows, ordered=ordered)
        return
    print(f"{options.rows:,} rows, {options.rows // 10:,} units, {YEARS} years")
    print(f"{'rows; errors; effects':<34}{'CPU s':>8}{'wall s':>8}{'peak MiB':>10}{'ratio':>9}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        for order in ("in order", "no order"):
            log = folder / f"{order}-{options.rows}.parquet"
            if not log.exists():  # in a process of its own: a child's peak counts its parent's
                writing = [sys.executable, __file__, "--write", str(log)]
                subprocess.run([*writing, "--rows", str(options.rows)], check=True)
            measure(log, folder, options.repeats)
            if options.peer:
                peer(log, folder)


if __name__ == "__main__":
    main()
