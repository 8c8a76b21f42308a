"""Adding up residuals times instruments over the rows of a log, in one process or in many."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ivvi.estimators.meat import ClusterMeat, HacMeat, Meat, Piece, RowMeat, kernel_weights
from ivvi.estimators.standard_errors import Resolved
from ivvi.estimators.whitening import Whitened
from ivvi.layout import Floats, Layout
from ivvi.logs import Batch, Log, Roles
from ivvi.moments import Moments, few_threads
from ivvi.runs import Ints

CHUNK_BYTES = 2 << 20
"""Size of the scores that are formed at once: about what the processor's cache holds."""


@dataclass(frozen=True, slots=True)
class Score:
    """Residuals e = R v, R (d_e, p), times the coordinates of `space`, (r,)."""

    R: Floats
    space: Whitened
    joint: bool = False

    @property
    def width(self) -> int:
        """Number of products of a row."""
        return len(self.R) * self.space.rank

    @property
    def groups(self) -> tuple[slice, ...]:
        """Residuals whose products are squared together."""
        count = len(self.R)
        return (slice(count),) if self.joint else tuple(slice(i, i + 1) for i in range(count))


def sum_rows(
    scores: Mapping[int, Score],
    errors: Resolved,
    moments: Moments,
    log: Log,
    progress: Callable[[int], None] | None,
) -> dict[int, tuple[Piece, ...]]:
    """Add up in one pass over the log, by one process."""
    ways = [_meats(one, errors, log.ordered, log.roles) for one in scores.values()]
    with few_threads(moments.layout.width):
        batches = log.batches(episodes=True, progress=progress)
        _add(batches, list(scores.values()), ways, errors, log.roles, moments.layout)
    signs = (1.0, 1.0, -1.0)
    return {
        key: tuple(_signed(meat.piece(), sign) for meat, sign in zip(meats, signs, strict=False))
        for key, meats in zip(scores, ways, strict=True)
    }


def _add(
    batches: Iterable[Batch],
    scores: Sequence[Score],
    ways: Sequence[Sequence[Meat]],
    errors: Resolved,
    roles: Roles,
    layout: Layout,
) -> None:
    """Add batches to the meats of each score."""
    rows, codes = _Rows(scores, layout), _Codes(errors, roles)
    for batch in batches:
        numbers = codes.of(batch)
        for part, values in rows.chunks(batch):
            for (E, Z), meats in zip(values, ways, strict=True):
                for meat, code in zip(meats, numbers, strict=True):
                    meat.add(E, Z, code[part])


def sum_rows_on(
    client: Any,
    scores: Mapping[int, Score],
    errors: Resolved,
    moments: Moments,
    log: Log,
    progress: Callable[[int], None] | None,
) -> dict[int, tuple[Piece, ...]]:
    """Let the workers of a Dask cluster add up pieces of the log, and merge them in order."""
    from ivvi.logs.clients import connected
    from ivvi.logs.cluster import ClusterPass

    wanted = list(scores.values())
    totals = [_meats(one, errors, log.ordered, log.roles)[0] for one in wanted]
    fold = partial(_fold, wanted, errors, log.ordered, log.roles, moments.layout)
    with connected(client) as reached:
        for parts, numbers in ClusterPass(reached, log, fold, True, progress):
            for total, part in zip(totals, parts, strict=True):
                total.merge(part, numbers)
    return {key: (total.piece(),) for key, total in zip(scores, totals, strict=True)}


def _fold(
    scores: Sequence[Score],
    errors: Resolved,
    ordered: bool,
    roles: Roles,
    layout: Layout,
    batches: Iterable[Batch],
) -> list[Any]:
    """Return the parts of some batches, on a worker."""
    ways = [_meats(one, errors, ordered, roles, inside=True) for one in scores]
    with few_threads(0):
        _add(batches, scores, ways, errors, roles, layout)
    return [meats[0].part() for meats in ways]


def _signed(piece: Piece, sign: float) -> Piece:
    return Piece(piece.groups, piece.clusters, sign)


def _meats(
    one: Score, errors: Resolved, ordered: bool, roles: Roles, *, inside: bool = False
) -> list[Any]:
    """Return what the choice of standard errors adds up; two-way clusters are three sums."""
    if errors.kind == "robust":
        return [RowMeat(one.groups)]
    if errors.kind == "hac":
        return [HacMeat(one.groups, kernel_weights(errors.wanted.kernel, errors.bandwidth))]
    together = [ordered and column == roles.episode for column in errors.clusters]
    both = [False] if len(errors.clusters) == 2 else []
    return [ClusterMeat(one.groups, ordered=known, inside=inside) for known in together + both]


class _Codes:
    """The clusters (or the stretch of steps) of each row of a batch, one array for each way."""

    def __init__(self, errors: Resolved, roles: Roles) -> None:
        self._columns, self._roles = errors.clusters, roles
        self._pairs: dict[int, int] = {}
        self._last = (-1, 0.0, -1)  # episode, step and stretch of the row before

    def of(self, batch: Batch) -> list[Ints]:
        """Return the codes of each way of clustering, (n,) each."""
        if batch.episode is None:
            raise ValueError("the batch was read without episodes")
        codes = [
            batch.episode
            if column == self._roles.episode
            else batch.clusters[self._roles.cluster.index(column)]
            for column in self._columns
        ]
        if len(codes) == 2:
            keys, inverse = np.unique((codes[0] << 32) + codes[1], return_inverse=True)
            known = [self._pairs.setdefault(key, len(self._pairs)) for key in keys.tolist()]
            codes.append(np.array(known, dtype=np.int64)[inverse])
        return codes or [self._stretches(batch.episode, batch.step)]

    def _stretches(self, episode: Ints, step: Any) -> Ints:
        """Number the runs of rows of one episode; where next states are derived, without gaps."""
        before, last_step, stretch = self._last
        broken = np.diff(episode, prepend=before) != 0
        if step is not None and self._roles.derived:
            broken |= np.diff(step.astype(float), prepend=last_step) != 1
            last_step = float(step[-1])
        numbers: Ints = stretch + np.cumsum(broken)
        self._last = int(episode[-1]), last_step, int(numbers[-1])
        return numbers


class _Rows:
    """Evaluates the residuals and coordinates of several scores with one product."""

    def __init__(self, scores: Sequence[Score], layout: Layout) -> None:
        self._layout, varying = layout, layout.varying
        constant = np.setdiff1d(np.arange(layout.width), varying)
        self._shift = scores[0].space.shift[varying]
        maps = np.vstack([part for one in scores for part in (one.R, one.space.T.T)])
        residual = np.concatenate(
            [np.repeat([1.0, 0.0], [len(one.R), one.space.rank]) for one in scores]
        )
        add = maps[:, constant].sum(axis=1) + residual * (maps[:, varying] @ self._shift)
        self._map = np.column_stack([maps[:, varying], add])
        sizes = [size for one in scores for size in (len(one.R), one.space.rank)]
        self._bounds = np.cumsum([0, *sizes]).tolist()
        widest = max(one.width if one.joint else one.space.rank for one in scores)
        self._chunk = max(256, CHUNK_BYTES // (8 * max(widest, 1)))
        self._centred = np.ones((len(varying) + 1, self._chunk))  # the last row stays one

    def chunks(self, batch: Batch) -> Iterator[tuple[Ints, list[tuple[Floats, Floats]]]]:
        """Yield the positions of some rows in the batch and, for each score, E and Z."""
        V, weight = self._layout.rows(batch).T, batch.weight
        used = np.arange(len(batch)) if weight is None else np.flatnonzero(weight)
        for start in range(0, len(used), self._chunk):
            part = used[start : start + self._chunk]
            some = V[:, part] if len(used) < len(batch) else V[:, start : start + self._chunk]
            centred = self._centred[:, : len(part)]
            np.subtract(some, self._shift[:, None], out=centred[:-1])
            values = self._map @ centred
            pairs = []
            for i in range(0, len(self._bounds) - 1, 2):
                E, Z = (values[self._bounds[j] : self._bounds[j + 1]] for j in (i, i + 1))
                pairs.append((E if weight is None else E * weight[part], Z))
            yield part, pairs
