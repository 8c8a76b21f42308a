"""The number of steps per episode: as requested, or the usual length of the log's episodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from ivvi.errors import InputError

UNKNOWN_LENGTH = 100
"""Steps per episode where the length of the log's episodes is not known."""
LONGEST = 1000
"""Most steps per episode by default."""
MOST_STEPS = 100_000
"""Most steps that a user may ask for."""


def default_horizon(steps: int, *, one_decision: bool) -> tuple[int, str]:
    """Return the default number of steps of an episode, and the reason for it.

    `steps` is the usual number of steps of the log's episodes, 0 where it is not known;
    `one_decision` is whether each row is a single decision, with nothing after it.
    """
    if one_decision:
        return 1, "rows are single decisions"
    if not steps:
        return UNKNOWN_LENGTH, "the length of the log's episodes is not known"
    if steps > LONGEST:
        return LONGEST, f"the log's episodes are longer, {steps:,} steps"
    return steps, "the usual length of the log's episodes"


def check_horizon(horizon: Any) -> None:
    """Raise an error for a number of steps that cannot be planned."""
    if not isinstance(horizon, int | np.integer) or horizon < 1:
        raise InputError(f"the horizon is {horizon}; expected a whole number of at least 1")
    if horizon > MOST_STEPS:
        raise InputError(
            f"the horizon is {horizon:,}; at most {MOST_STEPS:,} steps are planned: a discount "
            "below 1 makes later ones worth next to nothing"
        )
