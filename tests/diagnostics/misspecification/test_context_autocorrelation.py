"""Contexts that a plan draws anew at every step, and that are not drawn anew in the log."""

import warnings

import numpy as np
import pandas as pd
import pytest

import ivvi
from ivvi.diagnostics.misspecification.context_autocorrelation import remembered_contexts

EPISODES, STEPS = 100, 12
SEASONS = np.array(["winter", "spring", "summer", "autumn"])


def season(rng, t, before):
    return np.full(EPISODES, SEASONS[t % 4])


def season_of_each(rng, t, before):
    return SEASONS[(np.arange(EPISODES) + t) % 4]


def weekday(rng, t, before):
    return (np.arange(EPISODES) + t) % 5 + 1.0


def weather(rng, t, before):
    fresh = np.where(rng.random(EPISODES) < 0.5, "rain", "sun")
    return fresh if t == 0 else np.where(rng.random(EPISODES) < 0.6, before["c"], fresh)


def lasting(rng, t, before):
    return rng.normal(size=EPISODES) + (0 if t == 0 else 0.7 * before["c"])


def moved_by_the_action(rng, t, before):
    return rng.normal(size=EPISODES) + (0 if t == 0 else 0.5 * before["a"])


def age(rng, t, before):
    return 20.0 + np.arange(EPISODES) % 40 + t


def lot(rng, t, before):
    return rng.normal(size=EPISODES)


def level(rng, t, before):
    return rng.choice(SEASONS, size=EPISODES)


def rare(rng, t, before):
    return (rng.random(EPISODES) < 0.03).astype(float)


def weather_of_the_day(rng, t, before):
    return np.full(EPISODES, rng.normal())


def level_of_the_day(rng, t, before):
    return np.full(EPISODES, rng.choice(SEASONS))


def weather_of_a_region(rng, t, before):
    return rng.normal(size=5)[np.arange(EPISODES) % 5]


def of_the_episode(rng, t, before):
    return np.arange(EPISODES) % 7.0


def table(context, seed=0):
    """x' = 0.7 x + 0.5 a + u + e, beside a context."""
    rng = np.random.default_rng(seed)
    x, rows, before = rng.normal(size=EPISODES), [], {}
    for t in range(STEPS):
        z, u = rng.normal(size=(2, EPISODES))
        a, c = z + u, context(rng, t, before)
        before = {"ep": np.arange(EPISODES), "t": t, "x": x, "a": a, "z": z, "c": c}
        rows.append(pd.DataFrame(before))
        x = 0.7 * x + 0.5 * a + u + 0.3 * rng.normal(size=EPISODES)
    return pd.concat(rows)


def read(context, seed=0):
    columns = {"action": "a", "instrument": "z", "episode": "ep", "step": "t"}
    return ivvi.read_logs(table(context, seed), state="x", context="c", **columns)


def doubts(context, seed=0):
    log = read(context, seed)
    return remembered_contexts(log.head(episodes=True), log.roles)


@pytest.mark.parametrize(
    "context", [season, season_of_each, weekday, weather, lasting, moved_by_the_action, age]
)
def test_a_context_that_the_row_before_explains_is_named_with_the_remedy(context):
    (text,) = doubts(context)
    assert "context c is not independent from step to step" in text
    assert "--state c" in text


@pytest.mark.parametrize(
    "context",
    [lot, level, rare, weather_of_the_day, level_of_the_day, weather_of_a_region, of_the_episode],
)
def test_a_context_that_is_drawn_anew_or_stays_raises_no_doubt(context):
    """Of 10 logs none, where the level is 0.001 each."""
    assert sum(bool(doubts(context, seed)) for seed in range(10)) <= 1


def test_fit_plan_and_value_say_that_a_season_is_not_drawn_anew():
    with pytest.warns(
        ivvi.errors.IvviWarning, match="context c is not independent from step to step"
    ):
        fit = ivvi.fit(read(season_of_each))
    assert "Do not plan with it yet: context c" in " ".join(fit.brief.text.split())
    assert "context c" not in ivvi.effect(fit, "a").summary()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        policy = ivvi.plan(fit, "quadratic", (-1, 1), method="mpc", horizon=3)
        worth = ivvi.value(policy, fit, against=("zero",), draws=20)
    assert "Do not act on it yet. Context c" in " ".join(policy.brief.text.split())
    assert any("context c" in text for text in worth.warnings)


def test_the_season_as_a_state_raises_no_doubt():
    columns = {"action": "a", "instrument": "z", "episode": "ep", "step": "t"}
    fit = ivvi.fit(ivvi.read_logs(table(season_of_each), state="x,c", **columns))
    assert fit.plan_doubts == ()
