"""A few rows of a log, to simulate from: first states of episodes, states and actions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from ivvi._io.arrays import Floats
from ivvi.logs.batch import Batch, concatenate
from ivvi.logs.schema import Roles

MOST = 2048
USUAL = 0.95
"""Share of episodes that are at most as long as the usual length."""
HARDLY_ANY = 0.01
"""With a smaller share of censored episodes, these do not show how long a log follows episodes."""


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
    length
        Usual number of steps of an episode (`usual_length`); 0 where it is not known.
    """

    x: Floats
    a: Floats
    z: Floats
    y: Floats
    starts: Floats
    global_instrument: bool = False
    length: int = 0

    def __repr__(self) -> str:
        return f"Sample({len(self.x):,} rows, {len(self.starts):,} first states)"

    @classmethod
    def of(cls, head: Batch, roles: Roles, most: int = MOST) -> Sample:
        """Take rows from the first transitions of a log."""
        x, a, z, y = (_thinned(part, most) for part in (head.x, head.a, head.z, head.y))
        firsts = head.x[first_rows(head)[:most]]
        return cls(x, a, z, y, firsts, _is_global(head), usual_length(head, roles))

    def pooled(self, other: Sample, sizes: tuple[int, int], episodes: tuple[int, int]) -> Sample:
        """Return a sample of two logs, in which each has its share of all their rows.

        `sizes` are the transitions of the two logs, `episodes` their episodes: of these the rows
        and the first states are samples.
        """
        rows = _shares((len(self.x), len(other.x)), sizes)
        firsts = _shares((len(self.starts), len(other.starts)), episodes)
        parts = dict.fromkeys(("x", "a", "z", "y"), rows) | {"starts": firsts}
        arrays = {
            name: np.concatenate([getattr(self, name), getattr(other, name)])[chosen]
            for name, chosen in parts.items()
        }
        both_global = self.global_instrument and other.global_instrument
        length = max(self.length, other.length)
        return Sample(**arrays, global_instrument=both_global, length=length)


def _shares(sampled: tuple[int, int], sizes: tuple[int, int], most: int = MOST) -> np.ndarray:
    """Pool two samples into one that represents both logs: return the rows that are chosen.

    Had every row of a log of n a uniform number, and a sample of m those with the smallest, their
    numbers would be the first m of n uniform order statistics. Of both logs the rows with the
    smallest numbers are a sample, up to the largest that is known of each: no row is repeated,
    and each log has its share but for chance.
    """
    rng = np.random.default_rng((*sampled, *sizes))
    numbers, bound = [], 1.0
    for m, n in zip(sampled, sizes, strict=True):
        steps = np.cumsum(rng.exponential(size=m))
        left = rng.gamma(n + 1 - m) if n > m else rng.exponential()
        number = steps / (steps[-1] + left) if m else steps
        numbers.append(rng.permutation(number))
        bound = min(bound, float(number[-1])) if 0 < m < n else bound
    joined = np.concatenate(numbers)
    order = np.argsort(joined)
    chosen: np.ndarray = np.sort(order[joined[order] <= bound][:most])
    return chosen


def spread_episodes(batches: Iterable[Batch], most: int) -> Batch:
    """Return whole episodes spread evenly over a pass, `most` to twice as many rows.

    Every episode, then every second, fourth and so on as soon as their rows are too many.
    """
    taken: list[Batch] = []
    every = 1
    for batch in batches:
        taken.append(_every(batch, every))
        while sum(map(len, taken)) > 2 * most and every < most:
            every *= 2
            taken = [_every(concatenate(taken), every)]
    return concatenate(taken)


def _every(batch: Batch, every: int) -> Batch:
    if batch.episode is None:
        return batch.taken(np.arange(0, len(batch), every))
    return batch.taken(np.flatnonzero(batch.episode % every == 0))


def _thinned(rows: Floats, most: int = MOST) -> Floats:
    return np.ascontiguousarray(rows[:: max(1, -(-len(rows) // most))])


def first_rows(head: Batch) -> np.ndarray:
    """Return the position of the first step of each episode."""
    if head.episode is None:
        return np.arange(len(head))
    if _in_order(head):
        return np.flatnonzero(np.diff(head.episode, prepend=head.episode[:1] - 1))
    keys = (head.episode,) if head.step is None else (head.step, head.episode)
    order = np.lexsort(keys)
    first: np.ndarray = order[np.unique(head.episode[order], return_index=True)[1]]
    return first


def _in_order(head: Batch) -> bool:
    """Return whether rows are sorted by episode and, where they have one, by step."""
    moved = np.diff(np.asarray(head.episode))
    if (moved < 0).any():
        return False
    return head.step is None or not (head.step[1:] < head.step[:-1])[moved == 0].any()


def usual_length(head: Batch, roles: Roles) -> int:
    """Return the number of steps that 95% of the episodes do not exceed.

    Of episodes that end for good and others that go on, the latter tell how long the log follows
    them, unless hardly any goes on. A last row without a next state is a step too. 0 where rows
    name no episode, or where those of an episode do not stand together, so that the first rows of
    a log hold parts of episodes.
    """
    if head.episode is None or roles.episode is None or not len(head):
        return 0
    last = np.append(np.flatnonzero(np.diff(head.episode)), len(head) - 1)
    if len(np.unique(head.episode)) < len(last):
        return 0
    steps = np.diff(last, prepend=-1)
    ends = [roles.outputs.index(name) for name in roles.terminal]
    goes_on = (head.y[last][:, ends] == 0).all(axis=1)
    if roles.derived:
        steps = steps + goes_on
    if goes_on.mean() >= HARDLY_ANY:
        steps = steps[goes_on]
    return int(np.quantile(steps, USUAL, method="inverted_cdf"))


def _is_global(head: Batch) -> bool:
    """Return whether z varies between episodes of several steps, and never within one."""
    if head.episode is None or head.z.shape[1] == 0:
        return False
    episode, z = head.episode, head.z
    if not _in_order(replace(head, step=None)):
        order = np.argsort(episode, kind="stable")
        episode, z = episode[order], z[order]
    same = episode[1:] == episode[:-1]
    if not same.any():
        return False
    moved = np.any(z[1:] != z[:-1], axis=1)
    return bool(not moved[same].any() and moved.any())
