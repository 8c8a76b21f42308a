"""The behaviour that is fitted acts as the one of the log did."""

import jax
import jax.numpy as jnp
import numpy as np

import ivvi
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
