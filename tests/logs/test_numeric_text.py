"""Columns of text that are numbers once the codes of missing values are taken out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import ivvi
from ivvi.errors import ColumnError

N = 60


def table(age: list[str]) -> dict[str, Any]:
    """Return a log with a column of text."""
    rng = np.random.default_rng(1)
    x, a, z = rng.normal(size=(3, N))
    rows = {"episode": np.arange(N) // 6, "step": np.arange(N) % 6, "x": x, "a": a, "z": z}
    return rows | {"age": age}


def opened(kind: str, columns: dict[str, Any], folder: Path, **options: Any) -> ivvi.Log:
    """Open a table as Arrow, CSV or Parquet."""
    source: Any = pa.table(columns)
    if kind == "csv":
        pa.csv.write_csv(source, folder / "log.csv")
    if kind == "parquet":
        pq.write_table(source, folder / "log.parquet")
    source = source if kind == "arrow" else str(folder / f"log.{kind}")
    roles = {"state": "x,age", "action": "a", "instrument": "z"}
    return ivvi.read_logs(source, **(roles | options), drop_missing=True)


KINDS = pytest.mark.parametrize("kind", ["arrow", "csv", "parquet"])


@KINDS
@pytest.mark.parametrize("code", [".", "n/a?", "unknown"])
def test_numbers_beside_a_code_of_missing_values_are_numbers(
    kind: str, code: str, tmp_path: Path
) -> None:
    ages = [code if i % 13 == 5 else f"{40 + i / 2:g}" for i in range(N)]
    log = opened(kind, table(ages), tmp_path, missing=code)
    assert log.roles.state == ("x", "age")
    assert not log.roles.categories
    values = log.to_batch().x[:, 1]
    assert values.min() >= 40
    assert values.max() < 40 + N / 2


@KINDS
def test_words_beside_a_code_stay_categories(kind: str, tmp_path: Path) -> None:
    wards = ["." if i % 13 == 5 else ("A", "12")[i % 2] for i in range(N)]
    log = opened(kind, table(wards), tmp_path, missing=".", categorical="age")
    assert log.roles.state == ("x", "age[A]")
    with pytest.raises(ColumnError, match=r"holds text: 'A'"):
        opened(kind, table(wards), tmp_path, missing=".")


def test_text_of_digits_without_a_code_stays_a_category(tmp_path: Path) -> None:
    codes = [str(i % 3) for i in range(N)]
    assert opened("arrow", table(codes), tmp_path, missing="-9").roles.state[1] == "age[1]"


@KINDS
def test_steps_that_are_digits_in_text_are_numbers(kind: str, tmp_path: Path) -> None:
    columns = table(["1"] * N) | {"step": [str(i % 6) for i in range(N)]}
    log = opened(kind, columns, tmp_path, state="x")
    assert len(log.to_batch()) == N - N // 6
    assert not log.notes
