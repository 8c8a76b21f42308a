"""The best action of each state, in bounded memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ivvi._io.arrays import Array
from ivvi.actions import Actions
from ivvi.planning.newton import STEPS, maximise

ON_A_LINE, ON_AN_AXIS, ANYWHERE = 33, 7, 32
"""Points of a box that are tried first: in one dimension, on each of two axes, in more."""
STARTS = 2
"""How many of the points (or choices) tried are refined by Newton's method."""
ZOOM = {1: (9, 1 / 32), 2: (5, 1 / 6), 3: (3, 1 / 4)}
"""By the number of actions in the box: points on each axis of a net around the best point, and how
far the first net reaches."""
AT_ONCE = 1 << 22
MOST_TRIED = 1 << 12
"""Products of small sets with more combinations are searched by changing coordinates."""
MOST_PAIRS = 24
"""With at most this many coordinates, two are changed at once."""

ActionValues = Callable[[Array, Array], Array]


def best_action(
    q: ActionValues,
    x: Array,
    actions: Actions,
    *,
    width: int = 1,
    steps: int = STEPS,
    zoom: bool = False,
) -> tuple[Array, Array]:
    """Maximise q(x, a), (n, d_x) and (n, d_a) to (n,), over the actions for every state.

    Every row of a list is tried, and every combination of a product of small sets up to
    `MOST_TRIED`; larger products are searched by `best_combination`. Over a box a net of points is
    tried, and projected Newton steps climb from the best; over choices and a box together, they
    climb from the best point of each of the best choices. `width` numbers are kept in memory for
    every value of q; Newton's method takes at most `steps` steps. With `zoom`, boxes of up to three
    actions are searched by `steps` ever smaller nets around the best point instead, because
    derivatives of a wide q cost far more than its values. Returns actions (n, d_a) and values (n,).
    """
    size = max(1, min(len(x), AT_ONCE // max(width, action_count(actions))))
    climb = partial(_zoom if zoom and len(actions.low) in ZOOM else _climb, steps=steps)
    if is_searched(actions):
        find = partial(_best_of_product, climb=climb)
    else:
        find = partial(_best_of_list, width=width, climb=climb)
    if size == len(x):
        return find(q, x, actions)
    count = -(-len(x) // size)
    padded = jnp.concatenate([x, jnp.broadcast_to(x[-1:], (count * size - len(x), x.shape[1]))])
    parts = padded.reshape(count, size, x.shape[1])
    a, value = jax.lax.map(lambda part: find(q, part, actions), parts)
    return a.reshape(-1, actions.dim)[: len(x)], value.reshape(-1)[: len(x)]


def action_count(actions: Actions) -> int:
    """Return how many actions are tried at once for a state."""
    tried = len(_moves(actions.levels)) if is_searched(actions) else actions.count
    return int(tried * len(_net(len(actions.low))))


def is_searched(actions: Actions) -> bool:
    """Return whether a product of small sets has too many combinations to try each."""
    return bool(actions.levels) and actions.count > MOST_TRIED


def _best_of_list(
    q: ActionValues, x: Array, actions: Actions, *, width: int, climb: Any
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
    return climb(q, x, actions, table[started])  # type: ignore[no-any-return]


def _best_of_product(
    q: ActionValues, x: Array, actions: Actions, *, climb: Any
) -> tuple[Array, Array]:
    """Search the product with the box in its middle, then climb in the box."""
    middle = jnp.asarray((actions.low + actions.high) / 2)
    choice, value = best_combination(
        lambda states, choices: q(states, actions.join(middle, choices)), x, actions
    )
    if actions.is_finite:
        return actions.join(middle, choice), value
    return climb(  # type: ignore[no-any-return]
        q, x, actions, actions.join(middle, choice)[:, None]
    )


def best_combination(q: ActionValues, x: Array, actions: Actions) -> tuple[Array, Array]:
    """Maximise q(x, choice) over a product of small sets by changing coordinates.

    The search starts at the lowest and at the highest combination. Each step makes the change of
    one coordinate (or of two, in up to `MOST_PAIRS` coordinates) that gains most, until no change
    gains: a local optimum. Returns choices (n, d_d) and values (n,).
    """
    levels = actions.levels
    sizes = np.array([len(values) for values in levels])
    table = np.zeros((len(levels), int(sizes.max())))
    for row, values in zip(table, levels, strict=True):
        row[: len(values)] = values
    shifts = jnp.asarray(_moves(levels))  # (moves, d)
    n, d, rows = len(x), len(levels), jnp.arange(2 * len(x))
    states = jnp.concatenate([x, x])
    moves = len(shifts)
    tried_states = jnp.repeat(states, moves, axis=0)

    def choices(index: Array) -> Array:
        return jnp.asarray(table)[jnp.arange(d), index]

    def improve(carry: Any) -> Any:
        i, index, value, _ = carry
        tried = (index[:, None] + shifts) % sizes
        gained = q(tried_states, choices(tried.reshape(-1, d))).reshape(len(rows), moves)
        best = jnp.argmax(gained, axis=1)
        better = gained[rows, best] > value
        index = jnp.where(better[:, None], tried[rows, best], index)
        value = jnp.where(better, gained[rows, best], value)
        return i + 1, index, value, jnp.any(better)

    first = jnp.concatenate([jnp.zeros((n, d), int), jnp.broadcast_to(sizes - 1, (n, d))])
    begun = (0, first, q(states, choices(first)), jnp.asarray(True))
    _, index, value, _ = jax.lax.while_loop(lambda c: (c[0] < 4 * d) & c[3], improve, begun)
    best = jnp.where(value[n:] > value[:n], n, 0) + jnp.arange(n)
    return choices(index[best]), value[best]


@lru_cache(maxsize=16)
def _moves(levels: tuple[tuple[float, ...], ...]) -> np.ndarray:
    """Return changes of one or two coordinates, as shifts of their level numbers, (k, d)."""
    d = len(levels)
    single = [(j, s) for j, values in enumerate(levels) for s in range(1, len(values))]
    moves = [{j: s} for j, s in single]
    if d <= MOST_PAIRS:
        pairs = itertools.combinations(single, 2)
        moves += [{j: s, k: t} for (j, s), (k, t) in pairs if j != k]
    shifts = np.zeros((len(moves), d), int)
    for row, move in zip(shifts, moves, strict=True):
        row[list(move)] = list(move.values())
    return shifts


def _climb(
    q: ActionValues, x: Array, actions: Actions, started: Array, *, steps: int
) -> tuple[Array, Array]:
    """Climb from actions (n, s, d_a) with their choices held; return the best end."""
    n, s, _ = started.shape
    rows = started.reshape(n * s, -1)
    choices = rows[:, list(actions.discrete)]
    states = jnp.repeat(x, s, axis=0)

    def value(plans: Array) -> Array:
        return q(states, actions.join(plans[:, 0], choices))

    begun = rows[:, None, list(actions.continuous)]
    action, reached = maximise(value, begun, actions.low, actions.high, steps=steps)
    best = jnp.argmax(reached.reshape(n, s), axis=1) + s * jnp.arange(n)
    return actions.join(action[best, 0], choices[best]), reached[best]


def _zoom(
    q: ActionValues, x: Array, actions: Actions, started: Array, *, steps: int
) -> tuple[Array, Array]:
    """Try ever smaller nets around actions (n, s, d_a) with their choices held; return the best."""
    n, s, d = len(x), started.shape[1], len(actions.low)
    rows = started.reshape(n * s, -1)
    choices, states = rows[:, list(actions.discrete)], jnp.repeat(x, s, axis=0)
    side, first = ZOOM[d]
    net = jnp.asarray(list(itertools.product(np.linspace(-1, 1, side), repeat=d)))
    net = net * first * (actions.high - actions.low)
    k, low, high = len(net), jnp.asarray(actions.low), jnp.asarray(actions.high)

    def closer(i: Array, centre: Array) -> Array:
        tried = jnp.clip(centre[:, None] + net * min(0.5, 2.0 / (side - 1)) ** i, low, high)
        candidates = actions.join(tried.reshape(-1, d), jnp.repeat(choices, k, axis=0))
        values = q(jnp.repeat(states, k, axis=0), candidates).reshape(-1, k)
        best = jnp.argmax(values, axis=1)
        return jnp.take_along_axis(tried, best[:, None, None], axis=1)[:, 0]

    centre = jax.lax.fori_loop(0, steps, closer, rows[:, list(actions.continuous)])
    reached = q(states, actions.join(centre, choices))
    best = jnp.argmax(reached.reshape(n, s), axis=1) + s * jnp.arange(n)
    return actions.join(centre[best], choices[best]), reached[best]


def _scores(q: ActionValues, x: Array, table: Array, width: int) -> Array:
    """Return Q of every state and every row of the table, (n, m), in blocks of rows."""
    n, m = len(x), len(table)
    size = max(1, min(m, AT_ONCE // (n * width)))
    count = -(-m // size)
    padded = jnp.concatenate(
        [table, jnp.broadcast_to(table[-1:], (count * size - m, len(table.T)))]
    )

    def score(rows: Array) -> Array:
        pairs = jnp.repeat(x, size, axis=0), jnp.tile(rows, (n, 1))
        return q(*pairs).reshape(n, size)

    scores = jax.lax.map(score, padded.reshape(count, size, -1))  # (count, n, size)
    return jnp.moveaxis(scores, 0, 1).reshape(n, count * size)[:, :m]


@lru_cache(maxsize=16)
def _net(d: int) -> np.ndarray:
    """Return points of the unit box, (k, d): a lattice, or Sobol points and the middle."""
    if d <= 2:
        side = np.linspace(0, 1, ON_A_LINE if d == 1 else ON_AN_AXIS)
        return np.array(list(itertools.product(side, repeat=d)))
    from scipy.stats import qmc

    return np.vstack([np.full((1, d), 0.5), qmc.Sobol(d, scramble=False).random(ANYWHERE)[1:]])
