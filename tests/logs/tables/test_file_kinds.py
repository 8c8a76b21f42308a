"""Files that are not what their names say, and files of two kinds."""

import gzip

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ivvi import read_logs
from ivvi.errors import FileError

CSV = b"id,t,x,a,z\n" + b"".join(b"%d,%d,1,2,3\n" % (i // 2, i % 2) for i in range(8))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a.csv").write_bytes(CSV)
    pq.write_table(pa.table({"x": [1.0], "a": [1.0], "z": [2.0]}), tmp_path / "b.parquet")
    return tmp_path


def test_a_folder_of_parquet_and_csv_files_is_refused(folder):
    with pytest.raises(FileError, match=r"b\.parquet\) and CSV files \(a\.csv\)"):
        read_logs(folder)


def test_a_pattern_that_matches_two_kinds_of_files_is_refused(folder):
    with pytest.raises(FileError, match=r"two kinds, a\.csv and b\.parquet"):
        read_logs(folder / "*")


@pytest.mark.parametrize(
    ("name", "content", "fact"),
    [
        ("log.csv", gzip.compress(CSV, mtime=0), r"compressed with gzip, .* \(\.csv\.gz\)"),
        ("log.csv.gz", CSV, "is not compressed, but its name says .gz"),
        ("log.csv", b"PAR1\x15\x04\x15\x10", r"a Parquet file, .* \(\.parquet\)"),
        ("log.csv", b"PK\x03\x04\x14\x00", "a zip archive or a spreadsheet"),
        ("log.parquet", gzip.compress(CSV, mtime=0), "compressed with gzip"),
    ],
)
def test_a_file_is_called_what_its_first_bytes_say(tmp_path, name, content, fact):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(FileError, match=fact):
        read_logs(tmp_path / name)


def test_names_of_columns_may_begin_like_another_kind_of_file(tmp_path):
    (tmp_path / "log.csv").write_bytes(CSV.replace(b"id,", b"PAR1,"))
    log = read_logs(
        tmp_path / "log.csv", state="x", action="a", instrument="z", episode="PAR1", step="t"
    )
    assert log.roles.episode == "PAR1"
