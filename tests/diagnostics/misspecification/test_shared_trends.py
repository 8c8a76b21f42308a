"""Instruments and outcomes that share a season, a trend or a place, which the table shows."""

import warnings

import numpy as np
import pandas as pd
import pytest

import ivvi
from ivvi.diagnostics.misspecification.outcome_timing import explained_in_own_row

ROLES = {"state": (), "action": "a", "instrument": "z", "reward": "y"}
STORES, MONTHS = 30, 60


def stores(seed, *, season=0.0, shock=0.0, late=False):
    """Return stores by month; a `season` moves z and x alike, a `shock` each by itself."""
    rng = np.random.default_rng([1, seed])
    x, rows = rng.normal(size=STORES), []
    for month in range(MONTHS):
        s = season * np.sin(2 * np.pi * month / 12)
        z, u, e = rng.normal(size=(3, STORES))
        z = z + s + shock * rng.normal()
        a = z + u + 0.3 * x
        after = 0.4 * x - 0.5 * a + u + s + shock * rng.normal() + 0.5 * e
        rows.append((np.arange(STORES), np.full(STORES, month), after if late else x, a, z))
        x = after
    columns = (np.array(one).T.ravel() for one in zip(*rows, strict=True))
    return dict(zip(("store", "month", "x", "a", "z"), columns, strict=True))


def opened(rows):
    roles = {"state": "x", "action": "a", "instrument": "z", "episode": "store", "step": "month"}
    return ivvi.read_logs(rows, **roles)


def visits(seed, rows=400, *, trend=0.0, site=0.0, lasting=0.0):
    """Return rows with a date each, a year, and one of 8 sites; what they bring moves z and y."""
    rng = np.random.default_rng([2, seed])
    z, u = rng.normal(size=(2, rows))
    for i in range(1, rows):
        z[i], u[i] = (one[i] + lasting * one[i - 1] for one in (z, u))
    place = rng.integers(0, 8, size=rows)
    both = trend * np.arange(rows) / rows + site * (place - 3.5)
    a = z + both + u + rng.normal(size=rows)
    day = np.datetime64("2020-01-01") + np.arange(rows)
    return {
        "date": day.astype(str),
        "year": 2001 + np.arange(rows) * 10 // rows,
        "month": day.astype("datetime64[M]").astype(str),
        "site": np.char.add("s", place.astype(str)),
        "visits": rng.poisson(np.exp(np.clip(a, -3, 3))),
        "note": np.char.add("n", np.arange(rows).astype(str)),
        "z": z + both,
        "a": a,
        "y": 0.5 * a + u + both + 0.3 * rng.normal(size=rows),
    }


def fitted(rows, columns=(), **settings):
    """Fit to z, a, y and some other columns, without telling; return the fit."""
    used = {name: rows[name] for name in (*columns, "z", "a", "y")}
    roles = {name: settings.pop(name) for name in ("episode", "step") if name in settings}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ivvi.fit(ivvi.read_logs(used, **ROLES, **roles), **settings)


def changes(fit):
    return [text for text in fit.warnings if "once effects of" in text]


@pytest.mark.filterwarnings("ignore::ivvi.errors.IvviWarning")
def test_a_season_that_moves_instrument_and_state_is_told_and_absorbing_the_step_mends_it():
    log = opened(stores(0, season=1.0))
    fit = ivvi.fit(log)
    assert "--absorb month" in changes(fit)[0]
    assert not [text for text in fit.warnings if "in its own row" in text]
    assert fit.doubts == tuple(changes(fit))
    assert abs(fit.W[0, 2] + 0.5) > 4 * fit.se[0, 2]
    mended = ivvi.fit(log, absorb="month")
    assert not changes(mended)
    at = mended.estimate.design.phi_names.index("a")
    assert abs(mended.W[0, at] + 0.5) < 4 * mended.se[0, at]


@pytest.mark.filterwarnings("ignore::ivvi.errors.IvviWarning")
@pytest.mark.parametrize("seed", range(4))
def test_shocks_of_a_step_that_move_instrument_and_state_each_by_itself_are_no_season(seed):
    assert not changes(ivvi.fit(opened(stores(seed, shock=1.0))))
    assert not changes(ivvi.fit(opened(stores(seed))))


@pytest.mark.filterwarnings("ignore::ivvi.errors.IvviWarning")
def test_a_state_that_follows_the_action_of_its_row_is_noticed_and_a_season_is_not_taken_for_it():
    for seed in range(4):
        for late, season in ((True, 0.0), (True, 1.0), (False, 1.0)):
            log = opened(stores(seed, season=season, late=late))
            assert (explained_in_own_row(log.head(episodes=True), log.roles) is not None) == late


@pytest.mark.parametrize("column", ["month", "year"])
def test_a_trend_over_an_unnamed_column_of_time_is_told_and_absorbing_it_mends_the_effect(column):
    rows = visits(0, 800, trend=4.0)
    fit = fitted(rows, (column,))
    assert f"--absorb {column}" in changes(fit)[0]
    assert abs(fit.W[0, 1] - 0.5) > 4 * fit.se[0, 1]
    mended = fitted(rows, (column,), absorb=column)
    assert not changes(mended)
    at = mended.estimate.design.phi_names.index("a")
    assert abs(mended.W[0, at] - 0.5) < 4 * mended.se[0, at]


def test_a_trend_over_dates_that_come_once_each_is_told():
    (text,) = changes(fitted(visits(0, trend=4.0), ("date",)))
    assert "such as its month, in which each value has several rows, and absorb that" in text


def test_a_year_that_is_not_among_the_absorbed_columns_is_told():
    rng = np.random.default_rng(0)
    firm, t = np.repeat(np.arange(100), 20), np.tile(np.arange(20), 100)
    z, u = rng.normal(size=(2, 2000))
    z, level = z + t / 10, rng.normal(size=100)[firm]
    a = z + u + level
    rows = {"firm": firm, "year": 2000 + t, "z": z, "a": a, "y": 0.5 * a + u + level + t / 10}
    (text,) = changes(fitted(rows, ("firm", "year"), absorb="firm"))
    assert "--absorb firm,year" in text
    assert not changes(fitted(rows, ("firm", "year"), absorb="firm,year"))


def test_a_place_that_moves_instrument_and_outcome_is_told_as_bias_and_not_as_clusters():
    rows = visits(0, site=0.4)
    fit = fitted(rows, ("site",))
    (text,) = fit.warnings
    assert "if site was determined before the action" in text
    assert "--absorb site" in text
    assert changes(fitted(rows, ("site",), cluster="site"))
    assert not changes(fitted(rows, ("site",), absorb="site"))


@pytest.mark.parametrize("seed", range(4))
def test_columns_that_share_nothing_with_the_instrument_raise_no_alarm(seed):
    columns = ("date", "year", "month", "site", "visits", "note")
    assert not fitted(visits(seed), columns).warnings


def test_rows_that_follow_each_other_in_an_unnamed_date_are_told_and_the_remedy_widens_errors():
    rows = visits(1, lasting=0.8)
    fit = fitted(rows, ("date",))
    assert "rows that follow each other in date are correlated" in fit.errors.warning
    rows["series"] = np.ones(400, dtype=int)
    mended = fitted(rows, ("date", "series"), episode="series", step="date")
    assert mended.errors.kind == "hac"
    assert not mended.errors.warning
    assert mended.se[0, 1] > 1.4 * fit.se[0, 1]


def numbered_places(seed, kind, n=2000):
    """An unnamed column `w` of whole numbers: a place, or a trait, an outcome, an id."""
    rng = np.random.default_rng(seed)
    z, u, e, v = rng.normal(size=(4, n))
    k = {"site": 8, "weekday": 7, "hour": 24}.get(kind, 20)
    w = rng.integers(0, k, n)
    own = {
        "hour": np.sin(4 * np.pi * w / 24),
        "weekday": np.array([0, 0, 0, 0, 0, 2, 2])[w % 7],
        "site": rng.normal(size=k)[w],
    }.get(kind, np.zeros(n))
    z = z + own + rng.normal(size=k)[w] * (kind == "moves z")
    a = z + u + e
    y = a + 2 * u + v + 2 * own + 2 * rng.normal(size=k)[w] * (kind == "moves y")
    w = {
        "count": rng.poisson(np.exp(0.3 * y)),
        "rounded": np.round(a + y).astype(int),
        "id": np.arange(n) // 15,
    }.get(kind, w)
    return pd.DataFrame({"y": y, "a": a, "z": z, "w": w + 101})


@pytest.mark.filterwarnings("ignore::ivvi.errors.IvviWarning")
@pytest.mark.parametrize("kind", ["site", "weekday", "hour"])
def test_a_place_that_is_a_number_is_told_with_the_remedy_that_mends_it(kind):
    fit = ivvi.fit(numbered_places(1, kind), formula="y ~ 1 | a ~ z")
    (text,) = [note for note in fit.notes if "once effects of w are included" in note]
    assert "add C(w)" in text
    assert text.index("absorb") < text.index("C(w)")


@pytest.mark.filterwarnings("ignore::ivvi.errors.IvviWarning")
@pytest.mark.parametrize("kind", ["moves y", "moves z", "count", "rounded", "id", "nothing"])
def test_numbers_that_are_no_place_of_both_are_not_told_as_one(kind):
    told = [
        note
        for seed in range(3)
        for note in ivvi.fit(numbered_places(seed, kind), formula="y ~ 1 | a ~ z").notes
    ]
    assert not [note for note in told if "once effects of w" in note]


@pytest.mark.parametrize("doctors", [4, 20])
@pytest.mark.parametrize("own_column", [False, True], ids=["loo:doctor", "a column of means"])
@pytest.mark.parametrize("seed", range(3))
def test_doctors_from_whose_other_patients_the_instrument_is_made_are_no_place(
    doctors, own_column, seed
):
    """Within doctors the mean of the others falls with the own doses: it is made that way."""
    rng = np.random.default_rng([6, seed])
    lengths = rng.integers(3, 10, size=80)
    patient = np.repeat(np.arange(80), lengths)
    visit = np.concatenate([np.arange(length) for length in lengths])
    doctor, e = patient % doctors, rng.normal(size=len(visit))
    a, x = doctor % 3 + e + rng.normal(size=len(visit)), rng.normal(size=len(visit))
    for i in np.flatnonzero(visit):
        x[i] = 0.5 * x[i - 1] + a[i - 1] + e[i - 1]
    frame = pd.DataFrame({"episode": patient, "step": visit, "x": x, "a": a})
    frame["doctor"] = [f"D{one}" for one in doctor]
    sums = [frame.groupby(by).a.transform("sum") for by in ("doctor", "episode")]
    counts = [frame.groupby(by).a.transform("size") for by in ("doctor", "episode")]
    frame["preference"] = (sums[0] - sums[1]) / (counts[0] - counts[1])
    name = "preference" if own_column else "loo:doctor"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = ivvi.fit(ivvi.read_logs(frame, state="x", action="a", instrument=name))
    assert not changes(fit)
