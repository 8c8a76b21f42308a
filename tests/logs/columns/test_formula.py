"""Formulas: the same fits as column lists, formulaic's columns, and where they go wrong."""

import json
import re

import numpy as np
import pytest

import ivvi
from helpers import run, write_table
from ivvi import InputError
from ivvi.features.design import build_design

KEYS = {"episode": "patient", "step": "visit"}
OPTIONS = ("--episode", "patient", "--step", "visit")
ISSUE = (
    "next_severity ~ severity + C(ward) + severity:age | patient + visit | dose ~ doctor + distance"
)
pytestmark = pytest.mark.filterwarnings("ignore::ivvi.errors.IvviWarning")


def make_visits(patients=60, visits=8, seed=0):
    """Return the columns of a hospital's log whose doses a hidden need moved."""
    rng = np.random.default_rng(seed)
    n = patients * visits
    patient, visit = np.repeat(np.arange(patients), visits), np.tile(np.arange(visits), patients)
    need, distance = rng.normal(size=(2, n))
    ward, doctor = rng.integers(3, size=(2, n))
    age = rng.integers(20, 80, size=patients)[patient] / 10
    dose = distance + (doctor == 1) + need + rng.normal(size=n)
    severity = np.zeros(n)
    for k in range(visits - 1):
        at = np.flatnonzero(visit == k)
        drift = 0.5 * severity[at] - 0.4 * dose[at] + (ward[at] == 1) + need[at]
        severity[at + 1] = drift + rng.normal(size=patients)
    names = np.array(["ann", "bob", "cid"])[doctor]
    numbers = {"age": age, "ward": ward, "distance": distance, "dose": dose, "severity": severity}
    return {"patient": patient, "visit": visit, "doctor": names.tolist(), **numbers}


VISITS = make_visits()


def opened(formula, rows=VISITS, **options):
    return ivvi.read_logs(rows, formula=formula, **KEYS | options)


def assert_alike(ours, theirs):
    """Assert that two JSON values are equal, numbers up to rounding."""
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            assert_alike(ours[name], value)
    elif isinstance(theirs, list):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_alike(one, other)
    elif isinstance(theirs, float):
        assert ours == pytest.approx(theirs, rel=1e-7, abs=1e-12)
    else:
        assert ours == theirs


@pytest.mark.parametrize(
    ("formula", "columns", "absorb"),
    [
        (
            "next_severity ~ severity + age | dose ~ distance",
            {"state": "severity", "context": "age", "instrument": "distance"},
            (),
        ),
        (
            "next_severity ~ severity + C(ward) + age | | dose ~ doctor + distance",
            {
                "state": "severity",
                "context": "ward,age",
                "categorical": "ward",
                "instrument": "doctor,distance",
            },
            (),
        ),
        (
            "severity ~ age | patient | dose ~ loo(doctor)",
            {"next_state": "severity", "state": "age", "instrument": "loo:doctor"},
            "patient",
        ),
        (
            "next_severity ~ severity | patient + visit | dose ~ distance",
            {"state": "severity", "instrument": "distance"},
            "patient,visit",
        ),
    ],
)
def test_a_formula_fits_as_the_columns_that_it_names(formula, columns, absorb):
    """The same digits but for rounding: BLAS adds in an order that depends on where rows lie."""
    rows = VISITS
    if "severity ~ age" in formula:  # absorbed ages would leave nothing
        rows = VISITS | {"age": np.random.default_rng(1).normal(size=len(VISITS["age"]))}
    by_name = ivvi.read_logs(rows, action="dose", **columns, **KEYS)
    fit = ivvi.fit(opened(formula, rows))
    expected = ivvi.fit(by_name, absorb=absorb)
    assert fit.estimate.design.phi_names == expected.estimate.design.phi_names
    np.testing.assert_allclose(fit.W, expected.W, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(fit.se, expected.se, rtol=1e-10)
    assert_alike(fit.diagnostics.to_json(), expected.diagnostics.to_json())
    again = ivvi.fit(by_name, formula=formula)  # the columns of an opened log give way
    np.testing.assert_allclose(again.W, expected.W, rtol=1e-10, atol=1e-13)


def test_chosen_interactions_are_the_products_in_columns_of_their_own():
    formula = (
        "next_severity ~ severity + severity:age + I(age**2) | dose + dose:age ~ distance*age - age"
    )
    fit = ivvi.fit(opened(formula))
    assert fit.estimate.design.phi_names == (
        *("1", "severity", "severity*age", "age^2", "dose", "age*dose"),
    )
    age, severity = VISITS["age"], VISITS["severity"]
    columns = VISITS | {
        "sa": severity * age,
        "aa": age**2,
        "da": VISITS["dose"] * age,
        "za": VISITS["distance"] * age,
    }
    by_name = ivvi.read_logs(
        columns,
        **{"state": "severity", "context": "sa,aa", "action": "dose,da"},
        **{"instrument": "distance,za", **KEYS},
    )
    expected = ivvi.fit(by_name)
    np.testing.assert_allclose(fit.W, expected.W, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(fit.se, expected.se, rtol=1e-9)


@pytest.mark.parametrize(
    "terms",
    ["age + C(ward)", "age * C(ward)", "age + I(age**3) + severity:age", "(age + severity)**2"],
)
@pytest.mark.peers
def test_features_are_the_columns_of_formulaic(terms):
    import pandas as pd
    from formulaic import model_matrix

    log = ivvi.read_logs(VISITS, formula=f"dose ~ {terms} | distance ~ visit")
    rows = build_design(log, "linear").rows(log.to_batch())
    matrix = model_matrix(terms, pd.DataFrame(VISITS)).to_numpy()[:, 1:]
    ours = {tuple(np.round(column, 9)) for column in rows.T}
    assert {tuple(np.round(column, 9)) for column in matrix.T} <= ours
    assert rows.shape[1] == matrix.shape[1] + 3  # distance, visit, dose


@pytest.mark.peers
def test_a_formula_without_a_constant_is_linearmodels_without_one():
    import pandas as pd
    from linearmodels.iv import IV2SLS

    rows = pd.DataFrame(VISITS)
    formula = "severity ~ 0 + age | dose ~ distance + visit"
    fit = ivvi.fit(ivvi.read_logs(rows, formula=formula), se="robust")
    peer = IV2SLS(rows.severity, rows[["age"]], rows[["dose"]], rows[["distance", "visit"]]).fit(
        cov_type="robust"
    )
    np.testing.assert_allclose(fit.W[0], peer.params, rtol=1e-10)
    np.testing.assert_allclose(fit.se[0], peer.std_errors, rtol=1e-10)


PLANNED = "next_severity ~ severity + C(ward) + severity:age | dose ~ distance + doctor"


def test_a_fit_by_formula_is_saved_and_updated_as_any_other(tmp_path):
    write_table(VISITS, tmp_path / "log.parquet")
    more, model = make_visits(seed=1), tmp_path / "model"
    write_table(more, tmp_path / "more.parquet")
    about = (tmp_path / "log.parquet", "--formula", PLANNED, *OPTIONS)
    assert run("fit", *about, "--out", model).code == 0
    saved = ivvi.load_fit(model)
    assert saved.roles.formula == PLANNED
    assert f"formula {PLANNED}" in saved.summary()
    np.testing.assert_array_equal(saved.W, ivvi.fit(opened(PLANNED)).W)
    longer = ivvi.update(model, str(tmp_path / "more.parquet"))
    both = {n: np.concatenate([VISITS[n], more[n]]) for n in VISITS}
    both["patient"] = np.concatenate([VISITS["patient"], more["patient"] + 1000])
    np.testing.assert_allclose(longer.W, ivvi.fit(opened(PLANNED, both)).W, rtol=1e-9)


@pytest.mark.thorough
def test_a_fit_by_formula_is_planned_with_and_acts(tmp_path):
    fit = ivvi.fit(opened(PLANNED))
    x, a = np.array([[2.0, 0.0, 1.0, 5.0]]), np.array([[0.5]])  # severity, ward 2, age; dose
    by_hand = fit.W[0] @ [1, 2, 0, 1, 2 * 5, 0.5]
    np.testing.assert_allclose(fit.model.mean(x, a)[0, 0], by_hand, rtol=1e-12)
    fit.save(tmp_path / "model")
    plan = ("plan", tmp_path / "model", "--reward", "quadratic:weight=1,target=0", "--horizon", 2)
    bounds = ("--action-low", -1, "--action-high", 1, "--method", "mpc")
    assert run(*plan, *bounds, "--out", tmp_path / "policy").code == 0
    act = run("act", tmp_path / "policy", "--state", "severity=2,ward=2,age=5")
    assert act.code == 0, act
    assert "1" in act.out  # the largest dose: it lowers the severity


def test_the_formula_of_a_panel_absorbs_and_diagnoses_in_the_shell(tmp_path):
    write_table(VISITS, tmp_path / "log.parquet")
    about = (tmp_path / "log.parquet", "--formula", ISSUE, *OPTIONS)
    for verb in (("fit", "--out", tmp_path / "model"), ("diagnose",)):
        result = run(verb[0], *about, *verb[1:], "--json", "-")
        assert result.code == 0, result
        phi = json.loads(result.out)["phi"]
        assert phi[1:] == ["severity", "ward[1]", "ward[2]", "severity*age", "dose"]
    kept = ivvi.interval(opened(ISSUE), "severity", "dose")
    fit = ivvi.load_fit(tmp_path / "model")
    assert fit.absorbed is not None
    assert fit.W[0, -1] in kept
    for verb in (("check",), ("moments", "--out", tmp_path / "sums")):
        result = run(verb[0], *about, *verb[1:])
        assert (result.code, result.err.count("\n")) == (2, 1)
        assert "remove `| patient + visit`" in result.err


@pytest.mark.parametrize(
    ("formula", "place", "what"),
    [
        ("next_severity ~ severity + | dose ~ doctor", 26, "operator"),
        ("next_severity ~ (severity | dose ~ doctor", 17, "not closed"),
        ("next_severity ~ severity) | dose ~ doctor", 25, "without an opening bracket"),
        ("next_severity ~ severity | `dose ~ doctor", 28, "not closed"),
        ("next_severity ~ severity", 25, "actions ~ instruments missing"),
        ("next_severity", 1, "an output and a ~ missing"),
        ("next_severity ~ severity | dose ~ doctor ~ age", 42, "a second ~"),
        ("next_severity ~ log(age) | dose ~ doctor", 17, "log(age) is not a term"),
        ("next_severity ~ severity 3 | dose ~ doctor", 17, "missing operator"),
        ("next_severity ~ age | patient + visit:age | dose ~ doctor", 33, "absorbed column"),
        ("next_severity ~ severity | dose ~", 34, "an instrument missing"),
        ("y ~ x | g | a ~ z | b ~ c", 19, "too many parts"),
        ("next_severity ~ . | dose ~ doctor", 16, "the `.` operator"),
    ],
)
def test_a_formula_that_does_not_parse_is_refused_with_the_place(formula, place, what, tmp_path):
    write_table(VISITS, tmp_path / "log.parquet")
    about = ("fit", tmp_path / "log.parquet", "--formula", formula, *OPTIONS)
    result = run(*about, "--out", tmp_path / "model")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert f"at character {place} (" in result.err
    assert what in result.err
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("formula", "what"),
    [
        ("next_severity ~ severty | dose ~ doctor", "did you mean 'severity'"),
        ("nxt ~ severity | dose ~ doctor", "'nxt' of the formula is not a column"),
        ("next_severity ~ severity:dose | dose ~ doctor", "own side of the last ~"),
        ("next_severity ~ severity | dose ~ severity", "own side of the last ~"),
        ("next_severity ~ severity | dose ~ dose", "action and an instrument"),
        ("next_severity ~ severity | dose:age ~ doctor", "which column is the action"),
        ("next_severity ~ C(ward):age | dose ~ doctor", "expected age + age:C(ward)"),
        ("next_severity ~ 0 + C(ward) | dose ~ distance", "expected 1 + C(ward)"),
        ("next_severity ~ age + C(age) | dose ~ distance", "as a number and as a category"),
        ("next_age + next_severity ~ severity | dose ~ distance", "never changes"),
        ("dose + age + next_severity ~ ward | distance ~ doctor", "at most one, the reward"),
        ("next_severity ~ severity | patient | dose ~ doctor", "remove --absorb"),
    ],
)
def test_a_formula_that_does_not_fit_the_log_is_refused_by_name(formula, what):
    absorb = "visit" if "patient" in formula else ()
    with pytest.raises(InputError, match=re.escape(what)):
        ivvi.fit(opened(formula), absorb=absorb)


def test_columns_and_features_beside_a_formula_are_refused():
    formula = "next_severity ~ severity | dose ~ distance"
    with pytest.raises(InputError, match="exclude each other"):
        opened(formula, state="severity")
    with pytest.raises(InputError, match="defines its own features"):
        ivvi.fit(opened(formula), "poly2")
    with pytest.raises(InputError, match="remove phi and psi"):
        ivvi.fit(opened(formula), ivvi.linear(), ivvi.linear(), formula=formula)
    with pytest.raises(InputError, match="for logs"):
        ivvi.fit(ivvi.fit(opened(formula)).shard, formula=formula)


def test_a_reward_and_several_states_are_outputs_of_one_formula():
    formula = "next_severity + dose ~ severity | distance ~ doctor"
    fit = ivvi.fit(opened(formula))
    assert fit.roles.outputs == ("next_severity", "dose")
    assert fit.roles.reward == "dose"
