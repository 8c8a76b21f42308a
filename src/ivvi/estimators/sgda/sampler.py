"""Rows of a log for iterative methods: passes in chunks, in several orders, resumable.

A source yields raw rows, a chunk at a time; features are made of a chunk's pieces
(`evaluate`), so that what is in memory does not grow with their number. Randomness in a chunk
depends only on the seed and on the chunk's number, so a pass that resumes from a `SweepPosition`
visits the same rows in the same order.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from ivvi._io.arrays import Floats
from ivvi._io.files import Saved
from ivvi.errors import DataError
from ivvi.features.design import Design
from ivvi.logs import Batch, Counts, Log, Position, concatenate

Chunk = tuple[Floats, Floats, Floats]
"""Phi (m, d_phi), Psi (m, d_psi), Y (m, d_y)."""
SAMPLE = 512
"""Rows in the sample that `survey` draws."""
ROW_FIELDS = ("x", "a", "z", "y", "weight", "episode")


@dataclass(frozen=True, slots=True)
class SweepPosition:
    """Where the passes stand: `chunk` chunks of pass `sweep` are done.

    A stream is read on from `position`; of the next batch, `used` rows are done.
    """

    sweep: int = 0
    chunk: int = 0
    position: Position | None = None
    used: int = 0

    def saved(self) -> Saved:
        """Return the place as JSON values and arrays."""
        facts, arrays = self.position.saved() if self.position is not None else (None, {})
        return {"place": [self.sweep, self.chunk, self.used], "position": facts}, arrays

    @classmethod
    def restore(cls, facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> SweepPosition:
        """Rebuild a place from what `saved` returned."""
        sweep, chunk, used = facts["place"]
        at = facts["position"]
        return cls(sweep, chunk, None if at is None else Position.restore(at, arrays), used)


class RowSource(Protocol):
    """Rows that can be passed over again and again."""

    n: int

    @property
    def episodes(self) -> int:
        """How many episodes there are."""
        ...

    def sweep(
        self, size: int, seed: int, start: SweepPosition
    ) -> Iterator[tuple[Batch, SweepPosition]]:
        """Continue a pass: chunks of `size` rows (fewer at the end) and the place after each."""
        ...


class Shuffled:
    """All rows in memory; each pass in a new order, or as many draws with replacement.

    With episodes whole (`by_episode`), these are shuffled and stay together.
    """

    def __init__(self, log: Log, *, draws: bool = False, by_episode: bool = False) -> None:
        rows = _used(log.to_batch(episodes=by_episode))
        self._rows, self._draws, self._by_episode = rows, draws, by_episode
        self.n = len(rows)

    @property
    def episodes(self) -> int:
        """How many episodes there are."""
        return len(np.unique(_episodes(self._rows)))

    def sweep(
        self, size: int, seed: int, start: SweepPosition
    ) -> Iterator[tuple[Batch, SweepPosition]]:
        """Continue a pass."""
        rng = np.random.default_rng([seed, start.sweep])
        if self._by_episode:
            order, number = self._episode_order(rng)
            edges = _chunk_edges(number, size)
        else:
            order = rng.integers(self.n, size=self.n) if self._draws else rng.permutation(self.n)
            edges, number = [*range(0, self.n, size), self.n], None
        for i in range(start.chunk, len(edges) - 1):
            part = slice(edges[i], edges[i + 1])
            chunk = take_rows(self._rows, order[part])
            chunk = chunk if number is None else replace(chunk, episode=number[part])
            yield chunk, SweepPosition(start.sweep, i + 1)

    def _episode_order(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows, episode by episode in a random order, and new episode numbers."""
        _, inverse, count = np.unique(
            _episodes(self._rows), return_inverse=True, return_counts=True
        )
        members = np.split(np.argsort(inverse, kind="stable"), np.cumsum(count)[:-1])
        episodes = len(count)
        chosen = rng.integers(episodes, size=episodes) if self._draws else rng.permutation(episodes)
        order = np.concatenate([members[i] for i in chosen])
        return order, np.repeat(np.arange(episodes), count[chosen])


class Streamed:
    """Rows read from the log in its own order, shuffled within each chunk; memory is bounded.

    With `by_episode`, a chunk ends with an episode, and these are shuffled. Rows `as_logged`
    are not shuffled at all.
    """

    def __init__(
        self, log: Log, n: int, *, by_episode: bool = False, as_logged: bool = False
    ) -> None:
        self.n, self._log, self._by_episode, self._as_logged = n, log, by_episode, as_logged

    @property
    def episodes(self) -> int:
        """How many episodes there are, by a pass over the log."""
        last, count = -1, 0
        for batch in self._log.batches(episodes=True):
            numbers = _episodes(_used(batch))
            count += int(np.count_nonzero(np.diff(numbers, prepend=last)))
            last = int(numbers[-1]) if len(numbers) else last
        return count

    def sweep(
        self, size: int, seed: int, start: SweepPosition
    ) -> Iterator[tuple[Batch, SweepPosition]]:
        """Continue a pass over the log."""
        walk = self._log.batches(episodes=self._by_episode, start=start.position)
        waiting: list[tuple[Position | None, Batch]] = []
        before, used, number = start.position, start.used, start.chunk
        for batch in walk:
            waiting.append((before, _used(batch)))
            before = walk.position
            while cut := self._cut(waiting, used, size):
                chunk, waiting, used = _split(waiting, used, cut)
                number += 1
                place = SweepPosition(
                    start.sweep, number, waiting[0][0] if waiting else before, used
                )
                yield self._mixed(chunk, seed, place), place
        if rest := _have(waiting, used):
            number += 1
            chunk, _, _ = _split(waiting, used, rest)
            place = SweepPosition(start.sweep, number, before)
            yield self._mixed(chunk, seed, place), place

    def _cut(self, waiting: list[tuple[Position | None, Batch]], used: int, size: int) -> int:
        """Return the rows of the next chunk, 0 when more must be read."""
        have = _have(waiting, used)
        if have < size or not self._by_episode:
            return size if have >= size else 0
        numbers = np.concatenate([_episodes(batch) for _, batch in waiting])[used:]
        if (np.diff(numbers) < 0).any():
            raise DataError(
                f"the rows of an episode of {self._log.label} are not together; steps by episode "
                "need the order shuffled"
            )
        return int(np.searchsorted(numbers, numbers[-1]))  # the last may go on

    def _mixed(self, chunk: Batch, seed: int, place: SweepPosition) -> Batch:
        if self._as_logged:
            return chunk
        rng = np.random.default_rng([seed, place.sweep, place.chunk])
        if not self._by_episode:
            return take_rows(chunk, rng.permutation(len(chunk)))
        starts = episode_edges(chunk)
        parts = [np.arange(i, j) for i, j in itertools.pairwise(starts)]
        return take_rows(chunk, np.concatenate([parts[i] for i in rng.permutation(len(parts))]))


def evaluate(design: Design, rows: Batch, mean_weight: float) -> Chunk:
    """Evaluate the features of rows, multiplied by the roots of weights of mean one."""
    Phi, Psi, Y = design.phi(rows.x, rows.a), design.psi(rows.x, rows.z), rows.y
    if rows.weight is None:
        return Phi, Psi, Y
    root = np.sqrt(rows.weight / mean_weight)[:, None]
    return Phi * root, Psi * root, Y * root


@dataclass(frozen=True, slots=True)
class Survey:
    """The result of one pass over raw rows: number, mean weight, counts, and a random sample."""

    n: int
    mean_weight: float
    counts: Counts
    sample: Batch


def survey(log: Log, seed: int) -> Survey:
    """Count the rows and draw a sample of them without replacement.

    Every row gets a random number, and those with the smallest are kept.
    """
    rng = np.random.default_rng([seed, SAMPLE])
    n, weight = 0, 0.0
    sample: list[Batch] = []
    lots = np.empty(0)
    walk = log.batches(episodes=log.roles.episode is not None)
    for batch in walk:
        rows = _used(batch)
        n += len(rows)
        weight += len(rows) if rows.weight is None else float(rows.weight.sum())
        drawn = rng.random(len(rows))
        few = np.sort(np.argsort(drawn)[:SAMPLE])
        joined, lots = concatenate([*sample, take_rows(rows, few)]), np.append(lots, drawn[few])
        few = np.sort(np.argsort(lots)[:SAMPLE])
        sample, lots = [take_rows(joined, few)], lots[few]
    return Survey(n, weight / n, walk.counts, sample[0])


def take_rows(rows: Batch, chosen: Any) -> Batch:
    """Return some rows, by a slice or by their numbers."""
    values = {name: getattr(rows, name) for name in ROW_FIELDS}
    parts: dict[str, Any] = {n: None if v is None else v[chosen] for n, v in values.items()}
    return Batch(**parts)


def episode_edges(rows: Batch) -> list[int]:
    """Return where the episodes of consecutive rows begin, and the end."""
    changes = np.flatnonzero(np.diff(_episodes(rows))) + 1
    return [0, *changes.tolist(), len(rows)]


def _episodes(rows: Batch) -> np.ndarray:
    if rows.episode is None:
        raise DataError("steps by episode need rows with their episodes")
    return rows.episode


def _chunk_edges(number: np.ndarray, size: int) -> list[int]:
    """Cut whole episodes into chunks of at least `size` rows, but for the last."""
    starts = np.append(np.flatnonzero(np.diff(number, prepend=-1)), len(number))
    cuts = np.searchsorted(starts, np.arange(0, len(number), size))
    return list(dict.fromkeys([*starts[cuts].tolist(), len(number)]))


def _used(rows: Batch) -> Batch:
    """Leave out rows of weight zero, as `Moments.n` does, and columns that no step looks at."""
    return take_rows(rows, slice(None) if rows.weight is None else rows.weight > 0)


def _have(waiting: list[tuple[Position | None, Batch]], used: int) -> int:
    return sum(len(batch) for _, batch in waiting) - used


def _split(
    waiting: list[tuple[Position | None, Batch]], used: int, count: int
) -> tuple[Batch, list[tuple[Position | None, Batch]], int]:
    """Take the next `count` rows; return them, the rows still held, and which of these are used."""
    chunk = take_rows(concatenate([batch for _, batch in waiting]), slice(used, used + count))
    used += count
    while waiting and used >= len(waiting[0][1]):
        used -= len(waiting[0][1])
        waiting = waiting[1:]
    return chunk, waiting, used
