"""Policies of value iteration: saved and loaded, with progress, and what is refused."""

import numpy as np
import pytest

import ivvi
from ivvi import InputError, ValueIteration, load_policy, plan
from ivvi.errors import PlanningWarning
from value_problems import SIMULATED, next_reward, nonlinear_mean, walk_mean


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, marks=pytest.mark.thorough),
        {"value": "fitted", "points": 64},
        pytest.param({"points": 51, "stationary": True}, marks=pytest.mark.thorough),
    ],
)
def test_a_saved_policy_acts_alike(simulator_model, settings, tmp_path):
    policy = plan(
        simulator_model,
        next_reward,
        (-1, 1),
        horizon=6,
        discount=0.9,
        method=ValueIteration(nodes=16, **settings),
        compare=False,
    )
    again = load_policy(policy.save(tmp_path / "policy"), trust="value_problems")
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
        compare=False,
    )
    assert told == [1] * 4  # V_1 to V_4; V_5 is 0, and V_0 is computed where it is asked for
    reward = "quadratic:weight=1"
    plan(simulator_model, reward, (-1, 1), horizon=5, method="value-iteration", compare=False)
    assert told == [1] * 4  # a later plan tells nobody


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"value": "girds"}, "unknown value function 'girds'"),
        ({"points": 0}, "points is 0; expected at least 1"),
        ({"integration": "quazi"}, "unknown integration 'quazi'; did you mean 'quasi'?"),
        ({"nodes": 0}, "nodes is 0"),
        ({"tolerance": 0.0}, "tolerance is 0"),
    ],
)
def test_settings_of_value_iteration_out_of_range_are_refused(settings, sentence):
    with pytest.raises(InputError, match=sentence.replace("?", r"\?")):
        ValueIteration(**settings)


def refused(model, sentence, *, reward=SIMULATED, actions=(-1, 1), discount=1.0, **settings):
    with pytest.raises(InputError) as caught:
        plan(model, reward, actions, discount=discount, method=ValueIteration(**settings))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_problems_that_a_value_function_cannot_hold_are_refused(model_of, simulator_model):
    rng = np.random.default_rng(0)
    W = np.column_stack([np.zeros(3), 0.5 * np.eye(3), np.eye(3)])
    cube = model_of(ivvi.linear(), W, np.eye(3), rng.normal(size=(10, 3)), 3)
    W = np.column_stack([np.zeros(5), 0.5 * np.eye(5), np.eye(5)])
    wide = model_of(ivvi.linear(), W, np.eye(5), rng.normal(size=(10, 5)), 5)
    refused(wide, "a grid has at most 4: use value='fitted', or the planner mpc", value="grid")
    refused(cube, "at most 43 fit", value="grid", points=44)
    flat = ((0.0, 0.0, 0.0), (1.0, 0.0, 1.0))
    refused(cube, "a higher value for each of 3 states", value="grid", region=flat)
    refused(cube, "3 columns and Gaussian noise", value="tabular")
    refused(cube, "20 sampled states for", value="fitted", points=20)
    refused(simulator_model, "3 points on each axis", value="grid", points=3)
    refused(simulator_model, "at most 20000 fit", value="grid", points=30_000)
    refused(simulator_model, "the discount is 1", stationary=True)
    refused(
        simulator_model,
        "the reward uses the step",
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


@pytest.mark.slow
def test_fitted_values_of_three_copies_are_three_times_those_of_one(model_of):
    """Three copies of the simulator: three times the optimal return, within 0.5%."""
    rng = np.random.default_rng(0)
    phi = ivvi.custom(nonlinear_mean, ["m0", "m1", "m2"])
    model = model_of(phi, np.eye(3), np.eye(3), rng.normal(0.5, 1.3, size=(500, 3)), 3)
    policy = plan(model, SIMULATED, (-1, 1), horizon=500, method="value-iteration", compare=False)
    assert policy.rule.values.kind == "fitted"
    assert policy.rule.value(np.zeros((1, 3)))[0] == pytest.approx(3 * -27.9754, rel=0.005)
