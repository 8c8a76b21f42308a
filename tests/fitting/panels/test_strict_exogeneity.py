"""Instruments of the step before and after, against what absorbed effects leave of outcomes.

Sizes are of tests at p < 0.001, so that no false alarm is expected in any of the suite's logs.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import ivvi
from ivvi.errors import IvviWarning

FORMULA = "y ~ 1 | id + year | a ~ z"
TEXT = "is related to what is left of y after the effects of units"


def lasting(rng: np.random.Generator, units: int, steps: int, rho: float) -> np.ndarray:
    """Draw series with variance one that last, (units, steps)."""
    x = rng.normal(size=(units, steps))
    for t in range(1, steps):
        x[:, t] = rho * x[:, t - 1] + np.sqrt(1 - rho**2) * x[:, t]
    return x


def panel(
    seed: int,
    what: str = "clean",
    *,
    units: int = 120,
    steps: int = 8,
    rho: float = 0.8,
    gaps: float = 0.0,
) -> dict[str, np.ndarray]:
    """Draw a panel with effects of units and years in which the action's effect is 1."""
    rng = np.random.default_rng(seed)
    z, e = (lasting(rng, units, steps, rho) for _ in range(2))
    own, trend = rng.normal(size=(2, units, 1))
    u, v, time = *rng.normal(size=(2, units, steps)), np.arange(steps)
    if what == "adoption":
        start = rng.choice([2, 4, 99], (units, 1))
        z = (time >= start) * 1.0
    if what == "trends":
        z = z + 0.3 * trend * time
    if what == "reaction":
        z = rng.normal(size=(units, steps))
        for t in range(1, steps):
            z[:, t] -= 0.4 * (z[:, t - 1] + 3 * u[:, t - 1])
    a = z + u
    if what == "adoption":
        a = z * (a > 0.5)
    y = a + 2 * u + np.exp(0.3 * z) * e + v + own + 0.2 * time
    if what == "delay":
        y[:, 1:] += a[:, :-1]
    if what == "trends":
        y = y + 0.5 * trend * time
    if what == "adoption":
        y = y + 1.5 * a * np.maximum(time - start, 0)
    ids, years = np.meshgrid(np.arange(units), 2000 + time, indexing="ij")
    rows = {"id": ids, "year": years, "z": z, "a": a, "y": y}
    kept = rng.permutation(units * steps)[: round(units * steps * (1 - gaps))]
    return {name: values.ravel()[kept] for name, values in rows.items()}


def doubts(rows: Any, formula: str = FORMULA, **settings: Any) -> list[str]:
    """Return what a fit says of instruments at other steps."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IvviWarning)
        fit = ivvi.fit(rows, formula=formula, **settings)
    return [text for text in fit.doubts if TEXT in text]


CLEAN: list[dict[str, Any]] = [
    {"rho": 0.0},
    {},
    {"units": 15},
    {"units": 12, "steps": 30, "rho": 0.9},
    {"units": 400, "steps": 4},
    {"gaps": 0.3},
]


@pytest.mark.parametrize("how", CLEAN)
def test_nothing_is_said_of_clean_panels(how: dict[str, Any]) -> None:
    assert not any(doubts(panel(seed, **how)) for seed in range(6))


@pytest.mark.parametrize("what", ["delay", "trends", "reaction", "adoption"])
def test_delays_trends_reactions_and_growing_effects_are_told(what: str) -> None:
    [text] = doubts(panel(0, what, units=300))
    assert text.startswith("z of the year ")
    assert "--lags 1" in text
    place = {"delay": "before", "reaction": "after"}.get(what)
    assert place is None or text.startswith(f"z of the year {place}")


def test_the_doubt_keeps_next_from_recommending_a_plan() -> None:
    with pytest.warns(IvviWarning, match=TEXT):
        fit = ivvi.fit(panel(0, "delay"), formula=FORMULA)
    assert fit.verdict is not None
    assert fit.verdict.word == "strong"
    assert dict(fit.brief.items)["Next"].startswith("Do not plan with it yet: z of the year before")
    assert "only its instrument is tested" in fit.summary()


def test_with_the_remedy_nothing_is_said_and_the_interval_holds_the_truth() -> None:
    """The estimate is within four standard errors of the truth, for any seed."""
    rows = panel(0, "delay", units=300, steps=9)
    order = np.lexsort((rows["year"], rows["id"]))
    rows = {name: values[order] for name, values in rows.items()}
    later = np.flatnonzero(rows["year"] > 2000)
    lagged = {f"{name}_before": rows[name][later - 1] for name in "az"}
    rows = {name: values[later] for name, values in rows.items()} | lagged
    formula = "y ~ 1 | id + year | a + a_before ~ z + z_before"
    assert not doubts(rows, formula)
    fit = ivvi.fit(rows, formula=formula)
    assert (abs(fit.W[0, 1:] - 1) < 4 * fit.se[0, 1:]).all()


def test_dated_steps_weights_and_named_episodes_are_tested_too() -> None:
    rows = panel(1, "delay")
    dates = np.array([f"{year}-01-01" for year in rows["year"]])
    weight = np.random.default_rng(0).uniform(1, 2, len(dates))
    named = {"formula": FORMULA, "episode": "id", "step": "year", "weight": "w"}
    log = ivvi.read_logs(rows | {"year": dates, "w": weight}, **named)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IvviWarning)
        fit = ivvi.fit(log)
    assert fit.doubts[0].startswith("z of the year before")


def test_differences_without_states_are_tested_and_lagged_states_are_not() -> None:
    rows = panel(0, "delay")
    log = ivvi.read_logs(rows, formula="y ~ 1 | a ~ z", episode="id", step="year")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IvviWarning)
        told = ivvi.fit(log, difference=True).doubts
        columns: dict[str, Any] = {"state": "y", "action": "a", "instrument": "z"}
        own = ivvi.read_logs(rows, **columns, episode="id", step="year")
        lagged = ivvi.fit(own, absorb="id")
    assert TEXT in told[0]
    assert not any(TEXT in text for text in lagged.doubts)
    assert lagged.nickell is not None


def test_shocks_of_industries_that_set_the_instrument_are_no_reason_for_alarm() -> None:
    """Firms of an industry share instrument and shocks, which last; no column names it."""
    for seed in range(6):
        rng = np.random.default_rng(seed)
        z, e = (np.repeat(lasting(rng, 20, 8, 0.8), 8, axis=0).ravel() for _ in range(2))
        u, v = rng.normal(size=(2, len(z)))
        a = z + u
        rows = {"id": np.repeat(np.arange(160), 8), "year": np.tile(np.arange(8), 160), "z": z}
        assert not doubts(rows | {"a": a, "y": a + 2 * u + 2 * e + v})


def test_check_says_what_to_do_with_a_formula_that_absorbs_effects() -> None:
    with pytest.raises(ivvi.InputError, match=r"remove `\| id \+ year` .* name unit and time"):
        ivvi.check(ivvi.read_logs(panel(0), formula=FORMULA))
