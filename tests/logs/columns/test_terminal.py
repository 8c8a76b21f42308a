"""Terminal columns of one value and empty cells."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import ivvi
from ivvi.errors import DataError, MissingError

N, LENGTH = 120, 6


def table(died: list[Any]) -> pa.Table:
    """Return a log with this terminal column."""
    x, a, z = np.random.default_rng(0).normal(size=(3, N))
    rows = {"episode": np.arange(N) // LENGTH, "step": np.arange(N) % LENGTH}
    return pa.table(rows | {"x": x, "a": a, "z": z, "died": pa.array(died)})


def ends(yes: Any, no: Any) -> list[Any]:
    """Return a column that ends every third episode."""
    return [yes if i % LENGTH == LENGTH - 1 and i // LENGTH % 3 == 0 else no for i in range(N)]


def opened(source: Any) -> ivvi.Log:
    """Open a log with its ends."""
    return ivvi.read_logs(source, state="x", action="a", instrument="z", terminal="died")


EXPECTED = opened(table(ends(True, False))).to_batch()


@pytest.mark.parametrize("kind", ["arrow", "csv", "parquet"])
@pytest.mark.parametrize("yes", [1, 1.0, True, "yes", "1", "TRUE"])
def test_an_empty_cell_beside_one_value_goes_on(kind: str, yes: Any, tmp_path: Path) -> None:
    source: Any = table(ends(yes, None))
    if kind == "csv":
        pa.csv.write_csv(source, tmp_path / "log.csv")
    if kind == "parquet":
        pq.write_table(source, tmp_path / "log.parquet")
    log = opened(source if kind == "arrow" else str(tmp_path / f"log.{kind}"))
    assert np.array_equal(log.to_batch().y, EXPECTED.y)
    assert any("an empty cell is read as an episode that goes on" in text for text in log.notes)


def test_an_empty_cell_beside_both_values_is_missing() -> None:
    died = ends(1, 0)
    died[7] = None
    with pytest.raises(MissingError, match="'died'"):
        opened(table(died)).to_batch()


def test_a_full_column_says_nothing() -> None:
    assert not opened(table(ends(1, 0))).notes


def test_more_rows_without_any_end_can_be_added() -> None:
    first = opened(table(ends(1.0, None)))
    more = ivvi.logs.opening.reopened(table([None] * N), first.roles)
    assert not more.to_batch().y[:, -1].any()


def test_a_date_of_death_is_refused_with_the_remedy() -> None:
    with pytest.raises(DataError, match="compare the date with the row's own"):
        opened(table(ends(dt.datetime(2024, 1, 1), None)))
