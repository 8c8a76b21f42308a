"""What simple rules earn in the model: the rollouts by which a fallback is chosen."""

from dataclasses import replace

import numpy as np
import pytest

from ivvi.dynamics.range_clamping import FAR
from ivvi.planning import Problem
from ivvi.planning.simple_rules import STEPS, HeldRule, lower_bounds

REWARD = "quadratic:weight=0.05"


def exploding(linear_model, growth):
    """Return x' = growth x + a without noise, from x = 1."""
    model = linear_model(1, 1)
    W = np.array([[0.0, growth, 1.0]])
    return replace(model, W=W, noise_cov=np.zeros((1, 1)), states=np.ones((5, 1)))


def bounds(problem, actions):
    one = HeldRule(actions[0])
    drawn = np.repeat(problem.model.W[None], 3, axis=0)
    return lower_bounds(problem, drawn, 0.9, lambda a, x, h: one.decide(a, x, h, ())[0], actions)


@pytest.mark.filterwarnings("ignore:the model's states explode")
def test_a_rule_under_which_states_explode_is_bad_and_not_undefined(linear_model):
    """Squares of states that nothing holds would be infinite after 18 steps."""
    problem = Problem.of(exploding(linear_model, 1e9), REWARD, (-1, 1), horizon=STEPS)
    value = bounds(problem, np.array([[0.0]]))
    assert np.isfinite(value).all()
    assert -STEPS * FAR**2 < value[0] < -(FAR**2) / 2


@pytest.mark.filterwarnings("ignore:the model's states explode")
def test_episodes_that_have_ended_stand_still(linear_model):
    """The first step ends the episode; what the states would be later changes nothing."""
    over = lambda x: (abs(x[:, 0]) > 2).astype(float)  # noqa: E731
    settings = {"horizon": STEPS, "terminal": over}
    problem = Problem.of(exploding(linear_model, 1e9), "quadratic:weight=0", (-1, 1), **settings)
    once = replace(problem, horizon=1)
    one, all_steps = (bounds(p, np.array([[0.0], [1.0]])) for p in (once, problem))
    assert np.isfinite(one).all()
    np.testing.assert_allclose(all_steps, one)


def test_a_held_rule_earns_what_a_simulation_by_hand_says(linear_model):
    model = exploding(linear_model, 0.5)
    problem = Problem.of(model, lambda x, a, x_next: x[:, 0], (-1, 1), horizon=6, discount=0.9)
    x, by_hand = 1.0, 0.0
    for h in range(6):
        by_hand += 0.9**h * x
        x = 0.5 * x + 1.0
    assert bounds(problem, np.array([[1.0]]))[0] == pytest.approx(by_hand, rel=1e-12)
