"""The paper's recommender (section 5.3): tastes drift with the movies that are watched."""

from __future__ import annotations

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from ivvi._io.arrays import Array
from ivvi.errors import InputError
from ivvi.rewards import RatingReward
from ivvi.simulators.world import World, gaussian

RECOMMENDATIONS = 10
"""Recommendations made at each step, the total of the multinomial instrument."""
RATINGS = (0.0, 5.0)
ORIGINAL = {
    "I": [1 / 5] * 4 + [1 / 30] * 6,
    "II": [1 / 5] * 2 + [1 / 10] * 4 + [1 / 20] * 4,
    "III": [1 / 10] * 10,
}
REVISED = {
    "I": [1 / 3] * 3 + [0.0] * 7,
    "II": [1 / 5] * 2 + [1 / 10] * 4 + [1 / 20] * 4,
    "III": [1 / 10] * 10,
}


def recommender_world(
    U: np.ndarray,
    singular_values: np.ndarray,
    V_tilde: np.ndarray,
    setting: str = "I",
    *,
    revised: bool = False,
    literal: bool = False,
    label: str = "",
) -> World:
    """Return x' = x + V~^T a + e, a_i ~ Bernoulli(sigmoid(2 z_i + 0.1 x_i - 0.8 e_i)).

    The state is a user's preference for the categories, the action which movies are watched, and
    the instrument how often each is recommended. That is multinomial with a fixed total, so that
    [1, z] is collinear and one direction of W is not identified. In the revised
    model the chances follow the rank of the movie's predicted rating, ties by index. The
    reward is the sum of the ratings V~ Sigma x clipped to [0, 5]. W* = [0, I, V~^T].

    Parameters
    ----------
    U, singular_values, V_tilde
        Users by categories, the singular values (categories,), movies by categories.
    setting
        ``I``, ``II`` or ``III``: how uneven the recommendations are.
    literal
        Follow the scripts of the paper's authors: the reward is the sum of Sigma V~^T x clipped to
        [0, 5], as printed, and x_0 = 0. Recommendations still rank V~ Sigma x.
    """
    movies, categories = V_tilde.shape
    chances = _chances(setting, movies, revised=revised)
    weights, users = V_tilde * singular_values, np.ascontiguousarray(U)

    def ratings(x: Array) -> Array:
        return jnp.clip(jnp.asarray(weights) @ x, *RATINGS)

    def instrument(key: Array, x: Array, history: Array) -> Array:
        p = jnp.asarray(chances)
        if revised:
            rank = jnp.argsort(jnp.argsort(-ratings(x), stable=True))
            p = p[rank]
        draws = jax.random.categorical(key, jnp.log(p), shape=(RECOMMENDATIONS,))
        return jnp.sum(jax.nn.one_hot(draws, movies, dtype=jnp.float64), axis=0)

    def behaviour(key: Array, x: Array, z: Array, e: Array) -> Array:
        chance = jax.nn.sigmoid(2 * z + 0.1 * x - 0.8 * e)
        return jax.random.bernoulli(key, chance).astype(jnp.float64)

    def initial(key: Array) -> Array:
        if literal:
            return jnp.zeros(categories)
        pick, spread = jax.random.split(key)
        row = jax.random.randint(pick, (), 0, len(users))
        return jnp.asarray(users)[row] + jax.random.normal(spread, (categories,), jnp.float64)

    scored = singular_values[:, None] * V_tilde.T if literal else weights
    return World(
        name=f"recommender{'-revised' if revised else ''} setting {setting}",
        d_x=categories,
        d_z=movies,
        actions=gymnasium.spaces.MultiBinary(movies),
        transition=lambda x, a: x + jnp.asarray(V_tilde).T @ a,
        reward=RatingReward(tuple(map(tuple, scored.tolist())), *RATINGS),
        initial=initial,
        confounder=gaussian(np.eye(categories)),
        instrument=instrument,
        behaviour=behaviour,
        horizon=100,
        episodes=200,
        W_star=np.hstack([np.zeros((categories, 1)), np.eye(categories), V_tilde.T]),
        label=label,
    )


def _chances(setting: str, movies: int, *, revised: bool) -> np.ndarray:
    """Return the chance of each movie (in the revised model: of each rank) to be recommended."""
    table = REVISED if revised else ORIGINAL
    if setting not in table:
        raise InputError(f"unknown setting {setting!r}; choose from {', '.join(table)}")
    chances = np.array(table[setting])
    if movies != len(chances):
        raise InputError(f"{movies} movies are given; expected {len(chances)}")
    return chances
