"""Robust intervals beside Wald's, the verdict that they give, and where it is kept."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

import ivvi
from helpers import mark_thorough
from ivvi import custom, report
from ivvi.diagnostics import Verdict
from ivvi.diagnostics.tails_and_quantiles import noncentral_tail
from ivvi.errors import DataError, IdentificationError, IvviWarning
from ivvi.features import polynomial
from ivvi.sklearn import IVRegressor
from ivvi.weak_iv.action_strength import holding
from ivvi.weak_iv.robust_anderson_rubin import solved
from ivvi.weak_iv.robust_effect_intervals import TOO_WEAK, UNBOUNDED, RobustIntervals, settled
from ivvi.weak_iv.tf_critical_values import ENOUGH_F, TWO_SIDED, tf_critical_value

pytestmark = pytest.mark.filterwarnings("ignore::ivvi.errors.IvviWarning")


def made(rng, n=400, effect=0.0, *, first=5.0, endogeneity=0.9, instruments=1, actions=1):
    """Return rows of a heteroskedastic problem with first-stage t's of about `first`."""
    z = rng.normal(size=(n, instruments))
    v = rng.normal(size=(n, actions))
    e = endogeneity * v[:, 0] + math.sqrt(1 - endogeneity**2) * rng.normal(size=n)
    spread = np.sqrt(0.5 + 0.5 * z[:, 0] ** 2)
    moved = np.eye(instruments)[:, :actions] + (actions == 1)
    a = first * math.sqrt(2 / n) * z @ np.minimum(moved, 1) + v * spread[:, None]
    return {"a": a, "z": z, "y0": effect * a[:, 0] + e * spread}


def opened(rows, **others):
    roles = {"action": "a*", "instrument": "z*", "next_state": "y0", "state": ()}
    return ivvi.read_logs(rows, **roles | others)


# tF


def test_tf_critical_values_are_the_published_ones():
    """Lee, McCrary, Moreira and Porter (2022): factors of 9.519 at F = 4, c = 3.43 at F = 10."""
    assert tf_critical_value(4.0) / TWO_SIDED == pytest.approx(9.519, rel=5e-4)
    assert tf_critical_value(10.0) == pytest.approx(3.43, abs=0.005)
    assert pytest.approx(104.67, abs=0.01) == ENOUGH_F
    assert tf_critical_value(105.0) == TWO_SIDED
    assert tf_critical_value(3.8) == math.inf


def test_tf_rejects_five_percent_at_the_worst():
    """At a correlation of one, whatever the strength: |t| = |v| |f0 + v| / f0, v normal."""
    v = np.linspace(-9, 9, 60_001)
    weight = np.exp(-(v**2) / 2)
    weight /= weight.sum()
    roots = np.linspace(TWO_SIDED + 1e-6, 20, 4000)
    critical = np.array([tf_critical_value(root**2) for root in roots])
    for f0 in (0.2, 0.7, 1.5, 3.0, 5.0, 8.0):
        f = np.abs(f0 + v)
        c = np.where(f <= TWO_SIDED, np.inf, np.interp(f, roots, critical))
        assert weight[np.abs(v) * f / f0 > c].sum() == pytest.approx(0.05, abs=5e-4)


def test_one_action_and_one_instrument_have_tf():
    fit = ivvi.estimate(opened(made(np.random.default_rng(0))))
    one = fit.robust_intervals.get("y0", "a0")
    w, se = fit.W[0, 1], fit.se[0, 1]
    half = tf_critical_value(fit.diagnostics.effective_f.value) * se
    assert one.method == "tF"
    np.testing.assert_allclose(one.ends, (w - half, w + half), rtol=1e-12)


# sets of several instruments or actions

SHAPES = {"clr": (1, 4), "just identified": (2, 2), "over-identified": (2, 4), "three": (3, 3)}


@pytest.mark.parametrize("se", ["unadjusted", "robust", "clustered"])
@pytest.mark.parametrize("shape", mark_thorough(SHAPES, "three"))
def test_the_interval_is_the_confidence_set_under_the_errors_of_the_fit(shape, se):
    actions, instruments = SHAPES[shape]
    rows = made(np.random.default_rng(3), 900, first=20, actions=actions, instruments=instruments)
    rows["episode"] = np.repeat(np.arange(180), 5)
    log = opened(rows, episode="episode")
    fit = ivvi.estimate(log, se=se)
    for feature in ("a0", f"a{actions - 1}"):
        one = fit.robust_intervals.get("y0", feature)
        confidence_set = ivvi.interval(fit, "y0", feature, method=one.method, se=se, log=log)
        np.testing.assert_allclose(one.intervals, confidence_set.intervals, rtol=1e-5)
        assert one.level == confidence_set.level == 0.95


def test_one_instrument_has_one_set_by_either_name():
    log = opened(made(np.random.default_rng(1)))
    for se in ("unadjusted", "robust"):
        ar, clr = (ivvi.interval(log, "y0", "a0", method=word, se=se) for word in ("ar", "clr"))
        assert ar.intervals == clr.intervals
        assert ar.distribution == clr.distribution


# the verdict


def test_strong_is_where_wald_agrees():
    rng = np.random.default_rng(2)
    strong = ivvi.estimate(opened(made(rng, first=15.0)))
    assert (strong.diagnostics.verdict.word, strong.to_json()["recommended"]) == ("strong", "wald")
    between = ivvi.estimate(opened(made(rng, first=6.5)))
    f = between.diagnostics.effective_f
    assert f.critical[1] < f.value < 60  # strong by the first stage alone
    verdict = between.diagnostics.verdict
    assert (verdict.word, verdict.recommended) == ("doubtful", "robust")
    assert "the robust interval (tF) differs from Wald's" in verdict.rule
    assert "instead of Wald's" in between.model.verdict.sentence


def test_an_unbounded_interval_is_told_in_every_place(tmp_path):
    rows = made(np.random.default_rng(4), first=0.1)
    z = rows["z"] - rows["z"].mean()
    rows["a"] = rows["a"] - 0.95 * z @ np.linalg.lstsq(z, rows["a"])[0]  # hardly moved at all
    fit = ivvi.estimate(opened(rows))
    described = json.loads(json.dumps(fit.to_json()))
    one = described["robust_interval"]["y0"]["a0"]
    assert one["unbounded"]
    assert not one["empty"]
    assert (one["method"], one["level"], one["low"], one["high"]) == ("tF", 0.95, None, None)
    assert described["diagnostics"]["verdict"] == "weak"
    assert "(-inf, inf)" in fit.summary()
    assert "recommended       the intervals that hold however weak" in fit.summary()
    page = report(fit, tmp_path / "report.html").read_text()
    assert "(-inf, inf) (tF)" in page


def test_no_interval_is_recommended_where_there_is_none_to_trust(tmp_path):
    fit = ivvi.estimate(opened(made(np.random.default_rng(3), first=1.0, actions=2, instruments=3)))
    assert fit.robust_intervals.too_weak
    assert not fit.robust_intervals.intervals
    verdict = fit.diagnostics.verdict
    assert (verdict.word, verdict.recommended) == ("weak", "none")
    assert fit.to_json()["recommended"] == "none"
    assert "recommended       no interval in this table; `ivvi interval`" in fit.summary()
    page = report(fit, tmp_path / "report.html").read_text()
    assert "Report no interval from the table" in page
    doubtful = replace(verdict, word="doubtful")
    assert "trust no interval" in doubtful.sentence


@pytest.mark.parametrize(("reason", "word"), [(TOO_WEAK, "doubtful"), (UNBOUNDED, "strong")])
def test_strong_instruments_stay_strong_where_a_joint_set_cannot_be_made(reason, word):
    """A set of 21 effects together that is not bounded says nothing about strong instruments."""
    verdict = settled(Verdict("strong", "F"), RobustIntervals({}, {("y", "a"): reason}))
    assert (verdict.word, verdict.recommended) == (word, "wald" if word == "strong" else "none")


def test_many_instruments_are_not_strong_where_wald_is_off_centre():
    """Thirty instruments at an F of 11: the estimate is off by 1.4 standard errors."""
    rng = np.random.default_rng(5)
    words = []
    for _ in range(5):
        z, v = rng.normal(size=(1000, 30)), rng.normal(size=1000)
        a = 0.1 * z.sum(axis=1) + v
        y = 0.9 * v + math.sqrt(0.19) * rng.normal(size=1000)
        words.append(ivvi.estimate(opened({"a0": a, "z": z, "y0": y})).diagnostics.verdict.word)
    assert "strong" not in words


def test_methods_without_robust_intervals_say_why():
    log = opened(made(np.random.default_rng(6), first=20))
    for method, why in (("least-squares", "does not use"), ("ridge", "shrunk")):
        fit = ivvi.estimate(log, method=method)
        assert not fit.robust_intervals.intervals
        assert why in fit.to_json()["robust_interval_reason"]


def test_of_many_effects_the_first_have_intervals():
    log = ivvi.make_env("linear", dim=6).collect(episodes=100, horizon=20, seed=1)
    robust = ivvi.estimate(log).robust_intervals
    assert len(robust.intervals) + len(robust.reasons) == 24
    assert "only 24 of 36 effects" in robust.reason


COVERED = {  # first-stage t or F, endogeneity
    "heteroskedastic": lambda rng: made(rng, first=4.0),
    "heteroskedastic, stronger": lambda rng: made(rng, first=7.0),
    "two instruments": lambda rng: made(rng, first=4.0, instruments=2),
}


@pytest.mark.slow
@pytest.mark.parametrize("design", COVERED)
def test_the_recommended_interval_holds_the_truth(design):
    """95% of 400 logs, within three standard errors below; above, tF may be safe."""
    rng, covered = np.random.default_rng(7), 0
    for _ in range(400):
        fit = ivvi.estimate(opened(COVERED[design](rng)))
        w, half = fit.W[0, 1], TWO_SIDED * fit.se[0, 1]
        one = fit.robust_intervals.get("y0", "a0")
        pieces = one.intervals
        if fit.to_json()["recommended"] == "wald":
            pieces = ((w - half, w + half),)
        covered += any(low <= 0 <= high for low, high in pieces)
    assert covered / 400 >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / 400)


# features that hold an action


def own(x, u):
    xp = u.__array_namespace__()
    return xp.concatenate([xp.ones_like(u), x, u, u * x[..., :1]], axis=-1)


def instrumented(strength, n=1500):
    rng = np.random.default_rng(8)
    x, z, e = rng.normal(size=(n, 2)), rng.normal(size=n), rng.normal(size=n)
    a = strength * z + e + rng.normal(size=n)
    rows = {"x": x, "a0": a, "z0": z, "y0": x[:, 0] - 0.5 * a + e}
    return ivvi.read_logs(rows, state="x*", action="a0", instrument="z0", next_state="y0")


@pytest.mark.parametrize("features", ["poly2", "poly2:cross", "spline:4", "own"])
def test_every_feature_map_has_a_verdict(features):
    names = ["one", "p", "q", "w", "wp"]
    maps = (custom(own, names), custom(own, names)) if features == "own" else (features, None)
    for strength, word in ((0.02, "weak"), (2.0, "strong")):
        fit = ivvi.estimate(instrumented(strength), *maps)
        assert fit.diagnostics.verdict.word == word, fit.diagnostics.verdict.rule
        (action,) = fit.to_json()["diagnostics"]["actions"].values()
        assert action["verdict"] == word
        assert action["weakest_feature"] in action["features"]
        assert set(action["features"]) == {s.feature for s in fit.diagnostics.first_stage}
    weak = ivvi.estimate(instrumented(0.02), *maps)
    assert any(text.startswith("weak instruments") for text in weak.warnings)


def test_a_custom_map_is_judged_as_the_same_map_in_words():
    """Products of states and functions of one's own are exogenous where psi determines them."""
    log = instrumented(0.3)
    cross = polynomial(2, cross=True)
    names = cross.names(["x0", "x1"], ["u"])
    mine = custom(lambda x, u: cross(x, u), names)
    words, functions = ivvi.estimate(log, "poly2:cross"), ivvi.estimate(log, mine, mine)
    np.testing.assert_allclose(functions.se, words.se, rtol=1e-5)
    ours, theirs = (fit.diagnostics for fit in (functions, words))
    assert ours.kleibergen_paap.f == pytest.approx(theirs.kleibergen_paap.f, rel=1e-5)
    assert [s.partial_f.value for s in ours.first_stage] == pytest.approx(
        [s.partial_f.value for s in theirs.first_stage], rel=1e-5
    )
    assert [s.feature for s in theirs.first_stage] == ["a0", "a0^2", "x0*a0", "x1*a0"]


def test_features_that_hold_an_action_are_found():
    held = holding(polynomial(2, cross=True), 1, 2, None)
    names = polynomial(2, cross=True).names(["x"], ["a", "b"])
    told = [{n for n, one in zip(names, row, strict=True) if one} for row in held]
    assert told[0] == {"a", "a^2", "x*a", "a*b"}
    assert told[1] == {"b", "b^2", "x*b", "a*b"}


# where the verdict is kept, and what else is told


def test_the_verdict_is_kept_with_the_model(tmp_path):
    fit = ivvi.estimate(opened(made(np.random.default_rng(9), first=1.0)))
    saved = ivvi.load_model(fit.save(tmp_path / "model")).verdict
    assert saved == fit.model.verdict
    assert saved.word == fit.diagnostics.verdict.word != "strong"
    assert fit.baseline_model.verdict is None


def test_no_probability_exceeds_one():
    assert noncentral_tail(1e-9, 40.0, 400.0) <= 1.0
    assert all(noncentral_tail(v, k, 10 * k) <= 1.0 for v in (0.01, 0.5) for k in (1.0, 7.3, 30.0))


def test_collinear_states_are_called_collinear():
    rng = np.random.default_rng(10)
    x, z, e = rng.normal(size=(300, 2)), rng.normal(size=300), rng.normal(size=300)
    x = np.column_stack([x, x.sum(axis=1) + 3])
    rows = {"x": x, "a0": z + e, "z0": z, "y0": x[:, 0] + e}
    log = ivvi.read_logs(rows, state="x*", action="a0", instrument="z0", next_state="y0")
    with pytest.raises(IdentificationError, match=r"features are collinear: .* is 0, or nearly 0"):
        ivvi.estimate(log)


def test_a_regressor_warns_of_an_irrelevant_instrument():
    rng = np.random.default_rng(11)
    e, z = rng.normal(size=(2, 500))
    a = e + rng.normal(size=500)
    with pytest.warns(IvviWarning, match="weak instruments"):
        IVRegressor().fit(a[:, None], a + e, Z=z[:, None])


def test_the_report_compares_robust_statistics_with_robust_ones(tmp_path):
    rows = made(np.random.default_rng(12), 600, first=20, actions=2, instruments=2)
    fit = ivvi.estimate(opened(rows), se="robust")
    page = report(fit, tmp_path / "report.html").read_text()
    assert "robust conditional F" in page
    value = fit.diagnostics.first_stage[0].robust_conditional_f.value
    assert f"{value:.0f}" in page


def test_too_few_clusters_for_a_set_are_a_reason():
    rows = made(np.random.default_rng(13), 200, first=20, instruments=12)
    rows["episode"] = np.repeat(np.arange(10), 20)
    try:
        fit = ivvi.estimate(opened(rows, episode="episode"), se="clustered")
    except DataError:
        pytest.skip("fewer clusters than coefficients are refused")
    assert "clusters are too few" in next(iter(fit.robust_intervals.reasons.values()))


def test_singular_curvatures_are_solved_by_the_shortest_step():
    singular = np.stack([np.diag([2.0, 0.0]), np.eye(2)])
    np.testing.assert_allclose(solved(singular, np.ones((2, 2))), [[0.5, 0.0], [1.0, 1.0]])
