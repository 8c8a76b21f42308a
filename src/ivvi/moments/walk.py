"""One pass over a log: its moments, and what was met on the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ivvi.checkpoint import Checkpoint
from ivvi.files import Saved, nest, unnest
from ivvi.layout import Layout
from ivvi.logs import Counts, Log, Pass, Position
from ivvi.moments.sums import EpisodeMoments, Moments, merge_episodes
from ivvi.moments.threads import few_threads


def compute_moments(
    log: Log,
    layout: Layout,
    *,
    episodes: bool = False,
    progress: Callable[[int], None] | None = None,
    checkpoint: Checkpoint | None = None,
) -> tuple[Moments, Counts]:
    """Walk once over a log and return its moments and what was met on the way.

    With a `checkpoint` the walk goes on where an earlier one was killed.
    """
    total, blocks, start = _resumed(layout, checkpoint)
    walk = log.batches(episodes=episodes, progress=progress, start=start)

    def state() -> Saved:
        blocks[:] = [merge_episodes(blocks)] if blocks else []
        return _with_position(replace(total, episodes=blocks[0] if blocks else None), walk)

    with few_threads(layout.width):
        for batch in walk:
            part = Moments.of_batch(layout, batch, episodes=episodes)
            total = total + part.without_episodes()
            if part.episodes is not None:
                blocks.append(part.episodes)
            if checkpoint is not None:
                checkpoint.offer("moments", state)
    if checkpoint is not None:
        checkpoint.offer("moments", state, now=True)
    return replace(total, episodes=merge_episodes(blocks) if blocks else None), walk.counts


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
