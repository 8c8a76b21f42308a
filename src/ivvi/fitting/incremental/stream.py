"""`Stream`: deliveries of rows in, fits out."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from ivvi._io.checkpoint import Checkpoint
from ivvi._io.files import content_hash, load_file, save_file
from ivvi._io.trust import Trust, trusting
from ivvi.errors import DataError, FileError, InputError, IvviWarning
from ivvi.estimators import Estimate, Method
from ivvi.estimators.feature_selection import FeatureChoice
from ivvi.estimators.registry import make_method, restore_method, settings_of
from ivvi.estimators.sgda.sgda import SGDA
from ivvi.features.design import build_design, fitted_design
from ivvi.features.feature_map import FeatureMap
from ivvi.fitting import Fit, estimate
from ivvi.fitting.feature_choice import choose, is_auto, restored
from ivvi.fitting.incremental.saved_moments import Shard, open_like
from ivvi.fitting.incremental.stream_state import LABEL, StreamState
from ivvi.logs import Batch, Counts, Log, Roles, read_logs
from ivvi.logs.data_checks import CopyWatch
from ivvi.logs.tables.parquet_files import is_parquet
from ivvi.moments import Moments

KIND = "stream"


class Stream:
    """A fit to rows that come one delivery after another.

    A delivery is a table, a dict of arrays, a file, a `Log`, a `Batch` of transitions, or an
    iterator of these. An episode may continue in the next delivery: its last row waits
    for its next state. A delivery that fails leaves the stream as it was.

    Parameters
    ----------
    phi, psi, method, seed
        As for `estimate`; ``auto`` features are chosen by the first delivery. `Exact` and
        `LeastSquares` keep moments; `SGDA` gathers a burn-in
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
        self._state: StreamState | None = None
        self._choice: FeatureChoice | None = None
        self._marks: dict[Path, tuple[int, int]] = {}

    def __repr__(self) -> str:
        return f"Stream({self.method.name}, n={self.n:,})"

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
        chosen = self.method, self._choice
        try:
            if isinstance(rows, Batch):
                self._beginning_with_batch(rows).add_batch(rows)
            else:
                log = rows if isinstance(rows, Log) else self._open(rows)
                self._beginning_with_log(log).add_log(log, by_episode=self._by_episode)
        except BaseException:
            self._state = before
            self.method, self._choice = chosen
            raise
        return self

    def follow(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Read the Parquet files of a folder that are new, each once, in order of their names.

        Files are identified by their content. Write a file elsewhere, or under a name with a
        leading dot, and rename it when it is whole.
        """
        read = []
        for path in sorted(Path(folder).iterdir()):
            if not is_parquet(path):
                continue
            about = path.stat()
            mark = (about.st_size, about.st_mtime_ns)
            if self._marks.get(path) == mark:
                continue
            if (content := content_hash(path)) not in self.files:
                self.partial_fit(path)
                state = self._begun
                state.files = (*state.files, content)
                read.append(path)
            self._marks[path] = mark
        return read

    def fit(self, *, allow_unidentified: bool = False) -> Fit:
        """Return the fit to all rows so far."""
        state, started = self._begun, time.perf_counter()
        if not self.n:
            raise DataError("the stream has no complete transition yet; add more rows")
        CopyWatch(state.roles, state.position.alike).check()
        if state.online is None:
            fit = estimate(self.shard, method=self.method, allow_unidentified=allow_unidentified)
            return _with_warning(replace(fit, choice=self._choice), state)
        settings, solution = settings_of(self.method), state.online.estimate(state.moments)
        if state.shard is None:
            return Fit(
                estimate=replace(solution, n=self.n),
                inference=None,
                counts=state.counts,
                roles=state.roles,
                label=LABEL,
                method=self.method.name,
                seconds=time.perf_counter() - started,
                settings=settings,
            )
        fit = estimate(
            state.shard, method=_Reached(solution), allow_unidentified=allow_unidentified
        )
        return _with_warning(replace(fit, settings=settings), state)

    @property
    def counts(self) -> Counts:
        """Rows, transitions, episodes and what was dropped; rows that wait have no next state."""
        return self._begun.counts

    @property
    def shard(self) -> Shard:
        """The moments so far, to be saved, merged or fitted."""
        if (shard := self._begun.shard) is None:
            raise InputError("a stream with linear memory keeps no moments")
        return shard

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the state as one file, replacing the last one in one step."""
        if isinstance(self.method, SGDA) and not isinstance(self.method.schedule, str):
            raise InputError("a stream can be saved only if its schedule is given as a word")
        facts, arrays = self._begun.saved()
        facts |= {
            "method": self.method.name,
            "settings": settings_of(self.method),
            "columns": self._columns,
            "choice": None if self._choice is None else self._choice.to_json(),
        }
        save_file(path, KIND, facts, arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, trust: Trust = ()) -> Stream:
        """Load a saved stream to continue it; a user's features from the packages in `trust`."""
        facts, arrays = load_file(path, KIND)
        try:
            method = restore_method(facts["method"], facts["settings"])
            with trusting(path, trust):
                state = StreamState.restore(method, facts, arrays)
            maps = state.design.phi, state.design.psi
            stream = cls(*maps, method=method, **facts["columns"])
            stream._choice = restored(facts.get("choice"))
        except (KeyError, TypeError, AttributeError) as error:
            raise FileError(f"{path} is not a complete stream: {error}") from error
        stream._state = state
        return stream

    @property
    def _begun(self) -> StreamState:
        if self._state is None:
            raise DataError("the stream is empty; add rows first")
        return self._state

    @property
    def _by_episode(self) -> bool:
        return isinstance(self.method, SGDA) and self.method.rows_of_batch is None

    def _open(self, rows: Any) -> Log:
        """Open a delivery; the columns of the first serve for all."""
        if self._state is None:
            return read_logs(rows, **self._columns)
        drop = bool(self._columns.get("drop_missing", False))
        return open_like(rows, self._state.roles, drop_missing=drop)

    def _beginning_with_log(self, log: Log) -> StreamState:
        if self._state is None:
            phi, psi = self._features(log, log.roles)
            design = build_design(log, phi, psi, self._seed)
            self._state = StreamState.begin(self.method, design, log.roles)
        return self._state

    def _beginning_with_batch(self, batch: Batch) -> StreamState:
        if self._state is None:
            roles = _roles_of(batch)
            phi, psi = self._features(batch, roles)
            design = fitted_design(roles, lambda: batch, phi, psi, self._seed)
            self._state = StreamState.begin(self.method, design, roles)
        return self._state

    def _features(self, rows: Log | Batch, roles: Roles) -> Any:
        """Return phi and psi, chosen by the first delivery where the data are to choose."""
        if not is_auto(self._phi, self._psi):
            return self._phi, self._psi
        chosen = choose(rows, roles, self.method)
        self.method, self._choice = chosen.method or self.method, chosen.choice
        return chosen.phi, chosen.psi


@dataclass(frozen=True, slots=True)
class _Reached:
    """The estimate that descent-ascent has reached, as a method whose work is done."""

    needs_rows: ClassVar[bool] = SGDA.needs_rows
    has_robust_intervals: ClassVar[bool] = SGDA.has_robust_intervals
    one_solution: ClassVar[bool] = SGDA.one_solution
    uses_instruments: ClassVar[bool] = SGDA.uses_instruments
    estimate: Estimate
    name: str = "sgda"

    def solve(
        self, moments: Moments, log: Log | None = None, checkpoint: Checkpoint | None = None
    ) -> Estimate:
        return self.estimate


def _with_warning(fit: Fit, state: StreamState) -> Fit:
    """Warn where episodes of several rows are too many to keep, so that errors ignore them."""
    several = state.counts.transitions > state.counts.episodes
    if fit.inference is None or fit.estimate.W_cov.clusters or not several:
        return fit
    if state.roles.episode is None or state.by_episode or fit.errors.warning:
        return fit
    text = (
        f"{state.counts.episodes:,} episodes are too many for a stream to keep their moments: the "
        "standard errors are unadjusted, and may be too small; fit the rows with ivvi.estimate"
    )
    warnings.warn(text, IvviWarning, stacklevel=3)
    errors = replace(fit.inference.errors, warning=text)
    return replace(fit, inference=replace(fit.inference, errors=errors))


def _roles_of(batch: Batch) -> Roles:
    """Name the columns of a batch: x0.., a0.., z0.., next_x0.. ."""
    widths = {"x": batch.x, "a": batch.a, "z": batch.z, "next_x": batch.y}
    x, a, z, y = (tuple(f"{n}{i}" for i in range(v.shape[1])) for n, v in widths.items())
    return Roles(x, a, z, y, reward=None, episode=None, step=None, weight=None)
