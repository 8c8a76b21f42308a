"""A log as an object: its head, its copies, its order on disk and what that leaves behind."""

import gc
import tempfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers import ROLES, make_rows, take, write_table
from ivvi import Log, read_logs
from ivvi.errors import DataError, FileError
from ivvi.logs import SOURCE_KEY, concatenate

COLUMNS = make_rows(6, 10)
SHUFFLED = np.random.default_rng(2).permutation(60)


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Return the folder in which temporary files are made during the test."""
    folder = tmp_path / "it's temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_repr_says_what_it_is():
    said = repr(read_logs(COLUMNS, **ROLES))
    assert said == (
        "Log(the table, 60 rows, 2 states, 2 actions, 2 instruments, outputs next_x0, next_x1)"
    )


def test_opening_looks_at_the_first_rows_alone(tmp_path, monkeypatch):
    path = write_table(COLUMNS, tmp_path / "log.parquet", row_group_size=10)
    monkeypatch.setattr("ivvi.logs.prepare.LOOKED_AT", 5)
    read, groups = pq.ParquetFile.read_row_group, []

    def reading(self, index, **options):
        groups.append(index)
        return read(self, index, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", reading)
    log = read_logs(path, **ROLES)
    assert (log.num_rows, log.label, set(groups)) == (60, str(path), {0})


def test_a_log_can_be_walked_again(rows_of):
    log = read_logs(take(COLUMNS, SHUFFLED), **ROLES)
    assert rows_of(log) == rows_of(log, size=3)


def test_head_takes_the_first_transitions(monkeypatch):
    monkeypatch.setitem(Log.batches.__kwdefaults__, "size", 7)
    log = read_logs(COLUMNS, **ROLES)
    head, whole = log.head(10), log.to_batch()
    assert 10 <= len(head) < 20
    for name in "xazy":
        assert np.array_equal(getattr(head, name), getattr(whole, name)[: len(head)])
    assert len(log.head(1000)) == len(whole) == 54


def test_concatenated_batches_are_the_whole():
    log = read_logs({**COLUMNS, "w": np.arange(60)}, **ROLES, weight="w")
    whole = log.to_batch(episodes=True)
    parts = concatenate(list(log.batches(size=7, episodes=True)))
    for name in ("x", "a", "z", "y", "weight", "episode"):
        assert np.array_equal(getattr(parts, name), getattr(whole, name))
    assert whole.episode.tolist() == np.repeat(np.arange(6), 9).tolist()


def test_to_arrow_gives_the_columns_of_the_log_as_they_are(tmp_path):
    table = pa.table({**take(COLUMNS, SHUFFLED), "note": ["text"] * 60})
    log = read_logs(write_table(table, tmp_path / "log.parquet"), **ROLES)
    assert log.to_arrow().equals(table.select(log.roles.columns))


@pytest.mark.parametrize("ending", ["parquet", "csv", "arrow"])
def test_to_parquet_copies_every_column(ending, tmp_path, rows_of):
    table = pa.table({**take(COLUMNS, SHUFFLED), "note": ["text"] * 60})
    log = read_logs(write_table(table, tmp_path / f"log.{ending}"), **ROLES)
    log.to_parquet(tmp_path / "copy.parquet")
    assert pq.read_table(tmp_path / "copy.parquet").equals(table)
    assert rows_of(read_logs(tmp_path / "copy.parquet", **ROLES)) == rows_of(log)
    with pytest.raises(FileError, match="exists already"):
        log.to_parquet(tmp_path / "copy.parquet")
    read_logs({**COLUMNS, "x0": COLUMNS["a0"]}, **ROLES).to_parquet(
        tmp_path / "copy.parquet", force=True
    )
    assert (
        pq.read_table(tmp_path / "copy.parquet")["x0"].to_numpy().tolist() == COLUMNS["a0"].tolist()
    )


def test_a_copy_says_where_the_log_came_from(tmp_path):
    table = pa.table(COLUMNS).replace_schema_metadata({SOURCE_KEY: "a test"})
    read_logs(table, **ROLES).to_parquet(tmp_path / "one.parquet")
    read_logs(tmp_path / "one.parquet", **ROLES).to_parquet(tmp_path / "two.parquet")
    for name in ("one.parquet", "two.parquet"):
        assert read_logs(tmp_path / name, **ROLES).label == f"{tmp_path / name}, a test"


@pytest.mark.parametrize("write", [Log.to_arrow, lambda log: log.to_parquet("never.parquet")])
def test_a_log_without_rows_is_not_written(write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log = read_logs(pa.table(COLUMNS).slice(0, 0), **ROLES)
    with pytest.raises(DataError, match="no rows"):
        write(log)
    assert list(tmp_path.iterdir()) == []


def test_a_log_can_replace_its_own_file(tmp_path, rows_of):
    path = write_table(COLUMNS, tmp_path / "log.parquet")
    log = read_logs(path, **ROLES)
    before = rows_of(log)
    log.to_parquet(path, force=True)
    assert rows_of(read_logs(path, **ROLES)) == before
    assert [file.name for file in tmp_path.iterdir()] == ["log.parquet"]


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_what_sorting_needs_on_disk_goes_with_the_log(ending, tmp_path, temporary, rows_of):
    path = write_table(take(COLUMNS, SHUFFLED), tmp_path / f"log.{ending}")
    log = read_logs(path, **ROLES)
    assert rows_of(log) == rows_of(read_logs(COLUMNS, **ROLES))
    assert list(temporary.iterdir()) != []
    del log
    gc.collect()
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_looking_for_duplicates_leaves_nothing_on_disk(ending, tmp_path, temporary, rows_of):
    columns = {**COLUMNS, "y0": COLUMNS["x0"] + 1, "y1": COLUMNS["x1"] + 1}
    path = write_table(take(columns, SHUFFLED), tmp_path / f"log.{ending}")
    log = read_logs(path, **ROLES, next_state="y*")
    assert rows_of(log)[1].transitions == 60
    assert list(temporary.iterdir()) == []


def test_a_log_in_order_is_not_copied(tmp_path, temporary, rows_of):
    log = read_logs(write_table(COLUMNS, tmp_path / "log.parquet"), **ROLES)
    rows_of(log)
    assert list(temporary.iterdir()) == []


def repeated(order):
    """Return a table in which (4, 7) stands twice, in order or not."""
    twice = [*range(48), 47, *range(48, 60)]
    order = twice if order == "in order" else np.random.default_rng(3).permutation(twice)
    columns = take({**COLUMNS, "y0": COLUMNS["x0"] + 1}, order)
    return pa.table(columns)


@pytest.mark.parametrize("next_state", [(), "y0"], ids=["derived", "given"])
@pytest.mark.parametrize("order", ["in order", "shuffled"])
@pytest.mark.parametrize("place", ["memory", "parquet", "csv"])
@pytest.mark.parametrize("text", [False, True], ids=["numbers", "text"])
def test_a_step_that_stands_twice_is_named(next_state, order, place, text, tmp_path):
    table = repeated(order)
    if text:
        names = pa.array([f"user {i}" for i in table["episode"].to_pylist()])
        table = table.set_column(0, "episode", names)
    source = table if place == "memory" else write_table(table, tmp_path / f"log.{place}")
    log = read_logs(source, **ROLES, next_state=next_state)
    episode = "user 4" if text else 4
    for size in (1, 1000):
        with pytest.raises(DataError, match=f"episode {episode!r} has step 7 twice"):
            list(log.batches(size=size))


@pytest.mark.parametrize("place", ["memory", "parquet"])
@pytest.mark.parametrize("kind", ["null", "nan"])
def test_rows_without_keys_do_not_count_as_repeated(kind, place, tmp_path, rows_of):
    nothing = None if kind == "null" else np.nan
    steps = pa.array([nothing, nothing, *np.arange(58.0)], pa.float64())
    table = pa.table({**COLUMNS, "episode": [1] * 60, "step": steps, "y0": COLUMNS["x0"] + 1})
    source = table if place == "memory" else write_table(table, tmp_path / "log.parquet")
    log = read_logs(source, **ROLES, next_state="y0", drop_missing=True)
    counts = rows_of(log)[1]
    assert (counts.transitions, counts.missing, counts.episodes) == (58, 2, 1)
    with pytest.raises(DataError, match="2 missing or infinite values in 2 of 60 rows"):
        list(read_logs(source, **ROLES, next_state="y0").batches())


@pytest.mark.parametrize("next_state", [(), "y0"], ids=["derived", "given"])
def test_damaged_pages_of_an_unordered_file_are_reported(next_state, tmp_path):
    """The damage is in a column that only the sorting, or only the walk, reads."""
    columns = {**COLUMNS, "y0": COLUMNS["x0"] + 1}
    path = tmp_path / "log.parquet"
    write_table(take(columns, SHUFFLED), path, use_dictionary=False)
    column = pq.ParquetFile(path).metadata.row_group(0).column(2)
    assert column.path_in_schema == "x0"
    content = bytearray(path.read_bytes())
    start = column.data_page_offset
    for i in range(start, start + column.total_compressed_size):
        content[i] ^= 0x5A
    path.write_bytes(content)
    with pytest.raises(FileError, match=r"log\.parquet cannot be"):
        read_logs(path, **ROLES, next_state=next_state).to_batch()
