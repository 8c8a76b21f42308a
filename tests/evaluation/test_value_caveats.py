"""What a value says beside its numbers: where it starts, what it takes, what it cannot tell."""

import numpy as np
import pandas as pd
import pytest

import ivvi
from ivvi import InputError
from ivvi.diagnostics import Verdict
from ivvi.errors import IdentificationError
from ivvi.evaluation import IntervalEstimate, Valuation
from ivvi.evaluation.observed_return import Gap

ROLES = {"state": "x", "action": "a", "instrument": "z", "episode": "ep", "step": "t"}
ASKED = {"reward": "quadratic:weight=x:1", "horizon": 3, "against": (), "draws": 20}


def table(binary=False, seed=0):
    """Return 60 episodes of 8 rows; x' = 0.7 x - a + noise."""
    rng = np.random.default_rng(seed)
    x, frames = 3 + rng.normal(size=60), []
    for t in range(8):
        z, h, e = rng.normal(size=(3, 60))
        a = 1.0 * (z + 0.5 * h > 0) if binary else z + 0.5 * h
        frames.append(pd.DataFrame({"ep": range(60), "t": t, "x": x, "a": a, "z": z}))
        x = 0.7 * x - a + 0.3 * h + e
    return pd.concat(frames)


@pytest.mark.filterwarnings("ignore")
def test_values_of_a_log_with_lags_say_where_they_start_and_how_to_start_earlier():
    late, first = (
        ivvi.value(
            "zero",
            ivvi.estimate(ivvi.read_logs(table(), **ROLES, lags=1, lag_padding=padding)),
            **ASKED,
        )
        for padding in ("drop", "first")
    )
    assert "with all lags" in late.starts
    assert any("--lag-padding first" in note for note in late.notes)
    assert "first states of the log" in first.starts
    assert not any("--lag-padding" in note for note in first.notes)


@pytest.mark.filterwarnings("ignore")
def test_values_of_an_action_of_two_values_say_that_its_effect_must_not_vary():
    two, many = (
        ivvi.value("zero", ivvi.estimate(ivvi.read_logs(table(binary), **ROLES)), **ASKED)
        for binary in (True, False)
    )
    sentence = "the effect of a does not vary with what was not recorded"
    assert any(sentence in note for note in two.notes)
    assert not any(sentence in note for note in many.notes)


def prices(seed, *, demand):
    """Return prices that taste moved, and profits; it moves demand, or else profits as such."""
    rng = np.random.default_rng([3, seed])
    fuel, taste, noise, rain = rng.normal(size=(4, 2000))
    price = 6 + 0.8 * fuel + 0.9 * taste + 0.4 * rng.normal(size=2000)
    units = 40 - 4 * price + 7 * taste * demand + noise
    profit = (price - 3) * units if demand else 5 * price + 20 * taste + 3 * noise
    return {"price": price, "fuel": fuel, "rain": rain, "profit": profit - rain}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("demand", [True, False])
def test_a_value_says_when_its_level_may_be_off_because_something_multiplies_the_action(
    demand, seed
):
    """Profits of 49 at the price 6.5 are learned as 55.3, 7 cov(taste, price) too many."""
    roles = {"context": "rain", "action": "price", "instrument": "fuel", "reward": "profit"}
    log = ivvi.read_logs(prices(seed, demand=demand), **roles)
    fit = ivvi.fit(log, "poly2" if demand else "linear")
    settings = {"reward": "learned", "horizon": 1, "draws": 20, "against": ()}
    value, other = (ivvi.value([price], fit, **settings) for price in (6.5, 5.5))
    assert any("multiplied price" in note for note in value.notes) == demand
    if demand:
        off = 7 * 0.9 * 1.0
        assert abs(value.value.estimate - (3.5 * 14 + off)) < 5 * value.value.se
        gained = value.value.estimate - other.value.estimate
        assert abs(gained - (3.5 * 14 - 2.5 * 18)) < 3


@pytest.mark.filterwarnings("ignore")
def test_a_reward_written_for_what_the_action_changes_has_the_right_level():
    """The remedy of that note: units are a state that is seen after the price was set."""
    rows = prices(0, demand=True)
    units = (rows["profit"] + rows["rain"]) / (rows["price"] - 3)
    log = ivvi.read_logs(
        {"shop": np.repeat(np.arange(50), 40), "week": np.tile(np.arange(40), 50), **rows}
        | {"units": units},
        **{"state": "units", "seen": "after", "context": "rain", "action": "price"},
        **{"instrument": "fuel", "episode": "shop", "step": "week"},
    )
    value = ivvi.value(
        [6.5],
        ivvi.fit(log),
        reward=lambda x, a, x_next: (a[..., 0] - 3) * x_next[..., 0],
        horizon=1,
        draws=40,
        against=(),
    )
    assert abs(value.value.estimate - 3.5 * 14) < 5 * value.value.se
    assert value.value.se < 2


@pytest.mark.parametrize(
    ("ends", "words"),
    [((-0.5, 0.5), "cannot tell whether it helped"), ((0.5, 1.5), "It helped"), ((-2, -1), "cost")],
)
def test_help_of_the_confounder_is_asserted_only_where_the_interval_leaves_zero(ends, words):
    draws = np.linspace(*ends, 101)
    amount = IntervalEstimate(float(draws.mean()), draws)
    worth = Valuation(
        {"policy": amount},
        {},
        None,
        None,
        3,
        1.0,
        "here",
        "bootstrap",
        gap=Gap(amount, amount, 0.0),
    )
    assert words in " ".join(worth.brief.text.split())


def test_a_level_that_only_ends_episodes_is_named_with_the_remedy():
    rng = np.random.default_rng(0)
    rows = []
    for ep in range(200):
        level = "well"
        for t in range(6):
            z, h = rng.normal(size=2)
            rows.append((ep, t, level, z + h, z))
            if level == "dead":
                break
            level = rng.choice(["well", "ill", "dead"], p=[0.5, 0.3, 0.2])
    log = ivvi.read_logs(pd.DataFrame(rows, columns=["ep", "t", "x", "a", "z"]), **ROLES)
    with pytest.raises(
        IdentificationError,
        match=r"x 'dead' occurs only in the last row of.* --terminal",
    ):
        ivvi.estimate(log)


def test_swapped_and_wrong_arguments_are_refused_in_a_sentence():
    env = ivvi.make_env("linear", dim=1)
    log = env.collect(episodes=20, horizon=10, seed=0)

    def still(x):
        return np.zeros((len(x), 1))

    with pytest.raises(InputError, match="the policies come first"):
        ivvi.evaluate(env, still)
    with pytest.raises(InputError, match="the action is 3; expected the name of one"):
        ivvi.respond(log, 3)
    with pytest.raises(InputError, match="model is not a saved model"):
        ivvi.plan("model", "quadratic", (-1, 1))
    with pytest.raises(InputError, match="found Log"):
        ivvi.plan(log, "quadratic", (-1, 1))
    with pytest.raises(InputError, match=r"multiply it by 1\.0 first"):
        ivvi.plan(ivvi.estimate(log), lambda x, a, x_next: -(x_next[:, 0] > 1) * 1.0, (-1, 1))


def brief_of(gained, helped, misfit):
    """Return the sentences of a value with such a gain over today, help and misfit, se 1 each."""
    gain, help_, whole = (
        IntervalEstimate(amount, amount + np.linspace(-2, 2, 101))
        for amount in (gained, helped, helped + misfit)
    )
    gap = Gap(whole, help_, misfit, 1.0)
    strong = Verdict("strong", "the effective F is 90")
    gains, values = {"behaviour": gain}, {"policy": gain, "behaviour": gain}
    worth = Valuation(values, gains, strong, None, 3, 1.0, "here", "bootstrap", gap=gap)
    return worth.brief.to_json()


def test_help_of_the_confounder_is_not_known_where_misfit_explains_the_gap():
    assert "off by 1,052 (misfit)" in brief_of(5.0, -1048.0, 1052.0)["confounding"]
    assert "off by 6 (misfit)" in brief_of(5.0, 8.0, -6.0)["confounding"]
    assert brief_of(5.0, 8.0, 3.9)["confounding"].startswith("It helped")  # chance, or small
    assert brief_of(5.0, 80.0, 6.0)["confounding"].startswith("It helped")


def test_a_gain_that_is_smaller_than_the_misfit_is_not_to_be_acted_on():
    advice = brief_of(12.0, 8.0, 69.3)["next"]
    assert advice.startswith("Do not act on this yet")
    assert "69.3, for the log's own policy (misfit)" in advice
    assert "off by much of that, 6," in brief_of(12.0, 8.0, 6.0)["next"]
    assert "then try it" in brief_of(12.0, 8.0, 3.9)["next"]
    assert "then try it" in brief_of(3.5, 8.0, 3.9)["next"]
