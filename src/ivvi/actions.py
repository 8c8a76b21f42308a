"""What may be done: a box, a finite set, or the product of both."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ivvi.blocks import Array
from ivvi.errors import FileError, InputError

MOST_CHOICES = 1 << 16
"""More combinations of discrete actions than this are not enumerated."""


@dataclass(frozen=True, eq=False)
class Actions:
    """A box for some coordinates of the action times a list of choices for the others.

    Attributes
    ----------
    low, high
        Bounds of the continuous coordinates, (d_c,).
    choices
        What the discrete coordinates may be together, (m, d_d); one empty row without any.
    continuous
        Which coordinates of the action are continuous, d_c of them; the others are discrete.

    Examples
    --------
    >>> Actions.box(-1, 1, dim=2)
    Actions(box of 2)
    >>> Actions.binary(3)
    Actions(8 choices of 3)
    >>> Actions.product(Actions.box([0.0], [5.0]), Actions.binary(1))
    Actions(box of 1 x 2 choices of 1)
    """

    low: np.ndarray
    high: np.ndarray
    choices: np.ndarray = field(default_factory=lambda: np.zeros((1, 0)))
    continuous: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for i, (low, high) in enumerate(zip(self.low, self.high, strict=True)):
            if not low < high or not np.isfinite([low, high]).all():
                raise InputError(
                    f"the box of action {self.continuous[i]} is [{low:g}, {high:g}]; "
                    "two numbers are wanted, the first below the second"
                )
        if len(self.choices) == 0 or self.dim == 0:
            raise InputError("the set of actions is empty; at least one action is wanted")
        if not np.isfinite(self.choices).all():
            raise InputError("the set of actions holds values that are not finite numbers")

    @classmethod
    def box(cls, low: Any, high: Any, *, dim: int | None = None) -> Actions:
        """Return low <= a <= high; numbers stand for every one of `dim` coordinates."""
        try:
            shape = np.broadcast_shapes(np.shape(low), np.shape(high), (dim or 1,))
            below, above = (
                np.array(np.broadcast_to(np.asarray(v, float), shape)) for v in (low, high)
            )
        except ValueError as error:
            raise InputError(
                f"a box from {low} to {high} was given; one number each or {dim} are wanted"
            ) from error
        return cls(below, above, continuous=tuple(range(len(below))))

    @classmethod
    def finite(cls, table: Any) -> Actions:
        """Return one of the rows of `table`, (m, d_a)."""
        rows = np.asarray(table, dtype=np.float64)
        if rows.ndim == 1:
            rows = rows[:, None]
        if rows.ndim != 2:
            raise InputError(f"a set of actions of shape {rows.shape}; rows of actions are wanted")
        return cls(np.zeros(0), np.zeros(0), rows)

    @classmethod
    def binary(cls, dim: int) -> Actions:
        """Return {0, 1}^dim."""
        if not 1 <= dim <= 16:
            raise InputError(f"{{0, 1}}^{dim} was asked for; dimensions from 1 to 16 are listed")
        return cls.finite(list(itertools.product((0.0, 1.0), repeat=dim)))

    @classmethod
    def product(cls, *parts: Actions) -> Actions:
        """Return the product: the coordinates of the parts, one after the other."""
        offsets = np.cumsum([0] + [part.dim for part in parts])
        if np.prod([float(len(part.choices)) for part in parts]) > MOST_CHOICES:
            raise InputError(f"more than {MOST_CHOICES} combinations of discrete actions")
        rows = [np.concatenate(r) for r in itertools.product(*(part.choices for part in parts))]
        return cls(
            np.concatenate([part.low for part in parts]),
            np.concatenate([part.high for part in parts]),
            np.array(rows),
            tuple(int(o) + i for o, p in zip(offsets, parts, strict=False) for i in p.continuous),
        )

    @classmethod
    def of_space(cls, space: Any) -> Actions:
        """Return the actions of a Gymnasium space (Box, MultiBinary, Discrete)."""
        kind = type(space).__name__
        if kind == "Box":
            return cls.box(np.ravel(space.low), np.ravel(space.high))
        if kind == "MultiBinary":
            return cls.binary(int(space.n))
        if kind == "Discrete":
            return cls.finite(np.arange(space.start, space.start + space.n))
        raise InputError(f"the action space {space} is not known; a Box or MultiBinary is wanted")

    def to_space(self) -> Any:
        """Return the Gymnasium space: a Box, the number of a choice, or both.

        `from_space` turns an element of it into an action.
        """
        from gymnasium.spaces import Box, Discrete, Tuple

        box = Box(self.low, self.high, dtype=np.float64) if len(self.low) else None
        number = Discrete(len(self.choices)) if self.choices.size else None
        return Tuple((box, number)) if box and number else box or number

    def from_space(self, element: Any) -> np.ndarray:
        """Return the action (d_a,) that an element of `to_space` stands for."""
        box, number = element if self.choices.size and len(self.low) else (element, element)
        continuous = np.asarray(box, dtype=np.float64) if len(self.low) else np.zeros(0)
        choice = self.choices[int(number) if self.choices.size else 0]
        return np.asarray(self.join(continuous, choice))

    @property
    def dim(self) -> int:
        """Number of coordinates of an action."""
        return len(self.low) + int(self.choices.shape[1])

    @property
    def is_finite(self) -> bool:
        """Whether there is no continuous coordinate."""
        return len(self.low) == 0

    @property
    def discrete(self) -> tuple[int, ...]:
        """Which coordinates are discrete."""
        return tuple(i for i in range(self.dim) if i not in self.continuous)

    @property
    def middle(self) -> np.ndarray:
        """Centre of the box and the first of the choices, (d_a,)."""
        centre = self.join((self.low + self.high) / 2, self.choices[0])
        return np.asarray(centre)

    def join(self, box: Array, choice: Array) -> Array:
        """Put continuous (..., d_c) and discrete (..., d_d) coordinates in their places."""
        xp = box.__array_namespace__()
        order = np.argsort([*self.continuous, *self.discrete])
        shape = np.broadcast_shapes(box.shape[:-1], choice.shape[:-1])
        parts = [xp.broadcast_to(p, (*shape, p.shape[-1])) for p in (box, choice)]
        return xp.concatenate(parts, axis=-1)[..., order]

    def sample(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Draw actions uniformly, (count, d_a)."""
        box = rng.uniform(self.low, self.high, size=(count, len(self.low)))
        return np.asarray(self.join(box, self.choices[rng.integers(len(self.choices), size=count)]))

    def to_json(self) -> dict[str, Any]:
        """Describe the set with JSON values."""
        return {
            "low": self.low.tolist(),
            "high": self.high.tolist(),
            "choices": self.choices.tolist(),
            "continuous": list(self.continuous),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Actions:
        """Rebuild the set from `to_json`."""
        try:
            low, high = np.asarray(value["low"], float), np.asarray(value["high"], float)
            choices = np.asarray(value["choices"], float).reshape(len(value["choices"]), -1)
            return cls(low, high, choices, tuple(value["continuous"]))
        except (KeyError, TypeError, ValueError) as error:
            raise FileError(f"the saved set of actions cannot be read: {error}") from error

    def __repr__(self) -> str:
        parts = [f"box of {len(self.low)}"] if len(self.low) else []
        if self.choices.shape[1]:
            parts.append(f"{len(self.choices)} choices of {self.choices.shape[1]}")
        return f"Actions({' x '.join(parts)})"


def make_actions(actions: Any, names: Sequence[str]) -> Actions:
    """Return `actions`, a (low, high) pair of a box, or the rows of a finite set as `Actions`."""
    if isinstance(actions, Actions):
        made = actions
    elif isinstance(actions, tuple) and len(actions) == 2:
        made = Actions.box(*actions, dim=len(names))
    else:
        made = Actions.finite(actions)
    if made.dim != len(names):
        raise InputError(
            f"actions of width {made.dim} were given; {len(names)} are wanted ({', '.join(names)})"
        )
    return made
