"""What a policy gains in doubted models, and from which violation on it is lost."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ivvi
from ivvi.dynamics.gym_env import ModelSimulator, one_of
from ivvi.dynamics.rollout import roll_out
from ivvi.evaluation.actors import Fixed, OneAction
from ivvi.evaluation.value_inputs import ValueInputs
from ivvi.evaluation.value_policy import acting, problem_of
from ivvi.sensitivity_analysis.breakdown import (
    GainSimulator,
    deviations,
    first_loss,
    ladder,
    smallest_loss,
)
from ivvi.sensitivity_analysis.violations import Violation


def stage_of(fit, policy, starts, episodes):
    return GainSimulator.of(
        ValueInputs.of(fit), replace(policy.problem, model=fit.model), starts, episodes, 1
    )


def test_worlds_earn_what_the_model_simulator_earns(case):
    """The same model, other draws: within four standard errors."""
    fit, policy = case
    starts = np.full((1, 2), 2.0)
    stage = stage_of(fit, policy, starts, 200)
    action = np.array([0.5, -0.5])
    valid = np.zeros((3, 2, 2))
    earned = stage.returns((OneAction(), action), valid, np.stack([fit.W] * 3))
    np.testing.assert_allclose(earned, earned[:1].repeat(3, axis=0), rtol=1e-9)
    simulator = ModelSimulator(fit.model, policy.problem.reward, one_of(starts))
    half = lambda x: np.broadcast_to(action, x.shape)  # noqa: E731
    alone = roll_out(simulator, half, episodes=200, horizon=10, seed=2).returns
    error = np.hypot(alone.std(), earned[0].std()) / np.sqrt(200)
    assert abs(earned[0].mean() - alone.mean()) < 4 * error


def test_a_compiled_policy_earns_the_same_as_the_function(case):
    fit, policy = case
    stage = stage_of(fit, policy, np.full((1, 2), 2.0), 8)
    W, valid = np.stack([fit.W, 0.9 * fit.W, 1.1 * fit.W]), np.zeros((3, 2, 2))
    called = stage.returns((lambda x: policy(x), ()), valid, W)
    np.testing.assert_allclose(stage.returns(Fixed.of(policy), valid, W), called, rtol=1e-9)


def test_the_direct_effect_comes_with_the_actions_of_those_who_see_z():
    """One step from 0 with a = z + eta, x' = b a + d z + e: E x'^2 holds (b + d)^2 var(z).

    Whoever does not look at z meets its direct effect as noise, E x'^2 = d^2 var(z) + var(e).
    """
    rng = np.random.default_rng(0)
    x, z, eta, e = rng.normal(size=(4, 4000))
    rows = {"x0": x, "a0": z + eta, "z0": z, "next_x0": -0.5 * (z + eta) + e}
    columns = {"state": "x0", "action": "a0", "instrument": "z0", "next_state": "next_x0"}
    fit = ivvi.estimate(ivvi.read_logs(rows, **columns))
    source = ValueInputs.of(fit)
    problem = problem_of("zero", source, "quadratic:weight=1", (-1, 1), {"horizon": 2})
    stage = GainSimulator.of(source, problem, [[0.0]], 4000, 0)
    d, b = np.array([0.0, 0.8]), fit.W[0, 2]
    E = d[:, None, None] * stage.exclusion.along("+z0", np.ones((1, 1))).direction
    W = np.stack([fit.W] * 2)
    left = stage.exclusion.noise_cov(fit.W)[0, 0]
    idle = -stage.returns(acting("zero", source, problem, None), E, W)
    behaviour = -stage.returns(acting("behaviour", source, problem, None), E, W)
    error = 4 / np.sqrt(4000)
    np.testing.assert_allclose(idle.mean(axis=1), left, atol=error * idle.std())
    var_a = fit.model.acted.var()
    g = source.behaviour.action_weights[0, 2]
    # the noise that W leaves holds d^2 already: what is new is the covariance 2 b d cov(a, z)
    expected = b**2 * var_a + left + 2 * b * d * g * z.std()
    np.testing.assert_allclose(behaviour.mean(axis=1), expected, atol=error * behaviour.std())
    assert np.diff(expected)[0] < -2 * error * behaviour.std()  # it would show if it were missing


@given(at=st.floats(0.01, 0.9), most=st.floats(1.0, 3.0))
def test_losses_are_found_where_they_are(at, most):
    assert first_loss(lambda t: at - t, most) == pytest.approx(at, rel=1e-9)
    assert first_loss(lambda t: 1 + t, most) is None
    assert first_loss(lambda t: t - 1, most) == 0.0
    exploding = lambda t: np.where(t < at, 1.0, np.nan)  # noqa: E731
    assert first_loss(exploding, most) is None


def test_crossings_are_found_on_the_sides_that_are_allowed():
    both, one = Violation("", np.ones((1, 1))), Violation("", np.ones((1, 1)), (1.0,))
    falling, rising = (lambda sign, w=w: lambda t: 0.5 + w * sign * t for w in (-1, 1))
    assert smallest_loss(falling, both, 1.0) == pytest.approx(0.5)
    assert smallest_loss(rising, both, 1.0) == pytest.approx(-0.5)
    assert smallest_loss(rising, one, 1.0) is None


@given(most=st.floats(0.001, 50), more=st.floats(1.0, 20.0))
def test_the_same_sizes_are_looked_at_whatever_the_largest_is(most, more):
    few, many = ladder(most), ladder(more * most)
    assert few[-1] == most
    assert (np.diff(few) > 0).all()
    np.testing.assert_array_equal(few[:-1], many[: len(few) - 1])


@pytest.mark.parametrize("kept", ["joint", "blocks", "none"])
def test_deviations_have_the_covariance_of_w(case, kept):
    model = case[0].model
    d_y, d_phi = model.W.shape
    whole = model.W_cov
    if kept == "blocks":
        parts = whole.reshape(d_y, d_phi, d_y, d_phi)
        model = replace(model, W_cov=np.stack([parts[i, :, i] for i in range(d_y)]))
    if kept == "none":
        model, whole = replace(model, W_cov=None), np.kron(model.noise_cov, model.bread)
    drawn = deviations(model, 4000, np.random.default_rng(0)).reshape(4000, -1)
    variance = drawn.var(axis=0)
    # a variance of 4000 normal draws has a relative standard error of sqrt(2 / 4000)
    assert np.abs(variance / np.diag(whole) - 1).max() < 5 * np.sqrt(2 / 4000)
