"""Products of functions of single columns: bends, monomials, effects that vary with a state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import mul

import numpy as np

from ivvi._io.arrays import Array
from ivvi.errors import InputError
from ivvi.features.blocks import Plain, Spline, looked_at, names_of
from ivvi.features.splines import bend_roughness, bends

Monomial = tuple[tuple[int, int], ...]
"""Factors (column, function): function 1 is the standardised column, k + 1 its k-th bend."""


AT_ONCE = 4096
"""Rows whose products are formed together: as many as the processor's cache holds."""


@dataclass(frozen=True, slots=True)
class Products(Plain):
    """Each feature a product of functions of different columns.

    Attributes
    ----------
    terms
        The products.
    centre, scale
        Mean and standard deviation of each column, by which function 1 is standardised.
    grids
        Knots of each column; none where it is never bent.
    of
        What it looks at.
    """

    terms: tuple[Monomial, ...]
    centre: tuple[float, ...]
    scale: tuple[float, ...]
    grids: tuple[tuple[float, ...], ...]
    of: str = "both"

    def __call__(self, x: Array, u: Array) -> Array:
        """Evaluate, (..., d_x) and (..., d_u) to (..., d)."""
        v = looked_at(self.of, x, u)
        if not isinstance(v, np.ndarray) or v.ndim != 2 or len(v) <= AT_ONCE:
            return self._products(v)
        values = np.empty((len(self.terms), len(v))).T
        for start in range(0, len(v), AT_ONCE):
            part = slice(start, start + AT_ONCE)
            values[part] = self._products(v[part])
        return values

    def _products(self, v: Array) -> Array:
        xp = v.__array_namespace__()
        values: dict[int, Array] = {}
        for column, most in self._needed.items():
            own = v[..., column]
            straight = ((own - self.centre[column]) / self.scale[column])[..., None]
            bent = [bends(own, self.grids[column], most - 1)] if most > 1 else []
            values[column] = xp.concatenate([straight, *bent], axis=-1)
        if not isinstance(v, np.ndarray):
            table = xp.concatenate([xp.ones_like(v[..., :1]), *values.values()], axis=-1)
            return reduce(mul, (table @ chosen for chosen in self._factors))
        columns = [reduce(mul, (values[c][..., k - 1] for c, k in term)) for term in self.terms]
        return xp.stack(columns, axis=-1)

    @property
    def _factors(self) -> list[np.ndarray]:
        """Which of 1 and the functions is the first, second, .. factor of each term, (q, d) each.

        A product for each term by itself takes XLA many seconds to compile, most of all with
        derivatives; products of matrices do not.
        """
        places = [(c, k) for c, most in self._needed.items() for k in range(1, most + 1)]
        place = {function: i + 1 for i, function in enumerate(places)}
        chosen = np.zeros((max(map(len, self.terms)), 1 + len(places), len(self.terms)))
        for j, term in enumerate(self.terms):
            for i in range(len(chosen)):
                chosen[i, place[term[i]] if i < len(term) else 0, j] = 1.0
        return list(chosen)

    @property
    def _needed(self) -> dict[int, int]:
        """The highest function of each column."""
        most: dict[int, int] = {}
        for column, function in (factor for term in self.terms for factor in term):
            most[column] = max(function, most.get(column, 0))
        return most

    def names(self, state: Sequence[str], inputs: Sequence[str]) -> tuple[str, ...]:
        """Name the columns."""
        columns = names_of(self.of, state, inputs)
        return tuple(
            "*".join(f"bend{k - 1}({columns[c]})" if k > 1 else f"std({columns[c]})" for c, k in t)
            for t in self.terms
        )

    @property
    def penalties(self) -> tuple[float, ...]:
        """Roughness of each term: the sum of its bends', and one for each factor but the first."""
        rough = {c: bend_roughness(grid) for c, grid in enumerate(self.grids) if grid}
        return tuple(
            sum(float(rough[c][k - 2]) for c, k in term if k > 1) + len(term) - 1
            for term in self.terms
        )


@dataclass(frozen=True, slots=True)
class Monomials(Plain):
    """Chosen products of columns, each the positions of its factors.

    A position that comes twice is a square: ``(0, 2, 2)`` is the first column times the third
    squared. `of` says what the positions count.
    """

    terms: tuple[tuple[int, ...], ...]
    of: str = "both"

    def __call__(self, x: Array, u: Array) -> Array:
        """Evaluate, (..., d_x) and (..., d_u) to (..., d)."""
        v = looked_at(self.of, x, u)
        columns = [reduce(mul, (v[..., at] for at in term)) for term in self.terms]
        return v.__array_namespace__().stack(columns, axis=-1)

    def names(self, state: Sequence[str], inputs: Sequence[str]) -> tuple[str, ...]:
        """Name the columns, such as ``x0*a0^2``."""
        columns = names_of(self.of, state, inputs)
        counts = ({at: term.count(at) for at in term} for term in self.terms)
        return tuple(
            "*".join(columns[at] + (f"^{n}" if n > 1 else "") for at, n in count.items())
            for count in counts
        )


@dataclass(frozen=True, slots=True)
class Varying:
    """Splines of each state times each input: an effect that changes with the state.

    The splines are those of `Spline` with as many knots; a state that is not bent is multiplied
    as it is.
    """

    knots: int
    of: str = "both"
    grids: tuple[tuple[float, ...], ...] | None = None

    @property
    def needs_data(self) -> bool:
        """Whether it must be fitted before it is called."""
        return self.grids is None

    def fitted(self, x: Array, u: Array) -> Varying:
        """Take the knots from these rows."""
        return replace(self, grids=Spline(self.knots).fitted(x, u).grids)

    def __call__(self, x: Array, u: Array) -> Array:
        """Evaluate, (..., d_x) and (..., d_u) to (..., d)."""
        if self.grids is None:
            raise InputError("a spline has no knots yet: fit the feature map to rows first")
        bent = Spline(self.knots, grids=self.grids)(x, u)
        product = bent[..., :, None] * u[..., None, :]
        return product.reshape((*product.shape[:-2], bent.shape[-1] * u.shape[-1]))

    def names(self, state: Sequence[str], inputs: Sequence[str]) -> tuple[str, ...]:
        """Name the columns."""
        bent = Spline(self.knots, grids=self.grids).names(state, inputs)
        return tuple(f"{name}*{of}" for name in bent for of in inputs)


def column_scales(v: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return means and standard deviations of columns (n, d); a constant one counts as 1."""
    spread = v.std(axis=0)
    spread[spread == 0] = 1.0
    return tuple(v.mean(axis=0).tolist()), tuple(spread.tolist())
