"""The best action of each state, in bounded memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np

from ivvi.actions import Actions
from ivvi.blocks import Array
from ivvi.planners.newton import STEPS, maximise

ON_A_LINE, ON_AN_AXIS, ANYWHERE = 33, 7, 32
"""Points of a box that are tried first: in one dimension, on each axis of two, in more."""
STARTS = 2
"""Of the points tried (or the choices), those from which Newton's method climbs."""
AT_ONCE = 1 << 22


def best_action(
    q: Callable[[Array, Array], Array],
    x: Array,
    actions: Actions,
    *,
    width: int = 1,
    steps: int = STEPS,
) -> tuple[Array, Array]:
    """Maximise q(x, a), (n, d_x) and (n, d_a) to (n,), over the actions for every state.

    Every choice of a finite set is tried. Over a box a net of points is tried, and projected
    Newton steps climb from the best; over both together, from the best point of the best
    choices. `width` numbers are held for every value of q; Newton's method takes at most
    `steps`. Returns actions (n, d_a) and values (n,).
    """
    m, net = len(actions.choices), _net(len(actions.low))
    size = max(1, min(len(x), AT_ONCE // max(width, m * len(net))))
    if size == len(x):
        return _best(q, x, actions, width, steps)
    count = -(-len(x) // size)
    padded = jnp.concatenate([x, jnp.broadcast_to(x[-1:], (count * size - len(x), x.shape[1]))])
    parts = padded.reshape(count, size, x.shape[1])
    a, value = jax.lax.map(lambda part: _best(q, part, actions, width, steps), parts)
    return a.reshape(-1, actions.dim)[: len(x)], value.reshape(-1)[: len(x)]


def _best(
    q: Callable[[Array, Array], Array], x: Array, actions: Actions, width: int, steps: int
) -> tuple[Array, Array]:
    n, m = len(x), len(actions.choices)
    boxes = actions.low + _net(len(actions.low)) * (actions.high - actions.low)
    table = actions.join(boxes[None], actions.choices[:, None])  # (m, k, d_a)
    k = table.shape[1]
    table = jnp.asarray(table.reshape(m * k, -1))
    scores = _scores(q, x, table, width)
    if actions.is_finite:
        chosen = jnp.argmax(scores, axis=1)
        return table[chosen], jnp.take_along_axis(scores, chosen[:, None], axis=1)[:, 0]
    if m > 1:  # the best point of each choice
        point = jnp.argmax(scores.reshape(n, m, k), axis=2)
        reached = jnp.max(scores.reshape(n, m, k), axis=2)
        _, choice = jax.lax.top_k(reached, min(STARTS, m))
        started = choice * k + jnp.take_along_axis(point, choice, axis=1)
    else:
        started = jax.lax.top_k(scores, min(STARTS, k) if len(actions.low) > 1 else 1)[1]
    return _climb(q, x, actions, table[started], steps)


def _climb(
    q: Callable[[Array, Array], Array], x: Array, actions: Actions, started: Array, steps: int
) -> tuple[Array, Array]:
    """Climb from actions (n, s, d_a) with their choices held; return the best end."""
    n, s, _ = started.shape
    rows = started.reshape(n * s, -1)
    choices = rows[:, list(actions.discrete)]
    states = jnp.repeat(x, s, axis=0)

    def value(plans: Array) -> Array:
        return q(states, actions.join(plans[:, 0], choices))

    begun = rows[:, None, list(actions.continuous)]
    found, reached = maximise(value, begun, actions.low, actions.high, steps=steps)
    best = jnp.argmax(reached.reshape(n, s), axis=1) + s * jnp.arange(n)
    return actions.join(found[best, 0], choices[best]), reached[best]


def _scores(q: Callable[[Array, Array], Array], x: Array, table: Array, width: int) -> Array:
    """Q of every state with every row of the table, (n, m), some rows at a time."""
    n, m = len(x), len(table)
    size = max(1, min(m, AT_ONCE // (n * width)))
    count = -(-m // size)
    padded = jnp.concatenate(
        [table, jnp.broadcast_to(table[-1:], (count * size - m, len(table.T)))]
    )

    def some(rows: Array) -> Array:
        pairs = jnp.repeat(x, size, axis=0), jnp.tile(rows, (n, 1))
        return q(*pairs).reshape(n, size)

    scores = jax.lax.map(some, padded.reshape(count, size, -1))  # (count, n, size)
    return jnp.moveaxis(scores, 0, 1).reshape(n, count * size)[:, :m]


@lru_cache(maxsize=16)
def _net(d: int) -> np.ndarray:
    """Points of the unit box, (k, d): a lattice, or Sobol points and the middle."""
    if d <= 2:
        side = np.linspace(0, 1, ON_A_LINE if d == 1 else ON_AN_AXIS)
        return np.array(list(itertools.product(side, repeat=d)))
    from scipy.stats import qmc

    return np.vstack([np.full((1, d), 0.5), qmc.Sobol(d, scramble=False).random(ANYWHERE)[1:]])
