"""One more pass over the rows: the variance of residuals times instruments.

After the moments have given W, each row has a residual e = R v and whitened instruments
psi~ = (v - shift) T. `score` adds up their products for several such pairs at once, from
the rows of a log or, clustered by episode, from per-episode moments that are held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ivvi.estimators.covariance import MOST_JOINT
from ivvi.estimators.meat import ClusterMeat, HacMeat, Meat, Piece, RowMeat, kernel_weights
from ivvi.estimators.standard_errors import Resolved
from ivvi.estimators.whitening import Whitened
from ivvi.layout import Floats, Layout
from ivvi.logs import Batch, Log
from ivvi.moments import Moments, few_threads
from ivvi.runs import Ints

CHUNK_BYTES = 2 << 20
"""Size of the scores that are formed at once: about what the processor's cache holds."""
MOST_WORK = 2e10
"""Products of scores up to which the covariance between outputs is worth its time."""


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


@dataclass(frozen=True, slots=True)
class Scored:
    """Omega, the variance of n^-1/2 sum e (x) psi~, of one `Score`."""

    pieces: tuple[Piece, ...]
    d_e: int
    rank: int
    n: int
    weight: float

    def blocks(self, coefficients: int | None = None) -> Floats:
        """Omega of each residual, (d_e, r, r); corrected for so many coefficients if given."""
        total = self._total(coefficients)
        if len(total) == self.d_e:
            return np.array(total)
        whole = total[0].reshape(self.d_e, self.rank, self.d_e, self.rank)
        return np.array([whole[i, :, i] for i in range(self.d_e)])

    def joint(self, coefficients: int | None = None) -> Floats | None:
        """Omega of all residuals together, (d_e r, d_e r); None where it was not asked for."""
        total = self._total(coefficients)
        return total[0] if len(total) == 1 else None

    @property
    def clusters(self) -> tuple[int | None, ...]:
        """Number of clusters of each way of clustering."""
        return tuple(piece.clusters for piece in self.pieces[:2])

    def _total(self, coefficients: int | None) -> list[Floats]:
        scale = self.n / self.weight**2
        factors = [
            piece.sign * scale * self._correction(piece, coefficients) for piece in self.pieces
        ]
        groups = zip(*(piece.groups for piece in self.pieces), strict=True)
        return [
            np.sum([f * part for f, part in zip(factors, parts, strict=True)], axis=0)
            for parts in groups
        ]

    def _correction(self, piece: Piece, coefficients: int | None) -> float:
        if coefficients is None:
            return 1.0
        rows = self.n - coefficients
        if piece.clusters is None:
            return self.n / rows
        return piece.clusters / (piece.clusters - 1) * (self.n - 1) / rows


def worth_joining(d_e: int, rank: int, count: int, *, asked: bool = False) -> bool:
    """Whether products of different residuals are kept, given the rows or clusters to add."""
    width = d_e * rank
    return asked or (width <= MOST_JOINT and width**2 * count <= MOST_WORK)


def score(
    scores: Mapping[str, Score],
    errors: Resolved,
    moments: Moments,
    log: Log | None = None,
    *,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Scored]:
    """Add up the scores over the rows of `log`, or over the episodes of `moments`."""
    if not scores:
        return {}
    by_episode = log is not None and errors.clusters == (log.roles.episode,)
    distinct = {id(one): one for one in scores.values()}
    pieces: dict[int, tuple[Piece, ...]]
    if moments.episodes is not None and (log is None or by_episode):
        pieces = {key: (_of_episodes(one, moments),) for key, one in distinct.items()}
    elif log is not None:
        pieces = _of_rows(distinct, errors, moments, log, progress)
    else:
        raise ValueError("scores need a log, or moments with their episodes")
    found = {
        key: Scored(pieces[key], len(one.R), one.space.rank, moments.n, moments.weight)
        for key, one in distinct.items()
    }
    return {name: found[id(one)] for name, one in scores.items()}


def _of_episodes(one: Score, moments: Moments) -> Piece:
    """Square the sums of each episode: R Q_c T with Q_c its second moments about the shift."""
    held = moments.episodes
    if held is None:
        raise ValueError("the moments hold no episodes")
    offset = held.mean - one.space.shift
    linear = held.weight[:, None] * offset @ one.space.T
    sums = np.einsum("ep,cpq,qr->cer", one.R, held.scatter, one.space.T, optimize=True)
    sums += (offset @ one.R.T + one.R @ one.space.shift)[:, :, None] * linear[:, None, :]
    meat = ClusterMeat(one.groups, ordered=True)
    meat.add_sums(np.arange(len(held), dtype=np.int64), sums)
    return meat.piece()


def _of_rows(
    scores: Mapping[int, Score],
    errors: Resolved,
    moments: Moments,
    log: Log,
    progress: Callable[[int], None] | None,
) -> dict[int, tuple[Piece, ...]]:
    ways = [_meats(one, errors, log) for one in scores.values()]
    rows = _Rows(list(scores.values()), moments.layout)
    codes = _Codes(errors, log)
    with few_threads(moments.layout.width):
        for batch in log.batches(episodes=True, progress=progress):
            numbers = codes.of(batch)
            for part, values in rows.chunks(batch):
                for (E, Z), meats in zip(values, ways, strict=True):
                    for meat, code in zip(meats, numbers, strict=True):
                        meat.add(E, Z, code[part])
    signs = (1.0, 1.0, -1.0)
    return {
        key: tuple(_signed(meat.piece(), sign) for meat, sign in zip(meats, signs, strict=False))
        for key, meats in zip(scores, ways, strict=True)
    }


def _signed(piece: Piece, sign: float) -> Piece:
    return Piece(piece.groups, piece.clusters, sign)


def _meats(one: Score, errors: Resolved, log: Log) -> list[Meat]:
    """Return what the choice of standard errors adds up; two-way clusters are three sums."""
    if errors.kind == "robust":
        return [RowMeat(one.groups)]
    if errors.kind == "hac":
        return [HacMeat(one.groups, kernel_weights(errors.wanted.kernel, errors.bandwidth))]
    ordered = [log.ordered and column == log.roles.episode for column in errors.clusters]
    both = [False] if len(errors.clusters) == 2 else []
    return [ClusterMeat(one.groups, ordered=known) for known in ordered + both]


class _Codes:
    """The clusters (or the episode) of each row of a batch, one array for each way."""

    def __init__(self, errors: Resolved, log: Log) -> None:
        self._columns, self._roles = errors.clusters, log.roles
        self._pairs: dict[int, int] = {}

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
        return codes or [batch.episode]


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
