"""One more pass over the rows: the variance of residuals times instruments.

After the moments have given W, each row has a residual e = R v and whitened instruments
psi~ = (v - shift) T. `score` adds up their products for several such pairs at once, from
the rows of a log or, clustered by episode, from per-episode moments that are held.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ivvi._io.arrays import Floats
from ivvi._io.result import Compact
from ivvi.estimators.covariance.clusters import cluster_products
from ivvi.estimators.covariance.meat import ClusterMeat, Piece
from ivvi.estimators.covariance.score_rows import Score, sum_rows, sum_rows_on
from ivvi.estimators.covariance.standard_errors_for_log import Resolved
from ivvi.estimators.covariance.weight_covariance import MOST_JOINT
from ivvi.logs import Log
from ivvi.moments import EpisodeMoments, Moments

PIECES_OF_TWO_WAYS = 3
MOST_WORK = 2e10
"""With at most this many products of scores, the covariance between outputs is computed."""


@dataclass(frozen=True, slots=True, repr=False)
class Scored(Compact):
    """Omega, the variance of n^-1/2 sum e (x) psi~, of one `Score`.

    The pieces of clusters by several columns are those by each column, then by their combinations.
    `guarded` counts what rows of a cluster share only where it adds to the variance of single rows
    (of pairs of clusters), V_both: of V_one + V_two - V_both each V - V_both is cut at zero.
    Effects of episodes sum to zero over the episodes of every step, by the constant, so that
    V_two misses them and V_both does not: the difference would be too small. The sum is at least
    as large as either variance alone, as MacKinnon, Nielsen and Webb (2024) advise.
    `lost` are the degrees of freedom of absorbed effects. What different clusters of the first
    column share by the others counts `inflation` times.
    """

    pieces: tuple[Piece, ...]
    d_e: int
    rank: int
    n: int
    weight: float
    guarded: bool = False
    lost: int = 0
    inflation: float = 1.0

    def blocks(self, coefficients: int | None = None) -> Floats:
        """Omega of each residual, (d_e, r, r); corrected for so many coefficients if given.

        Of a diagonal score its diagonals, (d_e, r).
        """
        total = self._total(coefficients)
        if len(total) == self.d_e:
            return np.array(total)
        whole = total[0].reshape(self.d_e, self.rank, self.d_e, self.rank)
        return np.array([whole[i, :, i] for i in range(self.d_e)])

    def joint(self, coefficients: int | None = None) -> Floats | None:
        """Omega of all residuals together, (d_e r, d_e r); None where it was not asked for."""
        total = self._total(coefficients)
        return total[0] if len(total) == 1 else None

    def subset(self, i: int) -> Floats:
        """Omega of the i-th of the score's subsets of residuals, (s r, s r)."""
        return self._total(None, [i])[0]

    @property
    def clusters(self) -> tuple[int | None, ...]:
        """Number of clusters of each way of clustering."""
        return tuple(piece.clusters for piece in self.pieces[: self._ways])

    @property
    def _ways(self) -> int:
        """Number of columns that cluster: their combinations are 1, 3 or 7 pieces."""
        return len(self.pieces).bit_length()

    def _total(self, coefficients: int | None, which: Sequence[int] | None = None) -> list[Floats]:
        """Add up the pieces of all groups of residuals, or of some."""
        scale = self.n / self.weight**2
        factors = [
            scale * small_sample(piece.clusters, self.n, coefficients, self.lost)
            for piece in self.pieces
        ]
        which = range(len(self.pieces[0].groups)) if which is None else which
        return [
            combined(self.pieces, i, factors, guarded=self.guarded, inflation=self.inflation)
            for i in which
        ]


def small_sample(clusters: int | None, n: Any, coefficients: Any | None, lost: int = 0) -> Any:
    """Return the factor n / (n - d) of a sum over rows, G (n - 1) / ((G - 1) (n - d)) of clusters.

    One without the number d of `coefficients`; `lost` are further degrees of freedom. n and d may
    be arrays.
    """
    if coefficients is None:
        return 1.0
    rows = n - coefficients - lost
    return n / rows if clusters is None else clusters / (clusters - 1) * (n - 1) / rows


def combined(
    pieces: Sequence[Piece],
    group: int,
    factors: Sequence[Any],
    *,
    guarded: bool,
    inflation: float,
) -> Floats:
    """Return the variance of one group's sum, (k, k), from its sums by each way of clustering.

    Each is multiplied with its own of `factors`, numbers or (k, k). What `guarded` and `inflation`
    do is said at `Scored`.
    """
    parts = [f * piece.groups[group] for f, piece in zip(factors, pieces, strict=True)]
    if guarded and len(parts) == PIECES_OF_TWO_WAYS:
        by_first, by_second, by_pair = parts
        return _where_it_adds(by_first, by_second, by_pair, inflation)
    signed = [piece.sign * part for piece, part in zip(pieces, parts, strict=True)]
    signed[1:] = [inflation * part for part in signed[1:]]
    total: Floats = np.sum(signed, axis=0)
    return total


def _where_it_adds(
    by_first: Floats, by_second: Floats, by_pair: Floats, inflation: float
) -> Floats:
    """Return V_both + (V_one - V_both)+ + inflation (V_two - V_both)+."""
    scale = np.sqrt(np.diag(by_pair))
    unit = np.outer(*(2 * [np.where(scale > 0, scale, 1.0)]))
    added = [_positive((variance - by_pair) / unit) * unit for variance in (by_first, by_second)]
    return by_pair + added[0] + inflation * added[1]


def _positive(matrix: Floats) -> Floats:
    """Return the positive part of a symmetric matrix: negative eigenvalues become zero."""
    values, vectors = np.linalg.eigh(matrix)
    if values[0] >= 0:
        return matrix
    part: Floats = (vectors * np.maximum(values, 0.0)) @ vectors.T
    return part


def worth_joining(d_e: int, rank: int, count: int, *, requested: bool = False) -> bool:
    """Whether products of different residuals are kept, given the rows or clusters to add."""
    width = d_e * rank
    return requested or (width <= MOST_JOINT and width**2 * count <= MOST_WORK)


def score(
    scores: Mapping[str, Score],
    errors: Resolved,
    moments: Moments,
    log: Log | None = None,
    *,
    client: Any = None,
) -> dict[str, Scored]:
    """Add up the scores over the rows of `log`, or over the clusters that `moments` hold.

    With a Dask `client` its workers read the rows.
    """
    if not scores:
        return {}
    distinct = {id(one): one for one in scores.values()}
    pieces: dict[int, tuple[Piece, ...]]
    episode = None if log is None else log.roles.episode
    one_way = len(errors.clusters) == 1
    if holds_clusters(moments, errors, episode) and (one_way or log is None):
        by_cluster = [moments.clusters_by(column, episode) for column in errors.clusters]
        pieces = {
            key: tuple(_of_groups(one, blocks) for blocks in by_cluster if blocks is not None)
            for key, one in distinct.items()
        }
    elif log is not None:
        walk = sum_rows if client is None else partial(sum_rows_on, client)
        pieces = walk(distinct, errors, moments, log)
    else:
        raise ValueError("scores need a log, or moments with their episodes")
    scored = {
        key: Scored(
            *(pieces[key], len(one.R), one.space.rank, moments.n, moments.weight),
            *(errors.guarded, moments.lost(errors.clusters), errors.inflation),
        )
        for key, one in distinct.items()
    }
    return {name: scored[id(one)] for name, one in scores.items()}


def holds_clusters(moments: Moments, errors: Resolved, episode: str | None) -> bool:
    """Whether the moments hold those of each cluster, so that no rows are needed.

    Without the name of the `episode` column those that are kept by episode are taken for it. Of
    two-way clusters they hold both ways and not the pairs, which are then left in: the sum of
    both errs on the safe side.
    """
    if errors.kind != "clustered" or not errors.clusters:
        return False
    return all(moments.clusters_by(column, episode) is not None for column in errors.clusters)


def _of_groups(one: Score, blocks: EpisodeMoments) -> Piece:
    """Square the sums of each episode or cluster."""
    meat = ClusterMeat(one.groups, ordered=True)
    meat.add_sums(np.arange(len(blocks), dtype=np.int64), episode_scores(one, blocks))
    return meat.piece()


def episode_scores(one: Score, episodes: EpisodeMoments) -> Floats:
    """Return the sum over each episode or cluster, (E, d_e, r)."""
    return cluster_products(one.R, one.space, episodes)
