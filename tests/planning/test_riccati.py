"""Linear dynamics with quadratic rewards: value iteration against Riccati's equation."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.linalg import solve_discrete_are

import ivvi
from ivvi import ValueIteration, plan
from ivvi.planning import Problem, riccati
from ivvi.rewards import Quadratic


@pytest.fixture(scope="module")
def regulator(model_of):
    """Return a linear-quadratic problem of d_x states and d_a actions."""

    def build(d_x, d_a, seed, *, offset=0.0):
        rng = np.random.default_rng(seed)
        F = rng.normal(size=(d_x, d_x))
        F *= 0.7 / np.linalg.norm(F, 2)  # where bounds are wide nothing binds, wherever it leads
        B, c, L = (
            rng.normal(size=(d_x, d_a)),
            offset * rng.normal(size=d_x),
            rng.normal(size=F.shape),
        )
        model = model_of(
            ivvi.linear(),
            np.column_stack([c, F, B]),
            0.2 * L @ L.T,
            rng.normal(size=(50, d_x)),
            d_a,
        )
        reward = Quadratic(
            tuple(rng.uniform(0.5, 2, d_x)),
            tuple(offset * rng.normal(size=d_x)),
            tuple(rng.uniform(0.2, 1, d_a)),
        )
        return model, reward, (c, F, B)

    return build


def recursion(model, reward, parts, horizon, discount):
    """Q(x, a) = z^T M z with z = [1, x, a], backwards; returns V (as a matrix) and gain."""
    c, F, B = parts
    d_x, d_a = B.shape
    w, t, u = (np.diag(reward.weight), np.array(reward.target), np.diag(reward.action_weight))
    one = np.zeros((1 + d_x + d_a, 1 + d_x + d_a))
    one[0, 0], one[1 : 1 + d_x, 1 : 1 + d_x], one[1 + d_x :, 1 + d_x :] = -t @ w @ t, -w, -u
    one[0, 1 : 1 + d_x] = one[1 : 1 + d_x, 0] = w @ t
    step = np.zeros((1 + d_x, 1 + d_x + d_a))
    step[0, 0], step[1:] = 1, np.column_stack([c, F, B])
    V = np.zeros((1 + d_x, 1 + d_x))
    for _ in range(horizon):
        M = one + discount * step.T @ V @ step
        M[0, 0] += discount * np.trace(V[1:, 1:] @ model.noise_cov)
        gain = -np.linalg.solve(M[1 + d_x :, 1 + d_x :], M[1 + d_x :, : 1 + d_x])
        full = np.vstack([np.eye(1 + d_x), gain])
        V = full.T @ M @ full
    return V, gain


@pytest.mark.thorough
@pytest.mark.parametrize(("d_x", "d_a", "discount"), [(1, 1, 1.0), (3, 3, 0.9), (6, 2, 1.0)])
def test_the_closed_form_is_riccatis(regulator, d_x, d_a, discount):
    model, reward, parts = regulator(d_x, d_a, seed=d_x, offset=0.5)
    settings = {"horizon": 15, "discount": discount, "method": "value-iteration"}
    policy = plan(model, reward, (-50, 50), **settings)
    assert policy.rule.values.kind == "quadratic"
    V, gain = recursion(model, reward, parts, 15, discount)
    z = np.column_stack([np.ones(50), model.states])
    np.testing.assert_allclose(policy(model.states), z @ gain.T, atol=1e-6)
    value = np.einsum("ni,ij,nj->n", z, V, z)
    np.testing.assert_allclose(policy.rule.value(model.states), value, rtol=1e-8, atol=1e-6)


@pytest.mark.parametrize(
    ("value", "settings"),
    [
        ("grid", {"points": 41}),
        ("fitted", {"points": 400}),
        ("fitted", {"points": 400, "integration": "gauss-hermite", "nodes": 5}),
    ],
)
def test_iterated_values_reach_riccatis_too(regulator, value, settings):
    """General covariance, two states: nothing binds, and quadratic values are represented."""
    model, reward, parts = regulator(2, 1, seed=4, offset=0.3)
    method = ValueIteration(value=value, **settings)
    policy = plan(model, reward, (-50, 50), horizon=4, discount=0.9, method=method, compare=False)
    V, gain = recursion(model, reward, parts, 4, 0.9)
    z = np.column_stack([np.ones(10), model.states[:10]])
    np.testing.assert_allclose(policy(model.states[:10]), z @ gain.T, atol=1e-6)
    value = np.einsum("ni,ij,nj->n", z, V, z)
    np.testing.assert_allclose(policy.rule.value(model.states[:10]), value, atol=1e-6)


def test_the_discounted_regulator_solves_the_algebraic_equation(regulator):
    discount = 0.9
    model, reward, (_, F, B) = regulator(2, 2, seed=8)
    method = ValueIteration(stationary=True)
    policy = plan(model, reward, (-50, 50), discount=discount, method=method, compare=False)
    w, u = np.diag(reward.weight), np.diag(reward.action_weight)
    P = solve_discrete_are(discount**0.5 * F, discount**0.5 * B, w, u)
    K = np.linalg.solve(u + discount * B.T @ P @ B, discount * B.T @ P @ F)
    x = model.states[:20]
    constant = discount / (1 - discount) * np.trace(P @ model.noise_cov)
    np.testing.assert_allclose(policy(x, 3), -x @ K.T, atol=1e-6)
    found = policy.rule.value(x)
    np.testing.assert_allclose(found, -np.einsum("ni,ij,nj->n", x, P, x) - constant, atol=1e-6)


@pytest.mark.parametrize("offset", [0.0, 0.7])
def test_a_stationary_value_is_solved_for_and_not_iterated(regulator, offset, monkeypatch):
    """With a discount of 0.99999, steps back would take a million."""
    model, reward, _ = regulator(3, 2, seed=5, offset=offset)
    problem = Problem.of(model, reward, (-1e6, 1e6), horizon=5, discount=0.99999)
    monkeypatch.setattr(riccati, "MOST_STEPS", 1)  # nothing would come of them
    (value,) = riccati.riccati_values(problem, stationary=True)
    again = riccati.RiccatiStep.of(problem, value).value
    x = model.states
    np.testing.assert_allclose(again(x), value(x), rtol=1e-9)


def test_a_state_that_grows_and_costs_nothing_is_not_held_down(regulator):
    """The algebraic equation's stabilising solution would pay for that; the best plan does not."""
    model, reward, _ = regulator(2, 1, seed=3)
    W = np.array([[0.0, 0.5, 0.0, 1.0], [0.0, 0.0, 1.5, 1.0]])
    model = replace(model, W=W)
    reward = Quadratic((1.0, 0.0), (0.0, 0.0), (1.0,))
    problem = Problem.of(model, reward, (-1e6, 1e6), horizon=5, discount=0.9)
    (value,) = riccati.riccati_values(problem, stationary=True)
    assert np.abs(value.P[1]).max() == 0.0
    last = riccati.riccati_values(replace(problem, horizon=300))[-1]
    np.testing.assert_allclose(value(model.states), last(model.states), rtol=1e-9)


def test_bounds_that_bind_are_not_ignored(regulator):
    model, reward, _ = regulator(1, 1, seed=2)
    policy = plan(model, reward, (-0.1, 0.1), horizon=5, method="value-iteration", compare=False)
    assert policy.rule.values.kind == "grid"
    assert np.abs(policy(model.states)).max() <= 0.1
