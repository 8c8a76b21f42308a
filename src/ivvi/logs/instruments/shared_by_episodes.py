"""Find groups of episodes that share an instrument, by the path that it takes in each.

A policy of a state, or the prices of a region, is the same for all who live there, and the log
may not name these groups. It shows them: episodes of one group have the same value of z at
every step. Each episode's path is hashed into two numbers, one for each half of its steps, that
do not depend on the order of the rows; a z that never changes is its own path, whatever the
steps at which an episode is seen.

Paths also coincide by chance, where z has few values and an episode few steps. If z is drawn
anew at each step, two episodes agree on one half of the steps whether or not they agree on the
other, so that P(both halves) = P(one) P(other); in groups it is far above that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ivvi._io.arrays import Floats, Ints
from ivvi._io.files import Saved
from ivvi._io.result import Compact
from ivvi.errors import DataError
from ivvi.logs.batch import Batch
from ivvi.logs.schema import PATH, Roles, columns_once, path_instruments

Hashes = NDArray[np.uint64]

CHUNK = 1 << 14
"""Rows that are hashed at once: about what the processor's cache holds."""
MOST_BYTES = 64 << 20
"""Largest size of the paths of episodes; beyond it they are dropped."""
LOOK, RARE = 1000, 0.05
"""After so many episodes, instruments with a smaller share of common paths are dropped."""
COMMON = 0.5
"""Smallest share of episodes with the path of another one for which there may be groups."""
NO_ACCIDENT = 2.0
"""Paths must agree this many times as often as by chance."""
FEWEST_GROUPS = 10.0
"""Smallest effective number of groups to cluster by."""
GRID = 2.0**-20
"""Residuals of effects that differ by less, relative to the largest value, count as equal."""
_STEP, _MIX = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
_OTHER = 0xBF58476D1CE4E5B9


@dataclass(frozen=True, slots=True, repr=False)
class PathGroups(Compact):
    """Groups of episodes that share the path of some instruments.

    Attributes
    ----------
    instruments
        Their columns.
    codes
        The group of each episode, (E,).
    count, effective
        Number of groups, and of groups of one size that are as uneven.
    words
        The instruments' columns, a category's once.
    """

    instruments: tuple[str, ...]
    codes: Ints
    count: int
    effective: float
    words: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The column that the groups make."""
        return PATH + "+".join(self.words or self.instruments)


@dataclass(frozen=True, slots=True)
class SharedPaths:
    """What a pass has seen of the paths of instruments.

    Attributes
    ----------
    groups
        Groups of episodes that instruments were set for, where these are enough to cluster by.
    few
        Groups that are too few.
    constant
        Whether what these have in common is one value that never changes within an episode.
    """

    groups: PathGroups | None = None
    few: PathGroups | None = None
    constant: bool = False

    @property
    def instruments(self) -> tuple[str, ...]:
        """The instruments of these groups."""
        groups = self.groups or self.few
        return () if groups is None else groups.instruments

    def note(self, episode: str) -> str:
        """Return a note that errors are clustered by groups, or may need to be, else ''."""
        if (groups := self.groups) is not None:
            return (
                f"{', '.join(groups.words)}: identical at all steps within groups of episodes "
                f"({groups.count:,} of them), so clustered by these groups too; if each episode "
                f"drew its own, cluster by {episode} (cluster=, --cluster)"
            )
        if (few := self.few) is None:
            return ""
        pattern = f"never changes within an episode and has {few.count} values"
        if not self.constant:
            pattern = f"follows one of {few.count} paths in every episode"
        return (
            f"{', '.join(few.words)} {pattern}: if it was set for whole groups of episodes "
            "(states, clinics), cluster by their column (cluster=, --cluster)"
        )


class InstrumentPaths:
    """Hashes the paths of the instruments over the batches of a pass.

    Instruments whose paths are nearly all different are dropped after the first batch, unless
    `every` path is requested. Values of rows that are `residuals` of fixed effects are compared
    up to rounding. As long as z never changes within an episode, its value is the path. Without
    `roles` nothing is looked at.
    """

    def __init__(
        self, roles: Roles | None, *, residuals: bool = False, every: bool = False
    ) -> None:
        ordered = roles is not None and roles.episode is not None and roles.step is not None
        self._names = roles.instrument if roles and ordered and not roles.frequency else ()
        self._columns, self._residuals = list(range(len(self._names))), residuals
        self._still, self._grid = set(self._columns), np.zeros(len(self._names))
        self._count, self._looked = 0, every
        self._hashes = np.zeros((len(self._names), 2, 0), dtype=np.uint64)
        self._first = np.full((len(self._names), 0), np.nan)
        self._met = np.zeros(0, dtype=bool)

    def add(self, batch: Batch) -> None:
        """Add the rows of a batch, in any order."""
        if batch.episode is None or batch.step is None:
            return
        for start in range(0, len(batch), CHUNK):
            if self._columns:
                rows = slice(start, start + CHUNK)
                self._add(batch.episode[rows], np.asarray(batch.step[rows]), batch.z[rows])
        if not self._looked and self._count >= LOOK:
            self._looked = True
            self._columns = [c for c in self._columns if _shared(self._keys([c])[0]) >= RARE]

    def _add(self, episode: Ints, step: NDArray[Any], instruments: Floats) -> None:
        order, starts, episodes = _runs(episode)
        if not self._reach(int(episodes[-1]) + 1):
            return
        self._met[episodes] = True
        half, salt = None, None
        for c in self._columns:
            z = self._values(instruments[:, c], c)
            if c in self._still and self._stays(c, z[order], starts, episodes):
                continue
            if half is None or salt is None:
                half = np.bitwise_count(step.astype(np.int64)) & np.uint8(1)
                salt = step.astype(np.float64).view(np.uint64) * _STEP
            hashes = _mixed(z.view(np.uint64) ^ salt)
            for side in (0, 1):
                self._hashes[c, side, episodes] += np.add.reduceat(hashes[order], starts)
                hashes *= half

    def _values(self, z: Floats, c: int) -> Floats:
        if not self._residuals:
            return z + 0.0  # a zero has no sign
        if not self._grid[c]:
            self._grid[c] = GRID * (float(np.abs(z).max()) or 1.0)
        rounded: Floats = np.floor(z / self._grid[c] + 1 / 3)
        return rounded

    def _stays(self, c: int, z: Floats, starts: Ints, episodes: Ints) -> bool:
        """Whether an instrument has had one value in each episode so far; then that is its path."""
        first = self._first[c, episodes]
        self._first[c, episodes] = first = np.where(np.isnan(first), z[starts], first)
        if not np.array_equal(z, np.repeat(first, np.diff(starts, append=len(z)))):
            self._still.discard(c)
        return c in self._still

    def _reach(self, count: int) -> bool:
        """Make room for `count` episodes; where these are too many, stop looking."""
        self._count, room = max(self._count, count), self._first.shape[1]
        if count > room:
            size = max(count, 2 * room)
            if 24 * size * len(self._first) > MOST_BYTES:
                self._columns = []
                return False
            more = (0, size - room)
            self._met = np.pad(self._met, more)
            self._hashes = np.pad(self._hashes, ((0, 0), (0, 0), more))
            self._first = np.pad(self._first, ((0, 0), more), constant_values=np.nan)
        return True

    @property
    def shared(self) -> SharedPaths:
        """The groups found once all rows are added: the fewest that are enough to cluster by.

        By the path of each instrument, and of all together (indicators of one category).
        """
        common = [c for c in self._columns if _shared(self._keys([c])[0]) >= COMMON]
        several = [common] if len(common) > 1 else []
        by_columns = [self._grouped(columns) for columns in [*([c] for c in common), *several]]
        groups = sorted(filter(None, by_columns), key=lambda one: one.effective)
        for one in groups:
            if one.effective >= FEWEST_GROUPS:
                return SharedPaths(one)
        few = next((one for one in groups if one.count > 1), None)
        still = {self._names[c] for c in self._still}
        return SharedPaths(few=few, constant=few is not None and few.instruments[0] in still)

    def _grouped(self, columns: list[int]) -> PathGroups | None:
        """Group episodes by the paths of some instruments, unless these agree by chance."""
        path_hash, half_hash = self._keys(columns)
        if _shared(path_hash) < COMMON:
            return None
        if not self._still.intersection(columns):
            by_chance = _agreement(half_hash) * _agreement(path_hash - half_hash)
            if _agreement(path_hash) < NO_ACCIDENT * by_chance:
                return None
        sizes = np.unique(path_hash, return_counts=True)[1]
        effective = float(sizes.sum() ** 2 / np.sum(sizes**2))
        names = tuple(self._names[c] for c in columns)
        words = columns_once(names, self._names)
        return PathGroups(names, self._codes(columns), len(sizes), effective, words)

    def codes(self, name: str) -> Ints:
        """Return the group of each episode, (E,), by the paths of the instruments of a name."""
        if not self._columns:
            raise DataError(f"the log has too many episodes to cluster by the {name}")
        return self._codes([self._names.index(one) for one in path_instruments(name, self._names)])

    def _codes(self, columns: list[int]) -> Ints:
        codes: Ints = np.zeros(self._count, dtype=np.int64)
        met = self._met[: self._count]
        codes[met] = np.unique(self._keys(columns)[0], return_inverse=True)[1]
        return codes

    def _keys(self, columns: list[int]) -> tuple[Hashes, Hashes]:
        """Return a hash of the path of each episode so far, (E,), and of half of its steps."""
        both = np.zeros((2, int(self._met.sum())), dtype=np.uint64)
        for place, c in enumerate(columns):
            own, value = self._hashes[c][:, self._met], self._first[c, self._met]
            own = np.where(own[0] > 0, own, _mixed(value.view(np.uint64) * _STEP))
            both += own * np.uint64(pow(_OTHER, place, 1 << 64))
        return both[0], both[1]

    def saved(self) -> Saved:
        """Return the state as JSON values and arrays."""
        facts = {
            "columns": self._columns,
            "still": sorted(self._still),
            "count": self._count,
            "looked": self._looked,
        }
        names = ("hashes", "first", "grid", "met")
        return facts, {name: getattr(self, f"_{name}") for name in names}

    def restore(self, facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Resume from what `saved` returned."""
        self._columns, self._still = list(facts["columns"]), set(facts["still"])
        self._count, self._looked = facts["count"], facts["looked"]
        for name in ("hashes", "first", "grid", "met"):
            setattr(self, f"_{name}", arrays[name].copy())


def _runs(episode: Ints) -> tuple[Ints | slice, Ints, Ints]:
    """Return an order that brings episodes together, their starts, and which they are."""
    order: Ints | slice = slice(None)
    if np.any(episode[1:] < episode[:-1]):
        order = np.argsort(episode, kind="stable")
        episode = episode[order]
    starts = np.flatnonzero(np.append(True, episode[1:] != episode[:-1]))
    return order, starts, episode[starts]


def _mixed(values: Hashes) -> Hashes:
    """Mix the bits of values, in their place, so that sums of different ones differ."""
    for _ in range(2):
        values ^= values >> np.uint64(32)
        values *= _MIX
    return values


def _shared(keys: Hashes) -> float:
    """Return the share of episodes whose key is that of another episode too."""
    sizes = np.unique(keys, return_counts=True)[1]
    return float(sizes[sizes > 1].sum() / max(len(keys), 1))


def _agreement(keys: Hashes) -> float:
    """Return how often two different episodes have the same key."""
    sizes = np.unique(keys, return_counts=True)[1].astype(np.float64)
    return float(np.sum(sizes * (sizes - 1)) / (len(keys) * (len(keys) - 1)))
