"""The three plain sentences with which results open, in worlds whose answer is known."""

from dataclasses import replace

import numpy as np
import pytest

import ivvi
from ivvi.diagnostics.result import format_number
from ivvi.errors import IvviWarning, PlanningWarning


def log_of(strength=1.0, confounded=1.0, seed=0, n=2000, two=False):
    """One step: y = -a + 2 c e, a = strength (z + w) + c e + noise; w may be invalid."""
    rng = np.random.default_rng(seed)
    x, z, w, e, noise = rng.normal(size=(5, n))
    a = strength * (z + w) + confounded * e + noise
    table = {"x": x, "a": a, "z": z, "w": w}
    table["y"] = -a + 0.5 * x + 2 * confounded * e + rng.normal(size=n) + two * w
    instrument = ("z", "w") if two else "z"
    return ivvi.read_logs(table, state="x", action="a", instrument=instrument, next_state="y")


def words(result):
    return dict(result.brief.items)


def test_a_strong_instrument_in_a_confounded_log_is_good_enough_and_turns_a_sign():
    fit = ivvi.fit(log_of(confounded=2.0))
    told = words(fit)
    assert told["Instrument"].startswith("Good enough: the effective F is ")
    assert "flipped a sign: one more a changes y by -" in told["Confounding"]
    assert f"regression says {fit.baseline.W[0, 2]:+.3g}" in told["Confounding"]
    assert "`ivvi plan`" in told["Next"]
    panel = words(fit.diagnostics)
    assert panel["Instrument"] == told["Instrument"]
    assert panel["Confounding"].startswith("Yes: regression and the instrument disagree about y")


def test_one_instrument_has_nothing_to_disagree_with():
    fit = ivvi.fit(log_of())
    assert fit.diagnostics.by_output["sargan"] is None
    for brief in (fit.brief, fit.diagnostics.brief):
        assert "disagree somewhat" not in brief.text
    assert words(fit)["Next"].startswith("`ivvi plan`")


@pytest.mark.parametrize("formula", ["y ~ 1 | a ~ z + w", "y ~ x + I(x**2) | a ~ z + w"])
def test_instruments_of_a_formula_contradict_each_other_too(formula):
    with pytest.warns(IvviWarning, match="contradict each other"):
        fit = ivvi.fit(log_of(two=True), formula=formula)
    assert fit.diagnostics.verdict.word == "contradictory"


def test_a_turned_sign_is_told_before_a_larger_gap():
    rng = np.random.default_rng(6)
    x, z, e, noise, w = rng.normal(size=(5, 4000))
    a = z + e + noise
    table = {"x": x, "a": a, "z": z, "far": 3 * a + 9 * e + 0.1 * w, "turned": -0.5 * a + 3 * e}
    roles = {"state": "x", "action": "a", "instrument": "z", "next_state": ["far", "turned"]}
    fit = ivvi.fit(ivvi.read_logs(table, **roles))
    gap = np.abs(fit.baseline.W - fit.W)[:, 2]
    assert gap[0] > gap[1]
    told = words(fit)["Confounding"]
    assert told.startswith("It flipped a sign: one more a changes turned by -0.")


@pytest.mark.filterwarnings("ignore:linear features are too simple")
def test_levels_and_products_are_told_as_what_they_are():
    rng = np.random.default_rng(3)
    n = 4000
    z, e = rng.normal(size=(2, n))
    sick = rng.choice(["no", "yes"], n)
    drug = np.where(z + e > 0, "high", "low")
    y = np.where(sick == "yes", -3.0, 0.0) * (drug == "high") + 2 * e
    rows = {"sick": sick, "drug": drug, "z": z, "y": y}
    log = ivvi.read_logs(rows, state="sick", action="drug", instrument="z", next_state="y")
    told = words(ivvi.fit(log))["Confounding"]
    (level,) = {"high", "low"} - {log.roles.categories[1].levels[0]}
    assert f"drug = {level} instead of " in told
    rows["y"] = np.where(sick == "yes", y, rng.normal(size=n))  # of the well, not confounded
    log = ivvi.read_logs(rows, state="sick", action="drug", instrument="z", next_state="y")
    cross = replace(ivvi.fit(log, "linear:cross"), sample=None)  # nothing to average over
    assert f": the coefficient of sick[yes]*drug[{level}] for y is " in words(cross)["Confounding"]


def test_effects_of_crossed_features_are_told_by_their_average():
    """y = -a + 2 e whatever x is; the coefficient of a is the effect at x = 0, far outside."""
    rng = np.random.default_rng(5)
    n = 4000
    z, e = rng.normal(size=(2, n))
    table = {"x": 50 + rng.normal(size=n), "a": z + e + rng.normal(size=n), "z": z}
    table["y"] = 0.5 * table["x"] - table["a"] + 2 * e + rng.normal(size=n)
    log = ivvi.read_logs(table, state="x", action="a", instrument="z", next_state="y")
    fit = ivvi.fit(log, "linear:cross")
    told = words(fit)["Confounding"]
    average = fit.W[0] @ [0, 0, 1, table["x"].mean()]
    assert fit.estimate.design.phi_names[2:] == ("a", "x*a")
    assert f"one more a changes y by {average:.3g} (standard error 0.0" in told
    assert abs(average + 1) < 0.2


def test_a_log_without_confounding_is_called_so():
    """At 5%; of several seeds at least one agrees, or the test of confounding has no size."""
    told = [words(ivvi.fit(log_of(confounded=0.0, seed=seed))) for seed in range(5)]
    assert any(one["Confounding"].startswith("None visible") for one in told)
    asked = [words(ivvi.diagnose(log_of(confounded=0.0, seed=seed))) for seed in range(5)]
    assert any(one["Confounding"].startswith("None was found") for one in asked)


def test_the_interval_of_the_headline_is_the_one_that_is_recommended():
    """F of about 50: the tF interval is wider than Wald's, and the one to report."""
    fit = ivvi.fit(log_of(strength=0.25, confounded=2.0, seed=1, n=4000))
    assert fit.diagnostics.verdict.recommended == "robust"
    robust = fit.robust_intervals.get("y", "a")
    low, high = robust.ends
    assert f"[{low:.3g}, {high:.3g}]" in words(fit)["Confounding"]
    row = next(row for row in fit.records() if row["feature"] == "a")
    assert (row["robust_low"], row["robust_high"]) == robust.ends
    assert row["robust_low"] < row["low"] < row["high"] < row["robust_high"]


def test_regression_is_not_contradicted_by_an_interval_that_holds_it():
    """Wald's interval leaves regression out, the wider one that is recommended does not."""
    fits = [ivvi.fit(log_of(strength=0.13, confounded=0.6, seed=s)) for s in range(12)]
    told = [words(fit)["Confounding"] for fit in fits]
    for fit, said in zip(fits, told, strict=True):
        low, high = fit.robust_intervals.get("y", "a").ends
        holds = low <= fit.baseline.W[0, 2] <= high
        assert not (holds and said.startswith("It ")) or fit.diagnostics.verdict.word == "strong"
    assert any(said.startswith("Not certain: one more a changes y by") for said in told)


def test_the_wild_bootstrap_is_recommended_where_it_was_asked_for():
    log = ivvi.make_env("linear", dim=1).collect(episodes=15, horizon=40, seed=1)
    fit = ivvi.fit(log, se=ivvi.StandardErrors("wild", draws=199))
    low, high = fit.inference.wild["next_x0", "a0"].interval
    assert fit.to_json()["recommended"] == "wild"
    assert f"[{low:.3g}, {high:.3g}]" in words(fit)["Confounding"]
    assert "recommended       the intervals of the wild bootstrap" in fit.summary()


def test_confounding_without_other_noise_is_certain_and_not_absent():
    """The first stage's residual is the confounder itself: nothing is left to test with."""
    rng = np.random.default_rng(0)
    z, e = rng.normal(size=(2, 500))
    table = {"a": z + e, "z": z, "y": e - z}
    log = ivvi.read_logs(table, action="a", instrument="z", next_state="y")
    d = ivvi.diagnose(log)
    for name in ("wu_hausman", "robust_wu_hausman"):
        assert d.by_output[name][0].p_value < 1e-6
    assert words(d)["Confounding"].startswith("Yes")


@pytest.mark.filterwarnings("ignore:weak instruments")
def test_a_weak_instrument_forbids_to_plan():
    fit = ivvi.fit(log_of(strength=0.01))
    told = words(fit)
    assert told["Instrument"].startswith("Too weak: the effective F is ")
    assert "cannot show" in told["Confounding"]
    assert "`ivvi interval`" in told["Next"]
    assert "plan" not in told["Next"]


def test_instruments_that_contradict_each_other_are_named_before_a_fit():
    with pytest.warns(IvviWarning, match="contradict each other"):
        told = words(ivvi.diagnose(log_of(two=True)))
    assert told["Instrument"].startswith("Contradictory")
    assert "at least one is invalid" in told["Instrument"]
    assert "--suspect" in told["Next"]


def test_a_fit_with_instruments_that_contradict_each_other_is_not_to_be_planned_with():
    with pytest.warns(IvviWarning, match="contradict each other"):
        fit = ivvi.fit(log_of(two=True))
    told = words(fit)
    assert told["Instrument"].startswith("Contradictory")
    assert "cannot show" in told["Confounding"]
    assert told["Next"].startswith("Do not plan with it. Find the invalid instrument")
    assert fit.to_json()["recommended"] == "none"
    with pytest.warns(PlanningWarning, match="contradict each other"):
        policy = ivvi.plan(fit, "quadratic", (-1, 1), horizon=2, method="mpc", compare=False)
    assert words(policy)["Next"].startswith("Do not act on it")


@pytest.mark.filterwarnings("ignore::ivvi.errors.IvviWarning")
def test_differences_of_a_delayed_effect_are_contradictory_and_not_to_be_planned_with():
    """x' = 0.8 x - 0.1 a - 0.6 a of the step before: the earlier instrument acts by itself."""
    rng = np.random.default_rng(0)
    x, before, rows = rng.normal(size=100), np.zeros(100), []
    for step in range(10):
        z, u = rng.normal(size=(2, 100))
        a = z + 0.7 * u
        rows.append((np.arange(100), np.full(100, step), x, a, z))
        x, before = 0.8 * x - 0.1 * a - 0.6 * before + 0.6 * u, a
    columns = dict(zip(("id", "t", "x", "a", "z"), np.hstack(rows), strict=True))
    roles = {"state": "x", "action": "a", "instrument": "z", "episode": "id", "step": "t"}
    fit = ivvi.fit(ivvi.read_logs(columns, **roles), difference=True)
    assert fit.verdict.word == "contradictory"
    assert "Do not plan" in words(fit)["Next"]
    assert "--lags 1" in words(fit)["Next"]


def test_powers_of_one_instrument_do_not_contradict_each_other():
    """y = a^2 with linear phi and z, z^2 in psi: J rejects, and no instrument is invalid."""
    rng = np.random.default_rng(0)
    z, e = rng.normal(size=(2, 2000))
    a = z + e
    log = ivvi.read_logs(
        {"a": a, "z": z, "y": a**2 + e}, action="a", instrument="z", next_state="y"
    )
    fit = ivvi.fit(log, "linear", "poly2")
    assert fit.diagnostics.by_output["hansen_j"][0].p_value < 1e-6
    assert fit.diagnostics.verdict.word != "contradictory"
    assert "instruments disagree" not in words(fit)["Next"]


def test_a_direct_effect_that_hardly_matters_does_not_make_instruments_contradictory():
    """With 200,000 rows J sees a direct effect of a hundredth of what the action does."""
    rng = np.random.default_rng(0)
    n = 200_000
    z, w, e, x, noise = rng.normal(size=(5, n))
    a = z + w + e
    y = x - a + e + 0.02 * w + noise
    table = {"x": x, "a": a, "z": z, "w": w, "y": y}
    log = ivvi.read_logs(table, state="x", action="a", instrument=("z", "w"), next_state="y")
    fit = ivvi.fit(log)
    assert fit.diagnostics.by_output["hansen_j"][0].p_value < 1e-3
    assert fit.diagnostics.verdict.word == "strong"


def test_regression_says_that_it_is_regression():
    told = words(ivvi.fit(log_of(), method="least-squares"))
    assert told["Instrument"] == "Not used: this is regression."


@pytest.mark.filterwarnings("ignore:not identified")
def test_effects_that_are_not_identified_are_said_first():
    rng = np.random.default_rng(0)
    z, a, b, y = rng.normal(size=(4, 300))
    table = {"a": a + z, "b": b, "z": z, "y": y}
    log = ivvi.read_logs(table, action=("a", "b"), instrument="z", next_state="y")
    told = words(ivvi.diagnose(log))
    assert told["Instrument"].startswith("Not enough")
    assert "instrument for each action" in told["Next"]


def test_checks_are_ranked_and_tell_their_level():
    """An instrument that follows the state breaks balance; what fails stands first."""
    rng = np.random.default_rng(0)
    rows = {name: [] for name in ("episode", "step", "x", "a", "z")}
    for episode in range(150):
        x = rng.normal()
        for step in range(8):
            e = rng.normal()
            z = 0.8 * e + rng.normal()  # not free of the shock, so tomorrow knows yesterday
            a = z + e + rng.normal()
            for name, value in zip(rows, (episode, step, x, a, z + 0.9 * x), strict=True):
                rows[name].append(value)
            x = 0.5 * x - 0.4 * a + e
    log = ivvi.read_logs(rows, state="x", action="a", instrument="z")
    checks = ivvi.check(log)
    lines = checks.summary().splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("check "))
    assert "LOOK: p below 0.01" in lines[head]
    verdicts = [line for line in lines[head:] if "  fine" in line or "  LOOK" in line]
    assert verdicts == sorted(verdicts, key=lambda line: "  LOOK" not in line)
    p_values = [check.test.p_value for check in checks.checks if check.test and check.passed]
    shown = [float(line.split("  fine")[0].split()[-1]) for line in verdicts if "  fine" in line]
    assert shown == pytest.approx(sorted(p_values), abs=1e-4)
    told = words(checks)
    assert "0.01" in told["Dynamics"] + told["Instrument"]
    if checks.failed:
        worst = min(checks.failed, key=lambda check: check.test.p_value)
        assert told["Next"].startswith(worst.name)


def test_the_summary_of_a_fit_shows_the_f_of_its_verdict():
    rng = np.random.default_rng(1)
    rows = {"episode": np.repeat(np.arange(100), 5), "step": np.tile(np.arange(5), 100)}
    z = np.repeat(rng.normal(size=100), 5)
    e = rng.normal(size=500)
    rows |= {"x": rng.normal(size=500), "a": z + e + rng.normal(size=500), "z": z}
    fit = ivvi.fit(ivvi.read_logs(rows, state="x", action="a", instrument="z"))
    (stage,) = fit.diagnostics.first_stage
    assert f"the effective F is {stage.robust_f.value:.4g}" in fit.brief.text.replace("\n", " ")
    line = next(line for line in fit.summary().splitlines() if line.startswith("first stage"))
    assert f"F {stage.robust_f.value:.4g}" in line


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (11000.0, "11000.00"),
        (-1234567.8, "-1234568"),
        (808.5396, "808.5396"),
        (12.0, "12.0000"),
        (0.0, "0.0000"),
        (1e-5, "1.00e-05"),
        (-2.5e9, "-2.50e+09"),
        (9999.99999, "10000.00"),
    ],
)
def test_numbers_of_a_table_keep_their_digits_in_nine_places(value, shown):
    assert format_number(value) == shown.rjust(9)


def test_where_no_interval_can_be_trusted_the_sets_of_one_effect_come_before_a_plan():
    rng = np.random.default_rng(2)
    x, z, w, e, noise, more = rng.normal(size=(6, 600))
    a, b = z + e + noise, 0.18 * w + e + more
    table = {"x": x, "a": a, "b": b, "z": z, "w": w, "y": 0.5 * a - 0.3 * b + e}
    columns = {"state": "x", "action": ("a", "b"), "instrument": ("z", "w"), "next_state": "y"}
    fit = ivvi.fit(ivvi.read_logs(table, **columns))
    verdict = fit.diagnostics.verdict
    assert (verdict.word, verdict.recommended) == ("doubtful", "none")
    assert words(fit)["Next"].startswith("Before planning, run `ivvi interval`")
