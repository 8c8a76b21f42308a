"""Absorb fixed effects of groups: the effects for each row, and their degrees of freedom.

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

from ivvi._io.arrays import Floats, Ints
from ivvi._io.result import Compact
from ivvi.errors import DataError
from ivvi.moments.fixed_effect_equations import ReducedEquations

NOTHING_LEFT = 1e-12
"""Share of a column's variation within groups below which the groups determine it."""


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
        """Return the coefficients that were absorbed besides the constant.

        As reghdfe counts them: effects whose groups lie whole inside `clusters` cost nothing.
        """
        inside = [bool(set(columns) & set(clusters)) for columns in self.nested]
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
        mass = np.ones(len(V)) if weight is None else weight
        for j, code in enumerate(codes):
            self._grow(j, int(code.max()) + 1)
            add_at(self._weight[j], code, mass)
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
            raise DataError("the log has no rows with a weight above zero")
        sizes = [int(np.flatnonzero(weight)[-1]) + 1 for weight in self._weight]
        codes = [np.concatenate(self._codes.pop(0)) for _ in self.columns]
        weights = np.concatenate(self._weights) if self._weights else None
        weight = [w[:size] for w, size in zip(self._weight, sizes, strict=True)]
        sums = [s[:, :size] for s, size in zip(self._sums, sizes, strict=True)]
        theta, joined = solve_effects(codes, weights, weight, sums)
        live, counts = live_rows(codes, sizes)
        if live is not None and not live.any():
            raise DataError(
                f"all {self._rows:,} rows are singletons in {' or '.join(self.columns)}: "
                "absorbing its effects leaves nothing to estimate from"
            )
        redundant = redundant_levels(codes, counts, live, joined)
        mass: list[Floats] = [count.astype(np.float64) for count in counts]
        if weights is not None:
            live_weights = weights if live is None else weights * live
            parts = zip(codes, sizes, strict=True)
            mass = [np.bincount(c, live_weights, s).astype(np.float64) for c, s in parts]
        shares = [m @ t for t, m in zip(theta, mass, strict=True)]
        centre = self.origin + np.sum(shares, axis=0) / mass[0].sum()
        nested = tuple(tuple(owner) for owner in self._owner)
        levels = tuple(int(np.count_nonzero(count)) for count in counts)
        lost = self._rows - int(counts[0].sum())
        absorbed = Absorbed(self.columns, levels, redundant, nested, lost)
        explained = np.sum(
            [np.einsum("gp,pg->p", t, s) for t, s in zip(theta, sums, strict=True)], axis=0
        )
        determined = self._square - explained <= NOTHING_LEFT * self._square
        return Effects(absorbed, theta, mass, counts, self.origin, centre, determined)


@dataclass(frozen=True, slots=True, repr=False)
class Effects(Compact):
    """The effects of each column on the varying columns of v.

    Attributes
    ----------
    absorbed
        How many they are.
    theta
        For each column, the effects of its groups, (G, p).
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
        """Return which rows are kept, (n,): those that are not alone in any group."""
        if not self.absorbed.singletons and all(count.all() for count in self.counts):
            return np.ones(len(codes[0]), dtype=bool)
        alive = [(count > 0)[code] for count, code in zip(self.counts, codes, strict=True)]
        return np.logical_and.reduce(alive)

    def within(self, V: Floats, codes: Sequence[Ints]) -> Floats:
        """Return rows V (n, p) less their effects, around the mean of all rows, (n, p)."""
        taken = np.take(self.theta[0], codes[0], axis=0)
        for theta, code in zip(self.theta[1:], codes[1:], strict=True):
            taken += np.take(theta, code, axis=0)
        taken += self.origin - self.centre
        left = V.T.copy()
        left -= taken.T
        return left.T


def add_at(total: Floats, code: Ints, values: Floats) -> None:
    """Add values (n,) to the places `code` (n,) of a total."""
    low, high = int(code.min()), int(code.max())
    if high - low < 4 * len(code):
        total[low : high + 1] += np.bincount(code - low, values, high - low + 1)
    else:
        np.add.at(total, code, values)


def live_rows(codes: Sequence[Any], sizes: Sequence[int]) -> tuple[Any, list[Ints]]:
    """Find the rows that are not alone in any group once singletons are gone.

    Returns which these are, (n,), or None for all of them, and how many each group has, (G,).
    """
    counts = [np.bincount(c, minlength=size) for c, size in zip(codes, sizes, strict=True)]
    live = None
    while any((count == 1).any() for count in counts):
        alone = np.zeros(len(codes[0]), dtype=bool)
        for code, count in zip(codes, counts, strict=True):
            alone |= (count == 1)[code]
        if live is not None:
            alone &= live
        gone = np.flatnonzero(alone)
        for code, count in zip(codes, counts, strict=True):
            np.subtract.at(count, code[gone], 1)
        live = ~alone if live is None else live & ~alone
    return live, counts


def redundant_levels(
    codes: Sequence[Any], counts: Sequence[Ints], live: Any, joined: Any = None
) -> tuple[int, ...]:
    """Return, for each column, how many of its groups' effects earlier columns determine.

    Those of a pair are as many as there are connected sets of their groups; of several pairs
    the most, which is a lower bound. Of two columns, `joined` may say which groups (m,) of the
    smaller one share a group of the larger, (m, m). Rows alone in a group join no two groups
    that are left, so that they may count in it.
    """
    if joined is not None and len(codes) == 2:
        from scipy.sparse.csgraph import connected_components

        smaller = 1 - int(np.argmax([len(count) for count in counts]))
        used = np.flatnonzero(counts[smaller])
        return (0, int(connected_components(joined[np.ix_(used, used)], directed=False)[0]))
    live_codes = [code if live is None else code[live] for code in codes]
    most = [0]
    for j in range(1, len(codes)):
        pairs = [_connected(live_codes[i], live_codes[j], counts[i], counts[j]) for i in range(j)]
        most.append(max(pairs))
    return tuple(most)


def _connected(one: Any, two: Any, first: Ints, second: Ints) -> int:
    """Count the connected sets of the groups of two columns that have rows."""
    from scipy import sparse
    from scipy.sparse.csgraph import connected_components

    size = len(first) + len(second)
    joined = sparse.coo_array(
        (np.ones(len(one), np.int8), (one, two + np.int32(len(first)))), shape=(size, size)
    ).tocsr()
    labels = connected_components(joined, directed=False)[1]
    return int(np.count_nonzero(np.bincount(labels[: len(first)][first > 0])))


def solve_effects(
    codes: Sequence[Any], weights: Floats | None, weight: Sequence[Floats], sums: Sequence[Floats]
) -> tuple[list[Floats], Any]:
    """Solve the normal equations.

    Returns the effects of each column, (G_j, p), and which groups of the columns but the largest
    share one of its groups, (m, m), where that was found on the way.
    """
    inverse = [np.divide(1.0, w, out=np.zeros_like(w), where=w > 0) for w in weight]
    if len(codes) == 1:
        return [np.ascontiguousarray((sums[0] * inverse[0]).T)], None
    largest = int(np.argmax([len(w) for w in weight]))
    others = [j for j in range(len(codes)) if j != largest]
    system = ReducedEquations.of(codes, weights, weight, largest, others)
    right = np.vstack([sums[j].T for j in others])
    scaled = inverse[largest][:, None] * sums[largest].T
    right = right - system.across.T @ scaled
    solved, joined = system.solve(right)
    scaled -= inverse[largest][:, None] * (system.across @ solved)
    theta: list[Floats] = [np.zeros((0, 0))] * len(codes)
    theta[largest] = scaled
    at = 0
    for j in others:
        size = len(weight[j])
        theta[j] = solved[at : at + size]
        at += size
    return theta, joined
