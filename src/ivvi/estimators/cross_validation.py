"""Cross-validation: moments of each fold of episodes, and losses on folds that were left out.

The loss of a penalised design is measured for a whole path of penalties l on the roughness D of
its features. With G what instruments explain of their squares, G + l_0 D = L L' and
L^-1 D L^-T = Q m Q', one decomposition serves all:

    (G + l D)^-1 = L^-T Q (1 + (l - l_0) m)^-1 Q' L^-1
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np

from ivvi._io.arrays import Floats
from ivvi._io.result import Compact
from ivvi.errors import DataError, InputError
from ivvi.estimators.smooth import LEAST, roughness
from ivvi.features.design import Design
from ivvi.logs import Batch, Log
from ivvi.moments import EpisodeMoments, Moments, few_threads

PENALTIES = np.geomspace(1e-9, 1.0, 19)
FIRST_STAGE = np.geomspace(1e-9, 1e-2, 8)
FIRST_STAGE_FOLDS = 4
"""Folds on which the penalty of the first stage is chosen."""
AT_ONCE = 8192
LEAST_ERROR = 1e-10
"""Share of its variance below which an output counts as fitted exactly."""


def fold_moments(moments: Moments, log: Log | None, folds: int) -> list[Moments]:
    """Split the episodes into folds, from per-episode moments or by another pass over the log.

    Episode i belongs to fold i mod `folds`; no episode is divided.
    """
    if folds < 2:
        raise InputError(f"folds is {folds}; expected at least 2")
    if moments.episodes is not None:
        numbers = moments.episodes.number
        sums = [_of_blocks(moments, np.flatnonzero(numbers % folds == f)) for f in range(folds)]
    elif log is not None:
        (sums,) = fold_moments_of_log(log, [moments.design], folds)
    else:
        raise InputError(
            "cross-validation over episodes needs the log, or moments kept with episodes=True"
        )
    nonempty = [part for part in sums if part.n]
    if len(nonempty) < 2:
        raise DataError("cross-validation over episodes needs at least 2 episodes; there is 1")
    return nonempty


def fold_moments_of_log(
    log: Log,
    designs: Sequence[Design],
    folds: int,
) -> list[list[Moments]]:
    """Return the moments of each fold for each design, from one pass over a log."""
    moments = [[Moments.empty(design) for _ in range(folds)] for design in designs]
    with few_threads(max(design.width for design in designs)):
        for batch in log.batches(episodes=True):
            for f in range(folds):
                part = batch.taken(np.flatnonzero(batch.episode % folds == f))  # type: ignore[operator] # read so
                if not len(part):
                    continue
                for sums, design in zip(moments, designs, strict=True):
                    sums[f] = sums[f] + Moments.of_batch(design, part)
    return moments


def others(folds: Sequence[Moments], left_out: int) -> Moments:
    """Add the moments of all folds but one."""
    return reduce(add, (part for i, part in enumerate(folds) if i != left_out))


@dataclass(frozen=True, slots=True, repr=False)
class Losses(Compact):
    """The loss on each fold, by penalty and output, in units of the linear model's error variance.

    Attributes
    ----------
    values
        (folds, penalties, d_y).
    first_stage
        The penalty of the first stage, chosen by how well actions are predicted.
    """

    values: Floats
    first_stage: float

    @property
    def best(self) -> np.ndarray:
        """The penalty of each output with the least loss, (d_y,)."""
        return np.asarray(self.values.mean(axis=0).argmin(axis=0))

    def cautious(self, threshold: float) -> np.ndarray:
        """The largest penalty of each output within `threshold` standard errors of the best."""
        chosen = self.best.copy()
        for output, best in enumerate(chosen):
            worse = self.values[:, :, output] - self.values[:, [best], output]
            spread = worse.std(axis=0, ddof=1) / len(worse) ** 0.5
            chosen[output] = np.flatnonzero(worse.mean(axis=0) <= threshold * spread)[-1]
        return chosen

    def at(self, penalties: np.ndarray) -> Floats:
        """The loss of all outputs together on each fold, (folds,)."""
        total: Floats = self.values[:, penalties, range(len(penalties))].sum(axis=1)
        return total


def cross_validate(rows: Batch, design: Design, folds: np.ndarray) -> Losses:
    """Fit without each fold and measure the loss there; `folds` (n,) numbers them from 0 on.

    Both maps of the design begin with the linear terms: 1, the states, the actions or instruments.
    """
    moments = fold_sums(rows, design, folds)
    state, action, instrument = (part.shape[1] for part in (rows.x, rows.a, rows.z))
    data = _FoldSums.of(moments)
    straight = 1 + state + np.arange(action)
    first_stage = data.first_stage(straight)
    linear = np.arange(1 + state + action), np.arange(1 + state + instrument)
    values = [data.losses(fold, first_stage, *linear) for fold in range(len(moments))]
    return Losses(np.array(values), first_stage)


def fold_sums(rows: Batch, design: Design, folds: np.ndarray) -> list[Moments]:
    """Moments of the rows of each fold, a few thousand rows at a time."""
    sums = []
    for fold in range(int(folds.max()) + 1):
        at = np.flatnonzero(folds == fold)
        total = Moments.empty(design)
        for start in range(0, len(at), AT_ONCE):
            total = total + Moments.of_batch(design, rows.taken(at[start : start + AT_ONCE]))
        sums.append(total)
    return sums


def _of_blocks(moments: Moments, chosen: np.ndarray) -> Moments:
    """Add the moments of some episodes; rows are counted by their weight."""
    blocks: EpisodeMoments | None = moments.episodes
    if blocks is None or not len(chosen):
        return Moments.empty(moments.design)
    weight, mean = blocks.weight[chosen], blocks.mean[chosen]
    total = float(weight.sum())
    centre = weight @ mean / total
    shift = (mean - centre) * np.sqrt(weight)[:, None]
    scatter = blocks.scatter[chosen].sum(axis=0) + shift.T @ shift
    n = round(total * moments.n / moments.weight)
    return Moments(moments.design, n, total, centre, scatter)


@dataclass(frozen=True, slots=True, repr=False)
class _FoldSums(Compact):
    """Second sums of v by fold, in units of its spread about its mean, and the places of its parts.

    Attributes
    ----------
    sums, weight
        (folds, p, p) and (folds,); the constant stays 1.
    phi, psi, y
        Columns of v.
    shared_phi, shared_psi
        Positions in phi, and in psi, of what both have.
    rough_phi, rough_psi
        Roughness of the columns of phi and psi.
    """

    sums: Floats
    weight: Floats
    phi: np.ndarray
    psi: np.ndarray
    y: np.ndarray
    shared_phi: np.ndarray
    shared_psi: np.ndarray
    rough_phi: Floats
    rough_psi: Floats

    @classmethod
    def of(cls, moments: Sequence[Moments]) -> _FoldSums:
        """Bring the moments of folds to one scale."""
        whole = sum(moments[1:], moments[0])
        design, mean = whole.design, whole.mean.copy()
        scale = np.sqrt(np.diag(whole.scatter) / whole.weight)
        scale[scale <= 1e-12 * np.abs(mean)] = 1.0
        mean[0], scale[0] = 0.0, 1.0  # the constant stays 1
        shifts = [one.mean - mean for one in moments]
        sums = [
            (one.scatter + one.weight * np.outer(shift, shift)) / np.outer(scale, scale)
            for one, shift in zip(moments, shifts, strict=True)
        ]
        psi = list(design.psi_columns)
        return cls(
            *(np.array(sums), np.array([one.weight for one in moments])),
            *(np.array(design.phi_columns), np.array(psi), np.array(design.y_columns)),
            *(np.array(design.shared), np.array([psi.index(c) for c in design.shared])),
            *roughness(design),
        )

    def training(self, fold: int) -> Floats:
        """Mean squares and products of all folds but one."""
        rest = self.weight.sum() - self.weight[fold]
        second: Floats = (self.sums.sum(axis=0) - self.sums[fold]) / rest
        return second

    def first_stage(self, actions: np.ndarray) -> float:
        """The penalty of the first stage that predicts the actions of other folds best."""
        from scipy.linalg import cho_factor, cho_solve

        errors, columns = np.zeros(len(FIRST_STAGE)), self.phi[actions]
        for fold in range(min(FIRST_STAGE_FOLDS, len(self.sums))):
            training, held_out = self.training(fold), self.sums[fold]
            B, A = training[np.ix_(self.psi, self.psi)], training[np.ix_(self.psi, columns)]
            B_held, A_held = (
                held_out[np.ix_(self.psi, self.psi)],
                held_out[np.ix_(self.psi, columns)],
            )
            for i, penalty in enumerate(FIRST_STAGE):
                weights = cho_solve(cho_factor(B + np.diag(penalty * self.rough_psi + LEAST)), A)
                errors[i] += np.sum(weights * (B_held @ weights - 2 * A_held))
        return float(FIRST_STAGE[np.argmin(errors)])

    def losses(self, fold: int, first_stage: float, phi_0: np.ndarray, psi_0: np.ndarray) -> Floats:
        """The loss on a fold for each penalty and output, (penalties, d_y).

        `phi_0` and `psi_0` are the positions of the linear model's columns.
        """
        training, held_out = self.training(fold), self.sums[fold] / self.weight[fold]
        W, first = self._path(training, first_stage)
        first[:, self.shared_phi] = 0.0
        first[self.shared_psi, self.shared_phi] = 1.0  # what the state determines is known
        W_0 = np.zeros(W.shape[1:])
        W_0[phi_0] = _two_stage(training, self.psi[psi_0], self.phi[phi_0], self.y)
        delta = first @ (W - W_0)  # (penalties, d_psi, d_y)
        left = np.vstack([-W_0, np.eye(len(self.y))])
        columns = np.concatenate([self.phi, self.y])
        r0 = held_out[np.ix_(self.psi, columns)] @ left
        B = held_out[np.ix_(self.psi, self.psi)]
        loss = np.einsum("lpo,lpo->lo", delta, B @ delta - 2 * r0)
        rest = training[np.ix_(columns, columns)]
        error = np.einsum("po,pq,qo->o", left, rest, left)  # of spreads of one
        loss_by_output: Floats = loss / np.maximum(error, LEAST_ERROR)
        return loss_by_output

    def _path(self, training: Floats, first_stage: float) -> tuple[Floats, Floats]:
        """Return W for each penalty (penalties, d_phi, d_y), and the first stage (d_psi, d_phi).

        One decomposition serves all (module docstring).
        """
        from scipy.linalg import solve_triangular

        B = training[np.ix_(self.psi, self.psi)]
        root = np.linalg.cholesky(B + np.diag(first_stage * self.rough_psi + LEAST))
        fitted = solve_triangular(root, training[np.ix_(self.psi, self.phi)], lower=True)
        c = solve_triangular(root, training[np.ix_(self.psi, self.y)], lower=True)
        triangle = np.linalg.cholesky(
            fitted.T @ fitted + np.diag(PENALTIES[0] * self.rough_phi + LEAST)
        )
        inverse = solve_triangular(triangle, np.eye(len(triangle)), lower=True)
        values, axes = np.linalg.eigh((inverse * self.rough_phi) @ inverse.T)
        back = inverse.T @ axes
        along = back.T @ (fitted.T @ c)
        shrink = 1 / (1 + (PENALTIES - PENALTIES[0])[:, None] * np.maximum(values, 0.0))
        W = np.einsum("dk,lk,ko->ldo", back, shrink, along, optimize=True)
        return W, solve_triangular(root.T, fitted, lower=False)


def _two_stage(second: Floats, psi: np.ndarray, phi: np.ndarray, y: np.ndarray) -> Floats:
    """Two-stage least squares from mean squares and products, (d_phi, d_y)."""
    A, of_y = second[np.ix_(psi, phi)], second[np.ix_(psi, y)]
    first = np.linalg.lstsq(second[np.ix_(psi, psi)], np.hstack([A, of_y]), rcond=None)[0]
    projected = A.T @ first
    gram, c = projected[:, : len(phi)], projected[:, len(phi) :]
    weights: Floats = np.linalg.lstsq(gram, c, rcond=None)[0]
    return weights
