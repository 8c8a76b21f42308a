"""The moments of a Parquet log on several processes or machines, by Dask.

Sums of pieces are added in the order of the log, so that the result does not depend on the
cluster or on chance; it differs from that of one process by rounding alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from ivvi.features.design import Design
from ivvi.logs import Batch, Counts, Log, Roles
from ivvi.logs.dask import ClusterPass, DaskCluster, connected
from ivvi.moments import EpisodeMoments, GroupTally, Moments, few_threads, merge_episodes
from ivvi.moments.accumulate import KEPT_BYTES, MERGED, is_cheap, labelled, placed
from ivvi.moments.group_sums import group_codes


def compute_moments_on(
    cluster: DaskCluster,
    log: Log,
    design: Design,
    *,
    episodes: bool | None = False,
    by: str | None = None,
    groups: Sequence[str] = (),
) -> tuple[Moments, Counts]:
    """Return what `compute_moments` returns, up to rounding, computed by a cluster."""
    roles, numbered = log.roles, episodes is not False or bool(groups)
    fold = partial(_sums, design, roles, episodes, by, tuple(groups))
    with connected(cluster) as client:
        walk = ClusterPass(client, log, fold, numbered)
        total, blocks, keep = Moments.empty(design), [], episodes is not False
        tally = GroupTally(groups, roles, design)
        for part, numbers in walk:
            total = total + part.without_episodes()
            number_of = dict(zip(roles.cluster, numbers.clusters, strict=True))
            if roles.episode is not None:
                number_of[roles.episode] = numbers.episodes
            tally.merge(part.groups, number_of)
            own = part.episodes
            keep = keep and (own is not None or part.n == 0)
            if own is not None and keep:
                number = (number_of[by] if by else numbers.episodes)[own.number]
                blocks.append(replace(own, number=number))
                keep = episodes is True or sum(map(len, blocks)) <= _most(design)
    merged = merge_episodes(blocks) if keep and blocks else None
    if merged is not None and by is not None:
        merged = labelled(merged, by, walk.clusters[roles.cluster.index(by)])
    kept_by = None if merged is None else by or roles.episode
    named = (placed(groups, roles, walk.clusters) for groups in tally.sums)
    sums = tuple(groups for groups in named if groups.by != kept_by)
    return replace(total, episodes=merged, groups=sums), walk.counts


def _most(design: Design) -> int:
    """Return the number of episodes or clusters whose moments are kept without being asked for."""
    return KEPT_BYTES // (8 * design.width**2)


def _sums(
    design: Design,
    roles: Roles,
    episodes: bool | None,
    by: str | None,
    groups: Sequence[str],
    batches: Iterable[Batch],
) -> Moments:
    """Return the moments of some batches."""
    total, tally = Moments.empty(design), GroupTally(groups, roles, design)
    blocks: list[EpisodeMoments] = []
    keep = episodes is not False
    with few_threads(0):  # the cluster counts on one thread for each task
        for batch in batches:
            codes = batch.episode if by is None else group_codes(batch, roles, by)
            if keep and episodes is None and not is_cheap(codes, blocks, design, anyway=bool(by)):
                blocks, keep = [], False
            V = design.rows(batch)
            part = Moments.of_batch(design, batch, episodes=keep, rows=V, codes=codes)
            tally.add(batch, V)
            total = total + part.without_episodes()
            if part.episodes is not None:
                blocks.append(part.episodes)
            if by is not None and len(blocks) > MERGED:
                blocks = [merge_episodes(blocks)]
    merged = merge_episodes(blocks) if blocks else None
    return replace(total, episodes=merged, groups=tally.sums)
