"""One block of transitions, ready for algebra, and blocks with the rows that follow them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ivvi._io.arrays import Floats, Ints

PARTS = ("x", "a", "z", "y")
FIELDS = (*PARTS, "weight", "episode", "step", "time")


@dataclass(frozen=True, slots=True, repr=False)
class Batch:
    """Transitions (x, a, z, y) as float64 arrays, one row each.

    The arrays are views of one column-major buffer, so that a column is contiguous:
    reading Arrow columns into it is one copy, and so is every feature made from it.

    Attributes
    ----------
    x, a, z
        State (n, d_x), action (n, d_a), instrument (n, d_z).
    y
        Outputs (n, d_y): the next state and, when it is learned, the reward.
    weight
        Row weights (n,), or None for ones.
    episode
        Number of the episode of each row (n,), or None when it was not asked for.
    step
        Number of the step of each row (n,), where the log has one and episodes were asked for.
    time
        Calendar time of each row as a number (n,), where the log has one.
    clusters
        Number of the cluster of each row (n,), for each of the log's cluster columns.
    table
        [x, a, z, y] side by side (n, d), of which the four are views, where there is one.
    """

    x: Floats
    a: Floats
    z: Floats
    y: Floats
    weight: Floats | None = None
    episode: NDArray[np.int64] | None = None
    step: NDArray[Any] | None = None
    time: Floats | None = None
    clusters: tuple[NDArray[np.int64], ...] = ()
    table: Floats | None = None

    def __repr__(self) -> str:
        return f"Batch({len(self):,} transitions)"

    def __len__(self) -> int:
        return len(self.y)

    def taken(self, rows: NDArray[Any]) -> Batch:
        """Return some rows, with their weights and episodes."""
        weight = None if self.weight is None else self.weight[rows]
        episode = None if self.episode is None else self.episode[rows]
        arrays = (self.x[rows], self.a[rows], self.z[rows], self.y[rows])
        return Batch(*arrays, weight, episode)

    def first(self, count: int) -> Batch:
        """Return views of the first rows with all their columns."""
        return self if len(self) <= count else self._views(slice(count))

    def thinned(self, most: int) -> Batch:
        """Return views of at most so many rows, evenly spread, with all their columns."""
        return self._views(slice(None, None, max(1, -(-len(self) // most))))

    def _views(self, rows: slice) -> Batch:
        columns: dict[str, Any] = {name: getattr(self, name) for name in FIELDS}
        some: Any = {name: None if v is None else v[rows] for name, v in columns.items()}
        table = None if self.table is None else self.table[rows]
        return Batch(**some, clusters=tuple(codes[rows] for codes in self.clusters), table=table)

    def chosen(self, rows: NDArray[Any]) -> Batch:
        """Return some rows with all their columns."""
        return replace(
            self.taken(rows),
            step=None if self.step is None else self.step[rows],
            time=None if self.time is None else self.time[rows],
            clusters=tuple(codes[rows] for codes in self.clusters),
        )

    def repeated(self, most: int) -> Iterator[Batch]:
        """Yield each row as often as its weight says, without weights, `most` rows at a time."""
        if self.weight is None:
            raise ValueError("the batch has no weights")
        ends = np.cumsum(self.weight.astype(np.int64))
        total = int(ends[-1])
        for start in range(0, total, most):
            rows = np.searchsorted(ends, np.arange(start, min(start + most, total)), side="right")
            yield replace(self.chosen(rows), weight=None)


def concatenate(batches: Sequence[Batch]) -> Batch:
    """Join batches into one."""
    if len(batches) == 1:
        return batches[0]

    def join(name: str) -> Any:
        arrays = [getattr(batch, name) for batch in batches]
        return None if any(part is None for part in arrays) else np.concatenate(arrays)

    clusters = tuple(map(np.concatenate, zip(*(batch.clusters for batch in batches), strict=True)))
    others: Any = {name: join(name) for name in FIELDS if name not in PARTS}
    table = join("table")
    if table is None:
        arrays: Any = {name: join(name) for name in PARTS}
    else:
        ends = np.cumsum([getattr(batches[0], name).shape[1] for name in PARTS])
        arrays = dict(zip(PARTS, np.split(table, ends[:-1], axis=1), strict=True))
    return Batch(**arrays, **others, clusters=clusters, table=table)


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


def windows(batches: Iterable[Batch], steps: int) -> Iterator[Window]:
    """Yield the rows of a pass in order, each once, with up to `steps` rows that follow it."""
    rest: Batch | None = None
    for batch in batches:
        joined = cut(batch, slice(None)) if rest is None else concatenate([rest, cut(batch)])
        count = max(0, len(joined) - steps)
        if count:
            yield Window(joined, count)
        rest = cut(joined, slice(count, None))
    if rest is not None and len(rest):
        yield Window(rest, len(rest))


def cut(batch: Batch, rows: slice = slice(None)) -> Batch:
    """Return a copy of a stretch of rows, with their clusters."""
    values: dict[str, Any] = {name: getattr(batch, name) for name in FIELDS}
    arrays: Any = {name: None if v is None else v[rows].copy() for name, v in values.items()}
    return Batch(**arrays, clusters=tuple(codes[rows].copy() for codes in batch.clusters))
