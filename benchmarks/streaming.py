"""Fitting, diagnosing and checking a Parquet log of ten million rows against just reading it.

    python benchmarks/streaming.py [--rows 10000000] [--folder DIR] [--repeats 3]

The log (k = 5; episode, step, x, a, z; in order, so next states are derived) is written
once into the folder. Each command runs in a process of its own; printed are processor
seconds (start-up included), wall seconds, peak memory, the ratio to a fit that passes
once over the rows (unadjusted errors), and the passes: cells read, of those in the file
(checking the order reads two columns of 17). Errors clustered by episode, the default, and
GMM pass once, because the episodes are long; the two usual ways of reading with pyarrow stand
below.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

K, HORIZON, GROUP = 5, 1000, 125_000
RUNS = {
    "fit, one pass": ("fit", "--se", "unadjusted"),
    "fit, clustered": ("fit", "--se", "clustered"),
    "diagnose, clustered": ("diagnose", "--se", "clustered"),
    "fit, robust": ("fit", "--se", "robust"),
    "diagnose, robust": ("diagnose", "--se", "robust"),
    "fit, GMM, clustered": ("fit", "--method", "gmm"),
    "interval, CLR": ("interval", "--output", "x0", "--feature", "a0", "--method", "clr"),
    "check": ("check",),
}
COUNTED = """
import sys
from ivvi.__main__ import main
from ivvi.logs.tables.parquet_files import ParquetTable
cells, plain = 0, ParquetTable.batches
def batches(self, columns, *rest, **more):
    global cells
    for block in plain(self, columns, *rest, **more):
        cells += block.num_rows * len(columns)
        yield block
ParquetTable.batches = batches
target = sys.argv.pop(1)
try:
    main()
finally:
    open(target, "w").write(str(cells))
"""
READ_GROUPS = """
import sys, pyarrow.parquet as pq
file = pq.ParquetFile(sys.argv[1])
for i in range(file.num_row_groups):
    file.read_row_group(i)
"""
READ_TABLE = "import sys, pyarrow.parquet as pq; pq.read_table(sys.argv[1])"


def write_log(path: Path, rows: int) -> None:
    """Write a confounded linear log, x' = x / 2 - a / 2 + e and a = z + e + noise."""
    rng = np.random.default_rng(0)
    writer = None
    for first in range(0, rows // HORIZON, 250):
        episodes = np.arange(first, min(first + 250, rows // HORIZON))
        shape = (len(episodes), HORIZON, K)
        z, e = rng.normal(size=shape), rng.normal(size=shape)
        a = z + e + rng.normal(size=shape)
        x = np.zeros(shape)
        for h in range(1, HORIZON):
            x[:, h] = 0.5 * x[:, h - 1] - 0.5 * a[:, h - 1] + e[:, h - 1]
        columns = {"episode": np.repeat(episodes, HORIZON)}
        columns["step"] = np.tile(np.arange(HORIZON), len(episodes))
        for name, values in (("x", x), ("a", a), ("z", z)):
            columns |= {f"{name}{i}": values[..., i].ravel() for i in range(K)}
        table = pa.table(columns)
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table, row_group_size=GROUP)
    writer.close()


def run(command: list[str]) -> tuple[float, float, float]:
    """Return processor seconds, wall seconds and peak MiB of a command."""
    started = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"{command[:3]} failed")
    wall = time.perf_counter() - started
    return usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        write_log(options.write, options.rows)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        log = folder / f"log-{options.rows}.parquet"
        if not log.exists():  # in a process of its own: a child's peak counts its parent's
            writing = [sys.executable, __file__, "--write", str(log), "--rows", str(options.rows)]
            subprocess.run(writing, check=True)
        columns = ["--state", "x*", "--action", "a*", "--instrument", "z*"]
        model = ["--out", str(folder / "model"), "--force"]
        start = [sys.executable, "-c", COUNTED, str(folder / "cells")]
        commands = {
            name: [*start, verb, str(log), *columns, *more, *(model if verb == "fit" else ())]
            for name, (verb, *more) in RUNS.items()
        }
        commands |= {
            "read row groups": [sys.executable, "-c", READ_GROUPS, str(log)],
            "read_table": [sys.executable, "-c", READ_TABLE, str(log)],
        }
        timings = {name: [] for name in commands}
        passes = {}
        for _ in range(options.repeats):  # interleaved: a busy machine disturbs all alike
            for name, command in commands.items():
                timings[name].append(run(command))
                if name in RUNS:
                    cells = int((folder / "cells").read_text())
                    passes[name] = cells / (options.rows * (3 * K + 2))
    best = {name: np.min(runs, axis=0) for name, runs in timings.items()}
    print(f"{options.rows:,} rows, {log.name}, best of {options.repeats}")
    print(
        f"{'command':<24}{'CPU s':>8}{'wall s':>8}{'peak MiB':>10}{'CPU / one pass':>16}"
        f"{'passes':>9}"
    )
    for name, (cpu, wall, memory) in best.items():
        ratio = cpu / best["fit, one pass"][0]
        count = f"{passes[name]:>9.2f}" if name in passes else ""
        print(f"{name:<24}{cpu:>8.2f}{wall:>8.2f}{memory:>10.0f}{ratio:>16.2f}{count}")


if __name__ == "__main__":
    main()
