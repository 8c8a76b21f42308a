"""The blocks that feature maps are made of.

Each block is a frozen value with settings that are JSON; `of` says what it looks at:
``state``, ``input`` or ``both``. Blocks use only `__array_namespace__`, so the same
code runs on NumPy arrays, on JAX arrays and under `jax.grad` and `jax.jit`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol, TypeVar

import numpy as np

from ivvi._io.arrays import Array
from ivvi._io.memory import check_memory
from ivvi.errors import DataError, InputError
from ivvi.features.splines import DEGREE, spline_columns

AnyBlock = TypeVar("AnyBlock", bound="Block")


class Block(Protocol):
    """A named group of features of (x, u)."""

    @property
    def of(self) -> str:
        """What it looks at: ``state``, ``input`` or ``both``."""
        ...

    @property
    def needs_data(self) -> bool:
        """Whether it must be fitted before it is called."""
        ...

    def __call__(self, x: Array, u: Array) -> Array:
        """Evaluate, (..., d_x) and (..., d_u) to (..., d)."""
        ...

    def names(self, state: Sequence[str], inputs: Sequence[str]) -> tuple[str, ...]:
        """Name the columns."""
        ...

    def fitted(self: AnyBlock, x: Array, u: Array) -> AnyBlock:
        """Return the block with its data-dependent settings filled in."""
        ...


class Plain:
    """Base of blocks without data-dependent settings."""

    __slots__ = ()

    @property
    def needs_data(self) -> bool:
        return False

    def fitted(self: Any, x: Array, u: Array) -> Any:
        return self


def looked_at(of: str, x: Array, u: Array) -> Array:
    """Return what a block looks at, (..., d)."""
    if of == "both":
        return u.__array_namespace__().concatenate([x, u], axis=-1)
    return x if of == "state" else u


def names_of(of: str, state: Sequence[str], inputs: Sequence[str]) -> tuple[str, ...]:
    """Name the columns that a block looks at."""
    return {"state": tuple(state), "input": tuple(inputs), "both": (*state, *inputs)}[of]


@dataclass(frozen=True, slots=True)
class Constant(Plain):
    """The feature 1."""

    of: str = "state"

    def __call__(self, x: Array, u: Array) -> Array:
        return u.__array_namespace__().ones_like(u[..., :1])

    def names(self, state: Sequence[str], inputs: Sequence[str]) -> tuple[str, ...]:
        return ("1",)


@dataclass(frozen=True, slots=True)
class Power(Plain):
    """Each column to the power `degree` (no cross terms)."""

    degree: int
    of: str

    def __call__(self, x: Array, u: Array) -> Array:
        v = looked_at(self.of, x, u)
        return v if self.degree == 1 else v**self.degree

    def names(self, state: Sequence[str], inputs: Sequence[str]) -> tuple[str, ...]:
        suffix = "" if self.degree == 1 else f"^{self.degree}"
        return tuple(f"{name}{suffix}" for name in names_of(self.of, state, inputs))


@dataclass(frozen=True, slots=True)
class Interactions(Plain):
    """All monomials of total degree 2 to `degree` in at least two different columns."""

    degree: int
    of: str = "both"

    def _monomials(self, width: int) -> list[tuple[int, ...]]:
        count = math.comb(width + self.degree, self.degree)
        check_memory(8 * count**2, f"sums of {count:,} mixed monomials of {width} columns")
        return [
            combination
            for d in range(2, self.degree + 1)
            for combination in itertools.combinations_with_replacement(range(width), d)
            if len(set(combination)) > 1
        ]

    def __call__(self, x: Array, u: Array) -> Array:
        v = looked_at(self.of, x, u)
        xp = v.__array_namespace__()
        terms = [xp.prod(v[..., list(m)], axis=-1) for m in self._monomials(v.shape[-1])]
        return xp.stack(terms, axis=-1) if terms else v[..., :0]

    def names(self, state: Sequence[str], inputs: Sequence[str]) -> tuple[str, ...]:
        columns = names_of(self.of, state, inputs)
        return tuple("*".join(columns[i] for i in m) for m in self._monomials(len(columns)))


@dataclass(frozen=True, slots=True)
class Cross(Plain):
    """Every column of the state times every column of the input."""

    of: str = "both"

    def __call__(self, x: Array, u: Array) -> Array:
        products = x[..., :, None] * u[..., None, :]
        return products.reshape(*products.shape[:-2], x.shape[-1] * u.shape[-1])

    def names(self, state: Sequence[str], inputs: Sequence[str]) -> tuple[str, ...]:
        return tuple(f"{x}*{u}" for x in state for u in inputs)


@dataclass(frozen=True, slots=True)
class Spline:
    """Cubic B-splines of each column, continued linearly outside the data's range.

    `knots` counts the end points and lies at quantiles of the rows that the block was
    fitted on. The first spline of a column is left out: together they would sum to the
    constant. Quantiles that coincide are one knot. A column with fewer distinct values than
    splines stays as it is (a binary instrument has nothing to bend).
    """

    knots: int
    of: str = "state"
    grids: tuple[tuple[float, ...], ...] | None = None

    @property
    def needs_data(self) -> bool:
        return self.grids is None

    def fitted(self, x: Array, u: Array) -> Spline:
        v = np.asarray(looked_at(self.of, x, u))
        return replace(self, grids=tuple(self._grid(v[:, j]) for j in range(v.shape[1])))

    def _grid(self, column: np.ndarray) -> tuple[float, ...]:
        if len(np.unique(column)) < self.knots + DEGREE:
            return ()
        return tuple(np.unique(np.quantile(column, np.linspace(0, 1, self.knots))).tolist())

    def __call__(self, x: Array, u: Array) -> Array:
        if self.grids is None:
            raise InputError("a spline has no knots yet: fit the feature map to rows first")
        v = looked_at(self.of, x, u)
        xp = v.__array_namespace__()
        parts = [
            spline_columns(v[..., j], grid) if len(grid) else v[..., j : j + 1]
            for j, grid in enumerate(self.grids)
        ]
        return xp.concatenate(parts, axis=-1) if parts else v[..., :0]

    def names(self, state: Sequence[str], inputs: Sequence[str]) -> tuple[str, ...]:
        columns = names_of(self.of, state, inputs)
        names: list[str] = []
        for name, grid in zip(columns, self.grids or ((),) * len(columns), strict=True):
            splines = [f"s{i}({name})" for i in range(1, len(grid) + DEGREE - 1)]
            names += splines if grid else [name]
        return tuple(names)


@dataclass(frozen=True, slots=True)
class Fourier:
    """Random Fourier features sqrt(2 / M) cos(w . s + b) of the standardised columns s.

    Their inner products approach the Gaussian kernel exp(-|s - s'|^2 / (2 bandwidth^2 d)),
    d the number of columns (Rahimi and Recht, 2007); w and b come from `seed`.
    """

    count: int
    bandwidth: float = 1.0
    seed: int = 0
    of: str = "both"
    centre: tuple[float, ...] | None = None
    scale: tuple[float, ...] | None = None

    @property
    def needs_data(self) -> bool:
        return self.centre is None

    def fitted(self, x: Array, u: Array) -> Fourier:
        v = np.asarray(looked_at(self.of, x, u))
        spread = v.std(axis=0)
        spread[spread == 0] = 1.0
        return replace(self, centre=tuple(v.mean(axis=0).tolist()), scale=tuple(spread.tolist()))

    def __call__(self, x: Array, u: Array) -> Array:
        if self.centre is None or self.scale is None:
            raise InputError(
                "Fourier features have no scale yet: fit the feature map to rows first"
            )
        v = looked_at(self.of, x, u)
        xp = v.__array_namespace__()
        frequencies, phases = _frequencies(self.count, v.shape[-1], self.bandwidth, self.seed)
        s = (v - xp.asarray(self.centre)) / xp.asarray(self.scale)
        return (2 / self.count) ** 0.5 * xp.cos(s @ frequencies + phases)

    def names(self, state: Sequence[str], inputs: Sequence[str]) -> tuple[str, ...]:
        return tuple(f"fourier{i}" for i in range(self.count))


@dataclass(frozen=True, slots=True)
class OneHot:
    """Indicators of the values of each column, the first (smallest) value left out.

    A value between those that the block was fitted on counts as the nearest one.
    """

    of: str = "both"
    values: tuple[tuple[float, ...], ...] | None = None

    @property
    def needs_data(self) -> bool:
        return self.values is None

    def fitted(self, x: Array, u: Array) -> OneHot:
        v = np.asarray(looked_at(self.of, x, u))
        levels = tuple(tuple(np.unique(v[:, j]).tolist()) for j in range(v.shape[1]))
        for j, values in enumerate(levels):
            if len(values) > 1000:
                raise DataError(
                    f"column {j} of the {self.of} has {len(values)} values, too many for one-hot"
                )
        return replace(self, values=levels)

    def __call__(self, x: Array, u: Array) -> Array:
        if self.values is None:
            raise InputError(
                "one-hot features have no values yet: fit the feature map to rows first"
            )
        v = looked_at(self.of, x, u)
        xp = v.__array_namespace__()
        parts = []
        for j, values in enumerate(self.values):
            nearest = xp.argmin(xp.abs(v[..., j : j + 1] - xp.asarray(values)), axis=-1)
            parts.append((nearest[..., None] == np.arange(1, len(values))).astype(v.dtype))
        return xp.concatenate(parts, axis=-1) if parts else v[..., :0]

    def names(self, state: Sequence[str], inputs: Sequence[str]) -> tuple[str, ...]:
        columns = names_of(self.of, state, inputs)
        return tuple(
            f"{name}={value:g}"
            for name, values in zip(columns, self.values or (), strict=False)
            for value in values[1:]
        )


@lru_cache(maxsize=64)
def _frequencies(
    count: int, width: int, bandwidth: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    frequencies = rng.normal(size=(width, count)) / (bandwidth * width**0.5)
    return frequencies, rng.uniform(0, 2 * np.pi, size=count)
