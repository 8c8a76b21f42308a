"""Equations of several sets of group effects once the largest set is eliminated.

With D the weights of the groups of the largest column, C (G, m) those that they share with the
groups of the other columns, and H (m, m) those that the others share among themselves,

    (H - C' D^-1 C) theta = r.

Few unknowns are solved directly: the matrix C' D^-1 C is a sum over pairs of entries of the rows
of C, which are short, because most groups of the largest column are. Many unknowns are left to
conjugate gradients, which never form the matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ivvi._io.arrays import Floats
from ivvi._io.result import Compact
from ivvi.errors import DataError
from ivvi.moments.welford import run_starts

DENSE = 1000
"""With at most this many unknowns the equations are solved directly."""
FULL = 0.2
"""A row of C with a larger share of nonzero entries is multiplied as a dense row."""
BLOCK = 1 << 17
"""Numbers that are multiplied at a time."""
TOLERANCE = 1e-13
"""Tolerance of conjugate gradients, relative to the right-hand side."""
MOST_STEPS = 20_000
SINGULAR = 1e-11
"""Eigenvalues of the equations, in units of the groups' weights, that count as zero."""


@dataclass(frozen=True, slots=True, repr=False)
class ReducedEquations(Compact):
    """The equations of the other columns.

    Attributes
    ----------
    H, across
        H (m, m) and C (G, m), sparse.
    inverse
        One over the weights of the groups of the largest column, (G,).
    diagonal
        Weights of the groups of the other columns, (m,).
    """

    H: Any
    across: Any
    inverse: Floats
    diagonal: Floats

    @classmethod
    def of(
        cls,
        codes: Sequence[Any],
        weights: Floats | None,
        weight: Sequence[Floats],
        largest: int,
        others: Sequence[int],
    ) -> ReducedEquations:
        """Make the equations from the groups (n,) of the rows in each column."""
        from scipy import sparse

        def shared(i: int, j: int) -> Any:
            return incidence(codes[i], codes[j], weights, (len(weight[i]), len(weight[j])))

        parts = [shared(largest, j) for j in others]
        across = parts[0] if len(parts) == 1 else sparse.hstack(parts, format="csr")
        blocks = [
            [sparse.diags_array(weight[i]) if i == j else shared(i, j) for j in others]
            for i in others
        ]
        w = weight[largest]
        inverse = np.divide(1.0, w, out=np.zeros_like(w), where=w > 0)
        diagonal = np.concatenate([weight[j] for j in others])
        return cls(sparse.block_array(blocks, format="csr"), across, inverse, diagonal)

    def apply(self, theta: Floats) -> Floats:
        """Return the left-hand side, (m, p)."""
        inner = self.across @ theta
        inner *= self.inverse[:, None]
        product: Floats = self.H @ theta - self.across.T @ inner
        return product

    def solve(self, right: Floats) -> tuple[Floats, Any]:
        """Solve for (m, p) right-hand sides; if there are several solutions, any of them will do.

        Also returns which of the unknowns share a group, (m, m), or None if that was not found.
        """
        if len(right) > DENSE:
            return self._by_gradients(right), None
        return self._directly(right)

    def _directly(self, right: Floats) -> tuple[Floats, Any]:
        """Invert the matrix where it has an inverse, with one step of refinement."""
        pairs = gram(self.across, self.inverse)
        unit = 1 / np.sqrt(np.where(self.diagonal > 0, self.diagonal, 1.0))
        values, vectors = np.linalg.eigh((self.H.toarray() - pairs) * np.outer(unit, unit))
        good = values > SINGULAR
        half = unit[:, None] * vectors[:, good]

        def inverted(side: Floats) -> Floats:
            solved: Floats = half @ (half.T @ side / values[good, None])
            return solved

        first = inverted(right)
        refined: Floats = first + inverted(right - self.apply(first))
        return refined, pairs > 0

    def _by_gradients(self, right: Floats) -> Floats:
        """Conjugate gradients of all right-hand sides at once, scaled by the groups' weights."""
        precondition = (1 / np.where(self.diagonal > 0, self.diagonal, 1.0))[:, None]
        theta, left = np.zeros_like(right), right.copy()
        scaled = precondition * left
        direction, size = scaled.copy(), np.sum(left * scaled, axis=0)
        enough = TOLERANCE**2 * np.where(size > 0, size, 1.0)
        for _ in range(MOST_STEPS):
            if (size <= enough).all():
                return theta
            product = self.apply(direction)
            curvature = np.sum(direction * product, axis=0)
            go = np.where((curvature > 0) & (size > enough), size, 0.0)
            step = np.divide(go, curvature, out=np.zeros_like(go), where=curvature > 0)
            theta += step * direction
            left -= step * product
            scaled = precondition * left
            new = np.sum(left * scaled, axis=0)
            direction = scaled + np.divide(new, size, out=np.zeros_like(new), where=size > 0) * (
                direction
            )
            size = new
        raise DataError(
            f"absorbing the effects did not converge in {MOST_STEPS:,} steps: the groups of the "
            "columns hardly overlap; absorb fewer columns"
        )


def incidence(one: Any, two: Any, weights: Floats | None, shape: tuple[int, int]) -> Any:
    """Return the weight (G, m) that groups of two columns share, from the groups (n,) of rows."""
    from scipy import sparse

    if weights is None:
        return _counted(one, two, shape)
    if (one[1:] >= one[:-1]).all():  # rows that stand in order need no sorting
        matrix = sparse.csr_array((weights, two, _ends(one, shape[0])), shape=shape)
        matrix.sum_duplicates()
        return matrix
    return sparse.coo_array((weights, (one, two)), shape=shape).tocsr()


def _counted(one: Any, two: Any, shape: tuple[int, int]) -> Any:
    """Return how many rows groups of two columns share, (G, m): pairs, as one number, sorted.

    The sorted pairs are counted a few at a time, in memory that is used again.
    """
    from scipy import sparse

    bits = max(shape[1] - 1, 1).bit_length()
    kind = np.uint32 if (shape[0] << bits) < 1 << 32 else np.uint64
    pairs = one.astype(kind)
    pairs <<= kind(bits)
    pairs |= two.astype(kind)
    pairs.sort()
    counts, columns = [], []
    ends: Any = np.zeros(shape[0] + 1, np.int32 if len(pairs) < 1 << 31 else np.int64)
    start = 0
    while start < len(pairs):
        stop = start + np.searchsorted(pairs[start:], pairs[start : start + BLOCK][-1], "right")
        part = pairs[start:stop]
        starts = run_starts(part)
        counts.append(np.diff(starts, append=len(part)).astype(np.float64))
        columns.append((part[starts] & kind((1 << bits) - 1)).astype(np.int32))
        rows = (part[starts] >> kind(bits)).astype(np.int64)
        lengths = np.bincount(rows - rows[0])
        ends[rows[0] + 1 :][: len(lengths)] += lengths.astype(ends.dtype)
        start = stop
    np.cumsum(ends, out=ends)
    return sparse.csr_array((np.concatenate(counts), np.concatenate(columns), ends), shape=shape)


def _ends(rows: Any, count: int) -> Any:
    """Return where each of `count` rows of a sparse matrix ends, after a zero, (count + 1,)."""
    ends = np.zeros(count + 1, np.int32 if len(rows) < 1 << 31 else np.int64)
    np.cumsum(np.bincount(rows, minlength=count), out=ends[1:])
    return ends


def gram(C: Any, scale: Floats) -> Floats:
    """Return C' diag(scale) C, (m, m), of a sparse C (G, m) with many short rows.

    Rows of one length are taken together: all pairs of their entries are added up by place.
    """
    m = C.shape[1]
    lengths = np.diff(C.indptr)
    total = np.zeros(m * m)
    for length in np.flatnonzero(np.bincount(lengths))[::-1].tolist():
        rows = np.flatnonzero(lengths == length)
        if length <= FULL * m:
            total += _add_pairs(C, scale, rows, length)
            continue
        for part in np.array_split(rows, 1 + len(rows) * m // BLOCK):
            whole = C[part].toarray()
            total += (whole.T @ (scale[part, None] * whole)).ravel()
    return total.reshape(m, m)


def _add_pairs(C: Any, scale: Floats, rows: Any, length: int) -> Floats:
    """Return what rows (R,) with `length` entries each add to the matrix, (m * m,)."""
    m = C.shape[1]
    total, (first, second) = np.zeros(m * m), np.triu_indices(length)
    for part in np.array_split(rows, 1 + len(rows) * len(first) // BLOCK):
        entries = C.indptr[part] + np.arange(length)[:, None]
        column, value = C.indices[entries].astype(np.int64), C.data[entries]
        place = (column * m)[first] + column[second]
        product = (value * scale[part])[first] * value[second]
        total += np.bincount(place.ravel(), product.ravel(), m * m)
    upper = total.reshape(m, m)
    both: Floats = upper + upper.T
    np.fill_diagonal(both, np.diag(upper))
    return both.ravel()
