"""A table with text, dates and deaths, from `ivvi fit` to `ivvi act` and `ivvi value`."""

import json

import numpy as np
import pytest

from helpers import assert_refused, run, write_table

FIT = (
    *("--state", "vital,sex", "--action", "drug", "--instrument", "loo:doctor"),
    *("--episode", "patient", "--step", "date", "--reward", "comfort", "--terminal", "died"),
)


@pytest.mark.parametrize("kind", ["auto", "clustered", "cr2", "wild"])
def test_errors_are_clustered_by_the_name_that_became_an_instrument(kind, tmp_path):
    """Doctors are the draws of the instrument, whatever the kind of errors."""
    log = write_table(visits(patients=100), tmp_path / "log.parquet")
    out = ("--out", tmp_path / "model", "--json", "-")
    done = run("fit", log, *FIT, "--drop-missing", "--se", kind, *out)
    assert done.code == 0, done.err
    assert json.loads(done.out)["clusters"] == {"doctor": 8}


def visits(patients=300, days=6):
    rng = np.random.default_rng(0)
    rows = []
    for patient in range(patients):
        vital, sex = rng.choice(["bad", "good"]), rng.choice(["f", "m"])
        for day in range(days):
            doctor = rng.integers(8)
            drug = ("A", "B", "none")[np.searchsorted([0.1 + 0.08 * doctor, 0.8], rng.random())]
            died = rng.random() < (0.1 if drug == "none" and vital == "bad" else 0.02)
            comfort = (vital == "good") - 0.1 * (drug != "none") - 3.0 * died
            when = np.datetime64("2024-02-01") + day
            rows.append((f"P{patient}", str(when), f"D{doctor}", sex, vital, drug, comfort, died))
            if died:
                break
            vital = "good" if rng.random() < 0.3 + 0.5 * (drug == "A") else "bad"
    names = ("patient", "date", "doctor", "sex", "vital", "drug", "comfort", "died")
    return {name: np.array(part) for name, part in zip(names, zip(*rows, strict=True), strict=True)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a log, a model and a policy."""
    folder = tmp_path_factory.mktemp("raw")
    log = write_table(visits(), folder / "visits.csv")
    fitted = run("fit", log, *FIT, "--out", folder / "model", "--json", folder / "fit.json")
    assert fitted.code == 0, fitted
    assert "vital: 2 levels, reference 'bad'" in fitted.out
    assert "(died)" in fitted.out
    planned = run(
        *("plan", folder / "model", "--reward", "learned", "--horizon", 5),
        *("--method", "value-iteration", "--out", folder / "policy"),
    )
    assert planned.code == 0, planned
    return folder


def test_a_policy_acts_by_the_names_of_levels(folder):
    result = run("act", folder / "policy", "--state", "vital=bad,sex=f")
    assert result.code == 0, result
    assert result.out.splitlines() == ["drug", "A"]
    states = write_table({"sex": ["m"], "vital": ["good"]}, folder / "states.csv")
    out = folder / "decided.csv"
    assert run("act", folder / "policy", "--states", states, "--out", out).code == 0
    assert out.read_text().splitlines()[0].replace('"', "") == "vital,sex,drug"


def test_decisions_stand_beside_whose_they_are(folder):
    rows = {"patient": ["P7", "P8"], "sex": ["m", "f"], "vital": ["good", "bad"], "drug": ["", "B"]}
    states = write_table(rows, folder / "patients.csv")
    out = folder / "orders.csv"
    assert run("act", folder / "policy", "--states", states, "--out", out).code == 0
    lines = [line.replace('"', "") for line in out.read_text().splitlines()]
    assert lines[0] == "patient,vital,sex,drug"
    assert [line.split(",")[0] for line in lines[1:]] == ["P7", "P8"]
    assert lines[2] == "P8,bad,f,A"


@pytest.mark.usefixtures("few_episodes")
def test_its_value_knows_the_end(folder):
    facts = folder / "value.json"
    result = run(
        *("value", folder / "policy", "--model", folder / "model", "--draws", 20),
        *("--against", "zero", "--start", "bad,f", "--json", facts),
    )
    assert result.code == 0, result
    low, high = json.loads(facts.read_text())["values"]["policy"]["interval"]
    assert -20 < low < high < 5


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        ("vital=worse,sex=f", "'vital' of --state holds 'worse', which is none of the levels"),
        ("vital=bad", "--state: no column 'sex'"),
        ("bad", "has 1 values; expected 2: vital, sex"),
    ],
)
def test_states_that_the_log_does_not_know_are_refused(folder, state, sentence):
    assert_refused(run("act", folder / "policy", "--state", state), sentence)


def test_an_unseen_level_is_another_when_asked(folder):
    result = run("act", folder / "policy", "--state", "worse,f", "--unseen", "bad")
    assert result.out.splitlines() == ["drug", "A"]


def test_decisions_on_standard_output_stand_beside_whose_they_are(folder):
    rows = {"patient": ["P7", "P8"], "sex": ["m", "f"], "vital": ["good", "bad"]}
    states = write_table(rows, folder / "whose.csv")
    result = run("act", folder / "policy", "--states", states)
    assert result.out.splitlines()[0] == "patient,drug"
    assert result.out.splitlines()[2] == "P8,A"


def test_a_state_that_the_model_does_not_have_is_called_as_the_user_typed_it(folder):
    result = run("act", folder / "policy", "--state", "Vital=bad,sex=f")
    assert_refused(result, "names 'Vital', which is no state; did you mean 'vital'?")


def test_a_column_that_a_table_of_states_has_twice_is_refused(folder):
    (folder / "twice.csv").write_text("sex,vital,vital\nm,good,bad\n")
    result = run("act", folder / "policy", "--states", folder / "twice.csv")
    assert_refused(result, "has 2 columns named 'vital'")
