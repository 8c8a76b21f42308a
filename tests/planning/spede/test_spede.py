"""SPEDE: the spectral features, and plans against solutions worked out here."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ivvi
from helpers import mark_thorough
from ivvi import Dynamics, InputError
from ivvi.dynamics.rollout import Decision
from ivvi.planning import Problem
from ivvi.planning.spede.features import Spectral, cosine
from ivvi.planning.spede.greedy import Greedy, believed

QUICK = {"features": 64, "states": 400, "bandwidth": 1.0, "ridge": 1e-4, "seeds": 1}


def linear_model(P, Q, noise_cov, states):
    """Return x' = P x + Q a + noise as a model with a sample of states."""
    d_x, d_a = Q.shape
    names = [tuple(f"{letter}{i}" for i in range(n)) for letter, n in (("x", d_x), ("a", d_a))]
    W = np.hstack([np.zeros((d_x, 1)), P, Q])
    bread = np.zeros((W.shape[1],) * 2)
    return Dynamics(ivvi.linear(), W, noise_cov, bread, *names, names[0], states=states)


def bent(x, u):
    """Be a transition that saturates, importable."""
    xp = u.__array_namespace__()
    return 2 * xp.tanh(x) + u


def late_reward(x, a, x_next, h):
    """Pay for the next state, from step 2 on only."""
    return -((x_next[..., 0] - 1) ** 2) * (h >= 2)


def far(x):
    """Tell where an episode ends."""
    return abs(x[..., 0]) > 3


@pytest.fixture(scope="module")
def plane():
    """Return a controllable plane with correlated noise."""
    rng = np.random.default_rng(0)
    P, Q = np.array([[0.9, 0.2], [-0.1, 0.7]]), np.array([[0.5], [0.3]])
    return linear_model(P, Q, np.array([[1.0, 0.4], [0.4, 0.5]]), rng.normal(size=(600, 2)) * 3)


def draw(model, count=40, **settings):
    rng = np.random.default_rng(1)
    return Spectral.draw(model.states, model.noise_cov, count, 1.0, rng, **settings)


def test_cosine_and_its_derivatives_equal_those_of_numpy():
    u = np.concatenate([np.linspace(-1000, 1000, 4001), np.linspace(-4, 4, 101)])
    with jax.enable_x64(True):
        assert np.abs(cosine(jnp.asarray(u)) - np.cos(u)).max() < 4e-13  # 1000 has eps 1e-13
        assert np.abs(cosine(jnp.asarray(u[-101:])) - np.cos(u[-101:])).max() < 4e-15
        slope = jax.vmap(jax.grad(cosine))(jnp.asarray(u[-101:]))
        bend = jax.vmap(jax.grad(jax.grad(cosine)))(jnp.asarray(u[-101:]))
    np.testing.assert_allclose(slope, -np.sin(u[-101:]), atol=1e-14)
    np.testing.assert_allclose(bend, -np.cos(u[-101:]), atol=1e-14)


@pytest.mark.parametrize("quadratic", mark_thorough([True, False], False))
def test_expected_features_are_their_integral_over_the_noise(plane, quadratic):
    features = draw(plane, quadratic=quadratic)
    w = np.random.default_rng(2).normal(size=features.width)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    e = np.stack(np.meshgrid(nodes, nodes), axis=-1).reshape(-1, 2)
    chance = np.outer(weights, weights).ravel() / weights.sum() ** 2
    m = np.array([[1.0, -2.0], [4.0, 0.5]])
    with jax.enable_x64(True):
        x = m[:, None] + e @ np.linalg.cholesky(plane.noise_cov).T
        at_nodes = jax.jit(features.of_states)(x.reshape(-1, 2)) @ w
        integral = at_nodes.reshape(2, -1) @ chance
        np.testing.assert_allclose(jax.jit(features.expected)(m, w), integral, rtol=1e-9)
        one = lambda m: features.expected(m[None], w)[0]  # noqa: E731
        wanted = jax.jit(jax.vmap(jax.hessian(one)))(m)
        np.testing.assert_allclose(jax.jit(features.hessian)(m, w), wanted, atol=1e-9)


@pytest.mark.parametrize("quadratic", [True, False])
def test_what_is_expected_of_sums_is_that_of_each_sum(plane, quadratic):
    features, rng = draw(plane, quadratic=quadratic), np.random.default_rng(2)
    w, u, v = rng.normal(size=features.width), rng.normal(size=(3, 2)), rng.normal(size=(4, 2))
    with jax.enable_x64(True):
        each = [jax.jit(features.expected)(u + shift, w) for shift in v]
        found = jax.jit(features.expected_of_sums)(u, v, w)
    np.testing.assert_allclose(found, np.transpose(each), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("phi", [ivvi.linear(), ivvi.features.polynomial(2, cross=True)])
def test_the_best_of_a_finite_set_is_that_of_its_values(phi):
    """Whether the mean is a sum, where all choices are one matrix product, or not."""
    rng = np.random.default_rng(4)
    states, choices = rng.normal(size=(200, 2)), rng.normal(size=(7, 1))
    names = ("x0", "x1"), ("a0",)
    d_phi = len(phi.names(*names))
    W = rng.normal(size=(2, d_phi)) / d_phi
    noise = np.eye(2), np.zeros((d_phi, d_phi))
    model = Dynamics(phi, W, *noise, *names, names[0], states=states)
    problem = Problem.of(model, "quadratic:action_weight=0.5", choices, horizon=3)
    greedy = Greedy(problem, 2, 0)
    features, x = draw(model), 3 * rng.normal(size=(5, 2))
    w = rng.normal(size=features.width)
    with jax.enable_x64(True):
        a, v = jax.jit(lambda x: greedy.best(x, 0, features, w, None, 0))(x)
        every = [jax.jit(greedy.q)(x, np.tile(c, (5, 1)), 0, features, w) for c in choices]
    np.testing.assert_allclose(v, np.max(every, axis=0), rtol=1e-11)
    np.testing.assert_array_equal(a, choices[np.argmax(every, axis=0)])


def test_hessian_of_q_is_that_of_automatic_differentiation():
    states = np.random.default_rng(0).normal(size=(200, 1))
    phi = ivvi.features.polynomial(2, cross=True)
    W = np.array([[0.1, 0.6, 0.4, -0.1, 0.2, 0.3]])
    model = Dynamics(phi, W, np.eye(1), np.zeros((6, 6)), ("x0",), ("a0",), ("x0",), states=states)
    problem = Problem.of(model, "quadratic:weight=1,action_weight=0.5", (-1, 1), horizon=3)
    greedy = Greedy(problem, 2, 0)
    features = draw(model)
    w = np.random.default_rng(3).normal(size=features.width)
    x, a = np.array([[0.3], [-0.8]]), np.array([[0.2], [0.9]])
    with jax.enable_x64(True):
        hessian = jax.jit(lambda a: greedy.hessian(x, a, jnp.zeros(0), 0, features, w))
        found = hessian(jnp.asarray(a))
        one = lambda x, a: greedy.q(x[None], a[None], 0, features, w)[0]  # noqa: E731
        wanted = jax.jit(jax.vmap(jax.hessian(one, argnums=1)))(jnp.asarray(x), jnp.asarray(a))
    np.testing.assert_allclose(found, wanted, rtol=1e-9)


def riccati(P, Q, weight, cost, horizon):
    """Return the gains of a = -K x for steps 0, 1, ..., without bounds."""
    S, gains = np.zeros_like(P), []
    for _ in range(horizon):
        K = np.linalg.solve(cost * np.eye(Q.shape[1]) + Q.T @ S @ Q, Q.T @ S @ P)
        S = weight * np.eye(len(P)) + P.T @ S @ (P - Q @ K)
        gains.insert(0, K)
    return gains


@pytest.mark.thorough
def test_linear_quadratic_problem_is_solved_for_every_step(plane, tmp_path):
    reward = "quadratic:weight=0.5,action_weight=0.2"
    iterations = []
    policy = ivvi.plan(
        plane,
        reward,
        (-50, 50),
        horizon=4,
        method=ivvi.SPEDE(**QUICK),
        progress=iterations.append,
        compare=False,
    )
    x = np.random.default_rng(5).normal(size=(30, 2)) * 3
    _, P, Q = policy.problem.affine
    for step, K in enumerate(riccati(P, Q, 0.5, 0.2, 4)):
        np.testing.assert_allclose(policy(x, step), -x @ K.T, atol=2e-4)
    assert policy.rule.choice.residual < 1e-5
    assert len(policy.rule.weights) == 4
    assert sum(iterations) == 2 * 3  # a pilot and the plan, three steps back each
    assert len(policy.rule.curve) == 4
    assert policy.rule.curve[-1] > policy.rule.curve[0]  # the reward alone says a = 0

    loaded = ivvi.load_policy(policy.save(tmp_path / "policy"))
    np.testing.assert_array_equal(loaded(x), policy(x))
    np.testing.assert_array_equal(loaded.rule.curve, policy.rule.curve)
    assert loaded.rule.choice == policy.rule.choice


def grid_values(reward, discount, actions, *, bound=12.0):
    """Solve x' = 2 tanh x + a + N(0, 1) on a fine grid; returns the grid and Q (n, m)."""
    x = np.linspace(-bound, bound, 961)
    nodes, weights = np.polynomial.hermite_e.hermegauss(30)
    m = bent(x[:, None], np.asarray(actions)[None])
    V = np.zeros(len(x))
    for _ in range(200):
        ahead = sum(
            c * np.interp(m + e, x, V) for e, c in zip(nodes, weights / weights.sum(), strict=True)
        )
        Q = reward(x)[:, None] + discount * ahead
        V = Q.max(axis=1)
    return x, Q


@pytest.mark.parametrize(
    "kind",
    [
        "finite",
        pytest.param("box", marks=pytest.mark.slow),
        pytest.param("mixed", marks=pytest.mark.slow),
    ],
)
def test_bent_dynamics_are_planned_as_on_a_fine_grid(kind):
    states = np.random.default_rng(0).uniform(-5, 5, size=(500, 1))
    phi = ivvi.custom(bent, ["f"])
    model = Dynamics(
        phi, np.eye(1), np.eye(1), np.zeros((1, 1)), ("x0",), ("a0",), ("x0",), states=states
    )
    if kind == "mixed":  # a second action that only costs
        phi = ivvi.custom(bent_by_two, ["f"])
        model = Dynamics(
            phi,
            np.eye(1),
            np.eye(1),
            np.zeros((1, 1)),
            ("x0",),
            ("a0", "a1"),
            ("x0",),
            states=states,
        )
    table = np.linspace(-1, 1, 3 if kind == "finite" else 201)
    actions = {
        "finite": ivvi.Actions.finite(table),
        "box": ivvi.Actions.box(-1, 1, dim=1),
        "mixed": ivvi.Actions.product(ivvi.Actions.box(-0.5, 0.5, dim=1), ivvi.Actions.binary(1)),
    }[kind]
    settings = {**QUICK, "features": 256, "bandwidth": 0.5, "ridge": 1e-6}
    policy = ivvi.plan(
        model,
        peak,
        actions,
        horizon=200,
        discount=0.9,
        method=ivvi.SPEDE(**settings),
        compare=False,
    )
    x, Q = grid_values(lambda x: peak(x[:, None], None), 0.9, table)
    near = np.abs(x) < 4
    moved = policy(x[near][:, None])
    push = moved[:, 0] + (moved[:, 1] - 0.5 if kind == "mixed" else 0.0)
    lost = Q[near].max(axis=1) - [
        np.interp(a, table, q) for a, q in zip(push, Q[near], strict=True)
    ]
    assert lost.max() < 0.01 * np.ptp(Q[near].max(axis=1))
    assert lost.mean() < 1e-3 * np.ptp(Q[near].max(axis=1))


def bent_by_two(x, u):
    """Move as `bent` by the sum of two actions, the second a switch."""
    return bent(x, u[..., :1] + u[..., 1:] - 0.5)


def peak(x, a):
    """Pay for being near 1, which the dynamics are not."""
    return 1 / (1 + (x[..., 0] - 1) ** 2)


@pytest.fixture(scope="module")
def line():
    """Return x' = x + a + N(0, 1 / 4) on a line."""
    states = np.random.default_rng(0).uniform(-4, 4, size=(300, 1))
    return linear_model(np.eye(1), np.eye(1), np.eye(1) / 4, states)


def test_a_model_that_bends_is_asked_where_nearly_all_of_the_log_lies():
    rng = np.random.default_rng(0)
    states, acted = rng.normal(size=(1000, 1)), rng.uniform(-1, 1, (1000, 1))
    names = ("x0",), ("a0",), ("x0",)
    rows = {"states": states, "starts": states[:50], "acted": acted}
    for phi in (ivvi.linear(), ivvi.features.polynomial(2)):
        W = np.zeros((1, 3 if phi == ivvi.linear() else 5))
        W[0, 1] = 1.0
        model = ivvi.Dynamics(phi, W, np.eye(1), np.eye(W.shape[1]), *names, **rows)
        problem = Problem.of(model, "quadratic:weight=1", (-1, 1), horizon=3)
        asked = believed(problem).model.mean(np.array([[50.0], [0.0]]), np.zeros((2, 1)))
        ends = [np.quantile(part, 0.99) for part in (states, states[:50])]
        np.testing.assert_allclose(asked[:, 0], [max(ends) if W.size == 5 else 50.0, 0.0])


@pytest.mark.thorough
def test_the_seed_decides_the_weights_of_a_plan(line):
    steps = ivvi.Actions.finite([-1.0, 0.0, 1.0])
    plans = [
        ivvi.plan(
            line,
            "quadratic",
            steps,
            horizon=5,
            method=ivvi.SPEDE(**QUICK),
            seed=seed,
            compare=False,
        )
        for seed in (0, 0, 1)
    ]
    weights = [policy.rule.weights for policy in plans]
    np.testing.assert_array_equal(weights[0], weights[1])
    assert not np.array_equal(weights[0], weights[2])
    x = np.linspace(-4, 4, 41)[:, None]
    np.testing.assert_array_equal(plans[0](x)[:, 0], np.clip(-np.round(x[:, 0]), -1, 1))
    np.testing.assert_array_equal(plans[2](x)[:, 0], np.clip(-np.round(x[:, 0]), -1, 1))


def test_plans_of_one_shape_share_a_program_and_keep_their_numbers(line):
    steps = ivvi.Actions.finite([-1.0, 0.0, 1.0])
    against = replace(line, W=line.W * [1.0, 1.0, -1.0])  # x' = x - a
    policies = [
        ivvi.plan(model, "quadratic", steps, horizon=5, method=ivvi.SPEDE(**QUICK), compare=False)
        for model in (line, against)
    ]
    assert Decision.of(policies[0]) == Decision.of(policies[1])
    longer = ivvi.plan(
        line, "quadratic", steps, horizon=6, method=ivvi.SPEDE(**QUICK), compare=False
    )
    assert Decision.of(policies[0]) != Decision.of(longer)
    x = np.array([[-3.0], [0.1], [2.0]])
    assert [policy(x)[:, 0].tolist() for policy in policies] == [[1, 0, -1], [-1, 0, 1]]


def test_a_reward_of_the_next_state_and_the_step_is_planned_for(line):
    steps = ivvi.Actions.finite([-1.0, 0.0, 1.0])
    policy = ivvi.plan(
        line, late_reward, steps, horizon=4, method=ivvi.SPEDE(**QUICK), compare=False
    )
    assert len(policy.rule.weights) == 4
    x = np.array([[-3.3], [-0.2], [0.9], [2.2], [3.9]])
    # at the last steps the next state should be 1; at the first, three moves lead to it
    for step in (2, 3):
        assert policy(x, step)[:, 0].tolist() == [1.0, 1.0, 0.0, -1.0, -1.0]
    assert policy(x, 0)[[0, -1], 0].tolist() == [1.0, -1.0]


@pytest.mark.thorough
def test_an_end_with_nothing_to_gain_is_avoided_or_sought(line):
    steps = ivvi.Actions.finite([-1.0, 0.0, 1.0])
    x = np.array([[-2.4], [2.4]])
    for pay, towards_the_end in (("linear:constant=1", False), ("linear:constant=-1", True)):
        method = ivvi.SPEDE(**{**QUICK, "features": 128, "bandwidth": 0.5, "ridge": 1e-6})
        policy = ivvi.plan(line, pay, steps, horizon=20, terminal=far, method=method, compare=False)
        outwards = policy(x)[:, 0] * np.sign(x[:, 0])
        assert (outwards == (1.0 if towards_the_end else -1.0)).all()


@pytest.mark.parametrize(
    ("settings", "fact"),
    [
        ({"features": 0}, "features=0"),
        ({"features": 10.5}, "features=10.5"),
        ({"states": 5}, "states=5; expected a whole number of at least 20"),
        ({"seeds": 0}, "seeds=0"),
        ({"starts": -1}, "starts=-1"),
        ({"bandwidth": 0.0}, "bandwidth=0.0"),
        ({"ridge": float("nan")}, "ridge=nan"),
    ],
)
def test_bad_settings_are_refused_in_one_sentence(settings, fact):
    with pytest.raises(InputError, match=fact) as refused:
        ivvi.SPEDE(**settings)
    assert "\n" not in str(refused.value)
    assert str(refused.value).startswith("SPEDE was given")


def true_bend(x, u):
    """Be the paper's nonlinear transition."""
    xp = u.__array_namespace__()
    return xp.log(xp.abs(x - 1) + 1) - u / 2


def regret(simulator, simulated, name, dim, seeds=(0,)):
    """Return the return of MPC in the true model minus that of SPEDE with the exact fit."""
    env, log = simulator(name, dim), simulated(name, dim)
    word = "linear" if name == "linear" else "poly2"
    fit = ivvi.estimate(log, word)
    phi = ivvi.linear() if name == "linear" else ivvi.custom(true_bend, fit.model.state)
    W = env.world.W_star if name == "linear" else np.eye(dim)
    names = (fit.model.state, fit.model.action, fit.model.outputs)
    bread = np.zeros((W.shape[1],) * 2)
    truth = Dynamics(phi, W, fit.model.noise_cov, bread, *names, states=fit.model.states)
    settings = {"reward": "quadratic:weight=0.05", "actions": (-1, 1), "horizon": env.world.horizon}
    best = env.rollout(
        ivvi.plan(truth, **settings, method=ivvi.MPC(lookahead=3), compare=False), seed=1000
    )
    plans = [
        ivvi.plan(fit.model, **settings, method="spede", seed=seed, compare=False) for seed in seeds
    ]
    earned = [env.rollout(policy, seed=1000).returns.mean() for policy in plans]
    return best.returns.mean() - np.array(earned)


@pytest.mark.slow
@pytest.mark.parametrize(("dim", "most"), [(5, 0.3), (10, 1.5), (20, 6.0)])
def test_regret_is_small_in_the_linear_experiment(simulator, simulated, dim, most):
    assert regret(simulator, simulated, "linear", dim).max() < most


@pytest.mark.slow
@pytest.mark.parametrize(("dim", "most"), [(1, 0.6), (3, 2.5)])
def test_regret_is_small_in_the_nonlinear_experiment_whatever_the_seed(
    simulator, simulated, dim, most
):
    assert regret(simulator, simulated, "nonlinear", dim, seeds=range(10)).max() < most
