"""Whatever happens while writing, a final name holds the whole or nothing."""

import contextlib
import json
import os
import shutil
import signal
import stat
import tracemalloc

import numpy as np
import pyarrow.parquet as pq
import pytest

from helpers import (
    OPTIONS,
    assert_refused,
    forge,
    make_rows,
    mark_thorough,
    run,
    run_process,
    write_table,
)
from ivvi import load_model, read_logs
from ivvi._io.files import (
    FORMAT,
    atomic_file,
    atomic_folder,
    checked_output,
    filled_folder,
    load_folder,
    save_folder,
    write_json,
)
from ivvi.errors import FileError

FACTS = {"name": "ü", "numbers": [1, 2.5, None], "inner": {"b": 1, "a": True}}
ARRAYS = {"W": np.arange(6.0).reshape(2, 3) / 7, "i": np.array([1, 2])}


def names(folder):
    return sorted(file.name for file in folder.iterdir())


def save_as_file(path, *, force=False, fail=None):
    with atomic_file(path, force=force) as temporary:
        temporary.write_text("new")
        if fail:
            raise fail


def save_as_folder(path, *, force=False, fail=None):
    with atomic_folder(path, force=force) as temporary:
        (temporary / "model.json").write_text("new")
        (temporary / "model.npz").write_text("new")
        if fail:
            raise fail


WRITERS = [save_as_file, save_as_folder]


def content(path):
    return (path / "model.json" if path.is_dir() else path).read_text()


# Checking before writing


@pytest.mark.parametrize("relative", [False, True])
def test_a_name_that_is_free_is_returned(relative, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = "new" if relative else tmp_path / "new"
    assert checked_output(path) == type(tmp_path)(path)
    assert names(tmp_path) == []


@pytest.mark.parametrize("write", [*WRITERS, checked_output])
@pytest.mark.parametrize(
    ("name", "fact"),
    [
        ("absent/new", "absent is not an existing folder"),
        ("file/new", "file is not an existing folder"),
        ("file", "file exists already"),
        ("x" * 300, "File name too long"),
        ("x" * 250, "File name too long"),  # the temporary name is longer
    ],
)
def test_a_name_that_cannot_be_written_is_refused(write, name, fact, tmp_path):
    (tmp_path / "file").write_text("old")
    with pytest.raises(FileError, match=fact):
        write(tmp_path / name)
    assert names(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "old"


# Atomic files and folders


@pytest.mark.parametrize("write", WRITERS)
def test_the_whole_is_written_with_ordinary_permissions(write, tmp_path):
    before = os.umask(0o027)
    try:
        write(tmp_path / "new")
    finally:
        os.umask(before)
    assert names(tmp_path) == ["new"]
    assert content(tmp_path / "new") == "new"
    mode = stat.S_IMODE((tmp_path / "new").stat().st_mode)
    assert mode == (0o640 if write is save_as_file else 0o750)


@pytest.mark.parametrize("fail", [ValueError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("write", WRITERS)
def test_an_exception_leaves_nothing(write, fail, tmp_path):
    with pytest.raises(fail):
        write(tmp_path / "new", fail=fail)
    assert names(tmp_path) == []


@pytest.mark.parametrize("fail", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("write", WRITERS)
def test_an_exception_leaves_the_old(write, fail, tmp_path):
    write(tmp_path / "out")
    for file in (tmp_path / "out", tmp_path / "out" / "model.json"):
        if file.is_file():
            file.write_text("old")
    with pytest.raises(fail):
        write(tmp_path / "out", force=True, fail=fail)
    assert names(tmp_path) == ["out"]
    assert content(tmp_path / "out") == "old"


@pytest.mark.parametrize("write", WRITERS)
def test_the_old_stands_until_the_new_is_whole(write, tmp_path):
    write(tmp_path / "out")
    inside = atomic_file if write is save_as_file else atomic_folder
    with inside(tmp_path / "out", force=True) as temporary:
        assert content(tmp_path / "out") == "new"
        if write is save_as_file:
            temporary.write_text("newer")
        else:
            (temporary / "model.json").write_text("newer")
        assert content(tmp_path / "out") == "new"
    assert content(tmp_path / "out") == "newer"
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize("write", WRITERS)
def test_a_link_is_followed(write, tmp_path):
    """The new stands where the link points, written beside its final place."""
    (tmp_path / "real").mkdir()
    write(tmp_path / "real" / "out")
    (tmp_path / "link").symlink_to(tmp_path / "real" / "out")
    write(tmp_path / "link", force=True)
    assert (tmp_path / "link").is_symlink()
    assert (names(tmp_path), names(tmp_path / "real")) == (["link", "real"], ["out"])


@pytest.mark.parametrize(
    "strangers",
    [
        ["notes.txt"],
        ["package.json"],
        ["model.json"],
        ["a.json", "b.npz"],
        ["model.json", "model.npz", "notes.txt"],
        [".hidden", "model.json", "model.npz"],
    ],
)
def test_a_foreign_folder_is_not_replaced(strangers, tmp_path):
    for name in strangers:
        (tmp_path / "out").mkdir(exist_ok=True)
        (tmp_path / "out" / name).write_text("mine")
    with pytest.raises(FileError, match="not a folder that ivvi saved"):
        save_folder(tmp_path / "out", "model", FACTS, ARRAYS, force=True)
    assert names(tmp_path / "out") == sorted(strangers)
    assert names(tmp_path) == ["out"]


def test_an_empty_folder_and_an_old_one_are_replaced(tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(FileError, match="exists already"):
        save_folder(tmp_path / "out", "model", {"n": 1}, ARRAYS)
    for number in (1, 2):
        save_folder(tmp_path / "out", "model", {"n": number}, ARRAYS, force=True)
        assert load_folder(tmp_path / "out", "model")[0]["n"] == number
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize("write", [save_as_file, save_as_folder])
def test_a_file_and_a_folder_do_not_replace_each_other(write, tmp_path):
    other = save_as_folder if write is save_as_file else save_as_file
    other(tmp_path / "out")
    with pytest.raises(FileError, match=r"is a folder|not a folder"):
        write(tmp_path / "out", force=True)
    assert content(tmp_path / "out") == "new"
    assert names(tmp_path) == ["out"]


def test_json_is_readable_and_has_no_nan(tmp_path):
    write_json(tmp_path / "a.json", FACTS)
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == FACTS
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "b.json", {"x": float("nan")})
    assert names(tmp_path) == ["a.json"]


# Saved folders


def test_what_is_saved_is_loaded(tmp_path):
    assert save_folder(tmp_path / "out", "model", FACTS, ARRAYS) == tmp_path / "out"
    document, arrays = load_folder(tmp_path / "out", "model")
    assert document == FACTS | {"kind": "model", "format": FORMAT}
    assert arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert np.array_equal(arrays[name], array)
        assert arrays[name].dtype == array.dtype
    assert names(tmp_path / "out") == ["model.json", "model.npz"]


@pytest.mark.parametrize(
    ("facts", "arrays"),
    [
        ({"x": float("inf")}, ARRAYS),
        ({"x": object()}, ARRAYS),
        (FACTS, {"W": np.array([object()])}),
    ],
)
def test_what_cannot_be_saved_leaves_nothing(facts, arrays, tmp_path):
    with pytest.raises((ValueError, TypeError)):
        save_folder(tmp_path / "out", "model", facts, arrays)
    assert names(tmp_path) == []


def edit(change):
    """Return a tampering with the JSON of a folder."""

    def tamper(folder):
        document = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        change(document)
        (folder / "model.json").write_text(json.dumps(document), encoding="utf-8")

    return tamper


def flip_byte(folder):
    content = bytearray((folder / "model.npz").read_bytes())
    content[len(content) // 2] ^= 1
    (folder / "model.npz").write_bytes(content)


def cut(name):
    def tamper(folder):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[: len(whole) // 2])

    return tamper


def other_arrays(folder):
    np.savez(folder / "model.npz", **ARRAYS | {"W": ARRAYS["W"] + 1})


TAMPERINGS = {
    "another version": (edit(lambda d: d.update(format=FORMAT + 1)), "has format 2;.*reads 1"),
    "no version": (edit(lambda d: d.pop("format")), "has format None"),
    "another kind": (edit(lambda d: d.update(kind="policy")), "does not describe a model"),
    "no kind": (edit(lambda d: d.pop("kind")), "does not describe a model"),
    "a changed fact": (edit(lambda d: d.update(name="v")), "altered or damaged"),
    "a new fact": (edit(lambda d: d.update(more=1)), "altered or damaged"),
    "a NaN": (edit(lambda d: d.update(name=float("nan"))), "altered or damaged"),
    "no checksum": (edit(lambda d: d.pop("checksum")), "altered or damaged"),
    "cut JSON": (cut("model.json"), "cannot be read as JSON"),
    "JSON that is no object": (lambda f: (f / "model.json").write_text("[]"), "does not describe"),
    "no text": (lambda f: (f / "model.json").write_bytes(b"\xff\xfe"), "cannot be read as JSON"),
    "a flipped bit": (flip_byte, "altered or damaged"),
    "cut npz": (cut("model.npz"), "altered or damaged"),
    "other arrays": (other_arrays, "altered or damaged"),
    "no npz": (lambda f: (f / "model.npz").unlink(), "expected model.json and model.npz"),
    "no JSON": (lambda f: (f / "model.json").unlink(), "expected model.json and model.npz"),
    "nothing": (shutil.rmtree, "is not a saved model"),
}


@pytest.mark.parametrize("name", TAMPERINGS)
@pytest.mark.parametrize("load", [lambda path: load_folder(path, "model"), load_model])
def test_damaged_folders_are_refused(name, load, tmp_path):
    folder = save_folder(tmp_path / "out", "model", FACTS, ARRAYS)
    tamper, fact = TAMPERINGS[name]
    tamper(folder)
    with pytest.raises(FileError, match=fact):
        load(folder)


def test_whitespace_is_not_damage(tmp_path):
    folder = save_folder(tmp_path / "out", "model", FACTS, ARRAYS)
    edit(lambda document: None)(folder)  # written again without indentation
    assert load_folder(folder, "model")[0]["name"] == "ü"


def test_pickles_are_not_loaded(tmp_path):
    """Not even with a checksum that fits."""
    folder = save_folder(tmp_path / "out", "model", FACTS, ARRAYS)
    np.savez(folder / "model.npz", W=np.array([{"a": 1}], dtype=object))
    forge(folder, lambda document: None)
    with pytest.raises(FileError, match=r"model\.npz cannot be read"):
        load_folder(folder, "model")


# Processes killed in the middle

KILL = "import os, signal\ndef die(*_, **__): os.kill(os.getpid(), signal.SIGKILL)\n"
STAGES = {
    "before the arrays": "import numpy\nnumpy.savez = die",
    "in the arrays": """
import numpy
def half(path, **_):
    path.write_bytes(b"PK half of a file")
    die()
numpy.savez = half""",
    "before the JSON": "import json, ivvi._io.files\nivvi._io.files.json.dumps = die",
    "in the JSON": """
import pathlib
write = pathlib.Path.write_text
def half(path, text, **settings):
    write(path, text[:100], **settings)
    die()
pathlib.Path.write_text = half""",
    "before the rename": "os.replace = die",
    "before the exchange": "import ivvi._io.files\nivvi._io.files.put_in_place = die",
}


@pytest.fixture
def log(tmp_path):
    return write_table(make_rows(), tmp_path / "log.parquet")


def fit(log, out, *options, stage=None):
    arguments = ("fit", log, *OPTIONS, "--out", out, *options)
    if stage is None:
        result = run(*arguments)
        assert result.code == 0, result
        return load_model(out)
    result = run_process(*arguments, code=KILL + stage)
    assert result.code == -signal.SIGKILL, result
    return None


@pytest.mark.parametrize(
    "stage",
    mark_thorough(
        [name for name in STAGES if name != "before the exchange"],
        *("before the arrays", "before the JSON", "in the JSON"),
    ),
)
def test_a_killed_fit_leaves_no_model_and_does_not_stand_in_the_way(stage, log, tmp_path):
    fit(log, tmp_path / "model", stage=STAGES[stage])
    assert not (tmp_path / "model").exists()
    fit(log, tmp_path / "model")
    assert names(tmp_path) == ["log.parquet", "model"]


@pytest.mark.parametrize(
    "stage", mark_thorough(["in the JSON", "before the exchange"], "in the JSON")
)
def test_a_killed_fit_leaves_the_old_model(stage, log, tmp_path):
    old = fit(log, tmp_path / "model")
    fit(log, tmp_path / "model", "--force", "--features", "poly2", stage=STAGES[stage])
    assert np.array_equal(load_model(tmp_path / "model").W, old.W)
    new = fit(log, tmp_path / "model", "--force", "--features", "poly2")
    assert new.W.shape != old.W.shape


def test_a_killed_simulation_leaves_no_log(tmp_path):
    stage = "import pyarrow.parquet\npyarrow.parquet.ParquetWriter.close = die"
    small = ("--dim", 1, "--episodes", 3, "--horizon", 4, "--out", tmp_path / "log.parquet")
    result = run_process("simulate", "linear", *small, code=KILL + stage)
    assert result.code == -signal.SIGKILL, result
    assert not (tmp_path / "log.parquet").exists()


@pytest.mark.parametrize("stage", ["pyarrow.parquet.ParquetWriter.close", "os.replace"])
def test_a_killed_copy_leaves_the_old_log(stage, log):
    before = pq.read_table(log)
    code = f"""
import pyarrow.parquet
from ivvi import read_logs
{stage} = die
log = {str(log)!r}
read_logs(log, state="x*", action="a*", instrument="z*").to_parquet(log, force=True)
"""
    assert run_process(code=KILL + code).code == -signal.SIGKILL
    assert pq.read_table(log).equals(before)


@pytest.mark.parametrize("fault", [KeyboardInterrupt, MemoryError, OSError(28, "No space left")])
def test_faults_while_saving_end_in_one_line_and_leave_nothing(fault, log, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise fault

    monkeypatch.setattr(np, "savez", fail)
    result = run("fit", log, *OPTIONS, "--out", tmp_path / "model")
    wanted = {KeyboardInterrupt: (130, "interrupted"), MemoryError: (1, "out of memory")}
    code, said = wanted.get(fault, (1, "No space left"))
    assert (result.code, result.err.count("\n")) == (code, 1)
    assert result.err.startswith("ivvi: ")
    assert said in result.err
    assert names(tmp_path) == ["log.parquet"]


def test_force_replaces_a_model(log, tmp_path):
    first = fit(log, tmp_path / "model")
    result = run("fit", log, *OPTIONS, "--out", tmp_path / "model")
    assert_refused(result, "exists already; choose another name or pass force=True (--force)")
    second = fit(log, tmp_path / "model", "--force", "--reward", "reward")
    assert (first.has_reward, second.has_reward) == (False, True)
    assert names(tmp_path) == ["log.parquet", "model"]
    assert read_logs(log).num_rows == 60


# Folders that several things are written into


def test_a_folder_is_filled_when_all_is_there(tmp_path):
    target = tmp_path / "demo"
    with contextlib.suppress(OSError), filled_folder(target) as folder:
        (folder / "one.txt").write_text("half")
        raise OSError("full")
    assert list(tmp_path.iterdir()) == []
    with filled_folder(target) as folder:
        (folder / "one.txt").write_text("1")
        assert not target.exists()
    assert (target / "one.txt").read_text() == "1"


def test_a_folder_that_is_filled_again_keeps_what_else_is_in_it(tmp_path):
    target = tmp_path / "demo"
    for word in ("old", "new"):
        with filled_folder(target) as folder:
            (folder / "one.txt").write_text(word)
            (folder / "model").mkdir()
            (folder / "model" / word).touch()
        (target / "mine.txt").touch()
    assert sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*")) == [
        *("demo", "demo/mine.txt", "demo/model", "demo/model/new", "demo/one.txt"),
    ]
    assert (target / "one.txt").read_text() == "new"


def test_a_demo_that_fails_leaves_nothing(tmp_path, monkeypatch):
    def failing(*_, **__):
        raise FileError("no simulator")

    monkeypatch.setattr("ivvi.reporting.demo.make_env", failing)
    assert run("demo", "--out", tmp_path / "story").code == 2
    assert list(tmp_path.iterdir()) == []


def test_saving_reads_nothing_back_whole(tmp_path):
    large = {"blocks": np.zeros(5_000_000)}
    tracemalloc.start()
    save_folder(tmp_path / "model", "model", {}, large)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < large["blocks"].nbytes  # the file in memory would be as much, and more with it
