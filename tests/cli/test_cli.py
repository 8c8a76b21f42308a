"""The program, and the commands simulate, fit and diagnose, as a user types them."""

import io
import json
import os
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ivvi
from helpers import OPTIONS, ROLES, make_rows, succeed, write_table
from ivvi import estimate, load_model, read_logs
from ivvi.cli import terminal
from ivvi.cli.terminal import progress

COMMANDS = ("demo", "simulate", "fit", "diagnose")
SMALL = ("--dim", 2, "--episodes", 20, "--horizon", 50)
FIT_KEYS = {
    *("outputs", "phi", "psi", "W", "se", "noise_cov", "n", "episodes", "dropped"),
    *("method", "seconds", "warnings", "diagnostics"),
}
DIAGNOSTIC_KEYS = {
    *("mu_iv", "mu_b", "rank", "identified", "first_stage", "cragg_donald"),
    *("kleibergen_paap", "wu_hausman"),
}


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """Simulate one log on the command line, over a file that was there."""
    path = tmp_path_factory.mktemp("simulated") / "log.parquet"
    path.write_text("something old")
    facts = ("--json", path.with_name("facts.json"))
    result = succeed("simulate", "linear", *SMALL, "--seed", 7, "--out", path, "--force", *facts)
    assert result.out.startswith(f"{path}: 1,000 rows of linear k=2 setting I")
    assert result.err == ""
    return path


@pytest.fixture
def small(tmp_path):
    return write_table(make_rows(), tmp_path / "small.parquet")


# The program


def test_the_version_is_that_of_the_package():
    assert succeed("--version").out == f"ivvi {ivvi.__version__}\n"


@pytest.mark.parametrize("arguments", [(), ("--help",)])
def test_help_names_every_command(arguments):
    result = succeed(*arguments)
    assert result.out.startswith("Usage: ")
    for command in COMMANDS:
        assert f"\n  {command} " in result.out


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command_names_its_options(command):
    said = succeed(command, "--help").out
    wanted = {"--json", "--force", "--seed", "--help"}
    wanted |= {"--out"} if command != "diagnose" else set()
    if command in ("fit", "diagnose"):
        wanted |= {"--state", "--action", "--instrument", "--next-state", "--reward", "--episode"}
        wanted |= {"--se", "--cluster", "--debiased", "--bandwidth"}
        wanted |= {"--step", "--features", "--phi", "--psi", "--drop-missing", "--weight"}
    if command == "fit":
        wanted |= {"--method", "--allow-unidentified", "--ridge"}
    if command == "simulate":
        wanted |= {"--dim", "--setting", "--episodes", "--horizon"}
    assert {option for option in wanted if option not in said} == set()


def test_the_program_is_installed_and_runs_as_a_module(tmp_path):
    program = os.path.join(os.path.dirname(sys.executable), "ivvi")
    for start in ([program], [sys.executable, "-m", "ivvi"]):
        done = subprocess.run([*start, "--version"], capture_output=True, text=True, check=True)
        assert done.stdout == f"ivvi {ivvi.__version__}\n"


@pytest.mark.parametrize("buffered", ["", pytest.param("1", marks=pytest.mark.thorough)])
def test_a_reader_that_goes_away_is_no_disaster(buffered, small):
    """As in ``ivvi diagnose ... | head -0``."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "ivvi.cli.main", "diagnose", small, *OPTIONS],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env=os.environ | {"PYTHONUNBUFFERED": buffered},
    )
    os.close(writing)
    assert done.returncode == 1
    assert all(line.startswith("ivvi: warning: ") for line in done.stderr.splitlines())


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_is_a_bar_on_a_terminal(monkeypatch, capsys):
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with progress("reading", 10) as advance:
        advance(4)
        advance(6)
    assert "reading" in screen.getvalue()
    assert "10/10" in screen.getvalue()
    assert "pass" not in screen.getvalue()
    with progress("reading", 10) as advance:
        advance(10)
        advance(7)
    assert "reading, pass 2" in screen.getvalue()
    assert " 7/10" in screen.getvalue()
    assert capsys.readouterr().out == ""


def test_elsewhere_progress_is_a_line_now_and_then(monkeypatch, capsys):
    with progress("reading", 10) as advance:
        advance(4)
    assert capsys.readouterr().err == ""  # it was over before the first line
    monkeypatch.setattr(terminal, "BEAT", 0.05)
    for total, rows, said in (
        (10, 4, "reading: 4 of 10 after "),
        (10, 20, "reading: pass 2, 10 of 10 after "),
        (None, 4, " s so far"),
    ):
        with progress("reading", total) as advance:
            advance(rows)
            time.sleep(0.12)
        heard = capsys.readouterr()
        assert said in heard.err
        assert heard.err.startswith("ivvi: reading: ")
        assert heard.out == ""


# simulate


def test_simulate_writes_the_columns_of_a_log_and_no_confounder(log):
    table = pq.read_table(log)
    numbered = [f"{name}{i}" for name in "xaz" for i in range(2)]
    names = ["episode", "step", *numbered, "reward", "next_x0", "next_x1"]
    assert table.column_names == names
    assert table.num_rows == 1000
    assert table["episode"].to_pylist() == np.repeat(np.arange(20), 50).tolist()
    assert table["step"].to_pylist() == list(range(50)) * 20
    x, after = (table[name].to_numpy().reshape(20, 50) for name in ("x1", "next_x1"))
    assert np.array_equal(x[:, 1:], after[:, :-1])


def test_simulate_says_what_it_did(log):
    assert json.loads(log.with_name("facts.json").read_text()) == {
        "log": str(log),
        "simulator": "linear k=2 setting I",
        "data": "synthetic, section 5.1 of the paper",
        "rows": 1000,
        "episodes": 20,
        "horizon": 50,
        "seed": 7,
    }


def test_the_same_seed_gives_the_same_log(log, simulator, tmp_path):
    """Written from the command line or from Python, at another time."""
    written, env = pq.read_table(log), simulator("linear", 2)
    assert env.write_log(tmp_path / "same.parquet", 20, 50, seed=7) == 1000
    assert pq.read_table(tmp_path / "same.parquet").equals(written)
    assert (
        env.collect(20, 50, seed=7).to_batch().z.ravel().tolist()
        == np.column_stack([written["z0"], written["z1"]]).ravel().tolist()
    )
    env.write_log(tmp_path / "other.parquet", 20, 50, seed=8)
    assert not pq.read_table(tmp_path / "other.parquet")["z0"].equals(written["z0"])


# fit


@pytest.fixture(scope="module")
def fitted(log, tmp_path_factory):
    """Fit the simulated log; returns the JSON, the folder of the model and what was said."""
    folder = tmp_path_factory.mktemp("fitted")
    arguments = ("fit", log, *OPTIONS, "--next-state", "next_x*", "--reward", "reward")
    result = succeed(*arguments, "--out", folder / "model", "--json", folder / "fit.json")
    return json.loads((folder / "fit.json").read_text()), folder / "model", result


def test_fit_json_holds_what_is_promised(fitted):
    facts, _, result = fitted
    assert facts.keys() >= FIT_KEYS
    assert facts["diagnostics"].keys() >= DIAGNOSTIC_KEYS
    assert {"sargan", "hansen_j"} & facts["diagnostics"].keys()
    assert facts["outputs"] == ["next_x0", "next_x1", "reward"]
    assert facts["phi"] == ["1", "x0", "x1", "a0", "a1"]
    assert facts["psi"] == ["1", "x0", "x1", "z0", "z1"]
    assert np.shape(facts["W"]) == np.shape(facts["se"]) == (3, 5)
    assert np.shape(facts["noise_cov"]) == (3, 3)
    assert (facts["n"], facts["episodes"], facts["method"]) == (1000, 20, "exact")
    assert facts["dropped"] == {"without next state": 0, "with missing values": 0}
    assert facts["seconds"] > 0
    assert facts["warnings"] == []
    assert result.err == ""


def test_a_statistic_that_does_not_apply_is_null_with_a_reason(fitted):
    diagnostics = fitted[0]["diagnostics"]
    assert diagnostics["sargan"] is None
    assert "just identified" in diagnostics["reasons"]["sargan"]
    for name, value in diagnostics.items():
        assert (value is None) == (name in diagnostics["reasons"])
    assert diagnostics["first_stage"].keys() == {"a0", "a1"}
    assert diagnostics["wu_hausman"].keys() == {"next_x0", "next_x1", "reward"}
    assert (diagnostics["rank"], diagnostics["identified"]) == (5, True)


def test_fit_finds_what_two_stage_least_squares_finds(fitted, log):
    """Against the textbook formula on the columns of the file."""
    table = pq.read_table(log).to_pandas()
    one = np.ones((1000, 1))
    phi = np.hstack([one, table[["x0", "x1", "a0", "a1"]]])
    psi = np.hstack([one, table[["x0", "x1", "z0", "z1"]]])
    y = table[["next_x0", "next_x1", "reward"]].to_numpy()
    projected = psi @ np.linalg.lstsq(psi, phi, rcond=None)[0]
    W = np.linalg.lstsq(projected, y, rcond=None)[0].T
    assert np.allclose(fitted[0]["W"], W, rtol=1e-8, atol=1e-10)
    least_squares = np.linalg.lstsq(phi, y, rcond=None)[0].T
    assert np.allclose(fitted[0]["least_squares"]["W"], least_squares, rtol=1e-8, atol=1e-10)


def test_the_truth_is_within_five_standard_errors(fitted):
    W, se = np.array(fitted[0]["W"]), np.array(fitted[0]["se"])
    truth = np.array([[0, 0.5, 0.2, -0.5, -0.1], [0, 0.2, 0.5, -0.1, -0.5]])
    assert (np.abs(W[:2] - truth) < 5 * se[:2]).all()


def test_the_saved_model_is_the_fit(fitted):
    facts, folder, _ = fitted
    model = load_model(folder)
    assert model.W.tolist() == facts["W"]
    assert model.noise_cov.tolist() == facts["noise_cov"]
    assert (model.state, model.action) == (("x0", "x1"), ("a0", "a1"))
    assert (model.has_reward, model.unidentified) == (True, ())
    kept = json.loads((folder / "model.json").read_text())["facts"]
    assert kept == facts


def test_the_summary_says_what_was_found(fitted):
    facts, folder, result = fitted
    assert "1,000 transitions of 20 episodes, method exact" in result.out
    assert f"model saved in {folder}" in result.out
    for output in facts["outputs"]:
        assert f"output {output}\n" in result.out
    assert f"{facts['diagnostics']['mu_iv']:.4g}" in result.out
    assert "dropped rows      none" in result.out


def test_json_on_standard_output_is_all_that_is_there(small, tmp_path):
    result = succeed("fit", small, *OPTIONS, "--out", tmp_path / "one", "--json", "-")
    succeed("fit", small, *OPTIONS, "--out", tmp_path / "two", "--json", tmp_path / "two.json")
    one, two = json.loads(result.out), json.loads((tmp_path / "two.json").read_text())
    assert one.pop("seconds") != two.pop("seconds")
    assert one.pop("command").removesuffix("one") == two.pop("command").removesuffix("two")
    assert one == two
    assert one["dropped"]["without next state"] == 6


def test_warnings_go_to_standard_error_and_into_the_json(tmp_path):
    columns = make_rows()
    columns["z1"] = np.random.default_rng(9).normal(size=60)  # says nothing about a1
    source = write_table(columns, tmp_path / "log.parquet")
    result = succeed("fit", source, *OPTIONS, "--out", tmp_path / "model", "--json", "-")
    told = json.loads(result.out)["warnings"]
    assert any(warning.startswith("weak instruments") for warning in told)
    assert result.err == "".join(f"ivvi: warning: {warning}\n" for warning in told)
    shown = succeed("fit", source, *OPTIONS, "--out", tmp_path / "other")
    assert shown.err == result.err
    assert "WARNING" not in shown.out  # once is enough


def hac(bandwidth):
    return ivvi.StandardErrors("hac", bandwidth=bandwidth)


def poly(method):
    return {"method": method, "psi": "poly2"}


def two_way(*columns):
    return ivvi.StandardErrors("clustered", columns)


@pytest.mark.parametrize(
    ("options", "shape", "settings"),
    [
        (("--method", "least-squares"), (2, 5), {"method": "least-squares"}),
        (("--features", "poly2"), (2, 9), {"phi": "poly2"}),
        (("--features", "spline:4"), (2, 1 + 2 * 5 + 2), {"phi": "spline:4"}),
        (("--features", "fourier:5", "--seed", "3"), (2, 10), {"phi": "fourier:5", "seed": 3}),
        (("--psi", "poly2"), (2, 5), {"psi": "poly2"}),
        (("--features", "poly2", "--phi", "linear"), (2, 5), {"psi": "poly2"}),
        (("--ridge", "0.5"), (2, 5), {"method": ivvi.estimators.Exact(ridge=0.5)}),
        (("--no-debiased",), (2, 5), {"se": ivvi.StandardErrors(debiased=False)}),
        (("--se", "robust"), (2, 5), {"se": "robust"}),
        (("--se", "hac", "--bandwidth", "3"), (2, 5), {"se": hac(3)}),
        (("--cluster", "step"), (2, 5), {"se": ivvi.StandardErrors(cluster="step")}),
        (("--cluster", "episode,step"), (2, 5), {"se": two_way("episode", "step")}),
        (("--method", "liml", "--psi", "poly2"), (2, 5), poly("liml")),
        (
            ("--method", "fuller:4", "--psi", "poly2"),
            (2, 5),
            poly("fuller:4"),
        ),
        (("--method", "gmm", "--psi", "poly2"), (2, 5), poly("gmm")),
        (("--weight", "reward2"), (2, 5), {}),
    ],
)
@pytest.mark.filterwarnings("ignore::ivvi.errors.IvviWarning")
def test_options_of_fit_reach_the_estimator(options, shape, settings, tmp_path):
    columns = make_rows(20, 30)
    columns["reward2"] = columns["reward"] ** 2
    source = write_table(columns, tmp_path / "log.parquet")
    out = tmp_path / "model"
    facts = json.loads(succeed("fit", source, *OPTIONS, *options, "--out", out, "--json", "-").out)
    weight = "reward2" if "--weight" in options else None
    wanted = estimate(read_logs(source, **ROLES, weight=weight), **settings)
    plain = estimate(read_logs(source, **ROLES))
    assert np.shape(facts["W"]) == shape
    assert facts["W"] == wanted.W.tolist()
    assert facts["se"] == wanted.se.tolist() != plain.se.tolist()


def test_only_some_outputs_are_printed_unless_all_are_asked_for(tmp_path):
    source = write_table(make_rows(20, 10, d=8), tmp_path / "log.parquet")
    few = succeed("fit", source, *OPTIONS, "--out", tmp_path / "a").out
    assert "... and 2 more outputs" in few
    assert "output next_x6" not in few
    every = succeed("fit", source, *OPTIONS, "--out", tmp_path / "b", "--all-outputs").out
    assert "more outputs" not in every
    assert "output next_x7" in every


def test_columns_may_have_other_names(tmp_path):
    names = {"episode": "user", "step": "day", "x0": "speed", "a0": "dose", "z0": "coin"}
    table = pa.table(make_rows(d=1))
    table = table.rename_columns([names.get(name, name) for name in table.column_names])
    source = write_table(table, tmp_path / "log.csv")
    columns = ("--state", "speed", "--action", "dose", "--instrument", "coin")
    keys = ("--episode", "user", "--step", "day")
    arguments = ("fit", source, *columns, *keys, "--out", tmp_path / "m", "--json", "-")
    facts = json.loads(succeed(*arguments).out)
    assert (facts["phi"], facts["psi"]) == (["1", "speed", "dose"], ["1", "speed", "coin"])
    assert (facts["outputs"], facts["episodes"]) == (["next_speed"], 6)


def test_a_cross_section_is_a_one_step_log(tmp_path):
    table = pa.table(make_rows(d=1)).select(["a0", "z0", "reward"])
    source = write_table(table, tmp_path / "log.csv")
    columns = ("--action", "a0", "--instrument", "z0", "--next-state", "reward")
    result = succeed("fit", source, *columns, "--out", tmp_path / "m", "--json", "-")
    facts = json.loads(result.out)
    assert (facts["phi"], facts["outputs"]) == (["1", "a0"], ["reward"])
    assert (facts["n"], facts["episodes"]) == (60, 60)
    assert load_model(tmp_path / "m").mean(np.empty(0), np.ones(1)).shape == (1,)


# diagnose


def test_diagnose_says_what_fit_says(log, fitted, tmp_path):
    arguments = ("diagnose", log, *OPTIONS, "--next-state", "next_x*", "--reward", "reward")
    result = succeed(*arguments, "--json", tmp_path / "found.json")
    facts = json.loads((tmp_path / "found.json").read_text())
    assert facts["diagnostics"] == fitted[0]["diagnostics"]
    brief = facts.pop("brief")
    assert {name: fitted[0][name] for name in facts} == facts
    assert brief["instrument"] == fitted[0]["brief"]["instrument"]
    assert "W" not in facts
    assert "identified        yes: rank of A is 5 of 5" in result.out
    counted = f"{facts['n']:,} transitions of {facts['episodes']:,} episodes\ndropped rows      "
    assert counted in result.out
    for action in ("a0", "a1"):
        assert f"first stage {action}" in result.out
    assert json.loads(succeed(*arguments, "--json", "-").out) == facts | {"brief": brief}
