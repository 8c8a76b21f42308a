"""Tests that a mean of scores is zero, from their sums over blocks of episodes.

Several tests of one question are answered by the smallest of their p-values and by the law
of the smallest when all nulls are true. Bonferroni's bound of that law is far too conservative
where the tests are similar (Westfall and Young), so that law is simulated as well. So is the law of
one test: with few blocks and heavy tails, as products of an instrument and a residual have them, F
is far too conservative.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ivvi._io.arrays import Floats
from ivvi.diagnostics.statistic import Statistic
from ivvi.diagnostics.tails_and_quantiles import f_quantile
from ivvi.estimators.estimate import RANK_TOLERANCE

OVERSHOOT = 0.5826
"""By how much of a step the extreme of a walk falls short of a Brownian path's (Chernoff)."""
BLOCKS_EACH = 3
"""Blocks needed for each restriction of a joint test."""
DRAWS = 999
"""Draws of the law of the smallest of several p-values."""
TIMES = 128
"""Times, at most, at which a running sum is looked at."""
AT_ONCE = 1 << 22
"""Numbers in the paths that are drawn at once."""


@dataclass(frozen=True, slots=True)
class Range:
    """The range of a cumulative sum around its line, as of a Brownian bridge (Kuiper)."""

    value: float
    null: str

    @property
    def distribution(self) -> str:
        """Distribution under the null."""
        return "bridge range"

    @property
    def p_value(self) -> float:
        """P(max - min > v) = 2 sum_j (4 j^2 v^2 - 1) exp(-2 j^2 v^2)."""
        if self.value < 0.4:
            return 1.0
        squares = [(j * self.value) ** 2 for j in range(1, 101)]
        return min(1.0, 2 * math.fsum((4 * s - 1) * math.exp(-2 * s) for s in squares))

    def to_json(self) -> dict[str, Any]:
        """Describe the statistic with JSON values."""
        return {
            "value": self.value,
            "distribution": self.distribution,
            "df": None,
            "p_value": self.p_value,
            "null": self.null,
        }


@dataclass(frozen=True, slots=True)
class LargestContrast:
    """The most telling of several comparisons.

    `compared` is their number; `where` names the comparison; `drawn` is the share of draws
    under the null with as telling a one, where there are draws.
    """

    statistic: Statistic | Range
    compared: int = 1
    where: str = ""
    drawn: float = 1.0

    @property
    def p_value(self) -> float:
        """The p-value that allows for several comparisons; at most Bonferroni's."""
        return min(self.drawn, self.compared * self.statistic.p_value)


def zero_mean(groups: Mapping[str, Floats], null: str) -> LargestContrast | None:
    """Test that scores (blocks, d) have mean zero, jointly within each group.

    Hotelling's T^2, as F(d, blocks - d), where there are three blocks for each of the d
    restrictions; else the largest single F(1, blocks - 1). None when nothing varies.
    """
    comparisons: list[tuple[str, Floats, Statistic]] = []
    for label, scores in groups.items():
        whitened = _whiten(scores)
        if BLOCKS_EACH * whitened.shape[1] <= len(scores):
            parts = [whitened]
        else:
            parts = [_whiten(column[:, None]) for column in scores.T]
        comparisons += [(label, part, _hotelling(part, null)) for part in parts if part.shape[1]]
    if not comparisons:
        return None
    where, _, best = min(comparisons, key=lambda one: one[2].p_value)
    drawn = _as_small([part for _, part, _ in comparisons], best.p_value)
    return LargestContrast(best, len(comparisons), where, drawn)


def cumulative(scores: Floats, labels: list[str], null: str) -> LargestContrast | None:
    """CUSUM: how far the running sums of scores (blocks, d) of total zero stray up and down.

    Under the null the order of the blocks is by chance: the law of the furthest of the d is
    that over orders drawn at random.
    """
    size = np.sqrt(np.sum((scores - scores.mean(axis=0)) ** 2, axis=0))
    varies = size > 0
    if not varies.any():
        return None
    times = min(len(scores), TIMES)
    steps = np.add.reduceat(
        scores[:, varies] / size[varies], np.arange(times) * len(scores) // times
    )
    strayed = _strayed(steps)
    worst = int(np.argmax(strayed))
    where = [label for label, used in zip(labels, varies, strict=True) if used][worst]
    value = float(strayed[worst])
    law = Range(value + 2 * OVERSHOOT / math.sqrt(times), null)
    return LargestContrast(law, len(strayed), where, _as_far(steps, value))


def t_values(scores: Floats) -> Floats:
    """Total of each score over its standard error, (d,)."""
    spread = np.sqrt(len(scores)) * scores.std(axis=0, ddof=1)
    total = scores.sum(axis=0)
    t: Floats = np.divide(total, spread, out=np.zeros_like(total), where=spread > 0)
    return t


def furthest_combination(scores: Floats) -> tuple[Floats, float]:
    """Return the weights (d,) of scores in units of their spread whose total has the largest t.

    That t is the root of Hotelling's T^2; zero where there are too few blocks for it.
    """
    whitened = _whiten(scores)
    if not whitened.shape[1] or BLOCKS_EACH * whitened.shape[1] > len(scores):
        return np.zeros(scores.shape[1]), 0.0
    spread = scores.std(axis=0, ddof=1)
    scaled = scores / np.where(spread > 0, spread, 1.0)
    centred = scaled - scaled.mean(axis=0)
    covariance = centred.T @ centred / (len(scores) - 1)
    mean = scaled.mean(axis=0)
    weights = np.linalg.pinv(covariance, RANK_TOLERANCE**2, hermitian=True) @ mean
    furthest = math.sqrt(max(len(scores) * float(mean @ weights), 0.0))
    return weights, furthest


def _as_small(parts: list[Floats], p_value: float) -> float:
    """Share of draws in which the smallest p-value of several scores (n, d_i) is as small.

    Under the null the sign of a block is by chance (exactly so where scores are symmetric).
    With U an orthonormal basis of the scores S and signs s, |U^T s|^2 = n T^2 / (T^2 + n - 1);
    it is |triangle^-1 S^T s|^2 with triangle triangle^T = S^T S.
    """
    blocks = len(parts[0])
    if len(parts) * p_value * DRAWS < 1:
        return 1.0  # Bonferroni's is below what draws can tell
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(DRAWS, blocks))
    small = np.zeros(DRAWS, dtype=bool)
    limits = {d: _limit(p_value, d, blocks) for d in {part.shape[1] for part in parts}}
    for part in parts:
        triangle = np.linalg.cholesky(part.T @ part)
        squares = np.sum(np.linalg.solve(triangle, (signs @ part).T) ** 2, axis=0)
        small |= squares >= limits[part.shape[1]]
    return float(1 + small.sum()) / (1 + DRAWS)


def _limit(p_value: float, d: int, blocks: int) -> float:
    """Value of |U^T s|^2 at which Hotelling's test of d means has this p-value."""
    value = 1 / f_quantile(p_value, blocks - d, d)  # exact for small p, where 1 - p is not
    t2 = value * d * (blocks - 1) / (blocks - d)
    return (1 - 1e-12) * blocks * t2 / (t2 + blocks - 1)


def _as_far(steps: Floats, value: float) -> float:
    """Share of orders of the steps (n, d) in which the furthest of the d sums strays as far."""
    rng = np.random.default_rng(0)
    orders = rng.permuted(np.tile(np.arange(len(steps)), (DRAWS, 1)), axis=1)
    pieces = np.array_split(orders, -(-DRAWS * steps.size // AT_ONCE))
    far = sum(
        int(np.sum(_strayed(steps[piece]).max(axis=-1) >= (1 - 1e-12) * value)) for piece in pieces
    )
    return (1 + far) / (1 + DRAWS)


def _strayed(steps: Floats) -> Floats:
    """Range of the running sums of (..., n, d) of total zero, (..., d)."""
    reached: Floats = np.ptp(np.cumsum(steps, axis=-2), axis=-2)
    return reached


def _whiten(scores: Floats) -> Floats:
    """Turn scores into uncorrelated ones of variance one, dropping what does not vary."""
    spread = scores.std(axis=0, ddof=1)
    scaled = scores / np.where(spread > 0, spread, 1.0)
    centred = scaled - scaled.mean(axis=0)
    triangle = np.linalg.qr(centred / math.sqrt(len(scores) - 1), mode="r")
    _, size, right = np.linalg.svd(triangle, full_matrices=False)  # those of the tall matrix
    strong = size > RANK_TOLERANCE
    whitened: Floats = scaled @ (right[strong].T / size[strong])
    return whitened


def _hotelling(whitened: Floats, null: str) -> Statistic:
    blocks, d = whitened.shape
    t2 = blocks * float(np.sum(whitened.mean(axis=0) ** 2))
    return Statistic(t2 * (blocks - d) / (d * (blocks - 1)), (d, blocks - d), null)
