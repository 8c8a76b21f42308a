"""What an estimator returns, and the least-squares core that they share."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from ivvi._io.arrays import Floats
from ivvi._io.checkpoint import Checkpoint
from ivvi._io.result import Compact, Records, TableResult
from ivvi.errors import DataError, InputError
from ivvi.estimators.convergence import Trace
from ivvi.estimators.covariance.weight_covariance import Covariance, homoskedastic
from ivvi.features.design import Design
from ivvi.features.feature_map import describe_direction
from ivvi.logs import Log
from ivvi.moments import Moments, compress, is_constant

RANK_TOLERANCE = 1e-6
"""Singular values below this, in units of the columns' own spread, count as zero."""
EXACT = 1e-13
"""Share of an output's variance below which that of a residual is rounding error."""


@dataclass(frozen=True, slots=True, repr=False)
class Estimate(TableResult):
    """Weights of y = W phi(x, a) + noise, and their uncertainty.

    Attributes
    ----------
    design
        Names and feature maps.
    W, K
        Primal (d_y, d_phi) and dual (d_y, d_psi) weights; K is the inner maximum at W.
    noise_cov
        Covariance of y - W phi, (d_y, d_y).
    bread
        (A^T B^-1 A)^-1 / n, (d_phi, d_phi): cov(W_i., W_j.) = noise_cov[i, j] bread.
    null
        Orthonormal directions of a row of W that the data do not identify, (m, d_phi).
    spread
        Standard deviation of each feature, (d_phi,).
    n
        Rows.
    trace
        How an iterative method got there; None for closed forms.
    influence
        L, (d_phi, r): row i moves W_j. by u_ij L psi~_i / n, with psi~ the whitened features
        of `instruments` (`whitening.whiten`); (d_y, d_phi, r) where it differs by output.
    instruments
        ``psi``, or ``phi`` for least squares.
    covariance
        Covariance of W; None stands for the unadjusted one, noise_cov and bread.
    exact
        Outputs that are exact functions of the features; their covariance is zero.
    lost
        Degrees of freedom of absorbed effects.
    taken
        Variance that stands for a penalty's bias, (d_y, d_phi, d_phi); None without one.
    """

    design: Design
    W: Floats
    K: Floats
    noise_cov: Floats
    bread: Floats
    null: Floats
    spread: Floats
    n: int
    trace: Trace | None = None
    influence: Floats = field(default_factory=lambda: np.empty((0, 0)))
    instruments: str = "psi"
    covariance: Covariance | None = None
    exact: tuple[str, ...] = ()
    lost: int = 0
    taken: Floats | None = None

    def __repr__(self) -> str:
        d_y, d_phi = self.W.shape
        return f"Estimate(W {d_y} x {d_phi}, n={self.n:,}, {self.W_cov})"

    def records(self) -> Records:
        """Return the coefficients, one row per output and feature; those of a fit say more."""
        return [
            {"output": output, "feature": feature, "coefficient": float(W), "se": float(se)}
            for output, some, errors in zip(self.design.outputs, self.W, self.se, strict=True)
            for feature, W, se in zip(self.design.phi_names, some, errors, strict=True)
        ]

    @property
    def identified(self) -> bool:
        """Whether every direction of W is identified."""
        return len(self.null) == 0

    @property
    def se(self) -> Floats:
        """Standard errors, (d_y, d_phi); NaN where W is not identified.

        NaN throughout where the bread is empty: it was not computed.
        """
        if not self.bread.size:
            return np.full(self.W.shape, np.nan)
        if self.covariance is not None:
            se = self.covariance.se
        else:
            se = np.sqrt(np.outer(np.diag(self.noise_cov), np.maximum(np.diag(self.bread), 0.0)))
        se[:, self.is_free(np.eye(self.W.shape[1]))] = np.nan
        return se

    def is_free(self, combinations: Floats) -> NDArray[np.bool_]:
        """Return which combinations (q, d_phi) of a row of W the data do not identify, (q,).

        A direction and a combination are compared in units of the features' spreads.
        """
        part, constant = np.abs(self.null) * self._units, self.design.constant
        slopes = part if constant is None else np.delete(part, constant, axis=1)
        least = 1e-6 * np.abs(combinations / self._units).max(axis=1, initial=0.0)
        along = np.abs(combinations @ self.null.T)
        free = along > np.outer(least, slopes.max(axis=1, initial=0.0))
        return np.asarray(free.any(axis=1))

    @property
    def W_cov(self) -> Covariance:  # noqa: N802
        """Covariance of W, the unadjusted one unless another was computed."""
        return self.covariance or homoskedastic(self.noise_cov, self.bread)

    @property
    def freedom(self) -> int | None:
        """Degrees of freedom of tests of W: those of the rows, or clusters less one.

        None, for the normal distribution, where the covariance is not corrected for small samples.
        """
        if not self.W_cov.debiased:
            return None
        clusters = [count - 1 for _, count in self.W_cov.clusters]
        return min(clusters, default=self.n - self.W.shape[1] - self.lost)

    @property
    def freedoms(self) -> Floats | None:
        """Degrees of freedom of single coefficients, (d_y, d_phi), as `freedom` for joint tests.

        Those of clusters are fewer where clusters are uneven.
        """
        if self.W_cov.freedom is not None:
            return self.W_cov.freedom
        return None if self.freedom is None else np.full(self.W.shape, float(self.freedom))

    @property
    def residual_map(self) -> Floats:
        """R (d_y, p) with y - W phi = R v for the rows v of the design."""
        R = np.zeros((len(self.W), self.design.width))
        R[:, list(self.design.y_columns)] = np.eye(len(self.W))
        R[:, list(self.design.phi_columns)] -= self.W
        return R

    @property
    def _units(self) -> Floats:
        """The scale that makes weights comparable: each feature's spread, or 1 if it has none."""
        return np.where(self.spread > 0, self.spread, 1.0)

    @property
    def unidentified(self) -> tuple[str, ...]:
        """The directions of `null` in words."""
        units = self._units
        if self.design.constant is not None:
            units[self.design.constant] = 0.0
        names = self.design.phi_names
        return tuple(describe_direction(w.tolist(), names, units.tolist()) for w in self.null)


class Method(Protocol):
    """An estimator: a frozen value that turns moments into an estimate.

    Attributes
    ----------
    needs_rows
        Whether it passes over the rows of a log, so that moments alone are not enough.
    has_robust_intervals
        Whether its effects are those that the instruments identify, neither shrunk nor mixed: then
        intervals that a weak instrument cannot spoil are of the same effects.
    one_solution
        Whether held-out episodes are to judge it. Penalties by cross-validation have been judged
        on folds already; least squares, and a k-class estimate of a fixed k, may be confounded.
    uses_instruments
        Whether W solves the moment conditions of the instruments, if with a penalty.
    """

    needs_rows: ClassVar[bool]
    has_robust_intervals: ClassVar[bool]
    one_solution: ClassVar[bool]
    uses_instruments: ClassVar[bool]

    @property
    def name(self) -> str:
        """The word by which the command line knows it."""
        ...

    def solve(
        self, moments: Moments, log: Log | None = None, checkpoint: Checkpoint | None = None
    ) -> Estimate:
        """Estimate W; iterative methods pass over the rows of the log again, resumably."""
        ...


@dataclass(frozen=True, slots=True, repr=False)
class Rows(Compact):
    """A few rows that stand for all of the data (`moments.compress`), split by role.

    When phi and psi share a constant, the rows are centred and the constant is left out:
    its coefficient follows from the means. Otherwise a row of means is added.
    """

    Phi: Floats
    Psi: Floats
    Y: Floats
    phi_kept: NDArray[np.int64]
    psi_kept: NDArray[np.int64]

    @classmethod
    def of(cls, moments: Moments, *, centred: bool = True) -> Rows:
        """Split the compressed rows; `centred` off keeps the constant and the means."""
        design = moments.design
        root = compress(moments)
        constant = design.constant if centred else None
        if constant is None:
            root = np.vstack([moments.mean, root])
        phi, psi = np.array(design.phi_columns), np.array(design.psi_columns)
        phi_kept, psi_kept = np.flatnonzero(phi != constant), np.flatnonzero(psi != constant)
        Phi, Psi = root[:, phi[phi_kept]], root[:, psi[psi_kept]]
        return cls(Phi, Psi, root[:, list(design.y_columns)], phi_kept, psi_kept)


def solve_rows(moments: Moments, rows: Rows, basis: Floats, *, ridge: float = 0.0) -> Estimate:
    """Least squares of Y on Phi after projecting both on an orthonormal `basis` (m, r).

    The projection on the span of psi makes this 2SLS, W_sad = C B^-1 A (A^T B^-1 A)^-1;
    that on the span of phi changes nothing. The ridge penalty is `ridge` times the sum of
    w_j^2 var(phi_j), so that it does not depend on units and leaves the constant alone.
    """
    Phi, Y = basis.T @ rows.Phi, basis.T @ rows.Y
    scale = np.linalg.norm(rows.Phi, axis=0)
    scale[scale == 0] = 1.0
    left, size, right = np.linalg.svd(Phi / scale, full_matrices=False)
    wide = len(scale) - len(right)
    if wide:  # fewer instruments than features: complete the right vectors
        right = np.linalg.svd(Phi / scale, full_matrices=True)[2]
    strong = size > RANK_TOLERANCE
    shrink = size[strong] / (size[strong] ** 2 + ridge)
    directions = right[: len(size)][strong] / scale
    influence = (directions.T * shrink) @ left[:, strong].T
    bread = (directions.T * shrink**2) @ directions / moments.n
    lost = np.vstack([right[: len(size)][~strong], right[len(size) :]]) / scale
    return finish(moments, rows, (influence @ Y).T, influence, bread, lost)


def finish(
    moments: Moments, rows: Rows, slopes: Floats, influence: Floats, bread: Floats, lost: Floats
) -> Estimate:
    """Put the constant back, take the minimum-norm solution, and measure the noise.

    Influence and bread may be one for each output, (d_y, ...); `lost` (m, ...) are the
    directions of the slopes that are not identified.
    """
    design = moments.design
    extend = extension(moments, rows)
    null = np.linalg.qr((lost @ extend).T)[0].T
    keep = np.eye(extend.shape[1]) - null.T @ null
    W = slopes @ extend
    if design.constant is not None:
        W[:, design.constant] += moments.mean[list(design.y_columns)]
        bread = extend.T @ bread @ extend
        bread[..., design.constant, design.constant] += 1 / moments.n
    L = keep @ with_constant(extend.T @ influence, design.constant)
    W = W @ keep
    residual = rows.Y - rows.Phi @ W[:, rows.phi_kept].T
    if moments.n <= W.shape[1]:
        raise DataError(
            f"{moments.n} rows cannot estimate {W.shape[1]} coefficients; expected more rows"
        )
    noise_cov = residual.T @ residual
    K = dual(moments, rows, residual)
    spread = np.where(is_constant(moments), 0.0, np.sqrt(np.diag(moments.scatter) / moments.weight))
    spread = spread[list(design.phi_columns)]
    bread = keep @ bread @ keep
    return Estimate(design, W, K, noise_cov, bread, null, spread, moments.n, influence=L)


def check_ridge(ridge: float) -> None:
    """Refuse a negative penalty."""
    if not ridge >= 0:
        raise InputError(f"the ridge penalty is {ridge:g}; it must not be negative")


def with_weights(moments: Moments, exact: Estimate, W: Floats, K: Floats) -> Estimate:
    """Return `exact` with other weights, and the noise covariance that they leave."""
    rows = Rows.of(moments, centred=False)
    with np.errstate(over="ignore", invalid="ignore"):
        residual = rows.Y - rows.Phi @ W.T
        return replace(exact, W=W, K=K, noise_cov=residual.T @ residual)


def with_constant(influence: Floats, constant: int | None) -> Floats:
    """Put the constant's coordinate before those of the slopes, (..., d_phi, r)."""
    if constant is None:
        return influence
    first = np.zeros((*influence.shape[:-1], 1))
    first[..., constant, 0] = 1.0
    return np.concatenate([first, influence], axis=-1)


def extension(moments: Moments, rows: Rows) -> Floats:
    """Map slopes to full rows of W, (d_phi - 1, d_phi): the constant is -slopes . mean."""
    constant, d_phi = moments.design.constant, len(moments.design.phi_names)
    extend = np.eye(d_phi)[rows.phi_kept]
    if constant is not None:
        extend[:, constant] = -moments.mean[rows.phi_kept]
    return extend


def dual(moments: Moments, rows: Rows, residual: Floats) -> Floats:
    """K = (W A^T - C) B^-1: minus the regression of the residual on psi, (d_y, d_psi)."""
    scale = np.linalg.norm(rows.Psi, axis=0)
    scale[scale == 0] = 1.0
    slopes = np.linalg.lstsq(rows.Psi / scale, -residual, rcond=RANK_TOLERANCE)[0].T / scale
    K = np.zeros((len(moments.design.outputs), len(moments.design.psi_names)))
    K[:, rows.psi_kept] = slopes
    if moments.design.constant is not None:
        at = moments.design.psi_columns.index(moments.design.constant)
        psi = np.array(moments.design.psi_columns)[rows.psi_kept]
        K[:, at] = -slopes @ moments.mean[psi]
    return K


def exactly_fitted(moments: Moments, variance: Floats) -> NDArray[np.bool_]:
    """Return which outputs are fitted exactly: their residual variances (d_y,) are rounding error.

    Such an output, an age that grows by one, has no noise to test anything with.
    """
    y = list(moments.design.y_columns)
    exact: NDArray[np.bool_] = (variance <= rounding_error(moments)) | is_constant(moments)[y]
    return exact


def rounding_error(moments: Moments) -> Floats:
    """Return the variance of each output, (d_y,), that may be rounding error of the moments."""
    y = list(moments.design.y_columns)
    least: Floats = EXACT * np.diag(moments.scatter)[y] / moments.weight
    return least


def distance_in_se(W: Floats, exact: Estimate) -> float:
    """Return the root mean square of W - exact.W, in unadjusted standard errors.

    Over the coefficients; where some directions of W are free, over the eigenvectors of the
    bread, in units of the features' spreads, that are not.
    """
    gap, noise = W - exact.W, np.diag(exact.noise_cov)
    if exact.identified:
        se = np.sqrt(np.outer(noise, np.maximum(np.diag(exact.bread), 0.0)))
        positive = se > 0
        return (
            float(np.sqrt(np.mean((gap[positive] / se[positive]) ** 2))) if positive.any() else 0.0
        )
    units = np.where(exact.spread > 0, exact.spread, 1.0)
    size, vectors = np.linalg.eigh(exact.bread * np.outer(units, units))
    positive = size > RANK_TOLERANCE**2 * size[-1]
    along = (gap * units) @ vectors[:, positive]
    return float(np.sqrt(np.mean(along**2 / np.outer(noise, size[positive]))))
