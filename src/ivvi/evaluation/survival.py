"""Survival curves: the share of episodes that continue under each policy, with bands.

    S(h) = P(the episode has not ended after h steps),    S(0) = 1,

in the estimated dynamics, where ends are weighted by their chance. Bands are quantiles over drawn
models, each compared with the estimate in the same episodes under the same noise. Where ends are of
several kinds, the cumulative incidence of each is drawn in the same way,

    F_k(h) = P(the episode has ended, with an end of kind k, after h steps),    F_k(0) = 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ivvi._io.result import Compact
from ivvi.evaluation.actors import Acting
from ivvi.evaluation.many_model_rollout import RolloutTask, ended_by_step
from ivvi.evaluation.model_draws import ModelDraws, estimated_model, repeated
from ivvi.evaluation.value_estimator import ValueEstimator

MOST_DRAWS = 200
"""Most models for a band."""


@dataclass(frozen=True, eq=False, repr=False)
class Survival(Compact):
    """A share of episodes after 0, 1, ..., H steps, (H + 1,), and its band."""

    estimate: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def to_json(self) -> dict[str, list[float]]:
        """Describe with JSON values."""
        return {name: getattr(self, name).tolist() for name in ("estimate", "low", "high")}

    def __str__(self) -> str:
        return f"{self.estimate[-1]:.3f} [{self.low[-1]:.3f}, {self.high[-1]:.3f}]"


def end_curves(
    estimator: ValueEstimator, actors: Mapping[str, Acting]
) -> tuple[dict[str, Survival], dict[str, dict[str, Survival]]]:
    """Return survival curves of the policy and its first rival, and the incidence of each end.

    Both are empty where no episode ends; the second also where ends are of one kind.
    """
    problem = estimator.problem
    if not problem.can_end:
        return {}, {}
    kinds = problem.model.ends
    count = len(kinds) + (problem.terminal is not None)
    shares = {
        name: _shares_ended(estimator, acting, count) for name, acting in list(actors.items())[:2]
    }
    survival = {
        name: _band(1 - point.sum(axis=0), 1 - drawn.sum(axis=1), estimator.level)
        for name, (point, drawn) in shares.items()
    }
    if len(kinds) < 2:
        return survival, {}
    incidence = {
        kind: {
            name: _band(point[i], drawn[:, i], estimator.level)
            for name, (point, drawn) in shares.items()
        }
        for i, kind in enumerate(kinds)
    }
    return survival, incidence


def _shares_ended(
    estimator: ValueEstimator, acting: Acting, kinds: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the shares that have ended, by kind of end, after 0, ..., H steps.

    In the estimated model, (kinds, H + 1), and in the drawn ones, (draws, kinds, H + 1).
    """
    design, models = estimator.rollouts, estimator.models
    task = RolloutTask.of(estimator.problem)
    estimate = repeated(estimated_model(estimator.source), design.size)
    parts = [ended_by_step(task, kinds, *acting, estimate, chunk) for chunk in design.episodes()]
    point = np.mean([part.mean(axis=0) for part in parts], axis=0)
    few = design.few
    in_estimate = ended_by_step(task, kinds, *acting, estimate, few)[:1]
    moved = []
    for at in _chunks(models, design.size):
        moved.append(ended_by_step(task, kinds, *acting, models.rows(at), few) - in_estimate)
        if estimator.progress:
            estimator.progress(len(at))
    drawn = np.concatenate(moved)[: min(MOST_DRAWS, len(models.W))] + point
    before = [(0, 0)] * (drawn.ndim - 1) + [(1, 0)]
    return np.pad(point.cumsum(axis=-1), before[1:]), np.pad(drawn.cumsum(axis=-1), before)


def _band(point: np.ndarray, drawn: np.ndarray, level: float) -> Survival:
    """Return a curve (H + 1,) with the quantiles of drawn ones, (draws, H + 1)."""
    tails = (1 - level) / 2
    low, high = np.quantile(np.clip(drawn, 0.0, 1.0), [tails, 1 - tails], axis=0, method="weibull")
    return Survival(point, np.minimum(low, point), np.maximum(high, point))


def _chunks(models: ModelDraws, size: int) -> list[np.ndarray]:
    """Return the places of models, `size` at a time; the last place fills up the last chunk."""
    count = min(MOST_DRAWS, len(models.W))
    firsts = range(0, count, size)
    return [np.minimum(np.arange(first, first + size), count - 1) for first in firsts]
