"""What a block is: a named group of features of (x, u)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

Array = Any
"""A NumPy or JAX array."""
B = TypeVar("B", bound="Block")


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

    def fitted(self: B, x: Array, u: Array) -> B:
        """Return the block with its data-dependent settings filled in."""
        ...


class Plain:
    """What blocks without data-dependent settings share."""

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
