"""One pass over a log: its moments, and the counts of what was read and dropped."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from ivvi._io.arrays import Floats, Ints
from ivvi._io.checkpoint import Checkpoint
from ivvi._io.files import Saved, nest, unnest
from ivvi.features.design import Design
from ivvi.logs import Batch, Counts, InstrumentPaths, Log, Pass, Position, Roles, SharedPaths
from ivvi.logs.schema import PATH
from ivvi.moments.episode_ids import EpisodeIds, with_ids
from ivvi.moments.group_sums import GroupSums, GroupTally, group_codes
from ivvi.moments.moments import EpisodeMoments, Moments, merge_episodes
from ivvi.moments.welford import run_starts

SMALL_WIDTH = 512
"""Below this width a second BLAS thread costs more processor time than it saves."""
KEPT_ROWS = 100
"""With this many rows per episode, keeping its moments costs less than a second pass."""
KEPT_BYTES = 64 << 20
"""Largest size of the moments of episodes that are kept unless asked for."""
FEW_BYTES = 4 << 20
"""Up to this size the moments of episodes are kept, however short the episodes are."""
MERGED = 8
"""After so many batches the moments of clusters, which recur, are added up."""


@contextlib.contextmanager
def few_threads(width: int) -> Iterator[None]:
    """Keep BLAS to one thread for narrow data."""
    if width > SMALL_WIDTH:
        yield
    else:
        with _threads().limit(limits=1, user_api="blas"):
            yield


def compute_moments(
    log: Log,
    design: Design,
    *,
    episodes: bool | None = False,
    by: str | None = None,
    also: str | None = None,
    groups: Sequence[str] = (),
    checkpoint: Checkpoint | None = None,
) -> tuple[Moments, Counts]:
    """Walk once over a log and return its moments and counts of what was read and dropped.

    Moments of each episode are kept if `episodes` (of each value of the cluster column `by`,
    if given); where that is None, as long as they are cheaper than a second pass. Those of the
    groups of a second column, `also`, are kept beside them, unless they are many. First sums
    are kept by the columns `groups`; where `PATH` is among them, by groups of episodes that share
    the path of an instrument. With a `checkpoint` the walk goes on where an earlier one was killed.
    """
    tally = GroupTally(groups, log.roles, design)
    paths = InstrumentPaths(log.roles if PATH in groups else None, residuals=log.is_residual)
    total, blocks, start, dropped = _resumed(design, checkpoint, tally, paths)
    keep, kept_by = episodes is not False and not dropped, by or log.roles.episode
    named = episodes is True and by is None and checkpoint is None
    log, place = with_ids(log) if named else (log, None)
    ids = EpisodeIds(place)
    walk = log.batches(episodes=keep or bool(groups), start=start)

    def state() -> Saved:
        blocks[:] = [merge_episodes(blocks)] if blocks else []
        so_far = replace(total, episodes=blocks[0] if blocks else None)
        return _with_position(so_far, walk, tally, paths, dropped=not keep)

    with few_threads(design.width):
        for batch in walk:
            codes = batch.episode if by is None else group_codes(batch, log.roles, by)
            if keep and episodes is None and not is_cheap(codes, blocks, design, anyway=bool(by)):
                _hand_over(blocks, tally, kept_by)
                blocks, keep = [], False
            V = design.rows(batch)
            part = Moments.of_batch(design, batch, episodes=keep, rows=V, codes=codes)
            tally.add(batch, V, kept_by if keep else None)
            paths.add(batch)
            ids.add(batch)
            total = _added(total, part, _by_column(total, batch, V, log.roles, also))
            if part.episodes is not None:
                blocks.append(part.episodes)
            if by is not None and len(blocks) > MERGED:
                blocks = [merge_episodes(blocks)]
            if checkpoint is not None:
                checkpoint.offer("moments", state)
    if checkpoint is not None:
        checkpoint.offer("moments", state, now=True)
    episodes_merged = merge_episodes(blocks) if blocks else None
    if episodes_merged is not None and by is not None:
        episodes_merged = labelled(episodes_merged, by, walk.clusters[log.roles.cluster.index(by)])
    elif episodes_merged is not None:
        episodes_merged = ids.name(episodes_merged, walk.clusters)
    absorbed = getattr(log.table, "absorbed", None)
    others = _named(total.others, log.roles, walk.clusters)
    groups_found = tuple(placed(part, log.roles, walk.clusters) for part in tally.sums)
    moments = replace(total, episodes=episodes_merged, others=others, groups=groups_found)
    moments = _with_path_sums(moments, log, paths.shared)
    return replace(moments, absorbed=absorbed), walk.counts


@cache
def _threads() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def _by_column(
    total: Moments, batch: Batch, V: Floats, roles: Roles, column: str | None
) -> tuple[EpisodeMoments, ...]:
    """Return the moments of a batch's rows V (n, p) by a column, unless no longer kept."""
    given_up = total.n > 0 and not total.others
    codes = None if column is None or given_up else group_codes(batch, roles, column)
    if codes is None or column is None:
        return ()
    return (EpisodeMoments.of_rows(total.design, batch, V, codes, column),)


def _with_path_sums(moments: Moments, log: Log, paths: SharedPaths) -> Moments:
    """Return the moments with the groups of episodes that instruments were set for, and sums."""
    moments, episode = replace(moments, paths=paths), log.roles.episode
    if paths.groups is None or episode is None:
        return moments
    log.knowing(paths.groups)
    sums = moments.group_sums(episode)
    if sums is None and (episodes := moments.clusters_by(episode, episode)) is not None:
        sums = episodes.first_sums(episode, moments.mean)
    if sums is None:
        return moments
    by_path = sums.coarser(paths.groups.name, paths.groups.codes)
    return replace(moments, groups=(*moments.groups, by_path))


def _added(total: Moments, part: Moments, others: tuple[EpisodeMoments, ...]) -> Moments:
    """Add the totals of a batch, and its moments by a second column until these are too many."""
    total = total + replace(part, episodes=None, others=others)
    too_many = 8 * sum(block.scatter.size for block in total.others) > KEPT_BYTES
    return replace(total, others=()) if too_many else total


def _named(
    others: tuple[EpisodeMoments, ...], roles: Roles, clusters: Sequence[Sequence[object]]
) -> tuple[EpisodeMoments, ...]:
    """Label the clusters of a second column by their values; steps are their own labels."""
    values = dict(zip(roles.cluster, clusters, strict=True))
    return tuple(
        labelled(block, block.by, values[block.by]) if block.by in values else block
        for block in others
    )


def placed(sums: GroupSums, roles: Roles, clusters: Sequence[Sequence[Any]]) -> GroupSums:
    """Add the order of the groups in time if they are dates; steps are numbers, in order."""
    if sums.by != roles.dates or sums.by not in roles.cluster:
        return sums
    values = clusters[roles.cluster.index(sums.by)]
    order = sorted(range(len(values)), key=values.__getitem__)
    return replace(sums, places=np.argsort(order)[sums.keys])


def _hand_over(blocks: Sequence[EpisodeMoments], tally: GroupTally, by: str | None) -> None:
    """Pass groups whose moments are no longer kept on to the tally of first sums."""
    if by is not None and blocks:
        merged = merge_episodes(blocks)
        tally.take(by, merged.number, merged.weight, merged.mean)


def labelled(episodes: EpisodeMoments, by: str, values: Sequence[object]) -> EpisodeMoments:
    """Return the moments of clusters with the column's name and the clusters' own."""
    labels = tuple(str(values[number]) for number in episodes.number)
    return replace(episodes, by=by, labels=labels)


def is_cheap(
    codes: Ints | None, blocks: Sequence[EpisodeMoments], design: Design, *, anyway: bool
) -> bool:
    """Whether moments of a batch's groups cost less than reading the rows once more.

    Those of few groups always do, and those of a cluster column `anyway`.
    """
    if codes is None:
        return False
    clusters = len(run_starts(codes))
    size = 8 * (clusters + sum(map(len, blocks))) * design.width**2
    if anyway:  # runs of a column in no order are more than its values
        return 8 * max(map(len, blocks), default=0) * design.width**2 <= KEPT_BYTES
    return size <= FEW_BYTES or (len(codes) >= KEPT_ROWS * clusters and size <= KEPT_BYTES)


def _resumed(
    design: Design,
    checkpoint: Checkpoint | None,
    tally: GroupTally,
    paths: InstrumentPaths,
) -> tuple[Moments, list[EpisodeMoments], Position | None, bool]:
    """Return the totals, the episodes, where to resume, and whether episodes are no longer kept."""
    saved = checkpoint.stage("moments") if checkpoint is not None else None
    if saved is None:
        return Moments.empty(design), [], None, False
    facts, arrays = saved
    total = Moments.restore(design, facts, arrays)
    start = Position.restore(facts["position"], unnest("position", arrays))
    tally.restore(facts["groups"], unnest("groups", arrays))
    paths.restore(facts["paths"], unnest("paths", arrays))
    blocks = [] if total.episodes is None else [total.episodes]
    return replace(total, episodes=None), blocks, start, facts["dropped"]


def _with_position(
    moments: Moments,
    walk: Pass,
    tally: GroupTally,
    paths: InstrumentPaths,
    *,
    dropped: bool,
) -> Saved:
    facts, arrays = moments.saved()
    where, rows = walk.position.saved()
    by_group, sums = tally.saved()
    by_path, hashes = paths.saved()
    arrays |= nest("position", rows) | nest("groups", sums) | nest("paths", hashes)
    at = {"position": where, "groups": by_group, "paths": by_path, "dropped": dropped}
    return facts | at, arrays
