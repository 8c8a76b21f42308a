"""Ridge and lasso on the saddle point, the penalty chosen by cross-validation over episodes.

With P the projection on the span of psi, s_j the spread of feature j and s_y that of y,

    ridge   min_w  1/2 |P (y - phi w)|^2 / n + penalty / 2  sum_j s_j^2 w_j^2
    lasso   min_w  1/2 |P (y - phi w)|^2 / n + penalty s_y  sum_j s_j |w_j|

for each output. Penalties have no units; the constant is not penalised. Cross-validation
leaves one fold of episodes out at a time and asks how far the instruments still predict
the residual there: |P (y - W phi)|^2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ivvi._io.arrays import Floats, Ints
from ivvi._io.checkpoint import Checkpoint
from ivvi._io.result import Compact
from ivvi.errors import InputError, nearest
from ivvi.estimators.cross_validation import fold_moments, others
from ivvi.estimators.estimate import RANK_TOLERANCE, Estimate, Rows, with_weights
from ivvi.estimators.two_stage_least_squares import Exact
from ivvi.estimators.whitening import orthonormal
from ivvi.logs import Log
from ivvi.moments import Moments

KINDS = ("ridge", "lasso")
GRID = 40
SWEEPS = 2000
TOLERANCE = 1e-9
PATH_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class Penalised:
    """Ridge or lasso for every output, as a method of `ivvi.estimate`.

    Standard errors are those of the estimate without penalty: they say how noisy the data
    are, not how the penalty's bias and selection change that.

    Parameters
    ----------
    kind
        ``ridge`` or ``lasso``.
    penalty
        A number, or ``cv`` to choose one by cross-validation over episodes.
    folds
        Folds of episodes.
    common
        Choose one penalty for all outputs instead of one for each.
    one_se
        Take the largest penalty within one standard error of the best.
    adaptive
        Penalise |w_j| by the inverse of its unpenalised estimate (Zou's adaptive lasso):
        true zeros are removed, and large coefficients are hardly shrunk.
    """

    needs_rows: ClassVar[bool] = False
    has_robust_intervals: ClassVar[bool] = False
    one_solution: ClassVar[bool] = False
    uses_instruments: ClassVar[bool] = True

    kind: str = "lasso"
    penalty: float | str = "cv"
    folds: int = 5
    common: bool = False
    one_se: bool = False
    adaptive: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            hint = nearest(self.kind, KINDS) or "; choose from ridge and lasso"
            raise InputError(f"unknown penalty {self.kind!r}{hint}")
        number = isinstance(self.penalty, (int, float)) and self.penalty >= 0
        if not number and self.penalty != "cv":
            raise InputError(
                f"the penalty is {self.penalty!r}; expected cv or a number of at least 0"
            )

        if self.adaptive and self.kind != "lasso":
            raise InputError("only the lasso can be adaptive; remove adaptive with ridge")

    @property
    def name(self) -> str:
        """The word by which the command line knows it."""
        return "adaptive-lasso" if self.adaptive else self.kind

    def solve(
        self, moments: Moments, log: Log | None = None, checkpoint: Checkpoint | None = None
    ) -> Estimate:
        """Estimate W; choosing a penalty needs per-episode moments or the log."""
        if isinstance(self.penalty, str):
            chosen = self.cross_validate(moments, log).chosen
        else:
            chosen = np.full(len(moments.design.outputs), float(self.penalty))
        W = self._problem(moments).weights(self.kind, chosen)
        rows = Rows.of(moments, centred=False)
        scale = np.linalg.norm(rows.Psi, axis=0)
        scale[scale == 0] = 1.0
        rest = rows.Phi @ W.T - rows.Y
        K = np.linalg.lstsq(rows.Psi / scale, rest, rcond=RANK_TOLERANCE)[0].T / scale
        return with_weights(moments, Exact().solve(moments), W, K)

    def cross_validate(self, moments: Moments, log: Log | None = None) -> CrossValidation:
        """Try a grid of penalties on folds of episodes."""
        folds = fold_moments(moments, log, self.folds)
        penalties = self._problem(moments).grid(self.kind)
        errors = np.array(
            [
                _held_out(folds[f], self._problem(others(folds, f)).path(self.kind, penalties))
                for f in range(len(folds))
            ]
        )
        mean = errors.mean(axis=0)
        spread = errors.std(axis=0, ddof=1) / np.sqrt(len(folds))
        pick = _pick_one_se if self.one_se else _pick_best
        if self.common:
            noise = np.diag(Exact().solve(moments).noise_cov)
            share = (errors / noise).mean(axis=2, keepdims=True)
            best = pick(share.mean(axis=0), share.std(axis=0, ddof=1) / np.sqrt(len(folds)))
            best = np.repeat(best, mean.shape[1])
        else:
            best = pick(mean, spread)
        return CrossValidation(penalties, mean, spread, penalties[best])

    def _problem(self, moments: Moments) -> _PenalisedEquations:
        return _PenalisedEquations.of(moments, adaptive=self.adaptive)


@dataclass(frozen=True, slots=True, repr=False)
class CrossValidation(Compact):
    """The projected moment |P (y - W phi)|^2 on episodes left out.

    Attributes
    ----------
    penalties
        Descending, (m,).
    error, spread
        Mean over folds and its standard error, (m, d_y).
    chosen
        One penalty for each output, (d_y,).
    """

    penalties: Floats
    error: Floats
    spread: Floats
    chosen: Floats


@dataclass(frozen=True, slots=True, repr=False)
class _PenalisedEquations(Compact):
    """Projected normal equations in units of the columns' spreads: gram w = c.

    `each` weighs the penalty of each coefficient, (d, d_y). `mean` puts the constant back:
    it is y's mean less that of W phi.
    """

    gram: Floats
    c: Floats
    each: Floats
    scale: Floats
    scale_y: Floats
    kept: Ints
    mean: Floats
    mean_y: Floats
    constant: int | None

    @classmethod
    def of(cls, moments: Moments, *, adaptive: bool) -> _PenalisedEquations:
        rows, design = Rows.of(moments), moments.design
        basis = orthonormal(rows.Psi)
        scale, scale_y = np.linalg.norm(rows.Phi, axis=0), np.linalg.norm(rows.Y, axis=0)
        scale[scale == 0], scale_y[scale_y == 0] = 1.0, 1.0
        inside, inside_y = basis.T @ (rows.Phi / scale), basis.T @ (rows.Y / scale_y)
        mean, mean_y = moments.mean[rows.phi_kept], moments.mean[list(design.y_columns)]
        gram, c = inside.T @ inside, inside.T @ inside_y
        each = np.ones_like(c)
        if adaptive:
            each = 1 / np.maximum(np.abs(_solve(gram, c, 0.0)), TOLERANCE)
        return cls(gram, c, each, scale, scale_y, rows.phi_kept, mean, mean_y, design.constant)

    def grid(self, kind: str) -> Floats:
        """Falling penalties, from one that leaves nothing (lasso) or little (ridge) to zero."""
        if kind == "lasso":
            top = float(np.abs(self.c / self.each).max())
            return top * np.append(np.geomspace(1, 1e-5 if self.each.max() > 1 else 1e-4, GRID), 0)
        top = 10 * float(np.linalg.eigvalsh(self.gram)[-1])
        return np.append(np.geomspace(top, 1e-8 * top, GRID), 0.0)

    def path(self, kind: str, penalties: Floats) -> list[Floats]:
        """W (d_y, d_phi) for each penalty, the same for all outputs."""
        slopes = np.zeros_like(self.c)
        solutions = []
        for penalty in penalties:
            same = np.full(self.c.shape[1], penalty)
            slopes = self._slopes(kind, same, slopes, PATH_TOLERANCE)
            solutions.append(self._whole(slopes))
        return solutions

    def weights(self, kind: str, penalty: Floats) -> Floats:
        """W (d_y, d_phi) with a penalty for each output."""
        return self._whole(self._slopes(kind, penalty, np.zeros_like(self.c), TOLERANCE))

    def _slopes(self, kind: str, penalty: Floats, start: Floats, tolerance: float) -> Floats:
        if kind == "ridge" or not penalty.any():
            return _solve(self.gram, self.c, penalty)
        return coordinate_descent(self.gram, self.c, penalty * self.each, start, tolerance)

    def _whole(self, slopes: Floats) -> Floats:
        d_phi = len(self.kept) + (self.constant is not None)
        W = np.zeros((slopes.shape[1], d_phi))
        W[:, self.kept] = slopes.T * self.scale_y[:, None] / self.scale
        if self.constant is not None:
            W[:, self.constant] = self.mean_y - W[:, self.kept] @ self.mean
        return W


def coordinate_descent(
    gram: Floats, c: Floats, penalty: Floats, start: Floats, tolerance: float = TOLERANCE
) -> Floats:
    """Minimise 1/2 w' gram w - c'w + sum_j penalty_j |w_j| for all columns of c, (d, d_y)."""
    w = start.copy()
    diagonal = np.diag(gram)
    moving = np.flatnonzero(diagonal > RANK_TOLERANCE**2)
    for _ in range(SWEEPS):
        change = 0.0
        for j in moving:
            pull = c[j] - gram[j] @ w + diagonal[j] * w[j]
            new = np.sign(pull) * np.maximum(np.abs(pull) - penalty[j], 0.0) / diagonal[j]
            change = max(change, float(np.abs(new - w[j]).max()) * float(diagonal[j]) ** 0.5)
            w[j] = new
        if change < tolerance:
            break
    return w


def _solve(gram: Floats, c: Floats, ridge: Floats | float) -> Floats:
    """(gram + ridge)^-1 c, a ridge for each column; the minimum-norm solution without one."""
    values, vectors = np.linalg.eigh(gram)
    strong = values > RANK_TOLERANCE**2
    inside = vectors[:, strong]
    solution: Floats = inside @ ((inside.T @ c) / (values[strong, None] + ridge))
    return solution


def _held_out(fold: Moments, path: list[Floats]) -> Floats:
    """|P (y - W phi)|^2 on a fold for each W of a path, (m, d_y)."""
    rows = Rows.of(fold, centred=False)
    basis = orthonormal(rows.Psi)
    Phi, Y = basis.T @ rows.Phi, basis.T @ rows.Y
    return np.array([np.sum((Y - Phi @ W.T) ** 2, axis=0) for W in path])


def _pick_best(error: Floats, spread: Floats) -> Ints:
    best: Ints = np.argmin(error, axis=0)
    return best


def _pick_one_se(error: Floats, spread: Floats) -> Ints:
    """The first (largest) penalty whose error is within one standard error of the least."""
    best = np.argmin(error, axis=0)
    at = np.arange(error.shape[1])
    first: Ints = np.argmax(error <= error[best, at] + spread[best, at], axis=0)
    return first
