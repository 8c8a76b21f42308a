"""Do outcomes follow a season or a trend of the step that the states do not hold?

The residuals of the S rows of step t have a mean e_t. Their variance beyond sampling, as a share of
the residual's, is the correlation of two rows of a step (`covariance.step_dependence`). Shocks that
episodes share, such as the weather's, bring such a share too; they have no pattern. A pattern is a
slow curve (one to three cosines of t) or one wave of any period; each is tested by F against
independent means. Plans and values take the residual for noise, so a pattern makes them wrong,
whatever the instrument.
"""

from __future__ import annotations

import numpy as np

from ivvi._io.arrays import Floats
from ivvi.diagnostics.tails_and_quantiles import f_tail
from ivvi.estimators.covariance.step_dependence import correlations
from ivvi.estimators.two_stage_least_squares import Exact
from ivvi.logs import Roles
from ivvi.moments import GroupSums, Moments

FEWEST_STEPS = 7
FEWEST_ROWS = 5.0
"""Rows of a step, by which its mean says more than single rows."""
SHARE = 0.05
"""Share of the residual's variance from which a pattern matters."""
SURE = 4.0
"""Standard errors by which the share must stand out."""
LEVEL = 2e-3
"""Level against shocks that steps bring to all episodes by chance."""
SLOW = 3
"""Most cosines of a slow curve."""
OVERSAMPLED = 4
"""Frequencies that are tried, per independent one."""


def step_patterns(moments: Moments, roles: Roles) -> tuple[str, ...]:
    """Return a warning for each output that follows a season or a trend of the step."""
    step = roles.moment
    sums = moments.group_sums(step)
    if step is None or sums is None or len(sums) < FEWEST_STEPS or moments.absorbed is not None:
        return ()
    exact = Exact().solve(moments)
    if not np.isfinite(exact.W).all() or np.median(sums.weight) < FEWEST_ROWS:
        return ()
    shares = correlations(moments, sums, exact.residual_map)
    pairs = float(np.sum(sums.weight**2 - sums.square))
    least = max(SHARE, SURE * float(np.sqrt(2 / pairs)))
    means = _means(moments, sums, exact.residual_map)
    return tuple(
        f"{output} follows a trend or a season of {step} that the states do not hold: effects of "
        f"{step} are {share:.0%} of what the model takes for noise, and plans and values may be "
        f"far off; {_remedy(step, roles)}"
        for output, share, e in zip(moments.design.outputs, shares.tolist(), means, strict=True)
        if share >= least and has_pattern(e)
    )


def _remedy(step: str, roles: Roles) -> str:
    if roles.dates is not None:
        states = f"add a number made from {step}, such as the month, to the states"
    else:
        states = f"add {step} to the states (--state ...,{step}; it may be the step too)"
    return f"{states}, with --features auto (phi='auto') unless it is a straight line"


def has_pattern(e: Floats) -> bool:
    """Whether the means (T,) of equally spaced steps follow a slow curve, or a wave."""
    steps = len(e)
    t = (np.arange(steps) + 0.5) / steps
    slow = np.cos(np.pi * t[:, None] * np.arange(1, SLOW + 1))
    frequencies = np.arange(OVERSAMPLED, OVERSAMPLED * steps // 2) / OVERSAMPLED
    waves = [
        np.column_stack([np.cos(2 * np.pi * f * t), np.sin(2 * np.pi * f * t)]) for f in frequencies
    ]
    p_slow = SLOW * min(_p_value(e, slow[:, :k]) for k in range(1, SLOW + 1))
    p_wave = steps * min((_p_value(e, wave) for wave in waves), default=1.0)
    return min(p_slow, p_wave) < LEVEL


def _p_value(e: Floats, columns: Floats) -> float:
    """Return the p-value of the F test that `columns` (T, q) explain nothing of e."""
    centred = e - e.mean()
    basis, _ = np.linalg.qr(columns - columns.mean(axis=0))
    explained, total = float(np.sum((centred @ basis) ** 2)), float(centred @ centred)
    q, left = basis.shape[1], len(e) - 1 - basis.shape[1]
    if not total > 0 or left < 1:
        return 1.0
    return f_tail((explained / q) / max((total - explained) / left, 1e-12 * total), q, left)


def _means(moments: Moments, sums: GroupSums, residual_map: Floats) -> Floats:
    """Return the mean residuals (d_y, T) of the steps in their order."""
    means: Floats = (sums.about(moments.mean) @ residual_map.T / sums.weight[:, None]).T
    return means if sums.places is None else means[:, np.argsort(sums.places)]
