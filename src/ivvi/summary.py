"""Results as text, in the form that econometricians read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from ivvi.diagnostics import Diagnostics, Statistic
from ivvi.estimators import Estimate

WIDTH = 78
CRITICAL = 1.959963984540054
"""The 97.5% quantile of the normal distribution."""


def coefficient_table(estimate: Estimate, baseline: Estimate, output: int) -> str:
    """Return one output's coefficients: instrumented, with intervals, and least squares.

    The last column is how far least squares lies from the instrumented estimate, in
    standard errors of the latter.
    """
    names = estimate.layout.phi_names
    width = max(10, *(len(name) for name in names))
    titles = ("IV", "std.err.", "t", "[95%", "conf.]", "LS", "LS-IV")
    widths = (9, 9, 8, 9, 9, 9, 7)
    head = " " * width + "".join(f" {t:>{w}}" for t, w in zip(titles, widths, strict=True))
    lines = [f"output {estimate.layout.outputs[output]}", head, "-" * len(head)]
    se = estimate.se
    for j, name in enumerate(names):
        w, s, ls = estimate.W[output, j], se[output, j], baseline.W[output, j]
        if math.isnan(s):
            lines.append(f"{name:{width}} {_number(w)}  {'not identified':^37} {_number(ls)}")
            continue
        low, high = w - CRITICAL * s, w + CRITICAL * s
        moved = (ls - w) / s if s > 0 else math.nan
        t = w / s if s > 0 else math.nan
        lines.append(
            f"{name:{width}} {_number(w)} {_number(s)} {t:8.2f} {_number(low)} {_number(high)} "
            f"{_number(ls)} {moved:+6.1f}s"
        )
    return "\n".join(lines)


def diagnostics_table(diagnostics: Diagnostics) -> str:
    """Return the instrument's strength and the specification tests."""
    s = diagnostics.strength
    lines = [
        "instrument",
        "-" * WIDTH,
        f"strength mu_iv    {s.mu_iv:<12.4g} smallest eigenvalue of A' B^-1 A",
        f"mu_B              {s.mu_b:<12.4g} smallest eigenvalue of B",
        f"weakest direction {s.weakest}",
        f"identified        {'yes' if s.identified else 'NO'}: rank of A is {s.rank} of {s.d_phi}, "
        f"rank of psi {s.rank_psi} of {s.d_psi}",
    ]
    lines += [f"  free direction  {words}" for words in s.unidentified]
    for stage in diagnostics.first_stage:
        lines.append(
            f"first stage {stage.feature:<6} partial F {stage.partial_f.value:<10.4g} "
            f"{stage.partial_f.distribution:<14} partial R2 {stage.partial_r2:.4f}"
        )
    if diagnostics.cragg_donald is not None:
        lines.append(f"Cragg-Donald F    {diagnostics.cragg_donald:.4g}")
    else:
        lines.append(f"Cragg-Donald F    - ({diagnostics.reasons['cragg_donald']})")
    for title, word, tests in (
        ("Sargan", "sargan", diagnostics.sargan),
        ("Wu-Hausman", "wu_hausman", diagnostics.wu_hausman),
    ):
        lines += _tests(title, diagnostics.outputs, tests, diagnostics.reasons.get(word, ""))
    return "\n".join(lines)


def _tests(
    title: str, outputs: Sequence[str], tests: Iterable[Statistic] | None, reason: str
) -> list[str]:
    if tests is None:
        return [f"{title:<17} - ({reason})"]
    tests = list(tests)
    lines = [f"{title:<17} null: {tests[0].null}"]
    for output, test in zip(outputs, tests, strict=True):
        lines.append(
            f"  {output:<15} {test.value:<12.4g} {test.distribution:<16} p = {test.p_value:.4f}"
        )
    return lines


def _number(value: float) -> str:
    """Format to nine places: four decimals, or scientific where that would say nothing."""
    if value != 0 and not 1e-3 <= abs(value) < 1e4:
        return f"{value:9.2e}"
    return f"{value:9.4f}"


def with_nulls(values: np.ndarray) -> list[list[float | None]]:
    """Return the rows of a matrix as JSON values, null for what is not finite."""
    return [[float(v) if np.isfinite(v) else None for v in row] for row in values]
