"""Blocks without settings from data: the constant, powers, and products of columns."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from ivvi.blocks.block import Array, Plain, looked_at, names_of


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
