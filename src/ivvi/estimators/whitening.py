"""Whitened features: orthonormal coordinates without units, the exogenous features first.

Inference is about products of residuals and instruments. In the coordinates

    psi~ = (v - shift) to_white,   E[psi~ psi~^T] = I

those products keep their digits whatever the units and means of the columns, collinear
columns drop out, and what the excluded instruments add is a block of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ivvi._io.arrays import Floats
from ivvi._io.result import Compact
from ivvi.estimators.estimate import RANK_TOLERANCE, Rows
from ivvi.features.design import Design
from ivvi.moments import Moments, remembered


@dataclass(frozen=True, slots=True, repr=False)
class Whitened(Compact):
    """An orthonormal basis of the span of psi (or of phi).

    Attributes
    ----------
    shift, to_white
        psi~ = (v - shift) to_white, with v (p,) and to_white (p, r). The constant, when phi and
        psi share it, is the first coordinate, and the others are centred.
    basis
        psi~ of the compressed rows (`Rows`) without the constant, (m, r) or (m, r - 1).
    exogenous
        How many coordinates, the constant among them, span what phi and psi share.
    """

    shift: Floats
    to_white: Floats
    basis: Floats
    exogenous: int

    @property
    def rank(self) -> int:
        """Number of coordinates, the constant's included."""
        return int(self.to_white.shape[1])

    def means(self, moments: Moments, R: Floats) -> Floats:
        """Return E[(R v) psi~^T], (d, r), for a map R (d, p) of the rows v."""
        offset = moments.mean - self.shift
        second = moments.scatter / moments.weight + np.outer(offset, offset)
        means: Floats = R @ second @ self.to_white + np.outer(
            R @ self.shift, offset @ self.to_white
        )
        return means

    def residual_map(self, moments: Moments, R: Floats) -> Floats:
        """Return the map of v to what the regression of R v on psi~ leaves, (d, p)."""
        fitted = self.means(moments, R) @ self.to_white.T
        rest: Floats = R - fitted
        if moments.design.constant is not None:
            rest[:, moments.design.constant] += fitted @ self.shift
        return rest

    def of_psi(self, design: Design) -> Floats:
        """Return the map (d_psi, r) of psi to psi~: the constant, if any, holds the shift."""
        psi = list(design.psi_columns)
        matrix: Floats = self.to_white[psi].copy()
        if design.constant is not None:
            matrix[psi.index(design.constant)] -= self.shift @ self.to_white
        return matrix

    @property
    def included(self) -> Floats:
        """The part of the basis that the exogenous features span, without the constant."""
        return self.basis[:, : self._slopes]

    @property
    def excluded(self) -> Whitened:
        """What the excluded instruments add."""
        to_white, basis = self.to_white[:, self.exogenous :], self.basis[:, self._slopes :]
        return Whitened(self.shift, to_white, basis, 0)

    @property
    def _slopes(self) -> int:
        return int(self.exogenous - (self.rank - self.basis.shape[1]))


@remembered
def whiten(moments: Moments, of: str = "psi") -> Whitened:
    """Return the coordinates of psi, or of phi."""
    design, rows = moments.design, Rows.of(moments)
    if of == "phi":
        columns, values = rows.phi_kept, rows.Phi
        shared = np.ones(len(columns), dtype=bool)
    else:
        columns, values = np.array(design.psi_columns)[rows.psi_kept], rows.Psi
        shared = np.isin(columns, design.shared)
    order = np.concatenate([np.flatnonzero(shared), np.flatnonzero(~shared)])
    combine, count = np.eye(len(order)), int(shared.sum())
    if of == "psi" and (extra := sorted(set(exogenous(moments)) - set(design.shared))):
        determined = rows.Phi[:, np.isin(rows.phi_kept, extra)]
        within = np.linalg.lstsq(values[:, order], determined, rcond=None)[0]
        combine = np.hstack([combine[:, :count], within, combine[:, count:]])
        count += len(extra)
    basis, back, first = _orthonormal(values[:, order] @ combine, count)
    back = combine @ back
    constant = design.constant
    ahead = int(constant is not None)
    to_white = np.zeros((design.width, basis.shape[1] + ahead))
    to_white[columns[order], ahead:] = back
    shift = np.zeros(design.width)
    if constant is not None:
        shift = moments.mean.copy()
        shift[constant], to_white[constant, 0] = 0.0, 1.0
    return Whitened(shift, to_white, basis, first + ahead)


@remembered
def exogenous(moments: Moments) -> tuple[int, ...]:
    """Columns of phi that are instruments too: those psi has, and those it determines.

    A product of two states among the interactions, or a state inside a function of one's own,
    is a column of phi's own by its name, and yet nothing but a combination of psi. A feature
    of the actions alone stays endogenous whatever determines it.
    """
    design = moments.design
    starts = [(at, of == "action" and block.of == "both") for block, of, at in design.pieces]
    ends = [at for at, _ in starts[1:]] + [len(design.phi_names)]
    mixed = [
        c for (at, both), end in zip(starts, ends, strict=True) if both for c in range(at, end)
    ]
    if not mixed:
        return design.shared
    rows = Rows.of(moments)
    basis = _principal(_unit(rows.Psi))[0]
    values = rows.Phi[:, np.isin(rows.phi_kept, mixed)]
    left = np.linalg.norm(values - basis @ (basis.T @ values), axis=0)
    determined = left <= RANK_TOLERANCE * np.linalg.norm(values, axis=0)
    return tuple(sorted({*design.shared, *np.array(mixed)[determined].tolist()}))


def orthonormal(columns: Floats) -> Floats:
    """Return an orthonormal basis (m, rank) of columns, whatever their units."""
    return _orthonormal(columns, 0)[0]


def _orthonormal(columns: Floats, first: int) -> tuple[Floats, Floats, int]:
    """Return an orthonormal basis, columns `to_white`, with `to_white`, and the rank of `first`.

    The first of the basis span the first of the columns. Columns are brought to one scale,
    so that the rank does not depend on units.
    """
    scale = np.linalg.norm(columns, axis=0)
    scale[scale == 0] = 1.0
    columns = columns / scale
    if 0 < columns.shape[1] <= columns.shape[0]:
        span, triangle = np.linalg.qr(columns)
        if np.abs(np.diag(triangle)).min() > RANK_TOLERANCE:
            return span, np.linalg.inv(triangle) / scale[:, None], first
    Q1, T1 = _principal(columns[:, :first])
    inside = Q1.T @ columns[:, first:]
    rest = columns[:, first:] - Q1 @ inside
    Q2, T2 = _principal(rest)
    to_white = np.zeros((columns.shape[1], Q1.shape[1] + Q2.shape[1]))
    to_white[:first, : Q1.shape[1]] = T1
    to_white[:first, Q1.shape[1] :] = -T1 @ inside @ T2
    to_white[first:, Q1.shape[1] :] = T2
    return np.hstack([Q1, Q2]), to_white / scale[:, None], Q1.shape[1]


def _unit(columns: Floats) -> Floats:
    """Bring columns to length one."""
    scale = np.linalg.norm(columns, axis=0)
    unit: Floats = columns / np.where(scale > 0, scale, 1.0)
    return unit


def _principal(columns: Floats) -> tuple[Floats, Floats]:
    """Return the principal axes that are not numerically zero, and the map of columns to them."""
    left, size, right = np.linalg.svd(columns, full_matrices=False)
    keep = size > RANK_TOLERANCE
    return left[:, keep], right[keep].T / size[keep]
