"""The demo: its files, its numbers, and the commands that it suggests."""

import json
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest

from helpers import succeed
from ivvi import load_fit
from ivvi.cli.terminal import program_name


@pytest.fixture(scope="module")
def told(request, tmp_path_factory):
    """Run the demo; without --all its plans have 5 steps and not 200."""
    folder = tmp_path_factory.mktemp("demo") / "story"
    with pytest.MonkeyPatch.context() as patch:
        if not request.config.getoption("--all"):
            patch.setattr("ivvi.reporting.demo.HORIZON", 5)
        return succeed("demo", "--out", folder).out, folder


def test_the_demo_writes_its_files(told):
    text, folder = told
    assert sorted(file.name for file in folder.iterdir()) == [
        *("coefficients.png", "demo.json", "log.parquet", "model", "policies.png", "policy"),
        *("policy-least-squares", "report.html"),
    ]
    assert pq.read_metadata(folder / "log.parquet").num_rows == 80_000
    assert (folder / "coefficients.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "coefficients.png").stat().st_size > 20_000
    assert f"Written to {folder}: log.parquet, model/, policy/" in text


def test_the_numbers_of_the_demo_are_those_of_its_files(told):
    text, folder = told
    facts = json.loads((folder / "demo.json").read_text())
    truth, iv, ls = (np.array(facts[name]) for name in ("W_true", "W_iv", "W_least_squares"))
    fit = load_fit(folder / "model")
    assert fit.W.tolist() == iv.tolist()
    ends = {(row["output"], row["feature"]): (row["low"], row["high"]) for row in fit.records()}
    for i in range(5):
        j = 6 + i
        (line,) = [line for line in text.splitlines() if f"a{i} -> next_x{i}" in line]
        low, high = ends[f"next_x{i}", f"a{i}"]
        numbers = f"{truth[i, j]:.3f} {ls[i, j]:.3f} {iv[i, j]:.3f} [{low:.3f}, {high:.3f}]"
        assert line.split()[3:] == numbers.split()
    wrong = int(((ls * truth) < 0).sum())
    assert f"Least squares gets {wrong} signs wrong" in text
    errors = [float(np.linalg.norm(W - truth)) for W in (iv, ls)]
    assert f"(||W - W*|| {errors[0]:.3f} against {errors[1]:.3f})" in text
    assert f"{errors[1] / errors[0]:.0f} times closer" in text
    assert f"mu_iv is {facts['mu_iv']:.3f}" in text
    assert "80,000 decisions in 80 episodes" in text


def test_the_demo_shows_what_it_claims(told):
    """Confounding turns signs and the instrument turns them back, to five standard errors."""
    facts = json.loads((told[1] / "demo.json").read_text())
    truth, iv, se = (np.array(facts[name]) for name in ("W_true", "W_iv", "se_iv"))
    assert (np.abs(iv - truth) < 5 * se).all()
    least_squares = np.array(facts["W_least_squares"])
    assert all(least_squares[i, 6 + i] > 0 > truth[i, 6 + i] for i in range(5))
    assert facts["error_least_squares"] > 10 * facts["error_iv"]
    assert facts["mu_iv"] == pytest.approx(0.14, abs=0.01)  # the paper's table


def test_the_commands_that_the_demo_suggests_work(told, tmp_path):
    text, folder = told
    lines = text.partition("Next, as printed:\n")[2].splitlines()
    program = program_name()  # as it was called here
    assert [line.startswith(f"  {program} ") for line in lines] == [True, True, True, False]
    suggested = [line.removeprefix(f"  {program} ") for line in lines[:3]]
    assert [line.split()[0] for line in suggested] == ["diagnose", "fit", "act"]
    for line in suggested:
        arguments = [word.strip("'") for word in line.split()]
        if "--out" in arguments:
            arguments[-1] = tmp_path / arguments[-1]
        succeed(*arguments)
    fit = load_fit(tmp_path / "my-model")
    assert np.allclose(fit.W, load_fit(folder / "model").W, atol=0.05)


@pytest.mark.slow
def test_the_demo_can_be_told_again(told, tmp_path, monkeypatch):
    """Over an earlier one, without force; simulating again would take long."""
    before = (told[1] / "demo.json").read_text()
    kept = shutil.copy(told[1] / "log.parquet", tmp_path)
    monkeypatch.setattr(
        "ivvi.simulators.ConfoundedEnv.write_log",
        lambda env, path, *, seed, force: shutil.copy(kept, path),
    )
    result = succeed("demo", "--out", told[1], "--json", "-")
    assert json.loads(result.out) == json.loads(before)
    assert (told[1] / "demo.json").read_text() == before
