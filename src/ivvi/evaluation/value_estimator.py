"""Values of several policies in the same drawn models, under the same noise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ivvi.evaluation.actors import Acting, Fixed, Planned
from ivvi.evaluation.episode_sampling import RolloutDesign
from ivvi.evaluation.interval_estimate import IntervalEstimate
from ivvi.evaluation.many_model_rollout import Episodes, RolloutTask, in_chunks, paths, returns
from ivvi.evaluation.model_draws import ModelDraws, draw, estimated_model, repeated
from ivvi.evaluation.value_inputs import ValueInputs
from ivvi.planning import MPC, Problem


@dataclass(frozen=True, eq=False)
class ValueEstimator:
    """Values policies in a problem, in models drawn by `method`, over the same rollouts.

    Estimators of different `stage` draw different models.
    """

    source: ValueInputs
    problem: Problem
    rollouts: RolloutDesign
    method: str = "auto"
    draws: int = 500
    level: float = 0.95
    seed: int = 0
    progress: Callable[[int], None] | None = None
    stage: int = 0

    @cached_property
    def models(self) -> ModelDraws:
        """The models that were drawn."""
        return self._drawn[0]

    @cached_property
    def _drawn(self) -> tuple[ModelDraws, np.ndarray]:
        """The models, and the weights of groups of episodes in each (`RolloutDesign.shares`)."""
        rng = np.random.default_rng([self.seed, self.stage] if self.stage else self.seed)
        models, weights = draw(self.source, self.method, self.draws, rng)
        clusters = self.source.start_clusters
        return models, self.rollouts.shares(self.draws, weights, rng, clusters)

    def first_returns(self, actors: Mapping[str, Acting]) -> dict[str, np.ndarray]:
        """Return each policy's returns in the estimated model, (N,)."""
        _ = self._drawn  # drawing comes first because it may raise an error
        return {name: self.in_estimate(*acting) for name, acting in actors.items()}

    def values(
        self, actors: Mapping[str, Acting], firsts: Mapping[str, np.ndarray], planner: Any = None
    ) -> dict[str, IntervalEstimate]:
        """Return each policy's value; with a `planner`, the first is planned again in each draw.

        `firsts` are the policies' `first_returns`.
        """
        amounts, (_, shares) = {}, self._drawn
        for i, (name, acting) in enumerate(actors.items()):
            first = firsts[name]
            rest = self._again(planner, first) if planner and i == 0 else self._in_draws(*acting)
            estimate, drawn = self.rollouts.combine(first, rest, shares)
            if planner and i == 0:  # the draws measure the estimate's optimism
                estimate += float(np.median((rest - first[: self.rollouts.count]).mean(axis=1)))
            error = float(first.std() / np.sqrt(first.size))
            amounts[name] = IntervalEstimate(estimate, drawn, self.level, error)
        return amounts

    @cached_property
    def _task(self) -> RolloutTask:
        return RolloutTask.of(self.problem)

    def in_estimate(self, actor: Any, parameters: Any) -> np.ndarray:
        """Return the returns of many episodes in the estimated model, (N,)."""
        models = repeated(estimated_model(self.source), self.rollouts.size)
        parts = [
            returns(self._task, actor, parameters, models, episodes)
            for episodes in self.rollouts.episodes()
        ]
        return np.concatenate([part.ravel() for part in parts])

    def doubts(self, actor: Any, parameters: Any, *, abstains: bool = False) -> tuple[str, ...]:
        """Return warnings where an actor's episodes in the estimated model leave the log."""
        episodes = self.rollouts.alone(self.problem.horizon)
        model = estimated_model(self.source)
        simulated = paths(self._task, actor, parameters, model, episodes)
        return self.problem.doubts_of(*simulated, abstains=abstains)

    def _in_draws(self, actor: Any, parameters: Any) -> np.ndarray:
        """Return the returns of a few episodes in each drawn model, (draws, n)."""
        few, size = self.rollouts.few, self.rollouts.size
        return in_chunks(self._task, actor, parameters, self.models, few, size, self.progress)

    def _again(self, planner: Any, first: np.ndarray) -> np.ndarray:
        """Return corrected returns when every draw has a plan of its own, (draws, n).

        A plan looks too good in the model that it was made for, by V_b(pi_b) - V(pi_b) in draw b.
        That measures how much too good the estimate's own plan looks, and is subtracted from the
        estimate's returns `first`.
        """
        drawn_and_estimated = self.models, repeated(estimated_model(self.source), self.draws)
        if isinstance(planner, MPC):
            again = Planned(planner, self.problem.with_weights)
            few, size, bar = self.rollouts.few, self.rollouts.size, self.progress
            in_own_draw, in_estimate = (
                in_chunks(self._task, again, self.models.W, models, few, size, bar)
                for models in drawn_and_estimated
            )
        else:
            in_own_draw, in_estimate = self._one_by_one(planner, drawn_and_estimated)
        adjusted: np.ndarray = first[: self.rollouts.count] - (in_own_draw - in_estimate)
        return adjusted

    def _one_by_one(
        self, planner: Any, drawn_and_estimated: tuple[ModelDraws, ModelDraws]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Plan and simulate one draw after another, for planners that cannot be traced."""
        collected: list[list[np.ndarray]] = [[], []]
        few = self.rollouts.few
        alone = Episodes(few.starts[:1], few.numbers[:1], few.seed)
        for b, W in enumerate(self.models.W):
            again = self.problem.with_weights(W)
            acting = Fixed.of(planner.solve(again))
            for models, values in zip(drawn_and_estimated, collected, strict=True):
                model = models.rows(slice(b, b + 1))
                values.append(returns(self._task, *acting, model, alone)[0])
            if self.progress:
                self.progress(len(drawn_and_estimated))
        return np.array(collected[0]), np.array(collected[1])
