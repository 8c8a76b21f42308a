"""The weights of estimated dynamics: their covariance, draws of them, and a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ivvi._io.result import Compact, Records
from ivvi.errors import InputError

MOST_ROWS = 40
"""Most weights that a summary lists."""


@dataclass(frozen=True, eq=False, repr=False)
class Weights(Compact):
    """W (d_y, d_phi) and the parts of its covariance; the fields are those of `Dynamics`."""

    W: np.ndarray
    noise_cov: np.ndarray
    bread: np.ndarray
    W_cov: np.ndarray | None = None

    @property
    def se(self) -> np.ndarray:
        """Standard errors, (d_y, d_phi); NaN where the covariance is not known."""
        variance: np.ndarray
        if self.W_cov is None:
            if not self.bread.size:
                return np.full(self.W.shape, np.nan)
            variance = np.outer(np.diag(self.noise_cov), np.diag(self.bread))
        elif self.W_cov.ndim == 3:
            variance = np.diagonal(self.W_cov, axis1=1, axis2=2)
        else:
            variance = np.diag(self.W_cov).reshape(self.W.shape)
        return np.sqrt(np.where(variance >= 0, variance, np.nan))

    @cached_property
    def root(self) -> np.ndarray:
        """A square root of the covariance of W, its rows one after another.

        (d_y d_phi, d_y d_phi); rows are independent where only the covariance of each is kept.
        """
        W_cov = self.W_cov
        if W_cov is None:
            if not self.bread.size:
                raise InputError(
                    "this model has no covariance of its weights, as one fitted with linear memory "
                    "has none; fit fewer features, or ask for quadratic memory"
                )
            W_cov = np.kron(self.noise_cov, self.bread)
        if W_cov.ndim == 3:
            d_y, d_phi = self.W.shape
            whole = np.zeros((d_y, d_phi, d_y, d_phi))
            whole[range(d_y), :, range(d_y)] = W_cov
            W_cov = whole.reshape(d_y * d_phi, -1)
        values, vectors = np.linalg.eigh(W_cov)
        return np.asarray(vectors * np.sqrt(np.clip(values, 0, None)))

    def draw_deviations(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Return draws dW of N(0, cov(W)), (count, d_y, d_phi): the log allows W + dW."""
        drawn = rng.normal(size=(count, self.W.size)) @ self.root.T
        return np.asarray(drawn.reshape(count, *self.W.shape))

    def records(self, outputs: Sequence[str], features: Sequence[str]) -> Records:
        """Return the weights with their standard errors, one row per output and feature."""
        return [
            {"output": output, "feature": name, "coefficient": float(w), "se": float(se)}
            for output, row, row_errors in zip(outputs, self.W, self.se, strict=True)
            for name, w, se in zip(features, row, row_errors, strict=True)
        ]


def weight_lines(rows: Records) -> list[str]:
    """Return the first rows of `Weights.records` as lines of text."""
    first = max(len(row["feature"]) for row in rows)
    lines = [f"{'output':<14}{'feature':<{first}}{'coefficient':>14}{'std.err.':>12}"]
    lines += [
        f"{r['output']:<14}{r['feature']:<{first}}{r['coefficient']:>14.4g}{r['se']:>12.3g}"
        for r in rows[:MOST_ROWS]
    ]
    if (more := len(rows) - MOST_ROWS) > 0:
        lines.append(f"... and {more:,} more")
    return lines
