"""Survival curves: which share of episodes goes on under each policy, with bands.

    S(h) = P(the episode has not ended after h steps),    S(0) = 1,

in the estimated dynamics, where ends are weighted by their chance. Bands are quantiles over drawn
models, each compared with the estimate in the same episodes under the same noise. Where ends are of
several kinds, the cumulative incidence of each is drawn alike,

    F_k(h) = P(the episode has ended in the way k after at most h steps),    F_k(0) = 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from ivvi.dynamics.ends import amounts
from ivvi.evaluation.actors import Acting
from ivvi.evaluation.model_draws import ModelDraws, estimated_model, repeated
from ivvi.evaluation.rollout import Episodes, Task, paid_by_step
from ivvi.evaluation.value_estimator import ValueEstimator
from ivvi.features.blocks import Array

MOST_DRAWS = 200
"""Models that a band is drawn from."""


@dataclass(frozen=True, eq=False)
class Survival:
    """A share of episodes after 0, 1, ..., H steps, (H + 1,), and its band."""

    estimate: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def to_json(self) -> dict[str, list[float]]:
        """Describe with JSON values."""
        return {name: getattr(self, name).tolist() for name in ("estimate", "low", "high")}

    def __str__(self) -> str:
        return f"{self.estimate[-1]:.3f} [{self.low[-1]:.3f}, {self.high[-1]:.3f}]"


def survival(estimator: ValueEstimator, actors: Mapping[str, Acting]) -> dict[str, Survival]:
    """Return the curves of the policy and of its first rival; none where no episode ends."""
    if not estimator.problem.can_end:
        return {}
    problem = estimator.problem
    by_state = problem.terminal is not None
    minus = amounts(-1.0, problem.model.ends, by_state=by_state)
    # what a step then pays is whether the episode goes on after it
    task = replace(Task.of(problem), reward=_one, end_amounts=minus, discount=1.0)
    return {name: _curve(estimator, task, acting) for name, acting in list(actors.items())[:2]}


def incidence(
    estimator: ValueEstimator, actors: Mapping[str, Acting]
) -> dict[str, dict[str, Survival]]:
    """Return the curves of each kind of end, by kind and policy; none where ends are of one."""
    problem = estimator.problem
    kinds = problem.model.ends
    if len(kinds) < 2:
        return {}
    by_state = problem.terminal is not None
    compared, curves = list(actors.items())[:2], {}
    for i, kind in enumerate(kinds):
        paid = tuple(float(j == i) for j in range(len(kinds) + by_state))
        task = replace(Task.of(problem), reward=_nothing, end_amounts=paid, discount=1.0)
        curves[kind] = {n: _curve(estimator, task, acting, ends=True) for n, acting in compared}
    return curves


def _one(x: Array, a: Array, x_next: Array, h: Array) -> Array:
    return jnp.ones(x.shape[:-1])


def _nothing(x: Array, a: Array, x_next: Array, h: Array) -> Array:
    return jnp.zeros(x.shape[:-1])


def _curve(
    estimator: ValueEstimator, task: Task, acting: Acting, *, ends: bool = False
) -> Survival:
    """Return the curve of what a task pays in each step, or with `ends` up to it."""
    design, models = estimator.rollouts, estimator.models
    one = repeated(estimated_model(estimator.source), design.size)
    parts = [paid_by_step(task, *acting, one, some) for some in design.episodes()]
    estimate = np.mean([part.mean(axis=(0, 2)) for part in parts], axis=0)
    few = design.few
    here = paid_by_step(task, *acting, one, few)[:1].mean(axis=2)
    moved = []
    for at in _chunks(models, design.size):
        moved.append(_of_draws(task, acting, models, few, at) - here)
        if estimator.progress:
            estimator.progress(len(at))
    drawn = np.concatenate(moved)[: min(MOST_DRAWS, len(models.W))] + estimate
    if ends:
        estimate, drawn = estimate.cumsum(), drawn.cumsum(axis=1)
    tails = (1 - estimator.level) / 2
    low, high = np.quantile(np.clip(drawn, 0.0, 1.0), [tails, 1 - tails], axis=0, method="weibull")
    band = (np.minimum(low, estimate), np.maximum(high, estimate))
    return Survival(*(np.append(0.0 if ends else 1.0, v) for v in (estimate, *band)))


def _chunks(models: ModelDraws, size: int) -> list[np.ndarray]:
    """Return the places of models, `size` at a time; the last ones again to fill up."""
    count = min(MOST_DRAWS, len(models.W))
    firsts = range(0, count, size)
    return [np.minimum(np.arange(first, first + size), count - 1) for first in firsts]


def _of_draws(task: Task, acting: Acting, models: ModelDraws, few: Episodes, at: np.ndarray) -> Any:
    """Return the share that goes on after each step in each of some drawn models, (B, H)."""
    return paid_by_step(task, *acting, models.rows(at), few).mean(axis=2)
