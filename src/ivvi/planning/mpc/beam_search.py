"""Choices from a finite set, searched in the mean dynamics.

In a product of many small sets, the best choice to hold is found by changing coordinates. Otherwise
the tree of sequences is searched step by step. Each prefix that was kept is extended by every
choice. The `width` most promising ones are kept, by the rewards so far plus the value of the last
state. If the tree has at most `width` branches at every depth, every sequence is listed.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ivvi._io.arrays import Array
from ivvi.actions import Actions
from ivvi.planning.best_action import best_combination
from ivvi.planning.mpc.lookahead import Lookahead

WIDTH = 64
"""Prefixes that are kept, as long as a step tries at most `MOST_TRIED` choices for a state."""
MOST_TRIED = 1 << 10
AT_ONCE = 1 << 21
MOST_PRODUCT = 64
"""Larger products of small sets are searched by changing coordinates of a held choice."""


def is_held(actions: Actions) -> bool:
    """Return whether a plan is one choice, held: in products of small sets with many choices."""
    return bool(actions.levels) and actions.count > MOST_PRODUCT


def usual_depth(actions: Actions) -> int:
    """Return how many steps to look ahead: the more choices there are, the fewer."""
    if is_held(actions):
        return 10
    for most, steps in ((4, 10), (16, 6), (100, 4)):
        if actions.count <= most:
            return steps
    return 2


def best_choice(ahead: Lookahead, x: Array, h: Array) -> Array:
    """Return the first choice of the best sequence, (n, d_d), for states (n, d_x) at step h."""
    actions = ahead.problem.actions
    if is_held(actions):
        return best_combination(lambda s, a: _held(ahead, s, a, h), x, actions)[0]
    m = len(actions.choices)
    width = max(1, min(WIDTH, MOST_TRIED // m))
    size = max(1, min(len(x), AT_ONCE // (width * m)))
    if size == len(x):
        return _beam(ahead, x, h, width)
    count = -(-len(x) // size)
    padded = jnp.concatenate([x, jnp.broadcast_to(x[-1:], (count * size - len(x), x.shape[1]))])
    parts = jax.lax.map(lambda s: _beam(ahead, s, h, width), padded.reshape(count, size, -1))
    return parts.reshape(count * size, -1)[: len(x)]


def _held(ahead: Lookahead, x: Array, choices: Array, h: Array) -> Array:
    """Return the values (n,) of choices (n, d_d) held for the whole lookahead."""
    return ahead(x, jnp.repeat(choices[:, None], ahead.steps, axis=1), h)


def _beam(ahead: Lookahead, x: Array, h: Array, width: int) -> Array:
    """Return the first choices (n, d_d) of the best sequences from states (n, d_x)."""
    choices = jnp.asarray(ahead.problem.actions.choices)
    n, m = len(x), len(choices)
    d, rows = x.shape[1], jnp.arange(n)[:, None]
    a = jnp.broadcast_to(choices, (n, width, *choices.shape)).reshape(-1, choices.shape[1])

    def deepen(carry: Any, step: Array) -> Any:
        states, earned, alive, first = carry  # (n, width, ..)
        parents = jnp.repeat(states, m, axis=1).reshape(-1, d)
        living = jnp.repeat(alive, m, axis=1).reshape(-1)
        x_next, gained, going = ahead.advance(parents, a, h, step, living)
        total = jnp.repeat(earned, m, axis=1) + gained.reshape(n, -1)
        promise = total + (going * ahead.to_go(x_next, h, step + 1)).reshape(n, -1)
        _, best = jax.lax.top_k(promise, width)
        begun = jnp.where(step == 0, jnp.tile(jnp.arange(m), width), jnp.repeat(first, m, axis=1))
        branch = x_next.reshape(n, -1, d)[rows, best]
        chosen = (branch, total[rows, best], going.reshape(n, -1)[rows, best], begun[rows, best])
        return chosen, promise[rows, best]

    root = jnp.where(jnp.arange(width) == 0, 0.0, -jnp.inf)  # one prefix, not `width` of them
    begun = (
        jnp.repeat(x[:, None], width, axis=1),
        jnp.broadcast_to(root, (n, width)),
        jnp.ones((n, width)),
        jnp.zeros((n, width), int),
    )
    (_, _, _, first), promise = jax.lax.scan(deepen, begun, jnp.arange(ahead.steps))
    best = jnp.argmax(promise[-1], axis=1)
    return choices[jnp.take_along_axis(first, best[:, None], axis=1)[:, 0]]
