"""Several updates of one model at the same time, again and again: every row is in it once.

Each update is a process of its own, forked from one that has loaded the libraries, so that they
begin together. ``python tests/crash/updates.py 100`` makes a hundred rounds with two, with four
and with eight updates, and prints what they came to (``100 2`` those with two).
"""

import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
COUNTS = (2, 4, 8)


def measure(rounds, counts=COUNTS):
    """Return for each number of updates: rounds, updates, rounds that were right, seconds."""
    from helpers import OPTIONS, make_rows, run, write_table
    from ivvi import load_fit
    from ivvi.cli.main import main

    back, rows = Path.cwd(), []
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for i in range(1 + max(counts)):
            write_table(make_rows(6 + i, seed=i), Path(f"{i}.parquet"))
        try:
            for count in counts:
                expected = sum(9 * (6 + i) for i in range(1 + count))
                right, began = 0, time.monotonic()
                for _ in range(rounds):
                    words = ("fit", "0.parquet", *OPTIONS, "--out", "model", "--force")
                    assert run(*words).code == 0
                    logs = [f"{i + 1}.parquet" for i in range(count)]
                    children = [
                        forked(lambda log=log: main(["update", "model", log])) for log in logs
                    ]
                    codes = [os.waitstatus_to_exitcode(os.waitpid(c, 0)[1]) for c in children]
                    fit = load_fit("model")
                    right += (
                        codes == [0] * count
                        and fit.moments.n == expected
                        and len(set(fit.shard.files)) == 1 + count
                        and not list(Path().glob(".*"))
                    )
                rows.append((count, rounds, count * rounds, right, time.monotonic() - began))
        finally:
            os.chdir(back)
    return rows


def forked(work):
    """Run `work` in a child whose words go nowhere; return its number."""
    if child := os.fork():
        return child
    code = 99
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        work()
    except SystemExit as stop:
        code = stop.code
    finally:
        os._exit(code)


def table(rows):
    """Return the rows as text."""
    lines = [f"{'at once':>8}{'rounds':>8}{'updates':>9}{'every row once':>16}{'seconds':>9}"]
    lines += [f"{c:>8}{r:>8}{u:>9}{ok:>16}{s:>9.0f}" for c, r, u, ok, s in rows]
    return "\n".join(lines)


if __name__ == "__main__":
    rounds, *counts = map(int, sys.argv[1:] or ["100"])
    print(table(measure(rounds, counts or COUNTS)))
