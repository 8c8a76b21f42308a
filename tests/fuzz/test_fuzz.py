"""Any verb with any option on hostile tables, saved files that were damaged or forged, signals.

Whatever comes in, a command keeps its promise (`fuzz.promise`). ``./run test --fuzz`` looks for an
hour, ``--all`` for two minutes with a fixed number of cases, ``pytest tests/fuzz --fuzz --cases N``
for N new cases of each test; the number of cases is printed at the end.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fuzz.hostile import ARRAYS, VALUES, commands, leaves, replaced
from fuzz.promise import is_one_sentence, keeps_its_promise, names
from helpers import OPTIONS, ROLES, forge, make_rows, run, write_table
from ivvi import InputError, Stream

HOUR = 3600.0
TESTS = 6
"""Tests that share the hour."""


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """Make a log, sums, a model, a policy, its value and the state of a stream."""
    folder = tmp_path_factory.mktemp("start")
    log = write_table(make_rows(12, 10), folder / "log.parquet")
    more = write_table(make_rows(12, 10, seed=1), folder / "more.parquet")
    assert run("moments", log, *OPTIONS, "--out", folder / "sums").code == 0
    assert run("moments", more, *OPTIONS, "--out", folder / "other").code == 0
    assert run("fit", log, *OPTIONS, "--keep-episodes", "--out", folder / "model").code == 0
    bounds = ("--action-low", "-1", "--action-high", "1", "--horizon", "3", "--method", "mpc")
    reward = ("--reward", "quadratic:weight=1")
    assert run("plan", folder / "model", *reward, *bounds, "--out", folder / "policy").code == 0
    few = ("--model", folder / "model", "--draws", 20, "--against", "zero")
    assert run("value", folder / "policy", *few, "--json", folder / "value.json").code == 0
    stream = Stream("linear", **ROLES)
    stream.partial_fit(log)
    stream.save(folder / "stream.state")
    return folder


@pytest.fixture
def place(start, tmp_path, monkeypatch):
    """Give a function that makes a fresh copy of the files and goes there."""

    def fresh():
        folder = tmp_path / "place"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(start, folder)
        os.chdir(folder)
        return folder

    monkeypatch.chdir(tmp_path)
    return fresh


class TimeOver(KeyboardInterrupt):
    """The time is over: the one exception that Hypothesis passes on as it is."""


@pytest.fixture
def each(request, record_property):
    """Give a function that tries `work` on values of a strategy, and counts them.

    A case that breaks the promise does not end the search; all of them are told at the end.
    """
    asked, fuzzing = (request.config.getoption(name) for name in ("--cases", "--fuzz"))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    until = time.monotonic() + HOUR * workers / TESTS if fuzzing and not asked else float("inf")

    def try_all(strategy, few, many, work):
        count, findings = 0, []
        fixed = many if request.config.getoption("--all") else few

        @settings(
            max_examples=asked or (1_000_000 if fuzzing else fixed),
            deadline=None,
            database=None,
            derandomize=not fuzzing,
            suppress_health_check=list(HealthCheck),
        )
        @given(strategy)
        def tried(value):
            nonlocal count
            if time.monotonic() > until:
                raise TimeOver
            count += 1
            try:
                work(value)
            except Exception:
                findings.append(f"{value}\n{traceback.format_exc()}")

        with contextlib.suppress(TimeOver):
            tried()
        record_property("cases", count)
        assert not findings, "\n\n".join([f"{len(findings)} of {count} cases", *findings])

    return try_all


def test_any_verb_with_any_option_keeps_its_promise_on_any_table(place, each):
    def work(case):
        verb, words, table = case
        folder = place()
        log = "log.parquet"
        if table is not None:
            log = write_table(table, folder / "hostile.parquet").name
        words = [log if word == "LOG" else word for word in words]
        keeps_its_promise(folder, verb, *words)

    each(commands(), 8, 150, work)


def says_the_same(one, other):
    """Whether two texts are the same JSON document."""
    try:
        return json.loads(one) == json.loads(other)
    except ValueError:
        return False


READERS = {
    "model": [
        ("update", "model", "more.parquet", "--out", "made"),
        ("effect", "model", "--action", "a0"),
        ("table", "model"),
        ("fit", "log.parquet", *OPTIONS, "--force", "--out", "made"),
    ],
    "sums": [
        ("merge", "sums", "other", "--out", "made"),
        ("fit", "--moments", "sums", "--out", "made"),
        ("moments", "more.parquet", "--like", "sums", "--out", "made"),
    ],
    "policy": [
        ("act", "policy", "--state", "1,2"),
        ("act", "policy", "--stdin"),
        ("value", "policy", "--model", "model", "--draws", "20", "--against", "zero"),
    ],
}
"""Commands that read a saved folder; the last of a model replaces another one."""
DAMAGE = st.tuples(
    st.sampled_from(["flip", "cut", "add"]), st.floats(0, 1, exclude_max=True), st.integers(1, 255)
)


def damaged(content, kind, where, bits):
    """Return bytes with one flipped, with one more, or without the end."""
    content = bytearray(content)
    at = int(where * len(content))
    if kind == "flip":
        content[at] ^= bits
    elif kind == "cut":
        del content[at:]
    else:
        content[at:at] = bytes([bits])
    return bytes(content)


def test_saved_files_with_damaged_bytes_are_refused(place, each):
    """A damaged file is refused; nothing that is read from it is believed."""
    pairs = [(source, i) for source in READERS for i in range(3)]
    cases = st.tuples(st.sampled_from(pairs), st.sampled_from(["json", "npz"]), DAMAGE)

    def work(case):
        (source, reader), ending, damage = case
        folder = place()
        (file,) = (folder / source).glob(f"*.{ending}")
        whole = file.read_bytes()
        file.write_bytes(damaged(whole, *damage))
        if ending == "json" and says_the_same(whole, file.read_bytes()):
            return  # a space became a tab
        result = keeps_its_promise(folder, *READERS[source][reader])
        assert result.code == 2, (case, result)

    each(cases, 15, 150, work)


def test_other_files_with_damaged_bytes_give_one_sentence_or_a_result(place, each):
    """Logs, a value for a report, the state of a stream: one sentence or a result."""
    files = ["log.parquet", "log.csv", "log.arrow", "value.json", "stream.state"]

    def work(case):
        name, damage = case
        folder = place()
        if not (folder / name).exists():
            write_table(make_rows(12, 10), folder / name)
        (folder / name).write_bytes(damaged((folder / name).read_bytes(), *damage))
        if name == "stream.state":
            with contextlib.suppress(InputError):
                Stream.load(folder / name)
        elif name == "value.json":
            words = ("model", "--policy", "policy", "--value", name, "--out", "made.html")
            keeps_its_promise(folder, "report", *words)
        else:
            keeps_its_promise(folder, "moments", name, *OPTIONS, "--out", "made")

    each(st.tuples(st.sampled_from([*files[:3] * 3, *files[3:]]), DAMAGE), 15, 60, work)


def test_saved_files_that_were_forged_and_signed_again_keep_the_promise(
    place, start, each, request
):
    """One sentence, or a result; never a traceback, and nothing is imported."""
    documents = {n: json.loads(next((start / n).glob("*.json")).read_text()) for n in READERS}
    paths = {name: sorted(leaves(documents[name]), key=str) for name in READERS}
    arrays = {name: sorted(np.load(next((start / name).glob("*.npz")))) for name in READERS}

    def forged(name):
        value = st.tuples(st.sampled_from(paths[name]), VALUES)
        array = st.tuples(st.sampled_from(arrays[name]), ARRAYS)
        return st.tuples(
            st.just(name),
            st.one_of(value, array) if request.config.getoption("--fuzz") else value,
            st.sampled_from(READERS[name][:2]),
        )

    def work(case):
        name, (where, value), reader = case
        folder = place()

        def change(document):
            if isinstance(where, str):
                file = next((folder / name).glob("*.npz"))
                stored = dict(np.load(file))
                np.savez(file, **stored | {where: replaced(stored[where], value)})
            elif where != ("checksum",):
                inner = document
                for key in where[:-1]:
                    inner = inner[key]
                inner[where[-1]] = value

        forge(folder / name, change)
        keeps_its_promise(folder, *reader)

    each(st.sampled_from(sorted(READERS)).flatmap(forged), 15, 150, work)


SIGNALLED = """
from ivvi._io.signals import end_on_signals
end_on_signals()
print("ready", flush=True)
import sys
from ivvi.__main__ import main
main()
"""
LONG = [
    ("simulate", "linear", "--dim", "2", "--out", "made.parquet"),
    ("fit", "log.parquet", *OPTIONS, "--out", "made"),
    ("update", "model", "more.parquet"),
    ("moments", "log.csv", *OPTIONS, "--out", "made"),
    ("fit", "model", "--out", "made"),
    ("plan", "model", "--reward", "quadratic:weight=1", "--horizon", "5", "--out", "made",
     "--action-low", "-1", "--action-high", "1"),
    ("value", "policy", "--model", "model", "--json", "made.json"),
]  # fmt: skip
ENDS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 143}


def test_signals_at_any_moment_leave_nothing_half(place, each, request):
    """130 or 143 and one line, or the end that was near; nothing new unless 0, nothing half."""
    if not request.config.getoption("--fuzz"):
        pytest.skip("the moment is a matter of wall time: run with --fuzz")

    def work(case):
        words, number, delay = case
        folder = place()
        rows = make_rows(12, 10)
        write_table({k: v[::-1] for k, v in rows.items()}, folder / "log.csv")  # to be sorted
        before = names(folder)
        code = "import signal\nsignal.signal(signal.SIGHUP, signal.SIG_DFL)\n" + SIGNALLED
        with subprocess.Popen(
            [sys.executable, "-c", code, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout.readline() == "ready\n"
            time.sleep(delay)
            process.send_signal(number)
            _, err = process.communicate(timeout=300)
        assert process.returncode in {0, 2, ENDS[number]}, (case, process.returncode, err)
        assert process.returncode == 0 or is_one_sentence(err), (case, err)
        new = names(folder) - before
        assert not any(name.startswith(".") for name in new), (case, new)
        assert process.returncode == 0 or not new, (case, new)
        assert run("table", "model").code == 0, case

    delays = st.one_of(st.floats(0, 0.5), st.floats(0, 8))
    cases = st.tuples(st.sampled_from(LONG), st.sampled_from(sorted(ENDS)), delays)
    each(cases, 1, 6, work)


@example(["{"])
@settings(deadline=None)
@given(st.lists(st.text(max_size=30), max_size=5))
def test_any_line_of_act_is_answered(served, lines):
    from ivvi.policy.json_lines_server import serve

    answers = list(serve(served, lines))
    assert len(answers) == sum(bool(line.strip()) for line in lines)
    assert all("\n" not in answer and json.loads(answer) for answer in answers)


@pytest.fixture(scope="module")
def served(start):
    from ivvi import load_policy

    return load_policy(start / "policy")
