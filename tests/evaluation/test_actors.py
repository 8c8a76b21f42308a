"""The behaviour that is simulated acts as the one of the log did."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ivvi
from ivvi.evaluation.model_draws import ModelDraws
from ivvi.evaluation.source import Source
from ivvi.evaluation.stacked_policies import BehaviourActor, BehaviourRows
from ivvi.planning.behaviour_policy import BehaviourPolicy


def test_the_simulated_behaviour_is_the_simulators(simulator, simulated):
    log = simulated("linear", 2, episodes=60, horizon=40, seed=3)
    fit = ivvi.estimate(log)
    behaviour = Source.of(fit).behaviour
    assert behaviour.action_weights.shape == (2, 5)
    x, z = fit.model.states, fit.model.instruments
    fitted = behaviour.features.psi(x, z) @ behaviour.action_weights.T
    np.testing.assert_allclose(fitted + behaviour.eta, fit.model.acted, atol=1e-9)
    alone = BehaviourPolicy.of(fit.model, None)  # without moments: a on the features of x in phi
    assert alone.features.psi is None
    assert alone.action_weights.shape == (2, 3)


def acts_of_behaviour(behaviour, steps, *, episodes=3000):
    """Let the behaviour act in state zero for some steps; returns (steps, episodes, d_a)."""
    actor, rows = BehaviourActor(behaviour.features), BehaviourRows.of(behaviour)
    none = np.zeros((1, 1, 0))
    models = ModelDraws(
        none,
        none,
        behaviour.action_weights[None],
        behaviour.instrument_weights[None],
        none,
        none,
        none,
    )
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(0), (steps, 1, episodes))
        x, memory = jnp.zeros((1, episodes, 1)), actor.begin(models, rows, episodes)
        done = []
        for h in range(steps):
            a, memory = actor.act(models, rows, x, h, memory, keys[h])
            done.append(np.asarray(a[0]))
    return np.array(done)


def small_fit(rng, *, by_episode, binary):
    """Fit a log with a = z + noise, or a in {0, 1} with P(a = 1) = 0.3 + 0.2 z, z = -1, 1."""
    episode = np.repeat(np.arange(200), 10)
    z = rng.choice([-1.0, 1.0], size=200)[episode] if by_episode else rng.normal(size=2000)
    a = z + rng.normal(size=2000)
    if binary:
        a = 1.0 * (rng.uniform(size=2000) < 0.3 + 0.2 * z)
    x = rng.normal(size=2000)
    rows = {"episode": episode, "step": np.arange(2000) % 10, "x0": x, "a0": a, "z0": z}
    rows["next_x0"] = 0.5 * x - a + rng.normal(size=2000)
    return ivvi.estimate(rows)


def test_an_instrument_of_an_episode_is_drawn_once_for_each():
    behaviour = Source.of(
        small_fit(np.random.default_rng(0), by_episode=True, binary=False)
    ).behaviour
    assert behaviour.features.by_episode
    done = acts_of_behaviour(behaviour, 2)[..., 0]
    # a = z + noise with z the same: correlation 1 / 2, within five standard errors
    assert np.corrcoef(done)[0, 1] == pytest.approx(0.5, abs=5 / np.sqrt(3000))
    alone = replace(behaviour, features=replace(behaviour.features, by_episode=False))
    assert abs(np.corrcoef(acts_of_behaviour(alone, 2)[..., 0])[0, 1]) < 5 / np.sqrt(3000)


def test_discrete_habits_keep_their_probabilities():
    behaviour = Source.of(
        small_fit(np.random.default_rng(0), by_episode=True, binary=True)
    ).behaviour
    done = acts_of_behaviour(behaviour, 1)[0, :, 0]
    assert set(np.unique(done)) == {0.0, 1.0}
    # 0.3 of the simulator: the errors of 2,000 rows in 200 episodes and of 3,000 draws
    assert done.mean() == pytest.approx(0.3, abs=5 * np.hypot(0.018, 0.0085))
