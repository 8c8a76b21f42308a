"""MPC with a temperature: the mean of a soft plan."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import truncnorm

import ivvi
from helpers import assert_refused, run
from ivvi import MPC, Actions, InputError
from ivvi.planning.mpc.boltzmann import along_function, along_quadratic, soft_mean

LOW, HIGH = -np.ones(2), np.ones(2)


def solved(along, n=1, temperature=0.3):
    with jax.enable_x64(True):
        return np.asarray(soft_mean(along, jnp.zeros((n, 2)), LOW, HIGH, temperature))


def test_separate_coordinates_are_truncated_normals():
    H, g, temperature = np.diag([0.8, 2.0]), np.array([[0.3, -1.0], [5.0, 0.0]]), 0.3
    found = solved(along_quadratic(jnp.asarray(H), jnp.asarray(g)), 2, temperature)
    centre, spread = -g / np.diag(H), np.sqrt(temperature / np.diag(H))
    wanted = truncnorm.mean((-1 - centre) / spread, (1 - centre) / spread, centre, spread)
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_coupled_coordinates_have_the_best_independent_distributions():
    """No other pair of marginals on a grid has a larger E value + temperature entropy."""
    H, g, temperature = np.array([[1.0, 0.4], [0.4, 0.6]]), np.array([0.5, -0.2]), 0.3
    found = solved(along_quadratic(jnp.asarray(H), jnp.asarray(g[None])), 1, temperature)[0]
    u = np.linspace(-1, 1, 2001)

    def marginal(i, other):
        cost = H[i, i] * u**2 / 2 + (g[i] + H[i, 1 - i] * other) * u
        weight = np.exp(-cost / temperature)
        return weight @ u / weight.sum()

    # the fixed point of coordinate ascent, which is unique: H is positive definite
    assert found[0] == pytest.approx(marginal(0, found[1]), abs=2e-3)
    assert found[1] == pytest.approx(marginal(1, found[0]), abs=2e-3)


def test_functions_and_quadratics_agree():
    H, g = jnp.array([[1.0, 0.4], [0.4, 0.6]]), jnp.array([[0.5, -0.2]])
    along = along_function(
        lambda x, u: -(jnp.sum((u @ H / 2) * u, axis=1) + jnp.sum(u * x, axis=1)), g
    )
    np.testing.assert_allclose(solved(along), solved(along_quadratic(H, g)), atol=1e-12)


@pytest.fixture(scope="module")
def model():
    return ivvi.make_env("linear", dim=2, setting="III").world.true_model()


def test_hot_plans_do_little_and_cold_ones_are_the_exact_plan(model):
    x = np.array([[3.0, -1.0], [0.2, 0.1]])
    exact, cold, warm, hot = (
        ivvi.plan(
            model, "quadratic:weight=0.05", (-1, 1), method=MPC(temperature=t), compare=False
        )(x)
        for t in (0.0, 1e-3, 0.05, 1e3)
    )
    np.testing.assert_allclose(cold, exact, atol=0.05)
    assert np.abs(hot).max() < 1e-3
    assert (np.abs(warm) < np.abs(cold) + 0.02).all()


def test_a_soft_policy_is_saved_and_loaded(model, tmp_path):
    policy = ivvi.plan(
        model, "quadratic:weight=0.05", (-1, 1), method=MPC(temperature=0.1), compare=False
    )
    policy.save(tmp_path / "policy")
    x = np.array([[1.0, -2.0]])
    np.testing.assert_array_equal(ivvi.load_policy(tmp_path / "policy")(x), policy(x))


def test_a_temperature_needs_a_box_and_a_number_from_zero_on(model):
    with pytest.raises(InputError, match="temperature is -1"):
        MPC(temperature=-1.0)
    with pytest.raises(InputError, match="actions in a box"):
        ivvi.plan(model, "quadratic:weight=1", Actions.binary(2), method=MPC(temperature=0.1))


def test_the_shell_knows_the_temperature_of_mpc_alone(tmp_path, model):
    model.save(tmp_path / "model")
    words = ("plan", tmp_path / "model", "--reward", "quadratic:weight=0.05", "--action-low", -1,
             "--action-high", 1, "--horizon", 5, "--temperature", 0.1)  # fmt: skip
    assert_refused(run(*words, "--out", tmp_path / "a"), "--temperature is for mpc")
    result = run(*words, "--method", "mpc", "--out", tmp_path / "b")
    assert result.code == 0, result
    assert ivvi.load_policy(tmp_path / "b").rule.temperature == 0.1
