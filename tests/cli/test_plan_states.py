"""`ivvi plan --states`: plans in models that were fitted from sums and hold no rows."""

import numpy as np
import pytest

import ivvi
from helpers import assert_refused, make_rows, run, write_table

ASKED = ("--reward", "quadratic:weight=0.05", "--action-low", -1, "--action-high", 1)
ASKED += ("--horizon", 5, "--method", "value-iteration")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a log and a model of its sums."""
    folder = tmp_path_factory.mktemp("sums")
    log = write_table(make_rows(20, 30, d=1), folder / "log.csv")
    for words in (
        ("moments", log, "--features", "poly2", "--out", folder / "sums"),
        ("fit", "--moments", folder / "sums", "--out", folder / "model"),
    ):
        assert run(*words).code == 0
    return folder


def test_a_model_of_sums_is_planned_in_on_given_states(folder):
    out = folder / "policy"
    result = run("plan", folder / "model", *ASKED, "--states", folder / "log.csv", "--out", out)
    assert result.code == 0, result
    states = make_rows(20, 30, d=1)["x0"][:, None]
    same = ivvi.plan(
        ivvi.load_model(folder / "model"),
        *("quadratic:weight=0.05", (-1, 1)),
        horizon=5,
        method="value-iteration",
        states=states,
        compare=False,
    )
    x = np.linspace(-2, 2, 9)[:, None]
    np.testing.assert_allclose(ivvi.load_policy(out)(x), same(x), atol=1e-9)


def test_without_states_the_option_is_named(folder):
    result = run("plan", folder / "model", *ASKED, "--out", folder / "none")
    assert_refused(result, "--states TABLE")
    assert not (folder / "none").exists()


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("y\n1\n", "no column 'x0'"),
        ("x0\n", "no rows"),
        ("x0\nnan\n", "no finite number in column 'x0', row 0"),
    ],
)
def test_tables_that_hold_no_states_are_refused(text, fact, folder, tmp_path):
    (tmp_path / "states.csv").write_text(text)
    words = ("--states", tmp_path / "states.csv", "--out", tmp_path / "policy")
    assert_refused(run("plan", folder / "model", *ASKED, *words), fact)
    assert not (tmp_path / "policy").exists()


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("x0\n1\n\n2\n", "no finite number in column 'x0', row 1 (from 0)"),
        ("x0,x0\n1,2\n", "2 columns named 'x0'"),
        ("id,x0\n1,2\n3,high\n", "holds text: 'high' in data row 1 (from 0); expected numbers"),
    ],
)
def test_states_keep_the_rows_of_their_file(text, fact, folder, tmp_path):
    (tmp_path / "states.csv").write_text(text)
    words = ("--states", tmp_path / "states.csv", "--out", tmp_path / "policy")
    assert_refused(run("plan", folder / "model", *ASKED, *words), fact)


def test_empty_lines_after_the_last_state_are_no_states(folder, tmp_path):
    (tmp_path / "states.csv").write_text("x0\n1\n2\n\n\n")
    words = ("--states", tmp_path / "states.csv", "--out", tmp_path / "policy")
    assert run("plan", folder / "model", *ASKED, *words).code == 0
