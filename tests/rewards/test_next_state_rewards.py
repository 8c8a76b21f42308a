"""Rewards of the next state: they are planned for as such, or told; others are left alone."""

import warnings
from dataclasses import replace

import numpy as np
import pytest

import ivvi
from ivvi.errors import IvviWarning, PlanningWarning
from ivvi.planning import Problem
from ivvi.rewards import Learned, SeenReward, make_reward
from ivvi.rewards.next_state_rewards import reward_doubts


def fit_with(reward, seed=0, rows=3000, phi=("linear",)):
    """Fit x' = 0.8 x - 0.6 a + 1 + noise with a reward of (x, a, x', noise)."""
    rng = np.random.default_rng(seed)
    x, z, h, e, u = rng.normal(size=(5, rows))
    x = 5 + 2 * x
    a = 1.5 + 0.7 * z + 0.6 * h
    y = 0.8 * x - 0.6 * a + 1 + 0.6 * h + 0.5 * e
    columns = {"x": x, "a": a, "z": z, "y": y, "pay": reward(x, a, y, u)}
    roles = {"state": "x", "action": "a", "instrument": "z", "next_state": "y", "reward": "pay"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IvviWarning)  # of linear features, which may be too simple
        return ivvi.estimate(ivvi.read_logs(columns, **roles), *phi)


def beyond(x, a, y, u):
    return -10.0 * (y > 5.5) - a


LEARNED = {
    "linear in the next state": lambda x, a, y, u: -2 * y - a,
    "noisy": lambda x, a, y, u: -y - 0.3 * a + u,
    "a little noisy and stepped": lambda x, a, y, u: -1.0 * (y > 5.5) - 0.3 * a + 0.3 * u,
    "of state and action": lambda x, a, y, u: -3.0 * (x > 6) - a,
}


def bought(x, a, y, u):
    return a * y - a


def test_a_threshold_and_a_product_of_the_next_state_are_found():
    rng = np.random.default_rng(1)
    x, a = 5 + 2 * rng.normal(size=(1000, 1)), rng.uniform(0, 3, (1000, 1))
    y = x - a + rng.normal(size=x.shape)
    for reward in (beyond, bought):
        learned = make_reward("learned", fit_with(reward).model)
        truth = reward(x[:, 0], a[:, 0], y[:, 0], 0)
        assert isinstance(learned, SeenReward)
        # the threshold lies between two rows of the log
        assert np.mean(np.abs(np.asarray(learned(x, a, y, 0)) - truth) > 0.05 * truth.std()) < 0.005


@pytest.mark.filterwarnings("ignore:linear features are too simple")
def test_a_learned_reward_of_the_next_state_is_planned_and_valued_as_if_it_were_written(tmp_path):
    from jax.scipy.stats import norm

    fit = fit_with(beyond)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PlanningWarning)
        policy = ivvi.plan(fit, "learned", [[0.0], [1.0], [2.0], [3.0]], horizon=1)
        worth = ivvi.value(policy, fit, against=("zero",), draws=50)
    assert "In the log the reward 'pay' is a function of the next state" in " ".join(
        policy.brief.text.split()
    )
    assert any(
        "In the log the reward 'pay' is a function of the next state" in note
        for note in worth.notes
    )
    states, doses = np.linspace(3, 9, 25)[:, None], np.arange(4.0)
    chance = norm.sf(5.5, 0.8 * states - 0.6 * doses + 1, np.sqrt(0.6**2 + 0.5**2))
    earned = np.asarray(-10 * chance - doses)
    chosen = np.asarray(policy(states))[:, 0].astype(int)
    assert np.max(earned.max(axis=1) - earned[np.arange(25), chosen]) < 0.1
    policy.save(tmp_path / "policy")
    again = ivvi.load_policy(tmp_path / "policy")
    assert again.problem.reward == policy.problem.reward
    assert np.array_equal(again(states), policy(states))


def test_a_reward_that_a_model_holds_is_not_looked_for_again():
    model = fit_with(beyond).model
    assert make_reward(Learned(model), model) == Learned(model)
    assert "write it as a function of (x, a, x')" in reward_doubts(model)[0]


def test_doubts_about_a_learned_reward_count_only_where_it_is_planned_for(tmp_path):
    def cost(x, a, y, u):
        return -2 * x**2 - a + 10 * u  # linear features are too simple, and no function shows

    fit = fit_with(cost)
    assert fit.reward_doubts == fit.doubts
    assert "pay does not change in proportion to x" in fit.doubts[0]
    model = ivvi.load_fit(fit.save(tmp_path / "model")).model
    assert model.reward_doubts == model.doubts == fit.doubts
    settings = {"actions": (0, 3), "horizon": 2, "method": "mpc", "compare": False}
    with warnings.catch_warnings():
        warnings.simplefilter("error", PlanningWarning)
        policy = ivvi.plan(model, "quadratic:weight=1,target=5", **settings)
    assert policy.problem.fit_doubts == ()
    with pytest.warns(PlanningWarning, match="pay does not change in proportion to x"):
        ivvi.plan(model, "learned", **settings)


def test_a_reward_that_hardly_any_row_earned_is_not_learned_without_a_word():
    model = fit_with(lambda x, a, y, u: 1.0 * (y > 8)).model
    earned = int((model.followed[:, -1] == 1).sum())
    (text,) = reward_doubts(model)
    assert f"the reward 'pay' is 0 in all but {earned} of {len(model.followed):,} rows" in text


def test_what_a_bent_reward_leaves_is_not_called_lasting():
    rng = np.random.default_rng(3)
    x, z, h, e = np.zeros((200, 16)), *rng.normal(size=(3, 200, 15))
    a = z + h
    for t in range(15):
        x[:, t + 1] = 0.8 * x[:, t] - 0.7 * a[:, t] + h[:, t] + 0.5 * e[:, t]
    columns = {"x": x[:, :-1], "a": a, "z": z, "r": np.abs(x[:, 1:])}
    columns = {name: part.ravel() for name, part in columns.items()}
    columns |= {"episode": np.repeat(np.arange(200), 15), "step": np.tile(np.arange(15), 200)}
    roles = {"state": "x", "action": "a", "instrument": "z", "reward": "r"}
    with pytest.warns(IvviWarning, match="linear features are too simple: r does not"):
        fit = ivvi.fit(ivvi.read_logs(columns, **roles))
    assert not any("lasts" in text for text in fit.doubts)


def test_doubts_about_the_dynamics_count_for_every_reward():
    fit = fit_with(lambda x, a, y, u: -y)
    assert fit.doubts == fit.reward_doubts == ()
    doubted = replace(fit.model, doubts=("the state bends",))
    for reward in ("learned", "quadratic:weight=1"):
        problem = Problem.of(doubted, reward, (0, 3), horizon=2)
        assert "the state bends" in problem.fit_doubts


@pytest.mark.parametrize("kind", LEARNED)
def test_rewards_that_can_be_learned_or_are_noisy_are_left_alone(kind):
    assert not any(reward_doubts(fit_with(LEARNED[kind], seed).model) for seed in range(5))


def test_squares_of_the_next_state_that_the_features_hold_are_left_alone():
    def square(x, a, y, u):
        return -((y - 3) ** 2) - a

    assert reward_doubts(fit_with(square).model)
    assert not reward_doubts(
        fit_with(square, phi=(ivvi.features.polynomial(2, cross=True),) * 2).model
    )


@pytest.mark.filterwarnings("ignore")
def test_beyond_the_log_a_reward_of_the_next_state_is_that_of_the_nearest_state_and_fades():
    """Where a model with splines moves on from its reach, goods in excess do not count as sold."""
    model = fit_with(lambda x, a, y, u: a * (x - y), phi=("spline:6",)).model
    reward = make_reward("learned", model)
    assert isinstance(reward, SeenReward)
    low, high = model.reach[:, 0]
    inside, outside = (np.array([[low], [high]]) + np.array([[-d], [d]]) for d in (0.0, 20.0))
    a, y = np.full((2, 1), 2.0), np.full((2, 1), 5.0)
    lost = np.asarray(reward(inside, a, y, 0)) - np.asarray(reward(outside, a, y, 0))
    assert lost == pytest.approx(20 * model.fade[0])
    assert model.fade[0] > 0
    everywhere = make_reward("learned", fit_with(lambda x, a, y, u: a * (x - y)).model)
    assert isinstance(everywhere, SeenReward)
    assert everywhere.fade == ()
