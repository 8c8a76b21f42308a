"""`Stream`: a fit that goes on as rows come, whose state is one small file."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ivvi.checkpoint import Checkpoint
from ivvi.errors import DataError, FileError, InputError
from ivvi.estimators import Estimate, Method
from ivvi.estimators.online import Online
from ivvi.estimators.sgda import SGDA
from ivvi.features import FeatureMap
from ivvi.files import content_hash, load_file, nest, save_file, unnest
from ivvi.fitting import Fit, estimate, make_method
from ivvi.layout import Layout, build_layout, fitted_layout
from ivvi.light import LightFit
from ivvi.logs import Batch, Counts, Log, Position, Roles, read_logs
from ivvi.logs.tables import PARQUET_SUFFIXES
from ivvi.logs.watch import CopyWatch
from ivvi.moments import Moments, few_threads
from ivvi.resume import settings_of
from ivvi.shard import Shard, check_same, design_facts, open_like, restore_design

KIND = "stream"


@dataclass(slots=True)
class _State:
    """What changes when rows come; moments are None in memory of order d."""

    layout: Layout
    roles: Roles
    moments: Moments | None
    online: Online | None
    position: Position
    rows: int = 0
    files: tuple[str, ...] = ()

    def copy(self) -> _State:
        return replace(self, online=self.online and self.online.copy())


class Stream:
    """A fit to rows that come one delivery after another.

    A delivery is a table, a dict of arrays, a file, a `Log`, a `Batch` of transitions, or an
    iterator of these. An episode may go on from one delivery to the next: its last row waits
    for its next state. A delivery that fails leaves the stream as it was.

    Parameters
    ----------
    phi, psi, method, seed
        As for `estimate`. `Exact` and `LeastSquares` keep moments; `SGDA` gathers a burn-in
        and then takes steps, with moments beside them unless its memory is linear.
    **columns
        As for `read_logs`.

    Examples
    --------
    >>> import ivvi
    >>> env = ivvi.make_env("linear", dim=2)
    >>> stream = ivvi.Stream()
    >>> for day in range(3):
    ...     _ = stream.partial_fit(env.collect(episodes=5, horizon=50, seed=day))
    >>> stream.fit().W.shape
    (2, 5)
    """

    def __init__(
        self,
        phi: FeatureMap | str = "linear",
        psi: FeatureMap | str | None = None,
        *,
        method: Method | str = "exact",
        seed: int = 0,
        **columns: Any,
    ) -> None:
        self._phi, self._psi, self._seed, self._columns = phi, psi, seed, columns
        self.method = make_method(method) if isinstance(method, str) else method
        self._state: _State | None = None
        self._known: dict[Path, tuple[int, int]] = {}

    @property
    def n(self) -> int:
        """Transitions so far."""
        return self._state.position.counts.transitions if self._state else 0

    @property
    def files(self) -> tuple[str, ...]:
        """Hashes of the files that were read by `follow`."""
        return self._state.files if self._state else ()

    def partial_fit(self, rows: Any) -> Stream:
        """Add a delivery of rows, or each of an iterator of them; returns the stream."""
        if isinstance(rows, Iterator):
            for delivery in rows:
                self.partial_fit(delivery)
            return self
        before = self._state and self._state.copy()
        try:
            if isinstance(rows, Batch):
                self._take_batch(rows)
            else:
                self._take_log(rows if isinstance(rows, Log) else self._open(rows))
        except BaseException:
            self._state = before
            raise
        return self

    def follow(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Read the Parquet files of a folder that are new, each once, in order of their names.

        Files are told by their content. Write a file elsewhere, or under a name with a leading
        dot, and rename it when it is whole.
        """
        read = []
        for path in sorted(Path(folder).iterdir()):
            if path.suffix not in PARQUET_SUFFIXES or path.name.startswith((".", "_")):
                continue
            about = path.stat()
            mark = (about.st_size, about.st_mtime_ns)
            if self._known.get(path) == mark:
                continue
            if (seen := content_hash(path)) not in self.files:
                self.partial_fit(path)
                state = self._begun
                state.files = (*state.files, seen)
                read.append(path)
            self._known[path] = mark
        return read

    def fit(self, *, allow_unidentified: bool = False) -> Fit | LightFit:
        """Return the fit to all rows so far."""
        state, started = self._begun, time.perf_counter()
        if not self.n:
            raise DataError("no row has met its next state yet")
        CopyWatch(state.roles, state.position.alike).check()
        if state.online is None:
            return estimate(self.shard, method=self.method, allow_unidentified=allow_unidentified)
        if state.moments is None:
            found = state.online.estimate(None)
            return LightFit(
                estimate=replace(found, n=self.n),
                counts=self.counts,
                roles=state.roles,
                label="the stream",
                method=self.method.name,
                seconds=time.perf_counter() - started,
                settings=settings_of(self.method),
            )
        reached = _Reached(state.online.estimate(state.moments))
        fit = estimate(self.shard, method=reached, allow_unidentified=allow_unidentified)
        return replace(fit, settings=settings_of(self.method))

    @property
    def counts(self) -> Counts:
        """Rows, transitions, episodes and what was dropped; rows that wait have no next state."""
        state = self._begun
        counts = replace(state.position.counts, rows=state.rows)
        if state.roles.derived:
            counts.without_next = counts.rows - counts.missing - counts.transitions
        return counts

    @property
    def shard(self) -> Shard:
        """The moments so far, to be saved, merged or fitted."""
        state = self._begun
        if state.moments is None:
            raise InputError("a stream in memory of order d keeps no moments")
        return Shard(state.moments, self.counts, state.roles, state.files, "the stream")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the state as one file, replacing the last one in one step."""
        state = self._begun
        if isinstance(self.method, SGDA) and not isinstance(self.method.schedule, str):
            raise InputError("only a stream whose schedule is a word can be saved")
        where, arrays = state.position.saved()
        facts = {
            "design": design_facts(state.layout, state.roles),
            "method": self.method.name,
            "settings": settings_of(self.method),
            "columns": self._columns,
            "position": where,
            "rows": state.rows,
            "files": list(state.files),
        }
        arrays = nest("position", arrays)
        if state.moments is not None:
            facts["moments"], sums = state.moments.saved()
            arrays |= nest("moments", sums)
        if state.online is not None:
            arrays |= nest("online", state.online.saved())
        save_file(path, KIND, facts, arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Stream:
        """Load what `save` saved, to go on."""
        facts, arrays = load_file(path, KIND)
        try:
            layout, roles = restore_design(facts["design"])
            method = make_method(facts["method"], **facts["settings"])
            stream = cls(layout.phi, layout.psi, method=method, **facts["columns"])
            state = stream._begin(layout, roles)
            if state.moments is not None:
                state.moments = Moments.restore(layout, facts["moments"], unnest("moments", arrays))
            if state.online is not None:
                state.online.restore(unnest("online", arrays))
            state.position = Position.restore(facts["position"], unnest("position", arrays))
            state.rows, state.files = facts["rows"], tuple(facts["files"])
        except (KeyError, TypeError, AttributeError) as error:
            raise FileError(f"{path} is not a complete stream: {error}") from error
        stream._state = state
        return stream

    @property
    def _begun(self) -> _State:
        if self._state is None:
            raise DataError("no rows have come yet")
        return self._state

    @property
    def _by_episode(self) -> bool:
        return isinstance(self.method, SGDA) and self.method.rows_of_batch is None

    def _begin(self, layout: Layout, roles: Roles) -> _State:
        """Return the state before the first row."""
        online = Online(self.method, layout) if isinstance(self.method, SGDA) else None
        linear = isinstance(self.method, SGDA) and self.method.is_linear(layout)
        start = Position(Counts(), None, (), CopyWatch(roles).alike, 0.0)
        return _State(layout, roles, None if linear else Moments.empty(layout), online, start)

    def _open(self, rows: Any) -> Log:
        """Open a delivery; the columns of the first serve for all."""
        if self._state is None:
            return read_logs(rows, **self._columns)
        drop = bool(self._columns.get("drop_missing", False))
        return open_like(rows, self._state.roles, drop_missing=drop)

    def _take_log(self, log: Log) -> None:
        if self._state is None:
            layout = build_layout(log, self._phi, self._psi, self._seed)
            self._state = self._begin(layout, log.roles)
        state = self._state
        known = state.layout
        check_same(known, Layout.build(known.phi, known.psi, log.roles), log.label)
        start = replace(state.position, counts=replace(state.position.counts, rows=0))
        walk = log.batches(episodes=self._by_episode, start=start)
        for batch in walk.unchecked():
            self._add(batch)
        state.rows += walk.counts.rows
        state.position = walk.position

    def _take_batch(self, batch: Batch) -> None:
        """Add transitions that are whole already."""
        if self._state is None:
            roles = _roles_of(batch)
            layout = fitted_layout(roles, lambda: batch, self._phi, self._psi, self._seed)
            self._state = self._begin(layout, roles)
        state = self._state
        self._add(batch)
        state.rows += len(batch)
        counts = state.position.counts
        met = len(batch) if batch.episode is None else len(np.unique(batch.episode))
        counts = replace(
            counts, transitions=counts.transitions + len(batch), episodes=counts.episodes + met
        )
        watch = CopyWatch(state.roles, state.position.alike)
        watch.look(batch)
        state.position = replace(state.position, counts=counts, alike=watch.alike)

    def _add(self, batch: Batch) -> None:
        state = self._begun
        if state.moments is not None:
            with few_threads(state.layout.width):
                state.moments = state.moments + Moments.of_batch(state.layout, batch)
        if state.online is not None:
            state.online.add(batch)


@dataclass(frozen=True, slots=True)
class _Reached:
    """What descent-ascent has come to, as a method that has done its work."""

    found: Estimate
    name: str = "sgda"

    def solve(
        self, moments: Moments, log: Log | None = None, checkpoint: Checkpoint | None = None
    ) -> Estimate:
        return self.found


def _roles_of(batch: Batch) -> Roles:
    """Name the columns of a batch: x0.., a0.., z0.., next_x0.. ."""
    widths = {"x": batch.x, "a": batch.a, "z": batch.z, "next_x": batch.y}
    x, a, z, y = (tuple(f"{n}{i}" for i in range(v.shape[1])) for n, v in widths.items())
    return Roles(x, a, z, y, reward=None, episode=None, step=None, weight=None)
