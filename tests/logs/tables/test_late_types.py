"""CSV files whose first rows mislead about the type of a column."""

import datetime as dt

import numpy as np
import pytest

import ivvi
from helpers import assert_refused, run
from ivvi.errors import ColumnError
from ivvi.logs.tables import csv_files

ROLES = {"state": "x", "action": "a", "instrument": "z", "episode": "id", "step": "t"}
PATIENTS, VISITS = 60, 4
ROWS = PATIENTS * VISITS
LATE = ROWS * 3 // 4


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(csv_files, "CSV_BLOCK", 1 << 11)


def written(path, first, last, *, dated=False):
    """Write a log with a further column, c, whose last rows are unlike the first."""
    rng = np.random.default_rng(0)
    x, a, z = rng.normal(size=(3, ROWS)).round(3)
    days = [dt.date(2024, 3, 1 + i % VISITS) if dated else i % VISITS for i in range(ROWS)]
    lines = [
        f"{i // VISITS},{days[i]},{x[i]},{a[i] + z[i]:.3f},{z[i]},{first if i < LATE else last}"
        for i in range(ROWS)
    ]
    path.write_text("\n".join(["id,t,x,a,z,c", *lines]) + "\n")
    return path


@pytest.mark.parametrize(
    ("first", "last"), [("1", "m"), ("", "m"), ("true", "maybe"), ("1", "1.5")]
)
def test_a_column_that_nobody_names_may_change_its_type(tmp_path, first, last):
    path = written(tmp_path / "log.csv", first, last, dated=True)
    assert len(ivvi.read_logs(path, **ROLES).to_batch()) == PATIENTS * (VISITS - 1)


@pytest.mark.parametrize(("last", "kind"), [("7", "int64"), ("0.5", "double"), ("m", "string")])
def test_a_column_that_begins_with_empty_cells_is_what_follows(tmp_path, last, kind):
    path = written(tmp_path / "log.csv", "", last, dated=True)
    log = ivvi.read_logs(path, **ROLES)
    assert str(log.table.schema.field("c").type) == kind


def test_ends_may_come_late(tmp_path):
    path = written(tmp_path / "log.csv", "", "1", dated=True)
    lines = path.read_text().splitlines()
    last = [i for i, line in enumerate(lines) if f"2024-03-0{VISITS}" in line]
    cut = [
        line if i in last or not i else line[: line.rindex(",") + 1] for i, line in enumerate(lines)
    ]
    path.write_text("\n".join(cut) + "\n")
    log = ivvi.read_logs(path, **ROLES, terminal="c")
    assert log.to_batch().y[:, -1].sum() == (ROWS - LATE) // VISITS


@pytest.mark.parametrize("dated", [False, True])
def test_whole_numbers_with_decimals_after_them_are_numbers(tmp_path, dated):
    path = written(tmp_path / "log.csv", "1", "2.5", dated=dated)
    log = ivvi.read_logs(path, **ROLES | {"action": "c"})
    assert set(log.to_batch().a[:, 0]) == {1.0, 2.5}
    kept = ivvi.read_logs(path, **ROLES, where="c < 2")
    assert len(kept.to_batch()) == LATE * (VISITS - 1) // VISITS


def test_text_after_numbers_names_the_cell(tmp_path):
    path = written(tmp_path / "log.csv", "1", "m")
    with pytest.raises(ColumnError, match=f"'c' of .* holds 'm' in data row {LATE} "):
        ivvi.fit(ivvi.read_logs(path, **ROLES), cluster="c")


def test_the_shell_says_in_one_sentence_where_the_type_changes(tmp_path):
    path = written(tmp_path / "log.csv", "true", "maybe")
    options = [word for role, name in ROLES.items() for word in (f"--{role}", name)]
    done = run("fit", path, *options, "--cluster", "c", "--out", tmp_path / "model")
    assert_refused(done, f"holds 'maybe' in data row {LATE} (from 0), and bool before it")
    assert not (tmp_path / "model").exists()
