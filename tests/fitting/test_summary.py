"""What `estimate` says: the summary, its numbers, its warnings, and its JSON."""

import json
import re

import numpy as np
import pytest

import ivvi
from ivvi.errors import IvviWarning
from ivvi.estimators import Exact


@pytest.fixture(scope="module")
def fit(simulated):
    return ivvi.estimate(simulated("linear", 2, episodes=20, horizon=50))


@pytest.fixture(scope="module")
def weak_log(log_of):
    """Return a log whose instrument does nothing."""
    rng = np.random.default_rng(0)
    x, z, e = (rng.normal(size=(400, 1)) for _ in range(3))
    a = e + rng.normal(size=(400, 1))
    return log_of(x, a, z, x - a + e)


@pytest.fixture(scope="module")
def free_fit(log_of):
    """Return the fit of two actions with one instrument."""
    rng = np.random.default_rng(1)
    x, z, e = (rng.normal(size=(400, d)) for d in (1, 1, 2))
    a = z + e
    log = log_of(x, a, z, x - a[:, :1] + e[:, 1:])
    with pytest.warns(IvviWarning, match="not identified"):
        return ivvi.estimate(log, allow_unidentified=True)


def table_of(text, output):
    """Read the numbers of one output's table back from the text, by feature."""
    lines = text.split(f"output {output}\n")[1].split("\n\n")[0].splitlines()[2:]
    found = {}
    for line in lines:
        name, *numbers = line.split()
        found[name] = [float(n.rstrip("s")) for n in numbers]
    return found


def test_least_squares_stands_alone(simulated):
    plain = ivvi.estimate(simulated("linear", 2, episodes=20, horizon=50), method="least-squares")
    text = plain.summary()
    head = text.split("output next_x0\n")[1].splitlines()[0]
    assert head.split() == ["LS", "std.err.", "t", "[95%", "conf.]"]
    for j, numbers in enumerate(table_of(text, "next_x0").values()):
        assert len(numbers) == 5
        assert numbers[0] == pytest.approx(plain.W[0, j], rel=5.1e-3, abs=5.1e-5)


def test_numbers_are_those_of_the_fit(fit):
    text = fit.summary()
    for i, output in enumerate(("next_x0", "next_x1")):
        rows = table_of(text, output)
        assert list(rows) == ["Constant", *fit.estimate.design.phi_names[1:]]
        assert fit.estimate.design.phi_names == ("1", "x0", "x1", "a0", "a1")
        for j, numbers in enumerate(rows.values()):
            w, s, ls = fit.W[i, j], fit.se[i, j], fit.baseline.W[i, j]
            wanted = [w, s, w / s, w - 1.959964 * s, w + 1.959964 * s, ls, (ls - w) / s]
            for number, exact in zip(numbers, wanted, strict=True):
                assert number == pytest.approx(exact, rel=0.01, abs=0.06)
            assert numbers[0] == pytest.approx(w, rel=5.1e-3, abs=5.1e-5)
            assert numbers[1] == pytest.approx(s, rel=5.1e-3, abs=5.1e-5)


def test_intervals_of_corrected_errors_are_students(simulated):
    """As wide as the Wald test of the same errors says: p = 0.05 at both ends."""
    log = simulated("linear", 2, episodes=20, horizon=50)
    fit = ivvi.estimate(log, se=ivvi.StandardErrors("clustered", debiased=True))
    low, high = table_of(fit.summary(), "next_x0")["a0"][3:5]
    for end in (low, high):
        assert fit.wald(f"next_x0: a0 = {end}").p_value == pytest.approx(0.05, abs=0.002)


def test_diagnostics_are_those_of_the_fit(fit):
    text, d = fit.summary(), fit.diagnostics
    assert "1,000 transitions of 20 episodes, method exact" in text
    assert fit.label in text
    assert f"strength mu_iv    {d.strength.mu_iv:.4g}" in text
    assert f"mu_B              {d.strength.mu_b:.4g}" in text
    assert d.strength.weakest in text
    assert "identified        yes: rank of A is 5 of 5, rank of psi 5 of 5" in text
    assert f"Cragg-Donald F    {d.cragg_donald:.4g}" in text
    for stage in d.first_stage:
        assert re.search(
            rf"first stage {stage.feature} .*{stage.robust_f.value:.4g} .*F\(2, 19\)", text
        )
    assert "Sargan            - (just identified" in text
    for test in d.by_output["robust_wu_hausman"]:
        assert f"{test.value:<12.4g} F(2, 19)" in text
    assert f"verdict           STRONG\n  rule            {d.verdict.rule}\n" in text
    assert "dropped rows      none" in text
    assert "WARNING" not in text


def test_dropped_rows_are_counted(simulated):
    table = simulated("linear", 2, episodes=20, horizon=50).to_arrow()
    log = ivvi.read_logs(table.drop_columns(["next_x0", "next_x1"]))
    fit = ivvi.estimate(log)
    assert fit.dropped == {"without next state": 20, "with missing values": 0}
    assert "dropped rows      20 without next state" in fit.summary()
    assert fit.to_json()["dropped"] == fit.dropped
    assert fit.to_json()["n"] == 980


def test_long_summaries_are_cut(simulated, fit):
    wide = ivvi.estimate(simulated("linear", 10, episodes=20, horizon=50))
    text = wide.summary()
    assert "output next_x5" in text
    assert "output next_x6" not in text
    assert "... and 4 more outputs" in text
    assert "output next_x9" in wide.summary(most_outputs=None)
    assert "output next_x1" not in fit.summary(most_outputs=1)


def test_weak_instruments_are_warned_about(weak_log):
    with pytest.warns(IvviWarning, match="weak instruments: the effective F is"):
        fit = ivvi.estimate(weak_log)
    assert "WARNING weak instruments" in fit.summary()
    assert fit.to_json()["warnings"] == list(fit.warnings)
    assert len(fit.warnings) == 1


def test_warnings_point_at_the_caller(weak_log):
    with pytest.warns(IvviWarning) as caught:
        ivvi.estimate(weak_log)
    assert caught[0].filename == __file__


def test_what_is_not_identified_is_said(free_fit):
    text = free_fit.summary()
    assert re.search(r"^a0 +-?\d\S* +not identified +-?\d", text, re.MULTILINE)
    assert "identified        NO: rank of A is 3 of 4" in text
    assert f"  free direction  {free_fit.estimate.unidentified[0]}" in text
    assert "WARNING not identified" in text
    assert "Cragg-Donald F    - (the instruments do not identify the dynamics)" in text
    assert np.isnan(free_fit.se).any()
    assert "nan" not in text.lower()


@pytest.mark.parametrize("which", ["fit", "free_fit"])
def test_json_is_valid_and_complete(which, request):
    fit = request.getfixturevalue(which)
    facts = json.loads(json.dumps(fit.to_json(), allow_nan=False))
    assert facts["W"] == fit.W.tolist()
    assert facts["K"] == fit.K.tolist()
    assert facts["phi"] == list(fit.estimate.design.phi_names)
    assert facts["psi"] == list(fit.estimate.design.psi_names)
    assert facts["outputs"] == list(fit.roles.outputs)
    assert facts["noise_cov"] == fit.estimate.noise_cov.tolist()
    assert (facts["n"], facts["episodes"]) == (fit.moments.n, fit.counts.episodes)
    assert facts["method"] == "exact"
    assert facts["seconds"] > 0
    for row, errors in zip(facts["se"], fit.se, strict=True):
        assert row == [None if np.isnan(s) else s for s in errors]
    d = facts["diagnostics"]
    assert d["mu_iv"] == fit.diagnostics.strength.mu_iv
    assert d["identified"] == (which == "fit")
    for word in ("rank", "mu_b", "first_stage", "sargan", "wu_hausman", "kleibergen_paap"):
        assert word in d
    for word in ("cragg_donald", "kleibergen_paap", "sargan", "wu_hausman"):
        assert d[word] is not None or d["reasons"][word]
    assert set(d["first_stage"]) == {name for name in facts["phi"] if name.startswith("a")}


def test_tests_are_reported_for_each_output(confounded, log_of):
    fit = ivvi.estimate(log_of(*confounded(0, n=2000, d_z=3)))
    text, facts = fit.summary(), fit.to_json()["diagnostics"]
    for i, output in enumerate(("y0", "y1")):
        for title in ("hansen_j", "robust_wu_hausman"):
            test = fit.diagnostics.by_output[title][i]
            assert facts[title][output]["p_value"] == test.p_value
            assert f"  {output:<15} {test.value:<12.4g} {test.distribution}" in text
            assert f"p = {test.p_value:.4f}" in text


def test_a_summary_names_its_method(simulated):
    log = simulated("linear", 2, episodes=20, horizon=50)
    fit = ivvi.estimate(log, method="least-squares")
    assert "method least-squares" in fit.summary()
    np.testing.assert_array_equal(fit.W, fit.baseline.W)
    plain, debiased = (
        ivvi.estimate(log, se=ivvi.StandardErrors("unadjusted", debiased=d)) for d in (False, True)
    )
    np.testing.assert_allclose(debiased.se, plain.se * np.sqrt(1000 / 995))


def test_the_repr_of_a_fit_is_one_short_line(fit):
    assert repr(fit) == f"Fit({fit.label}, exact, n=1,000, W 2 x 5)"


def test_fit_holds_the_model_that_was_estimated(fit):
    model = fit.model
    x, a = np.array([[1.0, -2.0]]), np.array([[0.5, 0.25]])
    np.testing.assert_allclose(model.mean(x, a), np.c_[1.0, x, a] @ fit.W.T)
    assert (model.state, model.action) == (("x0", "x1"), ("a0", "a1"))
    assert model.outputs == ("next_x0", "next_x1")


def test_moments_go_on_with_another_log(simulated, fit):
    """Adding the moments of a second log is fitting both together."""
    other = ivvi.estimate(simulated("linear", 2, episodes=20, horizon=50, seed=1))
    both = Exact().solve(fit.moments + other.moments)
    assert both.n == 2000
    ratio = both.se / Exact().solve(fit.moments).se
    assert (ratio < 0.85).all()
    assert (ratio > 0.6).all()


@pytest.mark.parametrize("values", [2, 3])
def test_the_effect_of_a_treatment_is_said_to_be_that_on_those_whom_the_instrument_moves(values):
    rng = np.random.default_rng(0)
    z, u, e = rng.normal(size=(3, 1000))
    a = np.clip(np.round(z + u), 0, values - 1)
    rows = {"z": z, "a": a, "y": a + u + e}
    fit = ivvi.fit(ivvi.read_logs(rows, action="a", instrument="z", next_state="y"))
    told = "the effect on those whose treatment the instrument changes" in fit.summary()
    assert told == (values == 2)


@pytest.mark.filterwarnings("ignore::ivvi.errors.IvviWarning")
def test_effects_on_next_states_are_said_to_count_episodes_that_ended():
    """Their states stay as they are, so an effect is that on survivors times their share."""
    rng, rows = np.random.default_rng(0), []
    for episode in range(400):
        x, step, died = rng.normal(), 0, False
        while step < 10 and not died:
            u, z, e = rng.normal(size=3)
            a, died = z + u + rng.normal(), rng.random() < 0.1
            rows.append((episode, step, x, a, z, float(died)))
            x, step = 0.6 * x - 0.5 * a + u + 0.3 * e, step + 1
    columns = dict(zip(("episode", "step", "x", "a", "z", "died"), np.array(rows).T, strict=True))
    roles = {"state": "x", "action": "a", "instrument": "z"}
    fit = ivvi.fit(ivvi.read_logs(columns, **roles, terminal="died"))
    share = fit.counts.ended / fit.counts.transitions
    assert abs(fit.W[0, 2] + 0.5 * (1 - share)) < 5 * fit.se[0, 2]
    assert f"counts as keeping its state ({share:.1%} of rows)" in fit.summary()
    assert "counts as keeping" not in ivvi.fit(ivvi.read_logs(columns, **roles)).summary()
