"""Effects of many similar actions, shrunk towards one another as far as the data suggest.

Ten movies, a hundred coupons: each effect alone is lost in its standard error, but together they
are informative. For each output, with w the closed form's effects of the actions (in units of
the features' spreads) and S their covariance,

    w ~ N(theta, S),   theta ~ N(m 1, tau^2 I)

with m and tau^2 by restricted maximum likelihood (empirical Bayes). The estimate is the
mean of theta given w; tau^2 = 0 makes all effects equal, a large tau^2 changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ivvi._io.arrays import Floats
from ivvi._io.checkpoint import Checkpoint
from ivvi.errors import InputError, nearest
from ivvi.estimators.estimate import Estimate, Rows, dual, with_weights
from ivvi.estimators.two_stage_least_squares import Exact
from ivvi.logs import Log
from ivvi.moments import Moments

TOWARDS = ("mean", "zero")
LEAST, MOST, GRID = 1e-6, 10.0, 300
"""Prior variances tried: from LEAST times the mean of S's diagonal to MOST times |w|^2 or it."""


@dataclass(frozen=True, slots=True)
class Shrunk:
    """The closed form with its effects of the actions shrunk, as a method of `ivvi.estimate`.

    The other weights follow from their covariance with the effects. Directions that the
    log does not identify stay where the minimum norm left them. Standard errors are those of
    the estimate that was not shrunk.

    Parameters
    ----------
    toward
        ``mean``, the common mean of the effects, or ``zero``.
    """

    needs_rows: ClassVar[bool] = False
    has_robust_intervals: ClassVar[bool] = False
    one_solution: ClassVar[bool] = False
    uses_instruments: ClassVar[bool] = True

    toward: str = "mean"

    def __post_init__(self) -> None:
        if self.toward not in TOWARDS:
            hint = nearest(self.toward, TOWARDS) or "; choose from mean and zero"
            raise InputError(f"effects cannot be shrunk towards {self.toward!r}{hint}")

    @property
    def name(self) -> str:
        """The word by which the command line knows it."""
        return "shrunk"

    def solve(
        self, moments: Moments, log: Log | None = None, checkpoint: Checkpoint | None = None
    ) -> Estimate:
        """Estimate W from moments."""
        exact = Exact().solve(moments)
        design = moments.design
        rest = np.array(design.shared, dtype=int)
        acts = np.setdiff1d(np.arange(len(design.phi_names)), rest)
        units = np.where(exact.spread > 0, exact.spread, 1.0)[acts]
        among = exact.bread[np.ix_(acts, acts)]
        follow = exact.bread[np.ix_(rest, acts)] @ np.linalg.pinv(among, hermitian=True)
        W = exact.W.copy()
        for i, noise in enumerate(np.diag(exact.noise_cov)):
            S = noise * among * units[:, None] * units
            new = shrink(exact.W[i, acts] * units, S, toward=self.toward) / units
            W[i, rest] += follow @ (new - exact.W[i, acts])
            W[i, acts] = new
        rows = Rows.of(moments)
        residual = rows.Y - rows.Phi @ W[:, rows.phi_kept].T
        return with_weights(moments, exact, W, dual(moments, rows, residual))


def shrink(w: Floats, S: Floats, *, toward: str = "mean") -> Floats:
    """Return E[theta | w], (d,), for w ~ N(theta, S) and theta ~ N(m 1, tau^2 I).

    With one effect there is nothing to share, and nothing is shrunk towards its mean.
    """
    pooled = toward == "mean"
    if len(w) - pooled < 1 or not np.trace(S) > 0:
        return w
    sizes, vectors = np.linalg.eigh(S)
    sizes = np.maximum(sizes, 0.0)
    turned, ones = vectors.T @ w, vectors.sum(axis=0) * pooled
    size = float(np.mean(sizes))
    tau2 = np.geomspace(LEAST * size, MOST * max(size, float(w @ w)), GRID)
    precision = 1 / (sizes + tau2[:, None])  # (GRID, d): V^-1 in S's own directions
    weight = np.maximum((precision * ones**2).sum(axis=1), np.finfo(float).tiny)
    mean = (precision * ones * turned).sum(axis=1) / weight
    misfit = (precision * (turned - mean[:, None] * ones) ** 2).sum(axis=1)
    spread = -np.log(precision).sum(axis=1) + pooled * np.log(weight)
    best = int(np.argmin(misfit + spread))
    start = mean[best] * ones
    theta: Floats = vectors @ (start + tau2[best] * precision[best] * (turned - start))
    return theta
