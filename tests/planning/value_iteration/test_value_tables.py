"""Tables of values against the best of all policies."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

import ivvi
from ivvi import ValueIteration, load_policy, plan
from value_problems import walk_mean


def pairs_of(S, A):
    """Return the features x (x) indicator of a: (x, a) of a tabular problem."""

    def pairs(x, a):
        xp = a.__array_namespace__()
        chosen = (a == xp.arange(A)).astype(x.dtype)
        both = x[..., :, None] * chosen[..., None, :]
        return both.reshape(*both.shape[:-2], S * A)

    return pairs


def at_the_end(x):
    return x[..., 0] >= 5.0


def walk_reward(x, a, x_next):
    return 10.0 * (x_next[..., 0] >= 5.0) - 1.0 - 0.2 * (a[..., 0] == 2.0)


@pytest.fixture(scope="module")
def chain(model_of):
    """Return a random tabular problem: P (A, S, S), R (S, A, S), and its model."""
    S, A = 4, 3
    rng = np.random.default_rng(5)
    P, R = rng.dirichlet(np.ones(S), size=(A, S)), rng.normal(size=(S, A, S))
    phi = ivvi.custom(pairs_of(S, A), [f"f{i}" for i in range(S * A)])
    W = P.transpose(2, 1, 0).reshape(S, S * A)
    residuals = np.eye(S) / S - 1 / S**2  # of indicators, which a table does not look at
    return P, R, model_of(phi, W, residuals, np.eye(S))


def reward_of(R, by_step=False):
    def reward(x, a, x_next, h):
        column = (a == jnp.arange(R.shape[1])).astype(x.dtype)
        gained = jnp.einsum("...s,...a,...t,sat->...", x, column, x_next, jnp.asarray(R))
        return gained * (1 + h) if by_step else gained

    return reward if by_step else lambda x, a, x_next: reward(x, a, x_next, 0)


def test_a_table_is_the_best_of_all_policies(chain):
    """Every assignment of actions to (state, step) is tried: 2^6 policies of two states."""
    P, R, _ = chain
    S, A, H = 2, 2, 3
    small = P[:A, :S, :S] / P[:A, :S, :S].sum(axis=2, keepdims=True)
    best = np.full(S, -np.inf)
    for choice in itertools.product(range(A), repeat=S * H):
        policy = np.reshape(choice, (H, S))
        V = np.zeros(S)
        for h in reversed(range(H)):
            V = np.array(
                [
                    sum(
                        small[policy[h, s], s, t] * ((1 + h) * R[s, policy[h, s], t] + 0.9 * V[t])
                        for t in range(S)
                    )
                    for s in range(S)
                ]
            )
        best = np.maximum(best, V)
    phi = ivvi.custom(pairs_of(S, A), list("pqrs"))
    W = small.transpose(2, 1, 0).reshape(S, S * A)
    x = ("x0", "x1")
    model = ivvi.Dynamics(phi, W, np.eye(S), np.eye(4), x, ("a0",), x, states=np.eye(S))
    policy = plan(
        model,
        reward_of(R[:S, :A, :S], by_step=True),
        [[0.0], [1.0]],
        horizon=H,
        discount=0.9,
        method="value-iteration",
        compare=False,
    )
    assert policy.rule.values.kind == "tabular"
    np.testing.assert_allclose(policy.rule.value(np.eye(S)), best, atol=1e-12)


def test_a_table_is_exact_at_every_step(chain):
    P, R, model = chain
    H, discount = 7, 0.95
    policy = plan(
        model,
        reward_of(R, by_step=True),
        np.arange(3.0),
        horizon=H,
        discount=discount,
        method="value-iteration",
        compare=False,
    )
    V = np.zeros(4)
    for h in reversed(range(H)):
        Q = np.einsum("ast,sat->sa", P, (1 + h) * R) + discount * np.einsum("ast,t->sa", P, V)
        V = Q.max(axis=1)
        np.testing.assert_allclose(policy.rule.value(np.eye(4), h), V, atol=1e-10)
        np.testing.assert_array_equal(policy(np.eye(4), h)[:, 0], Q.argmax(axis=1))


def test_a_stationary_table_is_the_best_stationary_policy(chain):
    P, R, model = chain
    discount, best = 0.9, np.full(4, -np.inf)
    gains = np.einsum("ast,sat->as", P, R)
    for choice in itertools.product(range(3), repeat=4):
        rows = np.arange(4)
        V = np.linalg.solve(np.eye(4) - discount * P[choice, rows], gains[choice, rows])
        best = np.maximum(best, V)
    method = ValueIteration(stationary=True, tolerance=1e-10)
    policy = plan(
        model, reward_of(R), np.arange(3.0), discount=discount, method=method, compare=False
    )
    np.testing.assert_allclose(policy.rule.value(np.eye(4)), best, atol=1e-8)
    np.testing.assert_array_equal(policy(np.eye(4), 0), policy(np.eye(4), 50))


def test_a_table_without_noise_and_with_an_end_is_exact(model_of, tmp_path):
    model = model_of(ivvi.custom(walk_mean, ["mean"]), [[1.0]], [[0.0]], np.arange(6.0)[:, None])
    policy = plan(
        model,
        walk_reward,
        [[-1.0], [1.0], [2.0]],
        horizon=4,
        terminal=at_the_end,
        method=ValueIteration(value="tabular"),
        compare=False,
    )
    V = np.zeros(6)
    for _ in range(4):
        new = np.empty(6)
        for s in range(6):
            earned = []
            for a in (-1, 1, 2):
                t = min(max(s + a, 0), 5)
                earned.append(10.0 * (t == 5) - 1 - 0.2 * (a == 2) + (t != 5) * V[t])
            new[s] = max(earned)
        V = new
    np.testing.assert_allclose(policy.rule.value(np.arange(6.0)[:, None]), V, atol=1e-12)
    again = load_policy(policy.save(tmp_path / "policy"), trust=("value_problems", __name__))
    x = np.arange(6.0)[:, None]
    np.testing.assert_array_equal(again(x, 2), policy(x, 2))


def test_a_table_of_cells_holds_the_mass_of_the_noise(model_of):
    rows, sigma = np.array([-2.0, -0.5, 0.0, 1.5, 3.0]), 0.7
    model = model_of(ivvi.linear(), [[0.1, 0.8, 0.5]], [[sigma**2]], rows[:, None])
    choices = np.array([-1.0, 0.0, 1.0])
    method = ValueIteration(value="tabular")
    policy = plan(
        model, "quadratic:weight=1,target=1", choices, horizon=5, method=method, compare=False
    )
    edges = [-np.inf, *((rows[1:] + rows[:-1]) / 2), np.inf]
    V = np.zeros(5)
    for _ in range(5):
        Q = np.empty((5, 3))
        for (i, x), (j, a) in itertools.product(enumerate(rows), enumerate(choices)):
            cdf = norm.cdf(edges, 0.1 + 0.8 * x + 0.5 * a, sigma)
            Q[i, j] = -((x - 1) ** 2) + np.diff(cdf) @ V
        V = Q.max(axis=1)
    np.testing.assert_allclose(policy.rule.value(rows[:, None]), V, atol=1e-9)
    np.testing.assert_array_equal(policy([[1.4]]), policy([[1.5]]))
