"""Fixed effects of groups: what they take from each row, and how many coefficients they are.

With v a row and g_j its group in the j-th column, least squares of v on dummies of all groups
solves the normal equations

    n_g theta_jg + sum_{k != j} sum_h N_jk[g, h] theta_kh = s_jg,

where s_jg is the sum of v over the group, n_g its weight, and N_jk the weight that groups of two
columns share. One pass gives all of these, so that the equations are solved without the rows:
one column in closed form; of several, the largest is eliminated and the rest is solved directly
or by conjugate gradients. What is left of a row is v - sum_j theta_j[g_j].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ivvi.errors import DataError
from ivvi.features.design import Floats
from ivvi.moments.welford import Ints

DENSE = 1000
"""Unknowns up to which the reduced equations are solved directly."""
TOLERANCE = 1e-13
"""Size of what conjugate gradients leave of the equations, against their right-hand side."""
MOST_STEPS = 20_000
NOTHING_LEFT = 1e-12
"""Share of a column's squares within groups below which the groups determine it."""
SINGULAR = 1e-11
"""Eigenvalues of the equations, in units of the groups' weights, that count as zero."""


@dataclass(frozen=True, slots=True)
class Absorbed:
    """The columns whose effects were absorbed, and the coefficients that they stand for.

    Attributes
    ----------
    columns
        The columns.
    levels
        Groups of each, after rows that are alone in a group were dropped.
    redundant
        Of these, how many the columns before determine (connected sets of groups).
    nested
        For each, the cluster columns whose clusters hold its groups whole.
    singletons
        Rows that were dropped.
    """

    columns: tuple[str, ...]
    levels: tuple[int, ...]
    redundant: tuple[int, ...]
    nested: tuple[tuple[str, ...], ...]
    singletons: int

    def freedom(self, clusters: Sequence[str] = ()) -> int:
        """Return the coefficients that were absorbed beside the constant.

        As reghdfe counts them: effects whose groups lie whole inside `clusters` cost nothing.
        """
        inside = [bool(set(held) & set(clusters)) for held in self.nested]
        parts = zip(self.levels, self.redundant, inside, strict=True)
        left = sum(levels - redundant for levels, redundant, nested in parts if not nested)
        if any(inside):  # they hold the constant, whichever column comes first
            return left - (not inside[0])
        return left - 1


class EffectTally:
    """Adds up rows by the groups of several columns, over the batches of a pass.

    Parameters
    ----------
    columns
        Names of the columns.
    inside
        Names of the columns in whose clusters the groups may lie.
    """

    def __init__(self, columns: Sequence[str], inside: Sequence[str]) -> None:
        self.columns, self._inside = tuple(columns), tuple(inside)
        self.origin: Floats = np.zeros(0)
        self._square: Floats = np.zeros(0)
        self._sums: list[Floats] = []
        self._weight = [np.zeros(0) for _ in columns]
        self._owner = [{name: np.zeros(0, np.int64) for name in inside} for _ in columns]
        self._codes: list[list[Any]] = [[] for _ in columns]
        self._weights: list[Floats] = []
        self._rows = 0

    def add(
        self, V: Floats, weight: Floats | None, codes: Sequence[Ints], clusters: Sequence[Ints]
    ) -> None:
        """Add rows V (n, p) with their groups (n,) in each column and clusters (n,)."""
        if weight is not None and not weight.all():
            used = weight > 0
            V, weight = V[used], weight[used]
            codes, clusters = [c[used] for c in codes], [c[used] for c in clusters]
        if not len(V):
            return
        if not len(self.origin):
            self.origin, self._square = V[0].copy(), np.zeros(V.shape[1])
            self._sums = [np.zeros((V.shape[1], 0)) for _ in self.columns]
        moved = (V - self.origin).T
        weighed = moved if weight is None else moved * weight
        self._square += np.einsum("pn,pn->p", weighed, moved)
        self._rows += len(V)
        for j, code in enumerate(codes):
            self._grow(j, int(code.max()) + 1)
            add_at(self._weight[j], code, np.ones(len(V)) if weight is None else weight)
            for total, column in zip(self._sums[j], weighed, strict=True):
                add_at(total, code, column)
            self._look(j, code, clusters)
            self._codes[j].append(code.astype(np.int32))
        if weight is not None:
            self._weights.append(weight)

    def _grow(self, j: int, count: int) -> None:
        size = self._sums[j].shape[1]
        if count <= size:
            return
        more = max(count, 2 * size) - size
        self._sums[j] = np.pad(self._sums[j], ((0, 0), (0, more)))
        self._weight[j] = np.pad(self._weight[j], (0, more))
        for name, owner in self._owner[j].items():
            self._owner[j][name] = np.pad(owner, (0, more), constant_values=-1)

    def _look(self, j: int, code: Ints, clusters: Sequence[Ints]) -> None:
        """Forget the clusters that do not hold the groups whole."""
        for name, cluster in zip(self._inside, clusters, strict=True):
            if (owner := self._owner[j].get(name)) is None:
                continue
            new = owner[code] < 0
            owner[code[new]] = cluster[new]
            if (owner[code] != cluster).any():
                del self._owner[j][name]

    def solve(self) -> Effects:
        """Return the effects, and what is to be dropped."""
        if not self._rows:
            raise DataError("the log has no rows of a weight above zero")
        sizes = [int(np.flatnonzero(weight)[-1]) + 1 for weight in self._weight]
        codes = [np.concatenate(parts) for parts in self._codes]
        self._codes = []
        weights = np.concatenate(self._weights) if self._weights else None
        weight = [w[:size] for w, size in zip(self._weight, sizes, strict=True)]
        sums = [s[:, :size] for s, size in zip(self._sums, sizes, strict=True)]
        theta = solve_effects(codes, weights, weight, sums)
        live = live_rows(codes, sizes)
        if not live.any():
            raise DataError(
                f"all {self._rows:,} rows are alone in their group of {' or '.join(self.columns)}: "
                "absorbing its effects leaves nothing to estimate from"
            )
        kept = [code[live] for code in codes]
        known = None if weights is None else weights[live]
        mass = [
            np.bincount(c, known, size).astype(np.float64)
            for c, size in zip(kept, sizes, strict=True)
        ]
        shares = [t @ m for t, m in zip(theta, mass, strict=True)]
        centre = self.origin + np.sum(shares, axis=0) / mass[0].sum()
        nested = tuple(tuple(owner) for owner in self._owner)
        levels = tuple(int(np.count_nonzero(m)) for m in mass)
        lost = int(len(live) - live.sum())
        absorbed = Absorbed(self.columns, levels, redundant_levels(kept, sizes), nested, lost)
        explained = np.sum(
            [np.sum(t * s, axis=1) for t, s in zip(theta, sums, strict=True)], axis=0
        )
        determined = self._square - explained <= NOTHING_LEFT * self._square
        counts = [np.bincount(c, minlength=size) for c, size in zip(kept, sizes, strict=True)]
        return Effects(absorbed, theta, mass, counts, self.origin, centre, determined)


@dataclass(frozen=True, slots=True)
class Effects:
    """The effects of each column on the varying columns of v.

    Attributes
    ----------
    absorbed
        How many they are.
    theta
        For each column, the effects of its groups, (p, G).
    mass
        For each column, the weight of the rows of each group that are kept, (G,).
    counts
        The same as numbers of rows, (G,).
    origin, centre
        v of the first row, from which effects are measured, and the mean of v, (p,).
    determined
        Which columns of v do not vary within the groups, (p,).
    """

    absorbed: Absorbed
    theta: list[Floats]
    mass: list[Floats]
    counts: list[Ints]
    origin: Floats
    centre: Floats
    determined: Any

    def keeps(self, codes: Sequence[Ints]) -> Any:
        """Tell which rows are kept, (n,): those with company in every group."""
        alive = [mass[code] > 0 for mass, code in zip(self.mass, codes, strict=True)]
        return np.logical_and.reduce(alive)

    def within(self, V: Floats, codes: Sequence[Ints]) -> Floats:
        """Return what the effects leave of rows V (n, p), around the mean of all, (n, p)."""
        left = np.empty((V.shape[1], len(V)))
        for i, column in enumerate(V.T):
            np.subtract(column, self.origin[i], out=left[i])
            for theta, code in zip(self.theta, codes, strict=True):
                left[i] -= theta[i][code]
            left[i] += self.centre[i]
        return left.T


def add_at(total: Floats, code: Ints, values: Floats) -> None:
    """Add values (n,) to the places `code` (n,) of a total."""
    low, high = int(code.min()), int(code.max())
    if high - low < 4 * len(code):
        total[low : high + 1] += np.bincount(code - low, values, high - low + 1)
    else:
        np.add.at(total, code, values)


def live_rows(codes: Sequence[Any], sizes: Sequence[int]) -> Any:
    """Tell which rows have company in every group once those that have none are gone, (n,)."""
    live = np.ones(len(codes[0]), dtype=bool)
    while True:
        alone = np.zeros_like(live)
        for code, size in zip(codes, sizes, strict=True):
            counts = np.bincount(code[live], minlength=size)
            alone |= live & (counts == 1)[code]
        if not alone.any():
            return live
        live &= ~alone


def redundant_levels(codes: Sequence[Any], sizes: Sequence[int]) -> tuple[int, ...]:
    """Return, for each column, how many of its groups' effects earlier columns determine.

    Those of a pair are as many as there are connected sets of their groups; of several pairs
    the most, which is a lower bound.
    """
    found = [0]
    for j in range(1, len(codes)):
        pairs = [_connected(codes[i], codes[j], sizes[i], sizes[j]) for i in range(j)]
        found.append(max(pairs))
    return tuple(found)


def _connected(one: Any, two: Any, first: int, second: int) -> int:
    from scipy import sparse
    from scipy.sparse.csgraph import connected_components

    joined = sparse.coo_array(
        (np.ones(len(one), np.int8), (one, two + np.int32(first))), shape=(first + second,) * 2
    ).tocsr()
    labels = connected_components(joined, directed=False)[1]
    return len(np.unique(labels[np.unique(one)]))


def solve_effects(
    codes: Sequence[Any], weights: Floats | None, weight: Sequence[Floats], sums: Sequence[Floats]
) -> list[Floats]:
    """Solve the normal equations; returns the effects of each column, (p, G_j)."""
    inverse = [np.divide(1.0, w, out=np.zeros_like(w), where=w > 0) for w in weight]
    if len(codes) == 1:
        return [sums[0] * inverse[0]]
    largest = int(np.argmax([len(w) for w in weight]))
    others = [j for j in range(len(codes)) if j != largest]
    system = _Reduced.of(codes, weights, weight, largest, others)
    right = np.vstack([sums[j].T for j in others])
    scaled = inverse[largest][:, None] * sums[largest].T
    right = right - system.across.T @ scaled
    found = system.solve(right)
    first = scaled - inverse[largest][:, None] * (system.across @ found)
    theta: list[Floats] = [np.zeros((0, 0))] * len(codes)
    theta[largest] = np.ascontiguousarray(first.T)
    at = 0
    for j in others:
        size = len(weight[j])
        theta[j] = np.ascontiguousarray(found[at : at + size].T)
        at += size
    return theta


@dataclass(frozen=True, slots=True)
class _Reduced:
    """The equations of the other columns once the largest is eliminated.

    (H - C' D^-1 C) theta = r, with H the weights that groups of the other columns share, C those
    that they share with the groups of the largest, and D its weights.
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
    ) -> _Reduced:
        from scipy import sparse

        value = np.ones(len(codes[0])) if weights is None else weights

        def shared(i: int, j: int) -> Any:
            shape = (len(weight[i]), len(weight[j]))
            return sparse.coo_array((value, (codes[i], codes[j])), shape=shape).tocsr()

        across = sparse.hstack([shared(largest, j) for j in others], format="csr")
        blocks = [
            [sparse.diags_array(weight[i]) if i == j else shared(i, j) for j in others]
            for i in others
        ]
        w = weight[largest]
        inverse = np.divide(1.0, w, out=np.zeros_like(w), where=w > 0)
        diagonal = np.concatenate([weight[j] for j in others])
        H = sparse.block_array(blocks, format="csr")
        return cls(H, across, inverse, diagonal)

    def apply(self, theta: Floats) -> Floats:
        """Return the left-hand side, (m, p)."""
        inner = self.inverse[:, None] * (self.across @ theta)
        product: Floats = self.H @ theta - self.across.T @ inner
        return product

    def solve(self, right: Floats) -> Floats:
        """Solve for (m, p) right-hand sides; of many solutions the choice does not matter."""
        return self._directly(right) if len(right) <= DENSE else self._by_gradients(right)

    def _directly(self, right: Floats) -> Floats:
        """Invert the matrix where it has an inverse, with one step of refinement."""
        scaled = self.across.multiply(np.sqrt(self.inverse)[:, None]).tocsr()
        whole = self.H.toarray() - (scaled.T @ scaled).toarray()
        unit = 1 / np.sqrt(np.where(self.diagonal > 0, self.diagonal, 1.0))
        values, vectors = np.linalg.eigh(whole * np.outer(unit, unit))
        good = values > SINGULAR
        half = unit[:, None] * vectors[:, good]

        def inverted(side: Floats) -> Floats:
            solved: Floats = half @ (half.T @ side / values[good, None])
            return solved

        first = inverted(right)
        refined: Floats = first + inverted(right - self.apply(first))
        return refined

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
