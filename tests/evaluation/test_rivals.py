"""Whom a policy meets unless rivals are named: zero only where the log has tried it."""

import json

import numpy as np
import pytest

import ivvi
from helpers import ROLES, assert_refused, make_rows, run
from ivvi import InputError
from ivvi.evaluation.value_inputs import ValueInputs
from ivvi.evaluation.value_policy import default_rivals

SETTINGS = {"reward": "quadratic:weight=0.05", "horizon": 3, "draws": 20, "seed": 1}
pytestmark = [
    pytest.mark.filterwarnings("ignore:.* draws are few:ivvi.errors.IvviWarning"),
    pytest.mark.usefixtures("few_episodes"),
]


def fitted(shift):
    """Fit a log of two actions, the second of which is moved."""
    columns = make_rows(20, 20)
    columns["a1"] = columns["a1"] + shift
    return ivvi.estimate(ivvi.read_logs(columns, **ROLES)), columns


@pytest.fixture(scope="module")
def prices():
    return fitted(100.0)


def test_zero_is_met_where_the_log_has_it():
    source = ValueInputs.of(fitted(0.0)[0])
    assert default_rivals(source) == ("behaviour", "zero", "least-squares")
    for shift in (100.0, -100.0):
        source = ValueInputs.of(fitted(shift)[0])
        assert default_rivals(source) == ("behaviour", "lowest", "highest", "least-squares")


def test_the_lowest_and_the_highest_are_those_of_the_log(prices):
    fit, columns = prices
    used = columns["step"] < 19  # the last row of an episode has no next state
    for word, end in {"lowest": np.min, "highest": np.max}.items():
        named = ivvi.value(word, fit, against=(), **SETTINGS).values[word]
        action = [end(columns[name][used]) for name in ("a0", "a1")]
        same = ivvi.value(action, fit, against=(), **SETTINGS).values["policy"]
        np.testing.assert_allclose(named.draws, same.draws)


def test_python_and_shell_meet_the_same(prices, tmp_path):
    fit, _ = prices
    fit.save(tmp_path / "model")
    words = ("--reward", SETTINGS["reward"], "--horizon", 3, "--draws", 20, "--seed", 1)
    result = run("value", "lowest", "--model", tmp_path / "model", *words, "--json", "-")
    assert result.code == 0, result
    worth = ivvi.value("lowest", fit, **SETTINGS)
    assert list(worth.gains) == list(json.loads(result.out)["gains"])
    assert set(worth.gains) == {"behaviour", "highest", "least-squares"}


def test_a_model_without_rows_knows_no_lowest_action(prices, tmp_path):
    fit, _ = prices
    fit.shard.save(tmp_path / "sums")
    assert run("fit", "--moments", tmp_path / "sums", "--out", tmp_path / "model").code == 0
    with pytest.raises(InputError, match="no rows of the log, so the lowest recorded action"):
        ivvi.value("lowest", tmp_path / "model", against=(), **SETTINGS)
    words = ("--model", tmp_path / "model", "--reward", SETTINGS["reward"], "--against", "highest")
    assert_refused(run("value", "zero", *words), "the highest recorded action")
