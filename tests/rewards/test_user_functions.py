"""Rewards that ask for context and instrument, and rewards that an end pays."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import ivvi
from ivvi import Dynamics, InputError, linear
from ivvi.rewards import Function, make_reward
from ivvi.rewards.user_functions import NODES, typical_rows


def shop(weeks: int = 12, stores: int = 60) -> ivvi.Log:
    """Return a log of prices that costs move, with a season in words."""
    rng = np.random.default_rng(3)
    n = weeks * stores
    cost, busy, sales = 5 + rng.normal(size=n), rng.normal(size=n), 20 + rng.normal(size=n)
    table = {
        "store": np.repeat(np.arange(stores), weeks),
        "week": np.tile(np.arange(weeks), stores),
        "sales": sales,
        "season": rng.choice(["summer", "winter"], n),
        "price": 1.4 * cost + busy,
        "cost": cost,
    }
    names = {"episode": "store", "step": "week"}
    return ivvi.read_logs(
        table, state="sales", context="season", action="price", instrument="cost", **names
    )


@pytest.fixture(scope="module")
def fit() -> ivvi.Fit:
    return ivvi.fit(shop(), "linear")


def profit(x, a, x_next, *, instrument):
    return (a[:, 0] - instrument["cost"]) * x_next[:, 0]


def heated(x, a, context):
    return -a[:, 0] * context["season[winter]"]


def squared(x, a, instrument):
    return instrument["cost"] ** 2 + 0.0 * a[:, 0]


ROWS = np.array([[20.0, 0.0], [25.0, 1.0]]), np.array([[6.0], [7.0]]), np.array([[20.0, 0], [9, 1]])


def test_a_profit_knows_the_mean_cost_of_the_log(fit: ivvi.Fit) -> None:
    reward = make_reward(profit, fit.model)
    mean = fit.model.instruments.mean()
    assert np.allclose(reward(*ROWS, 0), (ROWS[1][:, 0] - mean) * ROWS[2][:, 0])
    assert len(reward.nodes) == 1  # it is affine in the cost, so the mean is enough


def test_a_given_instrument_takes_the_place_of_the_log_s(fit: ivvi.Fit) -> None:
    reward = make_reward(profit, fit.model, {"cost": "4"})
    assert np.allclose(reward(*ROWS, 0), [40.0, 27.0])


def test_what_is_not_affine_is_averaged_over_the_log_s_instruments(fit: ivvi.Fit) -> None:
    reward = make_reward(squared, fit.model)
    exact = float((fit.model.instruments**2).mean())
    assert len(reward.nodes) == NODES
    assert np.allclose(reward(*ROWS, 0), exact, rtol=2e-3)
    batch = [np.broadcast_to(part, (3, *part.shape)) for part in ROWS]
    assert reward(*batch, 0).shape == (3, 2)


def test_context_is_given_by_name(fit: ivvi.Fit) -> None:
    assert make_reward(heated, fit.model)(*ROWS, 0).tolist() == [0.0, -7.0]


def test_typical_rows_keep_the_mean_of_all() -> None:
    rows = np.random.default_rng(0).normal(size=(500, 2))
    for part in (rows, rows[:, :1], np.sign(rows)):
        nodes, shares = typical_rows(part)
        assert len(nodes) <= NODES
        assert np.allclose(shares @ nodes, part.mean(axis=0))


@pytest.mark.usefixtures("few_episodes")
def test_plans_and_values_are_those_of_the_mean_cost(fit: ivvi.Fit) -> None:
    mean = float(fit.model.instruments.mean())

    def written_out(x, a, x_next):
        return (a[:, 0] - mean) * x_next[:, 0]

    settings = {"actions": (4, 14), "horizon": 2, "method": "mpc", "compare": False}
    asked, known = (ivvi.plan(fit, r, **settings) for r in (profit, written_out))
    states = fit.model.states[:20]
    assert np.allclose(asked(states), known(states), atol=1e-6)
    values = [ivvi.value(p, fit, against=(), draws=20) for p in (asked, known)]
    assert np.isclose(*(v.values["policy"].estimate for v in values), rtol=1e-6)
    envs = (fit.model.as_env(r, (4, 14), horizon=2) for r in (profit, written_out))
    earned = [env.rollout(lambda x: 9.0 + 0 * x[:, :1], episodes=50).returns.mean() for env in envs]
    assert np.isclose(*earned)


@pytest.mark.usefixtures("few_episodes")
def test_what_the_log_shows_uses_the_costs_of_its_rows(fit: ivvi.Fit) -> None:
    log = shop(weeks=3)
    policy = ivvi.plan(fit, profit, (4, 14), horizon=2, method="mpc", compare=False)
    shown = ivvi.value(policy, fit, against=(), draws=20, log=log).shown
    total = 0.0
    for batch in log.batches():
        total += float(((batch.a[:, 0] - batch.z[:, 0]) * batch.y[:, 0]).sum())
    assert np.isclose(shown, total / 60)


def test_a_saved_policy_asks_for_the_same(fit: ivvi.Fit, tmp_path: Path) -> None:
    settings = {"horizon": 1, "method": "mpc", "compare": False}
    policy = ivvi.plan(fit, profit, (4, 14), instrument={"cost": 8.0}, **settings)
    policy.save(tmp_path / "policy")
    again = ivvi.load_policy(tmp_path / "policy", trust=(profit.__module__,))
    assert again.problem.reward == policy.problem.reward
    assert again(fit.model.states[:5]).tolist() == policy(fit.model.states[:5]).tolist()


def test_what_cannot_be_known_is_refused(fit: ivvi.Fit) -> None:
    empty = dataclasses.replace(fit.model, instruments=np.empty((0, 0)))
    for model, reward, instrument, words in (
        (empty, profit, None, "no rows of the log to draw it from"),
        (fit.model, profit, {"cots": 1}, "no value for 'cost'"),
        (fit.model, profit, {"cost": 1, "tax": 2}, "'tax' is not an instrument"),
        (fit.model, heated, {"cost": 1}, "no parameter 'instrument'"),
        (fit.model, "quadratic", {"cost": 1}, "only a reward that is a function"),
    ):
        with pytest.raises(InputError, match=words):
            make_reward(reward, model, instrument)
    plain = ivvi.fit(ivvi.make_env("linear", dim=1).collect(episodes=20, horizon=20, seed=0)).model
    with pytest.raises(InputError, match="uses the context, but the model has none"):
        make_reward(heated, plain)


def test_a_column_that_is_not_there_is_named(fit: ivvi.Fit) -> None:
    def misspelt(x, a, instrument):
        return instrument["cots"]

    with pytest.raises(InputError, match=r"instrument\['cots'\]; did you mean 'cost'"):
        ivvi.plan(fit, misspelt, (4, 14), horizon=1, method="mpc")


# rewards at the end


def dying(treated_helps: float) -> Dynamics:
    """x' = x / 2, and the episode ends with chance 0.3 - treated_helps a."""
    W = np.array([[0.0, 0.5, 0.0], [0.3, 0.0, -treated_helps]])
    names = ("x",), ("a",), ("next_x", "died")
    states = np.linspace(-1, 1, 11)[:, None]
    return Dynamics(
        linear(), W, np.diag([0.0, 0.2]), np.zeros((3, 3)), *names, states=states, ends=("died",),
        starts=states[:3], acted=np.arange(11.0)[:, None] % 2, followed=np.zeros((11, 2)),
    )  # fmt: skip


def nothing(x, a):
    return 0.0 * a[:, 0]


@pytest.mark.parametrize(
    "method", ["auto", pytest.param("mpc", marks=pytest.mark.thorough), "value-iteration"]
)
def test_an_end_that_pays_is_planned_for(method: str) -> None:
    model, survives = dying(0.2), 0.9**4
    for amount, best, end in ((-1.0, 1.0, survives), (2.0, 0.0, 0.7**4)):
        policy = ivvi.plan(
            model,
            nothing,
            [[0.0], [1.0]],
            horizon=4,
            method=method,
            reward_at_end=amount,
            compare=False,
        )
        assert policy([0.5]).tolist() == [best]
        earned = ivvi.planning.comparison.Trials.of(policy.problem, 0).returns(policy.rule)
        assert np.allclose(earned, amount * (1 - end))


def test_values_and_environments_pay_at_the_end(tmp_path: Path) -> None:
    settings = {"method": "value-iteration", "compare": False, "reward_at_end": -1}
    policy = ivvi.plan(dying(0.2), nothing, [[0.0], [1.0]], horizon=4, **settings)
    env = dying(0.2).as_env(nothing, [[0.0], [1.0]], horizon=4, reward_at_end=-1)
    earned = env.rollout(policy, episodes=4000, seed=1).returns
    assert set(np.unique(earned)) == {-1.0, 0.0}
    deaths = 1 - 0.9**4
    assert abs(earned.mean() + deaths) < 4 * np.sqrt(deaths * (1 - deaths) / 4000)
    worth = ivvi.value(policy, dying(0.2), against=("zero",), draws=20)
    assert np.isclose(worth.values["policy"].estimate, -deaths)
    assert np.isclose(worth.values["zero"].estimate, -(1 - 0.7**4))
    other = ivvi.value(policy, dying(0.2), against=("zero",), draws=20, reward_at_end=3.0)
    assert np.isclose(other.values["policy"].estimate, 3 * deaths)


def test_a_state_that_ends_pays_too() -> None:
    model = ivvi.fit(ivvi.make_env("linear", dim=1).collect(episodes=20, horizon=30, seed=0)).model

    def over(x):
        return x[:, 0] > 1e6

    def far(x):
        return x[:, 0] > -1e6

    env = model.as_env(nothing, (-1, 1), horizon=5, terminal=far, reward_at_end=-2)
    assert env.rollout(lambda x: 0 * x, episodes=8).returns.tolist() == [-2.0] * 8
    env = model.as_env(nothing, (-1, 1), horizon=5, terminal=over, reward_at_end=-2)
    assert env.rollout(lambda x: 0 * x, episodes=8).returns.tolist() == [0.0] * 8


def test_a_reward_at_the_end_needs_an_end() -> None:
    model = ivvi.fit(ivvi.make_env("linear", dim=1).collect(episodes=20, horizon=30, seed=0)).model
    with pytest.raises(InputError, match="no episode in the model ends"):
        ivvi.plan(model, nothing, (-1, 1), reward_at_end=-1)
    with pytest.raises(InputError, match="expected a finite number"):
        ivvi.plan(dying(0.1), nothing, (-1, 1), reward_at_end=float("nan"))


def test_functions_count_what_they_are_given() -> None:
    assert Function.of(profit).arguments == 3
    assert Function.of(profit).asks == ("instrument",)
    with pytest.raises(InputError, match="takes 1 arguments"):
        Function.of(lambda x, *, context: jnp.zeros(len(x)))


@pytest.mark.parametrize(
    ("reward", "said"),
    [
        (lambda a, x: -(x**2).sum(-1), "argument 1 'a', but it is given states"),
        (lambda x, a, t: -(x**2).sum(-1), "argument 3 't', but it is given next states"),
    ],
)
def test_names_that_contradict_the_places_of_arguments_are_refused(reward, said):
    with pytest.raises(InputError, match=said):
        Function.of(reward)
