"""How long a decision of ``ivvi act POLICY --stdin`` takes after the first.

Five states are asked for in each of 2,000 lines, five times over; quantiles are of the time from
writing a line to reading its answer. Where other programs are at work their share of the processor
is measured too: run it alone, or in front of them (``chrt -f 10 python benchmarks/decisions.py``).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import ivvi

LINES, RUNS, STATES = 2000, 5, 5


def main() -> None:
    """Plan a policy unless one is given, and time it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("policy", nargs="?", help="folder of a policy; two states of the paper's")
    policy = parser.parse_args().policy
    with tempfile.TemporaryDirectory() as folder:
        path = Path(policy) if policy else planned(Path(folder) / "policy")
        rows = timed(path)
    print(f"load {os.getloadavg()[0]:.1f}; milliseconds by run: median, 99%, 99.9%")
    for row in rows:
        print("  ".join(f"{1e3 * q:6.2f}" for q in row))
    worst, middle = min(row[1] for row in rows), float(np.median([row[1] for row in rows]))
    print(f"99%: best run {1e3 * worst:.2f} ms, median of runs {1e3 * middle:.2f} ms")


def planned(path: Path) -> Path:
    """Save the policy that docs/planning.md serves."""
    env = ivvi.make_env("linear", dim=2)
    fit = ivvi.fit(env.collect(episodes=50, horizon=50))
    return ivvi.plan(fit, env.reward, (-1, 1), horizon=20, method="mpc", compare=False).save(path)


def timed(policy: Path) -> list[tuple[float, ...]]:
    """Return quantiles of the seconds that a line takes, for each run."""
    names = ivvi.load_policy(policy).problem.model.state
    rng = np.random.default_rng(0)
    command = [sys.executable, "-m", "ivvi", "act", str(policy), "--stdin"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        lines, answers = process.stdin, process.stdout

        def ask() -> float:
            states = rng.normal(size=(STATES, len(names))).tolist()
            line = json.dumps({"states": states}).encode() + b"\n"
            began = time.perf_counter()
            lines.write(line)  # type: ignore[union-attr]
            lines.flush()  # type: ignore[union-attr]
            answer = answers.readline()  # type: ignore[union-attr]
            seconds = time.perf_counter() - began
            if b'"actions"' not in answer:
                raise SystemExit(answer.decode())
            return seconds

        for _ in range(20):  # to warm up
            ask()
        rows = []
        for _ in range(RUNS):
            seconds = [ask() for _ in range(LINES)]
            rows.append(tuple(np.quantile(seconds, [0.5, 0.99, 0.999]).tolist()))
        lines.close()  # type: ignore[union-attr]
    return rows


if __name__ == "__main__":
    main()
