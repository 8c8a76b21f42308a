"""The best of finitely many actions to begin a plan with.

Few choices are listed: each is held to the end of the lookahead, then each step of the best
plan is changed to the choice that is best there. A product of many small sets ({0, 1}^10) is
searched one coordinate at a time, the action held, from its two extreme corners. Any other
long list is tried with each choice held.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ivvi.blocks import Array
from ivvi.planners.lookahead import Lookahead

MOST_LISTED = 64
SWEEPS = 3


def best_choice(ahead: Lookahead, x: Array, h: Array) -> Array:
    """Return the first choice of good plans, (n, d_d), for states (n, d_x) at step h."""
    choices = ahead.problem.actions.choices
    if len(choices) <= MOST_LISTED:
        return _improved(ahead, x, h, _best_held(ahead, x, h, choices))
    values = coordinate_values(choices)
    if values is None:
        return _best_held(ahead, x, h, choices)
    return _by_coordinate(ahead, x, h, values)


def coordinate_values(choices: np.ndarray) -> np.ndarray | None:
    """Return the values of each coordinate, (d, v), if `choices` is the product of such sets."""
    columns = [np.unique(column) for column in choices.T]
    widths = {len(column) for column in columns}
    if len(widths) != 1 or len(choices) != widths.pop() ** len(columns):
        return None
    return np.array(columns)


def _best_held(ahead: Lookahead, x: Array, h: Array, choices: np.ndarray) -> Array:
    value = _held_values(ahead, x, h, jnp.broadcast_to(choices, (len(x), *choices.shape)))
    return jnp.asarray(choices)[jnp.argmax(value, axis=1)]


def _improved(ahead: Lookahead, x: Array, h: Array, held: Array) -> Array:
    """Change each step of the held plan to the best choice, in order, once."""
    choices = jnp.asarray(ahead.problem.actions.choices)
    plan = jnp.repeat(held[:, None], ahead.steps, axis=1)
    for step in range(ahead.steps):
        tried = jnp.repeat(plan[:, None], len(choices), axis=1).at[:, :, step].set(choices)
        best = jnp.argmax(_values(ahead, x, h, tried), axis=1)
        plan = plan.at[:, step].set(choices[best])
    return plan[:, 0]


def _by_coordinate(ahead: Lookahead, x: Array, h: Array, values: np.ndarray) -> Array:
    """Set one coordinate after the other to its best value until a whole round changes none."""
    table, (d, v) = jnp.asarray(values), values.shape
    rows, others = jnp.arange(len(x)), jnp.arange(1, v)

    def worth(index: Array) -> Array:  # (n, m, d) numbers of values to (n, m)
        return _held_values(ahead, x, h, table[jnp.arange(d), index])

    def improve(j: Array, found: tuple[Array, Array]) -> tuple[Array, Array]:
        index, value = found
        tried = jnp.repeat(index[:, None], v - 1, axis=1)
        tried = tried.at[:, :, j].set((index[:, j, None] + others) % v)
        gained = worth(tried)
        best = jnp.argmax(gained, axis=1)
        better = gained[rows, best] > value
        index = jnp.where(better[:, None], tried[rows, best], index)
        return index, jnp.where(better, gained[rows, best], value)

    def sweep(carry: Any) -> Any:
        i, found, _ = carry
        new = jax.lax.fori_loop(0, d, improve, found)
        return i + 1, new, jnp.any(new[0] != found[0])

    def search(corner: int) -> tuple[Array, Array]:
        index = jnp.full((len(x), d), corner)
        begun = (0, (index, worth(index[:, None])[:, 0]), jnp.asarray(True))
        return jax.lax.while_loop(lambda c: (c[0] < SWEEPS) & c[2], sweep, begun)[1]  # type: ignore[no-any-return]

    low, high = search(0), search(v - 1)
    index = jnp.where((high[1] > low[1])[:, None], high[0], low[0])
    return table[jnp.arange(d), index]


def _held_values(ahead: Lookahead, x: Array, h: Array, choices: Array) -> Array:
    """Value choices (n, m, d), each held for the whole lookahead, (n, m)."""
    return _values(ahead, x, h, jnp.repeat(choices[:, :, None], ahead.steps, axis=2))


def _values(ahead: Lookahead, x: Array, h: Array, plans: Array) -> Any:
    """Value plans (n, m, L, d) at states (n, d_x), (n, m)."""
    n, m = plans.shape[:2]
    states = jnp.repeat(x, m, axis=0)
    return ahead(states, plans.reshape(n * m, *plans.shape[2:]), h).reshape(n, m)
