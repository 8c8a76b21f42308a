"""Every source gives the same transitions, in whatever order its rows come."""

import decimal
import os
import uuid
import warnings

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from helpers import ROLES, changed, make_rows, take, write_table
from ivvi import InputError, estimate, read_logs
from ivvi.errors import ColumnError, DataError, FileError, MissingError
from ivvi.logs import Counts
from ivvi.logs.tables import parquet_files as parquet
from ivvi.logs.tables.readers import open_table

COLUMNS = make_rows(episodes=5, horizon=7)
SHUFFLED = np.random.default_rng(1).permutation(35)


def expected():
    x, a, z = (np.column_stack([COLUMNS[f"{name}{i}"] for i in range(2)]) for name in "xaz")
    now = [t for t in range(35) if t % 7 != 6]
    after = [t + 1 for t in now]
    return sorted(np.hstack([x[now], a[now], z[now], x[after]]).tolist())


def in_files(ending, pattern):
    """Write three files and return the pattern that finds them (None for the folder)."""

    def build(table, folder):
        for i, (start, stop) in enumerate([(0, 10), (10, 11), (11, 35)]):
            write_table(table.slice(start, stop - start), folder / f"part{i}{ending}")
        return folder / pattern if pattern else folder

    return build


def in_file(ending, **settings):
    return lambda table, folder: write_table(table, folder / f"log{ending}", **settings)


def reader(table, _):
    return pa.RecordBatchReader.from_batches(table.schema, table.to_batches(4))


def blocks(table, _):
    """Return a dict of 2-d arrays."""
    data = table.to_pydict()
    wide = {name: np.column_stack([data[f"{name}{i}"] for i in range(2)]) for name in "xaz"}
    return {"episode": data["episode"], "step": np.array(data["step"])} | wide


def several_chunks(table, _):
    return pa.concat_tables([table.slice(0, 3), table.slice(3, 0), table.slice(3)])


def indexed(table, _):
    frame = table.to_pandas()
    return frame.set_index(pd.Index(np.arange(len(frame))[::-1], name="row"))


def nested_folders(table, folder):
    write_table(table.slice(0, 20), folder / "deep" / "a.pq")
    write_table(table.slice(20), folder / "b.parquet")
    (folder / "_SUCCESS").touch()
    (folder / "_notes.parquet").write_text("not part of the data")
    return folder


def other_column_orders(ending):
    def build(table, folder):
        write_table(table.slice(0, 9), folder / f"a{ending}")
        write_table(table.slice(9).select(sorted(table.column_names)), folder / f"b{ending}")
        return str(folder / f"*{ending}")

    return build


def marked_not_null(ending):
    """Write two files whose schemas differ in what does not matter."""

    def build(table, folder):
        strict = pa.schema([field.with_nullable(False) for field in table.schema])
        write_table(table.slice(0, 9), folder / f"a{ending}")
        write_table(
            table.slice(9).cast(strict).replace_schema_metadata({"by": "me"}),
            folder / f"b{ending}",
        )
        return folder / f"?{ending}"

    return build


SOURCES = {
    "parquet": in_file(".parquet"),
    "parquet row groups": in_file(".parquet", row_group_size=4),
    "parquet dictionary": in_file(".pq", use_dictionary=True, compression="zstd"),
    "parquet folder": in_files(".parquet", None),
    "parquet glob": in_files(".parquet", "part*.parquet"),
    "parquet nested folders": nested_folders,
    "parquet column orders": other_column_orders(".parquet"),
    "parquet not null": marked_not_null(".parquet"),
    "csv": in_file(".csv"),
    "csv gz": in_file(".csv.gz"),
    "csv glob": in_files(".csv", "*.csv"),
    "csv column orders": other_column_orders(".csv"),
    "tsv": in_file(".tsv"),
    "tsv gz": in_file(".tsv.gz"),
    "arrow file": in_file(".arrow"),
    "arrow glob": in_files(".arrow", "*.arrow"),
    "arrow column orders": other_column_orders(".arrow"),
    "arrow not null": marked_not_null(".arrow"),
    "arrow table": lambda table, _: table,
    "arrow chunks": several_chunks,
    "record batch": lambda table, _: table.combine_chunks().to_batches()[0],
    "record batch reader": reader,
    "pandas": lambda table, _: table.to_pandas(),
    "pandas with index": indexed,
    "polars": lambda table, _: pl.from_arrow(table),
    "polars lazy": lambda table, _: pl.from_arrow(table).lazy(),
    "duckdb": lambda table, _: duckdb.from_arrow(table),
    "dict": lambda table, _: table.to_pydict(),
    "dict of arrays": lambda table, _: {n: table[n].to_numpy() for n in table.column_names},
    "dict of blocks": blocks,
}


@pytest.mark.parametrize("shuffled", [False, True], ids=["in order", "shuffled"])
@pytest.mark.parametrize("source", SOURCES)
def test_every_source_gives_the_same_transitions(source, shuffled, tmp_path, rows_of):
    table = pa.table(take(COLUMNS, SHUFFLED) if shuffled else COLUMNS)
    given = SOURCES[source](table, tmp_path)
    log = read_logs(given, **ROLES)
    rows, counts = rows_of(log)
    assert rows == expected()
    assert counts == Counts(rows=35, transitions=30, episodes=5, without_next=5, missing=0)
    assert log.num_rows in (35, None)


def test_a_frame_may_have_columns_of_numbers_and_text_that_nobody_asks_for(rows_of):
    frame = pd.DataFrame(COLUMNS)
    frame["note"] = pd.Series([1, "late", None, 2.5, b"?"] * 7, dtype=object)
    assert rows_of(read_logs(frame, **ROLES))[0] == expected()


MIXED = pd.DataFrame(make_rows(2, 3)).assign(x0=[1, "fast", 2, 3, 4, 5])


def test_a_log_is_not_opened_again():
    with pytest.raises(InputError, match="this is a log already"):
        read_logs(read_logs(COLUMNS))


def test_a_frame_with_a_column_twice_is_refused():
    frame = pd.DataFrame(COLUMNS)
    with pytest.raises(ColumnError, match="the log has 2 columns named 'x0'"):
        read_logs(pd.concat([frame, frame[["x0"]]], axis=1), **ROLES)


@pytest.mark.parametrize("as_text", [str, os.fspath, lambda path: path])
def test_paths_may_be_text_or_paths(as_text, tmp_path, rows_of):
    path = write_table(COLUMNS, tmp_path / "log.parquet")
    assert rows_of(read_logs(as_text(path), **ROLES))[0] == expected()


def test_conventional_columns_are_found_without_being_named(rows_of):
    following = {f"next_x{i}": COLUMNS[f"x{i}"] * 2 for i in range(2)}
    assert rows_of(read_logs(COLUMNS))[0] == expected()
    log = read_logs({**COLUMNS, **following, "x_other": COLUMNS["x0"]})
    assert log.roles.state == ("x0", "x1")
    assert log.roles.outputs == ("next_x0", "next_x1")
    rows, counts = rows_of(log)
    assert counts.transitions == 35
    assert np.array(rows)[:, 6:] == pytest.approx(2 * np.array(rows)[:, :2])


@pytest.mark.parametrize(("role", "letter"), [("state", "x"), ("action", "a"), ("instrument", "z")])
def test_conventional_columns_stand_for_the_roles_that_are_not_named(role, letter, rows_of):
    renamed = {name.replace(letter, "own_"): column for name, column in COLUMNS.items()}
    log = read_logs(renamed, **{role: "own_0,own_1"})
    assert rows_of(log)[0] == expected()


def test_a_column_with_a_role_has_no_other_by_convention():
    log = read_logs(COLUMNS, instrument="x1", reward="z0")
    roles = log.roles
    assert (roles.state, roles.action, roles.instrument) == (("x0",), ("a0", "a1"), ("x1",))


def test_conventional_next_states_come_with_conventional_states():
    following = {f"next_{name}": COLUMNS[name] for name in ("x0", "x1")}
    columns = {**COLUMNS, **following}
    assert read_logs(columns, action="a0").roles.next_state == ("next_x0", "next_x1")
    assert read_logs(columns, state="x0").roles.derived
    assert read_logs(columns, reward="next_x1").roles.derived
    assert read_logs(columns, state=(), next_state="next_x0").roles.state == ()


def test_a_file_with_glob_signs_in_its_name_is_that_file(tmp_path, rows_of):
    """Both here and in the sorting of what is not in order."""
    other = {**COLUMNS, "x0": COLUMNS["x0"] + 100}
    for name, columns in (("log[1].parquet", COLUMNS), ("log1.parquet", other)):
        write_table(take(columns, SHUFFLED), tmp_path / name)
    assert rows_of(read_logs(tmp_path / "log[1].parquet", **ROLES))[0] == expected()


def test_folders_named_like_columns_do_not_replace_them(tmp_path, rows_of):
    """Where the rows are sorted: DuckDB takes step=1 for a column unless told not to."""
    for i, start in enumerate((0, 12, 24)):
        (folder := tmp_path / f"step={i}").mkdir()
        write_table(take(COLUMNS, SHUFFLED[start : start + 12]), folder / "part.parquet")
    assert rows_of(read_logs(tmp_path, **ROLES))[0] == expected()


IDS = ["text", "dictionary", "dictionary chunks", "date", "float", "uuid"]


@pytest.mark.parametrize("ids", IDS)
@pytest.mark.parametrize("shuffled", [False, True], ids=["in order", "shuffled"])
@pytest.mark.parametrize("place", ["memory", "parquet", "csv"])
def test_episodes_are_named_by_anything_that_sorts(ids, shuffled, place, tmp_path, rows_of):
    number = COLUMNS["episode"]
    text = pa.array([f"user {i}" for i in number])
    column = {
        "text": text,
        "dictionary": text.dictionary_encode(),
        "dictionary chunks": pa.chunked_array(
            [text.slice(i, 5).dictionary_encode() for i in range(0, 35, 5)]
        ),
        "date": pa.array(np.datetime64("2024-02-27") + number),
        "float": pa.array(number + 0.5),
        "uuid": pa.array([uuid.UUID(int=int(i) << 64).bytes for i in number], pa.uuid()),
    }[ids]
    table = pa.table({**COLUMNS, "episode": column})
    if place == "csv":  # Arrow writes no dictionaries there
        column = column.storage if ids == "uuid" else column
        table = table.set_column(0, "episode", column.cast(pa.string()))
    table = table.take(pa.array(SHUFFLED)) if shuffled else table
    if ids == "dictionary chunks" and shuffled:
        table = pa.concat_tables([table.slice(i, 5) for i in range(0, 35, 5)])
    source = table if place == "memory" else write_table(table, tmp_path / f"log.{place}")
    rows, counts = rows_of(read_logs(source, **ROLES), size=4)
    assert rows == expected()
    assert counts.episodes == 5


@pytest.mark.parametrize("kind", [pl.String, pl.Categorical])
@pytest.mark.parametrize("missing", [False, True])
def test_text_ids_of_a_polars_frame_are_episodes(kind, missing, rows_of):
    frame = pl.DataFrame(take(COLUMNS, SHUFFLED))
    frame = frame.with_columns(pl.col("episode").cast(pl.String).cast(kind))
    if missing:
        frame = pl.concat([frame, frame[:3].with_columns(x0=None)])
    rows, counts = rows_of(read_logs(frame, **ROLES, drop_missing=True), size=9)
    assert rows == expected()
    assert (counts.episodes, counts.missing) == (5, 3 * missing)


NUMBERS = [*(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))]
NUMBERS += ["bool", "halffloat", "float", "double", "decimal128(9, 2)", "decimal256(40, 2)"]


def typed(kind):
    """Return seven values of the Arrow type, as they are written and as floats."""
    if kind == "bool":
        values = [True, False, False, True, True, False, True]
        return pa.array(values), [float(v) for v in values]
    values = [0, 1, 2, 3, 5, 8, 13]
    if kind.startswith("decimal"):
        exact = [decimal.Decimal(v) / 4 for v in values]
        make = pa.decimal128(9, 2) if "128" in kind else pa.decimal256(40, 2)
        return pa.array(exact, make), [v / 4 for v in values]
    if kind == "halffloat":
        return pa.array(np.array(values, np.float16)), [float(v) for v in values]
    return pa.array(values).cast(kind), [float(v) for v in values]


@pytest.mark.parametrize("encoded", [False, True], ids=["plain", "dictionary"])
@pytest.mark.parametrize("place", ["memory", "parquet", "parquet shuffled"])
@pytest.mark.parametrize("kind", NUMBERS)
def test_columns_of_every_number_type_are_read_as_floats(kind, place, encoded, tmp_path):
    column, floats = typed(kind)
    column = column.dictionary_encode() if encoded else column
    other = np.arange(7.0) ** 2 + 0.5
    columns = {"episode": [1] * 7, "step": range(7), "x0": column, "a0": other, "z0": -other}
    table = pa.table(columns)
    if place.endswith("shuffled"):
        table = table.take(pa.array([3, 0, 6, 2, 1, 5, 4]))
    source = table if place == "memory" else write_table(table, tmp_path / "log.parquet")
    batch = read_logs(source, **ROLES).to_batch()
    assert batch.x.dtype == batch.y.dtype == np.float64
    assert batch.x.ravel().tolist() == floats[:-1]
    assert batch.y.ravel().tolist() == floats[1:]


@pytest.mark.parametrize("kind", ["int8", "uint8", "int64", "uint64", "halffloat", "double"])
def test_steps_of_every_number_type_put_rows_in_order(kind, rows_of):
    steps = pa.array(COLUMNS["step"]).cast(kind)
    table = pa.table({**COLUMNS, "step": steps}).take(pa.array(SHUFFLED))
    assert rows_of(read_logs(table, **ROLES), size=3)[0] == expected()


def test_csv_booleans_are_numbers(tmp_path):
    text = "episode,step,x0,a0,z0\n0,0,1,true,False\n0,1,2,false,True\n0,2,3,true,True\n"
    (tmp_path / "log.csv").write_text(text)
    batch = read_logs(tmp_path / "log.csv", **ROLES).to_batch()
    assert (batch.a.ravel().tolist(), batch.z.ravel().tolist()) == ([1, 0], [0, 1])


def test_csv_types_follow_no_single_file(tmp_path):
    """A column of whole numbers in one file may hold fractions, or nothing, in another."""
    head = "episode,step,x0,a0,z0\n"
    files = [head, head + "0,0,1,1,5\n0,1,2,2,6\n", head + "1,0,1.5,1,5\n1,1,2.5,2,6\n", head]
    for number, content in enumerate(files):
        (tmp_path / f"{number}.csv").write_text(content)
    for pattern in ("[012].csv", "[12].csv", "[123].csv"):
        batch = read_logs(tmp_path / pattern, **ROLES).to_batch()
        assert batch.y.ravel().tolist() == [2, 2.5]


@pytest.mark.parametrize("name", ["step", "episode", "x0"])
@pytest.mark.parametrize("first", [0, 1])
def test_csv_columns_of_whole_and_other_numbers_are_one_column(name, first, tmp_path, rows_of):
    columns = make_rows(6, 10, seed=3)
    columns |= {"x0": np.arange(60) % 7}
    for number, rows in enumerate((np.arange(25), np.arange(25, 60))):
        part = take(columns, rows)
        if number == first:
            part[name] = [f"{value}.0" for value in part[name].to_pylist()]
        write_table(part, tmp_path / f"{number}.csv")
        written = (tmp_path / f"{number}.csv").read_text()
        (tmp_path / f"{number}.csv").write_text(written.replace('"', ""))
    log = read_logs(tmp_path / "*.csv", **ROLES)
    assert rows_of(log, size=8) == rows_of(read_logs(columns, **ROLES))


def test_csv_types_follow_no_single_block(tmp_path, rows_of):
    """Whole numbers, then fractions far below where types are guessed."""
    n = 150_000
    columns = {"episode": np.zeros(n, int), "step": np.arange(n)}
    x = pa.array([*map(str, range(n - 2)), "0.5", "1.5"])
    columns |= {"x0": x, "a0": np.arange(n)[::-1].copy(), "z0": np.arange(n) % 7}
    path = write_table(columns, tmp_path / "log.csv")
    assert path.stat().st_size > 2 << 20
    batch = read_logs(path, **ROLES).to_batch()
    assert batch.y[-2:].ravel().tolist() == [0.5, 1.5]
    assert np.array_equal(batch.x[:, 0], np.r_[np.arange(n - 2), 0.5])


def test_csv_cells_may_have_several_lines(tmp_path):
    """Also beyond the first block, where a line may begin inside of a cell."""
    n = 100_000
    columns = {"episode": np.zeros(n, int), "step": np.arange(n), "note": ['said:\n"no"\n'] * n}
    columns |= {"x0": np.arange(n) % 5, "a0": np.arange(n) % 3, "z0": np.arange(n) % 7}
    path = write_table(columns, tmp_path / "log.csv")
    assert path.stat().st_size > 2 << 20
    batch = read_logs(path, **ROLES).to_batch()
    assert np.array_equal(batch.y[:, 0], np.arange(1, n) % 5)


def test_a_header_in_another_encoding_is_refused(tmp_path):
    (tmp_path / "log.csv").write_bytes("episode,step,x0,a0,größe\n0,0,1,2,3\n".encode("latin-1"))
    with pytest.raises(FileError, match=r"header of .*log\.csv is not UTF-8"):
        read_logs(tmp_path / "log.csv", **ROLES)


def test_what_an_array_masks_is_missing():
    rows = {**COLUMNS, "x0": np.ma.masked_array(COLUMNS["x0"], COLUMNS["step"] == 3)}
    with pytest.raises(MissingError, match=r"5 missing.*'x0', row 3"):
        read_logs(rows, **ROLES).to_batch()


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_huge_row_group_is_read_in_pieces(size, tmp_path, monkeypatch, rows_of):
    path = write_table(COLUMNS, tmp_path / "log.parquet", row_group_size=35)
    whole = rows_of(read_logs(path, **ROLES), size=size, numbered=True)
    monkeypatch.setattr(parquet, "WHOLE_ROW_GROUP", 0)
    monkeypatch.setattr(parquet.pq.ParquetFile, "read_row_group", None)
    log = read_logs(path, **ROLES)
    assert rows_of(log, size=size, numbered=True) == whole
    sizes = [block.num_rows for block in log.table.batches(["x0"], ["x0"], size)]
    assert (sum(sizes), max(sizes)) == (35, min(size, 35))


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("ending", ["parquet", "csv", "arrow"])
def test_blocks_are_no_larger_than_asked(ending, size, tmp_path):
    log = read_logs(write_table(COLUMNS, tmp_path / f"log.{ending}"), **ROLES)
    blocks = list(log.table.batches(["x0", "step"], ["x0"], size))
    assert max(block.num_rows for block in blocks) == size
    assert sum(block.num_rows for block in blocks) == 35
    assert blocks[0].schema.names == ["x0", "step"]


@pytest.mark.parametrize(
    ("source", "error", "fact"),
    [
        (None, InputError, "cannot read a log from NoneType"),
        (3.5, InputError, "cannot read a log from float"),
        ([1, 2], InputError, "cannot read a log from list"),
        ({"x0": np.zeros((2, 2, 2))}, DataError, r"'x0' has shape \(2, 2, 2\)"),
        ({"x0": 1.0}, DataError, r"'x0' has shape \(\)"),
        ({"x0": [1, 2], "a0": [1]}, DataError, "differ in length: {'x0': 2, 'a0': 1}"),
        ({"x": np.zeros((2, 1)), "x0": [1, 2]}, ColumnError, "column 'x0' twice"),
        (MIXED, ColumnError, "'x0'.*holds text: 'fast' in data row 1.*expected numbers"),
        (pd.DataFrame({"x0": pd.arrays.SparseArray([0, 1])}), ColumnError, "Sparse.*column x0"),
        (changed(make_rows(1, 2), episode=pa.array([[0], [0]])), ColumnError, "'episode'.*list<"),
        (changed(make_rows(2, 3), x0=["fast"] * 6), ColumnError, "'x0'.*one level, 'fast'"),
    ],
)
def test_what_is_no_table_is_refused(source, error, fact):
    with pytest.raises(error, match=fact):
        read_logs(source, **ROLES).to_batch()


def test_a_file_of_stata_is_read_with_its_labels_as_categories(tmp_path):
    frame = pd.DataFrame(COLUMNS).assign(ward=pd.Categorical(np.where(SHUFFLED % 2, "A", "B")))
    frame.to_stata(tmp_path / "log.dta", write_index=False)
    log = read_logs(tmp_path / "log.dta", context="ward", **ROLES)
    batch = log.to_batch()
    rows = np.hstack([batch.x[:, :2], batch.a, batch.z, batch.y])
    assert sorted(rows.tolist()) == expected()
    assert "ward: 2 levels, reference 'A'" in log.roles.lines()
    damaged = tmp_path / "damaged.dta"
    damaged.write_bytes((tmp_path / "log.dta").read_bytes()[:900])
    with pytest.raises(FileError, match=r"damaged\.dta cannot be read as a Stata or SAS file"):
        read_logs(damaged, **ROLES)


@pytest.mark.parametrize(
    ("ending", "way"),
    [
        (".rda", "write_parquet"),
        (".xlsx", "save the sheet as CSV"),
        (".sas7bdat", "cannot be read as a Stata or SAS file"),
        (".doc", "expected .parquet, .csv, .tsv, .arrow or .dta"),
    ],
)
def test_other_files_are_refused_with_the_way_to_convert_them(tmp_path, ending, way):
    file = tmp_path / f"log{ending}"
    file.write_bytes(b"whatever this is")
    with pytest.raises(FileError, match=way):
        read_logs(file, **ROLES)


def test_columns_of_a_frame_may_be_numbers():
    rows = make_rows(10, 6)
    frame = pd.DataFrame(rows).rename(columns={"x0": 0, "a0": 2})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        log = read_logs(frame, state=[0, "x1"], action=2, instrument="z0")
    assert log.roles.state == ("0", "x1")
    assert log.roles.action == ("2",)


def test_numbers_and_words_in_one_column_make_no_noise():
    frame = pd.DataFrame({"x": [1.0, "unknown"], "name": ["a", "b"]})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert open_table(frame).schema.field("x").type in (pa.string(), pa.large_string())


def test_an_index_without_a_name_is_no_column_of_a_log():
    rng = np.random.default_rng(0)
    z, u = rng.normal(size=(2, 400))
    whole = pd.DataFrame({"z": z.round(1), "a": z + u, "y": u})
    twice = pd.concat([whole, whole + 1])
    words = {"state": "", "action": "a", "instrument": "z", "reward": "y"}
    log = read_logs(twice.sort_values("z"), **words)
    assert log.table.schema.names == ["z", "a", "y"]
    named = whole.set_index(pd.MultiIndex.from_product([range(40), range(10)], names=["p", None]))
    assert read_logs(named, **words, episode="p").roles.episode == "p"
    assert "__index_level_1__" not in read_logs(named, **words).table.schema.names


def test_an_index_without_a_name_in_a_file_is_no_group(tmp_path):
    group = np.repeat(np.arange(40), 10)
    z, (u, e) = (
        np.random.default_rng(0).normal(size=40)[group],
        np.random.default_rng(1).normal(size=(2, 400)),
    )
    frame = pd.DataFrame({"z": z, "a": z + u, "y": u + e}, index=group)
    frame.to_parquet(tmp_path / "log.parquet")
    words = {"state": "", "action": "a", "instrument": "z", "reward": "y"}
    assert not read_logs(tmp_path / "log.parquet", **words).roles.set_by
    frame.rename_axis("county").to_parquet(tmp_path / "named.parquet")
    assert read_logs(tmp_path / "named.parquet", **words).roles.set_by == ("county",)


@pytest.mark.parametrize("kind", ["dict", "frame"])
def test_ids_of_more_than_64_bits_are_text(kind):
    rows = make_rows(4, 5, d=1)
    rows["episode"] = [10**25 + int(i) for i in rows["episode"]]
    source = rows if kind == "dict" else pd.DataFrame(rows)
    log = read_logs(source, state="x0", action="a0", instrument="z0")
    assert len(log.to_batch()) == 16


def test_a_column_with_the_name_of_the_constant_is_refused_with_a_new_name():
    rows = make_rows(4, 5, d=1)
    rows["1"] = rows.pop("x0")
    roles = {"action": "a0", "instrument": "z0"}
    with pytest.raises(ColumnError, match=r"name of the constant .* such as x1:1"):
        read_logs(rows, state="1", **roles)
    assert read_logs(rows, state="x1:1", **roles).roles.state == ("x1",)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_more_features_than_rows_are_refused_before_the_first_pass(tmp_path, kind):
    rows = make_rows(10, 5, d=210)
    log = read_logs(write_table(rows, tmp_path / f"log.{kind}"), **ROLES)
    with pytest.raises(DataError, match="50 rows, which cannot estimate 421 coefficients"):
        estimate(log)
