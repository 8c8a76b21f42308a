"""A pass over a Parquet log by the workers of a Dask cluster, local or already running.

The log is cut between row groups. Each task walks over one piece and returns the result for its
batches, with its first and last row; where a next state is in the next piece, these two rows are
joined here. Results come in the order of the log, whichever task finishes first. A task whose
worker dies is given to another worker by Dask.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from ivvi._io.arrays import Ints
from ivvi._io.memory import check_memory
from ivvi._io.result import Compact
from ivvi.errors import DataError, InputError, LargeError, MissingError
from ivvi.logs.batch import Batch
from ivvi.logs.data_checks import CopyWatch, large_error, missing_error
from ivvi.logs.log import Log, batch_rows, check_finished
from ivvi.logs.scan_position import Position
from ivvi.logs.schema import Roles
from ivvi.logs.sorting import check_no_duplicates, is_ordered, ordered_ends
from ivvi.logs.tables.arrow import Numbers, as_arrow
from ivvi.logs.tables.table import ArrowTable, BatchSource, in_parquet, order_columns
from ivvi.logs.transitions import Transitions

PATIENCE = 5.0
"""Seconds to wait for a scheduler's answer."""
WORKER = 1 << 27
"""Memory of a worker before it reads a row, in bytes."""
LOCAL: dict[str, Any] = {
    "threads_per_worker": 1,
    "dashboard_address": ":0",  # any free port: 8787 may be another cluster's
    "scheduler_kwargs": {"dashboard": False},
    "silence_logs": logging.CRITICAL,
}
"""Settings of the local clusters that ivvi starts and stops."""

DaskCluster = Any
"""A number of local processes, the address of a scheduler, or a `distributed.Client`."""


@contextlib.contextmanager
def connected(cluster: DaskCluster) -> Iterator[Any]:
    """Yield a `distributed.Client`; local processes are started and stopped."""
    try:
        from distributed import Client, LocalCluster
    except ImportError as error:
        raise InputError("Dask is not installed; run pip install 'ivvi[dask]'") from error
    if isinstance(cluster, Client):
        yield cluster
    elif isinstance(cluster, int):
        if cluster < 1:
            raise InputError(f"{cluster} workers were asked for; expected at least 1")
        check_memory(cluster * WORKER, f"{cluster:,} worker processes")
        with LocalCluster(n_workers=cluster, **LOCAL) as local, Client(local) as client:
            yield client
    else:
        with _reached(Client, str(cluster)) as client:
            if not client.nthreads():
                raise InputError(f"the Dask scheduler at {cluster} has no workers; start some")
            yield client


def _reached(client: Any, address: str) -> Any:
    try:
        return client(address, timeout=PATIENCE)
    except (OSError, ValueError, TypeError, RuntimeError, ImportError) as error:
        raise InputError(
            f"no Dask scheduler answers at {address}; expected an address such as tcp://host:8786"
        ) from error


PartValues = tuple[tuple[Any, ...], ...]
PIECE_ROWS = 1 << 17
"""Smallest number of rows in a piece; row groups are never split."""
AHEAD = 4
"""Pieces in progress per thread of the cluster; this limits how many results wait in memory."""


class ClusterPass:
    """One pass over a log by a cluster: iterate it once, then ask for its `counts`.

    Yields, in the order of the log, what `fold` makes of the batches of each piece, and which
    numbers its episodes and clusters have in the whole log.

    Parameters
    ----------
    client
        A `distributed.Client`.
    log
        A log in Parquet files that the workers can read too.
    fold
        Turns the batches of a piece into a result; it runs on a worker.
    episodes
        Fill `Batch.episode`.
    """

    def __init__(
        self,
        client: Any,
        log: Log,
        fold: Callable[[Iterable[Batch]], Any],
        episodes: bool = False,
    ) -> None:
        self.counts = replace(log.removed)
        self._client, self._log, self._fold = client, log, fold
        self._episodes = episodes
        self._pieces = _cut(log)
        self._last: pa.RecordBatch | None = None
        self._numbers = Numbers()
        self._clusters = tuple(Numbers() for _ in log.roles.cluster)
        self._watch, self._weight = CopyWatch(log.roles), 0.0

    def __iter__(self) -> Iterator[tuple[Any, PieceNumbers]]:
        ordered = self._is_ordered()
        log = self._log
        settings = _Settings(log.roles, ordered, log.drop_missing, self._episodes)
        parts = self._in_order(partial(_walk, settings, self._fold), self._pieces)
        for piece, part in zip(self._pieces, parts, strict=True):
            number = self.counts.episodes - 1
            for batch, clusters in self._border(settings, part.first):
                self._look(batch)
                yield self._fold([batch]), self._numbered(np.array([number]), clusters)
            numbers = self._add(part, ordered=ordered)
            if part.result is not None:
                yield part.result, self._numbered(numbers, part.clusters)
            if log.progress:
                log.progress(piece.num_rows or 0)
        if log.roles.derived:
            self.counts.without_next = (
                self.counts.rows - self.counts.missing - self.counts.transitions
            )
        check_finished(log, Position(self.counts, None, (), self._watch.alike, self._weight))

    @property
    def clusters(self) -> PartValues:
        """The values of each cluster column so far, in the order of their numbers."""
        return tuple(numbers.values for numbers in self._clusters)

    def _is_ordered(self) -> bool:
        """Whether rows come by (episode, step); refuse a log that needs this and is not sorted."""
        log, roles = self._log, self._log.roles
        if roles.episode is None or roles.step is None:
            return False
        keys = (*order_columns(log.table, roles.episode), roles.step)
        look = partial(ordered_ends, keys=keys)
        ends = list(self._in_order(look, self._pieces))
        if all(end is not None for end in ends):
            rows = [row for end in ends for row in end]
            if not rows or is_ordered(_table(rows, log.label), keys):
                return True
        if roles.derived:
            raise DataError(
                f"{log.label} is not sorted by ({roles.episode}, {roles.step}), as several "
                "processes need; sort it first, or fit it in one process"
            )
        check_no_duplicates(log.table, roles.keys)
        return False

    def _in_order(
        self, work: Callable[[BatchSource], Any], pieces: list[BatchSource]
    ) -> Iterator[Any]:
        """Yield `work` of each piece in order, a bounded number of them under way."""
        from distributed import CancelledError, KilledWorker

        ahead = AHEAD * max(1, sum(self._client.nthreads().values()))
        futures = [self._client.submit(work, piece, pure=False) for piece in pieces[:ahead]]
        try:
            for i in range(len(pieces)):
                yield futures[i].result()
                futures[i].release()
                if i + ahead < len(pieces):
                    futures.append(self._client.submit(work, pieces[i + ahead], pure=False))
        except KilledWorker as error:
            raise InputError(
                f"workers keep dying on piece {i} of {len(pieces)} of {self._log.label}; "
                "give each worker more memory"
            ) from error
        except MissingError as error:  # one piece has told of itself alone
            raise missing_error(self._log.table, self._log.roles) from error
        except LargeError as error:
            raise large_error(self._log.table, self._log.roles) from error
        except CancelledError as error:
            raise InputError(
                "the connection to the Dask scheduler was lost before the work was done"
            ) from error
        finally:
            self._client.cancel(futures)

    def _border(
        self, settings: _Settings, first: pa.RecordBatch | None
    ) -> Iterator[tuple[Batch, PartValues]]:
        """Join the last row so far with the first row of the next piece."""
        if self._log.roles.derived and self._last is not None and first is not None:
            walk = settings.transitions(_table([self._last, first], self._log.label))
            for batch in walk:
                yield batch, walk.clusters

    def _numbered(self, episodes: Ints, clusters: PartValues) -> PieceNumbers:
        """Look up the clusters of a piece in those of the whole log."""
        pairs = zip(self._clusters, clusters, strict=True)
        return PieceNumbers(episodes, tuple(column.of_values(values) for column, values in pairs))

    def _add(self, part: _PieceResult, *, ordered: bool) -> Ints:
        """Count a piece; returns the numbers of its episodes in the whole log."""
        name, own, counts = self._log.roles.episode, part.end.counts, self.counts
        if name is not None and not ordered:
            numbers = self._numbers.of_values(part.end.numbers)
            counts.episodes = len(self._numbers)
        else:
            goes_on = (
                name is not None
                and self._last is not None
                and part.first is not None
                and self._last.column(name)[0] == part.first.column(name)[0]
            )
            numbers = np.arange(own.episodes) + counts.episodes - goes_on
            counts.episodes += own.episodes - goes_on
        counts.rows += own.rows
        counts.missing += own.missing
        counts.ended += own.ended
        counts.transitions += own.transitions
        self._weight += part.end.weight
        self._watch = CopyWatch(
            self._log.roles, [pair for pair in self._watch.alike if pair in part.end.alike]
        )
        self._last = part.end.carry if part.end.carry is not None else self._last
        return numbers

    def _look(self, batch: Batch) -> None:
        self.counts.transitions += len(batch)
        self._weight += _weight(batch)
        self._watch.look(batch)


@dataclass(frozen=True, slots=True, repr=False)
class PieceNumbers(Compact):
    """What a piece calls 0, 1, ... and its number in the whole log: episodes (E,), clusters.

    `clusters` has an array (C,) for each cluster column.
    """

    episodes: Ints
    clusters: tuple[Ints, ...]


@dataclass(frozen=True, slots=True)
class _Settings:
    """How the rows of a piece become transitions; see `Transitions`."""

    roles: Roles
    ordered: bool
    drop_missing: bool
    episodes: bool

    def transitions(self, table: BatchSource) -> Transitions:
        """Start a walk."""
        return Transitions(
            table,
            self.roles,
            source=table,
            size=batch_rows(self.roles),
            ordered=self.ordered,
            drop_missing=self.drop_missing,
            episodes=self.episodes,
        )


@dataclass(frozen=True, slots=True)
class _PieceResult:
    """What a task returns: the folded batches, the first row, and where the walk ended.

    `clusters` are the values of each cluster column in the order of their numbers.
    """

    result: Any
    first: pa.RecordBatch | None
    clusters: PartValues
    end: Position


def _walk(
    settings: _Settings, fold: Callable[[Iterable[Batch]], Any], piece: BatchSource
) -> _PieceResult:
    """Walk over one piece, on a worker."""
    walk, watch, weight = settings.transitions(piece), CopyWatch(settings.roles), 0.0

    def batches() -> Iterator[Batch]:
        nonlocal weight
        for batch in walk:
            watch.look(batch)
            weight += _weight(batch)
            yield batch

    result = fold(batches())
    end = walk.position(watch.alike, weight)
    carry = replace(end, carry=_copied(end.carry))
    return _PieceResult(result, _copied(walk.first), walk.clusters, carry)


def _cut(log: Log) -> list[BatchSource]:
    table: Any = log.table
    if not in_parquet(table):
        raise InputError(
            f"only Parquet files can be shared among processes; {log.label} is not one"
        )
    return list(table.pieces(PIECE_ROWS))


def _table(rows: list[pa.RecordBatch], label: str) -> ArrowTable:
    return ArrowTable(pa.Table.from_batches(rows), label)


def _copied(row: pa.RecordBatch | None) -> pa.RecordBatch | None:
    """Return a row that does not keep its whole batch alive."""
    return None if row is None else row.take(as_arrow(np.zeros(1, np.int64)))


def _weight(batch: Batch) -> float:
    return len(batch) if batch.weight is None else float(batch.weight.sum())
