"""The moments of a Parquet log on several processes or machines, by Dask.

Sums of pieces are added in the order of the log, so that the result does not depend on the
cluster or on chance; it differs from that of one process by rounding alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from ivvi.layout import Layout
from ivvi.logs import Batch, Counts, Log
from ivvi.logs.clients import Cluster, connected
from ivvi.logs.cluster import ClusterPass
from ivvi.moments import Moments, few_threads, merge_episodes


def compute_moments_on(
    cluster: Cluster,
    log: Log,
    layout: Layout,
    *,
    episodes: bool = False,
    progress: Callable[[int], None] | None = None,
) -> tuple[Moments, Counts]:
    """Return what `compute_moments` returns, up to rounding, computed by a cluster."""
    with connected(cluster) as client:
        walk = ClusterPass(client, log, partial(_sums, layout, episodes), episodes, progress)
        total, blocks = Moments.empty(layout), []
        for part, numbers in walk:
            total = total + part.without_episodes()
            if (own := part.episodes) is not None:
                blocks.append(replace(own, number=numbers.episodes[own.number]))
    return replace(total, episodes=merge_episodes(blocks) if blocks else None), walk.counts


def _sums(layout: Layout, episodes: bool, batches: Iterable[Batch]) -> Moments:
    """Return the moments of some batches."""
    total, blocks = Moments.empty(layout), []
    with few_threads(0):  # the cluster counts on one thread for each task
        for batch in batches:
            part = Moments.of_batch(layout, batch, episodes=episodes)
            total = total + part.without_episodes()
            if part.episodes is not None:
                blocks.append(part.episodes)
    return replace(total, episodes=merge_episodes(blocks) if blocks else None)
