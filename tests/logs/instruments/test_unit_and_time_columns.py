"""Which absorbed columns are unit and time of a panel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ivvi
from ivvi.logs.instruments.unit_and_time_columns import panel_columns
from ivvi.logs.tables.readers import open_table

UNITS, TIMES = 24, 8
UNIT, TIME = np.repeat(np.arange(UNITS), TIMES), np.tile(np.arange(TIMES), UNITS)


def found(**columns: Any) -> tuple[str, str, bool] | None:
    """Return unit, time and whether they make a panel."""
    panel = panel_columns(open_table(columns), list(columns))
    return None if panel is None else (panel.unit, panel.time, panel.is_panel)


@pytest.mark.parametrize(
    "time",
    [
        2000 + TIME,
        2000.0 + TIME,
        202001 + TIME,
        np.datetime64("2020-01-01") + 30 * TIME,
        np.array([f"20{t:02d}Q1" for t in TIME]),
        TIME,
    ],
)
def test_years_months_dates_quarters_and_consecutive_numbers_are_times(time: Any) -> None:
    place = np.random.default_rng(0).permutation(len(UNIT))
    assert found(unit=UNIT[place], when=time[place]) == ("unit", "when", True)
    assert found(when=time[place], unit=UNIT[place]) == ("unit", "when", True)


def test_of_a_few_units_and_many_times_the_time_is_still_the_time() -> None:
    assert found(state=TIME, year=1990 + UNIT) == ("state", "year", True)
    assert found(state=np.array(list("abcdefgh"))[TIME], t=UNIT) == ("state", "t", True)


def test_where_persons_are_seen_in_some_waves_the_waves_are_the_time() -> None:
    first = np.random.default_rng(0).integers(0, 5, 200)
    person = np.repeat(np.arange(200), 4)
    assert found(x=person, y=np.repeat(first, 4) + np.tile(np.arange(4), 200)) == ("x", "y", True)


def test_several_rows_of_a_unit_at_a_time_are_no_panel() -> None:
    twice = {"unit": np.tile(UNIT, 2), "year": 2000 + np.tile(TIME, 2)}
    assert found(**twice) == ("unit", "year", False)


def test_codes_text_and_two_times_tell_nothing() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 40, (2, 300))
    assert found(county=a, occupation=b) is None
    assert found(county=a.astype(str), firm=b.astype(str)) is None
    assert found(born=1950 + a, seen=2000 + b % 9) is None
    assert found(unit=UNIT % 8, other=TIME) is None  # as many, and no name
    assert found(unit=UNIT) is None


def states(rng: np.random.Generator, units: int = 12, years: int = 30, each: int = 4) -> Any:
    """Draw people in states and years; instrument and shocks of a state last (AR 0.9)."""
    drawn = rng.normal(size=(2, units, years))
    for t in range(1, years):
        drawn[:, :, t] = 0.9 * drawn[:, :, t - 1] + np.sqrt(1 - 0.9**2) * drawn[:, :, t]
    z, e = (np.repeat(one.ravel(), each) for one in drawn)
    u, v = rng.normal(size=(2, len(z)))
    a = z + u
    rows = {"state": np.repeat(np.arange(units), years * each), "z": z, "a": a}
    rows["year"] = np.tile(np.repeat(1990 + np.arange(years), each), units)
    return rows | {"y": a + 2 * u + 2 * e + v}


@pytest.mark.parametrize("units", [12, 24])
def test_errors_are_clustered_by_state_and_not_by_year(units: int) -> None:
    rows = states(np.random.default_rng(0), units)
    fit = ivvi.fit(rows, formula="y ~ 1 | state + year | a ~ z")
    assert fit.errors.clusters == ("state",)
    word = "that is no time" if units == 12 else "with the most values"
    assert units == 24 or f"by state, the absorbed column {word}" in fit.errors.note
    named = ivvi.fit(rows, formula="y ~ 1 | state + year | a ~ z", cluster="state")
    np.testing.assert_array_equal(fit.se, named.se)


def test_too_few_states_are_noted() -> None:
    rows = states(np.random.default_rng(0), 8)
    fit = ivvi.fit(rows, formula="y ~ 1 | state + year | a ~ z")
    assert fit.errors.clusters == ("year",)
    assert "state has 8 values, too few to cluster by" in fit.errors.note
    assert "--cluster state" in fit.errors.note


def test_intervals_of_states_whose_shocks_last_hold_the_truth() -> None:
    """Of 40 logs of 12 states 36 or more are expected at 95%, less four deviations."""
    held = 0
    for seed in range(40):
        rows = states(np.random.default_rng(seed), each=2)
        row = ivvi.fit(rows, formula="y ~ 1 | state + year | a ~ z").records()[-1]
        held += row["low"] <= 1 <= row["high"]
    assert held >= 40 * 0.95 - 4 * np.sqrt(40 * 0.95 * 0.05)
