"""Instruments made of names (``loo:doctor``): every verb clusters by the names by itself."""

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression

import ivvi
from ivvi import Shard
from ivvi.errors import IvviWarning
from ivvi.features.design import build_design

pytestmark = pytest.mark.filterwarnings("ignore::ivvi.errors.IvviWarning")

COLUMNS = {"state": "x0,c0", "action": "a0", "instrument": "loo:doctor"}


def visits(seed=1, doctors=24, patients=150, steps=5):
    """Visits to doctors who lean, each with a lasting effect of her own; c0 is noise."""
    rng = np.random.default_rng(seed)
    lean, own = rng.normal(size=doctors), rng.normal(size=doctors)
    x, rows = rng.normal(size=patients), []
    for step in range(steps):
        doctor, u = rng.integers(0, doctors, patients), rng.normal(size=patients)
        a = lean[doctor] + u
        rows.append((np.arange(patients), np.full(patients, step), doctor, x, a))
        x = 0.5 * x - 0.5 * a + u + own[doctor] + rng.normal(size=patients)
    episode, step, doctor, x, a = map(np.concatenate, zip(*rows, strict=True))
    order = np.lexsort([step, episode])
    columns = {"episode": episode, "step": step, "x0": x, "a0": a, "c0": rng.normal(size=len(x))}
    columns = {name: values[order] for name, values in columns.items()}
    return columns | {"doctor": np.array([f"Dr {number}" for number in doctor[order]])}


@pytest.fixture(scope="module")
def log():
    return ivvi.read_logs(visits(), **COLUMNS)


def clusters(fit):
    return [name for name, _ in fit.estimate.W_cov.clusters]


CONTROLS = {"controls": "c0", "learner": LinearRegression(), "folds": 2}


@pytest.mark.parametrize("how", [{}, {"absorb": "episode"}, CONTROLS])
@pytest.mark.parametrize("se", ["auto", "clustered"])
def test_errors_are_clustered_by_the_names_that_became_instruments_whatever_is_done_to_rows(
    log, how, se
):
    default = ivvi.fit(log, se=se, **how)
    named = ivvi.fit(log, se=ivvi.StandardErrors(se, cluster="doctor"), **how)
    assert clusters(default) == ["doctor"]
    assert default.estimate.W_cov.clusters == named.estimate.W_cov.clusters
    np.testing.assert_array_equal(default.se, named.se)


def test_leverage_is_corrected_by_the_same_names_after_controls(log):
    fit = ivvi.fit(log, **CONTROLS, se="cr2")
    assert clusters(fit) == ["doctor"]
    assert fit.estimate.W_cov.cr2


def test_an_interval_of_absorbed_rows_and_of_their_fit_have_the_clusters_of_the_fit(log):
    fit = ivvi.fit(log, absorb="episode")
    of_log = ivvi.interval(log, "x0", "a0", absorb="episode")
    assert clusters(fit) == list(of_log.clusters) == ["doctor"]
    of_fit = ivvi.interval(fit, "x0", "a0")
    np.testing.assert_allclose(of_log.intervals, of_fit.intervals, rtol=1e-9)
    plain = ivvi.fit(log)
    for asked in ("auto", "clustered"):
        confidence_set = ivvi.interval(plain.moments, "x0", "a0", se=asked, log=log)
        assert confidence_set.clusters == ("doctor",)
        assert ivvi.interval(plain, "x0", "a0", se=asked, log=log).clusters == ("doctor",)


def test_sums_by_cluster_are_sums_by_the_names_and_give_the_errors_of_the_rows(log):
    shard = Shard.of(log, build_design(log, "linear"), episodes=True)
    rows, sums = ivvi.fit(log), ivvi.fit(shard)
    assert clusters(sums) == ["doctor"]
    np.testing.assert_allclose(sums.se, rows.se, rtol=1e-9)
    halves = [ivvi.read_logs(visits(seed), **COLUMNS) for seed in (1, 2)]
    design = build_design(halves[0], "linear")
    merged = sum(Shard.of(half, design, episodes=True) for half in halves)
    assert ivvi.fit(merged).estimate.W_cov.clusters == (("doctor", 24),)  # of one name, one


def test_sums_that_cannot_be_clustered_by_the_names_say_so(log):
    lacking = "share an instrument, and these sums are not kept by doctor"
    with pytest.warns(IvviWarning, match=f"{lacking}: the standard errors are unadjusted"):
        ivvi.fit(Shard.of(log, build_design(log, "linear")))
    stream = ivvi.Stream().partial_fit(log)
    with pytest.warns(IvviWarning, match=f"{lacking}: .* clustered by episode and may be too sma"):
        stream.fit()
    with pytest.warns(IvviWarning, match="each difference is of two rows"):
        ivvi.fit(ivvi.read_logs(visits(steps=6), **COLUMNS | {"state": "x0"}), difference=True)


def test_an_update_of_a_model_without_sums_by_name_warns_once(log):
    old = ivvi.fit(log)
    with pytest.warns(IvviWarning) as told:
        ivvi.update(old, ivvi.read_logs(visits(2), **COLUMNS))
    about = [str(one.message) for one in told if "standard errors" in str(one.message)]
    assert ["not kept by doctor" in text for text in about] == [True]
    kept = ivvi.update(ivvi.fit(log, episodes=True), ivvi.read_logs(visits(2), **COLUMNS))
    assert clusters(kept) == ["doctor"]
