"""Notes on a value: how its intervals were made, and what they assume."""

from __future__ import annotations

import numpy as np

from ivvi.categories import raw_columns
from ivvi.diagnostics.tails_and_quantiles import chi2_tail
from ivvi.dynamics.model import Dynamics
from ivvi.evaluation.observed_return import SAME_LENGTH
from ivvi.evaluation.value_inputs import ValueInputs
from ivvi.planning import Problem
from ivvi.rewards import Learned, SeenReward

LEVEL, LEAST, FEWEST = 1e-4, 0.1, 200
"""The p-value over all instruments at which the spread of a reward's noise follows one, the
correlation from which that matters, and rows that tell it."""


def as_long(source: ValueInputs, problem: Problem) -> bool:
    """Return whether the log's episodes end, or are about as long as the horizon."""
    length = source.length
    return length is None or problem.can_end or length >= (1 - SAME_LENGTH) * problem.horizon


def horizon_notes(
    source: ValueInputs, problem: Problem, observed: float | None, *, chosen: bool
) -> tuple[str, ...]:
    """Return notes on the default horizon, and on a log whose own return is over fewer steps."""
    notes = []
    if not chosen:
        steps, reason = problem.model.usual_horizon
        notes.append(f"horizon {steps:,}: {reason}")
    if observed is not None and not as_long(source, problem):
        notes.append(
            f"the recorded return is over {source.length:.3g} steps on average, and the values are "
            f"over {problem.horizon:,}: they are not compared"
        )
    return tuple(notes)


def value_notes(
    source: ValueInputs, problem: Problem, observed: float | None, method: str
) -> tuple[str, ...]:
    """Return notes on how the intervals were made and what they assume."""
    notes = list(problem.doubts)
    if isinstance(problem.reward, SeenReward):
        notes.append(problem.reward.words)
    if source.grouped:
        descriptions = {"bootstrap": "clusters are resampled", "wild": "clusters get random signs"}
        description = descriptions.get(method, "through its standard errors")
        columns = " and ".join(source.clusters)
        notes.append(f"intervals are clustered by {columns}, as the fit is: {description}")
    if source.wild and method == "asymptotic":
        notes.append(
            "wild draws need the moments of each cluster: fit with episodes=True (--keep-episodes)"
        )
    if source.moments is None:
        notes.append("without moments the noise and the behaviour policy are taken as known")
    if observed is None and source.behaviour is not None:
        notes.append("Pass the log (log=, --log) to also see the return recorded in it.")
    varies = _one_effect(problem.model)
    if not varies and isinstance(problem.reward, Learned):
        varies = _multiplied_noise(problem.model)
    return (*notes, *varies)


def _multiplied_noise(model: Dynamics) -> tuple[str, ...]:
    """Return a note if the noise of a learned reward spreads more where an instrument is larger.

    If something unrecorded u multiplies the action, r = h(a) + u a, then E[u a | z] is not zero
    but cov(u, a): the instrument finds the slopes of h, and a constant that is off by that.
    """
    x, a, z = model.states, model.acted, model.instruments
    if len(model.followed) < FEWEST or not z.shape[1] or len(z) != len(x):
        return ()
    if _is_two(model.followed[:, -1]):  # whose spread goes with its mean
        return ()
    e = model.followed[:, -1] - np.asarray(model.reward(x, a))
    given = np.column_stack([np.ones(len(x)), x, x**2])
    both = np.column_stack([e**2, z])
    left = both - given @ np.linalg.lstsq(given, both, rcond=None)[0]
    scores = left[:, 1:] * left[:, :1]
    statistics = scores.sum(axis=0) ** 2 / np.maximum((scores**2).sum(axis=0), 1e-300)
    sizes = np.linalg.norm(left[:, 1:], axis=0) * np.linalg.norm(left[:, 0])
    follows = np.abs(scores.sum(axis=0)) >= LEAST * np.maximum(sizes, 1e-300)
    worst = int(np.argmax(np.where(follows, statistics, 0.0)))
    if not follows[worst] or chi2_tail(float(statistics[worst]), 1) * len(statistics) >= LEVEL:
        return ()
    reward, acted = model.outputs[-1], " and ".join(raw_columns(model.action, model.coded))
    return (
        f"the noise of {reward} spreads more or less with {model.instrument[worst]}, as if "
        f"something unrecorded multiplied {acted}: the values may then all be off by the same "
        f"amount, while the gains are right; to learn the level too, make what {acted} changes "
        "(such as units sold) a state that is seen after the action (--seen after), and write the "
        "reward as a function of it",
    )


def _one_effect(model: Dynamics) -> tuple[str, ...]:
    """State the assumption that the effect of a binary action is constant."""
    two = [c for c, values in zip(model.action, model.acted.T, strict=False) if _is_two(values)]
    if not two:
        return ()
    named = ", ".join(raw_columns(tuple(two), model.coded))
    return (
        f"the values assume that the effect of {named} does not vary with what was not recorded: "
        "if it was given more often to those who gain more from it, the values are biased",
    )


def _is_two(values: np.ndarray) -> bool:
    return len(np.unique(values)) == 2
