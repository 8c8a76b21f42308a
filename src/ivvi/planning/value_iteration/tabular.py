"""Values of a finite number of states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import numpy as np

from ivvi._io.arrays import Array
from ivvi._io.result import Compact
from ivvi.errors import InputError
from ivvi.planning.problem import Problem

MOST_ROWS = 10_000
CODED, EXACT, CELLS = "coded", "exact", "cells"


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False, repr=False)
class StateTable(Compact):
    """G(m) = sum_s P(s | m) V(s) over the rows s of a table of states.

    How the model's mean m gives the probabilities depends on the table (`law`):

    - ``coded``: the rows are indicators of one of d_x categories (and perhaps the row of
      zeros, for a category left out). The mean of an indicator is its probability, so P is m
      itself, with estimates below 0 set to 0.
    - ``exact``: the model has no noise; from every row every action leads to a row.
    - ``cells``: one column with noise. P is the Gaussian's mass between the midpoints of
      neighbouring rows.

    Attributes
    ----------
    rows
        The states, (S, d_x), sorted.
    law
        One of the words above.
    deviation
        Standard deviation of the noise of a single column.
    """

    kind: ClassVar[str] = "tabular"
    rows: np.ndarray
    law: str = field(metadata={"static": True})
    deviation: float = 0.0

    @classmethod
    def of(cls, problem: Problem) -> StateTable:
        """Return the table of the distinct states of the problem."""
        rows, d = np.unique(problem.support, axis=0), len(problem.model.state)
        if len(rows) > MOST_ROWS:
            raise InputError(
                f"a table of {len(rows)} states was requested; the most is {MOST_ROWS}: use "
                "value='grid' or value='fitted'"
            )
        if is_coded(rows):
            return cls(rows, CODED)
        if not problem.model.next_cov.any():
            _check_exact(problem, rows)
            return cls(rows, EXACT)
        if d > 1:
            raise InputError(
                f"a table of states with {d} columns and Gaussian noise was requested; the states "
                "must be indicators of categories, or the noise zero, or there must be one column"
            )
        return cls(rows, CELLS, float(np.sqrt(problem.model.next_cov[0, 0])))

    @classmethod
    def from_arrays(cls, problem: Problem, arrays: Mapping[str, np.ndarray]) -> StateTable:
        """Make the table again from `arrays`."""
        return cls(arrays["rows"], str(arrays["law"]), float(arrays["deviation"]))

    @property
    def width(self) -> int:
        """Numbers that one evaluation uses."""
        return len(self.rows)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return what `from_arrays` needs."""
        return {"rows": self.rows, "law": np.array(self.law), "deviation": np.array(self.deviation)}

    def nearest(self, x: Array) -> Array:
        """Return the row of the table next to each state (n, d_x)."""
        xp = x.__array_namespace__()
        return xp.asarray(self.rows)[_closest(x, self.rows)]

    def __call__(self, c: Array, m: Array) -> Array:
        """Average the values c (S,) of the rows given means m (n, d_x); returns (n,)."""
        if self.law == EXACT:
            return c[_closest(m, self.rows)]
        return self.probabilities(m) @ c

    def around(self, m: Array) -> tuple[Array, Array]:
        """Return next states (K, n, d_x) for means m (n, d_x), and their weights (K, n)."""
        xp = m.__array_namespace__()
        if self.law == EXACT:
            return self.nearest(m)[None], xp.ones((1, len(m)))
        rows = xp.broadcast_to(self.rows[:, None], (len(self.rows), *m.shape))
        return rows, self.probabilities(m).T

    def probabilities(self, m: Array) -> Array:
        """Return P(s | m), (n, d_x) to (n, S)."""
        from jax.scipy.stats import norm

        xp = m.__array_namespace__()
        if self.law == CODED:
            share = xp.clip(m, 0.0, 1.0)
            rest = xp.clip(1.0 - share.sum(axis=-1, keepdims=True), 0.0, 1.0)
            coded = share @ self.rows.T + rest * (self.rows.sum(axis=1) == 0)
            return coded / coded.sum(axis=-1, keepdims=True)
        edges = (self.rows[1:, 0] + self.rows[:-1, 0]) / 2
        below = norm.cdf((edges - m) / self.deviation)
        return xp.diff(xp.concatenate([0 * m, below, 0 * m + 1], axis=-1), axis=-1)

    def design(self, problem: Problem) -> Callable[[np.ndarray], np.ndarray]:
        """Return the map from V at the rows to their values: zero where a row ends the episode."""
        ends = problem.terminal
        alive = 1.0 if ends is None else 1.0 - np.asarray(ends(self.rows))
        return lambda values: np.asarray(alive * values)


def is_coded(rows: np.ndarray) -> bool:
    """Return whether rows are indicators: every unit vector, and perhaps zeros."""
    units = np.isin(rows, (0.0, 1.0)).all() and (rows.sum(axis=1) <= 1).all()
    return bool(units and (rows.sum(axis=0) >= 1).all() and len(np.unique(rows, axis=0)) > 1)


def _closest(x: Array, rows: np.ndarray) -> Any:
    xp = x.__array_namespace__()
    cross = x @ rows.T
    return xp.argmin((rows**2).sum(axis=1) - 2 * cross, axis=-1)


def _check_exact(problem: Problem, rows: np.ndarray) -> None:
    """Raise an error if a model without noise leaves the table, or actions are a box."""
    if not problem.actions.is_finite:
        raise InputError(
            "a table of states without noise was requested with a box of actions; expected a "
            "finite set, since almost every action of a box leaves the table"
        )
    size = 1e-6 * (1 + np.abs(rows).max())
    for a in problem.actions.choices:
        reached = np.asarray(problem.model.mean(rows, np.broadcast_to(a, (len(rows), len(a)))))
        away = np.abs(reached - rows[np.asarray(_closest(reached, rows))]).max(axis=1)
        if (away > size).any():
            bad = int(np.argmax(away))
            raise InputError(
                f"from the state {_text(rows[bad])} the action {_text(a)} leads to "
                f"{_text(reached[bad])}, which is not one of the {len(rows)} states; pass all "
                "states that can be reached"
            )


def _text(values: np.ndarray) -> str:
    return "(" + ", ".join(f"{v:.4g}" for v in values) + ")"
