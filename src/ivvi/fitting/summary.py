"""Coefficients as text, in the form that econometricians read."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ivvi.diagnostics.distributions import two_sided
from ivvi.diagnostics.reduced_form import ReducedForm
from ivvi.diagnostics.text import format_number
from ivvi.estimators import Estimate
from ivvi.weak_iv.action_strength import ActionStrength
from ivvi.weak_iv.robust_intervals import RobustIntervals

NORMAL_95 = 1.959963984540054
"""The 97.5% quantile of the normal distribution."""
MOST_INSTRUMENTS = 6
"""Instruments whose reduced form is printed."""


def coefficient_table(estimate: Estimate, baseline: Estimate, output: int) -> str:
    """Return one output's coefficients: instrumented, with intervals, and least squares.

    Intervals are normal, or Student's where the covariance is corrected for small samples,
    with degrees of freedom of each coefficient's own where clusters are uneven.
    The last column is how far least squares lies from the instrumented estimate, in
    standard errors of the latter. An estimate that is least squares stands alone.
    """
    if estimate.design.outputs[output] in estimate.exact:
        return _exact_line(estimate, output)
    widths_of = half_widths(estimate)[output]
    names = estimate.design.phi_names
    first = max(10, *(len(name) for name in names))
    alone = np.array_equal(estimate.W, baseline.W)
    titles = ("LS" if alone else "IV", "std.err.", "t", "[95%", "conf.]", "LS", "LS-IV")
    widths = (9, 9, 8, 9, 9, 9, 7)
    columns = list(zip(titles, widths, strict=True))[: 5 if alone else 7]
    head = " " * first + "".join(f" {t:>{w}}" for t, w in columns)
    lines = [f"output {estimate.design.outputs[output]}", head, "-" * len(head)]
    se, free = estimate.se, estimate.is_free(np.eye(len(names)))
    for j, name in enumerate(constant_named(names)):
        w, s, ls = estimate.W[output, j], se[output, j], baseline.W[output, j]
        if math.isnan(s):
            why = "not identified" if free[j] else "negative variance: too few clusters"
            lines.append(f"{name:{first}} {format_number(w)}  {why:^37} {format_number(ls)}")
            continue
        low, high = w - widths_of[j] * s, w + widths_of[j] * s
        moved = (ls - w) / s if s > 0 else math.nan
        t = w / s if s > 0 else math.nan
        lines.append(
            f"{name:{first}} {format_number(w)} {format_number(s)} {t:8.2f} {format_number(low)} "
            + format_number(high)
            + ("" if alone else f" {format_number(ls)} {moved:+6.1f}s")
        )
    return "\n".join(lines)


def constant_named(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of features as tables show them: that of the constant is a word."""
    return tuple("Constant" if name == "1" else name for name in names)


def half_widths(estimate: Estimate, level: float = 0.95) -> np.ndarray:
    """Return how many standard errors an interval reaches on each side, (d_y, d_phi)."""
    if estimate.freedoms is None:
        return np.full(estimate.W.shape, two_sided(None, level))
    return student_widths(estimate.freedoms, level)


def student_widths(freedoms: np.ndarray, level: float = 0.95) -> np.ndarray:
    """Return what |t| stays below with probability `level`, for each degrees of freedom."""
    rounded = np.where(freedoms < 30, np.round(freedoms, 2), np.round(freedoms))
    known = {f: two_sided(f, level) for f in set(rounded.ravel().tolist())}
    widths: np.ndarray = np.vectorize(known.__getitem__, otypes=[float])(rounded)
    return widths


def _exact_line(estimate: Estimate, output: int) -> str:
    """Return an output that is an exact function of the features as a formula."""
    names, W = estimate.design.phi_names, estimate.W[output]
    terms = [
        f"{w:.6g}" if name == "1" else name if abs(w - 1) < 1e-9 else f"{w:.6g} {name}"
        for name, w in zip(names, W, strict=True)
        if w != 0
    ]
    line = f"output {estimate.design.outputs[output]} = {' + '.join(terms) or '0'}"
    return f"{line}\n  exactly, in every row: there is no noise and nothing to test"


def robust_lines(estimate: Estimate, robust: RobustIntervals, output: int) -> list[str]:
    """Return the intervals that a weak instrument cannot spoil, of one output's actions."""
    name = estimate.design.outputs[output]
    first = max(10, *(len(feature) for feature in estimate.design.phi_names))
    lines: list[str] = []
    whys: dict[str, list[str]] = {}
    for (of, feature), one in robust.found.items():
        if of == name:
            beside = "" if one.agrees else "   not Wald's"
            lines.append(f"{feature:{first}} {one.method:>9}   {one.words}{beside}")
    for (of, feature), why in robust.reasons.items():
        if of == name:
            whys.setdefault(why, []).append(feature)
    lines += [f"{', '.join(names):{first}} {'-':>9}   ({why})" for why, names in whys.items()]
    title = "95% intervals that hold however weak the instrument"
    return [title, *lines] if lines else []


def reduced_form_lines(estimate: Estimate, reduced: ReducedForm | None, output: int) -> list[str]:
    """Return what one output's regression on psi says of the instruments, the first of them."""
    exact = estimate.design.outputs[output] in estimate.exact
    if reduced is None or not reduced.excluded or exact:
        return []
    first = max(10, *(len(feature) for feature in estimate.design.phi_names))
    shown = reduced.excluded[:MOST_INSTRUMENTS]
    lines = ["reduced form: the output on the instruments, given the states"]
    for name in shown:
        j = reduced.names.index(name)
        w, s = reduced.W[output, j], reduced.se[output, j]
        rest = f"{format_number(s)} {w / s:8.2f}" if s > 0 else "not identified: collinear"
        lines.append(f"{name:{first}} {format_number(w)} {rest}")
    more = len(reduced.excluded) - len(shown)
    return [*lines, f"... and {more} more instruments"] if more else lines


def action_lines(actions: Sequence[ActionStrength]) -> list[str]:
    """Return how strong the instruments are for each action, where that is not said already."""
    if sum(len(one.features) for one in actions) <= 1:
        return []
    return [
        f"action {one.action:<10} {one.word:<9} conditional F {one.f:<10.4g} of {one.weakest}"
        + (f", the weakest of {len(one.features)} features" if len(one.features) > 1 else "")
        for one in actions
    ]


def with_nulls(values: np.ndarray) -> list[list[float | None]]:
    """Return the rows of a matrix as JSON values, null for what is not finite."""
    return [[float(v) if np.isfinite(v) else None for v in row] for row in values]
