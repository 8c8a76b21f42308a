"""`ivvi act POLICY --stdin`: a line of JSON in, a line of JSON out, and it never dies."""

import json
import subprocess
import sys

import numpy as np
import pytest

import ivvi
from helpers import assert_refused, run
from ivvi import load_policy, plan
from ivvi.policy.json_lines_server import serve

BAD = {
    "{": "not JSON",
    "[1, 2]": "not a JSON object",
    '{"state": [1]}': "a state has 1 values; expected 2 (x0, x1)",
    '{"state": [1, NaN]}': "NaN is not a finite number",
    '{"state": [1, 1e400]}': "x1 of a state is 'inf'",
    '{"state": [1, "2"]}': "x1 of a state is '2'",
    '{"state": [1, true]}': "x1 of a state is 'True'",
    '{"state": {"x0": 1, "y": 2}}': "a state has x0, y; expected x0, x1",
    '{"state": 1}': "a state is a list of values",
    '{"states": []}': "states is not a list",
    '{"state": [1, 2], "states": [[1, 2]]}': "either state or states",
    '{"state": [1, 2], "step": 5}': "the plan has the steps 0 to 4",
    '{"state": [1, 2], "step": 0.5}': "the step is 0.5",
    '{"stat": [1, 2]}': "unknown key 'stat'",
    "[" * 200_000: "not JSON",
    '{"state": [1, 2], "id": [1e400]}': "the answer cannot be written as JSON",
    '{"state": [1, 2], "id": "' + "a" * (1 << 20) + '"}': "characters; expected at most 1,048,576",
}


@pytest.fixture(scope="module")
def policy(linear_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("act") / "policy"
    model = linear_model(d_x=2, d_a=1)
    plan(model, "quadratic:weight=1", (-1, 1), horizon=5, method="mpc", compare=False).save(folder)
    return folder


def test_bad_lines_are_answered_with_one_sentence(policy):
    lines = [*BAD, "  \n", '{"state": [1, 2], "id": [3]}']
    *answers, last = map(json.loads, serve(load_policy(policy), lines))
    assert len(answers) == len(BAD)  # none for the blank line
    for answer, fact in zip(answers, BAD.values(), strict=True):
        assert fact in answer["error"]
        assert "\n" not in answer["error"]
    assert last["id"] == [3]
    assert len(last["action"]) == 1


def test_categories_are_asked_and_answered_by_their_levels():
    rng = np.random.default_rng(0)
    n = 4000
    ward, z, e = rng.choice(["ICU", "home"], n), rng.integers(0, 2, n), rng.normal(size=n)
    drug = np.where(2 * z + e > 1, "high", "low")
    cost = 1.0 * (ward == "ICU") + np.where(ward == "ICU", -2.0, 2.0) * (drug == "high") + e
    rows = {"ward": ward, "drug": drug, "z": z, "cost": cost}
    log = ivvi.read_logs(rows, state="ward", action="drug", instrument="z", next_state="cost")
    fit = ivvi.fit(log, "linear:cross")
    settings = {"horizon": 1, "method": "value-iteration", "compare": False}
    policy = plan(fit, lambda x, a, y: -y[:, 0], **settings)
    lines = [
        '{"states": [["ICU"], {"ward": "home"}]}',
        '{"state": {"ward": "roof"}}',
        '{"state": [3.5]}',
    ]
    many, unknown, _ = map(json.loads, serve(policy, lines))
    assert [one["drug"] for one in many["decisions"]] == ["high", "low"]
    assert "'roof', which is none of the levels ICU, home" in unknown["error"]
    (answer,) = serve(policy, lines[1:2], unseen="ICU")
    assert json.loads(answer)["decision"] == {"drug": "high"}


@pytest.mark.parametrize("count", [1, 5, 8, 9, 130])
def test_answers_are_what_the_policy_does(policy, count):
    loaded, x = load_policy(policy), np.random.default_rng(0).normal(size=(count, 2))
    (answer,) = serve(loaded, [json.dumps({"states": x.tolist(), "step": 2})])
    np.testing.assert_allclose(json.loads(answer)["actions"], loaded(x, 2), atol=1e-9)


def test_the_command_answers_each_line_at_once_and_ends_with_its_input(policy):
    command = [sys.executable, "-m", "ivvi", "act", str(policy), "--stdin"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, bufsize=1, **pipes) as served:

        def ask(question):
            served.stdin.write(f"{question}\n")
            return json.loads(served.stdout.readline())

        assert set(ask('{"state": [1, 2]}')) == {"action"}
        assert "error" in ask("{")
        five = json.dumps({"states": [[i, 1.5] for i in range(5)]})
        for _ in range(20):
            assert len(ask(five)["actions"]) == 5
        served.stdin.close()
        assert served.wait(timeout=60) == 0
        assert served.stderr.read() == ""


def test_options_that_lines_have_themselves_are_refused(policy):
    assert_refused(run("act", policy, "--stdin", "--state", "1,2"), "one of --state")
    assert_refused(run("act", policy, "--stdin", "--step", 2), "cannot be combined with")
    assert_refused(run("act", policy), "one of --state, --states and --stdin")
