"""What the moments show besides W, as tables of text and as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ivvi._io.result import Compact, Records
from ivvi.diagnostics import Diagnostics
from ivvi.diagnostics.reduced_form import ReducedForm
from ivvi.diagnostics.result import diagnostics_table, format_number
from ivvi.diagnostics.tails_and_quantiles import two_sided
from ivvi.estimators import Estimate
from ivvi.estimators.covariance.scores import Scored
from ivvi.estimators.covariance.standard_errors_for_log import Resolved
from ivvi.moments import Moments
from ivvi.weak_iv.action_strength import ActionStrength
from ivvi.weak_iv.robust_effect_intervals import RobustIntervals
from ivvi.weak_iv.wild_bootstrap import WildTest

NO_MOMENTS = (
    "with linear memory the moments are not computed; fit fewer features, or ask for quadratic "
    "memory"
)
DIAGNOSTICS = (
    *("mu_iv", "mu_b", "rank", "identified", "first_stage", "cragg_donald"),
    *("kleibergen_paap", "sargan", "wu_hausman"),
)
NORMAL_95 = two_sided()
"""The 97.5% quantile of the normal distribution."""
MOST_INSTRUMENTS = 6
"""Instruments whose reduced form is printed."""


@dataclass(frozen=True, slots=True, repr=False)
class Inference(Compact):
    """What the moments show besides W.

    Attributes
    ----------
    moments
        The sums over the rows; None in a fit that was saved without them.
    baseline
        Confounded least squares.
    diagnostics
        Strength of the instrument and specification tests.
    scored
        Variances of residuals times instruments, from the second pass; empty without one.
    errors
        The standard errors that were used.
    robust
        Intervals of the actions' effects that are valid with a weak instrument.
    actions
        How strong the instruments are for each action, by the features that contain it.
    wild
        Bootstrapped tests of the actions' effects, by output and feature, if asked for.
    reduced_form
        The outputs regressed on the instruments.
    start_clusters
        Number of the cluster of each first state of the sample, (s,), where rows are clustered by
        one column that is not the episode; else empty.
    """

    moments: Moments | None
    baseline: Estimate
    diagnostics: Diagnostics
    scored: dict[str, Scored]
    errors: Resolved
    robust: RobustIntervals = field(default_factory=RobustIntervals)
    actions: tuple[ActionStrength, ...] = ()
    wild: dict[tuple[str, str], WildTest] = field(default_factory=dict)
    reduced_form: ReducedForm | None = None
    start_clusters: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    def tables(self, estimate: Estimate, n_outputs: int) -> list[str]:
        """Coefficients of the first `n_outputs` outputs and diagnostics as text."""
        lines: list[str] = []
        for output in range(n_outputs):
            lines += [coefficient_table(estimate, self.baseline, output)]
            lines += [*self._wild_lines(estimate.design.outputs[output]), ""]
            robust = robust_lines(estimate, self.robust, output)
            lines += [*robust, ""] if robust else []
            reduced = reduced_form_lines(estimate, self.reduced_form, output)
            lines += [*reduced, ""] if reduced else []
        if more := len(estimate.W) - n_outputs:
            lines += [f"... and {more} more outputs", ""]
        return [*lines, *self.judgement()]

    def judgement(self) -> list[str]:
        """The judgement of the instruments, as text."""
        return [diagnostics_table(self.diagnostics), *action_lines(self.actions)]

    def _wild_lines(self, output: str) -> list[str]:
        return [f"{name:<10} {test}" for (of, name), test in self.wild.items() if of == output]

    def to_json(self, estimate: Estimate) -> dict[str, Any]:
        """Describe the uncertainty of an estimate, and the diagnostics, with JSON values."""
        return {
            "se": with_nulls(estimate.se),
            "exact_outputs": list(estimate.exact),
            **estimate.W_cov.to_json(),
            "debiased_asked": self.errors.requested.debiased,
            "se_note": self.errors.note or None,
            "wild": self._wild_json(),
            **self.robust.to_json(),
            "recommended": self.diagnostics.verdict.to_json()["recommended"],
            "least_squares": {
                "W": self.baseline.W.tolist(),
                "se": with_nulls(self.baseline.se),
            },
            "reduced_form": None if self.reduced_form is None else self.reduced_form.to_json(),
            "diagnostics": self.diagnostics.to_json()
            | {"actions": {one.action: one.to_json() for one in self.actions}},
        }

    def _wild_json(self) -> dict[str, dict[str, Any]] | None:
        """Return the bootstrapped tests by output and feature."""
        by_output: dict[str, dict[str, Any]] = {}
        for (output, name), test in self.wild.items():
            by_output.setdefault(output, {})[name] = test.to_json()
        return by_output or None


def nothing_inferred() -> dict[str, Any]:
    """Return what `Inference.to_json` would, where the moments were not formed."""
    reasons = dict.fromkeys(DIAGNOSTICS, NO_MOMENTS)
    return {
        **dict.fromkeys(("se", "se_kind", "least_squares", "robust_interval", "recommended")),
        "reduced_form": None,
        "diagnostics": {**dict.fromkeys(DIAGNOSTICS), "reasons": reasons},
        "reasons": dict.fromkeys(("se", "least_squares", "robust_interval"), NO_MOMENTS),
    }


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


def coefficient_records(
    estimate: Estimate, robust: RobustIntervals | None = None, baseline: Estimate | None = None
) -> Records:
    """Return the coefficients, one row per output and feature, with their statistics."""
    half, nan = half_widths(estimate) * estimate.se, float("nan")
    rows: Records = []
    for i, output in enumerate(estimate.design.outputs):
        for j, feature in enumerate(estimate.design.phi_names):
            W, se = float(estimate.W[i, j]), float(estimate.se[i, j])
            row = {"output": output, "feature": feature, "coefficient": W, "se": se}
            row |= {"low": W - float(half[i, j]), "high": W + float(half[i, j])}
            if robust is not None:
                one = robust.get(output, feature)
                row["robust_low"], row["robust_high"] = one.ends if one else (nan, nan)
            if baseline is not None:
                row["least_squares"] = float(baseline.W[i, j])
                row["least_squares_se"] = float(baseline.se[i, j])
            rows.append(row)
    return rows


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
    width_of = {f: two_sided(f, level) for f in set(rounded.ravel().tolist())}
    widths: np.ndarray = np.vectorize(width_of.__getitem__, otypes=[float])(rounded)
    return widths


def robust_lines(estimate: Estimate, robust: RobustIntervals, output: int) -> list[str]:
    """Return the intervals that a weak instrument cannot spoil, of one output's actions."""
    name = estimate.design.outputs[output]
    first = max(10, *(len(feature) for feature in estimate.design.phi_names))
    lines: list[str] = []
    whys: dict[str, list[str]] = {}
    for (of, feature), one in robust.intervals.items():
        if of == name:
            remark = "" if one.agrees else "   not Wald's"
            lines.append(f"{feature:{first}} {one.method:>9}   {one.words}{remark}")
    for (of, feature), why in robust.reasons.items():
        if of == name:
            whys.setdefault(why, []).append(feature)
    lines += [f"{', '.join(names):{first}} {'-':>9}   ({why})" for why, names in whys.items()]
    title = "95% intervals that hold however weak the instrument"
    return [title, *lines] if lines else []


def reduced_form_lines(estimate: Estimate, reduced: ReducedForm | None, output: int) -> list[str]:
    """Return one output's reduced form: its coefficients on the first instruments."""
    exact = estimate.design.outputs[output] in estimate.exact
    if reduced is None or not reduced.excluded or exact:
        return []
    first = max(10, *(len(feature) for feature in estimate.design.phi_names))
    instruments = reduced.excluded[:MOST_INSTRUMENTS]
    lines = ["reduced form: the output on the instruments, given the states"]
    for name in instruments:
        j = reduced.names.index(name)
        w, s = reduced.W[output, j], reduced.se[output, j]
        rest = f"{format_number(s)} {w / s:8.2f}" if s > 0 else "not identified: collinear"
        lines.append(f"{name:{first}} {format_number(w)} {rest}")
    more = len(reduced.excluded) - len(instruments)
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
