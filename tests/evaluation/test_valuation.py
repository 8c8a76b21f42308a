"""Intervals of a value: what they hold, and whether the draws are enough for them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

import ivvi
from ivvi.errors import IvviWarning
from ivvi.evaluation import IntervalEstimate

REWARD = "quadratic:weight=0.05"
pytestmark = pytest.mark.filterwarnings("ignore:.* draws are few:ivvi.errors.IvviWarning")


def test_an_interval_of_few_draws_holds_a_further_draw_as_often_as_it_says():
    """Over 4,000 repetitions of 99 draws, five standard errors (0.0017).

    A line between two draws in a tail costs at most 0.002; quantiles of the usual kind leave
    0.059 outside.
    """
    rng = np.random.default_rng(2)
    for kind in ("split", "percentile"):
        outside = []
        for _ in range(4000):
            low, high = IntervalEstimate(0.0, rng.normal(size=99)).interval_of(kind)
            outside.append(norm.cdf(low) + norm.sf(high))
        assert np.mean(outside) == pytest.approx(0.049, abs=0.001 + 0.0017)


def test_the_length_of_an_interval_is_the_logs_where_episodes_end(fit):
    """Deaths are few: seeds of the simulation change the length by a third at most."""
    asked = {"reward": lambda x, a: 1.0 + 0.0 * x[:, 0], "terminal": lambda x: x[:, 0] > 2.5}
    lengths = []
    for seed in range(3):
        worth = ivvi.value(
            [-0.2, 0.0], fit, **asked, horizon=10, against=(), draws=100, seed=seed,
            method="asymptotic", starts=[[0.5, 0.0]],
        ).value  # fmt: skip
        lengths.append(worth.interval[1] - worth.interval[0])
    assert 0.3 < max(lengths) < 4 / 3 * min(lengths)  # of 16 episodes it was 2.3 times


def test_intervals_of_four_kinds_have_the_ends_of_their_formulas():
    draws = np.linspace(-1, 3, 401)
    amount = IntervalEstimate(0.0, draws, 0.9)
    assert amount.interval_of("percentile") == pytest.approx((-0.8, 2.8), abs=0.01)
    assert amount.interval_of("basic") == pytest.approx((-2.8, 0.8), abs=0.01)
    low, high = amount.interval_of("bias-corrected")
    assert low < -0.8
    assert high < 2.8
    assert amount.interval == pytest.approx((-0.9, 2.7), abs=0.02)  # a tenth of either side
    middle = IntervalEstimate(1.0, draws, 0.9)
    assert middle.interval == pytest.approx(middle.interval_of("percentile"), abs=0.01)
    assert amount.probability == pytest.approx(300 / 401)
    assert amount.se == pytest.approx(4 * 0.6826 / 2, rel=1e-3)


@given(
    seed=st.integers(0, 10**6),
    off=st.floats(-6, 6),
    bend=st.floats(-2, 2),
    level=st.floats(0.5, 0.99),
)
def test_an_estimate_is_inside_its_interval_with_so_many_draws(seed, off, bend, level):
    """However the value bends: all draws may lie on one side of the estimate."""
    drawn = np.random.default_rng(seed).normal(size=400)
    amount = IntervalEstimate(off, drawn + bend * drawn**2, level)
    low, high = amount.interval
    assert low <= amount.estimate <= high
    inside = np.mean((amount.draws >= low) & (amount.draws <= high))
    assert inside == pytest.approx(level, abs=3 / 400)


def test_the_simulation_error_of_an_end_is_its_spread():
    """Over 300 sets of draws; four errors of a standard deviation, and a tenth for Woodruff's."""
    rng = np.random.default_rng(0)
    amounts = [IntervalEstimate(0.5, np.exp(rng.normal(size=400))) for _ in range(300)]
    spread = np.std([a.interval for a in amounts], axis=0)
    said = np.mean([a.interval_error for a in amounts], axis=0)
    np.testing.assert_allclose(said / spread, 1.0, atol=0.1 + 4 / np.sqrt(2 * 300))
    assert not IntervalEstimate(0.5, amounts[0].draws[:60]).is_settled
    assert IntervalEstimate(0.0, np.zeros(60)).is_settled


def test_a_verdict_that_other_draws_could_turn_says_so():
    draws = np.random.default_rng(0).normal(1.96, 1.0, 400)
    assert IntervalEstimate(2.0, draws).may_turn  # the lower end is at zero
    assert not IntervalEstimate(3.0, 1 + draws).may_turn
    assert not IntervalEstimate(0.0, draws - 2).may_turn  # zero is well inside
    assert IntervalEstimate(3.0, 1 + draws[:30]).may_turn  # 30 draws say little of an end
    assert not IntervalEstimate(9.0, 7 + draws[:30]).may_turn


@pytest.mark.usefixtures("few_episodes")
def test_few_draws_are_told_beside_the_verdict(fit):
    settings = {"reward": REWARD, "horizon": 10, "against": ("zero",)}
    worth = ivvi.value("behaviour", fit, **settings, draws=25)
    turning = IntervalEstimate(1.0, np.linspace(-0.02, 2.0, 25))
    near = replace(worth, gains={"zero": turning})
    assert (
        "But with only 25 draws this verdict could be due to chance" in near.brief.to_json()["next"]
    )
    far = replace(worth, gains={"zero": IntervalEstimate(9.0, np.linspace(8.0, 10.0, 25))})
    assert "due to chance" not in far.brief.text


@pytest.mark.thorough
def test_worlds_are_drawn_until_the_ends_are_known(fit, monkeypatch):
    settings = {"reward": REWARD, "horizon": 10, "against": ("zero",)}
    worth = ivvi.value("behaviour", fit, **settings)
    for amount in (*worth.values.values(), *worth.gains.values()):
        low, high = amount.interval
        assert max(amount.interval_error) <= 0.05 * (high - low)
        assert len(amount.draws) >= 500
    assert worth.to_json()["values"]["zero"]["interval_error"] == [
        *worth.values["zero"].interval_error
    ]
    monkeypatch.setattr("ivvi.evaluation.value_policy.FIRST_DRAWS", 25)
    grown = ivvi.value("behaviour", fit, **settings)
    assert 25 < len(grown.value.draws) < 8000
    assert not any("draws are few" in note for note in grown.notes)
    with pytest.warns(IvviWarning, match="25 draws are few for the interval of the value of"):
        few = ivvi.value("behaviour", fit, **settings, draws=25)
    assert "draws are few" in few.summary()
    np.testing.assert_allclose(grown.value.draws[:25], few.value.draws)


def test_states_to_start_from_are_read_by_name_where_they_have_names(fit):
    """And by place where they have none; as_env and stability read them alike."""
    columns = {"x1": [3.0], "x0": [6.0]}
    asked = {"reward": REWARD, "horizon": 3, "against": (), "draws": 20}
    worths = [ivvi.value([0.0, 0.0], fit, **asked, starts=s).value for s in (columns, [[6.0, 3.0]])]
    assert worths[0].estimate == worths[1].estimate
    policy = ivvi.plan(fit, REWARD, (-1, 1), horizon=3, method="mpc", compare=False)
    named = ivvi.stability(policy, fit, columns, draws=3)
    assert named.states.tolist() == [[6.0, 3.0]]
    env = fit.model.as_env(REWARD, (-1, 1), starts=columns, horizon=3)
    assert env.reset(seed=1)[0].tolist() == [6.0, 3.0]


def test_the_estimated_world_begins_where_episodes_begin(fit):
    env = fit.model.as_env(REWARD, (-1, 1), horizon=3)
    firsts = {tuple(x) for x in fit.model.starts.tolist()}
    assert all(tuple(env.reset(seed=seed)[0].tolist()) in firsts for seed in range(20))


def test_a_policy_of_the_user_may_ask_for_the_step(fit):
    asked = {"reward": lambda x, a, x_next, h: a[:, 0] * 1.0, "horizon": 3, "draws": 20}
    worth = ivvi.value(lambda x, step: np.full((len(x), 2), step / 10), fit, **asked, against=())
    assert worth.value.estimate == pytest.approx(0.0 + 0.1 + 0.2)


def test_a_policy_that_fails_is_refused_in_one_sentence(fit):
    asked = {"reward": REWARD, "horizon": 3, "draws": 20, "against": ()}
    with pytest.raises(ivvi.InputError, match=r"the policy failed for .* states: .*rows of states"):
        ivvi.value(lambda x: [0, 0] if x[0] > 3 else [1, 1], fit, **asked)
