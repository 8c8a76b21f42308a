"""CSV files: ids stay what they are, and what is no CSV is told by its cause."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import numpy as np
import pytest

import ivvi
from ivvi import InputError
from ivvi.errors import ColumnError, FileError
from ivvi.logs.tables import csv_files

ROLES = {"state": "x", "action": "a", "instrument": "z", "episode": "id", "step": "t"}


def written(folder: Path, ids: list[str], name: str = "log.csv", steps: int = 4) -> Path:
    """Write a log in which each id is an episode."""
    rng = np.random.default_rng(0)
    lines = ["id,t,x,a,z"]
    for one in ids:
        for t in range(steps):
            lines.append(f"{one},{t}," + ",".join(f"{v:.6f}" for v in rng.normal(size=3)))
    (folder / name).write_text("\n".join(lines) + "\n")
    return folder / name


def episodes(path: Path, **roles: str) -> int:
    """Count the episodes of a log."""
    walk = ivvi.read_logs(str(path), **(ROLES | roles)).batches(episodes=True)
    list(walk)
    return walk.counts.episodes


@pytest.mark.parametrize(
    "ids",
    [
        [str(31415926535897932384 + i) for i in range(30)],
        [str(10**25 + i) for i in range(30)],
        [str(2**53 + i) for i in range(30)],
        ["7", "007", "07", "70"],
        ["1.5", "1.50"],
        ["12E5", "120E4"],
        ["1", "2", "A3"],
        ["5", *[str(10**19 + i) for i in range(20)]],
    ],
)
def test_ids_that_numbers_would_join_stay_apart(ids: list[str], tmp_path: Path) -> None:
    assert episodes(written(tmp_path, ids)) == len(ids)


def test_groups_of_an_instrument_are_ids_as_well(tmp_path: Path) -> None:
    rows = written(tmp_path, [f"p{i}" for i in range(40)]).read_text().splitlines()
    doctors = ["doctor"] + [("7", "007")[i // 4 % 2] for i in range(len(rows) - 1)]
    path = tmp_path / "doctors.csv"
    path.write_text("\n".join(f"{a},{b}" for a, b in zip(rows, doctors, strict=True)) + "\n")
    log = ivvi.read_logs(str(path), **(ROLES | {"instrument": "loo:doctor"}))
    values = np.unique(log.to_batch().z.round(3))
    assert (values < values.mean()).any()
    assert set(
        log.table.table["doctor"].to_pylist()
        if hasattr(log.table, "table")
        else [v for b in log.table.batches(["doctor"], (), 99) for v in b["doctor"].to_pylist()]
    ) == {"7", "007"}


def test_ordinary_ids_stay_numbers_and_are_not_sorted_as_text(tmp_path: Path) -> None:
    log = ivvi.read_logs(str(written(tmp_path, [str(i) for i in range(8, 13)])), **ROLES)
    assert str(log.table.schema.field("id").type) == "int64"
    assert log.ordered


def test_an_id_of_many_digits_that_comes_late_is_seen(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(csv_files, "CSV_BLOCK", 1 << 10)
    assert episodes(written(tmp_path, [*map(str, range(50)), "001", "1e1"])) == 52


def test_padded_numbers_in_a_numeric_role_are_numbers(tmp_path: Path) -> None:
    path = written(tmp_path, ["1", "2", "3"])
    lines = path.read_text().splitlines()
    digits = ["big"] + [str(10**19 + i) for i in range(len(lines) - 1)]
    path.write_text("\n".join(f"{a},{b}" for a, b in zip(lines, digits, strict=True)) + "\n")
    log = ivvi.read_logs(str(path), **(ROLES | {"state": "x,big"}))
    assert log.roles.state == ("x", "big")
    assert np.allclose(log.to_batch().x[:, 1], 1e19)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("id;t;x;a;z\n1;0;1,5;2;3\n", r"semicolons between its columns.*sep=';', decimal=','"),
        ("id|t|x\n1|0|2\n", "bars between its columns; expected commas"),
        ("Export of 2024\n\nid,t,x,a,z\n1,0,1,2,3\n", "header seems to be line 3"),
        ("# made today\nid,t,x,a,z\n1,0,1,2,3\n", "header seems to be line 2"),
        ("Visits, 2024\nid,t,x,a,z\n1,0,1,2,3\n2,0,1,2,3\n", "header seems to be line 2"),
        ("a,b\nc,d,e\n\nid,t,x,a,z\n1,0,1,2,3\n2,0,1,,3\n", "header seems to be line 4"),
        ("id,t,x,a,z\n1,0,1,2,3,\n2,0,1,2,3,\n", "separator at the end of each row, but none"),
        ("", "is empty"),
    ],
)
def test_what_is_no_csv_is_told_by_its_cause(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(text)
    with gzip.open(tmp_path / "log.csv.gz", "wt") as file:
        file.write(text)
    for name in ("log.csv", "log.csv.gz"):
        with pytest.raises(FileError, match=words):
            ivvi.read_logs(str(tmp_path / name), **ROLES)


@pytest.mark.parametrize("ending", ["csv", "tsv"])
def test_the_remedy_for_a_separator_at_the_end_of_each_row_works(
    ending: str, tmp_path: Path
) -> None:
    import pandas as pd

    plain = written(tmp_path, [f"{i:03}" for i in range(1, 9)])
    sep = "," if ending == "csv" else "\t"
    names, *rows = plain.read_text().replace(",", sep).splitlines()
    path = tmp_path / f"trailing.{ending}"
    path.write_text("\n".join([names, *(row + sep for row in rows)]) + "\n")
    words = r"at the end of each row.*sep='\\t'" if ending == "tsv" else "at the end of each row"
    with pytest.raises(FileError, match=words):
        ivvi.read_logs(path, **ROLES)
    again = pd.read_csv(path, sep=sep, index_col=False, dtype={"id": str})
    again.to_csv(tmp_path / "again.csv", index=False)
    logs = [ivvi.read_logs(one, **ROLES) for one in (plain, tmp_path / "again.csv")]
    assert logs[0].table.schema == logs[1].table.schema
    assert np.array_equal(*(log.to_batch().y for log in logs))


@pytest.mark.parametrize(
    ("encoding", "words"), [("utf-16", "is UTF-16; save it as UTF-8"), ("latin-1", "not UTF-8")]
)
def test_other_encodings_are_named(encoding: str, words: str, tmp_path: Path) -> None:
    text = written(tmp_path, ["1", "2", "3"]).read_text()
    (tmp_path / "header.csv").write_bytes(text.replace("x,a", "xé,a").encode(encoding))
    cells = text.replace("\n", ",é\n").replace("z,é", "z,ward", 1)
    (tmp_path / "cells.csv").write_bytes(cells.encode(encoding))
    for name, state in (("header.csv", "xé"), ("cells.csv", "x,ward")):
        with pytest.raises(InputError, match=words):
            ivvi.read_logs(str(tmp_path / name), **(ROLES | {"state": state}))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("sep=,\nid,t,x\n1,0,2\n", "begins with 'sep=,', a line for spreadsheets; remove it"),
        ("sep=;\nid;t;x\n1;0;2\n", "begins with 'sep=;', a line for spreadsheets; remove it"),
    ],
)
def test_a_line_for_spreadsheets_is_named(tmp_path: Path, content: str, sentence: str) -> None:
    (tmp_path / "log.csv").write_text(content)
    with pytest.raises(FileError, match=re.escape(sentence)):
        csv_files.CsvTable([tmp_path / "log.csv"], "log.csv")


def test_a_decimal_comma_within_quotes_is_no_separator(tmp_path: Path) -> None:
    """One column of quoted numbers has its name in the first line."""
    (tmp_path / "log.csv").write_text('severity\n"3,5"\n"4,5"\n')
    assert csv_files.CsvTable([tmp_path / "log.csv"], "log.csv").schema.names == ["severity"]


def test_a_name_in_other_letters_is_suggested(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("PATIENT,SEVERITY,DOSE\n1,2,3\n")
    with pytest.raises(ColumnError, match="did you mean 'SEVERITY'"):
        ivvi.read_logs(tmp_path / "log.csv", state="severity", action="dose", instrument="dose")


def with_column(folder: Path, cells: list[str]) -> Path:
    """Write a log with a further column, amount."""
    lines = written(folder, [str(i) for i in range(len(cells) // 4)]).read_text().splitlines()
    path = folder / "amounts.csv"
    rows = zip(lines, ["amount", *cells], strict=True)
    path.write_text("\n".join(f"{line},{cell}" for line, cell in rows) + "\n")
    return path


def three_decimals(amounts: np.ndarray, *, short: bool = False) -> list[str]:
    cells = [f"{amount:.3f}" for amount in amounts]
    return [cell.rstrip("0").rstrip(".") for cell in cells] if short else cells


@pytest.mark.parametrize("role", ["state", "action", "reward"])
def test_dots_between_thousands_are_not_read_as_decimals(role: str, tmp_path: Path) -> None:
    amounts = np.random.default_rng(2).exponential(3000, 200)
    amounts[:2] = 5820, 812
    path = with_column(tmp_path, [f"{amount:,.0f}".replace(",", ".") for amount in amounts])
    words = "column 'amount' .* holds '5.820' in data row 0 and '812' in data row 1 .* such as 5820"
    with pytest.raises(ColumnError, match=words):
        ivvi.read_logs(path, **(ROLES | {role: "amount"}))
    assert len(ivvi.read_logs(path, **ROLES).to_batch()) == 150  # where nobody asks for it


def test_dots_between_thousands_are_seen_beside_a_code_and_in_millions(tmp_path: Path) -> None:
    cells = ["5.820", "812", "12.340", "-", "40"] * 40
    with pytest.raises(ColumnError, match="dots seem to stand between thousands"):
        ivvi.read_logs(with_column(tmp_path, cells), **(ROLES | {"state": "amount"}), missing="-")
    cells = ["5.820", "812", "1.234.567", "12.340"] * 50
    with pytest.raises(ColumnError, match=r"a number with dots between thousands; .* such as 5820"):
        ivvi.read_logs(with_column(tmp_path, cells), **(ROLES | {"state": "amount"}))


@pytest.mark.parametrize("kind", ["fixed", "short", "thirds", "code", "zero"])
def test_decimals_with_three_digits_stay_decimals(kind: str, tmp_path: Path) -> None:
    amounts = np.random.default_rng(3).normal(5, 0.5, 200).clip(2)
    if kind == "thirds":
        amounts = np.round(amounts * 3) / 3
    cells = three_decimals(amounts, short=kind in ("short", "thirds"))
    cells[::20] = {"code": ["999"], "zero": ["0"]}.get(kind, cells[:1]) * 10
    log = ivvi.read_logs(with_column(tmp_path, cells), **(ROLES | {"state": "amount"}))
    assert np.isclose(log.to_batch().x[1, 0], float(cells[1]))


def test_a_column_without_a_name_is_left_aside(tmp_path: Path) -> None:
    """Such as the index that a data frame was written with, or the commas of empty columns."""
    lines = written(tmp_path, [str(i) for i in range(40)]).read_text().splitlines()
    rows = [f"{i - 1 if i else ''},{line},," for i, line in enumerate(lines)]
    (tmp_path / "index.csv").write_text("\n".join(rows) + "\n")
    log = ivvi.read_logs(tmp_path / "index.csv", **ROLES, next_state="")
    assert log.table.schema.names[:5] == ["id", "t", "x", "a", "z"]
    plain = ivvi.read_logs(tmp_path / "log.csv", **ROLES)
    assert np.array_equal(log.to_batch().y, plain.to_batch().y)


@pytest.mark.parametrize("change", [",7", ""])
def test_a_row_with_another_number_of_cells_is_named(change: str, tmp_path: Path) -> None:
    path = written(tmp_path, ["1", "2", "3"])
    lines = path.read_text().splitlines()
    lines[5] = lines[5] + change if change else lines[5].rsplit(",", 1)[0]
    path.write_text("\n".join(lines) + "\n")
    words = f"has {6 if change else 4} cells in the row {lines[5]!r}; expected 5"
    with pytest.raises(FileError, match=re.escape(words)):
        ivvi.read_logs(path, **ROLES).to_batch()


@pytest.mark.parametrize("name", ["log.txt", "log.tab", "log.tsv.gz"])
def test_text_files_have_tabs_between_their_columns(name: str, tmp_path: Path) -> None:
    plain = written(tmp_path, ["1", "2", "3"])
    text = plain.read_text().replace(",", "\t").encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    read = [ivvi.read_logs(path, **ROLES).to_batch().y for path in (tmp_path / name, plain)]
    assert np.array_equal(*read)


@pytest.mark.parametrize(
    ("name", "words"),
    [("log.jsonl", "lines=True"), ("log.sqlite", "sqlite3 -header -csv"), ("log.duckdb", "duckdb")],
)
def test_files_that_are_not_read_are_refused_with_a_way_round(
    name: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text("{}")
    with pytest.raises(FileError, match=words):
        ivvi.read_logs(tmp_path / name, **ROLES)
