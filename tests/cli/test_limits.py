"""Absurd sizes, strange files and signals: one sentence, an exit code, nothing left behind."""

import os
import signal
import subprocess
import sys
import time
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers import (
    OPTIONS,
    assert_refused,
    make_rows,
    mark_thorough,
    run,
    run_process,
    take,
    write_table,
)
from ivvi import InputError, make_env, read_logs
from ivvi._io.files import load_folder, save_folder
from ivvi._io.memory import available_memory, check_memory
from ivvi.errors import FileError
from ivvi.logs.tables import parquet_files


@pytest.fixture
def log(tmp_path):
    return write_table(make_rows(), tmp_path / "log.parquet")


HUGE = {
    "fourier:1000000000": "GiB are available",
    "spline:99999999999": "GiB are available",
    "fourier:100000": "rows, which cannot estimate 100,005 coefficients",
    "poly1000000": "polynomial is 1000000",
    f"poly{'9' * 400}": "digits",
    f"fourier:{'9' * 5000}": "digits",
    "poly50:cross": "mixed monomials",
}


@pytest.mark.parametrize("word", HUGE, ids=[word[:20] for word in HUGE])
def test_features_that_no_memory_holds_are_refused_at_once(word, log, tmp_path):
    started = time.process_time()
    result = run("fit", log, *OPTIONS, "--features", word, "--out", tmp_path / "model")
    assert_refused(result, HUGE[word])
    assert time.process_time() - started < 20
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        (("--se", "hac", "--bandwidth", 99999999999999999), "the log has 54 transitions"),
        (("--workers", 100_000), "100,000 worker processes would take 1.25e+04 GiB"),
        (("--cluster", "z*"), "'z*' is a pattern; expected the names"),
        (("--scheduler", "tls://nowhere:1"), "no Dask scheduler answers at tls://nowhere:1"),
    ],
)
def test_settings_that_cannot_be_met_are_refused(options, fact, log, tmp_path):
    assert_refused(run("fit", log, *OPTIONS, *options, "--out", tmp_path / "model"), fact)


@pytest.mark.parametrize("name", ["log.parquet", "log.csv", "log.arrow"])
def test_pipes_are_no_logs(name, tmp_path):
    os.mkfifo(tmp_path / name)
    result = run("fit", tmp_path / name, *OPTIONS, "--out", tmp_path / "model")
    assert_refused(result, "a pipe or a device; expected a file")
    assert_refused(run("fit", "/dev/zero", "--out", tmp_path / "model"), "a pipe or a device")


def test_names_that_cannot_be_are_refused(log, tmp_path):
    name = "a" * 5000
    for arguments in ((name, "--out", tmp_path / "model"), (log, *OPTIONS, "--out", name)):
        result = run("fit", *arguments)
        assert_refused(result, "File name too long")
        assert len(result.err) < 500
    assert_refused(run("fit", log, *OPTIONS, "--out", "/"), "exists already")
    assert_refused(run("fit", "log\0.parquet", "--out", tmp_path / "model"), "does not exist")


@pytest.mark.parametrize(
    "code", ["import errno, os, tempfile\ndef full(*_, **__): raise OSError(28, 'No space left')"]
)
@pytest.mark.parametrize(
    "call", mark_thorough(["np.savez", "os.replace", "tempfile.mkdtemp"], "tempfile.mkdtemp")
)
def test_a_full_disk_is_the_machine_s_fault(call, code, log, tmp_path):
    code += f"\nimport ivvi._io.files as files\nfiles.{call} = full"
    result = run_process("fit", log, *OPTIONS, "--out", tmp_path / "model", code=code)
    assert (result.code, result.err.count("\n")) == (1, 1), result
    assert "No space left" in result.err
    assert [path.name for path in tmp_path.iterdir()] == ["log.parquet"]


def test_members_of_a_saved_file_are_as_large_as_they_say(tmp_path):
    """A member that is compressed could be of any size; we write none."""
    save_folder(tmp_path / "saved", "thing", {}, {"x": np.arange(3)})
    assert load_folder(tmp_path / "saved", "thing")[1]["x"].tolist() == [0, 1, 2]
    bomb = tmp_path / "bomb"
    save_folder(bomb, "thing", {}, {"x": np.arange(3)})
    with zipfile.ZipFile(bomb / "thing.npz", "a", zipfile.ZIP_DEFLATED) as file:
        file.writestr("unused.npy", bytes(10_000_000))
    from helpers import forge

    forge(bomb, lambda _: None)
    with pytest.raises(FileError, match=r"'unused.npy' is compressed"):
        load_folder(bomb, "thing")


def test_memory_is_asked_before_it_is_taken():
    check_memory(1000, "a thousand bytes")
    with pytest.raises(InputError, match="a petabyte would take"):
        check_memory(1e15, "a petabyte")
    code = """
import resource; resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))
from ivvi._io.memory import available_memory; print(available_memory() < 2**30)"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
    assert available_memory() > 2**27


def test_a_sort_that_has_no_memory_is_refused(tmp_path):
    """With less than it asks for DuckDB ends in a segmentation fault."""
    rows = take(make_rows(), np.random.default_rng(0).permutation(60))
    log = write_table(rows, tmp_path / "log.csv")
    code = "import resource; resource.setrlimit(resource.RLIMIT_AS, (3 << 29, 3 << 29))"
    result = run_process("fit", log, *OPTIONS, "--out", tmp_path / "model", code=code)
    assert_refused(result, "sorting", "of memory")


def test_libraries_that_no_limit_leaves_room_for_are_not_loaded(tmp_path):
    """They would end the process by themselves."""
    code = "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))"
    result = run_process("simulate", "linear", "--out", tmp_path / "log.parquet", code=code)
    assert (result.code, result.err) == (1, "ivvi: out of memory\n")


@pytest.mark.parametrize("limit", [250, 320, 450, 600])
def test_no_limit_is_so_small_that_a_library_hangs(limit, log):
    """In between OpenBLAS tries again and again, and an import fails without an exception."""
    code = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({limit} << 20,) * 2)"
    result = run_process("diagnose", log, *OPTIONS, code=code)
    assert (result.code, result.err) == (1, "ivvi: out of memory\n")


def test_a_library_that_cannot_be_mapped_is_out_of_memory(log, monkeypatch):
    def loading(*_, **__):
        raise ImportError("duckdb.so: failed to map segment from shared object")

    monkeypatch.setattr("ivvi.fitting.estimate", loading)
    result = run("diagnose", log, *OPTIONS)
    assert (result.code, result.err) == (1, "ivvi: out of memory\n")


def test_tiny_row_groups_are_read_together(tmp_path, monkeypatch):
    table = pa.table(make_rows(150, 20))
    path = write_table(table, tmp_path / "log.parquet", row_group_size=1)
    reads = []
    original = pq.ParquetFile.read_row_groups

    def counted(self, groups, **settings):
        reads.append(len(groups))
        return original(self, groups, **settings)

    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", counted)
    batch = read_logs(path).to_batch()
    assert len(batch) == 150 * 19
    passes = 4  # the order of rows and steps and facts that never change are looked at first
    assert sum(reads) <= passes * 3000
    assert len(reads) <= passes * (3000 // parquet_files.MOST_TOGETHER + 1)
    np.testing.assert_array_equal(batch.x, read_logs(table).to_batch().x)


# Signals

SLOW = """
import signal, sys, time
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # who runs the tests may ignore it
from ivvi._io.files import atomic_folder
from ivvi.cli import main as cli
from ivvi.cli.terminal import run_app
import typer
app = typer.Typer()
@app.command()
def work(kind: str, out: str):
    with atomic_folder(out) as folder:
        (folder / "thing.json").write_text("{}")
        print("ready", flush=True)
        if kind == "sleep":
            time.sleep(60)
        elif kind == "callback":
            import jax, jax.numpy as jnp
            def swallow(x):
                try:
                    time.sleep(60)
                except BaseException:
                    time.sleep(60)
                return x
            jax.jit(lambda x: jax.pure_callback(swallow, x, x))(jnp.ones(2)).block_until_ready()
        elif kind == "sort":
            import duckdb
            pairs = "range(300000) a, range(1000000) b"
            duckdb.sql(f"select sum(a.range * b.range) from {pairs}").fetchall()
@app.command()
def other(): pass
sys.argv = ["ivvi", "work", *sys.argv[1:]]
run_app(app)
"""


WORDS = {
    signal.SIGINT: (130, "interrupted"),
    signal.SIGTERM: (143, "terminated"),
    signal.SIGHUP: (143, "hung up"),
}


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        ("sleep", signal.SIGINT),
        ("sleep", signal.SIGTERM),
        pytest.param("sleep", signal.SIGHUP, marks=pytest.mark.thorough),
        ("callback", signal.SIGINT),
        ("sort", signal.SIGINT),
        pytest.param("callback", signal.SIGTERM, marks=pytest.mark.thorough),
        pytest.param("sort", signal.SIGHUP, marks=pytest.mark.thorough),
    ],
)
def test_a_signal_ends_a_command_at_once(kind, number, tmp_path):
    """Also inside compiled code and inside a callback that swallows every exception."""
    code, word = WORDS[number]
    command = [sys.executable, "-c", SLOW, kind, str(tmp_path / "out")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.3)
        process.send_signal(number)
        assert process.wait(timeout=30) == code
        assert process.stderr.read() == f"ivvi: {word}\n"
    assert list(tmp_path.iterdir()) == []


EARLY = """
import signal, sys, time
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # who runs the tests may ignore it
class Slow:
    def find_spec(self, name, *_):
        if name == "typer":
            print("ready", flush=True)
            time.sleep(60)
sys.meta_path.insert(0, Slow())
from ivvi.__main__ import main
main()
"""


@pytest.mark.parametrize("number", WORDS)
def test_a_signal_ends_a_command_that_has_hardly_begun(number):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", EARLY], text=True, **pipes) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        code, word = WORDS[number]
        assert process.wait(timeout=30) == code
        assert process.stderr.read() == f"ivvi: {word}\n"


def test_a_signal_after_the_work_changes_nothing():
    code = """
import atexit, os, signal, sys
atexit.register(lambda: [os.kill(os.getpid(), n) for n in (signal.SIGTERM, signal.SIGHUP)])
from ivvi.__main__ import main
sys.argv[1:] = ["--version"]
main()"""
    assert run_process(code=code).code == 0


def test_a_signal_takes_the_folder_for_compiled_programs_with_it(tmp_path):
    code = """
import os, signal, time
from ivvi._io.signals import end_on_signals
from ivvi._io.program_cache import keep_programs
end_on_signals()
keep_programs()
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(60)"""
    assert run_process(code=code, IVVI_CACHE=tmp_path).code == 143
    assert list(tmp_path.glob("*/*")) == []


@pytest.mark.parametrize(
    ("size", "fact"),
    [
        (("--episodes", 10**15), "a log of 1,000,000,000,000,000 episodes of 9 steps would take"),
        (("--horizon", 10**15), "a log of 2 episodes of 1,000,000,000,000,000 steps would take"),
    ],
)
def test_a_simulation_that_no_disk_holds_is_refused(size, fact, tmp_path):
    short = ("--episodes", 2, "--horizon", 9)
    result = run("simulate", "linear", "--dim", 1, *short, *size, "--out", tmp_path / "log.parquet")
    assert_refused(result, fact)
    assert list(tmp_path.iterdir()) == []


def test_episodes_that_no_memory_holds_are_refused():
    env = make_env("linear", dim=1)
    with pytest.raises(InputError, match="episodes of 9 steps would take"):
        env.rollout(lambda x: x, episodes=10**15, horizon=9)
    with pytest.raises(InputError, match="would take"):
        env.collect(episodes=10**15, horizon=9)
