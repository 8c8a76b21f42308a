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


def _frames(folder: Path, texts: list[str]) -> dict[str, Any]:
    """Return one log with a column of text as each kind of table that knows types."""
    import pandas as pd
    import polars as pl

    columns = table(texts)
    frame = pd.DataFrame(columns)
    pq.write_table(pa.table(columns), folder / "log.parquet")
    coded = pa.table(columns | {"age": pa.array(texts).dictionary_encode()})
    pq.write_table(coded, folder / "coded.parquet")
    return {
        "object": frame.assign(age=pd.Series(texts, dtype=object)),
        "string": frame.assign(age=pd.Series(texts, dtype="string")),
        "polars": pl.DataFrame(columns),
        "arrow": coded,
        "parquet": str(folder / "log.parquet"),
        "coded": str(folder / "coded.parquet"),
    }


KNOWING = ["object", "string", "polars", "arrow", "parquet", "coded"]
ROLES = {"state": "x", "action": "a", "instrument": "age", "episode": "episode", "step": "step"}


@pytest.mark.parametrize("kind", KNOWING)
def test_text_of_numbers_with_fractions_is_numbers_in_every_table(
    kind: str, tmp_path: Path
) -> None:
    numbers = np.random.default_rng(2).normal(size=N).round(1)
    texts = [f" {number}" if i % 7 == 0 else f"{number} " for i, number in enumerate(numbers)]
    texts[5] = ""
    source = _frames(tmp_path, texts)[kind]
    log = ivvi.read_logs(source, **ROLES, drop_missing=True)
    assert log.roles.instrument == ("age",)
    assert not log.roles.categories
    assert not log.notes
    present = np.delete(numbers, [5, *range(5, N, 6)])  # its row, and last rows of episodes
    assert sorted(log.to_batch().z[:, 0]) == pytest.approx(sorted(present))
    coded = ivvi.read_logs(source, **ROLES, categorical="age", drop_missing=True)
    assert len(coded.roles.categories) == 1


@pytest.mark.parametrize("kind", KNOWING)
def test_many_whole_numbers_in_text_are_noted_with_what_to_do(kind: str, tmp_path: Path) -> None:
    few, many = ([f"{i % count}" for i in range(N)] for count in (5, 25))
    assert not ivvi.read_logs(_frames(tmp_path, few)[kind], **ROLES).notes
    source = _frames(tmp_path, many)[kind]
    (note,) = ivvi.read_logs(source, **ROLES).notes
    assert note.startswith("age holds whole numbers stored as text, and is taken for a category")
    assert not ivvi.read_logs(source, **ROLES, categorical="age").notes
    if kind == "object":
        assert not ivvi.read_logs(source.assign(age=source["age"].astype(float)), **ROLES).notes


def test_long_codes_and_dotted_thousands_in_text_are_no_amounts(tmp_path: Path) -> None:
    codes = [f"{i % 3}" * 20 for i in range(N)]
    assert len(opened("arrow", table(codes), tmp_path).roles.categories) == 1
    thousands = [("812", "1.500", "640", "12.000")[i % 4] for i in range(N)]
    with pytest.raises(ColumnError, match="dots seem to stand between thousands"):
        opened("arrow", table(thousands), tmp_path)


def test_a_blank_beside_whole_numbers_in_text_is_called_a_blank(tmp_path: Path) -> None:
    with pytest.raises(ColumnError, match=r"'5 ' .* a number with a space before or after it"):
        opened("arrow", table([f"{5 + i % 4} " for i in range(N)]), tmp_path)
