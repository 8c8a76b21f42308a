"""Whether two sets of sums belong together: columns in the same units, effects that agree.

Sums from two places can be added without the rows, and the total does not show if they should not
have been. While both are at hand, W_1, W_2 and the W of all rows are compared: for parts of one
world all three agree up to their errors, and the third lies between the others. Sums that are not
kept by cluster tell nothing of dependence; their variances are multiplied as if half of the pairs
of rows of an episode had one score.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ivvi._io.arrays import Floats
from ivvi.diagnostics.first_stage import first_stage
from ivvi.diagnostics.misspecification.mixed_units import CONVERSIONS
from ivvi.estimators import Estimate, Exact, StandardErrors
from ivvi.estimators.covariance.estimate_covariance import residual_score, with_errors
from ivvi.estimators.covariance.scores import score
from ivvi.logs import Counts, Roles
from ivvi.moments import Moments

FEWEST = 30
"""Rows, or clusters, from which on the spread of either part is known well enough."""
APART = 10.0
"""Standard deviations, the larger of two, between means of columns in different units."""
SCALED = 15.0
"""Ratio of standard deviations, and of means, of columns in different units."""
TENTH, FAR_UNITS, NEAR_MEAN, NEAR_SPREAD = 10.0, 3.0, 0.25, 0.1
"""Least factor between units that are told by mean and spread together, standard deviations between
the means, and how far, after the conversion, means (in standard deviations) and the logarithms of
spreads may lie apart."""
LARGE = 4.5
"""Standard errors between effects of parts that do not belong together."""
MATERIAL, NOTICED = 0.25, 0.02
"""Least difference, as a share of the effect and in standard deviations of the output."""
STRONG = 10.0
"""First-stage F, after the factor of variances, from which two-stage errors can be relied on."""
LEAST_FACTOR = 4.0
"""Factor of unadjusted variances for rows that depend on each other unseen, or are uneven."""


@dataclass(frozen=True, slots=True)
class LabelledSums:
    """The sums of some rows, and where they came from."""

    moments: Moments
    counts: Counts
    label: str


def doubt_together(one: LabelledSums, two: LabelledSums, total: Moments, roles: Roles) -> str:
    """Return why the sums of two parts should not have been added, or '' if they may be."""
    if min(one.moments.n, two.moments.n) < FEWEST:
        return ""
    return next(_other_units(one, two, roles), "") or next(_other_effects(one, two, total), "")


def _other_units(one: LabelledSums, two: LabelledSums, roles: Roles) -> Iterator[str]:
    """Name columns whose means lie too far apart, or whose sizes differ by a factor."""
    coded = {name for category in roles.categories for name in category.names}
    plain, design = set(roles.numeric) - coded, one.moments.design
    first, second = (_spread(part.moments) for part in (one, two))
    for column, name in enumerate(design.names):
        pair = [float(part.moments.mean[column]) for part in (one, two)]
        sd = [float(first[column]), float(second[column])]
        if name in plain and _is_rescaled(pair, sd):
            yield (
                f"the mean of {name} is {pair[0]:.4g} in {one.label} (standard deviation "
                f"{sd[0]:.3g}) and {pair[1]:.4g} in {two.label} ({sd[1]:.3g}), as if in other "
                f"units: convert the column in {two.label} and add it again"
            )


def _spread(moments: Moments) -> Floats:
    """Return the standard deviation of each column of v."""
    return np.sqrt(np.diag(moments.scatter).clip(min=0) / moments.weight)


def _is_rescaled(mean: Sequence[float], sd: Sequence[float]) -> bool:
    """Whether two samples of a column are too far apart, or one is a multiple of the other."""
    if min(sd) <= 0 or any(np.isclose(s**2, m * (1 - m)) for m, s in zip(mean, sd, strict=True)):
        return False  # constant in a part, as a year is; or 0 and 1, which may be rare
    if abs(mean[0] - mean[1]) > APART * max(sd) or _is_converted(mean, sd):
        return True
    ratio = sd[1] / sd[0]
    centred = all(abs(m) < s / 3 for m, s in zip(mean, sd, strict=True))
    of_means = mean[1] / mean[0] if mean[0] else 0.0
    return max(ratio, 1 / ratio) > SCALED and (centred or 0.5 < of_means / ratio < 2.0)


def _is_converted(mean: Sequence[float], sd: Sequence[float]) -> bool:
    """Whether mean and spread of one sample are those of the other in a unit ten times as small.

    Other usual units are so too, if they are as far from each other.
    """
    for factor, shift, _ in CONVERSIONS:
        for (m, s), (m2, s2) in itertools.permutations(zip(mean, sd, strict=True)):
            apart = abs(m2 - m) > FAR_UNITS * s and (factor >= TENTH or shift)
            near = abs(m2 - factor * m - shift) < NEAR_MEAN * s2
            if apart and near and abs(np.log(s2 / (factor * s))) < NEAR_SPREAD:
                return True
    return False


def _other_effects(one: LabelledSums, two: LabelledSums, total: Moments) -> Iterator[str]:
    """Name effects of actions that differ, or that are others in all rows than in either part."""
    both, design = LabelledSums(total, one.counts + two.counts, ""), total.design
    if not (_is_strong(one) and _is_strong(two) and _solved(both).identified):
        return
    (w1, se1), (w2, se2), (w, se) = map(_weights, (one, two, both))
    error, size = np.hypot(se1, se2), np.maximum(abs(w1), abs(w2))
    sd = _spread(total)
    noticed = (
        NOTICED * sd[list(design.y_columns)][:, None] / sd[list(design.phi_columns)].clip(1e-300)
    )
    least = np.maximum(MATERIAL * size, noticed)
    outside = np.maximum(w - np.maximum(w1, w2), np.minimum(w1, w2) - w)
    differ = abs(w1 - w2) > np.maximum(LARGE * error, least)
    moved = outside > np.maximum(LARGE * np.maximum(se, np.minimum(se1, se2)), least)
    for stage in first_stage(total):
        j = design.phi_names.index(stage.feature)
        for i in np.flatnonzero(moved[:, j] | differ[:, j]):
            yield (
                f"the effect of {stage.feature} on {design.outputs[i]} is {w1[i, j]:.3g} in "
                f"{one.label}, {w2[i, j]:.3g} in {two.label} and {w[i, j]:.3g} in both together: "
                f"{_remedy(two.label, moved=bool(moved[i, j]))}"
            )


def _remedy(label: str, *, moved: bool) -> str:
    """Return advice for parts that differ only in their levels, or in the effect itself."""
    if moved:
        return (
            "the levels of outcome and instrument differ between the two for reasons that no "
            "column records; refit all rows with a column for the site in --context (sums: make "
            "them again with that column, --like the sums of a made-up table that has every "
            "site), or leave one of the two out"
        )
    return (
        "the two do not describe the same world; check whether columns are in different units, or "
        f"else leave {label} out and fit it separately"
    )


def _inflation(part: LabelledSums) -> float:
    """Return the largest factor by which dependent or uneven rows may raise a plain variance."""
    return max(LEAST_FACTOR, (1 + part.moments.n / max(part.counts.episodes, 1)) / 2)


def _is_strong(part: LabelledSums) -> bool:
    """Whether the instruments of a part move every action enough for errors to be trusted."""
    stages = first_stage(part.moments)
    tests = [stage.conditional_f or stage.partial_f for stage in stages]
    least = STRONG * _inflation(part)
    return bool(tests) and all(test.value > least for test in tests) and _solved(part).identified


def _solved(part: LabelledSums) -> Estimate:
    return Exact().solve(part.moments)


def _weights(part: LabelledSums) -> tuple[Floats, Floats]:
    """Return W and its standard errors, (d_y, d_phi) each: clustered where the sums allow it."""
    estimate, moments = _solved(part), part.moments
    errors = StandardErrors().for_sums(moments, part.counts, len(moments.design.phi_names))
    clusters = 0 if moments.episodes is None else len(moments.episodes)
    if errors.kind == "unadjusted" or clusters < FEWEST:
        return estimate.W, estimate.se * np.sqrt(_inflation(part))
    scored = score({"W": residual_score(estimate, moments, errors, clusters)}, errors, moments)
    return estimate.W, with_errors(estimate, errors, scored["W"], moments).se
