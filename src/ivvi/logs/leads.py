"""Rows with those that follow them: leads, the mirror image of lags, made as a log is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ivvi.logs.batch import Batch, concatenate
from ivvi.logs.log import Log

Ints = NDArray[np.int64]
FIELDS = ("x", "a", "z", "y", "weight", "episode", "step", "time")


@dataclass(frozen=True, slots=True)
class Window:
    """Some rows of a log in order, and after them the rows that may follow the last of them.

    Attributes
    ----------
    batch
        The rows, (n, .), with their episodes and steps.
    count
        How many of them, from the first on, this window is about.
    """

    batch: Batch
    count: int

    @property
    def rows(self) -> Batch:
        """The rows that this window is about."""
        return cut(self.batch, slice(self.count))

    def followed(self, steps: int) -> Ints:
        """Return the rows (m,) for which the log has the same episode `steps` steps later."""
        batch = self.batch
        first = np.arange(min(self.count, len(batch) - steps))
        if not steps:
            return first
        episode, step = np.asarray(batch.episode), np.asarray(batch.step, dtype=np.float64)
        later = first + steps
        follows = (episode[later] == episode[first]) & (step[later] == step[first] + steps)
        return np.flatnonzero(follows)


def windows(
    log: Log, steps: int, progress: Callable[[int], None] | None = None
) -> Iterator[Window]:
    """Pass over a log in order; each row comes once, with up to `steps` rows that follow it."""
    held: Batch | None = None
    for batch in log.batches(episodes=True, progress=progress):
        joined = cut(batch, slice(None)) if held is None else concatenate([held, cut(batch)])
        count = max(0, len(joined) - steps)
        if count:
            yield Window(joined, count)
        held = cut(joined, slice(count, None))
    if held is not None and len(held):
        yield Window(held, len(held))


def cut(batch: Batch, rows: slice = slice(None)) -> Batch:
    """Return a copy of a stretch of rows, with their clusters."""
    values: dict[str, Any] = {name: getattr(batch, name) for name in FIELDS}
    parts: Any = {name: None if v is None else v[rows].copy() for name, v in values.items()}
    return Batch(**parts, clusters=tuple(codes[rows].copy() for codes in batch.clusters))
