"""Outputs that cannot be written are refused before the work starts."""

import os

import pytest

from helpers import OPTIONS, assert_refused, make_rows, run, write_table


def bad_outputs(folder):
    """Return paths that cannot be written, and what must be said about them."""
    (folder / "file").write_text("a file")
    return {
        "missing parent": (folder / "absent" / "out", "absent is not an existing folder"),
        "parent is a file": (folder / "file" / "out", "file is not an existing folder"),
        "exists": (
            folder / "file",
            "file exists already; choose another name or pass force=True (--force)",
        ),
        "long name": (folder / ("long" * 80), "cannot be written: File name too long"),
    }


OUTPUTS = ["missing parent", "parent is a file", "exists", "long name"]
WRITERS = [("simulate", "linear"), ("fit", "absent.parquet")]


@pytest.mark.parametrize("name", OUTPUTS)
@pytest.mark.parametrize("command", WRITERS, ids=lambda command: command[0])
def test_an_output_that_cannot_be_written_is_refused_first(command, name, tmp_path):
    out, fact = bad_outputs(tmp_path)[name]
    assert_refused(run(*command, "--out", out), fact)
    assert [file.name for file in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "a file"


@pytest.mark.parametrize("name", OUTPUTS)
@pytest.mark.parametrize("command", [*WRITERS, ("diagnose", "absent.parquet"), ("demo",)])
def test_a_json_file_that_cannot_be_written_is_refused_first(command, name, tmp_path):
    target, fact = bad_outputs(tmp_path)[name]
    out = () if command[0] == "diagnose" else ("--out", tmp_path / "new")
    assert_refused(run(*command, *out, "--json", target), fact)
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
@pytest.mark.parametrize("command", WRITERS, ids=lambda command: command[0])
def test_a_folder_without_permission_is_refused_first(command, tmp_path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    assert_refused(run(*command, "--out", closed / "out"), "cannot be written: Permission denied")


@pytest.mark.parametrize("command", WRITERS, ids=lambda command: command[0])
@pytest.mark.parametrize("options", [(), ("--force",)])
def test_two_outputs_of_one_name_are_refused(command, options, tmp_path):
    result = run(*command, "--out", tmp_path / "o", "--json", f"{tmp_path}/./o", *options)
    assert_refused(result, "--out and --json both name")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("target", ["folder", "device"])
def test_force_replaces_files_only(target, tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    source = write_table(make_rows(), tmp_path / "log.parquet")
    out = folder if target == "folder" else os.devnull
    fact = "is a folder" if target == "folder" else "is a device"
    result = run("diagnose", source, *OPTIONS, "--json", out, "--force")
    assert result.code == 2
    assert fact in result.err
    assert [file.name for file in folder.iterdir()] == ["notes.txt"]
    assert not os.path.isfile(os.devnull)


def test_force_does_not_replace_a_foreign_folder(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "package.json").write_text("{}")
    source = write_table(make_rows(), tmp_path / "log.parquet")
    result = run("fit", source, *OPTIONS, "--out", folder, "--force")
    assert_refused(result, "is not a folder that ivvi saved; it will not be replaced")
    assert (folder / "package.json").read_text() == "{}"


def test_a_demo_does_not_move_into_a_foreign_folder(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    assert_refused(run("demo", "--out", tmp_path), "is not empty and not an earlier demo")
    assert_refused(run("demo", "--out", tmp_path / "notes.txt"), "is a file")
    assert_refused(run("demo", "--out", tmp_path / "notes.txt" / "demo"), "cannot be made")
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


def test_a_folder_in_place_of_a_json_file_is_refused_first(tmp_path, monkeypatch):
    log = write_table(make_rows(12, 10), tmp_path / "log.parquet")
    monkeypatch.chdir(tmp_path)
    for target in ("", "."):
        result = run("moments", log, *OPTIONS, "--out", "sums", "--json", target, "--force")
        assert_refused(result, "is a folder; expected the name of a file")
        assert [file.name for file in tmp_path.iterdir()] == ["log.parquet"]


def test_a_name_with_a_null_byte_is_refused(tmp_path):
    log = write_table(make_rows(12, 10), tmp_path / "log.parquet")
    assert_refused(run("diagnose", log, *OPTIONS, "--json", "a\0b"), "not a valid file name")


def test_a_json_file_that_is_the_checkpoint_is_refused_first(tmp_path):
    log = write_table(make_rows(12, 10), tmp_path / "log.parquet")
    same = tmp_path / "one"
    names = ("--out", tmp_path / "model", "--checkpoint", same, "--json", same)
    assert_refused(run("fit", log, *OPTIONS, *names), "--checkpoint and --json both name")
    assert [file.name for file in tmp_path.iterdir()] == ["log.parquet"]


@pytest.mark.parametrize("options", [(), ("--force",)])
def test_no_output_replaces_what_the_command_reads(options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log = write_table(make_rows(12, 8), tmp_path / "log.parquet")
    (tmp_path / "parts").mkdir()
    write_table(make_rows(12, 8), tmp_path / "parts" / "0.parquet")
    (tmp_path / "link.parquet").symlink_to(log)
    assert run("fit", log, *OPTIONS, "--out", "model").code == 0
    commands = [
        ("diagnose", log, *OPTIONS, "--json", log),
        ("diagnose", log, *OPTIONS, "--json", "./parts/../log.parquet"),
        ("diagnose", "link.parquet", *OPTIONS, "--json", log),
        ("diagnose", "*.parquet", *OPTIONS, "--json", log),
        ("diagnose", "parts", *OPTIONS, "--json", "parts/0.parquet"),
        ("fit", log, *OPTIONS, "--out", "other", "--report", log),
        ("act", "policy", "--states", log, "--out", log),
        ("plan", "model", "--reward", "linear:x0=1", "--out", "model"),
        ("table", "model", "--out", "model/model.json"),
    ]
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for command in commands:
        assert_refused(run(*command, *options), "is an input of this command")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_model_may_be_updated_in_place(tmp_path):
    log = write_table(make_rows(12, 8), tmp_path / "log.parquet")
    more = write_table(make_rows(12, 8, seed=1), tmp_path / "more.parquet")
    assert run("fit", log, *OPTIONS, "--out", tmp_path / "model").code == 0
    options = ("--out", tmp_path / "model", "--force")
    assert run("update", tmp_path / "model", more, *options).code == 0
