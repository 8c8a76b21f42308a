"""The set of allowed actions: a box, a finite set, or a product of the two."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ivvi._io.arrays import Array
from ivvi.errors import LARGEST, FileError, InputError

MOST_CHOICES = 1 << 16
"""Combinations of discrete actions are searched, not listed, if there are more than this."""
MOST_LEVELS = 64
"""Most coordinates of a product of small sets."""


@dataclass(frozen=True, eq=False)
class Actions:
    """A box for some coordinates of the action times a finite set for the others.

    Attributes
    ----------
    low, high
        Bounds of the continuous coordinates, (d_c,).
    rows
        Allowed combinations of discrete coordinates, (m, d_d); one empty row if there are none.
    continuous
        Which coordinates of the action are continuous, d_c of them; the others are discrete.
    levels
        The values of each discrete coordinate where every combination is allowed, as in
        {0, 1}^d; `rows` is then empty, (0, d_d), and the combinations are listed only on request.

    Examples
    --------
    >>> Actions.box(-1, 1, dim=2)
    Actions(2 continuous actions)
    >>> Actions.binary(1)
    Actions(one binary action)
    >>> Actions.binary(20)
    Actions(20 binary actions)
    >>> Actions.product(Actions.box([0.0], [5.0]), Actions.finite([[0.0], [1.0], [3.0]]))
    Actions(one continuous action x 3 choices)
    """

    low: np.ndarray
    high: np.ndarray
    rows: np.ndarray = field(default_factory=lambda: np.zeros((1, 0)))
    continuous: tuple[int, ...] = ()
    levels: tuple[tuple[float, ...], ...] = ()

    def __post_init__(self) -> None:
        places = {*self.continuous}
        once = len(self.continuous) == len(places) == len(self.low)
        if not once or not places <= {*range(self.dim)}:
            raise InputError(
                f"the continuous coordinates are {self.continuous}; expected {len(self.low)} "
                f"different ones below {self.dim}"
            )
        for i, (low, high) in enumerate(zip(self.low, self.high, strict=True)):
            if not low < high or not np.isfinite([low, high]).all():
                raise InputError(
                    f"the box of action {self.continuous[i]} is [{low:g}, {high:g}]; "
                    "expected two finite numbers, the first below the second"
                )
        if self.dim == 0 or not (self.levels or len(self.rows)) or not all(self.levels):
            raise InputError("the set of actions is empty; expected at least one action")
        if (
            not np.isfinite(self.rows).all()
            or not np.isfinite(np.concatenate([[], *self.levels])).all()
        ):
            raise InputError("the set of actions holds values that are not finite numbers")
        repeated = len(self.rows) - len(np.unique(self.rows, axis=0))
        if repeated:
            raise InputError(
                f"the set of actions holds {repeated} rows twice; expected different actions"
            )

    @classmethod
    def box(cls, low: Any, high: Any, *, dim: int | None = None) -> Actions:
        """Return the box low <= a <= high; a single number is used for all `dim` coordinates."""
        try:
            (width,) = np.broadcast_shapes(np.shape(low), np.shape(high), (dim or 1,))
            below, above = (
                np.array(np.broadcast_to(np.asarray(v, float), width)) for v in (low, high)
            )
        except ValueError as error:
            width_expected = "as many" if dim is None else dim
            raise InputError(
                f"a box from {_text(low)} to {_text(high)} was given; expected one number each, or "
                f"{width_expected}"
            ) from error
        largest = float(np.abs([below, above]).max())
        if LARGEST < largest < np.inf:
            raise InputError(
                f"a bound of the actions has absolute value {largest:g}; expected at most "
                f"{LARGEST:g}"
            )
        return cls(below, above, continuous=tuple(range(len(below))))

    @classmethod
    def finite(cls, table: Any) -> Actions:
        """Return the set of the rows of `table`, (m, d_a)."""
        try:
            rows = np.asarray(table, dtype=np.float64)
        except (TypeError, ValueError) as error:
            sentence = f"the set of actions {_text(table)} is not a table of numbers"
            raise InputError(f"{sentence}; expected rows of actions") from error
        if rows.ndim == 1:
            rows = rows[:, None]
        if rows.ndim != 2:
            raise InputError(f"a set of actions of shape {rows.shape}; expected rows of actions")
        columns = [np.unique(column) for column in rows.T]
        if len(rows) > 1 and len(rows) == math.prod(len(column) for column in columns):
            every = np.array(list(itertools.product(*columns)))
            if np.array_equal(every, rows):
                levels = tuple(tuple(column.tolist()) for column in columns)
                return cls(np.zeros(0), np.zeros(0), np.zeros((0, len(columns))), levels=levels)
        return cls(np.zeros(0), np.zeros(0), rows)

    @classmethod
    def binary(cls, dim: int) -> Actions:
        """Return {0, 1}^dim."""
        if not 1 <= dim <= MOST_LEVELS:
            raise InputError(
                f"{{0, 1}}^{dim} was requested; expected a dimension from 1 to {MOST_LEVELS}"
            )
        return cls(np.zeros(0), np.zeros(0), np.zeros((0, dim)), levels=((0.0, 1.0),) * dim)

    @classmethod
    def product(cls, *blocks: Actions) -> Actions:
        """Return the product of the blocks, with their coordinates one after another."""
        offsets = np.cumsum([0] + [part.dim for part in blocks])
        box = (
            np.concatenate([part.low for part in blocks]),
            np.concatenate([part.high for part in blocks]),
        )
        places = tuple(
            int(o) + i for o, p in zip(offsets, blocks, strict=False) for i in p.continuous
        )
        levels = [part._coordinate_levels() for part in blocks]
        if any(levels) and None not in levels:
            width = sum(len(part) for part in levels if part)
            every = tuple(value for part in levels for value in part or ())
            return cls(*box, np.zeros((0, width)), places, every)
        if np.prod([float(part.count) for part in blocks]) > MOST_CHOICES:
            raise InputError(f"more than {MOST_CHOICES} combinations of discrete actions")
        rows = [np.concatenate(r) for r in itertools.product(*(part.choices for part in blocks))]
        return cls(*box, np.array(rows), places)

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
        raise InputError(
            f"the action space {space} is not supported; expected a Box, MultiBinary or Discrete"
        )

    def to_space(self) -> Any:
        """Return the Gymnasium space: a Box, the number of a choice, or both.

        `from_space` turns an element of it into an action.
        """
        from gymnasium.spaces import Box, Discrete, MultiDiscrete, Tuple

        box = Box(self.low, self.high, dtype=np.float64) if len(self.low) else None
        number = None
        if self.discrete:
            sizes = [len(values) for values in self.levels]
            number = Discrete(len(self.choices)) if self.is_listed else MultiDiscrete(sizes)
        return Tuple((box, number)) if box and number else box or number

    def from_space(self, element: Any) -> np.ndarray:
        """Return the action (d_a,) of an element of `to_space`."""
        box, number = element if self.discrete and len(self.low) else (element, element)
        continuous = np.asarray(box, dtype=np.float64) if len(self.low) else np.zeros(0)
        if self.is_listed:
            choice = self.choices[int(number) if self.discrete else 0]
        else:
            numbers = zip(self.levels, np.ravel(number), strict=True)
            choice = np.array([values[int(i)] for values, i in numbers])
        return np.asarray(self.join(continuous, choice))

    @property
    def dim(self) -> int:
        """Number of coordinates of an action."""
        return len(self.low) + int(self.rows.shape[1])

    @property
    def count(self) -> int:
        """Number of allowed combinations of the discrete coordinates."""
        return math.prod(len(values) for values in self.levels) if self.levels else len(self.rows)

    @property
    def is_listed(self) -> bool:
        """Whether the discrete combinations are few enough to be listed."""
        return self.count <= MOST_CHOICES

    @cached_property
    def choices(self) -> np.ndarray:
        """Allowed combinations of discrete coordinates, (m, d_d); one empty row if none."""
        if not self.levels:
            return self.rows
        if not self.is_listed:
            raise InputError(
                f"{self.count:,} combinations of actions are too many to list; this planner "
                f"takes {MOST_CHOICES:,} at most: use the method auto"
            )
        return np.array(list(itertools.product(*self.levels)))

    @property
    def corners(self) -> np.ndarray:
        """The lowest and the highest value of every coordinate, (2, d_a).

        If the choices are a list and not a product, they need not be allowed.
        """
        table = self.rows if not self.levels else np.array([[v[0], v[-1]] for v in self.levels]).T
        ends = (self.low, table.min(axis=0)), (self.high, table.max(axis=0))
        return np.array([self.join(box, choice) for box, choice in ends])

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
        first = np.array([v[0] for v in self.levels]) if self.levels else self.rows[0]
        return np.asarray(self.join((self.low + self.high) / 2, first))

    def contains(self, action: np.ndarray) -> bool:
        """Return whether an action (d_a,) is allowed."""
        box, choice = action[list(self.continuous)], action[list(self.discrete)]
        if (box < self.low).any() or (box > self.high).any():
            return False
        if self.levels:
            return all(v in values for v, values in zip(choice, self.levels, strict=True))
        return bool((self.rows == choice).all(axis=1).any())

    def nearest(self, a: Array) -> Array:
        """Return the allowed action nearest to each of a (..., d_a), in units of their range."""
        xp = a.__array_namespace__()
        box = xp.clip(a[..., list(self.continuous)], self.low, self.high)
        choice = a[..., list(self.discrete)]
        if self.levels:
            columns = []
            for j, values in enumerate(self.levels):
                far = xp.abs(choice[..., j, None] - np.asarray(values))
                columns.append(xp.asarray(np.asarray(values))[xp.argmin(far, axis=-1)])
            return self.join(box, xp.stack(columns, axis=-1))
        spread = np.ptp(self.rows, axis=0)
        scaled = self.rows / np.where(spread > 0, spread, 1.0)
        place = choice / np.where(spread > 0, spread, 1.0)
        far = (scaled**2).sum(axis=1) - 2 * place @ scaled.T
        return self.join(box, xp.asarray(self.rows)[xp.argmin(far, axis=-1)])

    def join(self, box: Array, choice: Array) -> Array:
        """Return actions from continuous (..., d_c) and discrete (..., d_d) coordinates."""
        xp = box.__array_namespace__()
        order = np.argsort([*self.continuous, *self.discrete])
        shape = np.broadcast_shapes(box.shape[:-1], choice.shape[:-1])
        parts = [xp.broadcast_to(p, (*shape, p.shape[-1])) for p in (box, choice)]
        return xp.concatenate(parts, axis=-1)[..., order]

    def sample(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Draw actions uniformly, (count, d_a)."""
        box = rng.uniform(self.low, self.high, size=(count, len(self.low)))
        if self.is_listed:
            choice = self.choices[rng.integers(len(self.choices), size=count)]
        else:
            choice = np.column_stack([rng.choice(values, size=count) for values in self.levels])
        return np.asarray(self.join(box, choice))

    def to_json(self) -> dict[str, Any]:
        """Describe the set with JSON values."""
        return {
            "low": self.low.tolist(),
            "high": self.high.tolist(),
            "choices": self.rows.tolist(),
            "continuous": list(self.continuous),
            "levels": [list(values) for values in self.levels],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Actions:
        """Rebuild the set from `to_json`."""
        try:
            low, high = np.asarray(value["low"], float), np.asarray(value["high"], float)
            levels = tuple(tuple(float(v) for v in values) for values in value["levels"])
            if levels:
                rows = np.zeros((0, len(levels)))
            else:
                rows = np.asarray(value["choices"], float).reshape(len(value["choices"]), -1)
            return cls(low, high, rows, tuple(value["continuous"]), levels)
        except (KeyError, TypeError, ValueError) as error:
            raise FileError(f"the saved set of actions cannot be read: {error}") from error

    def __repr__(self) -> str:
        parts, boxed, d = [], len(self.low), self.rows.shape[1]
        if boxed:
            parts.append("one continuous action" if boxed == 1 else f"{boxed} continuous actions")
        if d and self.levels and set(self.levels) == {(0.0, 1.0)}:
            parts.append("one binary action" if d == 1 else f"{d} binary actions")
        elif d:
            parts.append(f"{self.count} choices" + (f" of {d} numbers" if d > 1 else ""))
        return f"Actions({' x '.join(parts)})"

    def _coordinate_levels(self) -> tuple[tuple[float, ...], ...] | None:
        """The values of each discrete coordinate, () without any; None for a list."""
        if not self.rows.shape[1]:
            return ()
        return self.levels or None


def make_actions(actions: Any, names: Sequence[str]) -> Actions:
    """Return `actions`, a (low, high) pair of a box, or the rows of a finite set as `Actions`."""
    if isinstance(actions, Actions):
        allowed = actions
    elif isinstance(actions, tuple) and len(actions) == 2:
        allowed = Actions.box(*actions, dim=len(names))
    else:
        allowed = Actions.finite(actions)
    if allowed.dim != len(names):
        raise InputError(
            f"actions of width {allowed.dim} were given; expected {len(names)} ({', '.join(names)})"
        )
    return allowed


def _text(value: Any) -> str:
    return " ".join(str(value).split())[:80]
