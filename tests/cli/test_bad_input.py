"""Bad input is refused with one sentence, in Python and on the command line alike.

Each case says how to make the input and which facts the sentence must name. From Python it
is an `InputError`; on the command line exit code 2, one line, and nothing is written.
"""

import pytest

from bad_cases import CASES, COLUMN_CASES, DATA_CASES, FILE_CASES, table
from helpers import OPTIONS, assert_refused, fit_json, mark_thorough, run, run_process
from ivvi import InputError, make_env


@pytest.mark.parametrize("name", CASES)
def test_python_raises_an_input_error(name, tmp_path):
    case = CASES[name]
    with pytest.raises(case.error) as caught:
        case.fit(tmp_path)
    assert isinstance(caught.value, InputError)
    for fact in case.facts:
        assert fact in str(caught.value)


@pytest.mark.parametrize("name", CASES)
def test_fit_refuses_with_one_line_and_writes_nothing(name, tmp_path):
    case, out = CASES[name], tmp_path / "out"
    source = case.make(tmp_path)
    out.mkdir()
    before = sorted(tmp_path.rglob("*"))
    result = run("fit", source, *case.options(), "--out", out / "model", "--json", out / "fit.json")
    assert_refused(result, *case.facts)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "name", mark_thorough(COLUMN_CASES | DATA_CASES | FILE_CASES, *DATA_CASES, *FILE_CASES)
)
def test_diagnose_refuses_with_one_line_and_writes_nothing(name, tmp_path):
    case = CASES[name]
    source = case.make(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    result = run("diagnose", source, *case.options(), "--json", tmp_path / "found.json")
    assert_refused(result, *case.facts)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "name",
    mark_thorough(["NaN", "constant instrument", "truncated Parquet"], "constant instrument"),
)
def test_a_process_ends_the_same_way(name, tmp_path):
    case = CASES[name]
    result = run_process("fit", case.make(tmp_path), *case.options(), "--out", tmp_path / "model")
    assert_refused(result, *case.facts)
    assert not (tmp_path / "model").exists()


def test_a_process_that_sorted_leaves_nothing_in_the_temporary_folder(tmp_path):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    case = CASES["duplicate out of order"]
    result = run_process(
        "fit", case.make(tmp_path), *case.options(), "--out", tmp_path / "m", TMPDIR=temporary
    )
    assert_refused(result, *case.facts)
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_missing_rows_are_dropped_on_request_and_reported(ending, tmp_path):
    source = table(ending, x1={17: None, 18: None}, z0={40: None})(tmp_path)
    facts, _ = fit_json(source, *OPTIONS, "--drop-missing", folder=tmp_path)
    # rows 17, 18 and 40 go, and 16 loses its next row (40 begins an episode, so 39 ends one)
    assert facts["dropped"] == {"with missing values": 3, "without next state": 6 + 1}
    assert (facts["n"], facts["episodes"]) == (60 - 3 - 7, 6)
    result = run("fit", source, *OPTIONS, "--drop-missing", "--out", tmp_path / "again")
    assert "7 without next state, 3 with missing values" in result.out


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        ({"name": "liner"}, ("unknown simulator 'liner'", "did you mean 'linear'?")),
        ({"name": "chess"}, ("unknown simulator 'chess'", "linear, nonlinear, recommender")),
        ({"setting": "VII"}, ("unknown setting 'VII'", "I, II, III, IV, V, VI")),
        ({"name": "nonlinear", "setting": "0"}, ("unknown setting '0'",)),
        ({"dim": 0}, ("dimension is 0", "at least 1")),
        ({"name": "recommender", "dim": 3}, ("10 categories", "a dimension of 3")),
        ({"name": "recommender", "ratings": "absent.dat"}, ("absent.dat",)),
    ],
)
def test_unknown_simulators_and_settings_are_refused(settings, facts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = {"name": "linear"} | settings
    with pytest.raises(InputError) as caught:
        make_env(**given)
    for fact in facts:
        assert fact in str(caught.value)
    name = given.pop("name")
    options = [part for key, value in given.items() for part in (f"--{key}", value)]
    assert_refused(run("simulate", name, *options, "--out", "log.parquet"), *facts)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("what", ["episodes", "horizon"])
@pytest.mark.parametrize("number", [0, -3])
def test_a_simulation_of_nothing_is_refused(what, number, tmp_path, simulator):
    fact = f"{what} is {number}; expected at least 1"
    with pytest.raises(InputError, match=fact):
        simulator("linear", 1).collect(**{what: number})
    result = run("simulate", "linear", f"--{what}", number, "--out", tmp_path / "log.parquet")
    assert_refused(result, fact)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (["--verson"], ("--verson",)),
        (["fitt"], ("fitt", "fit")),
        (["fit"], ("--out",)),
        (["fit", "log.parquet"], ("--out",)),
        (["fit", "log.parquet", "--out", "m", "--stat", "x*"], ("--stat", "--state")),
        (["fit", "log.parquet", "--out", "m", "--state"], ("--state",)),
        (["fit", "log.parquet", "more", "--out", "m"], ("more",)),
        (["fit", "log.parquet", "--out", "m", "--ridge", "much"], ("--ridge",)),
        (["fit", "log.parquet", "--out", "m", "--ridge", "-1"], ("penalty is -1", "negative")),
        (["fit", "log.parquet", "--out", "m", "--ridge", "inf"], ("--ridge is inf", "finite")),
        (["fit", "log.parquet", "--out", "m", "--cluster", ","], ("cluster columns are ','",)),
        (
            ["fit", "l.csv", "--out", "m", "--checkpoint", "c", "--checkpoint-every", "-1"],
            ("is -1 seconds", "0 or more"),
        ),
        (["sensitivity", "p", "--model", "m", "--most", "inf"], ("--most is inf", "finite")),
        (["evaluate", "p", "--env", "linear", "--seed", "-1"], ("the seed is -1",)),
        (
            ["simulate", "linear", "--out", "l.parquet", "--episodes", "9" * 400],
            ("--episodes", "more than 18 digits"),
        ),
        (["fit", "log.parquet", "--out", "m", "--se", "best"], ("'best'", "robust")),
        (["fit", "log.parquet", "--out", "m", "--passes", "3"], ("--passes", "sgda", "exact")),
        (["fit", "--out", "m", "--moments", "s", "--phi", "poly2"], ("--phi", "moments")),
        (["fit", "--out", "m", "--moments", "s", "--weight", "w"], ("--weight", "moments")),
        (["moments", "l.csv", "--out", "m", "--like", "s", "--psi", "poly2"], ("--psi", "--like")),
        (
            ["fit", "log.parquet", "--out", "m", "--keep-episodes", "--without-moments"],
            ("--keep-episodes", "--without-moments"),
        ),
        (["interval", "l.csv", "--output", "x", "--feature", "a0:1,a0:2"], ("'a0'", "twice")),
        (
            ["plan", "m", "--out", "p", "--reward", "r", "--method", "spede", "--lookahead", "3"],
            ("--lookahead", "mpc", "spede"),
        ),
        (
            ["simulate", "linear", "--out", "l.csv"],
            ("l.csv has an unknown file ending", ".parquet"),
        ),
        (["simulate", "linear", "--out", "l.parquet", "--dim", "two"], ("--dim", "integer")),
        (["simulate", "linear", "--out", "l.parquet", "--download", "ml-9"], ("ml-9", "ml-1m")),
        (["demo", "--seed", "x"], ("--seed", "integer")),
    ],
)
def test_unknown_options_and_commands_are_refused(arguments, facts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert_refused(run(*arguments), *facts)
    assert list(tmp_path.iterdir()) == []
