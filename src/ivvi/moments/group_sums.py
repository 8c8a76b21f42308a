"""First sums of the rows of each group: of each step, episode, or value of a cluster column.

Residuals and instruments are linear in v, so that the sums of v by group determine all of theirs:
how correlated the rows of a group are, and how much weight each group has in an estimate.
They cost one addition for each cell of a pass that is made anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ivvi._io.arrays import Floats, Ints
from ivvi._io.files import Saved
from ivvi._io.result import Compact
from ivvi.features.design import Design
from ivvi.logs import Batch, Roles
from ivvi.moments.welford import run_starts

MOST_BYTES = 32 << 20
"""Largest size of the sums of a column's groups; larger ones are dropped."""


@dataclass(frozen=True, slots=True, repr=False)
class GroupSums(Compact):
    """Sums over the groups of one column.

    Attributes
    ----------
    by
        The column.
    keys
        The keys of the groups, in order (G,): numbers of episodes or clusters, or steps.
    weight, square
        Sums of the weights and of their squares, (G,).
    sums, origin
        Sums of w (v - origin), (G, p), and the origin (p,).
    places
        Places of the groups in time, (G,), where their keys do not give them.
    """

    by: str
    keys: Ints
    weight: Floats
    square: Floats
    sums: Floats
    origin: Floats
    places: Ints | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def about(self, centre: Floats) -> Floats:
        """Return the sums of w (v - centre), (G, p)."""
        moved: Floats = self.sums + self.weight[:, None] * (self.origin - centre)
        return moved

    def merged(self, other: GroupSums) -> GroupSums:
        """Return the sums of both sets of rows; groups of one key are one."""
        if self.keys[-1] <= other.keys[0]:
            return self._followed(other)
        keys = np.union1d(self.keys, other.keys)
        weight, square = np.zeros((2, len(keys)))
        sums = np.zeros((len(keys), self.sums.shape[1]))
        for part, values in ((self, self.sums), (other, other.about(self.origin))):
            at = np.searchsorted(keys, part.keys)
            weight[at] += part.weight
            square[at] += part.square
            sums[at] += values
        return GroupSums(self.by, keys, weight, square, sums, self.origin)

    def _followed(self, other: GroupSums) -> GroupSums:
        """Return the sums of both if the other's groups follow; the last may continue there."""
        keys = np.concatenate([self.keys, other.keys])
        weight = np.concatenate([self.weight, other.weight])
        square = np.concatenate([self.square, other.square])
        sums = np.concatenate([self.sums, other.about(self.origin)])
        last = len(self)
        if self.keys[-1] == other.keys[0]:
            for values in (weight, square, sums):
                values[last] += values[last - 1]
            keys, weight, square, sums = (
                np.delete(values, last - 1, axis=0) for values in (keys, weight, square, sums)
            )
        return GroupSums(self.by, keys, weight, square, sums, self.origin)

    def coarser(self, by: str, numbers: Ints) -> GroupSums:
        """Return the sums by groups of these groups: the key k belongs to group ``numbers[k]``."""
        keys, place = np.unique(numbers[self.keys], return_inverse=True)
        columns = np.column_stack([self.weight, self.square, self.sums]).T
        weight, square, *sums = (np.bincount(place, v).astype(np.float64) for v in columns)
        return GroupSums(by, keys, weight, square, np.column_stack(sums), self.origin)

    def renumbered(self, numbers: Ints) -> GroupSums:
        """Return the same with the key k replaced by ``numbers[k]``."""
        keys = numbers[self.keys]
        order = np.argsort(keys, kind="stable")
        weight, square, sums = (part[order] for part in (self.weight, self.square, self.sums))
        return GroupSums(self.by, keys[order], weight, square, sums, self.origin)


class GroupTally:
    """Adds up `GroupSums` of several columns over the batches of a pass.

    What was summed last is merged with what came before it once it is half as large, so that
    each group is merged a few times, however many batches there are.
    """

    def __init__(self, columns: Iterable[str], roles: Roles, design: Design) -> None:
        self._columns, self._roles, self._layout = tuple(columns), roles, design
        self._parts: dict[str, list[GroupSums]] = {}  # each less than half of the one before
        self._dropped: set[str] = set()

    def add(self, batch: Batch, V: Floats, but: str | None = None) -> None:
        """Add a batch whose varying columns of v are V (n, p), by all columns but one."""
        for column in self._columns:
            if column == but:
                continue
            codes = group_codes(batch, self._roles, column)
            if codes is None or column in self._dropped or not len(batch):
                continue
            earlier = self._parts.get(column)
            origin = earlier[0].origin[self._layout.varying] if earlier else V[0]
            self._take(_sums(column, codes, V, batch.weight, origin, self._layout))

    def take(self, by: str, keys: Ints, weight: Floats, mean: Floats) -> None:
        """Add groups of rows of weight one, given their sizes and means (G, p)."""
        if by in self._columns and by not in self._dropped and len(keys):
            order = np.argsort(keys, kind="stable")
            earlier = self._parts.get(by)
            origin = earlier[0].origin if earlier else mean[0]
            sums = (weight[:, None] * (mean - origin))[order]
            self._take(GroupSums(by, keys[order], weight[order], weight[order], sums, origin))

    def _take(self, part: GroupSums) -> None:
        parts = self._parts.setdefault(part.by, [])
        parts.append(part)
        while len(parts) > 1 and 2 * len(parts[-1]) >= len(parts[-2]):
            parts[-2:] = [parts[-2].merged(parts[-1])]
        if _size(parts) > MOST_BYTES and _size([self._whole(part.by)]) > MOST_BYTES:
            self._dropped.add(part.by)
            del self._parts[part.by]

    def _whole(self, by: str) -> GroupSums:
        """Merge the sums of a column."""
        parts = self._parts[by]
        while len(parts) > 1:
            parts[-2:] = [parts[-2].merged(parts[-1])]
        return parts[0]

    def merge(self, parts: Iterable[GroupSums], numbers: Mapping[str, Ints]) -> None:
        """Add the sums of another process; `numbers` are the log's for its own 0, 1, ..."""
        for part in parts:
            if part.by not in self._dropped:
                codes = numbers.get(part.by)
                self._take(part if codes is None else part.renumbered(codes))

    @property
    def sums(self) -> tuple[GroupSums, ...]:
        """The sums of the columns whose groups are not too many."""
        return tuple(map(self._whole, self._parts))

    def copy(self) -> GroupTally:
        """Return a tally that does not change when this one does."""
        other = GroupTally(self._columns, self._roles, self._layout)
        other._parts = {by: list(parts) for by, parts in self._parts.items()}
        other._dropped = set(self._dropped)
        return other

    def saved(self) -> Saved:
        """Return the state as JSON values and arrays."""
        names = ("keys", "weight", "square", "sums", "origin")
        arrays = {
            f"{i}.{name}": getattr(part, name) for i, part in enumerate(self.sums) for name in names
        }
        return {"by": list(self._parts), "dropped": sorted(self._dropped)}, arrays

    def restore(self, facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Resume from what `saved` returned."""
        self._dropped = set(facts["dropped"])
        names = ("keys", "weight", "square", "sums", "origin")
        for i, by in enumerate(facts["by"]):
            self._parts[by] = [GroupSums(by, *(arrays[f"{i}.{name}"] for name in names))]


def _size(parts: Iterable[GroupSums]) -> int:
    """Return the bytes of sums."""
    return sum(part.sums.nbytes for part in parts)


def group_codes(batch: Batch, roles: Roles, column: str) -> Ints | None:
    """Return the group codes of a column in a batch, (n,); None if the column is not read."""
    if column == roles.episode:
        return batch.episode
    if column in roles.cluster:
        return batch.clusters[roles.cluster.index(column)]
    if column != roles.step or batch.step is None:
        return None
    step = np.asarray(batch.step)
    if step.dtype.kind == "f":
        with np.errstate(invalid="ignore"):  # beyond 2^63 it is no whole number that we can hold
            whole = step.astype(np.int64)
        return whole if (whole == step).all() else step.astype(np.float64).view(np.int64)
    return step.astype(np.int64, copy=False)


def _sums(
    by: str, codes: Ints, V: Floats, weight: Floats | None, origin: Floats, design: Design
) -> GroupSums:
    keys, added = _adder(codes)
    w = np.ones(len(codes)) if weight is None else weight
    total = added(w)
    square = total if weight is None else added(w * w)
    sums, at, moved = np.zeros((len(keys), design.width)), design.varying, np.empty(len(codes))
    for i, column in enumerate(V.T):
        np.subtract(column, origin[i], out=moved)
        sums[:, at[i]] = added(moved if weight is None else moved * w)
    whole = np.ones(design.width)
    whole[at] = origin
    used = total > 0
    return GroupSums(by, keys[used], total[used], square[used], sums[used], whole)


def _adder(codes: Ints) -> tuple[Ints, Callable[[Floats], Floats]]:
    """Return the groups (G,) of rows, and a function that adds up values (n,) by group."""
    if np.all(codes[1:] >= codes[:-1]):
        starts = run_starts(codes)
        return codes[starts], lambda values: np.add.reduceat(values, starts)
    if period := _period(codes):
        order = np.argsort(codes[:period])
        return codes[:period][order], lambda values: _periodic_sums(values, period)[order]
    lowest, highest = int(codes.min()), int(codes.max())
    if highest - lowest < 4 * len(codes) + 1024:
        keys, place = np.arange(lowest, highest + 1), codes - lowest
    else:
        keys, place = np.unique(codes, return_inverse=True)
    size = len(keys)
    return keys, lambda values: np.bincount(place, values, size).astype(np.float64, copy=False)


def _period(codes: Ints) -> int:
    """Return the period if rows cycle through all groups in a fixed order, else 0.

    Such are the steps of episodes of one length.
    """
    again = np.flatnonzero(codes[1:] == codes[0])
    period = int(again[0]) + 1 if len(again) else 0
    if not period or not (codes[period:] == codes[:-period]).all():
        return 0
    return period if len(np.unique(codes[:period])) == period else 0


def _periodic_sums(values: Floats, period: int) -> Floats:
    """Add up values (n,) that are `period` rows apart, (period,)."""
    whole = len(values) // period * period
    sums: Floats = values[:whole].reshape(-1, period).sum(axis=0)
    sums[: len(values) - whole] += values[whole:]
    return sums
