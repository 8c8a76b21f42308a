"""Gains over a rival when the instrument is invalid, and where they are gone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ivvi.dynamics import Dynamics
from ivvi.invalidity.violations import Exclusion, Size, Violation
from ivvi.layout import Floats
from ivvi.next_states import noise_law
from ivvi.planners import Problem
from ivvi.valuation.actors import Acting, Habitual
from ivvi.valuation.draws import Worlds, estimated_world, repeated
from ivvi.valuation.evidence import Evidence
from ivvi.valuation.luck import Luck
from ivvi.valuation.simulation import Episodes, Task, in_chunks

STEP = 0.05
"""Step of the central difference, in standard deviations of the noise."""
SMALLEST, BAND, ANCHORS = 1e-3, 33, 5
"""Points of a band, of each grid and of each chunk of worlds; points with standard errors."""


@dataclass(frozen=True, eq=False)
class Stage:
    """Where gains are simulated: the estimated world, what is earned, the luck of all worlds."""

    exclusion: Exclusion
    estimated: Worlds
    task: Task
    episodes: Episodes

    @classmethod
    def of(
        cls, evidence: Evidence, problem: Problem, starts: Any, episodes: int, seed: int
    ) -> Stage:
        """Start where values start (`Luck`), with the same luck."""
        exclusion = Exclusion.of(evidence)
        luck = Luck.of(problem, starts, BAND, seed)
        few = replace(luck, size=BAND, count=episodes).few
        return cls(exclusion, estimated_world(evidence), Task.of(problem), few)

    def returns(self, acting: Acting, E: Floats, W: Floats) -> Floats:
        """Return what is earned, (m, n), in worlds with direct effects E and weights W.

        To a policy that does not look at z, its direct effect E psi~ is a part of the noise.
        Behaviour acts on z: to it the effect comes with the action, and the noise is the rest.
        """
        actor, given = acting
        noise = self.exclusion.noise_cov(W)
        worlds = repeated(self.estimated, len(W))._replace(W=W)
        if isinstance(actor, Habitual) and actor.design.psi is not None:
            worlds = worlds._replace(direct=self.exclusion.direct(E))
            noise = noise - E @ np.swapaxes(E, 1, 2)
        d = self.task.d_x
        worlds = worlds._replace(law=noise_law(noise[:, :d, :d], self.task.categories))
        return in_chunks(self.task, actor, given, worlds, self.episodes, BAND)


@dataclass(frozen=True, eq=False)
class Gain:
    """V(policy) - V(rival) in the worlds that explain the log if the instrument is invalid."""

    stage: Stage
    policy: Acting
    rival: Acting

    @property
    def exclusion(self) -> Exclusion:
        """What the log says of direct effects."""
        return self.stage.exclusion

    def __call__(self, E: Floats, moved: Any = 0.0) -> tuple[Floats, Floats]:
        """Return the gains and the errors of their simulation, (m,).

        Parameters
        ----------
        E
            Direct effects of psi~ in units of y, (m, d_y, r).
        moved
            What to add to the weights W(E), (m, d_y, d_phi).
        """
        W = self.exclusion.weights(E) + moved
        own, other = (self.stage.returns(who, E, W) for who in (self.policy, self.rival))
        gains = own - other
        return gains.mean(axis=1), gains.std(axis=1) / np.sqrt(gains.shape[1])

    def gradient(self) -> Floats:
        """Return its derivative in the coordinates of `Violation.G`, (d_y, r)."""
        d_y, r = len(self.exclusion.model.W), self.exclusion.rank
        units = np.eye(d_y * r).reshape(-1, d_y, r)
        ways = [Violation("", G) for G in units]
        E = np.concatenate([self.exclusion.effects(v, [STEP, -STEP]) for v in ways])
        up, down = self(E)[0].reshape(-1, 2).T
        return np.nan_to_num((up - down) / (2 * STEP)).reshape(d_y, r)

    def at(self, violation: Violation, t: Floats) -> tuple[Floats, Floats]:
        """Return the gains and the errors of their simulation for sizes t (m,)."""
        return self(self.exclusion.effects(violation, t))

    def towards(self, violation: Violation, sign: float) -> Callable[[Floats], Floats]:
        """Return the gain as a function of the amount of a violation of one sign."""
        return lambda amount: self.at(violation, sign * amount)[0]

    def size(self, violation: Violation, t: float | None) -> Size | None:
        """Return a size that may not exist in a reader's units."""
        return None if t is None else self.exclusion.size(violation, t)

    def se(self, violation: Violation, t: Floats, draws: Floats) -> Floats:
        """Standard errors for sizes t (m,), from deviations of W, (draws, d_y, d_phi).

        The direct effect is no noise: with it, the error that is left has variance
        var(y - W(t) phi) - t^2 sigma^2, and the deviations are scaled to it.
        """
        exclusion = self.exclusion
        E = exclusion.effects(violation, t)
        variance = np.diagonal(exclusion.noise_cov(exclusion.weights(E)), axis1=1, axis2=2)
        left = np.maximum(variance - np.sum(E**2, axis=2), 0.0)
        ratio = np.sqrt(left) / exclusion.noise
        moved = (ratio[:, None, :, None] * draws).reshape(-1, *exclusion.model.W.shape)
        gains = self(np.repeat(E, len(draws), axis=0), moved)[0].reshape(len(t), len(draws))
        se: Floats = gains.std(axis=1, ddof=1)
        return se


def first_loss(gain: Callable[[Floats], Floats], most: float) -> float | None:
    """Return the smallest t in [0, most] where a gain is gone, None if there is none.

    Looked for on a geometric grid, then inside the interval of the first change of sign;
    where the states explode nothing is found.
    """
    grid = np.r_[0.0, np.geomspace(SMALLEST * most, most, BAND - 1)]
    at = _crossing(gain(grid))
    if at is None:
        return None
    if at == 0:
        return 0.0
    fine = np.linspace(grid[at - 1], grid[at], BAND)
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


def deviations(model: Dynamics, count: int, rng: np.random.Generator) -> Floats | None:
    """Draw W - E W from its covariance, (count, d_y, d_phi); None where it is not known."""
    unknown = model.W_cov is None and model.bread.size == 0
    if unknown or count < 2:
        return None
    drawn: Floats = rng.normal(size=(count, model.W.size)) @ model.weight_root.T
    return drawn.reshape(count, *model.W.shape)
