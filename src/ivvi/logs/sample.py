"""A few rows of a log, for those who simulate: where episodes begin, what was done there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ivvi.logs.batch import Batch, Floats

MOST = 2048


@dataclass(frozen=True, slots=True, repr=False)
class Sample:
    """Rows spread evenly over the first transitions, and first states of episodes.

    Attributes
    ----------
    x, a, z, y
        State (m, d_x), action (m, d_a), instrument (m, d_z) and output (m, d_y) of the same rows.
    starts
        First states of episodes, (s, d_x).
    global_instrument
        Whether the instrument is one for each episode (the paper's global instrument).
    """

    x: Floats
    a: Floats
    z: Floats
    y: Floats
    starts: Floats
    global_instrument: bool = False

    def __repr__(self) -> str:
        return f"Sample({len(self.x):,} rows, {len(self.starts):,} first states)"

    @classmethod
    def of(cls, head: Batch, most: int = MOST) -> Sample:
        """Take rows from the first transitions of a log."""
        x, a, z, y = (_thinned(part, most) for part in (head.x, head.a, head.z, head.y))
        return cls(x, a, z, y, head.x[_firsts(head)[:most]], _is_global(head))

    def __add__(self, other: Sample) -> Sample:
        """Return rows of both, thinned evenly where they are too many."""
        x, a, z, y, starts = (
            _thinned(np.concatenate([getattr(self, name), getattr(other, name)]))
            for name in ("x", "a", "z", "y", "starts")
        )
        alike = self.global_instrument and other.global_instrument
        return Sample(x, a, z, y, starts, alike)


def _thinned(rows: Floats, most: int = MOST) -> Floats:
    return np.ascontiguousarray(rows[:: max(1, -(-len(rows) // most))])


def _firsts(head: Batch) -> np.ndarray:
    """Return the position of the first step of each episode."""
    if head.episode is None:
        return np.arange(len(head))
    keys = (head.episode,) if head.step is None else (head.step, head.episode)
    order = np.lexsort(keys)
    first: np.ndarray = order[np.unique(head.episode[order], return_index=True)[1]]
    return first


def _is_global(head: Batch) -> bool:
    """Tell whether z varies between episodes of several steps, and never within one."""
    if head.episode is None or head.z.shape[1] == 0:
        return False
    order = np.argsort(head.episode, kind="stable")
    episode, z = head.episode[order], head.z[order]
    same = episode[1:] == episode[:-1]
    moved = np.any(z[1:] != z[:-1], axis=1)
    return bool(same.any() and not moved[same].any() and moved.any())
