"""Notes on a value: how its intervals were made, and what they assume."""

from __future__ import annotations

import numpy as np

from ivvi.categories import raw_columns
from ivvi.dynamics.model import Dynamics
from ivvi.evaluation.observed_return import SAME_LENGTH
from ivvi.evaluation.value_inputs import ValueInputs
from ivvi.planning import Problem
from ivvi.rewards import SeenReward


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
    return (*notes, *_one_effect(problem.model))


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
