"""The kind of a file, by its ending and by its first bytes.

A compressed file named ``.csv`` is read as a table whose names are bytes; its beginning says what
it is. Files of one log are of one kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ivvi.errors import FileError
from ivvi.logs.tables import parquet_files

CSV_SUFFIXES = (".csv", ".tsv", ".tab", ".txt", ".csv.gz", ".tsv.gz", ".tab.gz", ".txt.gz")
"""Endings of text files: commas between the columns of .csv, tabs between those of the others."""
ARROW_SUFFIXES = (".arrow", ".feather", ".ipc")
PANDAS_SUFFIXES = (".dta", ".sas7bdat", ".xpt")
"""Endings of Stata and SAS files, which pandas reads into memory at once."""
KINDS = {
    "CSV": CSV_SUFFIXES,
    "Parquet": parquet_files.SUFFIXES,
    "Arrow": ARROW_SUFFIXES,
    "Stata or SAS": PANDAS_SUFFIXES,
}
"""Kinds of files that are read, by their endings."""
BEGINNINGS = {
    b"PAR1": ("a Parquet file", ".parquet"),
    b"ARROW1": ("an Arrow file", ".arrow"),
    b"\x1f\x8b": ("compressed with gzip", ".csv.gz"),
    b"PK\x03\x04": ("a zip archive or a spreadsheet", ""),
    b"\xd0\xcf\x11\xe0": ("a spreadsheet of Excel", ""),
    b"BZh": ("compressed with bzip2", ""),
    b"\xfd7zXZ": ("compressed with xz", ""),
    b"\x28\xb5\x2f\xfd": ("compressed with zstd", ""),
    b"SQLite format 3": ("a database of SQLite", ""),
}
"""What files are that begin with these bytes, and the ending that says so, if they can be read."""


def kind_of(file: Path) -> str:
    """Return the kind of a file by its ending; '' for one that is not read."""
    name = file.name.lower()
    return next((kind for kind, endings in KINDS.items() if name.endswith(endings)), "")


def check_kinds(files: Sequence[Path], label: str) -> None:
    """Refuse files of two kinds, and files that are not of the kind that their ending says."""
    first = files[0]
    for file in files[1:]:
        if kind_of(file) != kind_of(first):
            raise FileError(
                f"{label} matches files of two kinds, {first.name} and {file.name}; expected files "
                f"of one kind: name them by a pattern such as '*{first.suffix}'"
            )
    for file in files if kind_of(first) else ():
        _check_beginning(file)


def check_folder(folder: Path, files: Sequence[Path]) -> None:
    """Refuse a folder with CSV files beside its Parquet `files`, which would not be read."""
    for file in sorted(folder.rglob("*")):
        hidden = file.name.startswith((".", "_"))
        if file.name.lower().endswith((".csv", ".csv.gz", ".tsv")) and not hidden:
            raise FileError(
                f"the folder {folder} holds Parquet files ({files[0].name}) and CSV files "
                f"({file.name}); expected files of one kind: move the others out, or name those "
                f"of the log by a pattern ('{folder}/*.parquet')"
            )


def _check_beginning(file: Path) -> None:
    kind, zipped = kind_of(file), file.name.lower().endswith(".gz")
    with file.open("rb") as opened:
        start = opened.read(16)
    is_text = all(32 <= byte < 127 or byte in b"\t\r\n" for byte in start)  # a name, such as PAR1
    facts = [facts for sign, facts in BEGINNINGS.items() if start.startswith(sign) and not is_text]
    content, ending = facts[0] if facts else ("", "")
    if kind == "CSV" and zipped:
        if start and content != "compressed with gzip":
            is_now = content or "not compressed"
            raise FileError(f"{file} is {is_now}, but its name says .gz; rename it")
    elif content and kind in ("CSV", "Parquet", "Arrow") and ending not in KINDS[kind][:2]:
        remedy = f"rename it ({ending})" if ending else "unpack it, or save the table as CSV"
        raise FileError(f"{file} is {content}, but its name says {file.suffix}; {remedy}")
