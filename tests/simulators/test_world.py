"""Worlds of your own: instruments with memory, resuming episodes, and wrong ones refused."""

import dataclasses
import math

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ivvi
from ivvi import ConfoundedEnv, InputError
from ivvi.simulators import World, gaussian
from ivvi.simulators import confounded_env as env_module
from world_checks import correlations


def my_world(**settings):
    """Return x' = 0.8 x - 0.6 a + e; the behaviour policy sees e and pushes the same way."""
    world = World(
        name="mine",
        d_x=1,
        d_z=1,
        actions=gymnasium.spaces.Box(-20.0, 20.0, (1,), np.float64),
        transition=lambda x, a: 0.8 * x - 0.6 * a,
        reward=lambda x, a: -jnp.sum(x**2),
        initial=lambda key: jax.random.normal(key, (1,), jnp.float64),
        confounder=gaussian([[1.0]]),
        instrument=lambda key, x, history: jax.random.normal(key, (1,), jnp.float64),
        behaviour=lambda key, x, z, e: z + e - 0.3 * x,
        horizon=40,
        episodes=50,
    )
    return dataclasses.replace(world, **settings)


def drifting(key, x, history):
    return 0.9 * history + jax.random.normal(key, (1,), jnp.float64)


WORLDS = {
    "global": {"scope": "episode"},
    "drifting": {"instrument": drifting},
    "resuming": {"resume": lambda key, last: last + 1.0},
}


@pytest.fixture(scope="module")
def my_logs():
    """Return a log of each of these worlds."""
    return {
        name: ConfoundedEnv(my_world(**settings)).collect(seed=1)
        for name, settings in WORLDS.items()
    }


@pytest.mark.parametrize("name", WORLDS)
def test_the_truth_of_a_world_of_your_own_is_found(name, my_logs):
    fit = ivvi.estimate(my_logs[name])
    error = (fit.W - [[0.0, 0.8, -0.6]]) / fit.se
    assert np.abs(error).max() < 4
    assert fit.baseline.W[0, 2] - -0.6 > 10 * fit.baseline.se[0, 2]
    assert fit.counts.transitions == 50 * 40


def test_global_instrument_is_constant_within_episodes(my_logs):
    z = my_logs["global"].to_batch().z.reshape(50, 40)
    assert (z == z[:, :1]).all()
    assert len(np.unique(z[:, 0])) == 50


def test_episodes_may_begin_where_the_last_one_ended(my_logs, monkeypatch):
    batch = my_logs["resuming"].to_batch()
    first, last = batch.x.reshape(50, 40)[:, 0], batch.y.reshape(50, 40, -1)[:, -1, 0]
    np.testing.assert_allclose(first[1:], last[:-1] + 1.0)
    monkeypatch.setattr(env_module, "ROWS_AT_ONCE", 7 * 40)
    again = ConfoundedEnv(my_world(**WORLDS["resuming"])).collect(seed=1)
    np.testing.assert_allclose(again.to_batch().x, batch.x)


def test_an_instrument_may_have_a_memory(my_logs):
    """z = 0.9 times the last z plus noise: what is left of it is white."""
    z = my_logs["drifting"].to_batch().z.reshape(50, 40)
    left = z - 0.9 * np.column_stack([np.zeros(50), z[:, :-1]])
    assert abs(left.var() - 1) < 5 * math.sqrt(2 / left.size)
    before, after = z[:, :-1].reshape(-1, 1), left[:, 1:].reshape(-1, 1)
    assert abs(correlations(after, before)[0, 0]) < 5 / math.sqrt(len(after))
    assert z.var() > 2


def test_remember_chooses_the_memory():
    world = my_world(
        instrument=lambda key, x, history: history[:1] + history[1:],
        remember=lambda history, x, z: history + jnp.array([1.0, 0.0]),
        history=np.array([0.0, 5.0]),
    )
    log = ConfoundedEnv(world).collect(episodes=3, horizon=40)
    steps = log.to_arrow()["step"].to_numpy()
    np.testing.assert_array_equal(log.to_batch().z[:, 0], 5.0 + steps)


def test_wrong_worlds_are_refused():
    with pytest.raises(InputError, match="is 'week'"):
        my_world(scope="week")
    world = my_world(actions=gymnasium.spaces.Discrete(3))
    with pytest.raises(InputError, match="no vector shape"):
        ConfoundedEnv(world).rollout(lambda x: x)


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        ({"d_x": 2}, ("initial", r"returns \(1,\)", r"expected \(2,\)")),
        ({"d_z": 2}, ("instrument", r"expected \(2,\)")),
        ({"transition": lambda x, a: x[0]}, ("transition", r"returns \(\)")),
        ({"transition": lambda x, a: x[:, 0]}, ("transition", "fails on")),
        ({"confounder": gaussian(np.eye(2))}, ("confounder", r"returns \(2,\)")),
        ({"reward": lambda x, a: -(x**2)}, ("reward", r"expected \(\)")),
        ({"behaviour": lambda key, x, z, e: jnp.append(z, e)}, ("behaviour", r"returns \(2,\)")),
        ({"done": lambda x: x > 3}, ("done", r"expected \(\)")),
    ],
)
def test_functions_of_other_dimensions_than_declared_are_refused(settings, facts):
    with pytest.raises(
        InputError, match=".*".join((*facts[:1], "of the world 'mine'", *facts[1:]))
    ):
        my_world(**settings)
