"""Verbs that once decided on clusters by themselves agree with the fit."""

import numpy as np
import pytest

import ivvi
from ivvi.evaluation.value_inputs import ValueInputs
from ivvi.evaluation.value_policy import clustered_by
from ivvi.sensitivity_analysis.adjusted_covariance import Variances, errors_of
from ivvi.sensitivity_analysis.violations import Exclusion

COLUMNS = {"state": "x", "action": "a", "instrument": "z", "next_state": "y"}


def table(seed=1, n=1200):
    rng = np.random.default_rng(seed)
    ward, day = rng.integers(30, size=n), rng.integers(40, size=n)
    x, z, u = rng.normal(size=(3, n))
    u += rng.normal(size=30)[ward] + rng.normal(size=40)[day]
    a = z + u + rng.normal(size=n)
    y = 0.5 * x + a + u
    episode = np.arange(n) // 4
    return {"x": x, "a": a, "z": z, "y": y, "ward": ward, "day": day, "episode": episode}


@pytest.fixture(scope="module")
def log():
    return ivvi.read_logs(table(), **COLUMNS, episode="episode")


def test_a_model_that_keeps_two_ways_of_clustering_is_updated_both_ways(log):
    old = ivvi.fit(log, cluster="ward,day", episodes=True)
    new = ivvi.update(old, ivvi.read_logs(table(2), **COLUMNS, episode="episode"))
    assert dict(new.estimate.W_cov.clusters) == {"ward": 30, "day": 40}
    assert not new.errors.warning


def test_sensitivity_uses_the_sums_of_any_clusters_that_are_kept(log):
    source = ValueInputs.of(ivvi.fit(log, cluster="ward", episodes=True))
    exclusion = Exclusion.of(source)
    sums, rows = (Variances.of(exclusion, *errors_of(source), one) for one in (None, log))
    assert not sums.note
    np.testing.assert_allclose(sums.middle, rows.middle, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("columns", ["episode", "ward,day"])
def test_a_value_by_the_clusters_of_the_fit_needs_no_rows(columns, log):
    fit = ivvi.fit(log, cluster=columns)
    backwards = tuple(reversed(columns.split(",")))
    source = ValueInputs.of(fit)
    assert clustered_by(source, backwards, None) is source


def test_a_jackknife_with_controls_takes_rows_for_independent_as_without_them():
    rows = table()
    rows["z"] = np.random.default_rng(3).normal(size=30)[rows["ward"]]
    rows["a"] += 3 * rows["z"]
    rows["c"] = rows["x"] + np.random.default_rng(4).normal(size=len(rows["x"]))
    del rows["episode"], rows["day"]
    log = ivvi.read_logs(rows, **COLUMNS)
    assert log.roles.set_by == ("ward",)
    fit = ivvi.fit(log, method="ujive", controls="c")
    assert fit.errors.kind == "robust"
