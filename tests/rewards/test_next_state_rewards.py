"""Rewards of the next state: a learned one that misses them is told, others are left alone."""

import warnings

import numpy as np
import pytest

import ivvi
from ivvi.errors import IvviWarning, PlanningWarning
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


@pytest.mark.filterwarnings("ignore:linear features are too simple")
def test_a_threshold_of_the_next_state_is_told_first_by_plan_and_value():
    fit = fit_with(beyond)
    assert "write it as a function of (x, a, x')" in reward_doubts(fit.model)[0]
    with pytest.warns(PlanningWarning, match="'pay' is a function of the next state"):
        policy = ivvi.plan(fit, "learned", (0, 3), horizon=2, method="mpc", compare=False)
    assert "Do not act on it yet. The reward 'pay' is" in " ".join(policy.brief.text.split())
    with pytest.warns(PlanningWarning, match="'pay' is a function of the next state"):
        worth = ivvi.value(policy, fit, against=("zero",), draws=20)
    assert "'pay' is a function of the next state" in worth.warnings[0]


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
