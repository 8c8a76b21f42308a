"""Rows that decide an effect, and rows that are alike within a column that nobody named."""

import numpy as np
import pytest

import ivvi

ROLES = {"action": "a", "instrument": "z", "next_state": "y"}


def lasting(rng, groups, rows):
    """A series of each group that lasts, by rows."""
    values = np.cumsum(rng.normal(size=(groups, rows)), axis=1)
    return (values - values.mean()).ravel() / values.std()


def make_rows(seed, groups=60, rows=10, *, alike):
    rng = np.random.default_rng(seed)
    n = groups * rows
    z, e = (lasting(rng, groups, rows) if alike else rng.normal(size=n) for _ in range(2))
    u = rng.normal(size=n)
    a = z + u
    town = np.array([f"t{i}" for i in np.repeat(np.arange(groups), rows)])
    table = {"town": town, "z": z, "a": a, "y": 0.5 * a + u + 2 * e}
    return table | {"visits": rng.poisson(np.exp(np.clip(a, -3, 3))), "score": np.round(3 * a + u)}


@pytest.mark.filterwarnings("ignore::ivvi.errors.IvviWarning")
def test_rows_that_are_alike_within_an_unnamed_column_are_told():
    log = ivvi.read_logs(make_rows(0, alike=True), **ROLES)
    fit = ivvi.fit(log)
    assert "rows with the same town are correlated" in fit.errors.warning
    assert "--cluster town" in fit.errors.warning
    assert not ivvi.fit(log, cluster="town").errors.warning
    assert not ivvi.fit(log, se="robust").errors.warning


@pytest.mark.parametrize("seed", range(10))
def test_independent_rows_and_columns_that_follow_the_action_are_no_groups(seed):
    """Counts and scores that the action moves are alike in it, and are no groups for that."""
    rows = make_rows(seed, alike=False) | {
        "score": make_rows(seed, alike=False)["score"].astype(int)
    }
    assert not ivvi.fit(ivvi.read_logs(rows, **ROLES)).warnings


@pytest.mark.filterwarnings("ignore::ivvi.errors.IvviWarning")
def test_regions_that_hold_absorbed_units_are_told_where_they_are_alike():
    rng = np.random.default_rng(1)
    units, steps, regions = 160, 6, 20
    unit, step = np.repeat(np.arange(units), steps), np.tile(np.arange(steps), units)
    z, e = np.cumsum(rng.normal(size=(2, regions, steps)), axis=2)[:, unit % regions, step]
    u = rng.normal(size=len(unit))
    a = z + u
    rows = {"unit": unit, "step": step, "z": z, "a": a, "y": 0.5 * a + u + e}
    formula = "y ~ 1 | unit + step | a ~ z"
    fit = ivvi.fit(ivvi.read_logs(rows | {"region": unit % regions}, formula=formula))
    assert "rows with the same region are correlated" in fit.errors.warning
    rows["y"] = 0.5 * a + u
    fit = ivvi.fit(ivvi.read_logs(rows | {"region": unit % regions}, formula=formula))
    assert not fit.errors.warning


@pytest.mark.filterwarnings("ignore::ivvi.errors.IvviWarning")
def test_rows_that_are_alike_are_told_after_controls_too():
    pytest.importorskip("sklearn")
    rng = np.random.default_rng(2)
    for alike in (True, False):
        rows = make_rows(3, alike=alike) | {"c0": rng.normal(size=600), "c1": rng.normal(size=600)}
        log = ivvi.read_logs(rows, **ROLES, state=())
        fit = ivvi.fit(log, controls="c*", learner="lasso", folds=2)
        assert ("rows with the same town are correlated" in fit.errors.warning) == alike
        assert not ivvi.fit(log, controls="c*", learner="lasso", folds=2, cluster="town").warnings


@pytest.mark.filterwarnings("ignore::ivvi.errors.IvviWarning")
@pytest.mark.parametrize("alike", [True, False])
def test_days_that_hold_no_absorbed_unit_are_told_where_they_are_alike(alike):
    rng = np.random.default_rng(1)
    store, day = np.repeat(np.arange(12), 60), np.tile(np.arange(60), 12)
    z, e = rng.normal(size=(2, 60))[:, day] if alike else rng.normal(size=(2, 720))
    u, v = rng.normal(size=(2, 720))
    z = z + 0.3 * v
    a = z + u + rng.normal(size=12)[store]
    rows = {"store": store, "day": day, "z": z, "a": a, "y": 0.5 * a + u + e}
    fit = ivvi.fit(ivvi.read_logs(rows, **ROLES, state=()), absorb="store")
    assert ("rows with the same day are correlated" in fit.errors.warning) == alike


@pytest.mark.filterwarnings("ignore::ivvi.errors.IvviWarning")
def test_one_mistyped_outcome_that_decides_an_effect_is_named():
    rows = make_rows(0, alike=False)
    rows["y"][17] = 1e6
    told = [
        text for text in ivvi.fit(ivvi.read_logs(rows, **ROLES)).warnings if "dominates" in text
    ]
    assert len(told) == 1
    assert "row 18 of those used" in told[0]
    assert "1e+06" in told[0]
