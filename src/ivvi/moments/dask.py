"""The moments of a Parquet log on several processes or machines, by Dask.

Sums of pieces are added in the order of the log, so that the result does not depend on the
cluster or on chance; it differs from that of one process by rounding alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from ivvi.features.design import Design
from ivvi.logs import Batch, Counts, Log, Roles
from ivvi.logs.dask import Cluster, ClusterPass, connected
from ivvi.moments import GroupTally, Moments, few_threads, merge_episodes


def compute_moments_on(
    cluster: Cluster,
    log: Log,
    design: Design,
    *,
    episodes: bool = False,
    groups: Sequence[str] = (),
    progress: Callable[[int], None] | None = None,
) -> tuple[Moments, Counts]:
    """Return what `compute_moments` returns, up to rounding, computed by a cluster."""
    roles, numbered = log.roles, episodes or bool(groups)
    fold = partial(_sums, design, roles, episodes, tuple(groups))
    with connected(cluster) as client:
        walk = ClusterPass(client, log, fold, numbered, progress)
        total, blocks = Moments.empty(design), []
        tally = GroupTally(groups, roles, design)
        for part, numbers in walk:
            total = total + part.without_episodes()
            known = dict(zip(roles.cluster, numbers.clusters, strict=True))
            if roles.episode is not None:
                known[roles.episode] = numbers.episodes
            tally.merge(part.groups, known)
            if (own := part.episodes) is not None:
                blocks.append(replace(own, number=numbers.episodes[own.number]))
    merged = merge_episodes(blocks) if blocks else None
    return replace(total, episodes=merged, groups=tally.found), walk.counts


def _sums(
    design: Design, roles: Roles, episodes: bool, groups: Sequence[str], batches: Iterable[Batch]
) -> Moments:
    """Return the moments of some batches."""
    total, blocks, tally = Moments.empty(design), [], GroupTally(groups, roles, design)
    with few_threads(0):  # the cluster counts on one thread for each task
        for batch in batches:
            V = design.rows(batch)
            part = Moments.of_batch(design, batch, episodes=episodes, rows=V)
            tally.add(batch, V)
            total = total + part.without_episodes()
            if part.episodes is not None:
                blocks.append(part.episodes)
    merged = merge_episodes(blocks) if blocks else None
    return replace(total, episodes=merged, groups=tally.found)
