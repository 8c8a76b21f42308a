"""Where conclusions about gains and actions break down as the instrument becomes more invalid.

A gain over a rival is simulated in models with ever larger direct effects of the instrument, until
it is lost. A recommended action is planned again in such models, until it flips.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ivvi._io.arrays import Floats
from ivvi._io.result import Compact
from ivvi.actions import Actions
from ivvi.dynamics.model import Dynamics
from ivvi.dynamics.next_state_distribution import noise_law
from ivvi.errors import PlanningWarning
from ivvi.evaluation.actors import Acting, BehaviourActor
from ivvi.evaluation.episode_sampling import RolloutDesign
from ivvi.evaluation.many_model_rollout import Episodes, RolloutTask, in_chunks
from ivvi.evaluation.model_draws import ModelDraws, estimated_model, repeated
from ivvi.evaluation.value_inputs import ValueInputs
from ivvi.planning.problem import Planner, Problem
from ivvi.policy.policy import Policy
from ivvi.sensitivity_analysis.violations import Exclusion, Size, Violation

STEP = 0.05
"""Step of the central difference, in standard deviations of the noise."""
BAND = 33
"""Points of a band, and models in a chunk."""
SMALLEST, A_DECADE, CUTS, ROUNDS = 0.01, 5, 8, 2
"""Sizes that are tried: the smallest, and how many per decade from there on. The interval in which
the gain is lost is then cut into CUTS parts, ROUNDS times."""
HALVINGS = 5
FIRST, RATIO = 0.03, 2.0
"""Sizes at which plans are made: the first, and the ratio of each to the one before."""


@dataclass(frozen=True, eq=False)
class GainSimulator:
    """The simulation of gains: the estimated model, the task, and the episodes of all models."""

    exclusion: Exclusion
    estimated: ModelDraws
    task: RolloutTask
    episodes: Episodes

    @classmethod
    def of(
        cls, source: ValueInputs, problem: Problem, starts: Any, episodes: int, seed: int
    ) -> GainSimulator:
        """Return a simulator with the first states and the noise of values (`RolloutDesign`)."""
        exclusion = Exclusion.of(source)
        rollouts = RolloutDesign.of(problem, starts, BAND, seed)
        few = replace(rollouts, size=BAND, count=episodes).few
        return cls(exclusion, estimated_model(source), RolloutTask.of(problem), few)

    def returns(self, acting: Acting, direct_effects: Floats, W: Floats) -> Floats:
        """Return the returns (m, n) in models with direct effects E and weights W.

        For a policy that does not use z, the direct effect E psi~ is a part of the noise. Behaviour
        acts on z: for it the effect comes with the action, and the noise is the rest.
        """
        actor, parameters = acting
        noise = self.exclusion.noise_cov(W)
        models = repeated(self.estimated, len(W))._replace(W=W)
        if isinstance(actor, BehaviourActor) and actor.features.psi is not None:
            models = models._replace(direct=self.exclusion.direct(direct_effects))
            noise = noise - direct_effects @ np.swapaxes(direct_effects, 1, 2)
        noise = np.asarray(self.task.update.noise(noise))
        models = models._replace(law=noise_law(noise, self.task.categories))
        return in_chunks(self.task, actor, parameters, models, self.episodes, BAND)


@dataclass(frozen=True, eq=False)
class Gain:
    """V(policy) - V(rival) in the models that explain the log if the instrument is invalid."""

    simulator: GainSimulator
    policy: Acting
    rival: Acting

    @property
    def exclusion(self) -> Exclusion:
        """The implications of the log for direct effects."""
        return self.simulator.exclusion

    def __call__(self, direct_effects: Floats, moved: Any = 0.0) -> tuple[Floats, Floats]:
        """Return the gains and the errors of their simulation, (m,).

        Parameters
        ----------
        direct_effects
            Direct effects of psi~ in units of y, (m, d_y, r).
        moved
            Deviations to add to the weights W(E), (m, d_y, d_phi).
        """
        W = self.exclusion.weights(direct_effects) + moved
        of_policy, of_rival = (
            self.simulator.returns(actor, direct_effects, W) for actor in (self.policy, self.rival)
        )
        gains = of_policy - of_rival
        return gains.mean(axis=1), gains.std(axis=1) / np.sqrt(gains.shape[1])

    def gradient(self) -> Floats:
        """Return the gain's derivative in the coordinates of `Violation.direction`, (d_y, r)."""
        d_y, r = len(self.exclusion.model.W), self.exclusion.rank
        units = np.eye(d_y * r).reshape(-1, d_y, r)
        violations = [Violation("", direction) for direction in units]
        direct_effects = np.concatenate(
            [self.exclusion.effects(v, [STEP, -STEP]) for v in violations]
        )
        up, down = self(direct_effects)[0].reshape(-1, 2).T
        return np.nan_to_num((up - down) / (2 * STEP)).reshape(d_y, r)

    def at(self, violation: Violation, t: Floats) -> tuple[Floats, Floats]:
        """Return the gains and the errors of their simulation for sizes t (m,)."""
        return self(self.exclusion.effects(violation, t))

    def lower(self, violation: Violation, t: Floats, draws: Floats, critical: float) -> Floats:
        """Return lower ends of the intervals for sizes t (m,); see `se`."""
        gains, error = self.at(violation, t)
        lower: Floats = gains - critical * np.hypot(self.se(violation, t, draws), error)
        return lower

    def size(self, violation: Violation, t: float | None) -> Size | None:
        """Return a size in a reader's units, or None for None."""
        return None if t is None else self.exclusion.size(violation, t)

    def se(self, violation: Violation, t: Floats, draws: Floats) -> Floats:
        """Return standard errors for sizes t (m,), from deviations of W, (draws, d_y, d_phi).

        The direct effect is not noise: with it, the remaining error has variance
        var(y - W(t) phi) - t^2 sigma^2, and the deviations are scaled to it.
        """
        exclusion = self.exclusion
        direct_effects = exclusion.effects(violation, t)
        variance = np.diagonal(
            exclusion.noise_cov(exclusion.weights(direct_effects)), axis1=1, axis2=2
        )
        left = np.maximum(variance - np.sum(direct_effects**2, axis=2), 0.0)
        ratio = np.sqrt(left) / exclusion.noise
        moved = (ratio[:, None, :, None] * draws).reshape(-1, *exclusion.model.W.shape)
        gains = self(np.repeat(direct_effects, len(draws), axis=0), moved)[0].reshape(
            len(t), len(draws)
        )
        se: Floats = gains.std(axis=1, ddof=1)
        return se


def ladder(most: float) -> Floats:
    """Return 0 and the sizes up to `most` that are tried; a larger `most` only adds sizes."""
    count = max(0, math.floor(A_DECADE * math.log10(most / SMALLEST) + 1e-9) + 1)
    rungs = SMALLEST * 10 ** (np.arange(count) / A_DECADE)
    sizes: Floats = np.r_[0.0, rungs[rungs < most * (1 - 1e-9)], most]
    return sizes


def first_loss(gain: Callable[[Floats], Floats], most: float) -> float | None:
    """Return the smallest t in [0, most] at which a gain is lost; None if there is none.

    The search is on the `ladder`, then inside the interval of the first change of sign. It ends
    where the states explode.
    """
    grid = ladder(most)
    values = gain(grid)
    at = _crossing(values)
    if at is None or at == 0:
        return None if at is None else 0.0
    for _ in range(ROUNDS):
        ends = values[at - 1], values[at]
        grid = np.linspace(grid[at - 1], grid[at], CUTS + 1)
        values = np.r_[ends[0], gain(grid[1:-1]), ends[1]]
        at = _crossing(values) or CUTS
    before, after = values[at - 1], values[at]
    return float(grid[at - 1] + (grid[at] - grid[at - 1]) * before / (before - after))


def smallest_loss(
    towards: Callable[[float], Callable[[Floats], Floats]], violation: Violation, most: float
) -> float | None:
    """Return the size, smallest in absolute value of all allowed signs, at which a gain is lost.

    `towards` returns, for a sign, the gain (or the lower end of its interval) by amount.
    """
    return _nearest({sign: first_loss(towards(sign), most) for sign in violation.signs})


def deviations(model: Dynamics, count: int, rng: np.random.Generator) -> Floats | None:
    """Return draws of W - E W, (count, d_y, d_phi); None where the covariance is not known."""
    unknown = model.W_cov is None and model.bread.size == 0
    if unknown or count < 2:
        return None
    return model.weights.draw_deviations(count, rng)


@dataclass(frozen=True, eq=False, repr=False)
class Replanned(Compact):
    """The planner's recommendations in given states when the violation has size t."""

    exclusion: Exclusion
    violation: Violation
    problem: Problem
    planner: Planner
    states: np.ndarray
    progress: Callable[[int], None] | None = None
    _known: dict[float, np.ndarray] = field(default_factory=dict)

    def __call__(self, t: float) -> np.ndarray:
        """Plan again with W(t); return actions (k, d_a)."""
        if t not in self._known:
            W = self.exclusion.weights(self.exclusion.effects(self.violation, t))
            problem = self.problem.with_weights(W, self.exclusion.noise_cov(W))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", PlanningWarning)  # issued at the first plan
                policy = Policy(problem, self.planner.solve(problem))
            self._known[t] = policy(self.states)
            if self.progress is not None:
                self.progress(1)
        return self._known[t]

    def first_flip(self, row: int, most: float) -> tuple[float, int] | None:
        """Return the smallest size, of an allowed sign, at which the action of a state flips.

        Also return the coordinate that flips. None if none flips up to `most`.
        """
        start = self(0.0)[row]

        def flipped(t: float) -> Any:
            return has_flipped(self.problem.actions, start, self(t)[row])

        before, count = 0.0, max(0, math.ceil(math.log(most / FIRST) / math.log(RATIO) - 1e-9))
        for size in (*(FIRST * RATIO ** np.arange(count)), most):
            for sign in self.violation.signs:
                if not flipped(sign * size).any():
                    continue
                low, high = before, float(size)
                for _ in range(HALVINGS):
                    middle = (low + high) / 2
                    low, high = (low, middle) if flipped(sign * middle).any() else (middle, high)
                at = int(np.flatnonzero(flipped(sign * high))[0])
                return sign * (low + high) / 2, at
            before = float(size)
        return None


def has_flipped(actions: Actions, before: Floats, after: Floats) -> Any:
    """Return whether each coordinate of an action has flipped, (d_a,).

    A discrete coordinate flips when it changes. A continuous one flips when it crosses 0, or the
    middle of its range if 0 is outside the range.
    """
    changed = np.abs(after - before) > 0
    for i, low, high in zip(actions.continuous, actions.low, actions.high, strict=True):
        side = 0.0 if low < 0 < high else (low + high) / 2
        changed[i] = (before[i] - side) * (after[i] - side) < 0
    return changed


def _nearest(crossings: dict[float, float | None]) -> float | None:
    """Return the smallest of the amounts, with its sign."""
    reached = [(amount, sign) for sign, amount in crossings.items() if amount is not None]
    if not reached:
        return None
    amount, sign = min(reached)
    return sign * amount


def _crossing(values: Floats) -> int | None:
    """Return the index of the first value that is not positive, if none before is infinite."""
    crossings = np.flatnonzero(~(values > 0))
    if not len(crossings) or not np.isfinite(values[: crossings[0] + 1]).all():
        return None
    return int(crossings[0])
