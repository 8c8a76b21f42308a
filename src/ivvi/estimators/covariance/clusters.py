"""Clusters: numbering rows by them, their moments, and their effective number."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ivvi._io.arrays import Floats, Ints
from ivvi.estimators.covariance.standard_errors_for_log import Resolved
from ivvi.estimators.covariance.step_dependence import correlations
from ivvi.estimators.estimate import Estimate
from ivvi.estimators.whitening import Whitened, whiten
from ivvi.logs import Batch, Roles
from ivvi.moments import EpisodeMoments, GroupSums, Moments

HALF = 32
"""Bits of a key of a pair that hold the second number."""


class Codes:
    """The clusters (or the stretch of steps) of each row, one array for each way to cluster.

    Clusters are numbers (n,). A stretch is a run of steps without a gap: rows whose episodes
    and whose steps less their place in the log, (n, 2), are equal. Where every row stands for
    itself there is nothing to know, (n, 0).
    """

    def __init__(self, errors: Resolved, roles: Roles) -> None:
        self._columns, self._roles, self._kind = errors.clusters, roles, errors.kind
        self._numbers: dict[tuple[int, ...], dict[int, int]] = {
            ways: {} for ways in combined_ways(len(errors.clusters)) if len(ways) > 1
        }
        self._rows = 0

    def of(self, batch: Batch) -> list[Ints]:
        """Return the codes of a batch's rows for each way of clustering."""
        first, self._rows = self._rows, self._rows + len(batch)
        if self._kind == "robust":
            return [np.empty((len(batch), 0), dtype=np.int64)]
        if batch.episode is None:
            raise ValueError("the batch was read without episodes")
        by_ways = self._alone(batch.episode, batch.clusters)
        for ways, numbers in self._numbers.items():
            joined = _keys(by_ways[ways[:-1]], by_ways[ways[-1:]])
            keys, inverse = np.unique(joined, return_inverse=True)
            by_ways[ways] = _numbered(numbers, keys)[inverse]
        if self._kind == "hac":
            place = np.arange(first, self._rows)
            return [self._stretches(batch.episode, batch.step, place)]
        return list(by_ways.values())

    def merge(self, part: Codes, episodes: Ints, clusters: Sequence[Ints]) -> list[Any]:
        """Add the codes of the next piece of the log; return functions that renumber each of them.

        What the piece calls 0, 1, ... are `episodes` and `clusters` in the whole log.
        """
        shift = self._rows if self._roles.derived else 0
        self._rows += part._rows
        renumbered = self._alone(episodes, clusters)
        if not renumbered:
            return [lambda codes: np.column_stack([episodes[codes[:, 0]], codes[:, 1] - shift])]
        for ways, own in self._numbers.items():
            keys = np.array(list(part._numbers[ways]), dtype=np.int64)
            one, two = keys >> HALF, keys & ((1 << HALF) - 1)
            renumbered[ways] = _numbered(
                own, _keys(renumbered[ways[:-1]][one], renumbered[ways[-1:]][two])
            )
        return [partial(np.take, numbers) for numbers in renumbered.values()]

    def _alone(self, episode: Ints, clusters: Sequence[Ints]) -> dict[tuple[int, ...], Ints]:
        """Return the codes of each cluster column, by the tuple of its number."""
        roles = self._roles
        return {
            (i,): episode if column == roles.episode else clusters[roles.cluster.index(column)]
            for i, column in enumerate(self._columns)
        }

    def _stretches(self, episode: Ints, step: Any, place: Ints) -> Ints:
        """Number stretches of steps; if next states are not derived, gaps do not separate them."""
        derived = self._roles.derived
        offset = np.asarray(step).astype(np.int64) - place if derived else np.zeros_like(episode)
        return np.column_stack([episode, offset])


def combined_ways(count: int) -> list[tuple[int, ...]]:
    """Return every combination of `count` columns: each alone, the pairs, all three.

    The variance is the sum over single columns, less that over pairs, plus that over triples
    (Cameron, Gelbach and Miller, 2011).
    """
    every = range(1, count + 1)
    return [ways for size in every for ways in itertools.combinations(range(count), size)]


def _numbered(numbers: dict[int, int], keys: Ints) -> Ints:
    """Number combinations of clusters, by their keys (m,), in order of appearance."""
    codes = [numbers.setdefault(key, len(numbers)) for key in keys.tolist()]
    return np.array(codes, dtype=np.int64)


def _keys(one: Ints, two: Ints) -> Ints:
    """Join pairs of numbers below 2^31 into one number each."""
    return (one << HALF) + two


def cluster_products(R: Floats, space: Whitened, episodes: EpisodeMoments) -> Floats:
    """Sum w (R v) psi~^T over the rows of each cluster, (C, d_e, r), for R (d_e, p)."""
    offset = episodes.mean - space.shift
    linear = episodes.weight[:, None] * offset @ space.to_white
    sums: Floats = np.einsum("ep,cpq,qr->cer", R, episodes.scatter, space.to_white, optimize=True)
    sums += (offset @ R.T + R @ space.shift)[:, :, None] * linear[:, None, :]
    return sums


def cluster_seconds(space: Whitened, episodes: EpisodeMoments) -> Floats:
    """Sum w psi~ psi~^T over the rows of each cluster, (C, r, r)."""
    offset = (episodes.mean - space.shift) @ space.to_white
    inside: Floats = np.einsum(
        "pi,cpq,qj->cij", space.to_white, episodes.scatter, space.to_white, optimize=True
    )
    return inside + episodes.weight[:, None, None] * offset[:, :, None] * offset[:, None]


def effective_clusters(
    estimate: Estimate, moments: Moments, sums: GroupSums, by_cluster: EpisodeMoments | None = None
) -> Floats:
    """Return G* of each coefficient, (d_y, d_phi), for clusters by the column of `sums`.

    A cluster's share gamma of a coefficient's variance, where residuals of one variance are
    correlated rho within it, is (1 - rho) sum_i (L psi~_i)^2 + rho (sum_i L psi~_i)^2. The first
    is known where the moments of the clusters are kept (`by_cluster`); else what varies within
    clusters is taken for spread over all rows alike.
    """
    space = whiten(moments, estimate.instruments)
    d_y = len(estimate.W)
    L = np.broadcast_to(estimate.influence, (d_y, *estimate.influence.shape[-2:]))
    rho = np.clip(correlations(moments, sums, estimate.residual_map), 0.0, 1.0)
    moved = sums.about(space.shift) @ space.to_white  # (G, r)
    second = None if by_cluster is None else cluster_seconds(space, by_cluster)
    counts = np.empty(estimate.W.shape)
    for output in range(d_y):
        whole = moved @ L[output].T
        if second is None:
            alone = _alone(whole, sums, np.sum(L[output] ** 2, axis=1))
        else:
            alone = np.einsum("jr,crs,js->cj", L[output], second, L[output], optimize=True)
        gamma = (1 - rho[output]) * alone + rho[output] * whole**2
        counts[output] = ratio_of_sums(gamma)
    return counts


def _alone(whole: Floats, sums: GroupSums, size: Floats) -> Floats:
    """Guess the sums of squares of rows by group, (G, d), from sums and the mean square `size`."""
    between = whole**2 / sums.weight[:, None]
    within = np.maximum(sums.weight.sum() * size - between.sum(axis=0), 0.0)
    share = sums.square / sums.square.sum()
    alone: Floats = between + share[:, None] * within
    return alone


def ratio_of_sums(gamma: Floats) -> Floats:
    """Return (sum gamma)^2 / sum gamma^2 over the first axis; the number of rows where all is 0."""
    squares = np.sum(gamma**2, axis=0)
    total = np.sum(gamma, axis=0) ** 2
    every = np.full(total.shape, float(len(gamma)))
    ratio: Floats = np.divide(total, squares, out=every, where=squares > 0)
    return ratio
