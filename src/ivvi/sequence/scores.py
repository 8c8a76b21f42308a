"""Scores of a sequence's checks: sums by block of products that have mean zero under the null."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ivvi.estimators.estimate import RANK_TOLERANCE, Floats
from ivvi.sequence.lagged_moments import SequenceMoments


class Scores:
    """Scores of the checks by block, from the moments of a sequence and the weights W.

    Outputs that are fitted exactly (`exact`, (d_y,)) have residuals of zero, not rounding error.
    `clusters` are the columns by which the errors of a fit are clustered.
    """

    def __init__(
        self,
        moments: SequenceMoments,
        W: Floats,
        exact: NDArray[np.bool_],
        clusters: tuple[str, ...] = (),
    ) -> None:
        m, v = moments, moments.vector
        self.moments, self.clusters = m, clusters or ("episode",)
        self.total = m.pairs.sum(axis=0)
        self.state = state_columns(v.phi, v.psi)
        self.e = np.where(exact, 0.0, v.y - v.phi @ W.T)
        every = m.whole.sum(axis=0)
        self.fitted = v.psi @ (_inverse(v.psi.T @ every @ v.psi) @ (v.psi.T @ every @ v.phi))
        self.bread = _inverse(self.fitted.T @ every @ v.phi)
        self.influence = self.products(m.whole, self.fitted, self.e)

    def products(self, sums: Floats, one: Floats, other: Floats) -> Floats:
        """Sum of (one' u)(other' u)' by block, (blocks, d_one, d_other)."""
        product: Floats = one.T @ sums @ other
        return product

    def partialled(self, part: Floats, given: Floats) -> Floats:
        """Subtract from a map of pairs its regression on others."""
        slopes = _inverse(given.T @ self.total @ given) @ (given.T @ self.total @ part)
        rest: Floats = part - given @ slopes
        before, after = (np.einsum("ij,ik,kj->j", x, self.total, x) for x in (part, rest))
        nothing = after <= RANK_TOLERANCE**2 * before
        rest[:, nothing] = 0.0
        return rest

    def association(self, one: Floats, other: Floats, given: Floats) -> Floats:
        """Scores (blocks, d_one, d_other) of the covariance of two parts given a third.

        Their mean is that of the products of what the third leaves of both. Their spread is that of
        the same products with the slopes of `other` in the other blocks (half a jackknife): where
        few blocks tell the slopes, as steps do whose instrument all episodes share, a block's own
        part in them hides some of its spread, and tests would reject too often.
        """
        pairs = self.moments.pairs
        one, other = self.partialled(one, given), self.partialled(other, given)
        scores = self.products(pairs, one, other)
        gram = self.products(pairs, given, given)
        of_one, of_other = (self.products(pairs, given, part) for part in (one, other))
        inverse = np.array([_inverse(rest) for rest in gram.sum(axis=0) - gram])
        change = np.swapaxes(of_one, 1, 2) @ inverse @ of_other
        jackknifed: Floats = scores + change - change.mean(axis=0)
        return jackknifed

    def drift(self, late: Floats) -> Floats:
        """Scores (blocks, d_y, d_phi) of a change of W in the rows of `late`."""
        moved = late.sum(axis=0)
        share = (self.fitted.T @ moved @ self.moments.vector.phi) @ self.bread
        scores = self.products(late, self.fitted, self.e) - share @ self.influence
        return np.swapaxes(scores, 1, 2)


def state_columns(phi: Floats, psi: Floats) -> Floats:
    """Return the maps that phi and psi share: the constant and the features of the state."""
    shared = [j for j in range(psi.shape[1]) if (psi[:, [j]] == phi).all(axis=0).any()]
    return psi[:, shared]


def _inverse(gram: Floats) -> Floats:
    """Pseudo-inverse of a matrix of second moments, whatever the units."""
    scale = np.sqrt(np.maximum(np.diag(gram), 0.0))
    scale[scale == 0] = 1.0
    units = np.outer(scale, scale)
    inverse: Floats = np.linalg.pinv(gram / units, RANK_TOLERANCE**2, hermitian=True) / units
    return inverse
