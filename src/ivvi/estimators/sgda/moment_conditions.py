"""Whether E[(y - W phi) psi^T] = 0 on some rows, with memory of order d.

Where the moments are too large to be formed, weights are judged by the conditions that
define them: each entry of the mean of (y - W phi) psi^T in units of its standard error.
At the truth the root mean square of these is about 1; far from the saddle point it grows
with the root of n.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ivvi.features.design import Floats


@dataclass(slots=True)
class Conditions:
    """Sums over rows, with u = y - W phi.

    Attributes
    ----------
    n
        Rows.
    cross, squares
        u psi^T and its entries squared, (d_y, d_psi).
    noise, size
        u u^T (d_y, d_y), and y squared (d_y,).
    """

    n: int
    cross: Floats
    squares: Floats
    noise: Floats
    size: Floats

    @classmethod
    def empty(cls, d_y: int, d_psi: int) -> Conditions:
        """Return the sums over no rows."""
        wide = (d_y, d_psi)
        return cls(0, np.zeros(wide), np.zeros(wide), np.zeros((d_y, d_y)), np.zeros(d_y))

    def add(self, W: Floats, Phi: Floats, Psi: Floats, Y: Floats) -> None:
        """Add rows, in place."""
        with np.errstate(over="ignore", invalid="ignore"):
            residual = Y - Phi @ W.T
            self.n += len(Y)
            self.cross += residual.T @ Psi
            self.squares += (residual**2).T @ Psi**2
            self.noise += residual.T @ residual
            self.size += np.sum(Y**2, axis=0)

    @property
    def noise_cov(self) -> Floats:
        """Covariance of the residuals, (d_y, d_y)."""
        return self.noise / max(self.n, 1)

    @property
    def growth(self) -> float:
        """Largest ratio E[u^2] / E[y^2] over the outputs: huge when the weights explode."""
        with np.errstate(over="ignore", invalid="ignore"):
            return float(np.max(np.diag(self.noise) / np.where(self.size > 0, self.size, 1.0)))

    @property
    def gap(self) -> float:
        """Root mean square of the conditions in standard errors."""
        mean = self.cross / max(self.n, 1)
        variance = self.squares / max(self.n, 1) - mean**2
        known = variance > 1e-12 * np.max(self.squares, initial=0.0) / max(self.n, 1)
        if not known.any():
            return 0.0
        return float(np.sqrt(np.mean(self.n * mean[known] ** 2 / variance[known])))
