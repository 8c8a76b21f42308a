"""Choosing the size of a sieve, and bands for whole curves."""

import json

import numpy as np
import pytest

import ivvi
from ivvi import InputError
from ivvi.errors import DataError
from ivvi.estimators import Exact


def rows(seed, episodes=60, steps=20, bend=0.0):
    """Draw a log with x' = 0.3 x + bend x^2 - 0.5 a + e, states exogenous."""
    rng = np.random.default_rng(seed)
    n = episodes * steps
    x, z, e, noise = rng.normal(size=(4, n))
    a = z + e + noise
    t = np.arange(n)
    named = {"episode": t // steps, "step": t % steps, "x0": x, "a0": a, "z0": z}
    return named | {"next_x0": 0.3 * x + bend * x**2 - 0.5 * a + e}


def test_the_smallest_sufficient_size_is_chosen(simulated):
    words = ["linear", "spline:4", "spline:8", "spline:12"]
    straight = ivvi.choose_features(ivvi.read_logs(rows(1)), words)
    assert straight.word == "linear"
    bent = ivvi.choose_features(simulated("nonlinear", 1, episodes=60, horizon=500), words)
    assert bent.word in ("spline:8", "spline:12")
    assert bent.candidates[1].better > 5 * bent.candidates[1].spread
    assert f"{bent.word:<14}" in str(bent)
    assert json.loads(json.dumps(bent.to_json()))["word"] == bent.word


@pytest.mark.parametrize(("bend", "right"), [(0.0, "linear"), (0.4, "poly2")])
def test_the_choice_does_not_depend_on_the_order_of_the_words(bend, right):
    """At least 6 of 8 logs: the rule bends a linear truth in one of forty at most."""
    hits = 0
    for seed in range(8):
        log = ivvi.read_logs(rows(seed, bend=bend))
        words = np.random.default_rng(seed).permutation(["linear", "poly2", "poly3"]).tolist()
        choice = ivvi.choose_features(log, words)
        assert choice == ivvi.choose_features(log, ["linear", "poly2", "poly3"])
        hits += choice.word == right
    assert hits >= 6


def test_degrees_can_be_chosen_too():
    log = ivvi.read_logs(rows(0, bend=0.4))
    assert ivvi.choose_features(log, ["linear", "poly2", "poly3"]).word == "poly2"


def test_the_criterion_follows_its_definition(moments_of):
    named = rows(1, bend=0.2)
    choice = ivvi.choose_features(ivvi.read_logs(named), ["linear", "poly2"], folds=3)
    x, a, z, y = (named[name][:, None] for name in ("x0", "a0", "z0", "next_x0"))
    fold, losses = named["episode"] % 3, []
    for f in range(3):
        out = fold == f
        linear, bent = (
            moments_of(x[~out], a[~out], z[~out], y[~out], features=word)
            for word in ("linear", "poly2")
        )
        W0, W = (Exact().solve(train).W[0] for train in (linear, bent))
        psi = np.column_stack([np.ones(len(x)), x, z, x**2, z**2])
        moved = np.column_stack([a, a**2])
        first = np.linalg.lstsq(psi[~out], moved[~out])[0]
        action, square = (psi[out] @ first).T
        one, state = np.ones(out.sum()), x[out, 0]
        h = np.column_stack([one, state, action, state**2, square]) @ W
        h0 = np.column_stack([one, state, action]) @ W0
        r0 = y[out, 0] - linear.design.phi(x[out], a[out]) @ W0
        noise = np.mean((y[~out, 0] - linear.design.phi(x[~out], a[~out]) @ W0) ** 2)
        losses.append(np.mean((r0 - (h - h0)) ** 2 - r0**2) / noise)
    assert [c.word for c in choice.candidates] == ["linear", "poly2"]
    assert choice.candidates[0].gain == pytest.approx(0.0, abs=1e-9)
    assert choice.candidates[1].gain == pytest.approx(-np.mean(losses), rel=1e-6)


def test_an_effect_that_changes_with_the_state_is_found_among_the_defaults():
    rng = np.random.default_rng(5)
    x, z, e = rng.normal(size=(3, 2000))
    a = z + e
    named = {"episode": np.arange(2000) // 20, "x0": x, "a0": a, "z0": z}
    log = ivvi.read_logs(named | {"next_x0": 0.3 * x + np.sin(2 * x) * a + e})
    assert ivvi.choose_features(log).word.endswith(":vary")


def test_what_is_not_identified_is_not_chosen():
    named = rows(2)
    named["z0"] = np.sign(named["z0"])  # its square is constant: nothing moves a^2 alone
    named["a0"] = named["a0"] + named["z0"]
    choice = ivvi.choose_features(ivvi.read_logs(named), ["linear", "poly2"])
    assert choice.word == "linear"
    assert choice.candidates[1].gain == -np.inf
    assert choice.to_json()["candidates"][1]["gain"] is None


def test_choices_that_cannot_be_made_are_refused():
    log = ivvi.read_logs(rows(0))
    with pytest.raises(InputError, match="the candidates are linear"):
        ivvi.choose_features(log, ["linear"])
    with pytest.raises(InputError, match="folds is 1"):
        ivvi.choose_features(log, folds=1)
    with pytest.raises(DataError, match="at least 2 episodes"):
        ivvi.choose_features(ivvi.read_logs(rows(0, episodes=1, steps=200)), ["linear", "poly2"])


@pytest.fixture(scope="module", name="fit")
def bent_fit():
    return ivvi.estimate(ivvi.read_logs(rows(3, bend=0.4)), "poly2", episodes=True)


def test_a_curve_is_w_phi_with_the_errors_of_the_jackknife(fit):
    curve = ivvi.curve(fit, "x0", "x0", at={"a0": 0.5}, span=(-1, 2), points=31)
    x = np.linspace(-1, 2, 31)
    Phi = np.column_stack([np.ones(31), x, np.full(31, 0.5), x**2, np.full(31, 0.25)])
    np.testing.assert_allclose(curve.estimate, Phi @ fit.W[0], rtol=1e-10)
    named = rows(3, bend=0.4)
    without = []
    for e in range(60):
        log = ivvi.read_logs({k: v[named["episode"] != e] for k, v in named.items()})
        without.append(Phi @ ivvi.estimate(log, "poly2").W[0] - curve.estimate)
    expected = np.sqrt(59 / 60 * np.sum(np.square(without), axis=0))
    np.testing.assert_allclose(curve.se, expected, rtol=1e-6)
    np.testing.assert_allclose(curve.upper - curve.estimate, curve.critical * curve.se)


METHODS = ("exact", "least-squares", "kclass:0.5", "liml", "shrunk", "gmm")


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:k = 0.5 is far below one")
@pytest.mark.parametrize("method", [*METHODS, ivvi.estimators.Penalised("ridge", 0.3)])
def test_errors_of_a_curve_are_those_of_its_method(method):
    """Against the spread of the estimates of 60 logs: four errors of that, and of its bias."""
    estimates, errors = [], []
    for seed in range(60):
        fit = ivvi.estimate(ivvi.read_logs(rows(seed)), method=method, episodes=True)
        curve = ivvi.curve(fit, "a0", "x0", span=(0, 2), points=3, draws=20)
        estimates.append(curve.estimate)
        errors.append(curve.se)
    ratio = np.std(estimates, axis=0, ddof=1) / np.sqrt(np.mean(np.square(errors), axis=0))
    assert np.abs(ratio - 1).max() < 4 / np.sqrt(2 * 60)


def test_beyond_so_many_episodes_groups_of_them_are_left_out(monkeypatch):
    fit = ivvi.estimate(ivvi.read_logs(rows(3, episodes=200)), episodes=True)
    every = ivvi.curve(fit, "a0", "x0")
    monkeypatch.setattr("ivvi.fitting.effects.curve.MOST_GROUPS", 70)
    some = ivvi.curve(fit, "a0", "x0")
    error = np.sqrt(1 / (2 * 70) + 1 / (2 * 200))  # of a standard error, relative
    assert 0 < np.abs(some.se / every.se - 1).max() < 4 * error
    assert some.critical > every.critical - 0.1


def test_a_band_for_the_whole_is_wider_than_for_a_point(fit):
    whole = ivvi.curve(fit, "x0", "x0", draws=20_000)
    assert 2.2 < whole.critical < 3.5
    line = ivvi.estimate(ivvi.read_logs(rows(3)), episodes=True)
    single = ivvi.curve(line, "a0", "next_x0", against=0.0, draws=20_000)
    assert 1.97 < single.critical < 2.07  # one coefficient: about t(59), 2.00, error 0.016
    assert single.estimate[0] == pytest.approx(line.W[0, 2] * single.x[0])
    assert ivvi.curve(fit, "x0", "x0", level=0.5).critical < whole.critical


def test_spans_come_from_the_data(fit):
    curve = ivvi.curve(fit, "a0", "x0")
    a = rows(3, bend=0.4)["a0"]
    np.testing.assert_allclose(curve.x[[0, -1]], [a.mean() - 2 * a.std(), a.mean() + 2 * a.std()])
    spline = ivvi.estimate(ivvi.read_logs(rows(3)), "spline:6", episodes=True)
    knots = spline.estimate.design.phi.blocks[1].grids[0]
    np.testing.assert_allclose(ivvi.curve(spline, "x0", "x0").x[[0, -1]], [knots[1], knots[-2]])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ivvi.errors.IvviWarning")
@pytest.mark.parametrize("episodes", [15, 30, 60])
def test_bands_hold_the_whole_curve_in_95_percent_of_400_logs(episodes):
    """Within four binomial errors; bands for each point alone hold it less often."""
    held, at_points = [], []
    for seed in range(400):
        log = ivvi.read_logs(rows(seed, episodes, bend=0.4))
        fit = ivvi.estimate(log, "poly2", episodes=True)
        curve = ivvi.curve(fit, "x0", "x0", at={"a0": 1.0}, span=(-2, 2), draws=1000)
        truth = 0.3 * curve.x + 0.4 * curve.x**2 - 0.5
        off = np.abs(curve.estimate - truth) / curve.se
        held.append((off <= curve.critical).all())
        at_points.append((off <= 1.96).all())
    assert abs(np.mean(held) - 0.95) <= 4 * (0.95 * 0.05 / 400) ** 0.5
    assert np.mean(at_points) < 0.90


def test_a_plot_is_written_once(fit, tmp_path):
    curve = ivvi.curve(fit, "x0", "x0")
    curve.plot(tmp_path / "curve.svg")
    assert (tmp_path / "curve.svg").read_text().count("<path") > 5
    with pytest.raises(InputError, match="exists"):
        curve.plot(tmp_path / "curve.svg")
    figure = curve.plot(tmp_path / "curve.svg", force=True)
    assert figure.axes[0].get_xlabel() == "x0"
    assert json.loads(json.dumps(curve.to_json()))["output"] == "next_x0"


def test_curves_that_cannot_be_drawn_are_refused(fit):
    with pytest.raises(InputError, match="no state or action 'x00'; did you mean 'x0'"):
        ivvi.curve(fit, "x00", "x0")
    with pytest.raises(InputError, match="no output 'next_x00'; did you mean 'next_x0'"):
        ivvi.curve(fit, "x0", "next_x00")
    with pytest.raises(InputError, match="estimate with episodes=True"):
        ivvi.curve(ivvi.estimate(ivvi.read_logs(rows(3))), "x0", "x0")
