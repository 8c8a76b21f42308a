"""Files of one log whose columns have other types: one type that holds both, or a refusal."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ivvi
from ivvi.errors import FileError

LOG = {
    "id": pa.array([i // 4 for i in range(80)]),
    "t": pa.array([i % 4 for i in range(80)]),
    "x": pa.array([float(i % 7) for i in range(80)]),
    "a": pa.array([float(i % 5) for i in range(80)]),
    "z": pa.array([float(i % 3) for i in range(80)]),
    "ward": pa.array(["A", "B"] * 40),
}


def files_of(folder, change, types, ending="parquet"):
    """Write a log as two files, the second with some columns changed to other types."""
    whole, folder = pa.table(LOG), folder / ending
    folder.mkdir()
    parts = [whole.slice(0, 40), whole.slice(40)]
    for name, kind in zip(change, types, strict=True):
        at = whole.schema.get_field_index(name)
        parts[1] = parts[1].set_column(at, name, parts[1][name].cast(kind, safe=False))
    for i, part in enumerate(parts):
        if ending == "parquet":
            pq.write_table(part, folder / f"{i}.parquet")
        else:
            with pa.ipc.new_file(folder / f"{i}.arrow", part.schema) as file:
                file.write_table(part)
    return str(folder / f"*.{ending}")


ROLES = {"state": "x", "action": "a", "instrument": "z", "episode": "id", "step": "t"}


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_files_whose_numbers_and_texts_have_other_widths_are_one_log(tmp_path, ending):
    change = ("id", "t", "a", "ward")
    types = (pa.float64(), pa.int16(), pa.float32(), pa.large_string())
    log = ivvi.read_logs(files_of(tmp_path, change, types, ending), **ROLES)
    expected = ivvi.read_logs(pa.table(LOG), **ROLES)
    assert np.array_equal(log.to_batch().y, expected.to_batch().y)
    assert np.array_equal(log.to_batch().a, expected.to_batch().a)


def test_files_of_other_widths_are_sorted_on_disk_as_one_log(tmp_path):
    source = files_of(tmp_path, ("id", "a"), (pa.float64(), pa.float32()))
    (tmp_path / "parquet" / "0.parquet").rename(tmp_path / "parquet" / "2.parquet")
    log = ivvi.read_logs(source, **ROLES)
    expected = ivvi.read_logs(pa.table(LOG), **ROLES)
    assert np.array_equal(log.to_batch().y, expected.to_batch().y)


def test_a_column_that_is_empty_in_one_file_has_the_type_of_the_others(tmp_path):
    source = files_of(tmp_path, (), ())
    empty = pa.table(LOG).slice(40).drop_columns(["ward"]).append_column("ward", pa.nulls(40))
    pq.write_table(empty, tmp_path / "parquet" / "1.parquet")
    log = ivvi.read_logs(source, **ROLES | {"state": "x,ward"}, drop_missing=True)
    assert len(log.to_batch()) == 30


def test_ids_that_a_wider_type_would_join_are_refused(tmp_path):
    source = files_of(tmp_path, (), ())
    whole = pa.table(LOG)
    long = pa.array([2**53 + 1 + i // 4 for i in range(40)])
    pq.write_table(whole.slice(0, 40).set_column(0, "id", long), source.replace("*", "0"))
    other = whole.slice(40).set_column(0, "id", whole["id"].slice(40).cast(pa.float64()))
    pq.write_table(other, source.replace("*", "1"))
    with pytest.raises(FileError, match="9007199254740993 not in range"):
        ivvi.read_logs(source, **ROLES).to_batch()
