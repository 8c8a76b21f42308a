"""Gains over a rival as functions of W, and where they are gone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ivvi.invalidity.violations import Exclusion, Size, Violation
from ivvi.invalidity.worlds import Worlds
from ivvi.layout import Floats

STEP = 0.05
"""Step of the central difference, in standard deviations of the noise."""
SMALLEST, POINTS, REFINED = 1e-3, 32, 17
BAND, ANCHORS = 33, 5
"""Points of a band, and those of them at which its standard errors are simulated."""


@dataclass(frozen=True, eq=False)
class Gain:
    """V(policy) - V(rival) in the world of any W."""

    exclusion: Exclusion
    worlds: Worlds
    policy: Any
    rival: Any

    def __call__(self, W: Floats) -> Floats:
        """Return the gains, (m,), for weights (m, d_y, d_phi)."""
        model = self.exclusion.model
        known = self.exclusion.noise_cov
        noise_cov = model.noise_cov + known(W) - known(model.W)
        own, other = (self.worlds.returns(p, W, noise_cov) for p in (self.policy, self.rival))
        gains: Floats = own - other
        return gains

    def gradient(self) -> Floats:
        """Return its derivative in the coordinates of `Violation.G`, (d_y, r)."""
        d_y, r = len(self.exclusion.model.W), self.exclusion.rank
        units = np.eye(d_y * r).reshape(-1, d_y, r)
        ways = [Violation("", G) for G in units]
        W = np.concatenate([self.exclusion.W_at(v, [STEP, -STEP]) for v in ways])
        up, down = self(W).reshape(-1, 2).T
        return np.nan_to_num((up - down) / (2 * STEP)).reshape(d_y, r)

    def at(self, violation: Violation, t: Floats) -> Floats:
        """Return the gains for sizes t (m,)."""
        return self(self.exclusion.W_at(violation, t))

    def towards(self, violation: Violation, sign: float) -> Callable[[Floats], Floats]:
        """Return the gain as a function of the amount of a violation of one sign."""
        return lambda amount: self.at(violation, sign * amount)

    def size(self, violation: Violation, t: float | None) -> Size | None:
        """Return a size that may not exist in a reader's units."""
        return None if t is None else self.exclusion.size(violation, t)

    def se(self, violation: Violation, t: Floats, draws: Floats) -> Floats:
        """Standard errors for sizes t (m,), from deviations of W, (draws, d_y, d_phi).

        The direct effect is no noise: with it, the error that is left has variance
        var(y - W(t) phi) - t^2 sigma^2, and the deviations are scaled to it.
        """
        exclusion = self.exclusion
        W = exclusion.W_at(violation, t)
        variance = np.diagonal(exclusion.noise_cov(W), axis1=1, axis2=2)
        explained = np.outer(t**2, exclusion.noise**2 * np.sum(violation.G**2, axis=1))
        ratio = np.sqrt(np.maximum(variance - explained, 0.0)) / exclusion.noise
        around = W[:, None] + ratio[:, None, :, None] * draws
        gains = self(around.reshape(-1, *W.shape[1:])).reshape(len(t), len(draws))
        se: Floats = gains.std(axis=1, ddof=1)
        return se


def first_loss(gain: Callable[[Floats], Floats], most: float) -> float | None:
    """Return the smallest t in [0, most] where a gain is gone, None if there is none.

    Looked for on a geometric grid, then inside the interval of the first change of sign;
    where the states explode nothing is found.
    """
    grid = np.r_[0.0, np.geomspace(SMALLEST * most, most, POINTS)]
    at = _crossing(gain(grid))
    if at is None:
        return None
    if at == 0:
        return 0.0
    fine = np.linspace(grid[at - 1], grid[at], REFINED)
    values = gain(fine)
    inside = _crossing(values) or len(fine) - 1
    return interpolated(fine, values, inside)


def interpolated(t: Floats, values: Floats, at: int) -> float:
    """Where the line through points at - 1 and at meets zero."""
    before, after = values[at - 1], values[at]
    return float(t[at - 1] + (t[at] - t[at - 1]) * before / (before - after))


def smallest_loss(gain: Gain, violation: Violation, most: float) -> float | None:
    """Return the size, of the smallest amount and any sign allowed, where a gain is gone."""
    found = {sign: first_loss(gain.towards(violation, sign), most) for sign in violation.signs}
    return _nearest(found)


def smallest_crossing(t: Floats, values: Floats, signs: tuple[float, ...]) -> float | None:
    """Return the t nearest to 0 where values on a grid -T .. T fall to zero; None if nowhere."""
    found: dict[float, float | None] = {}
    for sign in signs:
        order = np.argsort(sign * t)
        order = order[sign * t[order] >= 0]
        at = _crossing(values[order])
        found[sign] = None
        if at is not None:
            found[sign] = interpolated(sign * t[order], values[order], at) if at else 0.0
    return _nearest(found)


def _nearest(found: dict[float, float | None]) -> float | None:
    """Return the smallest of some amounts with its sign."""
    known = [(amount, sign) for sign, amount in found.items() if amount is not None]
    if not known:
        return None
    amount, sign = min(known)
    return sign * amount


def _crossing(values: Floats) -> int | None:
    """Index of the first value that is not positive, if none before it is infinite."""
    found = np.flatnonzero(~(values > 0))
    if not len(found) or not np.isfinite(values[: found[0] + 1]).all():
        return None
    return int(found[0])


def deviations(model: Any, count: int, rng: np.random.Generator) -> Floats | None:
    """Draw W - E W from its covariance, (count, d_y, d_phi); None where it is not known."""
    d_y, d_phi = model.W.shape
    if model.bread.size == 0 or count < 2:
        return None
    if model.W_cov is None:
        normal = rng.normal(size=(count, d_y, d_phi))
        left, right = _root(model.noise_cov), _root(model.bread)
        return np.asarray(np.einsum("ij,njk,lk->nil", left, normal, right))
    normal = rng.normal(size=(count, d_y * d_phi))
    if model.W_cov.ndim == 2:
        return np.asarray((normal @ _root(model.W_cov).T).reshape(count, d_y, d_phi))
    rows = normal.reshape(count, d_y, d_phi)
    return np.stack([rows[:, i] @ _root(c).T for i, c in enumerate(model.W_cov)], axis=1)


def _root(covariance: Floats) -> Floats:
    values, vectors = np.linalg.eigh(np.nan_to_num((covariance + covariance.T) / 2))
    root: Floats = vectors * np.sqrt(np.clip(values, 0, None))
    return root
