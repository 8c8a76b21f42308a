"""Tests that a mean of scores is zero, from their sums over blocks of episodes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ivvi.diagnostics.statistic import Statistic
from ivvi.estimators.estimate import RANK_TOLERANCE, Floats

OVERSHOOT = 0.5826
"""By how much of a step the extreme of a walk falls short of a Brownian path's (Chernoff)."""
BLOCKS_EACH = 3
"""Blocks wanted for each restriction of a joint test."""


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
            "p_value": self.p_value,
            "null": self.null,
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """The most telling of several comparisons.

    `compared` is their number, by which the p-value is multiplied (Bonferroni); `where`
    names the comparison.
    """

    statistic: Statistic | Range
    compared: int = 1
    where: str = ""

    @property
    def p_value(self) -> float:
        """The p-value that allows for having looked several times."""
        return min(1.0, self.compared * self.statistic.p_value)


def zero_mean(groups: Mapping[str, Floats], null: str) -> Comparison | None:
    """Test that scores (blocks, d) have mean zero, jointly within each group.

    Hotelling's T^2, as F(d, B - d), where there are three blocks for each of the d
    restrictions; else the largest single F(1, B - 1). None when nothing varies.
    """
    found: list[tuple[str, Statistic]] = []
    for label, scores in groups.items():
        whitened = _whiten(scores)
        if BLOCKS_EACH * whitened.shape[1] <= len(scores):
            parts = [whitened]
        else:
            parts = [_whiten(column[:, None]) for column in scores.T]
        found += [(label, _hotelling(part, null)) for part in parts if part.shape[1]]
    if not found:
        return None
    where, best = min(found, key=lambda one: one[1].p_value)
    return Comparison(best, len(found), where)


def cumulative(scores: Floats, labels: list[str], null: str) -> Comparison | None:
    """CUSUM: how far the running sums of scores (blocks, d) of total zero stray up and down."""
    size = np.sqrt(np.sum((scores - scores.mean(axis=0)) ** 2, axis=0))
    varies = size > 0
    if not varies.any():
        return None
    path = np.vstack([np.zeros(int(varies.sum())), np.cumsum(scores[:, varies], axis=0)])
    strayed = np.ptp(path, axis=0) / size[varies] + 2 * OVERSHOOT / math.sqrt(len(scores))
    worst = int(np.argmax(strayed))
    where = [label for label, used in zip(labels, varies, strict=True) if used][worst]
    return Comparison(Range(float(strayed[worst]), null), int(varies.sum()), where)


def t_values(scores: Floats) -> Floats:
    """Total of each score over its standard error, (d,)."""
    spread = np.sqrt(len(scores)) * scores.std(axis=0, ddof=1)
    total = scores.sum(axis=0)
    t: Floats = np.divide(total, spread, out=np.zeros_like(total), where=spread > 0)
    return t


def _whiten(scores: Floats) -> Floats:
    """Turn scores into uncorrelated ones of variance one, dropping what does not vary."""
    spread = scores.std(axis=0, ddof=1)
    scaled = scores / np.where(spread > 0, spread, 1.0)
    centred = scaled - scaled.mean(axis=0)
    _, size, right = np.linalg.svd(centred / math.sqrt(len(scores) - 1), full_matrices=False)
    kept = size > RANK_TOLERANCE
    whitened: Floats = scaled @ (right[kept].T / size[kept])
    return whitened


def _hotelling(whitened: Floats, null: str) -> Statistic:
    B, d = whitened.shape
    t2 = B * float(np.sum(whitened.mean(axis=0) ** 2))
    return Statistic(t2 * (B - d) / (d * (B - 1)), (d, B - d), null)
