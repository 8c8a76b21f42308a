"""A few rows of a log, kept beside its model: where planners plan, and what reports draw."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ivvi.files import nest, unnest
from ivvi.logs import Batch

PARTS = ("a", "z", "y")
"""What is kept beside the states, which a model has anyway."""


def states_of(sample: Batch | None) -> np.ndarray | None:
    """Return the states of the rows, (m, d_x)."""
    return None if sample is None else sample.x


def kept_rows(sample: Batch | None) -> dict[str, np.ndarray]:
    """Return actions, instruments and outputs as the arrays of a saved model."""
    if sample is None:
        return {}
    return nest("sample", {name: getattr(sample, name) for name in PARTS})


def restore_rows(states: np.ndarray, arrays: Mapping[str, np.ndarray]) -> Batch | None:
    """Rebuild the rows from a model's states and its arrays; None where it keeps none."""
    kept = unnest("sample", arrays)
    if set(kept) != set(PARTS):
        return None
    x = states if len(states) else np.empty((len(kept["y"]), 0))
    return Batch(x, kept["a"], kept["z"], kept["y"])
