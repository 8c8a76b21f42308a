"""Whether the verdict recommends the jackknife where it should: many instruments, each weak.

Run it with ``python -m ivvi_reproduction.many_instruments``. K instruments of equal strength move
an action whose first stage has about the F given; half of the action's noise is the confounder's.
Each log is fitted by two-stage least squares and by UJIVE with robust errors. The study prints how
often the verdict of the first recommends UJIVE, the median bias of both in units of least squares'
bias, and the coverage of their 95% intervals.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ivvi.errors import IvviWarning
from ivvi.fitting import Fit, estimate
from ivvi.logs import Log, read_logs
from ivvi.logs.log import Progress
from ivvi_reproduction.study import (
    Force,
    Json,
    Logs,
    Seed,
    check,
    coverage_cell,
    coverage_table,
    each_log,
    no_bar,
    run_study,
    tell,
)

EFFECT, ROWS = -0.5, 1000
INSTRUMENTS, STRENGTHS = (10, 30, 100), (1.3, 2.0, 4.0, 15.0)


@dataclass(frozen=True, slots=True)
class JackknifeComparison:
    """Results of two-stage least squares and UJIVE for one design.

    Biases are medians in units of least squares' bias.
    """

    instruments: int
    strength: float
    logs: int
    recommended: float
    bias: float
    coverage: float
    jackknife_bias: float
    jackknife_coverage: float


def draw_log(instruments: int, strength: float, rng: np.random.Generator) -> Log:
    """Draw rows whose first stage has an F of about `strength`."""
    z, hidden, noise_of_action = rng.normal(size=(ROWS, instruments)), *rng.normal(size=(2, ROWS))
    noise = np.sqrt(0.5) * (hidden + noise_of_action)
    a = z.sum(axis=1) * np.sqrt((strength - 1) / ROWS) + noise
    columns = {f"z{i}": column.copy() for i, column in enumerate(z.T)}
    return read_logs(columns | {"a0": a, "y": EFFECT * a + hidden}, state=(), next_state="y")


def measure(
    instruments: int,
    strength: float,
    logs: int,
    seed: int = 0,
    bar: Progress = no_bar,
) -> JackknifeComparison:
    """Fit many logs of a design both ways."""
    rows = []
    for i in range(logs):
        rng = np.random.default_rng([seed, instruments, int(10 * strength), i])
        log = draw_log(instruments, strength, rng)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", IvviWarning)  # of weak instruments, by design
            tsls = estimate(log, se="robust")
            jackknife = estimate(log, method="ujive", se="robust")
        recommended = tsls.diagnostics.verdict.method == "ujive"
        usual = float(tsls.baseline.W[0, 1]) - EFFECT
        rows.append(
            (recommended, *_error_and_coverage(tsls), *_error_and_coverage(jackknife), usual)
        )
        bar(1)
    recommended, gap, covers, other_gap, other_covers, usual = np.array(rows, dtype=np.float64).T
    by = float(np.median(usual))
    parts = (recommended.mean(), np.median(gap) / by, covers.mean())
    others = (np.median(other_gap) / by, other_covers.mean())
    return JackknifeComparison(instruments, strength, logs, *map(float, (*parts, *others)))


def _error_and_coverage(fit: Fit) -> tuple[float, bool]:
    """Return the error of the action's effect, and whether its interval holds the truth."""
    row = next(row for row in fit.records() if row["feature"] == "a0")
    return row["coefficient"] - EFFECT, row["low"] <= EFFECT <= row["high"]


def table(records: Iterable[JackknifeComparison]) -> str:
    """Return both estimators side by side as a text table."""
    records = list(records)
    head = (
        f"{'K':>4}{'F':>6}{'recommended':>13}{'2SLS: bias':>12}{'coverage':>10}"
        f"{'UJIVE: bias':>13}{'coverage':>10}"
    )
    lines = [
        f"{r.instruments:>4}{r.strength:>6.1f}{r.recommended:>13.0%}{r.bias:>+12.2f}"
        f"{coverage_cell(r.coverage, r.logs, 10)}{r.jackknife_bias:>+13.2f}"
        f"{coverage_cell(r.jackknife_coverage, r.logs, 10)}"
        for r in records
    ]
    return coverage_table(head, lines, records[0].logs, f"{ROWS:,} rows")


def command(logs: Logs = 400, seed: Seed = 0, json: Json = None, force: Force = False) -> None:
    """Measure when the verdict recommends UJIVE, and what that is worth."""
    check(json, force, logs=logs)
    cases = [(count, strength) for count in INSTRUMENTS for strength in STRENGTHS]
    records = each_log(cases, lambda case, *settings: measure(*case, *settings), logs, seed)
    tell(table(records), records, json, force)


if __name__ == "__main__":
    run_study(command)
