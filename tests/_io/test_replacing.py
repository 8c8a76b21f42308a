"""A folder is replaced in one step, by one run at a time, whenever a run dies."""

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

from helpers import left_by_the_dead, run_process
from ivvi._io import replacing
from ivvi._io.files import atomic_file, load_folder, load_version, save_folder
from ivvi._io.replacing import locked, put_in_place, recover
from ivvi.errors import FileError
from ivvi.logs.sorting import temporary_folder

ARRAYS = {"W": np.arange(4.0)}


def names(folder):
    return sorted(file.name for file in folder.iterdir())


def save(path, n, **settings):
    return save_folder(path, "model", {"n": n}, ARRAYS, force=True, **settings)


def number(path):
    return load_folder(path, "model")[0]["n"]


@pytest.fixture(params=["exchange", "renames"])
def way(request, monkeypatch):
    """Replace by the system call, and as where there is none."""
    if request.param == "renames":
        monkeypatch.setattr(replacing, "renameat2", lambda: None)
    elif replacing.renameat2() is None:
        pytest.skip("this system cannot exchange folders")
    return request.param


def test_a_folder_is_replaced_and_nothing_stays_behind(way, tmp_path):
    for n in (1, 2, 3):
        save(tmp_path / "out", n)
        assert number(tmp_path / "out") == n
        assert names(tmp_path) == ["out"]


@pytest.mark.parametrize("step", [0, 1])
def test_a_rename_that_fails_leaves_the_old_folder(step, tmp_path, monkeypatch):
    save(tmp_path / "out", 1)
    calls, rename = [], os.replace

    def failing(source, target):
        calls.append(target)
        if len(calls) == step + 1:
            raise OSError(28, "No space left on device")
        rename(source, target)

    monkeypatch.setattr(replacing, "renameat2", lambda: None)
    monkeypatch.setattr(replacing.os, "replace", failing)
    with pytest.raises(OSError, match="No space"):
        save(tmp_path / "out", 2)
    assert names(tmp_path) == ["out"]
    assert number(tmp_path / "out") == 1


@pytest.mark.parametrize(
    ("answer", "raised"), [(errno.EINVAL, False), (errno.ENOSYS, False), (errno.EIO, True)]
)
def test_a_file_system_without_exchange_is_told_from_a_fault(answer, raised, tmp_path, monkeypatch):
    def call(*_):
        replacing.ctypes.set_errno(answer)
        return -1

    save(tmp_path / "out", 1)
    monkeypatch.setattr(replacing, "renameat2", lambda: call)
    if raised:
        with pytest.raises(OSError, match="Input/output error"):
            save(tmp_path / "out", 2)
    else:
        save(tmp_path / "out", 2)
    assert number(tmp_path / "out") == (1 if raised else 2)
    assert names(tmp_path) == ["out"]


# Versions


def test_only_the_version_that_was_read_is_replaced(way, tmp_path):
    save(tmp_path / "out", 1)
    version = load_version(tmp_path / "out", "model")[1]
    save(tmp_path / "out", 2, replaces=version)
    with pytest.raises(FileError, match="replaced by another run in the meantime"):
        save(tmp_path / "out", 3, replaces=version)
    assert number(tmp_path / "out") == 2
    assert names(tmp_path) == ["out"]


def test_a_version_that_comes_between_the_look_and_the_exchange_stays(tmp_path):
    """Two runs that no lock keeps apart: the later one notices at the exchange itself."""
    if replacing.renameat2() is None:
        pytest.skip("this system cannot exchange folders")
    save(tmp_path / "old", 1)
    save(tmp_path / "rival", 2)
    save(tmp_path / "mine", 3)
    looks = []

    def check(folder):
        looks.append(number(folder))
        if len(looks) == 1:  # the rival comes just after the look
            replacing.exchange(tmp_path / "old", tmp_path / "rival")
        elif looks[-1] != 1:
            raise FileError("another")

    with pytest.raises(FileError, match="another"):
        put_in_place(tmp_path / "mine", tmp_path / "old", check)
    assert looks == [1, 2]
    assert number(tmp_path / "old") == 2


def test_a_reader_never_sees_halves_of_two_versions(tmp_path):
    """Arrays and JSON are read one after the other while a writer replaces both."""
    done = threading.Event()

    def write():
        for n in range(200):
            arrays = {"n": np.full(2000, n)}
            save_folder(tmp_path / "out", "model", {"n": n}, arrays, force=True)
        done.set()

    save_folder(tmp_path / "out", "model", {"n": 0}, {"n": np.full(2000, 0)})
    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        document, arrays = load_folder(tmp_path / "out", "model")
        assert (arrays["n"] == document["n"]).all()
    writer.join()


# Locks

HOLD = """
import sys
from ivvi._io.replacing import locked
with locked(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def holder(path):
    """Hold the lock of a folder in another process."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_folder_that_is_held_is_refused_after_the_wait(tmp_path, caplog):
    with (
        holder(tmp_path / "out"),
        pytest.raises(FileError, match=r"being replaced by another run; waited 0\.2 seconds"),
        locked(tmp_path / "out", wait=0.2),
    ):
        pass
    assert "waiting for another run that is replacing" in caplog.text


def test_death_releases_the_lock(tmp_path):
    with holder(tmp_path / "out") as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert names(tmp_path) == [".out.ivvi-lock"]
        with locked(tmp_path / "out", wait=0):
            pass
    assert names(tmp_path) == []


def test_who_holds_a_folder_may_write_it(tmp_path):
    with locked(tmp_path / "out"):
        save(tmp_path / "out", 1)
        with locked(tmp_path / "out", wait=0):
            save(tmp_path / "out", 2)
        assert names(tmp_path) == [".out.ivvi-lock", "out"]
    assert names(tmp_path) == ["out"]


def test_threads_add_up_under_the_lock(tmp_path):
    """Each of eight threads adds one, ten times: none is lost."""

    def add():
        for _ in range(10):
            with locked(tmp_path / "out"):
                save(tmp_path / "out", number(tmp_path / "out") + 1)

    save(tmp_path / "out", 0)
    threads = [threading.Thread(target=add) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert number(tmp_path / "out") == 80
    assert names(tmp_path) == ["out"]


def test_a_file_system_without_locks_is_written_all_the_same(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(replacing.fcntl, "flock", refuse)
    save(tmp_path / "out", 1)
    assert names(tmp_path) == ["out"]


# Runs that die

KILLS = {
    "before the exchange": "replacing.exchange = die",
    "after the exchange": "replacing.shutil.rmtree = die",
    "between the renames": """
rename, done = os.replace, []
def second(*paths):
    if done: die()
    done.append(rename(*paths))
replacing.renameat2 = lambda: None
os.replace = second""",
    "after the renames": "replacing.renameat2 = lambda: None\nreplacing.shutil.rmtree = die",
}
SAVE = """
import os, signal
import numpy as np
from ivvi._io import replacing
from ivvi._io.files import save_folder
def die(*_, **__): os.kill(os.getpid(), signal.SIGKILL)
{kill}
save_folder({path!r}, "model", {{"n": 2}}, {{"W": np.arange(4.0)}}, force=True)
"""


@pytest.mark.parametrize("kill", KILLS)
def test_killed_anywhere_a_whole_version_is_there_and_leftovers_go(kill, tmp_path, caplog):
    save(tmp_path / "out", 1)
    code = SAVE.format(kill=KILLS[kill], path=str(tmp_path / "out"))
    assert run_process(code=code).code == -signal.SIGKILL
    assert number(tmp_path / "out") == (2 if kill.startswith("after") else 1)
    mended = "out was put back: a run died while it replaced it" in caplog.text
    assert mended == (kill == "between the renames")
    assert "which a run that died had left" in caplog.text
    assert names(tmp_path) == ["out"]
    save(tmp_path / "out", 3)
    assert number(tmp_path / "out") == 3
    assert names(tmp_path) == ["out"]


def test_who_reads_leaves_what_a_run_that_lives_holds(tmp_path):
    save(tmp_path / "out", 1)
    left = left_by_the_dead("out")
    (tmp_path / left).mkdir()
    with holder(tmp_path / "out"):
        assert number(tmp_path / "out") == 1
        assert left in names(tmp_path)
    assert number(tmp_path / "out") == 1
    assert names(tmp_path) == ["out"]


def test_what_a_sort_that_was_killed_left_is_removed_by_the_next(tmp_path, monkeypatch):
    code = """
import os, signal
from ivvi.logs.sorting import temporary_folder
with temporary_folder() as name:
    open(os.path.join(name, "spool.parquet"), "w").close()
    os.kill(os.getpid(), signal.SIGKILL)"""
    assert run_process(code=code, TMPDIR=tmp_path).code == -signal.SIGKILL
    assert [name[:10] for name in names(tmp_path)] == ["ivvi-sort-"]
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with temporary_folder() as own:
        assert names(tmp_path) == [os.path.basename(own)]
    assert names(tmp_path) == []


def test_a_live_run_keeps_its_temporary_files_and_strangers_theirs(tmp_path):
    own = replacing.temporary_prefix(tmp_path / "out").replace(str(os.getpid()), str(os.getppid()))
    kept = [f"{own}abc", ".out.notes", ".out.1-0-abc", ".other.1-0-abc"]
    for name in kept:
        (tmp_path / name).write_text("mine")
    save(tmp_path / "out", 1)
    with atomic_file(tmp_path / "file") as temporary:
        temporary.write_text("new")
    assert names(tmp_path) == sorted([*kept, "file", "out"])


def test_nothing_is_put_back_over_a_folder_that_is_there(tmp_path):
    save(tmp_path / "out", 2)
    shutil.copytree(tmp_path / "out", tmp_path / ".out.ivvi-previous")
    recover(tmp_path / "out")
    assert names(tmp_path) == [".out.ivvi-previous", "out"]
    save(tmp_path / "out", 3)
    assert names(tmp_path) == ["out"]
