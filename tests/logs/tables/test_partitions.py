"""Columns in the names of folders: offered, typed, sorted and read piece by piece."""

import numpy as np
import pytest

from helpers import ROLES, make_rows, run, take, write_table
from ivvi import read_logs
from ivvi.errors import ColumnError
from ivvi.logs.tables.parquet_files import ParquetTable

COLUMNS = make_rows(6, 10)


def written(folder, names, columns=COLUMNS):
    """Write equal parts of a log to folders of these names."""
    for name, rows in zip(names, np.split(np.arange(60), len(names)), strict=True):
        write_table(take(columns, rows), folder / name / "part.parquet", row_group_size=7)
    return folder


@pytest.fixture
def folder(tmp_path):
    return written(tmp_path / "logs", ["year=2023/site=a%20b", "year=2024/site=c"])


@pytest.mark.parametrize("pattern", ["", "*/*/*.parquet", "year=*/**/*.parquet"])
def test_folders_named_after_columns_are_columns(pattern, folder):
    table = read_logs(str(folder / pattern), **ROLES).clustered("year,site").to_arrow()
    assert table["year"].to_pylist() == [2023] * 30 + [2024] * 30
    assert table["site"].to_pylist() == ["a b"] * 30 + ["c"] * 30
    assert table["x0"].to_pylist() == COLUMNS["x0"].tolist()


def test_a_partition_column_has_any_role(folder, rows_of):
    roles = {**ROLES, "state": "x0,year"}
    expected = read_logs({**COLUMNS, "year": np.repeat([2023, 2024], 30)}, **roles)
    assert rows_of(read_logs(folder, **roles), size=4) == rows_of(expected)


def test_a_partitioned_log_in_no_order_is_sorted_on_disk(tmp_path, rows_of):
    shuffled = take(COLUMNS, np.random.default_rng(1).permutation(60))
    parts = written(tmp_path / "logs", ["month=10", "month=2"], shuffled)
    expected = read_logs({**shuffled, "month": np.repeat([10, 2], 30)}, **ROLES).clustered("month")
    log = read_logs(parts, **ROLES).clustered("month")
    assert rows_of(log) == rows_of(expected)


def test_a_pass_begins_at_any_row_of_a_partitioned_log(folder):
    table = ParquetTable(sorted(folder.rglob("*.parquet")), "log", str(folder))
    for start in (0, 5, 29, 30, 44):
        rows = [v for b in table.batches(["year"], (), 8, start) for v in b["year"].to_pylist()]
        assert rows == ([2023] * 30 + [2024] * 30)[start:]


def test_a_missing_partition_value_is_missing(tmp_path):
    parts = written(tmp_path / "logs", ["year=2023", "year=__HIVE_DEFAULT_PARTITION__"])
    table = read_logs(parts, **ROLES).clustered("year").to_arrow()
    assert table["year"].to_pylist() == [2023] * 30 + [None] * 30


def test_a_column_of_the_files_is_theirs(tmp_path):
    table = read_logs(written(tmp_path / "logs", ["x0=7", "x0=8"]), **ROLES).to_arrow()
    assert table["x0"].to_pylist() == COLUMNS["x0"].tolist()


@pytest.mark.parametrize("names", [["year=1", "other"], ["year=1", "month=1"]])
def test_what_only_some_folders_name_is_no_column(names, tmp_path):
    with pytest.raises(ColumnError, match="'year' is not in the log"):
        read_logs(written(tmp_path / "logs", names), **ROLES).clustered(["year"])


def test_one_file_has_the_columns_that_it_holds(folder):
    with pytest.raises(ColumnError, match="'year' is not in the log"):
        read_logs(folder / "year=2024/site=c/part.parquet", **ROLES).clustered(["year"])


def test_the_shell_clusters_by_a_partition_column(tmp_path):
    parts = written(tmp_path / "logs", [f"site={i}" for i in range(6)])
    options = ("--state", "x*", "--action", "a*", "--instrument", "z*", "--cluster", "site")
    result = run("fit", parts, *options, "--out", tmp_path / "model")
    assert result.code == 0, result
