"""The default planner: what it tries, what it keeps, and what it says of it."""

import itertools
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import ivvi
from ivvi import Actions, Dynamics, InputError, load_policy
from ivvi.errors import PlanningWarning
from ivvi.planning import Auto, Comparison, Problem
from ivvi.planning.auto import COARSE, FINER, PlannerComparison, is_resolved
from ivvi.planning.comparison import Trials
from ivvi.planning.riccati import RiccatiStep, riccati_values
from ivvi.planning.simple_rules import HeldRule
from ivvi.planning.upper_bounds import MOST_PATHS, relaxed_bound, residual_bound, upper_bound


def model_of(W, noise, states, actions, d_a=1, **others):
    """A linear model with a sample of states and of what was done there."""
    d_x = len(W)
    x, a = (tuple(f"{letter}{i}" for i in range(d)) for letter, d in (("x", d_x), ("a", d_a)))
    parts = np.asarray(W, float), np.asarray(noise, float), np.eye(len(W[0])) * 1e-4
    rows = {"states": states, "starts": states[:64], "acted": actions}
    return Dynamics(ivvi.linear(), *parts, x, a, x, **rows, **others)


@pytest.fixture(scope="module")
def treated():
    """One state that treatment lowers: x' = 1 + .9 x - 2 a + e."""
    rng = np.random.default_rng(0)
    x, a = rng.normal(5, 3, (500, 1)), rng.integers(0, 2, (500, 1)).astype(float)
    return model_of([[1.0, 0.9, -2.0]], [[1.0]], x, a)


def exact_rule(horizon, cost, weight=0.05, actions=(0, 1)):
    """Backward induction on a fine grid with trapezium weights, in plain NumPy."""
    x, e = np.linspace(-15, 30, 1801), np.linspace(-6, 6, 241)
    p = np.exp(-(e**2) / 2)
    p, V, rules = p / p.sum(), np.zeros(len(x)), []
    for _ in range(horizon):
        ahead = [np.interp(1 + 0.9 * x[:, None] - 2 * a + e, x, V) @ p for a in actions]
        Q = np.array(
            [-weight * x**2 - cost * a**2 + G for a, G in zip(actions, ahead, strict=True)]
        )
        V, gap = Q.max(axis=0), Q[1] - Q[0]
        rules.append(gap)
    return x, V, rules[::-1]


def test_a_binary_treatment_is_planned_as_exact_dynamic_programming_does(treated):
    reward = "quadratic:weight=0.05,action_weight=2"
    policy = ivvi.plan(treated, reward, Actions.binary(1), horizon=10)
    x, V, gaps = exact_rule(10, 2.0)
    fine = np.linspace(-5, 15, 1001)
    for step in (0, 5, 8):
        done = policy(fine[:, None], step)[:, 0]
        exact = np.interp(fine, x, gaps[step]) > 0
        assert np.mean(done == exact) >= 0.99
        assert np.all(np.diff(done) >= 0)  # the exact rule is a threshold
    starts = treated.starts[:, 0]
    bound = policy.comparison.bound
    assert bound.value == pytest.approx(np.interp(starts, x, V).mean(), abs=4 * bound.error + 0.1)
    assert policy.comparison.share > 0.95


def test_the_best_is_kept_and_the_table_survives_saving(treated, tmp_path):
    reward = "quadratic:weight=0.05,action_weight=2"
    policy = ivvi.plan(treated, reward, Actions.binary(1), horizon=5)
    compared = policy.comparison
    assert compared.plan.behind <= 2 * max(compared.plan.behind_error, 1e-12)
    names = [entry.name for entry in compared.entries]
    assert {"nothing", "usual"} <= set(names)
    assert any(name.startswith("mpc") for name in names)
    again = load_policy(policy.save(tmp_path / "policy"))
    assert again.comparison == compared
    assert Comparison.from_json(compared.to_json()) == compared
    fine = np.linspace(-5, 15, 50)[:, None]
    np.testing.assert_array_equal(again(fine), policy(fine))
    for name in names:
        assert name in compared.summary()


def test_machines_are_replaced_when_the_table_says_so():
    """Wear 0, 1, 2 as two indicators: worn machines cost, replacing costs more."""
    keep = np.array([[0.7, 0.3, 0.0], [0.0, 0.6, 0.4], [0.0, 0.0, 1.0]])
    rng = np.random.default_rng(1)
    level = rng.integers(0, 3, 600)
    states = np.eye(3)[level][:, 1:]
    # x' = W [1, x1, x2, a]: replaced machines are new, so the effect is that of the mean log
    acted = rng.integers(0, 2, (600, 1)).astype(float)
    phi = ivvi.custom(with_replacement, ["one", "x1", "x2"])
    W = np.column_stack([keep[0, 1:], keep[1, 1:] - keep[0, 1:], keep[2, 1:] - keep[0, 1:]])
    names = ("x0", "x1"), ("a0",), ("x0", "x1")
    rows = {"states": states, "starts": states[:64], "acted": acted}
    model = Dynamics(phi, W, 0.1 * np.eye(2), np.eye(3) * 1e-4, *names, **rows)
    cost = np.array([0.0, 1.0, 4.0])
    V = np.zeros(3)
    for _ in range(30):
        Q = np.array([-cost + keep @ V, -cost - 3.0 + keep[0] @ V])
        V, best = Q.max(axis=0), Q.argmax(axis=0)
    policy = ivvi.plan(model, wear_cost, Actions.binary(1), horizon=30)
    levels = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    np.testing.assert_array_equal(policy(levels)[:, 0], best)
    exact = V[level[:64]].mean()
    bound = policy.comparison.bound
    assert bound.value == pytest.approx(exact, abs=4 * bound.error)
    assert policy.rule.value(levels) == pytest.approx(V, abs=1e-8)


def with_replacement(x, a):
    """1 and the indicators of a machine that was not replaced."""
    xp = x.__array_namespace__()
    return xp.concatenate([xp.ones_like(a), x * (1 - a)], axis=-1)


def wear_cost(x, a):
    return -x[:, 0] - 4.0 * x[:, 1] - 3.0 * a[:, 0]


@pytest.mark.thorough
def test_a_large_list_is_chosen_from_one_step_ahead_of_a_value():
    """200 items with four effects each: nothing that is listed is better one step ahead."""
    rng = np.random.default_rng(3)
    W = np.hstack([np.zeros((4, 1)), 0.8 * np.eye(4), np.eye(4)])
    states = rng.normal(size=(200, 4)) * 2
    items = rng.normal(size=(200, 4))
    model = model_of(W, 0.1 * np.eye(4), states, items, d_a=4)
    reward = "quadratic:weight=1,action_weight=0.1"
    policy = ivvi.plan(model, reward, items, horizon=10)
    compared = policy.comparison
    assert compared.plan.value > compared.rival.value
    problem = Problem.of(model, reward, items, horizon=2)
    two = ivvi.plan(model, reward, items, horizon=2)
    after = 0.8 * states[:20, None] + items
    scores = -0.1 * np.sum(items**2, axis=1) - np.sum(after**2, axis=2)
    np.testing.assert_array_equal(two(states[:20]), items[scores.argmax(axis=1)])
    assert problem.actions.count == 200


def test_twenty_binary_actions_are_searched(linear_model):
    model = linear_model(3, 20, seed=2)
    settings = {"horizon": 2, "method": "mpc", "compare": False}
    policy = ivvi.plan(model, "quadratic:weight=1", Actions.binary(20), **settings)
    done = policy(model.states)
    after = lambda a: -np.sum(np.asarray(model.mean(model.states, a)) ** 2, axis=1)  # noqa: E731
    own = after(done)
    for i, j in itertools.combinations(range(20), 2):
        for flipped in ((i,), (i, j)):
            other = done.copy()
            other[:, flipped] = 1 - other[:, flipped]
            assert (after(other) <= own + 1e-9).all()


@pytest.mark.thorough
@pytest.mark.parametrize("actions", [(-0.5, 0.5), Actions.binary(2)])
def test_no_plan_beats_the_bound(linear_model, actions):
    """The relaxation, against the plan it is told of and against a worse one, in the same noise."""
    model = linear_model(2, 2, seed=5)
    problem = Problem.of(model, "quadratic:weight=1,action_weight=0.2", actions, horizon=8)
    trials = Trials.of(problem, 0)
    bound = Auto().compare(problem)[1].bound
    assert bound.gap >= -1e-9
    assert bound.gap_error >= 0
    worse = upper_bound(trials, ivvi.MPC(lookahead=1).solve(problem), None)
    assert worse.value == pytest.approx(bound.value, abs=4 * bound.error)
    free = RiccatiStep.of(problem, riccati_values(problem, bounded=False)[-1]).value
    assert bound.value <= free(trials.starts).mean() + 1e-9  # more actions, more to gain


@pytest.mark.parametrize("way", ["residuals", "foresight"])
@pytest.mark.parametrize(
    ("actions", "levels"),
    [
        (Actions.binary(1), (0, 1)),
        pytest.param((-0.5, 1.5), np.linspace(-0.5, 1.5, 17), marks=pytest.mark.thorough),
    ],
)
def test_the_best_policy_does_not_beat_the_bound(treated, actions, levels, way):
    """Against exact dynamic programming from the same states, and not far above it."""
    reward = "quadratic:weight=0.05,action_weight=2"
    problem = Problem.of(treated, reward, actions, horizon=6)
    trials = Trials.of(problem, 0)
    grid = ivvi.ValueIteration(value="grid").solve(problem)
    if way == "residuals":
        bound, starts, luck = residual_bound(trials, grid, grid), trials.starts, 0.0
    else:
        bound, starts = relaxed_bound(trials, grid), trials.starts[:MOST_PATHS]
        luck = 4 * bound.error  # of the noise that is foreseen
    x, V, _ = exact_rule(6, 2.0, actions=levels)
    exact, nothing = np.interp(starts[:, 0], x, V), trials.returns(HeldRule(np.zeros(1)))
    assert bound.value >= exact.mean() - luck - 0.01  # and what the exact grid is off by
    assert bound.value <= exact.mean() + luck + 0.15 * (exact.mean() - nothing.mean())
    assert bound.gap >= -1e-9


@pytest.mark.parametrize("horizon", [1, 15])
def test_a_bound_knows_of_states_beyond_the_grid(treated, horizon):
    """A reward that rises for ever, and states that grow: the best is known in closed form."""
    model = replace(treated, W=np.array([[0.0, 1.08, 0.5]]))
    problem = Problem.of(model, "linear:state=1,action=-0.5", Actions.binary(1), horizon=horizon)
    trials, slope, constant = Trials.of(problem, 0), 0.0, 0.0
    for _ in range(horizon):  # V = slope x + constant
        constant += max(0.5 * slope - 0.5, 0.0)
        slope = 1.0 + 1.08 * slope
    exact = slope * trials.starts.mean() + constant
    grid = ivvi.ValueIteration(value="grid").solve(problem)
    assert residual_bound(trials, grid, grid).value >= exact - 1e-6 * abs(exact)
    compared = Auto().compare(problem)[1]
    assert compared.share is None or horizon == 1


def test_a_plan_that_loses_to_a_simple_rival_says_so():
    """One step ahead, treatment costs; later it pays, which a short plan does not see."""
    rng = np.random.default_rng(0)
    states = np.abs(rng.normal(size=(200, 3)))
    W = np.zeros((3, 5))
    W[0, 2], W[1, 3], W[2, 4] = 1.0, 1.0, 1.0  # x2 <- a, x1 <- x2, x0 <- x1
    model = model_of(W, 1e-4 * np.eye(3), states, rng.integers(0, 2, (200, 1)).astype(float))
    with pytest.warns(PlanningWarning, match="loses to a simple rival"):
        ivvi.plan(model, first_pays, Actions.binary(1), horizon=8, method=ivvi.MPC(lookahead=1))
    policy = ivvi.plan(model, first_pays, Actions.binary(1), horizon=8)
    assert policy(states[:5])[:, 0].tolist() == [1.0] * 5


def first_pays(x, a):
    return jnp.minimum(x[:, 0], 1.0) - 0.2 * a[:, 0]


def test_a_rival_that_nothing_beats_is_told():
    rng = np.random.default_rng(0)
    earned = rng.normal(size=50)
    returns = {"nothing": earned, "mpc, 3 steps": earned - 1 + 0.1 * rng.normal(size=50)}
    kept = Comparison.of(returns, ["nothing"], {}, "nothing", 10)
    assert "that is the policy" in kept.doubts[0]
    forced = Comparison.of(returns, ["nothing"], {}, "mpc, 3 steps", 10)
    assert "loses to a simple rival" in forced.doubts[0]
    alike = {"nothing": earned, "mpc, 3 steps": earned + 0.1 * rng.normal(size=50)}
    assert Comparison.of(alike, ["nothing"], {}, "mpc, 3 steps", 10).doubts == ()


def test_rounding_is_printed_as_no_error():
    rng = np.random.default_rng(0)
    rounding = 1e-15 * rng.normal(size=(3, 50))
    returns = {"held 1": 2.01 + rounding[0], "nothing": 2.01 + rounding[1]}
    for compared in (
        Comparison.of(returns, list(returns), {}, "held 1", 10),
        Comparison.of(returns | {"mpc": 4.5 + rounding[2]}, ["nothing"], {}, "held 1", 10),
    ):
        assert "2.01 +- 0" in compared.headline
        assert "e-" not in compared.summary()
    assert "4.5 +- 0" in compared.summary()
    assert "behind by 2.49 +- 0" in compared.summary()
    small = {name: 1e-15 * rng.normal(size=50) for name in returns}
    assert all(entry.error > 0 for entry in Comparison.of(small, (), {}, "nothing", 10).entries)


@pytest.mark.parametrize("budget", [0.0, -1.0, np.inf, np.nan])
def test_impossible_budgets_are_refused(budget):
    with pytest.raises(InputError, match="the budget is"):
        Auto(budget)


@pytest.mark.parametrize(
    ("actions", "sentence"),
    [
        (np.zeros((0, 1)), "the set of actions is empty"),
        ([[0.0], [1.0], [0.0]], "holds 1 rows twice"),
        ((1.0, -1.0), "the first below the second"),
        ([[np.nan]], "not finite"),
    ],
)
def test_impossible_actions_are_refused(treated, actions, sentence):
    with pytest.raises(InputError, match=sentence):
        ivvi.plan(treated, "quadratic:weight=1", actions)


@pytest.mark.parametrize(
    ("finer", "mpc", "resolved"), [(10.01, 9.0, True), (10.5, 9.0, False), (10.01, 11.0, False)]
)
def test_a_grid_is_resolved_where_a_finer_one_changes_nothing_and_leads(finer, mpc, resolved):
    noise = np.random.default_rng(0).normal(size=96)
    earned = {COARSE: 10.0, FINER: finer, "mpc, 2 steps": mpc, "nothing": 5.0}
    returns = {name: mean + 0.01 * noise for name, mean in earned.items()}
    rules = dict.fromkeys(earned, object())
    contest = PlannerComparison(None, None, rules=rules, returns=returns, simple=["nothing"])
    assert is_resolved(contest) is resolved
    assert not is_resolved(PlannerComparison(None, None, rules=rules, returns={"nothing": noise}))
