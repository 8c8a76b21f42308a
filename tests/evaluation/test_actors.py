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
from ivvi.planning import Problem
from ivvi.planning.behaviour_policy import MEANS, BehaviourPolicy
from ivvi.planning.simple_rules import UsualRule


def test_the_simulated_behaviour_is_the_simulators(simulator, simulated):
    log = simulated("linear", 2, episodes=60, horizon=40, seed=3)
    fit = ivvi.estimate(log)
    behaviour = ValueInputs.of(fit).behaviour
    assert behaviour.action_weights.shape == (2, 5)
    x, z = fit.model.states, fit.model.instruments
    fitted = behaviour.features.psi(x, z) @ behaviour.action_weights.T
    np.testing.assert_allclose(fitted + behaviour.eta, fit.model.acted, atol=1e-9)
    alone = BehaviourPolicy.of(fit.model, None)  # without moments: a on the features of x in phi
    assert alone.features.psi is None
    assert alone.action_weights.shape == (2, 3)


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


def test_chances_of_levels_have_the_mean_that_is_asked_for():
    values, counts = np.array([-1.0, 0.0, 0.5, 7.0]), np.array([10, 20, 30, 40])
    acted, x = np.repeat(values, counts)[:, None], np.linspace(-1, 1, 100)[:, None]
    parts = np.array([[0.0, 0.5, -1.0]]), np.eye(1), np.eye(3), ("x0",), ("a0",), ("x0",)
    policy = BehaviourPolicy.of(ivvi.Dynamics(ivvi.linear(), *parts, states=x, acted=acted))
    np.testing.assert_array_equal(policy.levels[0, :4], values)
    p, shares = np.diff(policy.chances[0, :, :4], axis=1, prepend=0.0), counts / 100
    np.testing.assert_allclose(p @ values, np.linspace(-1, 7, MEANS), atol=1e-9)
    assert (p >= 0).all()
    np.testing.assert_allclose(policy.chances[0, :, 3:], 1.0)  # the last level is repeated
    place = (shares @ values + 1) / 8 * (MEANS - 1)  # the log's own mean: nearly its own shares
    np.testing.assert_allclose(p[round(place)], shares, atol=0.02)


def test_the_usual_level_of_a_category_is_the_likeliest():
    """Levels b and c are done 45% of the time each, a 10%: a is next to the means of b and c."""
    rng = np.random.default_rng(0)
    x, z, w = rng.normal(size=(3, 4000))
    u = rng.uniform(size=4000)
    b, c = 0.47 + 0.1 * np.tanh(z), 0.43 + 0.05 * np.tanh(w)
    level = np.where(u < b, "b", np.where(u < b + c, "c", "a"))
    rows = {"x0": x, "a0": level, "z0": z, "z1": w}
    rows["next_x0"] = 0.5 * x + (level == "b") - (level == "c") + rng.normal(size=4000)
    model = ivvi.estimate(rows).model
    problem = Problem.of(model, "quadratic:weight=1", None, horizon=5)
    with jax.enable_x64(True):
        done, _ = UsualRule.of(problem).act(jnp.zeros((1, 1)), 0, ())
    assert model.decode_actions(np.asarray(done))["a0"] == ["b"]


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
