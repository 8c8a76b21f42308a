"""Adding up residuals times instruments over the rows of a log, in one process or in many."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ivvi._io.arrays import Floats, Ints
from ivvi._io.result import Compact
from ivvi.estimators.covariance.clusters import Codes, combined_ways
from ivvi.estimators.covariance.meat import (
    ClusterMeat,
    HacMeat,
    Meat,
    Piece,
    RowGroup,
    RowMeat,
    Runs,
    SquareMeat,
    kernel_weights,
)
from ivvi.estimators.covariance.standard_errors_for_log import Resolved
from ivvi.estimators.whitening import Whitened
from ivvi.features.design import Design
from ivvi.logs import Batch, Log, Roles
from ivvi.moments import Moments, few_threads

CACHE_BYTES, LARGEST_CHUNK = 3 << 18, 1 << 21
"""Sizes of the scores that are formed at once: with their products these fill the processor's
cache, or, where that would be few rows, overflow it a little."""
FEW_ROWS, FEWEST_ROWS = 1024, 256
"""Rows of a chunk that are few for a product of matrices, and the fewest."""


@dataclass(frozen=True, slots=True, repr=False)
class Score(Compact):
    """Residuals e = R v, R (d_e, p), times the coordinates of `space`, (r,).

    Their products are squared one residual at a time, all together where `joint`, or by the
    `subsets` of residuals that are named. A `diagonal` score, for robust errors, needs only the
    variance of each product.
    """

    R: Floats
    space: Whitened
    joint: bool = False
    subsets: tuple[tuple[int, ...], ...] = ()
    diagonal: bool = False

    @property
    def width(self) -> int:
        """Largest number of products of a row that are squared together."""
        largest = max(map(len, self.subsets), default=1)
        return (len(self.R) if self.joint else largest) * self.space.rank

    @property
    def members(self) -> tuple[tuple[int, ...], ...]:
        """Residuals whose products are squared together."""
        count = len(self.R)
        if self.subsets:
            return self.subsets
        return (tuple(range(count)),) if self.joint else tuple((i,) for i in range(count))

    @property
    def groups(self) -> tuple[RowGroup, ...]:
        """The same as indices; without a copy where they follow each other."""
        return tuple(
            slice(one[0], one[-1] + 1) if one == tuple(range(one[0], one[-1] + 1)) else list(one)
            for one in self.members
        )


@dataclass(frozen=True, slots=True)
class _Stack:
    """Scores of the same coordinates as one `score`, and how many groups each of them has."""

    score: Score
    sizes: dict[int, int]

    @classmethod
    def of(cls, scores: Mapping[int, Score]) -> _Stack:
        """Put the residuals below each other."""
        groups, row = [], 0
        for score in scores.values():
            groups += [tuple(row + i for i in group) for group in score.members]
            row += len(score.R)
        first = next(iter(scores.values()))
        stacked = replace(first, R=np.vstack([score.R for score in scores.values()]), joint=False)
        sizes = {key: len(score.members) for key, score in scores.items()}
        return cls(replace(stacked, subsets=tuple(groups)), sizes)

    def parted(self, pieces: Sequence[Piece]) -> dict[int, tuple[Piece, ...]]:
        """Give each score the sums of its own groups."""
        ends = np.cumsum(list(self.sizes.values())).tolist()
        return {
            key: tuple(replace(piece, groups=piece.groups[end - size : end]) for piece in pieces)
            for (key, size), end in zip(self.sizes.items(), ends, strict=True)
        }


def _stacked(scores: Mapping[int, Score]) -> list[_Stack]:
    """Join scores of the same coordinates, which are then evaluated and multiplied once."""
    groups: list[dict[int, Score]] = []
    for key, score in scores.items():
        same_space = (group for group in groups if _stackable(next(iter(group.values())), score))
        if (group := next(same_space, None)) is None:
            groups.append(group := {})
        group[key] = score
    return [_Stack.of(group) for group in groups]


def _stackable(one: Score, other: Score) -> bool:
    """Whether two scores have the same coordinates, and are squared in the same way."""
    same_space = np.array_equal(one.space.to_white, other.space.to_white)
    same_space &= np.array_equal(one.space.shift, other.space.shift)
    return same_space and one.diagonal == other.diagonal


def sum_rows(
    scores: Mapping[int, Score],
    errors: Resolved,
    moments: Moments,
    log: Log,
) -> dict[int, tuple[Piece, ...]]:
    """Add up in one pass over the log, by one process."""
    stacks = _stacked(scores)
    stacked = [stack.score for stack in stacks]
    meats_by_stack = [_meats(one, errors, log.ordered, log.roles) for one in stacked]
    with few_threads(moments.design.width):
        batches = log.batches(episodes=errors.kind != "robust", replay=True)
        _add(batches, stacked, meats_by_stack, errors, log.roles, moments.design)
    return _pieces(stacks, meats_by_stack)


def _add(
    batches: Iterable[Batch],
    scores: Sequence[Score],
    meats_by_stack: Sequence[Sequence[Meat]],
    errors: Resolved,
    roles: Roles,
    design: Design,
) -> Codes:
    """Add batches to the meats of each score; returns the codes of their rows."""
    rows, codes = _ScoreRows(scores, design, lags=errors.kind == "hac"), Codes(errors, roles)
    for batch in batches:
        numbers = codes.of(batch)
        for part, values in rows.chunks(batch):
            runs = [Runs(code[part]) for code in numbers]
            for (resid, white), meats in zip(values, meats_by_stack, strict=True):
                for meat, together in zip(meats, runs, strict=True):
                    meat.add(resid, white, together)
    return codes


def sum_rows_on(
    client: Any,
    scores: Mapping[int, Score],
    errors: Resolved,
    moments: Moments,
    log: Log,
) -> dict[int, tuple[Piece, ...]]:
    """Add up pieces of the log on the workers of a Dask cluster, and merge them in order."""
    from ivvi.logs.dask import ClusterPass, connected

    stacks = _stacked(scores)
    stacked = [stack.score for stack in stacks]
    meats_by_stack = [_meats(one, errors, log.ordered, log.roles) for one in stacked]
    codes = Codes(errors, log.roles)
    fold = partial(_fold, stacked, errors, log.ordered, log.roles, moments.design)
    with connected(client) as reached:
        for (parts, piece_codes), numbers in ClusterPass(reached, log, fold, True):
            renumber = codes.merge(piece_codes, numbers.episodes, numbers.clusters)
            for meats, own in zip(meats_by_stack, parts, strict=True):
                for meat, part, renumber_one in zip(meats, own, renumber, strict=True):
                    meat.merge(part, renumber_one)
    return _pieces(stacks, meats_by_stack)


def _fold(
    scores: Sequence[Score],
    errors: Resolved,
    ordered: bool,
    roles: Roles,
    design: Design,
    batches: Iterable[Batch],
) -> tuple[list[list[Any]], Codes]:
    """Return the parts of some batches, and their codes, on a worker."""
    meats_by_stack = [_meats(one, errors, ordered, roles, inside=True) for one in scores]
    with few_threads(0):
        codes = _add(batches, scores, meats_by_stack, errors, roles, design)
    return [[meat.part() for meat in meats] for meats in meats_by_stack], codes


def _pieces(
    stacks: Sequence[_Stack], meats_by_stack: Sequence[Sequence[Meat]]
) -> dict[int, tuple[Piece, ...]]:
    """Return the sums of each score."""
    pieces: dict[int, tuple[Piece, ...]] = {}
    for stack, meats in zip(stacks, meats_by_stack, strict=True):
        pieces |= stack.parted(signed_pieces(meats))
    return pieces


def signed_pieces(meats: Sequence[Meat]) -> tuple[Piece, ...]:
    """Return the sums of the meats of `meats_of`; two-way clusters are two sums less a third."""
    ways = combined_ways(len(meats).bit_length())
    signs = [(-1.0) ** (len(columns) - 1) for columns in ways]
    return tuple(replace(meat.piece(), sign=sign) for meat, sign in zip(meats, signs, strict=True))


def _meats(
    score: Score, errors: Resolved, ordered: bool, roles: Roles, *, inside: bool = False
) -> list[Any]:
    """Return the accumulators of the chosen standard errors for a score."""
    if errors.kind == "robust" and score.diagonal:
        return [SquareMeat(len(score.R))]
    return meats_of(score.groups, errors, ordered, roles, inside=inside)


def meats_of(
    groups: Sequence[RowGroup],
    errors: Resolved,
    ordered: bool,
    roles: Roles,
    *,
    inside: bool = False,
) -> list[Any]:
    """Return the accumulators of the chosen standard errors: one sum for each combined cluster.

    Rows are added with the codes of `clusters.Codes`, one array for each of them.
    """
    if errors.kind == "robust":
        return [RowMeat(groups)]
    if errors.kind == "hac":
        return [HacMeat(groups, kernel_weights(errors.requested.kernel, errors.bandwidth))]
    together = [
        ordered and [errors.clusters[i] for i in ways] == [roles.episode]
        for ways in combined_ways(len(errors.clusters))
    ]
    return [ClusterMeat(groups, ordered=in_runs, inside=inside) for in_runs in together]


class _ScoreRows:
    """Evaluates the residuals and coordinates of several scores with one product.

    Rows of weight zero are left out, so that none of them makes a cluster; where `lags`
    count, they stay in their place.
    """

    def __init__(self, scores: Sequence[Score], design: Design, *, lags: bool) -> None:
        self._layout, self._lags, varying = design, lags, design.varying
        constant = np.setdiff1d(np.arange(design.width), varying)
        self._shift = scores[0].space.shift[varying]
        maps = np.vstack([part for one in scores for part in (one.R, one.space.to_white.T)])
        residual = np.concatenate(
            [np.repeat([1.0, 0.0], [len(one.R), one.space.rank]) for one in scores]
        )
        add = maps[:, constant].sum(axis=1) + residual * (maps[:, varying] @ self._shift)
        self._map = np.column_stack([maps[:, varying], add])
        sizes = [size for one in scores for size in (len(one.R), one.space.rank)]
        self._bounds = np.cumsum([0, *sizes]).tolist()
        widest = max(one.width for one in scores)
        fitting, largest = (size // (8 * max(widest, 1)) for size in (CACHE_BYTES, LARGEST_CHUNK))
        self._chunk = max(fitting, min(largest, FEW_ROWS), FEWEST_ROWS)
        self._centred = np.ones((len(varying) + 1, self._chunk))  # the last row stays one
        self._values = np.empty((len(maps), self._chunk))

    def chunks(self, batch: Batch) -> Iterator[tuple[slice | Ints, list[tuple[Floats, Floats]]]]:
        """Yield the positions of some rows in the batch and, for each score, resid and white.

        The next rows overwrite these.
        """
        V, weight = self._layout.rows(batch).T, batch.weight
        used = None
        if weight is not None and not self._lags and not weight.all():
            used = np.flatnonzero(weight)
        for start in range(0, len(batch) if used is None else len(used), self._chunk):
            part: slice | Ints = slice(start, start + self._chunk)
            if used is not None:
                part = used[part]
            columns = V[:, part]
            centred = self._centred[:, : columns.shape[1]]
            np.subtract(columns, self._shift[:, None], out=centred[:-1])
            values = np.matmul(self._map, centred, out=self._values[:, : columns.shape[1]])
            pairs = []
            for i in range(0, len(self._bounds) - 1, 2):
                resid, white = (values[self._bounds[j] : self._bounds[j + 1]] for j in (i, i + 1))
                pairs.append((resid if weight is None else resid * weight[part], white))
            yield part, pairs
