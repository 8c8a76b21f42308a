"""Good policies for linear worlds with many states and long lists, one step ahead of a value.

Riccati's value ignores that actions come from a list. Quartic polynomials, fitted backward to what
the listed actions earn at states that good policies visit, know it. The quadratic value ranks the
list first; only its best rows are tried with the quartic.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np

import ivvi
from zoo.riccati import LinearQuadratic, quadratic, riccati
from zoo.world import World, run

SHORTLIST, STATES, ROUNDS, DEGREE, LONG = 48, 800, 2, 4, 4096


def scores(world: World, lq: LinearQuadratic, x: np.ndarray, h: int) -> np.ndarray:
    """Return r(x, a) + discount E V_h+1 up to what does not depend on a, (n, m)."""
    K, k, _ = lq.values[h + 1]
    rows = world.actions.choices
    moved = rows @ lq.Q.T
    own = world.discount * quadratic(moved, (K, k, 0.0)) - (rows**2) @ np.diag(lq.R)
    return own + world.discount * 2 * ((lq.c + x @ lq.P.T) @ K) @ moved.T


def one_step(world: World, lq: LinearQuadratic) -> Callable[[np.ndarray, int], np.ndarray]:
    """Return the policy that is best over the list with Riccati's value after one step."""
    rows = world.actions.choices
    return lambda x, h: rows[scores(world, lq, x, h).argmax(axis=1)]


def monomials(d: int) -> list[tuple[int, ...]]:
    return [
        powers
        for degree in range(DEGREE + 1)
        for powers in itertools.combinations_with_replacement(range(d), degree)
    ]


def features(x: np.ndarray) -> np.ndarray:
    """Return all monomials of x (.., d) up to DEGREE."""
    whole = [np.ones(x.shape[:-1])]
    table = {(): whole[0]}
    for powers in monomials(x.shape[-1])[1:]:
        table[powers] = table[powers[:-1]] * x[..., powers[-1]]
    return np.stack(list(table.values()), axis=-1)


def blurred(spread: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return T with E features(m + spread e) = features(m) T; three nodes an axis are exact."""
    d = len(spread)
    nodes = np.array(list(itertools.product((-np.sqrt(3), 0, np.sqrt(3)), repeat=d)))
    weights = np.prod(np.where(nodes == 0, 2 / 3, 1 / 6), axis=1)
    m = rng.normal(size=(4 * len(monomials(d)), d))
    after = np.einsum("k,nkf->nf", weights, features(m[:, None] + nodes * spread))
    return np.linalg.lstsq(features(m), after, rcond=None)[0]


def visited(world: World, policy: Callable, seed: int) -> list[np.ndarray]:
    """Return the states of each step under a policy, a little spread out."""
    rng, seen = np.random.default_rng([seed, 3]), []
    x = world.start(rng, STATES)
    for h in range(world.horizon):
        seen.append(x + rng.normal(scale=0.5, size=x.shape))
        x = world.step(x, policy(x, h), rng.normal(size=x.shape))
    return seen


def improved(world: World, lq: LinearQuadratic, policy: Callable, seed: int) -> Callable:
    """Fit quartic values backward at states that `policy` visits; return the greedy policy."""
    rng, rows = np.random.default_rng(seed), world.actions.choices
    seen = visited(world, policy, seed)
    scale = np.std(np.concatenate(seen), axis=0)
    T, weights_by_step = blurred(np.array(world.spread) / scale, rng), {}

    def choose(x: np.ndarray, h: int) -> tuple[np.ndarray, np.ndarray]:
        rank = scores(world, lq, x, h)
        short = rows[np.argpartition(-rank, min(SHORTLIST, len(rows) - 1), axis=1)[:, :SHORTLIST]]
        states = np.broadcast_to(x[:, None], (*short.shape[:2], x.shape[1]))
        now = np.asarray(world.reward(states, short, None, h))
        if h + 1 < world.horizon:
            mean = (lq.c + x @ lq.P.T)[:, None] + short @ lq.Q.T
            now = now + world.discount * (features(mean / scale) @ weights_by_step[h + 1])
        best = now.argmax(axis=1)
        return short[np.arange(len(x)), best], now.max(axis=1)

    for h in reversed(range(1, world.horizon)):
        F, target = features(seen[h] / scale), choose(seen[h], h)[1]
        weights = np.linalg.solve(F.T @ F + 1e-6 * len(F) * np.eye(F.shape[1]), F.T @ target)
        weights_by_step[h] = T @ weights
    return lambda x, h: choose(x, h)[0]


def pruned(world: World, lq: LinearQuadratic) -> World:
    """Return the world with the part of a very long list that is ever near the best."""
    x, rows = (
        visited(world, lambda x, h: np.zeros((len(x), world.d_a)), 0)[0],
        world.actions.choices,
    )
    near = [
        np.argpartition(-scores(world, lq, size * x, h), SHORTLIST, axis=1)[:, :SHORTLIST]
        for size in (0.1, 0.3, 1.0)
        for h in (0, world.horizon - 3)
    ]
    return replace(world, actions=ivvi.Actions.finite(rows[np.unique(np.concatenate(near))]))


def fitted_policy(world: World) -> tuple[Callable, None]:
    """Return the best of Riccati's value one step ahead and some rounds of fitted quartics."""
    lq = riccati(world)
    world = pruned(world, lq) if len(world.actions.choices) > LONG else world
    best = one_step(world, lq)
    earned = run(world, best, 400, seed=99).mean()
    for seed in range(ROUNDS):
        tried = improved(world, lq, best, seed)
        if (value := run(world, tried, 400, seed=99).mean()) > earned:
            best, earned = tried, value
    return best, None
