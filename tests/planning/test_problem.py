"""What may be done, rewards, and problems made of both."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ivvi
from helpers import user_reward
from ivvi import Actions, InputError, plan
from ivvi._io.trust import trusting
from ivvi.errors import FileError, PlanningWarning
from ivvi.planning import Problem
from ivvi.rewards import (
    Linear,
    Quadratic,
    RatingReward,
    make_reward,
    parse_reward,
    reward_from_json,
    reward_to_json,
)

# actions


def test_boxes_and_sets_of_actions_are_told_apart():
    assert Actions.box(-1, 1, dim=3).low.tolist() == [-1, -1, -1]
    assert Actions.box([0, 1], 2).high.tolist() == [2, 2]
    assert Actions.finite([1, 2, 3]).choices.tolist() == [[1], [2], [3]]
    assert Actions.binary(3).choices.shape == (8, 3)
    assert Actions.binary(2).is_finite
    assert not Actions.box(0, 1).is_finite


def test_a_product_keeps_coordinates_in_their_places():
    mixed = Actions.product(Actions.finite([[5.0], [6.0]]), Actions.box(0, 1), Actions.binary(1))
    assert (mixed.dim, mixed.continuous, mixed.discrete) == (3, (1,), (0, 2))
    assert len(mixed.choices) == 4
    assert mixed.join(np.array([0.5]), np.array([6.0, 1.0])).tolist() == [6.0, 0.5, 1.0]
    assert mixed.middle.tolist() == [5.0, 0.5, 0.0]
    drawn = mixed.sample(200, np.random.default_rng(0))
    assert set(drawn[:, 0]) == {5.0, 6.0}
    assert ((drawn[:, 1] > 0) & (drawn[:, 1] < 1)).all()
    again = Actions.from_json(mixed.to_json())
    assert again.to_json() == mixed.to_json()


def test_gymnasium_spaces_become_actions():
    from gymnasium import spaces

    assert Actions.of_space(spaces.Box(-2, 3, (2,))).high.tolist() == [3, 3]
    assert len(Actions.of_space(spaces.MultiBinary(3)).choices) == 8
    assert Actions.of_space(spaces.Discrete(3, start=4)).choices.ravel().tolist() == [4, 5, 6]
    with pytest.raises(InputError, match="expected a Box, MultiBinary or Discrete"):
        Actions.of_space(spaces.Text(3))


LIST = np.random.default_rng(0).normal(size=(300, 2))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Actions.box(1, -1), "the box of action 0 is [1, -1]"),
        (lambda: Actions.box([0, 2], [1, 2]), "the box of action 1 is [2, 2]"),
        (lambda: Actions.box(0, np.inf), "[0, inf]"),
        (lambda: Actions.box([0, 0], [1, 1, 1]), "one number each"),
        (lambda: Actions.box(np.zeros((2, 2)), 1), "one number each"),
        (lambda: Actions.finite([]), "the set of actions is empty"),
        (lambda: Actions.finite([[0.0], [np.nan]]), "not finite numbers"),
        (lambda: Actions.finite([[0.0], [1.0, 2.0]]), "expected rows of actions"),
        (lambda: Actions.finite([["left"], ["right"]]), "expected rows of actions"),
        (lambda: Actions.finite(np.zeros((2, 2, 2))), "expected rows of actions"),
        (lambda: Actions.binary(65), "a dimension from 1 to 64"),
        (lambda: Actions.product(Actions.finite(LIST), Actions.finite(LIST)), "more than 65536"),
    ],
)
def test_actions_that_cannot_be_used_are_refused(make, sentence):
    with pytest.raises(InputError) as caught:
        make()
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


# rewards


@pytest.mark.parametrize(
    ("word", "wanted"),
    [
        ("quadratic", Quadratic()),
        ("quadratic:weight=0.05,target=0", Quadratic((0.05,), (0.0,))),
        ("quadratic:target=1;2,action_weight=3", Quadratic((1.0,), (1.0, 2.0), (3.0,))),
        ("linear:state=1;2,action=-1,constant=4", Linear((1.0, 2.0), (-1.0,), 4.0)),
    ],
)
def test_reward_words_give_the_rewards_they_promise(word, wanted):
    assert parse_reward(word) == wanted


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("quadratic:weight=x1:2,target=x1:6", Quadratic((0.0, 2.0), (0.0, 6.0))),
        ("quadratic:weight=x1:2;x0:1,action_weight=a1:3", Quadratic((1, 2), (0,), (0, 3))),
        ("linear:state=x0:-1,action=0.5", Linear((-1.0, 0.0), (0.5,))),
    ],
)
def test_numbers_of_a_reward_may_be_given_by_column(linear_model, word, expected):
    assert make_reward(word, linear_model()) == expected


def test_levels_with_colons_are_columns_of_a_reward():
    assert parse_reward("linear:state=at[8:00]:1", ("at[8:00]", "x")) == Linear((1.0, 0.0))


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("revenue", "then the reward learned"),
        ("quadratik", "unknown reward 'quadratik'; did you mean 'quadratic'?"),
        ("quadratc:weight=1", "unknown reward 'quadratc:weight=1'; did you mean 'quadratic'"),
        ("nonsense", "quadratic:.., linear:.., learned or module:function"),
        ("quadratic:weigth=1", "no setting 'weigth'; did you mean 'weight'?"),
        ("quadratic:weight=a", "weight=a in the reward"),
        ("quadratic:weight", "is not a number"),
        ("quadratic:weight=1,weight=2", "weight is given twice in the reward"),
        ("quadratic:target=nan", "target=nan in the reward 'quadratic:target=nan' is not a finite"),
        ("linear:state=1;inf", "state=1;inf in the reward 'linear:state=1;inf' is not a finite"),
        ("linear:constant=1;2", "constant"),
        ("linear:constant=x0:2", "expected one number"),
        ("quadratic:weight=x7:1", "weight=x7:1 in the reward 'quadratic:weight=x7:1' names 'x7'"),
        ("linear:action=x0:1", "names 'x0'; choose from a0, a1"),
        ("quadratic:weight=x0:1;2", "expected a column before each number"),
        ("quadratic:weight=x0:1;x0:2", "and each column once"),
        ("quadratic:weight=x0:", "is not a number"),
        (
            "quadratic:weight=1;2;3",
            "weight of the reward quadratic has 3 numbers; expected one or 2",
        ),
        ("linear:action=1;2;3", "action of the reward linear has 3 numbers"),
        ("learned", "a model that was fitted with a reward column"),
        ("nowhere:reward", "the function 'nowhere:reward' cannot be imported"),
    ],
)
def test_reward_words_with_mistakes_are_refused(linear_model, word, sentence):
    with pytest.raises(InputError) as caught:
        make_reward(word, linear_model())
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_rewards_are_their_formulas():
    rng = np.random.default_rng(1)
    x, a = rng.normal(size=(5, 3)), rng.normal(size=(5, 2))
    quadratic = Quadratic((1.0, 2.0, 3.0), (0.5,), (0.1, 0.2))
    wanted = -((x - 0.5) ** 2) @ [1, 2, 3] - a**2 @ [0.1, 0.2]
    np.testing.assert_allclose(quadratic(x, a, x, 0), wanted)
    np.testing.assert_allclose(Linear((1.0,), (2.0,), 3.0)(x, a, x, 0), 3 + x.sum(1) + 2 * a.sum(1))
    ratings = RatingReward(((1.0, 0.0, 0.0), (0.0, 10.0, 0.0)))
    np.testing.assert_allclose(
        ratings(x, a, x, 0), np.clip(x[:, 0], 0, 5) + np.clip(10 * x[:, 1], 0, 5)
    )


def test_the_mean_of_clipped_ratings_is_exact():
    """Against quadrature on a fine grid of the normal."""
    ratings = RatingReward(((1.0, 0.5),), low=0.0, high=5.0)
    covariance = np.array([[1.0, 0.3], [0.3, 2.0]])
    mean = np.array([[0.2, 0.1], [4.0, 3.0], [-9.0, 0.0]])
    with jax.enable_x64(True):
        found = np.asarray(ratings.expected(jnp.asarray(mean), covariance))
    e = np.linspace(-10, 10, 200_001)
    density = np.exp(-(e**2) / 2) / np.sqrt(2 * np.pi) * (e[1] - e[0])
    spread = np.sqrt(np.array([1, 0.5]) @ covariance @ [1, 0.5])
    for i, m in enumerate(mean @ [1, 0.5]):
        assert found[i] == pytest.approx(np.clip(m + spread * e, 0, 5) @ density, abs=1e-8)


def test_rewards_survive_a_round_trip_by_json(linear_model):
    model = linear_model()
    for reward in (Quadratic((1.0, 2.0)), Linear((1.0,), (2.0,), 3.0), RatingReward(((1.0, 0.0),))):
        assert reward_from_json(reward_to_json(reward), model) == reward
    function = make_reward(user_reward, model)
    with trusting("a reward", "helpers"):
        assert reward_from_json(reward_to_json(function), model) == function
    with pytest.raises(FileError, match="the saved reward 'other' cannot be read"):
        reward_from_json({"kind": "other"}, model)
    with pytest.raises(InputError, match="cannot be saved"):
        reward_to_json(make_reward(lambda x, a: x[..., 0], model))


# problems


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"horizon": 0}, "the horizon is 0"),
        ({"horizon": 2.5}, "the horizon is 2.5"),
        ({"horizon": 10**8}, "the horizon is 100,000,000; at most 100,000"),
        ({"discount": 0.0}, "the discount is 0"),
        ({"discount": 1.5}, "the discount is 1.5"),
        ({"discount": float("nan")}, "the discount is nan"),
        ({"states": [[1.0, 2.0, 3.0]]}, "states of shape (1, 3)"),
        ({"states": [[1.0, np.nan]]}, "finite"),
        ({"actions": (1, -1)}, "the box of action 0 is [1, -1]"),
        ({"actions": [[1.0], [2.0]]}, "actions of width 1 were given; expected 2 (a0, a1)"),
        ({"actions": []}, "the set of actions is empty"),
        ({"reward": lambda x, a: x}, "the reward returned shape (3, 2) for 3 states"),
        ({"reward": lambda x, a: 1.0}, "the reward returned shape () for 3 states"),
        ({"reward": lambda x, a: x[..., 0] * jnp.nan}, "the reward is nan at x0="),
        ({"reward": lambda x, a: x @ jnp.ones(7)}, "the reward cannot be evaluated"),
        ({"reward": lambda x, a: "good"}, "the reward"),
        ({"reward": lambda x: x}, "takes 1 arguments"),
        ({"reward": 3}, "the reward is 3; expected a word or a function"),
        ({"terminal": lambda x: x > 3}, "terminal returned shape (3, 2) for 3 states"),
        ({"terminal": "far"}, "terminal is 'far'"),
        ({"method": "mcp"}, "unknown planner 'mcp'; did you mean 'mpc'?"),
    ],
)
def test_problems_that_make_no_sense_are_refused(linear_model, changes, sentence):
    asked = {"reward": "quadratic", "actions": (-1, 1)} | changes
    with pytest.raises(InputError) as caught:
        plan(linear_model(), asked.pop("reward"), asked.pop("actions"), **asked)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_models_that_should_not_be_trusted_are_named(linear_model):
    with pytest.warns(PlanningWarning, match=r"spectral radius 1\.1 over 100 steps"):
        plan(linear_model(radius=1.1), "quadratic", (-1, 1), method="mpc")
    with pytest.warns(PlanningWarning, match="spectral radius 1e"):
        plan(linear_model(radius=1e30), "quadratic", (-1, 1), method="mpc")
    plan(linear_model(radius=1.1), "quadratic", (-1, 1), horizon=10, method="mpc")
    with pytest.warns(PlanningWarning, match="explode"):  # it sees about 1 / (1 - discount) steps
        Problem.of(linear_model(radius=1.1), "quadratic", (-1, 1), discount=0.99)
    Problem.of(linear_model(radius=1.1), "quadratic", (-1, 1), discount=0.5)
    vague = linear_model(unidentified=("a0 - 0.5 a1", "x0"))
    with pytest.warns(PlanningWarning, match=r"effect of a0 - 0\.5 a1: the plan"):
        plan(vague, "quadratic", (-1, 1), method="mpc")
    named = replace(linear_model(unidentified=("2 net price^2", "x0")), action=("net price", "a1"))
    with pytest.warns(PlanningWarning, match=r"effect of 2 net price\^2: the plan"):
        plan(named, "quadratic", (-1, 1), method="mpc")


def test_a_model_without_states_asks_for_them(linear_model):
    model = linear_model()
    bare = ivvi.Dynamics(
        model.phi, model.W, model.noise_cov, model.bread, model.state, model.action, model.outputs
    )
    problem = Problem.of(bare, "quadratic", (-1, 1))
    with pytest.raises(InputError, match="pass the states where the plan should be good"):
        _ = problem.support


def test_one_weight_stands_for_the_states_that_are_predicted():
    rng = np.random.default_rng(0)
    n = 400
    push = rng.normal(size=n)
    table = {
        "episode": np.repeat(np.arange(40), 10),
        "step": np.tile(np.arange(10), 40),
        "severity": rng.normal(size=n),
        "age": np.repeat(rng.normal(size=40), 10),
        "dose": push + rng.normal(size=n),
        "push": push,
    }
    log = ivvi.read_logs(table, state="severity", context="age", action="dose", instrument="push")
    model = ivvi.estimate(log).model
    for word in ("quadratic:weight=2,target=3", "quadratic:weight=2;0,target=3;0"):
        reward = make_reward(word, model)
        earned = reward(np.array([[5.0, 60.0]]), np.zeros((1, 1)), None, 0)
        np.testing.assert_allclose(earned, -8.0)
    linear = make_reward("linear:state=2", model)
    np.testing.assert_allclose(linear(np.array([[5.0, 60.0]]), np.zeros((1, 1)), None, 0), 10.0)
