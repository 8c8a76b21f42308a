"""Which episodes a set of sums covers: their ids as hashes, and their first and last steps.

The rows of one episode may arrive in several deliveries. Their sums then belong to one cluster, and
this must be recognised without the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256

import numpy as np

from ivvi._io.arrays import Floats
from ivvi.logs import Batch, Log
from ivvi.moments.moments import EpisodeMoments

DIGITS = 16
"""Digits of the hash of an id: enough that hardly two of a billion are the same."""


def with_ids(log: Log) -> tuple[Log, int | None]:
    """Return the log with the ids of its episodes read, and their place among the clusters."""
    roles, episode = log.roles, log.roles.episode
    if episode is None:
        return log, None
    if episode not in roles.cluster:
        roles = replace(roles, cluster=(*roles.cluster, episode))
        log = log.replaced(log.table, roles)
    return log, roles.cluster.index(episode)


class EpisodeIds:
    """Ids and steps of the episodes of a pass, whose ids are the clusters at a place."""

    def __init__(self, place: int | None) -> None:
        self._place, self._same, self._stepped = place, True, True
        self._spans: Floats = np.empty((0, 2))

    def add(self, batch: Batch) -> None:
        """Add a batch of rows."""
        if self._place is None or batch.episode is None or not len(batch):
            return
        number = batch.episode
        self._same &= np.array_equal(number, batch.clusters[self._place])
        self._stepped &= batch.step is not None
        more = int(number.max()) + 1 - len(self._spans)
        if more > 0:
            self._spans = np.vstack([self._spans, np.tile([np.inf, -np.inf], (more, 1))])
        if batch.step is not None:
            step = np.asarray(batch.step, dtype=np.float64)
            np.minimum.at(self._spans[:, 0], number, step)
            np.maximum.at(self._spans[:, 1], number, step)

    def name(
        self, episodes: EpisodeMoments, clusters: Sequence[Sequence[object]]
    ) -> EpisodeMoments:
        """Return the moments of episodes with their ids and steps, where these are known."""
        if self._place is None or not self._same:
            return episodes
        ids = [str(clusters[self._place][number]) for number in episodes.number.tolist()]
        labels = tuple(sha256(name.encode()).hexdigest()[:DIGITS] for name in ids)
        spans = self._spans[episodes.number] if self._stepped else None
        return replace(episodes, labels=labels, spans=spans, counted=_only_count(ids))


def _only_count(ids: Sequence[str]) -> bool:
    """Whether ids only count episodes from 0 or 1, so that another log may use the same ones."""
    if not all(name.isdecimal() for name in ids):
        return False
    numbers = {int(name) for name in ids}
    return min(numbers) in (0, 1) and max(numbers) - min(numbers) + 1 == len(numbers)
