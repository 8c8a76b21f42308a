"""Does a fit predict episodes that it has not seen, and stay within the range of the outcomes?

*Episodes it has not seen.* A few thousand of the log's first rows are dealt out to folds of whole
episodes. The sums of a fold are taken away from those of all rows, the rest is fitted again, and on
the fold the squared error of the fit is compared with that of the rest's mean, in two ways:

    y - E[W phi | x, z]    what states and instruments predict by way of the fit
    y - W phi(x, a)        what the fit says, the action known

With the true effects, the first is at most that of a constant, however strong the confounding.
The second is not: confounding may hide an effect, so that the truth itself is further from what
happened than the mean is. So it counts only if linear features do much better: then the weights
cancel each other on the rows that they were fitted to, but nowhere else.

*Values in the range of the outcome.* If features are too rich, or the instruments move them too
little, fitted values leave the range of the outcome: the weights are large and cancel only on
average. Strong confounding can do the same, because the confounder's effect on the outcome offset
that of the action. Then the features are fine and W is estimated well. So the warning needs two
things: fitted values out of range, and an estimation error of these values, E[phi' Cov(W_i) phi],
that is a sizeable part of the outcome's variance. If fitted values are far out of range often
enough, the first is sufficient.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ivvi._io.arrays import Floats
from ivvi._io.result import Compact
from ivvi.estimators import Estimate, Exact, Method
from ivvi.features.design import Design
from ivvi.features.feature_map import linear
from ivvi.logs import Batch, Roles
from ivvi.moments import Moments

FOLDS = 5
MANY_ROWS = 500
"""From this many rows per linear feature, no fold is predicted much worse than fitted rows."""
FEWEST_ROWS, MOST_ROWS = 100, 8192
"""Fewest and most rows that are predicted; with fewer, the result is chance."""
WORSE, FAR = 1.1, 1.5
"""Ratios of errors: with a test over the folds, and without (what explodes does so in one fold)."""
ROUNDING = 1e-10
NOTHING = 1e-13
"""Share of a column's squares that rounding leaves where its rows are taken away."""
LARGEST_TOLD = 1e4
"""Ratio of errors beyond which its size says nothing."""
OFTEN, FAR_OFTEN = 0.01, 0.05
"""Shares of rows with a fitted value out of the outcome's range, and out by half of it."""
UNSURE = 0.1
"""Share of the outcome's variance that the error of fitted values may have."""


@dataclass(frozen=True, slots=True, repr=False)
class HeldOut(Compact):
    """Squared errors on each fold, (folds, d_y).

    Attributes
    ----------
    fit
        Of W phi(x, a).
    foreseen
        Of what states and instruments predict of it.
    constant
        Of the mean of the other folds.
    varies
        Outputs that are not constant up to rounding, (d_y,).
    """

    fit: Floats
    foreseen: Floats
    constant: Floats
    varies: np.ndarray

    def ratio(self, errors: Floats) -> Floats:
        """Errors over those of a constant, (d_y,)."""
        total = np.where(self.varies, self.constant.sum(axis=0), np.inf)
        ratios: Floats = errors.sum(axis=0) / total
        return ratios

    def worse(self, errors: Floats) -> np.ndarray:
        """Outputs that a constant predicts better, by more than chance or by far, (d_y,)."""
        from scipy.special import stdtrit

        lead, ratio = errors - self.constant, self.ratio(errors)
        spread = lead.std(axis=0, ddof=1) / len(lead) ** 0.5
        clear = lead.mean(axis=0) > float(stdtrit(len(lead) - 1, 0.975)) * spread
        return np.asarray(((ratio > WORSE) & clear) | (ratio > FAR))

    @property
    def foresees_nothing(self) -> np.ndarray:
        """Outputs that a constant foresees better, by far, (d_y,)."""
        return np.asarray(self.ratio(self.foreseen) > FAR)


def predicts_worse(method: Method, moments: Moments, head: Batch, roles: Roles) -> str:
    """Return a warning if a constant predicts an output better than the fit, else ''."""
    design, is_smooth = moments.design, method.name == "smooth"
    if not method.one_solution:
        return ""
    if design.is_raw and moments.n >= MANY_ROWS * (len(design.phi_names) + len(design.psi_names)):
        return ""  # what they predict costs a share of about d_psi / n out of the sample
    rows, folds = _dealt(head)
    if folds is None:
        return ""
    again = method if is_smooth else Exact()
    with np.errstate(all="ignore"):  # numbers that leave every range are what it looks for
        errors = held_out(again, moments, rows, folds)
    if errors is None:
        return ""
    outputs, foreseen = moments.design.outputs, errors.ratio(errors.foreseen)
    if not is_smooth and errors.foresees_nothing.any():  # its first stage is penalised
        at = int(np.argmax(foreseen))
        return (
            f"on held-out episodes, this fit predicts {outputs[at]} from states and instruments "
            f"worse than its mean does: {_times(foreseen[at])} the squared error; use "
            "fewer or simpler features, or more rows"
        )
    worse, ratio = errors.worse(errors.fit), errors.ratio(errors.fit)
    if moments.design.is_raw or not worse.any():
        return ""
    plain = Design.build(linear(), linear(), roles)
    straight = held_out(Exact(), Moments.of_batch(plain, rows), rows, folds)
    if straight is None:
        return ""
    simple = straight.ratio(straight.fit)
    worse &= ratio > FAR * simple
    if not worse.any():
        return ""
    at = int(np.argmax(np.where(worse, ratio, -1.0)))
    return (
        f"on held-out episodes, this fit predicts {outputs[at]} worse than its mean does: "
        f"{_times(ratio[at])} the squared error, while linear features have {simple[at]:.3g}; "
        "the features of this fit are too rich for the instruments: use fewer or simpler ones, "
        "auto, or a penalty (the method ridge)"
    )


def _times(ratio: float) -> str:
    """Return "N times", or words if N is absurdly large."""
    return f"{ratio:.3g} times" if ratio < LARGEST_TOLD else f"more than {LARGEST_TOLD:,.0f} times"


def held_out(method: Method, moments: Moments, rows: Batch, folds: np.ndarray) -> HeldOut | None:
    """Fit without each fold of `rows`, which are part of `moments`, and measure the errors there.

    None where what is left does not identify the weights. The moments of a fold are enough: its
    squared errors are sum_i w_i (r v_i)^2 for some r, a row of zeros and weights.
    """
    design, errors = moments.design, []
    phi, psi, y = (
        np.array(columns) for columns in (design.phi_columns, design.psi_columns, design.y_columns)
    )
    for fold in range(int(folds.max()) + 1):
        part = Moments.of_batch(design, rows.taken(np.flatnonzero(folds == fold)))
        rest = without(moments, part)
        if rest.n <= 2 * len(design.phi_names) or not rest.weight > 0:
            return None
        try:
            fit = method.solve(rest)
        except np.linalg.LinAlgError:
            return None
        if not fit.identified or not np.isfinite(fit.W).all():
            return None
        by_instrument = fit.W @ _reduced(rest).T
        errors.append(
            [
                _squares(part, y, phi, fit.W),
                _squares(part, y, psi, by_instrument),
                np.diag(part.scatter)[y] + part.weight * (part.mean[y] - rest.mean[y]) ** 2,
            ]
        )
    spread = np.sqrt(np.diag(moments.scatter)[y] / moments.weight)
    varies = spread > ROUNDING * np.abs(moments.mean[y])
    fitted, foreseen, constant = np.array(errors).transpose(1, 0, 2)
    return HeldOut(fitted, foreseen, constant, varies)


def _squares(part: Moments, y: np.ndarray, columns: np.ndarray, weights: Floats) -> Floats:
    """Return the sum of (y - weights v[columns])^2 over the rows of `part`, (d_y,)."""
    R = np.zeros((len(y), len(part.mean)))
    R[:, columns] = -weights
    R[np.arange(len(y)), y] += 1.0
    around_mean = np.sum((R @ part.scatter) * R, axis=1)
    squares: Floats = np.maximum(around_mean, 0.0) + part.weight * (R @ part.mean) ** 2
    return squares


def without(moments: Moments, part: Moments) -> Moments:
    """Return the moments of all rows but those of a part.

    A column that is 0 in all of these, such as a level that only the part has, is exactly 0.
    """
    weight = moments.weight - part.weight
    if not weight > 0:
        return Moments.empty(moments.design)
    mean = (moments.weight * moments.mean - part.weight * part.mean) / weight
    shift = part.mean - mean
    share = weight * part.weight / moments.weight
    scatter = moments.scatter - part.scatter - share * np.outer(shift, shift)
    np.fill_diagonal(scatter, np.maximum(np.diag(scatter), 0.0))  # rounding of a constant
    all_squares, training_squares = (
        np.diag(about_mean) + w * m**2
        for about_mean, w, m in (
            (moments.scatter, moments.weight, moments.mean),
            (scatter, weight, mean),
        )
    )
    absent = training_squares <= NOTHING * all_squares
    mean[absent] = scatter[absent] = scatter[:, absent] = 0.0
    return Moments(moments.design, moments.n - part.n, weight, mean, scatter)


def leaves_range(estimate: Estimate, moments: Moments, head: Batch) -> str:
    """Return a warning about the worst output whose fitted values leave its range, else ''."""
    if moments.design.is_raw or not np.isfinite(estimate.W).all() or not len(head):
        return ""  # of linear features there are none that are simpler
    fitted = estimate.design.phi(head.x, head.a) @ estimate.W.T
    low, high = head.y.min(axis=0), head.y.max(axis=0)
    reach = high - low
    out = np.mean((fitted < low - OFTEN * reach) | (fitted > high + OFTEN * reach), axis=0)
    far = np.mean((fitted < low - reach / 2) | (fitted > high + reach / 2), axis=0)
    unsure = estimation_share(estimate, moments)
    bad = (reach > 0) & (((out > OFTEN) & (unsure > UNSURE)) | (far > FAR_OFTEN))
    if not bad.any():
        return ""
    at = int(np.argmax(np.where(bad, out, -1.0)))
    y = moments.design.y_columns[at]
    ratio = estimate.noise_cov[at, at] * moments.weight / moments.scatter[y, y]
    return (
        f"in {out[at]:.0%} of the rows the fitted values of {moments.design.outputs[at]} lie "
        f"outside its range, and the error variance is {ratio:.2g} times its variance: the "
        "features are too rich for these instruments; use fewer or simpler ones, or a penalty (the "
        "method ridge)"
    )


def estimation_share(estimate: Estimate, moments: Moments) -> Floats:
    """Return E[phi' Cov(W_i) phi] / Var(y_i) for each output, (d_y,)."""
    phi, y = list(moments.design.phi_columns), list(moments.design.y_columns)
    mean = moments.mean[phi]
    D = moments.scatter[np.ix_(phi, phi)] / moments.weight + np.outer(mean, mean)
    total = np.diag(moments.scatter)[y] / moments.weight
    error = np.einsum("jk,ijk->i", D, estimate.W_cov.blocks)
    share: Floats = error / np.where(total > 0, total, 1.0)
    return share


def _reduced(moments: Moments) -> Floats:
    """The regression of phi on psi, (d_psi, d_phi)."""
    phi, psi = list(moments.design.phi_columns), list(moments.design.psi_columns)
    second = moments.scatter / moments.weight + np.outer(moments.mean, moments.mean)
    squares = np.diag(second)[psi]
    scale = np.where(squares > 0, np.sqrt(squares), np.inf)  # what is never met predicts nothing
    B = second[np.ix_(psi, psi)] / np.outer(scale, scale)
    A = second[np.ix_(psi, phi)] / scale[:, None]
    first: Floats = np.linalg.lstsq(B, A, rcond=ROUNDING)[0] / scale[:, None]
    return first


def _dealt(head: Batch) -> tuple[Batch, np.ndarray | None]:
    """Return whole episodes, spread over the rows, and their folds; none where they are few."""
    place = np.arange(len(head))
    if head.episode is not None:
        moved = np.diff(head.episode, prepend=head.episode[:1])
        if (moved >= 0).all():
            place = np.cumsum(moved > 0)
        else:
            place = np.unique(head.episode, return_inverse=True)[1]
    every = max(1, -(-len(head) // MOST_ROWS))
    at = np.flatnonzero(place % every == 0)
    count = min(FOLDS, int(np.count_nonzero(np.bincount(place[at]))))
    if count < 2 or len(at) < FEWEST_ROWS:
        return head, None
    rows = head.taken(at)
    return rows, np.asarray((place[at] // every) % count)
