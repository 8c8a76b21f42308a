"""The mean return that the log itself records, and why its policy's estimated value differs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ivvi._io.result import Result
from ivvi.dynamics.end_payoffs import all_ends
from ivvi.estimators import LeastSquares
from ivvi.evaluation.interval_estimate import IntervalEstimate, interval_text
from ivvi.evaluation.value_inputs import ValueInputs
from ivvi.features.blocks import Power
from ivvi.logs import Log
from ivvi.logs.batch import Batch
from ivvi.moments import Moments
from ivvi.planning import Problem
from ivvi.rewards import Function, Learned, Linear, Quadratic, SeenReward

MISFIT = 0.5
"""Misfit explains a gap, rather than the confounder's help, if larger than this share of it."""
ERRORS = 4.0
"""Misfit may be chance up to this many standard errors of the log's mean return."""
SAME_LENGTH = 0.02
"""Largest relative difference between episode length and horizon for `from_moments`."""


@dataclass(frozen=True, eq=False, repr=False)
class Gap(Result):
    """Why the return that a log shows for its own policy differs from its estimated value.

    Least-squares dynamics keep the correlation between actions and noise, so the fitted behaviour
    policy should earn in them what the log shows. The part that it does not earn is misfit, of that
    policy's regression or of the features. The rest of the gap is the confounder's help.

    Attributes
    ----------
    whole
        The return that the log shows less the value of the behaviour policy.
    help
        Its value in least-squares dynamics less that in the estimated ones; None where the
        estimate is least squares itself, or the moments are not known.
    misfit
        The return that the log shows less the value in least-squares dynamics; None where the
        moments are not known.
    error
        Standard error of a mean over the log's episodes: that of the misfit if it is truly zero.
    """

    whole: IntervalEstimate
    help: IntervalEstimate | None
    misfit: float | None
    error: float = 0.0

    @property
    def is_misfit(self) -> bool:
        """Whether misfit is not chance, and too large to tell the confounder's help from it."""
        helped = 0.0 if self.help is None else abs(self.help.estimate)
        return self.clear_misfit > MISFIT * helped

    @property
    def clear_misfit(self) -> float:
        """Size of the misfit; zero where chance may explain it."""
        size = 0.0 if self.misfit is None else abs(self.misfit)
        return size if size > ERRORS * self.error else 0.0

    def lines(self) -> list[str]:
        """Return the sentences that split the gap into confounding and misfit."""
        if self.misfit is None:
            return ["  how much of it is misfit of that policy's regression is not known here"]
        if self.help is None:
            return ["  all of it is misfit: least squares assumes no confounding"]
        return [
            f"  of which confounding: {self.help.estimate:.5g} {interval_text(self.help)}, the "
            "extra that the same policy earns in least-squares dynamics",
            f"  of which misfit of that policy's regression or of the features: {self.misfit:.5g}",
        ]

    def summary(self) -> str:
        """Return the gap and its parts."""
        whole = f"{self.whole.estimate:.5g} {interval_text(self.whole)}"
        return "\n".join([f"the log shows {whole} more than the model", *self.lines()])

    def to_json(self) -> dict[str, Any]:
        """Describe with JSON values."""
        help_json = None if self.help is None else self.help.to_json()
        return {"gap": self.whole.to_json(), "confounder": help_json, "misfit": self.misfit}


def from_log(log: Log, problem: Problem) -> float:
    """Return the mean over episodes of sum_h discount^h r_h, in one pass over the log."""
    import jax
    import jax.numpy as jnp

    totals: dict[int, float] = {}
    steps: dict[int, int] = {}
    for batch in log.in_order().batches(episodes=True):
        if batch.episode is None:
            raise ValueError("the batch was read without episodes")
        numbers, first, back = np.unique(batch.episode, return_index=True, return_inverse=True)
        done = np.array([steps.get(int(e), 0) for e in numbers])
        h = np.arange(len(batch)) - first[back] + done[back]
        if isinstance(problem.reward, Learned | SeenReward):
            r = batch.y[:, -1]
        else:
            x_next = problem.model.update.observed(batch.y, batch.x, batch.a)
            with jax.enable_x64(True):
                x, a, after, at, z = map(jnp.asarray, (batch.x, batch.a, x_next, h, batch.z))
                if isinstance(problem.reward, Function):
                    r = np.asarray(problem.reward.observed(x, a, after, at, z))
                else:
                    r = np.asarray(problem.reward(x, a, after, at))
        if problem.end_amounts:
            r = r + _ends(problem, batch) @ np.asarray(problem.end_amounts)
        r = np.where(h < problem.horizon, problem.discount**h * r, 0.0)
        sums = np.bincount(back, r, len(numbers))
        for e, total, count in zip(numbers, sums, np.bincount(back), strict=True):
            totals[int(e)] = totals.get(int(e), 0.0) + float(total)
            steps[int(e)] = steps.get(int(e), 0) + int(count)
    return float(np.mean(list(totals.values())))


def _ends(problem: Problem, batch: Batch) -> np.ndarray:
    """Return 1 for rows of a log that ended their episode, by kind of end, else 0, (n, E)."""
    update = problem.model.update
    ended = batch.y[:, update.predicted :][:, : update.ends] if update.ends else None
    if problem.terminal is None:
        return np.asarray(all_ends(ended, None))
    x_next = update.observed(batch.y, batch.x, batch.a)
    return np.asarray(all_ends(ended, np.asarray(problem.terminal(x_next))))


def from_moments(source: ValueInputs, problem: Problem) -> float | None:
    """Return the same as `from_log` from moments, for quadratic, linear and learned rewards.

    None for other rewards, or where the log's episodes are not as long as the horizon.
    """
    moments, length = source.moments, source.length
    same_length = length is not None and abs(length / problem.horizon - 1) <= SAME_LENGTH
    if moments is None or not same_length or problem.discount < 1 or problem.can_end:
        return None
    reward = problem.reward
    if isinstance(reward, Learned | SeenReward):
        return problem.horizon * float(moments.mean[-1])
    x = _raw(moments, "state", len(problem.model.state))
    a = _raw(moments, "input", len(problem.model.action))
    if x is None or a is None or not isinstance(reward, Quadratic | Linear):
        return None
    if isinstance(reward, Linear):
        drift = np.sum(np.asarray(reward.state) * moments.mean[x])
        mean = reward.constant + drift + np.sum(np.asarray(reward.action) * moments.mean[a])
        return problem.horizon * float(mean)
    variance = np.diag(moments.scatter) / moments.weight
    far = variance[x] + (moments.mean[x] - np.asarray(reward.target)) ** 2
    cost = np.sum(np.asarray(reward.weight) * far)
    cost += np.sum(np.asarray(reward.action_weight) * (variance[a] + moments.mean[a] ** 2))
    return -problem.horizon * float(cost)


def gap_of(
    source: ValueInputs,
    own: IntervalEstimate,
    observed: float,
    confounded: np.ndarray | None,
    seed: int,
) -> Gap:
    """Return the gap between the log's mean return and the value of its policy.

    Parameters
    ----------
    source
        The dynamics, and the fit of the log.
    own
        The value of the behaviour policy.
    observed
        Mean return of the log's episodes.
    confounded
        Returns of the behaviour policy in least-squares dynamics, (N,); None if not known.
    seed
        Of the sampling error of a mean over the log's episodes, which the intervals hold.
    """
    if confounded is None:
        return Gap(_less(observed, own, np.zeros(1)), None, None)
    episodes = 1.0
    if source.moments is not None and source.length:
        episodes = max(source.moments.n / source.length, 1.0)
    sampled = np.random.default_rng([seed, 1]).normal(size=len(own.draws))
    error = float(confounded.std()) / float(np.sqrt(episodes))
    sampled *= error
    baseline = float(confounded.mean())
    if isinstance(source.method, LeastSquares):
        help_, baseline = None, own.estimate
    else:
        help_ = _less(baseline, own, sampled)
    return Gap(_less(observed, own, sampled), help_, observed - baseline, error)


def _less(earned: float, own: IntervalEstimate, sampled: np.ndarray) -> IntervalEstimate:
    """Return a mean return, with its sampling error, minus a value."""
    return IntervalEstimate(earned - own.estimate, earned + sampled - own.draws, own.level)


def _raw(moments: Moments, of: str, width: int) -> slice | None:
    """Return the columns of v that hold x or a without a transformation."""
    for block, argument, at in moments.design.pieces:
        if block == Power(1, of) and argument == "action":
            return slice(at, at + width)
    return None
