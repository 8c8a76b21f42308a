"""Outcomes that follow a season or a trend of the step, which the states do not hold."""

import numpy as np
import pytest

import ivvi
from ivvi.diagnostics.misspecification.step_effects import has_pattern

REMEDY = "add t to the states"


def log_with(effect, episodes=150, steps=14, seed=0, state="x"):
    """Return a log in which a step adds its effect (steps,) to the next state of all episodes."""
    rng = np.random.default_rng(seed)
    x, rows = rng.normal(size=episodes), []
    for t in range(steps):
        z, u = rng.normal(size=(2, episodes))
        a = 0.3 * x + z + u
        rows.append((np.arange(episodes), np.full(episodes, t), x, a, z))
        x = 0.8 * x - 0.5 * a + effect[t] + u + 0.3 * rng.normal(size=episodes)
    parts = map(np.concatenate, zip(*rows, strict=True))
    columns = dict(zip(("who", "t", "x", "a", "z"), parts, strict=True))
    roles = {"action": "a", "instrument": "z", "episode": "who", "step": "t"}
    return ivvi.read_logs(columns, state=state, **roles)


@pytest.mark.filterwarnings("ignore::ivvi.errors.IvviWarning")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["season", "trend"])
def test_a_season_or_a_trend_speaks_against_a_plan_and_not_against_the_estimate(kind, seed):
    t = np.arange(14)
    effect = 1.5 * np.cos(2 * np.pi * t / 7) if kind == "season" else 0.8 * t
    fit = ivvi.fit(log_with(effect, seed=seed))
    assert len(fit.plan_doubts) == 1
    assert REMEDY in fit.plan_doubts[0]
    assert fit.brief.to_json()["next"].startswith("Do not plan with it yet")
    assert abs(fit.W[0, 2] + 0.5) < 5 * fit.se[0, 2]


@pytest.mark.filterwarnings("ignore::ivvi.errors.IvviWarning")
def test_the_step_may_be_a_state_too_which_mends_a_trend():
    fit = ivvi.fit(log_with(0.8 * np.arange(14), state="x,t"))
    assert fit.plan_doubts == ()
    at = fit.estimate.design.phi_names.index("t")
    assert abs(fit.W[0, at] - 0.8) < 5 * fit.se[0, at]
    assert np.allclose(fit.W[1], [1, 0, 1, 0], atol=1e-6)  # the next step is one more


@pytest.mark.filterwarnings("ignore::ivvi.errors.IvviWarning")
def test_shocks_that_steps_bring_by_chance_are_no_pattern():
    told = 0
    for seed in range(10):
        shocks = 0.5 * np.random.default_rng(100 + seed).normal(size=14)
        told += bool(ivvi.fit(log_with(shocks, episodes=40, seed=seed)).plan_doubts)
    assert told <= 1


def test_means_without_a_pattern_have_none_in_all_but_a_few_of_many_draws():
    rng = np.random.default_rng(1)
    count = sum(has_pattern(rng.normal(size=12)) for _ in range(2000))
    assert count <= 2000 * 0.004 + 4 * np.sqrt(2000 * 0.004)  # two tests at 0.002 each
