"""Blocks that are fitted to rows: splines, random Fourier features, indicators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from ivvi.blocks.block import Array, looked_at, names_of
from ivvi.errors import DataError, InputError
from ivvi.splines import DEGREE, spline_columns


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
    """Indicators of the values of each column, the first (smallest) value left out."""

    of: str = "both"
    values: tuple[tuple[float, ...], ...] | None = None

    @property
    def needs_data(self) -> bool:
        return self.values is None

    def fitted(self, x: Array, u: Array) -> OneHot:
        v = np.asarray(looked_at(self.of, x, u))
        found = tuple(tuple(np.unique(v[:, j]).tolist()) for j in range(v.shape[1]))
        for j, values in enumerate(found):
            if len(values) > 1000:
                raise DataError(
                    f"column {j} of the {self.of} has {len(values)} values, too many for one-hot"
                )
        return replace(self, values=found)

    def __call__(self, x: Array, u: Array) -> Array:
        if self.values is None:
            raise InputError(
                "one-hot features have no values yet: fit the feature map to rows first"
            )
        v = looked_at(self.of, x, u)
        xp = v.__array_namespace__()
        parts = [
            (v[..., j : j + 1] == xp.asarray(values[1:])).astype(v.dtype)
            for j, values in enumerate(self.values)
        ]
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
