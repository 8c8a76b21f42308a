"""One world: categories, reach, rows for users' functions, endings, for every verb."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ivvi
from ivvi import Dynamics, InputError
from ivvi.dynamics.next_state_distribution import (
    Category,
    indicator_categories,
    next_state,
    noise_law,
    outcomes,
)

WEAR = np.array([[0.7, 0.2, 0.1, 0.0], [0, 0.6, 0.3, 0.1], [0, 0, 0.5, 0.5], [0, 0, 0, 1.0]])
LEVELS = np.vstack([np.zeros(3), np.eye(3)])
COST = np.array([0.0, 1.0, 3.0, 12.0])


def exact_model(phi, x, a, means, noise_cov, states):
    """Dynamics whose means at (x, a) are the given ones."""
    names = tuple(f"x{i}" for i in range(x.shape[1]))
    Phi = phi(x, a)
    W = np.linalg.lstsq(Phi, means, rcond=None)[0].T
    np.testing.assert_allclose(Phi @ W.T, means, atol=1e-9)
    none = np.zeros((Phi.shape[1],) * 2)
    return Dynamics(phi, W, noise_cov, none, names, ("a0",), names, states=states, starts=states)


def machine():
    """Four levels of wear as three indicators; a = 1 replaces the machine by a new one."""
    x = np.tile(LEVELS, (2, 1))
    a = np.repeat([[0.0], [1.0]], 4, axis=0)
    P = np.vstack([WEAR, np.tile(np.eye(4)[0], (4, 1))])
    p = P[:, 1:]
    cov = np.mean([np.diag(row) - np.outer(row, row) for row in p], axis=0)
    phi = ivvi.features.polynomial(2, cross=True)
    return exact_model(phi, x, a, p, cov, np.tile(LEVELS, (100, 1)))


def machine_reward(x, a):
    return -x @ jnp.asarray(COST[1:]) - 5.0 * a[:, 0]


def replace_when_worn(x):
    return (x[:, 1:].sum(axis=1) > 0).astype(float)[:, None]


def exact_value(horizon, discount):
    """Value of replacing in the two worst levels, from a machine of each level alike."""
    P = np.array([WEAR[0], WEAR[1], np.eye(4)[0], np.eye(4)[0]])
    r = -COST - 5.0 * np.array([0, 0, 1, 1])
    law, total = np.full(4, 0.25), 0.0
    for h in range(horizon):
        total += discount**h * law @ r
        law = law @ P
    return total


def test_indicators_are_drawn_as_categories():
    model = machine()
    assert model.categories == (Category((0, 1, 2)),)
    worth = ivvi.value(
        replace_when_worn,
        model,
        reward=machine_reward,
        actions=[[0.0], [1.0]],
        horizon=30,
        discount=0.95,
        against=(),
        draws=20,
    ).values["policy"]
    assert abs(worth.estimate - exact_value(30, 0.95)) < 3 * worth.simulation_error


def test_the_environment_of_a_model_visits_categories_alone():
    env = machine().as_env(machine_reward, [[0.0], [1.0]], horizon=30)
    seen = env.rollout(replace_when_worn, episodes=50, keep=True).states.reshape(-1, 3)
    assert {tuple(row) for row in seen} == {tuple(row) for row in LEVELS}


MIX = np.array([2.0, -3.0])
"""What the next category adds to the next temperature."""


def mixed_means(x, a):
    """Probabilities of two levels (of three), linear in state and action."""
    p1 = 0.15 + 0.5 * x[:, 0] + 0.1 * x[:, 1] + 0.2 * a[:, 0]
    p2 = 0.2 + 0.05 * x[:, 0] + 0.5 * x[:, 1] - 0.15 * a[:, 0]
    return np.stack([p1, p2], axis=1)


def mixed_step(x, a, rng):
    p = mixed_means(x, a)
    u = rng.uniform(size=len(x))
    k = np.stack([u < p[:, 0], (u >= p[:, 0]) & (u < p.sum(axis=1))], axis=1) * 1.0
    t = 0.6 * x[:, 2] + 0.5 * a[:, 0] + k @ MIX + 0.5 * rng.normal(size=len(x))
    return np.column_stack([k, t])


@functools.cache
def mixed_model():
    rng = np.random.default_rng(0)
    x = np.zeros((4000, 3))
    for _ in range(30):
        a = rng.integers(0, 2, size=(len(x), 1)) * 1.0
        states, x = x, mixed_step(x, a, rng)
    p = mixed_means(states, a)
    means = np.column_stack([p, 0.6 * states[:, 2] + 0.5 * a[:, 0] + p @ MIX])
    S = np.mean([np.diag(row) - np.outer(row, row) for row in p], axis=0)
    cov = np.block([[S, (S @ MIX)[:, None]], [MIX @ S, np.array([[MIX @ S @ MIX + 0.25]])]])
    return exact_model(ivvi.linear(), states, a, means, cov, states[:1000])


def mixed_reward(x, a):
    hot = jnp.where(x[:, 2] > 0, x[:, 2] ** 2, 0.0)
    return -x[:, 0] * hot - 4.0 * x[:, 1] * (x[:, 2] < -3) - 0.3 * a[:, 0]


@pytest.mark.parametrize(
    "policy",
    [
        pytest.param(lambda x: np.zeros((len(x), 1)), marks=pytest.mark.thorough),
        pytest.param(lambda x: np.ones((len(x), 1)), marks=pytest.mark.thorough),
        lambda x: (x[:, 1:2] > 0) * 1.0,
    ],
)
def test_other_columns_follow_the_category(policy):
    """A temperature that depends on the category drawn: truth by simulation in NumPy."""
    model, rng = mixed_model(), np.random.default_rng(1)
    worth = ivvi.value(
        policy,
        model,
        reward=mixed_reward,
        actions=[[0.0], [1.0]],
        horizon=20,
        against=(),
        draws=20,
    ).values["policy"]
    x = np.repeat(model.starts, 40, axis=0)
    total = np.zeros(len(x))
    for _ in range(20):
        a = policy(x)
        total += np.asarray(mixed_reward(x, a))
        x = mixed_step(x, a, rng)
    error = np.hypot(worth.simulation_error, total.std() / np.sqrt(len(total)))
    assert abs(worth.estimate - total.mean()) < 4 * error


def test_draws_have_the_law_that_the_mean_says():
    """Frequencies, and the covariance of the rest, NumPy and JAX alike."""
    rng = np.random.default_rng(3)
    categories = (Category((0, 2)), Category((3,)))
    root = rng.normal(size=(5, 5))
    law = noise_law(root @ root.T, categories)
    m = np.array([0.3, 1.5, 0.6, 0.2, -1.0])
    noise = rng.normal(size=(40_000, 5))
    drawn = next_state(np.broadcast_to(m, noise.shape), noise, law, categories)
    spread = drawn.std(axis=0) / np.sqrt(len(drawn))
    assert (np.abs(drawn.mean(axis=0) - m) < 4.5 * spread).all()
    assert set(np.unique(drawn[:, [0, 2, 3]])) == {0.0, 1.0}
    assert drawn[:, [0, 2]].sum(axis=1).max() == 1.0
    with jax.enable_x64(True):
        again = jax.jit(lambda m, e: next_state(m, e, law, categories))(jnp.asarray(m), noise[:50])
    np.testing.assert_allclose(again, drawn[:50], atol=1e-12)


def test_without_categories_the_noise_is_that_of_the_root():
    cov = np.array([[2.0, 0.3], [0.3, 1.0]])
    m, noise = np.array([[1.0, 2.0]]), np.array([[0.5, -1.0]])
    found = next_state(m, noise, noise_law(cov))
    np.testing.assert_allclose(found, m + noise @ np.linalg.cholesky(cov).T)


def test_outcomes_sum_to_expectations():
    """E f(x') by summing over levels and nodes, against many draws."""
    rng = np.random.default_rng(4)
    model, categories = mixed_model(), mixed_model().categories
    m = model.mean(model.states[:2], np.ones((2, 1)))
    points, weights = np.polynomial.hermite_e.hermegauss(20)
    nodes = np.zeros((20, 3))
    nodes[:, 2] = points
    x, w = outcomes(m, nodes, weights / weights.sum(), model.noise_law, categories)
    np.testing.assert_allclose(w.sum(axis=0), 1.0)
    f = lambda x: np.exp(0.3 * x[..., 2]) * x[..., 0] + x[..., 2] ** 2 * x[..., 1]  # noqa: E731
    drawn = f(model.next_state(np.repeat(m[None], 20_000, axis=0), rng.normal(size=(20_000, 2, 3))))
    error = drawn.std(axis=0) / np.sqrt(len(drawn))
    assert (np.abs((w * f(x)).sum(axis=0) - drawn.mean(axis=0)) < 4.5 * error).all()


def rows_of(rng, n=2000):
    """Columns: a category of three in two indicators, a yes or no, a rare complete pair, other."""
    level, flag = rng.integers(0, 3, n), rng.integers(0, 2, n)
    rare = np.zeros(n)
    rare[:4] = 1
    columns = [level == 1, flag, level == 2, rare, 1 - rare, rng.normal(size=n), np.zeros(n)]
    return np.column_stack(columns).astype(float)


def test_categories_are_found_in_the_rows_of_a_log():
    categories = indicator_categories(rows_of(np.random.default_rng(5)))
    assert categories == (Category((0, 2)), Category((1,)), Category((3, 4), complete=True))


def test_rare_columns_that_never_met_are_not_a_category():
    rows = np.zeros((2000, 2))
    rows[:30, 0] = 1
    rows[100:130, 1] = 1
    assert indicator_categories(rows) == (Category((0,)), Category((1,)))


def test_levels_beyond_probabilities_are_clipped():
    m = np.array([[1.4, -0.2], [0.2, 0.2], [-0.3, -0.1]])
    p = Category((0, 1)).probabilities(m)
    np.testing.assert_allclose(p, [[0, 1, 0], [0.6, 0.2, 0.2], [1, 0, 0]])
    p = Category((0, 1), complete=True).probabilities(m)
    np.testing.assert_allclose(p, [[1, 0], [0.5, 0.5], [0.5, 0.5]])


def test_models_that_bend_stay_within_what_the_log_knows():
    states = np.random.default_rng(6).normal(size=(2000, 2))
    names, d = ("x0", "x1"), 7
    rest = np.eye(2), np.zeros((d, d)), names, ("a0",), names
    bent = Dynamics(ivvi.features.polynomial(2), np.ones((2, d)), *rest, states=states)
    low, high = np.quantile(states, [0.005, 0.995], axis=0)
    far, a = np.array([[9.0, -9.0]]), np.ones((1, 1))
    inside = np.clip(far, low, high)
    np.testing.assert_allclose(bent.mean(far, a), bent.phi(inside, a) @ bent.W.T)
    line = Dynamics(
        ivvi.linear(), np.ones((2, 4)), np.eye(2), np.zeros((4, 4)), *rest[2:], states=states
    )
    np.testing.assert_allclose(line.mean(far, a), np.ones((1, 2)) * (1 + 9 - 9 + 1))
    assert np.isinf(line.reach).all()


@functools.cache
def fitted():
    log = ivvi.make_env("linear", dim=2).collect(episodes=30, horizon=20, seed=1)
    return ivvi.estimate(log, episodes=True)


def rows_reward(x, a, x_next, h):
    """A reward written for rows."""
    return -(x[:, 0] ** 2) - 0.1 * x_next[:, 1] ** 2 - 0.1 * a[:, 0] ** 2 + 0.01 * h


def batch_reward(x, a, x_next, h):
    """The same reward written for any batch."""
    return -(x[..., 0] ** 2) - 0.1 * x_next[..., 1] ** 2 - 0.1 * a[..., 0] ** 2 + 0.01 * h


def rows_end(x):
    return x[:, 0] > 12


def batch_end(x):
    return x[..., 0] > 12


@pytest.mark.usefixtures("few_episodes")
def test_a_reward_of_rows_is_valued_as_one_of_batches():
    model = fitted().model
    found = []
    for reward, end in ((rows_reward, rows_end), (batch_reward, batch_end)):
        policy = ivvi.plan(
            model, reward, (-1, 1), horizon=3, terminal=end, method=ivvi.MPC(1), compare=False
        )
        worth = ivvi.value(policy, fitted(), draws=20, against=("zero",))
        asked = {"against": ("zero",), "violations": ("z0",), "draws": 0, "episodes": 8}
        doubt = ivvi.sensitivity(policy, fitted(), **asked)
        env = model.as_env(reward, (-1, 1), horizon=3, terminal=end)
        earned = env.rollout(policy, episodes=20).rewards
        found.append(
            [
                *(amount.estimate for amount in worth.values.values()),
                *worth.values["policy"].interval,
                *doubt.bands[0].gain,
                *earned.ravel(),
            ]
        )
    np.testing.assert_allclose(*found, rtol=1e-9)


def test_the_environment_of_a_model_tells_the_step():
    env = fitted().model.as_env(lambda x, a, x_next, h: 1.0 * h + 0 * x[:, 0], (-1, 1), horizon=5)
    np.testing.assert_allclose(env.rollout(lambda x: 0 * x, episodes=2).rewards, [np.arange(5)] * 2)
    env.reset(seed=0)
    assert [env.step(np.zeros(2))[1] for _ in range(3)] == [0.0, 1.0, 2.0]


def test_any_policy_lives_with_endings():
    """Paid 1 a step until the end: the value is the expected number of steps lived."""
    model = fitted().model
    pay = lambda x, a: 1.0 + 0 * x[:, 0]  # noqa: E731
    ends = lambda x: x[:, 0] < np.quantile(model.states[:, 0], 0.1)  # noqa: E731
    first = lambda x: np.zeros((len(x), 2))  # noqa: E731
    worth = ivvi.value(
        first,
        model,
        reward=pay,
        actions=(-1, 1),
        horizon=10,
        terminal=ends,
        against={"zero": "zero", "one": np.zeros(2)},
        draws=20,
    )
    lived = [amount.estimate for amount in worth.values.values()]
    np.testing.assert_allclose(lived, lived[0])
    env = model.as_env(pay, (-1, 1), starts=model.starts, horizon=10, terminal=ends)
    seen = env.rollout(first, episodes=2000).returns
    error = np.hypot(worth.values["policy"].simulation_error, seen.std() / np.sqrt(len(seen)))
    assert 1 < lived[0] < 10
    assert abs(lived[0] - seen.mean()) < 4 * error


@pytest.mark.parametrize(
    ("reward", "sentence"),
    [
        (lambda x, a: x, r"the reward returned shape \(\d, 2\)"),
        (lambda x, a: x[:, :1], r"the reward returned shape \(\d, 1\)"),
        (lambda x, a: x.sum(), r"the reward returned shape \(\)"),
        (lambda x, a: -(x[0] ** 2), r"the reward returned shape \(2,\)"),
        (lambda x, a: "much", "the reward returned 'much'"),
        (lambda x, a: ["much"] * len(x), r"the reward returned \['much'"),
        (lambda x, a: None, "the reward returned None"),
        (lambda x, a: x[:, 0] * np.nan, "the reward is nan at x0="),
        (lambda x, a: x[:, 7:].sum(axis=1) / 0.0 * x[:, 0], "the reward is nan|finite"),
        (lambda x, a: x.nothing, "the reward cannot be evaluated"),
        (lambda x, a: 1 / 0, "the reward cannot be evaluated"),
        (lambda x, a: x[:, 0] if x[0, 0] > 0 else -x[:, 0], "the reward cannot be compiled"),
    ],
)
def test_a_reward_that_is_none_is_refused_in_a_sentence(reward, sentence):
    with pytest.raises(InputError, match=sentence) as caught:
        ivvi.plan(fitted().model, reward, (-1, 1), method="mpc")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("end", "sentence"),
    [
        (lambda x: x > 3, r"terminal returned shape \(\d, 2\)"),
        (lambda x: True, r"terminal returned shape \(\)"),
        (lambda x: "never", "terminal returned 'never'"),
        (lambda x: x[:, 0] * np.nan, "terminal is nan at"),
        (3, "terminal is 3"),
    ],
)
def test_an_end_that_is_none_is_refused_in_a_sentence(end, sentence):
    with pytest.raises(InputError, match=sentence):
        ivvi.plan(fitted().model, "quadratic", (-1, 1), terminal=end, method="mpc")


def custom_features(x, u):
    """Features written for rows."""
    xp = u.__array_namespace__()
    return xp.stack([1 + 0 * x[:, 0], x[:, 0], x[:, 1], u[:, 0], u[:, 1]], axis=1)


@pytest.mark.usefixtures("few_episodes")
def test_a_model_of_custom_features_alone_is_valued():
    names = ["one", "x0", "x1", "u0", "u1"]
    maps = {"phi": ivvi.custom(custom_features, names), "psi": ivvi.custom(custom_features, names)}
    log = ivvi.make_env("linear", dim=2).collect(episodes=30, horizon=20, seed=1)
    fit = ivvi.estimate(log, episodes=True, **maps)
    settings = {"reward": "quadratic", "horizon": 10, "draws": 20, "against": ("behaviour",)}
    worth, same = (ivvi.value("zero", source, **settings) for source in (fit, fitted()))
    assert set(worth.values) == {"zero", "behaviour"}
    assert worth.values["zero"].estimate == pytest.approx(same.values["zero"].estimate, rel=0.01)
