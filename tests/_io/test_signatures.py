"""Folders that are signed with a shared secret, and those that are not."""

import json

import numpy as np
import pytest

from helpers import OPTIONS, assert_refused, forge, make_rows, run, write_table
from ivvi._io.files import KEY, load_folder, save_folder
from ivvi.errors import FileError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(KEY, "north and south")
    return save_folder(tmp_path / "saved", "thing", {"n": 3}, {"x": np.arange(3)})


def test_a_signed_folder_is_read_with_its_key_and_without_one(folder, monkeypatch):
    assert load_folder(folder, "thing")[0]["n"] == 3
    monkeypatch.delenv(KEY)
    facts, arrays = load_folder(folder, "thing")
    assert "signature" not in facts
    assert arrays["x"].tolist() == [0, 1, 2]


def test_unsigned_and_wrongly_signed_are_told_apart(folder, tmp_path, monkeypatch):
    monkeypatch.setenv(KEY, "another")
    with pytest.raises(
        FileError, match="signed with a different key than IVVI_KEY, or was altered"
    ):
        load_folder(folder, "thing")
    monkeypatch.delenv(KEY)
    save_folder(tmp_path / "unsigned", "thing", {"n": 3}, {})
    monkeypatch.setenv(KEY, "north and south")
    with pytest.raises(FileError, match="is not signed, and IVVI_KEY is set"):
        load_folder(tmp_path / "unsigned", "thing")


def test_a_forger_without_the_key_is_found_out(folder):
    def change(document):
        del document["signature"]
        document["n"] = 4

    signature = json.loads((folder / "thing.json").read_text())["signature"]
    forge(folder, change)
    document = json.loads((folder / "thing.json").read_text())
    (folder / "thing.json").write_text(json.dumps(document | {"signature": signature}))
    with pytest.raises(FileError, match="or was altered"):
        load_folder(folder, "thing")


def test_sums_of_sites_with_a_key_merge(tmp_path, monkeypatch):
    for i in range(2):
        log = write_table(make_rows(15, 20, seed=i), tmp_path / f"{i}.parquet")
        monkeypatch.setenv(KEY, "ours")
        assert run("moments", log, *OPTIONS, "--out", tmp_path / f"signed{i}").code == 0
        monkeypatch.delenv(KEY)
        assert run("moments", log, *OPTIONS, "--out", tmp_path / f"plain{i}").code == 0
    monkeypatch.setenv(KEY, "ours")
    merge = ("merge", tmp_path / "signed0")
    assert run(*merge, tmp_path / "signed1", "--out", tmp_path / "both").code == 0
    result = run(*merge, tmp_path / "plain1", "--out", tmp_path / "mixed")
    assert_refused(result, "plain1 is not signed")
