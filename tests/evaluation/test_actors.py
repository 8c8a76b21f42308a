"""The behaviour that is simulated acts as the one of the log did."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ivvi
from ivvi.evaluation.actors import BehaviourActor
from ivvi.evaluation.model_draws import ModelDraws
from ivvi.evaluation.value_inputs import ValueInputs
from ivvi.planning.behaviour_policy import BehaviourPolicy


def acts_of_behaviour(behaviour, steps, *, episodes=3000):
    """Let the behaviour act in state zero for some steps; returns (steps, episodes, d_a)."""
    actor, rows = BehaviourActor(behaviour.features), behaviour.rows
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
    behaviour = ValueInputs.of(
        small_fit(np.random.default_rng(0), by_episode=True, binary=False)
    ).behaviour
    assert behaviour.features.by_episode
    done = acts_of_behaviour(behaviour, 2)[..., 0]
    # a = z + noise with z the same: correlation 1 / 2, within five standard errors
    assert np.corrcoef(done)[0, 1] == pytest.approx(0.5, abs=5 / np.sqrt(3000))
    alone = replace(behaviour, features=replace(behaviour.features, by_episode=False))
    assert abs(np.corrcoef(acts_of_behaviour(alone, 2)[..., 0])[0, 1]) < 5 / np.sqrt(3000)


def test_discrete_habits_keep_their_probabilities():
    behaviour = ValueInputs.of(
        small_fit(np.random.default_rng(0), by_episode=True, binary=True)
    ).behaviour
    done = acts_of_behaviour(behaviour, 1)[0, :, 0]
    assert set(np.unique(done)) == {0.0, 1.0}
    # 0.3 of the simulator: the errors of 2,000 rows in 200 episodes and of 3,000 draws
    assert done.mean() == pytest.approx(0.3, abs=5 * np.hypot(0.018, 0.0085))


def test_doses_are_drawn_with_the_mean_and_the_spread_of_the_log():
    """Doses 0, 1, 2 and 5, each often; a rounded mean would be 1 or 2 in every state."""
    rng = np.random.default_rng(0)
    x, z, u = rng.normal(size=4000), rng.normal(size=4000), rng.uniform(size=4000)
    a = np.array([0.0, 1.0, 2.0, 5.0])[(4 * u ** np.exp(-0.3 * np.tanh(z))).astype(int)]
    fit = ivvi.estimate({"x0": x, "a0": a, "z0": z, "next_x0": 0.5 * x - a + rng.normal(size=4000)})
    done = acts_of_behaviour(ValueInputs.of(fit).behaviour, 1)[0, :, 0]
    assert set(np.unique(done)) == {0.0, 1.0, 2.0, 5.0}
    # of 3,000 draws, and of 4,000 rows
    assert done.mean() == pytest.approx(a.mean(), abs=5 * a.std() * np.hypot(1 / 55, 1 / 63))
    shares, logged = (
        [np.mean(some == level) for level in (0.0, 1.0, 2.0, 5.0)] for some in (done, a)
    )
    np.testing.assert_allclose(shares, logged, atol=5 * 0.45 * np.hypot(1 / 55, 1 / 63))


def test_what_is_usual_is_the_mean_of_what_is_drawn():
    """With the instrument in between, and without it where psi is linear in it."""
    fit = small_fit(np.random.default_rng(0), by_episode=False, binary=False)
    through_z, alone = ValueInputs.of(fit).behaviour, BehaviourPolicy.of(fit.model)
    with jax.enable_x64(True):
        usual, direct = (np.asarray(b.usual(jnp.zeros((1, 1))))[0, 0] for b in (through_z, alone))
    drawn = acts_of_behaviour(through_z, 1)[0, :, 0]
    error = np.sqrt(2 / 2000 + 2 / 3000)  # a = z + noise has the variance 2
    assert drawn.mean() == pytest.approx(usual, abs=5 * error)
    assert direct == pytest.approx(usual, abs=1e-9)
