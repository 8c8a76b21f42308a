"""`ivvi value` in the shell: saved models and policies, and what it refuses."""

import json

import numpy as np
import pytest

import ivvi
from helpers import OPTIONS, assert_refused, make_rows, run, write_table
from ivvi import InputError

REWARD = "quadratic:weight=0.05"
pytestmark = [
    pytest.mark.filterwarnings("ignore:.* draws are few:ivvi.errors.IvviWarning"),
    pytest.mark.usefixtures("few_episodes"),
]


@pytest.fixture(scope="module")
def saved(fit, policy, tmp_path_factory):
    folder = tmp_path_factory.mktemp("value")
    fit.save(folder / "model")
    fit.save(folder / "small", episodes=False)
    fit.save(folder / "bare", moments=False)
    policy.save(folder / "policy")
    return folder


def test_the_command_line_values_saved_policies(saved, fit):
    done = run(
        *("value", "behaviour", "--model", saved / "model", "--against", "zero"),
        *("--reward", REWARD, "--horizon", 5, "--draws", 20, "--seed", 1, "--json", "-"),
    )
    assert done.code == 0, done.err
    facts = json.loads(done.out)
    settings = {"against": ("zero",), "reward": REWARD, "horizon": 5, "draws": 20, "seed": 1}
    same = ivvi.value("behaviour", fit, **settings)
    assert facts == json.loads(json.dumps(same.to_json()))
    assert facts["method"] == "bootstrap"
    assert facts["verdict"] == "strong"
    small = run(
        *("value", saved / "policy", "--model", saved / "small", "--against", "least-squares"),
        *("--draws", 20, "--start", "1,2", "--horizon", 5),
    )
    assert small.code == 0, small.err
    assert "asymptotic draws" in small.out
    assert "from a given state" in small.out
    assert "least-squares" in small.out


def test_a_rival_does_not_take_the_place_of_the_policy(saved, fit, policy, tmp_path):
    """Two folders of one name: both are valued, the policy as it is alone."""
    still = ivvi.plan(fit.model, REWARD, (-1e-3, 1e-3), horizon=5, method="mpc", compare=False)
    (tmp_path / "other").mkdir()
    still.save(tmp_path / "other" / "policy")
    ask = ("value", saved / "policy", "--model", saved / "small", "--draws", 20, "--horizon", 5)
    alone = run(*ask, "--against", "zero", "--json", "-")
    done = run(*ask, "--against", tmp_path / "other" / "policy", "--json", "-")
    values, expected = (json.loads(result.out)["values"] for result in (done, alone))
    assert list(values) == ["policy", str(tmp_path / "other" / "policy")]
    assert values["policy"] == expected["policy"]
    with pytest.raises(InputError, match="a rival is called 'policy'"):
        ivvi.value(policy, fit, against={"policy": [0.0, 0.0]}, draws=20)


def test_the_log_of_a_model_that_left_rows_out_is_read_alike(tmp_path):
    rows = make_rows(12, 10)
    rows["x0"][5] = np.nan
    source = write_table(rows, tmp_path / "log.parquet")
    fit = run("fit", source, *OPTIONS, "--drop-missing", "--out", tmp_path / "model")
    assert fit.code == 0, fit.err
    done = run(
        *("value", "zero", "--model", tmp_path / "model", "--against", "zero", "--log", source),
        *("--reward", "quadratic:weight=1", "--horizon", 5, "--draws", 20, "--json", "-"),
    )
    assert done.code == 0, done.err
    assert json.loads(done.out)["shown_by_the_log"] < 0


def test_the_command_line_refuses_with_one_sentence(saved):
    ask = ("value", saved / "policy", "--model")
    assert_refused(run("value", "nothing", "--model", saved / "model"), "nothing")
    assert_refused(run(*ask, saved / "nowhere"), "nowhere")
    assert_refused(run(*ask, saved / "small", "--method", "bootstrap"), "--keep-episodes")
    assert_refused(
        run(*ask, saved / "small", "--start", "1,2", "--starts", "x.csv"), "--start or --starts"
    )


def test_least_squares_is_a_rival_without_moments_too(saved):
    """A model that is saved without its moments keeps what least squares found."""
    asked = ("--against", "least-squares", "--draws", 20, "--horizon", 5)
    done = run("value", saved / "policy", "--model", saved / "bare", *asked)
    assert done.code == 0, done.err
    assert "regression of the same log earns" in done.out


def test_fit_keeps_episodes_on_request_only(tmp_path):
    source = write_table(make_rows(12, 10), tmp_path / "log.parquet")
    fit = ("fit", source, *OPTIONS, "--out")
    assert run(*fit, tmp_path / "plain").code == 0
    assert run(*fit, tmp_path / "kept", "--keep-episodes").code == 0
    assert ivvi.load_fit(tmp_path / "plain").shard.moments.episodes is None
    assert len(ivvi.load_fit(tmp_path / "kept").shard.moments.episodes) == 12
