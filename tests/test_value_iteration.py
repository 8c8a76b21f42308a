"""Value iteration against brute force, Riccati's equation and the simulator."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import solve_discrete_are
from scipy.stats import norm

import ivvi
from ivvi import Actions, ValueIteration, load_policy, plan
from ivvi.errors import InputError, PlanningWarning
from ivvi.planners import best_action as best_action_module
from ivvi.planners.best_action import best_action
from ivvi.planners.integration import Noise
from ivvi.rewards import Quadratic

SIMULATED = "quadratic:weight=0.05"


def nonlinear_mean(x, a):
    """Be the true transition of the nonlinear simulator."""
    xp = a.__array_namespace__()
    return xp.log(xp.abs(x - 1) + 1) - a / 2


def bent_mean(x, a):
    """Be smooth, and bend both state and action."""
    xp = a.__array_namespace__()
    return 0.9 * xp.sin(x) + 0.5 * xp.tanh(a)


def next_reward(x, a, x_next):
    return -(x_next[..., 0] ** 2) - 0.1 * a[..., 0] ** 2 + 0.3 * x[..., 0] * x_next[..., 0]


def pairs_of(S, A):
    """Return the features x (x) indicator of a: (x, a) of a tabular problem."""

    def pairs(x, a):
        xp = a.__array_namespace__()
        chosen = (a == xp.arange(A)).astype(x.dtype)
        both = x[..., :, None] * chosen[..., None, :]
        return both.reshape(*both.shape[:-2], S * A)

    return pairs


def walk_mean(x, a):
    """Walk on 0..5 and stay at the ends."""
    return a.__array_namespace__().clip(x + a, 0.0, 5.0)


def at_the_end(x):
    return x[..., 0] >= 5.0


def walk_reward(x, a, x_next):
    return 10.0 * (x_next[..., 0] >= 5.0) - 1.0 - 0.2 * (a[..., 0] == 2.0)


@pytest.fixture(scope="module")
def model_of(names_of):
    """Return dynamics x' = W phi(x, a) + e."""

    def build(phi, W, noise_cov, states, d_a=1):
        W, noise_cov = np.atleast_2d(W), np.atleast_2d(np.asarray(noise_cov, float))
        x = names_of("x", len(W))
        bread, states = np.eye(W.shape[1]), np.asarray(states, float)
        return ivvi.Dynamics(phi, W, noise_cov, bread, x, names_of("a", d_a), x, states=states)

    return build


@pytest.fixture(scope="module")
def simulator_model(model_of):
    phi = ivvi.custom(nonlinear_mean, ["mean"])
    return model_of(phi, [[1.0]], [[1.0]], np.linspace(-4, 6, 50)[:, None])


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


# tables


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
    )
    assert policy.rule.values.kind == "tabular"
    np.testing.assert_allclose(policy.rule.value(np.eye(S)), best, atol=1e-12)


def test_a_table_at_every_step(chain):
    P, R, model = chain
    H, discount = 7, 0.95
    policy = plan(
        model,
        reward_of(R, by_step=True),
        np.arange(3.0),
        horizon=H,
        discount=discount,
        method="value-iteration",
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
    policy = plan(model, reward_of(R), np.arange(3.0), discount=discount, method=method)
    np.testing.assert_allclose(policy.rule.value(np.eye(4)), best, atol=1e-8)
    np.testing.assert_array_equal(policy(np.eye(4), 0), policy(np.eye(4), 50))


def test_a_table_without_noise_and_with_an_end(model_of, tmp_path):
    model = model_of(ivvi.custom(walk_mean, ["mean"]), [[1.0]], [[0.0]], np.arange(6.0)[:, None])
    policy = plan(
        model,
        walk_reward,
        [[-1.0], [1.0], [2.0]],
        horizon=4,
        terminal=at_the_end,
        method=ValueIteration(value="tabular"),
    )
    V = np.zeros(6)
    for _ in range(4):
        new = np.empty(6)
        for s in range(6):
            found = []
            for a in (-1, 1, 2):
                t = min(max(s + a, 0), 5)
                found.append(10.0 * (t == 5) - 1 - 0.2 * (a == 2) + (t != 5) * V[t])
            new[s] = max(found)
        V = new
    np.testing.assert_allclose(policy.rule.value(np.arange(6.0)[:, None]), V, atol=1e-12)
    again = load_policy(policy.save(tmp_path / "policy"))
    x = np.arange(6.0)[:, None]
    np.testing.assert_array_equal(again(x, 2), policy(x, 2))


def test_a_table_of_cells_holds_the_mass_of_the_noise(model_of):
    rows, sigma = np.array([-2.0, -0.5, 0.0, 1.5, 3.0]), 0.7
    model = model_of(ivvi.linear(), [[0.1, 0.8, 0.5]], [[sigma**2]], rows[:, None])
    choices = np.array([-1.0, 0.0, 1.0])
    method = ValueIteration(value="tabular")
    policy = plan(model, "quadratic:weight=1,target=1", choices, horizon=5, method=method)
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


# grids


def brute_force(mean, reward, sigma, horizon, *, n=1501, reach=7.0, m=1001):
    """Values and actions at the points x of a dense grid, and a box [-1, 1] of m actions.

    The next state is summed over the same points with the normal density (no interpolation);
    a parabola through the best action and its neighbours gives the maximum between them.
    """
    x = np.linspace(-reach, reach, n)
    a = np.linspace(-1, 1, m)
    width = x[1] - x[0]
    V = np.zeros(n)
    some = np.flatnonzero(np.abs(x) <= 3)[::30]
    # E V(m + e) on a fine grid of means, by quadrature; means lie within [-1.3, 1.3]
    means = np.linspace(-1.3, 1.3, 12001)
    density = norm.pdf(x[None], means[:, None], sigma) * width
    tables = []
    for _ in range(horizon):
        G = np.column_stack([density @ V, density @ (x**2), density @ x])
        rows = np.arange(n) if len(tables) < horizon - 1 else some
        new = np.full(n, np.nan)
        for i in rows:
            at = mean(np.full((m, 1), x[i]), a[:, None])[:, 0]
            ahead, square, line = (np.interp(at, means, G[:, j]) for j in range(3))
            Q = reward(x[i], a, square, line) + ahead
            j = min(max(int(Q.argmax()), 1), m - 2)
            left, middle, right = Q[j - 1 : j + 2]
            bend = left - 2 * middle + right
            shift = 0.0 if bend >= 0 else np.clip((left - right) / (2 * bend), -1, 1)
            new[i] = max(Q.max(), middle - (left - right) * shift / 4)
        V = new
        tables.append(V)
    return x[some], V[some]


@pytest.mark.parametrize("kind", ["state", pytest.param("next", marks=pytest.mark.slow)])
def test_a_grid_agrees_with_brute_force(model_of, kind):
    sigma, H = 0.6, 4
    model = model_of(ivvi.custom(bent_mean, ["mean"]), [[1.0]], [[sigma**2]], [[-3.0], [3.0]])
    if kind == "state":
        asked, exact = "quadratic:weight=1,target=0.5,action_weight=0.1", state_terms
    else:
        asked, exact = next_reward, next_terms
    method = ValueIteration(points=801, nodes=1201)
    policy = plan(model, asked, (-1, 1), horizon=H, method=method)
    assert policy.rule.values.kind == "grid"
    x, V = brute_force(bent_mean, exact, sigma, H)
    np.testing.assert_allclose(policy.rule.value(x[:, None]), V, atol=1e-6)


def state_terms(x, a, square, line):
    return -((x - 0.5) ** 2) - 0.1 * a**2


def next_terms(x, a, square, line):
    return -square - 0.1 * a**2 + 0.3 * x * line


def outside(x):
    return x[..., 0] > 1.0


def test_a_grid_with_an_end_agrees_with_brute_force(model_of):
    """Where the noise meets the end the value jumps by at most 3, seen in steps of 1/4096."""
    sigma, H, P = 0.5, 3, 0.9
    model = model_of(ivvi.linear(), [[0.0, P, 0.5]], [[sigma**2]], [[-2.0], [2.0]])
    choices = np.array([-1.0, 0.0, 1.0])
    method = ValueIteration(value="grid", points=801, nodes=4096)
    policy = plan(model, ones, choices, horizon=H, terminal=outside, method=method)
    x = np.linspace(-6, 6, 4001)
    V = np.zeros(len(x))
    alive = np.where(x > 1.0, 0.0, 1.0)
    for _ in range(H):
        ahead = [
            norm.pdf(x, (P * x + 0.5 * a)[:, None], sigma) @ (alive * V) * (x[1] - x[0])
            for a in choices
        ]
        V = 1.0 + np.max(ahead, axis=0)
    some = np.abs(x) < 1.5
    np.testing.assert_allclose(
        policy.rule.value(x[some][::100][:, None]), V[some][::100], atol=1e-3
    )


def ones(x, a):
    return 1.0 + 0 * x[..., 0]


def test_the_steady_part_of_a_horizon_is_filled_in(simulator_model):
    """A reward that only seems to look at the step is planned step by step, and agrees."""
    settings = {"horizon": 60, "discount": 0.97, "states": [[-3.0], [4.0]]}
    short = plan(simulator_model, SIMULATED, (-1, 1), method="value-iteration", **settings)
    full = plan(
        simulator_model,
        lambda x, a, x_next, h: -0.05 * (x[..., 0] ** 2) + 0 * h,
        (-1, 1),
        method="value-iteration",
        **settings,
    )
    assert len(short.rule.coefficients) < len(full.rule.coefficients) == 60
    x = np.linspace(-3, 4, 9)[:, None]
    for h in (0, 30, 58, 59):
        np.testing.assert_allclose(short.rule.value(x, h), full.rule.value(x, h), atol=1e-9)
        if h < 59:
            np.testing.assert_allclose(short(x, h), full(x, h), atol=1e-6)


def test_the_optimal_return_of_the_simulator(simulator_model):
    method = ValueIteration()
    policy = plan(simulator_model, SIMULATED, (-1, 1), horizon=500, method=method)
    assert policy.rule.value([[0.0]])[0] == pytest.approx(-27.98, abs=0.02)


@pytest.mark.slow
def test_rollouts_earn_the_optimal_return(simulator_model, simulator):
    policy = plan(simulator_model, SIMULATED, (-1, 1), horizon=500, method="value-iteration")
    returns = simulator("nonlinear", 1).rollout(policy, episodes=4000, seed=3).returns
    error = returns.std() / np.sqrt(len(returns))
    assert abs(returns.mean() - policy.rule.value([[0.0]])[0]) < 3 * error < 0.15


# linear dynamics, quadratic rewards


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
        ("grid", {}),
        ("fitted", {"points": 400}),
        ("fitted", {"points": 400, "integration": "gauss-hermite", "nodes": 5}),
    ],
)
def test_iterated_values_reach_riccatis_too(regulator, value, settings):
    """General covariance, two states: nothing binds, and quadratic values are represented."""
    model, reward, parts = regulator(2, 1, seed=4, offset=0.3)
    method = ValueIteration(value=value, **settings)
    policy = plan(model, reward, (-50, 50), horizon=4, discount=0.9, method=method)
    V, gain = recursion(model, reward, parts, 4, 0.9)
    z = np.column_stack([np.ones(10), model.states[:10]])
    np.testing.assert_allclose(policy(model.states[:10]), z @ gain.T, atol=1e-6)
    value = np.einsum("ni,ij,nj->n", z, V, z)
    np.testing.assert_allclose(policy.rule.value(model.states[:10]), value, atol=1e-6)


def test_the_discounted_regulator_solves_the_algebraic_equation(regulator):
    discount = 0.9
    model, reward, (_, F, B) = regulator(2, 2, seed=8)
    method = ValueIteration(stationary=True)
    policy = plan(model, reward, (-50, 50), discount=discount, method=method)
    w, u = np.diag(reward.weight), np.diag(reward.action_weight)
    P = solve_discrete_are(discount**0.5 * F, discount**0.5 * B, w, u)
    K = np.linalg.solve(u + discount * B.T @ P @ B, discount * B.T @ P @ F)
    x = model.states[:20]
    constant = discount / (1 - discount) * np.trace(P @ model.noise_cov)
    np.testing.assert_allclose(policy(x, 3), -x @ K.T, atol=1e-6)
    found = policy.rule.value(x)
    np.testing.assert_allclose(found, -np.einsum("ni,ij,nj->n", x, P, x) - constant, atol=1e-6)


def test_bounds_that_bind_are_not_ignored(regulator):
    model, reward, _ = regulator(1, 1, seed=2)
    policy = plan(model, reward, (-0.1, 0.1), horizon=5, method="value-iteration")
    assert policy.rule.values.kind == "grid"
    assert np.abs(policy(model.states)).max() <= 0.1


@pytest.mark.slow
def test_fitted_values_in_three_dimensions(model_of):
    """Three copies of the simulator: three times the optimal return, within 0.5%."""
    rng = np.random.default_rng(0)
    phi = ivvi.custom(nonlinear_mean, ["m0", "m1", "m2"])
    model = model_of(phi, np.eye(3), np.eye(3), rng.normal(0.5, 1.3, size=(500, 3)), 3)
    policy = plan(model, SIMULATED, (-1, 1), horizon=500, method="value-iteration")
    assert policy.rule.values.kind == "fitted"
    assert policy.rule.value(np.zeros((1, 3)))[0] == pytest.approx(3 * -27.9754, rel=0.005)


# integration, maximisation


@pytest.mark.parametrize(
    ("integration", "nodes", "tolerance"),
    [("gauss-hermite", 4, 1e-12), ("quasi", 1 << 12, 0.01), ("antithetic", 1 << 14, 0.1)],
)
def test_nodes_have_the_moments_of_the_noise(integration, nodes, tolerance):
    """The tolerance of draws is five standard errors of a fourth moment or more."""
    covariance = np.array([[2.0, 0.6, 0.0], [0.6, 1.0, 0.0], [0.0, 0.0, 0.0]])
    noise = Noise.of(covariance, integration, nodes, seed=1)
    e, w = noise.offsets, noise.weights
    assert w.sum() == pytest.approx(1)
    np.testing.assert_allclose(w @ e, 0, atol=tolerance)
    np.testing.assert_allclose((e.T * w) @ e, covariance, atol=tolerance)
    assert w @ e[:, 1] ** 4 == pytest.approx(3, abs=3 * tolerance)
    assert (e[:, 2] == 0).all()


def test_a_model_without_noise_has_one_node():
    noise = Noise.of(np.zeros((2, 2)), "auto", None, seed=0)
    assert noise.offsets.tolist() == [[0.0, 0.0]]
    assert noise.weights.tolist() == [1.0]


@pytest.mark.parametrize("at_once", [1 << 22, 7, 100])
def test_the_best_action_is_the_best_of_all(monkeypatch, at_once):
    monkeypatch.setattr(best_action_module, "AT_ONCE", at_once)
    rng = np.random.default_rng(2)
    table, x, M = rng.normal(size=(23, 2)), rng.normal(size=(11, 3)), rng.normal(size=(3, 2))
    with jax.enable_x64(True):
        q = lambda x, a: jnp.sum((x @ M) * a, axis=1) - jnp.sum(a**3, axis=1)  # noqa: E731
        a, value = best_action(q, jnp.asarray(x), Actions.finite(table), width=3)
    scores = (x @ M) @ table.T - (table**3).sum(axis=1)
    np.testing.assert_array_equal(a, table[scores.argmax(axis=1)])
    np.testing.assert_allclose(value, scores.max(axis=1), rtol=1e-12)


@pytest.mark.parametrize("at_once", [1 << 22, 50])
def test_the_best_of_a_box_and_choices(monkeypatch, at_once):
    monkeypatch.setattr(best_action_module, "AT_ONCE", at_once)
    actions = Actions.product(Actions.binary(1), Actions.box(-1.0, 2.0))
    x = np.linspace(-2, 2, 9)[:, None]
    dense = np.linspace(-1, 2, 30001)

    def q(x, a):
        return jnp.sin(3 * a[:, 1] + x[:, 0]) + a[:, 0] * (x[:, 0] - 0.3 * a[:, 1])

    with jax.enable_x64(True):
        a, value = map(np.asarray, best_action(q, jnp.asarray(x), actions, width=5))
    for i in range(9):
        scores = [np.sin(3 * dense + x[i]) + b * (x[i] - 0.3 * dense) for b in (0.0, 1.0)]
        assert value[i] == pytest.approx(np.max(scores), abs=1e-7)
        assert a[i, 0] == np.argmax(np.max(scores, axis=1))


# policies, progress, bad input


@pytest.mark.parametrize(
    "settings",
    [{}, {"value": "fitted", "points": 64}, {"points": 51, "stationary": True}],
)
def test_a_saved_policy_acts_alike(simulator_model, settings, tmp_path):
    policy = plan(
        simulator_model,
        next_reward,
        (-1, 1),
        horizon=6,
        discount=0.9,
        method=ValueIteration(nodes=16, **settings),
    )
    again = load_policy(policy.save(tmp_path / "policy"))
    x = np.linspace(-2, 3, 8)[:, None]
    for h in (0, 5):
        np.testing.assert_array_equal(again(x, h), policy(x, h))
    np.testing.assert_array_equal(again.rule.value(x), policy.rule.value(x))
    assert again.rule.values.kind == policy.rule.values.kind


def test_progress_is_told_of_every_step(simulator_model):
    told = []
    plan(
        simulator_model,
        lambda x, a, x_next, h: -h * x[..., 0] ** 2,
        (-1, 1),
        horizon=5,
        method="value-iteration",
        progress=told.append,
    )
    assert told == [1] * 4  # V_1 to V_4; V_5 is 0, and V_0 is computed where it is asked for


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"value": "girds"}, "unknown value function 'girds'"),
        ({"points": 0}, "0 points; at least 1"),
        ({"integration": "quazi"}, "unknown integration 'quazi'; did you mean 'quasi'?"),
        ({"nodes": 0}, "0 nodes of integration"),
        ({"tolerance": 0.0}, "a tolerance of 0"),
    ],
)
def test_bad_settings(settings, sentence):
    with pytest.raises(InputError, match=sentence.replace("?", r"\?")):
        ValueIteration(**settings)


def refused(model, sentence, *, reward=SIMULATED, actions=(-1, 1), discount=1.0, **settings):
    with pytest.raises(InputError) as caught:
        plan(model, reward, actions, discount=discount, method=ValueIteration(**settings))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_problems_that_a_value_function_cannot_hold(model_of, simulator_model):
    rng = np.random.default_rng(0)
    W = np.column_stack([np.zeros(3), 0.5 * np.eye(3), np.eye(3)])
    cube = model_of(ivvi.linear(), W, np.eye(3), rng.normal(size=(10, 3)), 3)
    refused(cube, "a grid has at most 2: use value='fitted', or the planner mpc", value="grid")
    refused(cube, "3 columns and Gaussian noise", value="tabular")
    refused(cube, "20 sampled states for", value="fitted", points=20)
    refused(simulator_model, "3 points on each axis", value="grid", points=3)
    refused(simulator_model, "at most 20000 fit", value="grid", points=30_000)
    refused(simulator_model, "the discount is 1", stationary=True)
    refused(
        simulator_model,
        "the reward looks at the step",
        reward=lambda x, a, x_next, h: h * x[..., 0],
        discount=0.9,
        stationary=True,
    )
    still = model_of(ivvi.custom(walk_mean, ["mean"]), [[1.0]], [[0.0]], [[0.0], [1.0], [2.0]])
    refused(still, "with a box of actions", value="tabular")
    refused(still, "to (3), which is not one of the 3 states", value="tabular", actions=[[1.0]])


def test_values_that_explode_are_refused(model_of):
    model = model_of(ivvi.linear(), [[0.0, 1e9, 1.0]], [[0.0]], [[1.0]])
    with pytest.warns(PlanningWarning, match="explode"), pytest.raises(InputError, match="finite"):
        plan(
            model,
            lambda x, a: x[..., 0] ** 9,
            (-1, 1),
            horizon=50,
            method=ValueIteration(value="quadratic", points=20),
        )
