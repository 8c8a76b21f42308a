"""What the shell sees: the doctor, --verbose, completion, narrow terminals, colours, exit codes."""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ivvi
from helpers import OPTIONS, ROOT, make_rows, run, write_table
from ivvi.cli import doctor
from ivvi.cli.main import VERBS
from ivvi.cli.terminal import program_name, progress, say

SGR = re.compile(r"\x1b\[(?!0m)[0-9;]*m")  # a change of colour or weight; 0 ends one


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def screen(monkeypatch):
    """Make standard error a terminal of the width asked for."""

    def narrow(columns):
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("TERM", "xterm-256color")
        monkeypatch.delenv("NO_COLOR", raising=False)
        shown = Terminal()
        monkeypatch.setattr(sys, "stderr", shown)
        return shown

    return narrow


@pytest.fixture
def small(tmp_path):
    return write_table(make_rows(), tmp_path / "small.parquet")


# The doctor


def test_the_doctor_finds_this_installation_sound(tmp_path):
    result = run("doctor", "--json", tmp_path / "doctor.json")
    assert (result.code, result.err) == (0, "")
    assert result.out.endswith("all is well\n")
    facts = json.loads((tmp_path / "doctor.json").read_text())
    assert facts["sound"] is True
    assert facts["ivvi"] == ivvi.__version__
    assert [step["passed"] for step in facts["self_check"]] == [True] * 4
    assert all(facts["versions"].values())


def test_the_doctor_says_what_is_wrong_and_fails(monkeypatch):
    def broken(known):
        """Add one and one."""
        raise ZeroDivisionError("no\nway")

    monkeypatch.setattr(doctor, "STEPS", (broken, doctor.STEPS[0]))
    result = run("doctor")
    assert result.code == 1
    assert "FAILED: ZeroDivisionError: no way" in result.out
    assert "Write a confounded log" not in result.out  # stops there
    assert result.out.endswith("something is wrong; see above\n")


def test_the_doctor_knows_what_is_not_installed(monkeypatch):
    monkeypatch.setattr(doctor, "STEPS", ())
    monkeypatch.setattr(doctor, "CORE", ("numpy", "no-such-library"))
    monkeypatch.setattr(doctor, "OPTIONAL", {"no-such-part": ("nothing", "pip install nothing")})
    report = doctor.examine()
    assert not report.sound
    assert re.search(r"no-such-library *MISSING", str(report))
    assert "nothing: pip install nothing" in str(report)


def test_the_doctor_lists_every_dependency():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {re.split(r"[<>=]", name)[0] for name in project["dependencies"]}
    assert needed <= set(doctor.CORE)


# --verbose


def test_verbose_says_each_step_on_standard_error(small, tmp_path):
    quiet = run("fit", small, *OPTIONS, "--out", tmp_path / "quiet")
    loud = run("fit", small, *OPTIONS, "--out", tmp_path / "loud", "--verbose")
    warned = quiet.err.splitlines()
    assert all(line.startswith("ivvi: warning: ") for line in warned)
    assert loud.out.replace("loud", "quiet") == quiet.out
    steps = [line for line in loud.err.splitlines() if line not in warned]
    assert all(re.match(r"ivvi: +\d+\.\d\d s  ", step) for step in steps)
    assert "moments of 54 transitions" in loud.err
    assert f"wrote {tmp_path / 'loud'}" in loud.err
    assert re.search(r"done, [\d,]+ MiB at most$", steps[-1])
    assert run("fit", small, *OPTIONS, "--out", tmp_path / "again").err == quiet.err


def test_verbose_shows_where_an_error_arose(small, tmp_path):
    result = run("fit", small, "--state", "y0", "--action", "a0", "--instrument", "z0",
                 "--out", tmp_path / "model", "--verbose")  # fmt: skip
    assert result.code == 2
    assert "Traceback" in result.err
    assert result.err.splitlines()[-1].startswith("ivvi: state column 'y0' is not in the log")


@pytest.mark.parametrize("verb", [verb.__name__ for verb in VERBS])
def test_every_verb_has_the_common_options(verb):
    said = run(verb, "--help").out
    assert {"--json", "--force", "--verbose"} - set(re.findall(r"--[a-z]+", said)) == set()


# Completion


def complete(*words):
    """Return what bash would offer after these words."""
    done = subprocess.run(
        [Path(sys.executable).with_name("ivvi")],
        env=os.environ
        | {"_IVVI_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(["ivvi", *words])}
        | {"COMP_CWORD": str(len(words))},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("dia",), ["diagnose"]),
        (("fit", "--meth"), ["--method"]),
        pytest.param(("fit", "--se", "cl"), ["clustered"], marks=pytest.mark.thorough),
        pytest.param(("fit", "--method", "le"), ["least-squares"], marks=pytest.mark.thorough),
        (("diagnose", "--features", "poly2:"), ["poly2:cross"]),
    ],
)
def test_the_shell_completes_verbs_options_and_words(words, offered):
    assert complete(*words) == offered


# Terminals


def test_errors_are_folded_to_a_narrow_terminal(screen, small):
    shown = screen(40)
    with pytest.raises(SystemExit) as stop:
        ivvi_main("fit", small, "--state", "y0", "--action", "a0", "--instrument", "z0",
                  "--out", small.parent / "model")  # fmt: skip
    assert stop.value.code == 2
    lines = shown.getvalue().splitlines()
    assert lines[0].startswith("ivvi: state column 'y0'")
    assert len(lines) > 1
    assert max(map(len, lines)) <= 40
    assert all(line.startswith("  ") for line in lines[1:])


def test_elsewhere_an_error_is_one_line(small, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    result = run("fit", small, "--state", "y0", "--action", "a0", "--instrument", "z0",
                 "--out", small.parent / "model")  # fmt: skip
    assert result.err.count("\n") == 1


@pytest.mark.parametrize("no_color", [False, True])
def test_no_color_is_obeyed_by_the_bar(screen, monkeypatch, no_color):
    shown = screen(80)
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    with progress("reading", 10) as advance:
        advance(5)
    assert "reading" in shown.getvalue()
    assert bool(SGR.search(shown.getvalue())) is not no_color


def test_help_fits_a_narrow_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    said = run("plan", "--help").out
    assert max(map(len, said.splitlines())) <= 60  # a word alone may stick out


def ivvi_main(*arguments):
    from ivvi.cli.main import main

    main([str(argument) for argument in arguments])


# The first half hour


def test_help_lists_every_verb_on_a_line_that_is_not_cut(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    commands = run("--help").out.partition("Commands:")[2].strip().splitlines()
    assert len(commands) == len(VERBS)
    assert [line for line in commands if line.rstrip().endswith("...")] == []


def test_commands_are_suggested_as_they_were_typed(monkeypatch, capsys):
    monkeypatch.setenv("IVVI_COMMAND", "./run")
    say("Next  `ivvi fit`, then `ivvi plan`.")
    monkeypatch.delenv("IVVI_COMMAND")
    say("Next  `ivvi fit`.")
    assert capsys.readouterr().out == "Next  `./run fit`, then `./run plan`.\nNext  `ivvi fit`.\n"


@pytest.mark.parametrize(
    ("argv", "environment", "expected"),
    [
        ("/opt/ivvi/__main__.py", {}, f"{Path(sys.executable).name} -m ivvi"),
        ("/somewhere/bin/ivvi", {}, "/somewhere/bin/ivvi"),
        ("/somewhere/bin/ivvi", {"IVVI_COMMAND": "./run"}, "./run"),
        ("pytest", {}, "ivvi"),
    ],
)
def test_commands_are_suggested_as_they_can_be_typed_here(argv, environment, expected, monkeypatch):
    monkeypatch.delenv("IVVI_COMMAND", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", [argv])
    assert program_name() == expected


def test_the_script_tells_the_program_how_it_was_called(tmp_path):
    """A stand-in for the installed program prints what it is told."""
    (tmp_path / "run").write_text((ROOT / "run").read_text().replace('install core "$root"', ":"))
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    program = tmp_path / ".venv" / "bin" / "ivvi"
    program.write_text('#!/bin/sh\necho "$IVVI_COMMAND $*"\n')
    for path in (program, tmp_path / "run"):
        path.chmod(0o755)
    called = {("./run", "demo"): "./run demo", ("sh", "run", "demo"): "./run demo"}
    for command, said in called.items():
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == said


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """Return a model that learned its reward."""
    folder = tmp_path_factory.mktemp("learned")
    table = write_table(make_rows(episodes=20), folder / "log.parquet")
    model = folder / "model"
    assert run("fit", table, *OPTIONS, "--reward", "reward", "--out", model).code == 0
    return model


ACTIONS = ("--action-low", -1, "--action-high", 1, "--horizon", 3, "--method", "mpc")


def test_the_name_of_the_reward_that_was_learned_suggests_the_word_for_it(learned, tmp_path):
    result = run("plan", learned, "--reward", "reward", *ACTIONS, "--out", tmp_path / "policy")
    assert result.code == 2
    assert "'learned'" in result.err
    assert not (tmp_path / "policy").exists()


def test_a_reward_is_imported_from_the_current_folder(learned, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(tmp_path))])
    (tmp_path / "my_reward_of_here.py").write_text("def value(x, a):\n    return -(x**2).sum(-1)\n")
    word = "my_reward_of_here:value"
    result = run("plan", learned, "--reward", word, *ACTIONS, "--out", "policy")
    assert result.code == 0, result.err
    missing = run("plan", learned, "--reward", "no_such_file:value", *ACTIONS, "--out", "other")
    assert missing.code == 2
    assert "no_such_file" in missing.err
    assert str(tmp_path) not in sys.path or sys.path.count(str(tmp_path)) == 1


def test_a_bar_whose_count_stands_still_shows_the_time(screen):
    shown = screen(100)
    with progress("models", 400) as bar:
        bar(0)
    assert re.search(r"0/400.*0:00:0", re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.getvalue()))


def test_fitting_works_without_jax_and_planning_says_what_it_needs(small, tmp_path):
    """In a process in which neither jax nor gymnasium can be imported."""
    blocked = tmp_path / "blocked.py"
    blocked.write_text(
        "import sys\n"
        "for name in ('jax', 'jaxlib', 'gymnasium'):\n"
        "    sys.modules[name] = None\n"
        "from ivvi.cli.main import main\n"
        "main(sys.argv[1:])\n"
    )
    model = tmp_path / "model"

    def call(*words):
        command = [sys.executable, blocked, *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert call("diagnose", small, *OPTIONS).returncode == 0
    assert call("fit", small, *OPTIONS, "--out", model).returncode == 0
    plan = ("plan", model, "--reward", "quadratic:weight=1", "--action-low", -1, "--action-high", 1)
    done = call(*plan, "--out", tmp_path / "policy")
    assert done.returncode == 2
    assert "pip install jax" in done.stderr
    assert "Traceback" not in done.stderr
