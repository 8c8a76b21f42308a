"""What a stream keeps from one delivery of rows to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ivvi._io.arrays import Floats, Ints
from ivvi._io.files import Saved, nest, unnest
from ivvi._io.result import Compact
from ivvi.estimators import Method
from ivvi.estimators.sgda.online import Online
from ivvi.estimators.sgda.sgda import SGDA
from ivvi.features.design import Design
from ivvi.fitting.incremental.open_episodes import OpenBatch, OpenEpisodes
from ivvi.fitting.incremental.saved_moments import Shard, check_same, design_facts, restore_design
from ivvi.logs import Batch, Counts, Log, Position, Roles
from ivvi.logs.data_checks import CopyWatch
from ivvi.moments import EpisodeMoments, GroupTally, Moments, few_threads
from ivvi.moments.group_sums import group_codes

LABEL = "the stream"
MOST_BYTES = 8 << 20
"""Size up to which a stream keeps the moments of single episodes, to cluster errors by them."""


@dataclass(slots=True, repr=False)
class StreamState(Compact):
    """Sums, weights and the place reached; all of it changes when rows come.

    Attributes
    ----------
    design, roles
        Features and columns, those of the first delivery.
    moments
        Sums over all rows; None with linear memory.
    online
        What descent-ascent has come to; None for methods that need the moments alone.
    position
        Where the walk stands: the counts.
    open
        Episodes that may go on, with the rows that wait for their next state.
    steps
        First sums by step, which tell whether episodes share an instrument.
    rows, files
        Rows that have come, and the hashes of the files that they came from.
    by_episode
        Whether the moments of single episodes are kept: until they take too much memory.
    """

    design: Design
    roles: Roles
    moments: Moments | None
    online: Online | None
    position: Position
    open: OpenEpisodes
    steps: GroupTally
    rows: int = 0
    files: tuple[str, ...] = ()
    by_episode: bool = True

    @classmethod
    def begin(cls, method: Method, design: Design, roles: Roles) -> StreamState:
        """Return the state before the first row."""
        online = Online(method, design) if isinstance(method, SGDA) else None
        is_linear = isinstance(method, SGDA) and method.is_linear(design)
        moments = None if is_linear else Moments.empty(design)
        start = Position(Counts(), None, (), CopyWatch(roles).alike, 0.0)
        named = () if roles.step is None or roles.episode is None else (roles.step,)
        steps = GroupTally(named, roles, design)
        return cls(design, roles, moments, online, start, OpenEpisodes(roles), steps)

    def copy(self) -> StreamState:
        """Return a state that does not change when this one does."""
        return replace(self, online=self.online and self.online.copy(), steps=self.steps.copy())

    @property
    def counts(self) -> Counts:
        """Rows, transitions, episodes and what was dropped; rows that wait have no next state."""
        counts = replace(self.position.counts, rows=self.rows)
        if self.roles.derived:
            counts.without_next = counts.rows - counts.missing - counts.transitions
        return counts

    @property
    def shard(self) -> Shard | None:
        """The moments so far; None with linear memory."""
        if self.moments is None:
            return None
        moments = replace(self.moments, groups=self.steps.sums)
        return Shard(moments, self.counts, self.roles, self.files, LABEL)

    def add_log(self, log: Log, *, by_episode: bool) -> None:
        """Add the rows of a log; their first ones may be the next states of rows that wait."""
        design = self.design
        check_same(design, Design.build(design.phi, design.psi, log.roles), log.label)
        if self.roles.episode is not None and self.roles.step is not None:
            self._add_delivery(OpenBatch(self.open, log, self.position.counts.episodes))
            return
        start = replace(self.position, counts=replace(self.position.counts, rows=0))
        walk = log.batches(episodes=by_episode or self.roles.episode is not None, start=start)
        for batch in walk.unchecked():
            self._add(batch)
        self.rows += walk.counts.rows
        self.position = walk.position

    def _add_delivery(self, delivery: OpenBatch) -> None:
        """Add the rows of a log whose episodes may have begun in earlier ones."""
        watch = CopyWatch(self.roles, self.position.alike)
        for batch in delivery:
            watch.look(batch)
            self._add(batch)
        self.rows += delivery.counts.rows
        counts = self.position.counts + delivery.counts
        self.position = replace(self.position, counts=counts, alike=watch.alike)
        self.open = delivery.open

    def add_batch(self, batch: Batch) -> None:
        """Add transitions that are whole already; their episodes are new ones."""
        first = self.position.counts.episodes
        if batch.episode is not None and len(batch):
            new = np.unique(batch.episode, return_inverse=True)[1]
            batch = replace(batch, episode=first + new)
        self._add(batch)
        self.rows += len(batch)
        counts = self.position.counts
        episodes = len(batch) if batch.episode is None else len(np.unique(batch.episode))
        counts = replace(
            counts, transitions=counts.transitions + len(batch), episodes=counts.episodes + episodes
        )
        watch = CopyWatch(self.roles, self.position.alike)
        watch.look(batch)
        self.position = replace(self.position, counts=counts, alike=watch.alike)

    def _add(self, batch: Batch) -> None:
        if self.moments is not None:
            keep = self.by_episode and batch.episode is not None
            with few_threads(self.design.width):
                V = self.design.rows(batch)
                part = Moments.of_batch(self.design, batch, episodes=keep, rows=V)
                if keep and self.roles.step is not None:
                    codes = group_codes(batch, self.roles, self.roles.step)
                    part = self._with_steps(part, batch, V, codes)
                self.moments = self.moments + part
                self.steps.add(batch, V)
            blocks = [self.moments.episodes, *self.moments.others]
            size = sum(8 * block.scatter.size for block in blocks if block is not None)
            if blocks[0] is None or size > MOST_BYTES:
                self.moments, self.by_episode = self.moments.without_episodes(), False
        if self.online is not None:
            self.online.add(batch)

    def _with_steps(self, part: Moments, batch: Batch, V: Floats, codes: Ints | None) -> Moments:
        """Return the moments of a batch with those of its steps, to cluster by these too."""
        if codes is None:
            return part
        blocks = EpisodeMoments.of_rows(self.design, batch, V, codes, str(self.roles.step))
        return replace(part, others=(blocks,))

    def saved(self) -> Saved:
        """Return the state as JSON values and arrays."""
        where, arrays = self.position.saved()
        facts: dict[str, Any] = {
            "design": design_facts(self.design, self.roles),
            "position": where,
            "rows": self.rows,
            "by_episode": self.by_episode,
            "files": list(self.files),
        }
        arrays = nest("position", arrays) | nest("open", self.open.saved())
        if self.moments is not None:
            facts["moments"], sums = self.moments.saved()
            facts["steps"], by_step = self.steps.saved()
            arrays |= nest("moments", sums) | nest("steps", by_step)
        if self.online is not None:
            arrays |= nest("online", self.online.saved())
        return facts, arrays

    @classmethod
    def restore(
        cls, method: Method, facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
    ) -> StreamState:
        """Rebuild the state from what `saved` returned."""
        design, roles = restore_design(facts["design"])
        state = cls.begin(method, design, roles)
        if state.moments is not None:
            state.moments = Moments.restore(design, facts["moments"], unnest("moments", arrays))
            state.steps.restore(facts["steps"], unnest("steps", arrays))
        if state.online is not None:
            state.online.restore(unnest("online", arrays))
        state.position = Position.restore(facts["position"], unnest("position", arrays))
        state.open = OpenEpisodes.restore(roles, unnest("open", arrays))
        state.rows, state.files = facts["rows"], tuple(facts["files"])
        state.by_episode = facts["by_episode"]
        return state
