"""Logs by URL, through fsspec."""

import numpy as np
import pytest

import ivvi
from helpers import assert_refused, make_rows, run, take, write_table
from ivvi import InputError
from ivvi.errors import FileError

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def bucket(tmp_path):
    """Put a log in two files into fsspec's file system in memory; returns its URL."""
    columns = make_rows(12, 10)
    store = fsspec.filesystem("memory")
    for i, rows in enumerate((range(50), range(50, 120))):
        local = write_table(take(columns, rows), tmp_path / "local" / f"part-{i}.parquet")
        store.pipe(f"/bucket/logs/part-{i}.parquet", local.read_bytes())
    store.pipe("/bucket/logs/_SUCCESS", b"")
    yield "memory://bucket/logs"
    store.rm("/bucket", recursive=True)


@pytest.mark.parametrize("ending", ["", "/*.parquet"])
def test_a_url_is_read_like_a_folder(ending, bucket, tmp_path):
    one, other = ivvi.estimate(tmp_path / "local"), ivvi.estimate(bucket + ending)
    np.testing.assert_array_equal(other.W, one.W)
    assert other.counts == one.counts
    other.save(tmp_path / "model")
    np.testing.assert_array_equal(ivvi.load_model(tmp_path / "model").W, one.W)


def test_folders_of_a_url_named_after_columns_are_columns(tmp_path):
    for i, rows in enumerate((range(50), range(50, 120))):
        write_table(take(make_rows(12, 10), rows), tmp_path / f"year={i}" / "part.parquet")
    log = ivvi.read_logs(f"file://{tmp_path}").clustered("year")
    assert log.to_arrow()["year"].to_pylist() == [0] * 50 + [1] * 70
    one = ivvi.read_logs(f"file://{tmp_path}/year=0/part.parquet")
    assert "year" not in one.table.schema.names


def test_rows_in_no_order_are_sorted(tmp_path):
    columns = make_rows(12, 10)
    mixed = take(columns, np.random.default_rng(0).permutation(120))
    path = write_table(mixed, tmp_path / "log.parquet")
    fit = ivvi.estimate(f"file://{path}")
    np.testing.assert_allclose(fit.W, ivvi.estimate(columns).W, atol=1e-12)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("memory://bucket/nothing.parquet", "cannot be read as Parquet"),
        ("memory://bucket/logs/none-*.parquet", "matches no Parquet file"),
        ("memory://bucket/logs/_SUCCESS", "matches no Parquet file"),
        ("nosuch://bucket/log.parquet", "cannot be opened"),
    ],
)
def test_urls_that_name_nothing_are_refused(url, words, bucket):
    with pytest.raises(FileError, match=words):
        ivvi.read_logs(url)
    assert_refused(run("diagnose", url), words)


def test_a_url_without_fsspec_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "fsspec.core", None)
    with pytest.raises(InputError, match="needs fsspec"):
        ivvi.read_logs("s3://bucket/log.parquet")


def test_a_checkpoint_needs_files_on_this_machine(bucket, tmp_path):
    from ivvi import Checkpoint

    with pytest.raises(InputError, match="a checkpoint needs a log in files"):
        ivvi.estimate(bucket, checkpoint=Checkpoint(tmp_path / "state"))
