"""Simulators as environments: steps and rollouts intervene, without the confounder."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from ivvi import ConfoundedEnv, InputError
from ivvi.simulators import linear_world
from ivvi.simulators.catalogue import NAMES
from world_checks import assert_covariance, correlations


@pytest.mark.filterwarnings("ignore:.*A Box observation space m.*infinity:UserWarning")
@pytest.mark.parametrize("name", NAMES)
def test_gymnasium_accepts_the_environments(name, simulator):
    check_env(simulator(name, {"linear": 2, "nonlinear": 1}.get(name)), skip_render_check=True)


def test_an_environment_steps_and_resets_as_gymnasium_does(simulator):
    env = ConfoundedEnv(dataclasses.replace(simulator("linear", 2).world, horizon=4))
    with pytest.raises(InputError, match="before reset"):
        env.step(np.zeros(2))
    runs = []
    for seed in (1, 1, 2):
        state, _ = env.reset(seed=seed)
        assert (state == 10.0).all()
        taken = [env.step(np.array([0.5, -0.5])) for _ in range(4)]
        assert [truncated for _, _, _, truncated, _ in taken] == [False, False, False, True]
        assert not any(terminated for _, _, terminated, _, _ in taken)
        assert taken[0][1] == -0.05 * 200
        runs.append(np.array([state for state, *_ in taken]))
    np.testing.assert_array_equal(runs[0], runs[1])
    assert (runs[0] != runs[2]).all()


def test_step_moves_by_the_unconfounded_dynamics(simulator):
    """x' - F(x, a) is noise of the covariance of settings I-III, also in setting IV."""
    env = simulator("linear", 2, "IV")
    W, rng = env.world.W_star, np.random.default_rng(0)
    x, _ = env.reset(seed=3)
    noise = []
    for _ in range(400):
        a = rng.uniform(-1, 1, 2)
        moved, _, _, _, _ = env.step(a)
        noise.append(moved - W @ np.r_[1.0, x, a])
        x = moved
    assert_covariance(np.array(noise), np.array([[1.0, 0.3], [0.3, 1.0]]))


def push(x):
    return np.clip(x, -1, 1)


def noise_of(states, policy, world):
    """Return x' - F(x, policy(x)), (episodes, horizon, d_x), of a world with W_star."""
    x = states[:, :-1]
    Phi = np.concatenate([np.ones_like(x[..., :1]), x, policy(x)], axis=-1)
    return states[:, 1:] - Phi @ world.W_star.T


def test_a_rollout_keeps_its_states_and_pays_their_rewards(simulator):
    env = simulator("linear", 2)
    run = env.rollout(push, episodes=8, horizon=20, keep=True)
    assert run.rewards.shape == (8, 20)
    assert run.states.shape == (8, 21, 2)
    assert (run.states[:, 0] == 10.0).all()
    np.testing.assert_allclose(run.rewards, -0.05 * (run.states[:, :-1] ** 2).sum(axis=-1))
    np.testing.assert_allclose(run.returns, run.rewards.sum(axis=1))
    bare = env.rollout(push, episodes=8, horizon=20)
    assert bare.states is None
    np.testing.assert_array_equal(bare.rewards, run.rewards)


def test_rollout_moves_by_the_unconfounded_dynamics(simulator):
    env = simulator("linear", 2, "IV")
    states = env.rollout(push, episodes=300, horizon=10, keep=True).states
    noise = noise_of(states, push, env.world).reshape(-1, 2)
    x = states[:, :-1].reshape(-1, 2)
    assert_covariance(noise, np.array([[1.0, 0.3], [0.3, 1.0]]))
    assert np.abs(correlations(noise, push(x))).max() < 5 / np.sqrt(len(x))


def test_equal_seeds_give_equal_noise_whatever_is_done(simulator):
    """Policies that agree meet the same noise; a policy that differs meets it too."""
    env = simulator("linear", 2)
    settings = {"episodes": 8, "horizon": 20, "keep": True}
    one, same = env.rollout(push, **settings), env.rollout(lambda x: push(x) + 0.0, **settings)
    np.testing.assert_array_equal(one.states, same.states)
    np.testing.assert_array_equal(one.rewards, same.rewards)
    idle = env.rollout(np.zeros_like, **settings)
    noise = noise_of(one.states, push, env.world)
    np.testing.assert_allclose(noise_of(idle.states, np.zeros_like, env.world), noise, atol=1e-10)
    assert len(np.unique(noise[:, :, 0])) == 8 * 20
    other = env.rollout(push, **settings, seed=1)
    assert (other.states[:, 1:] != one.states[:, 1:]).all()


def test_rollout_of_fewer_episodes_is_the_beginning(simulator):
    env = simulator("linear", 2)
    few, many = (env.rollout(push, episodes=n, horizon=20) for n in (3, 8))
    np.testing.assert_allclose(few.rewards, many.rewards[:3], rtol=1e-12)


def test_steps_and_rollouts_agree_without_noise():
    world = dataclasses.replace(linear_world(2), noise=lambda key: jnp.zeros(2), horizon=12)
    env = ConfoundedEnv(world)
    run = env.rollout(push, episodes=2, keep=True)
    x, _ = env.reset(seed=0)
    states, rewards = [x], []
    for _ in range(12):
        x, reward, _, truncated, _ = env.step(push(x))
        states.append(x)
        rewards.append(reward)
    assert truncated
    np.testing.assert_allclose(run.states[1], states, rtol=1e-13)
    np.testing.assert_allclose(run.rewards[1], rewards, rtol=1e-13)


@pytest.mark.parametrize(
    "policy", [lambda x: x[0], lambda x: x[:, :1], lambda x: 0.0], ids=["row", "column", "number"]
)
def test_rollout_refuses_actions_of_the_wrong_shape(policy, simulator):
    with pytest.raises(
        InputError, match=r"shape .*expected (\(8, 2\)|one row for each of 8 states)"
    ):
        simulator("linear", 2).rollout(policy, episodes=8, horizon=20)
