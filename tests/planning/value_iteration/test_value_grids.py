"""Values on a grid against brute force and the simulator."""

import numpy as np
import pytest
from scipy.stats import norm

import ivvi
from ivvi import ValueIteration, plan
from ivvi.planning import Problem
from ivvi.planning.quadrature import (
    MOST_KEPT,
    Noise,
    mean_reward,
    reward_noise,
    uses_next_state,
    uses_step,
)
from ivvi.planning.value_iteration.grid import Grid, line_smoothing
from value_problems import SIMULATED, next_reward


def bent_mean(x, a):
    """Be smooth, and bend both state and action."""
    xp = a.__array_namespace__()
    return 0.9 * xp.sin(x) + 0.5 * xp.tanh(a)


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
    sigma, H = 0.6, 3
    model = model_of(ivvi.custom(bent_mean, ["mean"]), [[1.0]], [[sigma**2]], [[-3.0], [3.0]])
    if kind == "state":
        asked, exact = "quadratic:weight=1,target=0.5,action_weight=0.1", state_terms
    else:
        asked, exact = next_reward, next_terms
    method = ValueIteration(points=801, nodes=1201)
    policy = plan(model, asked, (-1, 1), horizon=H, method=method, compare=False)
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
    policy = plan(model, ones, choices, horizon=H, terminal=outside, method=method, compare=False)
    x = np.linspace(-6, 1.5, 2501)
    V = np.zeros(len(x))
    alive = np.where(x > 1.0, 0.0, 1.0)
    moves = [norm.pdf(x, (P * x + 0.5 * a)[:, None], sigma) * (x[1] - x[0]) for a in choices]
    for _ in range(H):
        V = 1.0 + np.max([move @ (alive * V) for move in moves], axis=0)
    some = np.abs(x) < 1.5
    np.testing.assert_allclose(
        policy.rule.value(x[some][::100][:, None]), V[some][::100], atol=1e-3
    )


def ones(x, a):
    return 1.0 + 0 * x[..., 0]


@pytest.mark.thorough
def test_the_steady_part_of_a_horizon_is_filled_in(simulator_model):
    """A reward that only seems to look at the step is planned step by step, and agrees."""
    settings = {"horizon": 60, "discount": 0.97, "states": [[-3.0], [4.0]]}
    short = plan(
        simulator_model, SIMULATED, (-1, 1), method="value-iteration", **settings, compare=False
    )
    full = plan(
        simulator_model,
        lambda x, a, x_next, h: -0.05 * (x[..., 0] ** 2) + 0 * h,
        (-1, 1),
        method="value-iteration",
        **settings,
        compare=False,
    )
    assert len(short.rule.coefficients) < len(full.rule.coefficients) == 60
    x = np.linspace(-3, 4, 9)[:, None]
    for h in (0, 30, 58, 59):
        np.testing.assert_allclose(short.rule.value(x, h), full.rule.value(x, h), atol=1e-9)
        if h < 59:
            np.testing.assert_allclose(short(x, h), full(x, h), atol=1e-6)


def test_the_simulator_has_its_known_optimal_return(simulator_model):
    method = ValueIteration()
    policy = plan(simulator_model, SIMULATED, (-1, 1), horizon=500, method=method, compare=False)
    assert policy.rule.value([[0.0]])[0] == pytest.approx(-27.98, abs=0.02)


@pytest.mark.slow
def test_rollouts_earn_the_optimal_return(simulator_model, simulator):
    policy = plan(
        simulator_model, SIMULATED, (-1, 1), horizon=500, method="value-iteration", compare=False
    )
    returns = simulator("nonlinear", 1).rollout(policy, episodes=4000, seed=3).returns
    error = returns.std() / np.sqrt(len(returns))
    assert abs(returns.mean() - policy.rule.value([[0.0]])[0]) < 3 * error < 0.15


@pytest.mark.parametrize(
    ("reward", "looked_at"),
    [
        (lambda x, a, x_next, step: -(x[:, 0] ** 2) - a[:, 0], (False, False)),
        (lambda x, a, x_next, step: -(x_next[:, 0] ** 2), (True, False)),
        (lambda x, a, x_next, step: -(x[:, 0] ** 2) * (step % 7), (False, True)),
        (lambda x, a: -(x[:, 0] ** 2), (False, False)),
    ],
)
def test_a_reward_is_averaged_over_next_states_only_where_it_looks_at_them(
    simulator_model, reward, looked_at
):
    problem = Problem.of(simulator_model, reward, (-1, 1), horizon=5)
    assert (uses_next_state(problem), uses_step(problem)) == looked_at


def test_noise_is_averaged_at_every_point_of_a_line():
    """The map of the whole lattice is that of its points, one by one."""
    grid = Grid(-np.ones(1), np.ones(1), 21)
    noise = Noise.of(np.array([[0.004]]), nodes=7)
    V = np.random.default_rng(0).normal(size=grid.points + 2)
    at_once = line_smoothing(grid, noise, None) @ V
    around = (grid.lattice()[:, None] + noise.offsets).reshape(-1, 1)
    one_by_one = np.asarray(grid(V, around)).reshape(len(at_once), -1) @ noise.weights
    assert at_once == pytest.approx(one_by_one, abs=1e-5)


@pytest.fixture(scope="module")
def plane_model(model_of):
    W = [[0.0, 0.8, 0.1, 0.5], [0.0, -0.2, 0.7, 1.0]]
    states = np.random.default_rng(0).normal(size=(200, 2))
    return model_of(ivvi.linear(), W, np.diag([0.3, 0.2]), states)


@pytest.mark.parametrize(
    ("reward", "nodes"),
    [
        pytest.param(lambda x, a, x_next: x[:, 0] - a[:, 0] ** 2, 1, marks=pytest.mark.thorough),
        (lambda x, a, x_next: x_next[:, 0] - x_next[:, 1] * a[:, 0], 1),
        (lambda x, a, x_next: -(x_next[:, 0] ** 2) * (1 + x[:, 1] ** 2), 4),
        (lambda x, a, x_next: -abs(x_next[:, 0]), MOST_KEPT),
        pytest.param(
            lambda x, a, x_next: 1.0 * (x_next[:, 0] > 0.5), MOST_KEPT, marks=pytest.mark.thorough
        ),
    ],
)
def test_smooth_rewards_of_the_next_state_need_few_nodes(plane_model, reward, nodes):
    problem = Problem.of(plane_model, reward, (-1, 1), horizon=5)
    assert len(reward_noise(problem).weights) == nodes


def test_a_reward_of_the_next_state_is_averaged(plane_model):
    """E -(x')^2 = -(m^2 + s^2)."""
    problem = Problem.of(plane_model, lambda x, a, x_next: -(x_next[:, 0] ** 2), (-1, 1), horizon=5)
    x, a = plane_model.states[:50], np.linspace(-1, 1, 50)[:, None]
    m = plane_model.mean(x, a)
    averaged = mean_reward(problem, reward_noise(problem), x, a, m, 0)
    np.testing.assert_allclose(averaged, -(m[:, 0] ** 2) - 0.3, atol=1e-9)
