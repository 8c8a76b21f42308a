"""One pass over a log: its moments, and what was met on the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ivvi.checkpoint import Checkpoint
from ivvi.files import Saved, nest, unnest
from ivvi.layout import Layout
from ivvi.logs import Batch, Counts, Log, Pass, Position
from ivvi.moments.sums import EpisodeMoments, Moments, merge_episodes
from ivvi.moments.threads import few_threads
from ivvi.runs import run_starts

KEPT_ROWS = 100
"""Rows of an episode from which on its moments cost less than a second pass."""
KEPT_BYTES = 64 << 20


def compute_moments(
    log: Log,
    layout: Layout,
    *,
    episodes: bool | None = False,
    progress: Callable[[int], None] | None = None,
    checkpoint: Checkpoint | None = None,
) -> tuple[Moments, Counts]:
    """Walk once over a log and return its moments and what was met on the way.

    Moments of each episode are kept if `episodes`; where that is None, as long as they are
    cheaper than a second pass. With a `checkpoint` the walk goes on where an earlier one was
    killed.
    """
    total, blocks, start = _resumed(layout, checkpoint)
    keep = episodes is not False
    walk = log.batches(episodes=keep, progress=progress, start=start)

    def state() -> Saved:
        blocks[:] = [merge_episodes(blocks)] if blocks else []
        return _with_position(replace(total, episodes=blocks[0] if blocks else None), walk)

    with few_threads(layout.width):
        for batch in walk:
            if keep and episodes is None and not _cheap(batch, blocks, layout):
                blocks, keep = [], False
            part = Moments.of_batch(layout, batch, episodes=keep)
            total = total + part.without_episodes()
            if part.episodes is not None:
                blocks.append(part.episodes)
            if checkpoint is not None:
                checkpoint.offer("moments", state)
    if checkpoint is not None:
        checkpoint.offer("moments", state, now=True)
    return replace(total, episodes=merge_episodes(blocks) if blocks else None), walk.counts


def _cheap(batch: Batch, kept: Sequence[EpisodeMoments], layout: Layout) -> bool:
    """Whether moments of a batch's episodes cost less than reading the rows once more."""
    if batch.episode is None:
        return False
    met = len(run_starts(batch.episode))
    held = met + sum(map(len, kept))
    return len(batch) >= KEPT_ROWS * met and 8 * held * layout.width**2 <= KEPT_BYTES


def _resumed(
    layout: Layout, checkpoint: Checkpoint | None
) -> tuple[Moments, list[EpisodeMoments], Position | None]:
    """Return the totals, the episodes and the position from which to go on."""
    saved = checkpoint.stage("moments") if checkpoint is not None else None
    if saved is None:
        return Moments.empty(layout), [], None
    facts, arrays = saved
    total = Moments.restore(layout, facts, arrays)
    start = Position.restore(facts["position"], unnest("position", arrays))
    return total.without_episodes(), [total.episodes] if total.episodes else [], start


def _with_position(moments: Moments, walk: Pass) -> Saved:
    facts, arrays = moments.saved()
    where, rows = walk.position.saved()
    return {**facts, "position": where}, {**arrays, **nest("position", rows)}
