"""Sums of instrument times residual, by row or by episode, for every value of an effect.

For b = (1, -theta, -gamma) the score of a cluster is Z_c' T_c b. Its sum and its sum of
squares over clusters are linear and quadratic in b, so that a few totals hold them for all
b at once:

    G = sum_c Z_c' T_c                       (k, t)
    H = sum_c vec(Z_c' T_c) vec(Z_c' T_c)'   (k t, k t)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ivvi.diagnostics.effects import Effect
from ivvi.errors import DataError, InputError
from ivvi.estimators.estimate import Floats
from ivvi.logs import Batch, Log
from ivvi.moments import Moments, few_threads

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class EffectScores:
    """Totals over clusters: G (k, t), H (k, t, k, t), and how many clusters there are."""

    G: Floats
    H: Floats
    clusters: int

    @classmethod
    def of_episodes(cls, moments: Moments, effect: Effect) -> EffectScores:
        """Sum over the episodes' moments."""
        blocks = moments.episodes
        if blocks is None:
            raise InputError("a clustered set needs the log, or moments kept with episodes=True")
        shift = blocks.mean - effect.centre
        second = blocks.scatter + blocks.weight[:, None, None] * shift[:, :, None] * shift[:, None]
        parts = effect.into_Z.T @ second @ effect.into_T
        return cls._of_parts([parts.reshape(len(parts), -1)], effect)

    @classmethod
    def of_log(
        cls,
        log: Log,
        moments: Moments,
        effect: Effect,
        *,
        by_episode: bool,
        progress: Callable[[int], None] | None = None,
    ) -> EffectScores:
        """Sum over the rows or the episodes of a log, in one pass and bounded memory."""
        layout, at = moments.layout, moments.layout.varying
        maps = np.hstack([effect.into_Z, effect.into_T])
        fixed = np.delete(np.arange(layout.width), at)
        offset = maps[fixed].sum(axis=0) - effect.centre @ maps

        def scores(batch: Batch) -> Floats:
            rows = layout.rows(batch) @ maps[at] + offset
            Z, T = rows[:, : effect.k], rows[:, effect.k :]
            if batch.weight is not None:
                Z = Z * batch.weight[:, None]
            product: Floats = (Z[:, :, None] * T[:, None, :]).reshape(len(rows), -1)
            return product

        ordered = log.in_order() if by_episode else log
        walk = ordered.batches(episodes=by_episode, progress=progress)
        with few_threads(layout.width):
            parts = (
                cluster_sums((scores(b), _numbers(b)) for b in walk)
                if by_episode
                else (scores(b) for b in walk)
            )
            return cls._of_parts(parts, effect)

    @classmethod
    def _of_parts(cls, parts: Iterable[Floats], effect: Effect) -> EffectScores:
        k, t = effect.k, 2 + effect.nuisance
        total, squares, clusters = np.zeros(k * t), np.zeros((k * t, k * t)), 0
        for part in parts:
            total += part.sum(axis=0)
            squares += part.T @ part
            clusters += len(part)
        if clusters <= k:
            raise DataError(
                f"{clusters} cluster{'' if clusters == 1 else 's'} cannot give a set with {k} "
                "instrument features; more clusters than instruments are wanted, or other errors "
                "(robust, unadjusted)"
            )
        return cls(total.reshape(k, t), squares.reshape(k, t, k, t), clusters)

    def variance(self, b: Floats, other: Floats | None = None) -> Floats:
        """sum_c (Z_c' T_c b)(Z_c' T_c other)', (k, k)."""
        second = b if other is None else other
        product: Floats = np.einsum("iajb,a,b->ij", self.H, b, second)
        return product


def cluster_sums(parts: Iterator[tuple[Floats, Ints]]) -> Iterator[Floats]:
    """Add rows (n, d) of one cluster number; clusters are consecutive, also across parts."""
    held: Floats | None = None
    last = -1
    for rows, number in parts:
        starts = np.flatnonzero(np.diff(number, prepend=number[0] - 1))
        sums = np.add.reduceat(rows, starts, axis=0)
        if held is not None:
            if number[0] == last:
                sums[0] += held
            else:
                sums = np.vstack([held[None], sums])
        held, last = sums[-1], int(number[-1])
        if len(sums) > 1:
            yield sums[:-1]
    if held is not None:
        yield held[None]


def _numbers(batch: Batch) -> Ints:
    if batch.episode is None:
        raise InputError("clustering needs batches read with episodes=True")
    return batch.episode
