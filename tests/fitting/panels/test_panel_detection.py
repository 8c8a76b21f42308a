"""Panels whose unit and time were only named to be absorbed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ivvi

FORMULA = "y ~ 1 | firm + year | a ~ z"


def industries(rng: np.random.Generator, count: int = 15, firms: int = 6, years: int = 8) -> Any:
    """Draw firms whose industry sets the instrument of a year, and has a shock of its own."""
    firm = np.repeat(np.arange(count * firms), years)
    year, industry = np.tile(np.arange(years), count * firms), firm // firms
    z, e = rng.normal(size=(2, count, years))
    u, v = rng.normal(size=(2, len(firm)))
    z, e, own = z[industry, year], e[industry, year], rng.normal(size=count * firms)[firm]
    a = z + u
    rows = {"firm": firm, "year": 2000 + year, "z": z, "a": a, "y": a + 2 * u + e + own + v}
    place = rng.permutation(len(firm))
    return {name: values[place] for name, values in rows.items()}


def test_errors_are_those_of_named_episodes_and_steps() -> None:
    rows = industries(np.random.default_rng(0))
    named = ivvi.fit(ivvi.read_logs(rows, formula=FORMULA, episode="firm", step="year"))
    fit = ivvi.fit(rows, formula=FORMULA)
    assert fit.errors.clusters == named.errors.clusters
    assert len(fit.errors.clusters) == 2  # firms share the instrument
    np.testing.assert_allclose(fit.se, named.se)
    assert (fit.counts.episodes, fit.roles.derived) == (90, False)
    assert "firm and year are taken for episode and step" in fit.errors.note
    assert "taken for" not in named.errors.note
    by_interval = ivvi.interval(rows, formula=FORMULA, feature="a")
    assert by_interval.clusters == named.errors.clusters


def test_dates_are_steps_too_whatever_way_columns_are_named() -> None:
    rows = industries(np.random.default_rng(1))
    keys = {"episode": "firm", "step": "year"}
    days = np.array([f"{year}-01-01" for year in rows["year"]])
    for dates in (days, days.astype("datetime64[D]")):
        dated = ivvi.fit(rows | {"year": dates}, formula=FORMULA)
        assert dated.roles.dates == "year"
        named = ivvi.fit(ivvi.read_logs(rows | {"year": dates}, formula=FORMULA, **keys))
        np.testing.assert_allclose(dated.se, named.se)
    columns: dict[str, Any] = {"state": (), "action": "b:a", "instrument": "z"}
    for outcome in ("next_state", "reward"):
        log = ivvi.read_logs(rows | {"year": dates}, **columns, **{outcome: "y"})
        fit = ivvi.fit(log, absorb="firm,year")
        assert fit.roles.outputs == ("y",)
        np.testing.assert_allclose(fit.se, named.se)


@pytest.mark.filterwarnings("ignore::ivvi.errors.IvviWarning")
def test_what_is_no_panel_or_has_names_stays_as_it_is() -> None:
    rows = industries(np.random.default_rng(2))
    twice = {name: np.concatenate([values, values]) for name, values in rows.items()}
    twice["y"] = twice["y"] + np.random.default_rng(3).normal(size=len(twice["y"]))
    assert ivvi.fit(twice, formula=FORMULA).roles.episode is None
    assert ivvi.fit(rows, formula="y ~ 1 | firm | a ~ z").roles.episode is None
    few = {name: values[rows["firm"] < 8] for name, values in rows.items()}
    assert ivvi.fit(few, formula=FORMULA).roles.episode is None
    named = ivvi.read_logs(rows | {"visit": rows["year"]}, formula=FORMULA, episode="firm")
    assert ivvi.fit(named).roles.step is None
    assert ivvi.fit(rows, formula=FORMULA, method="ijive").errors.kind == "robust"


def test_a_saved_fit_of_such_a_panel_can_be_loaded_and_planned_with(tmp_path: Any) -> None:
    fit = ivvi.fit(industries(np.random.default_rng(4)), formula=FORMULA)
    fit.save(tmp_path / "model")
    loaded = ivvi.load_fit(tmp_path / "model")
    assert (loaded.roles.episode, loaded.roles.step) == ("firm", "year")
    assert loaded.errors.note == fit.errors.note
