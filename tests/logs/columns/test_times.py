"""Steps that are times: the whole cell is read, or none of it."""

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
from ivvi import InputError
from ivvi.errors import DataError

N, LENGTH = 40, 5
START = dt.datetime(2024, 3, 4, 8)


def table(step: list[Any], **types: pa.DataType) -> pa.Table:
    """Return a log whose states count the rows of an episode, with these steps."""
    z, a = np.random.default_rng(0).normal(size=(2, N * LENGTH))
    rows = {"id": [f"p{i // LENGTH}" for i in range(len(z))], "x": np.arange(len(z)) % LENGTH * 1.0}
    return pa.table(rows | {"a": a, "z": z, "when": pa.array(step * N, **types)})


def opened(source: Any, **options: Any) -> ivvi.Log:
    """Open a log by its times."""
    roles = {"state": "x", "action": "a", "instrument": "z", "episode": "id", "step": "when"}
    return ivvi.read_logs(source, **roles, **options)


def is_in_order(log: ivvi.Log) -> bool:
    """Tell whether each next state is the next row's."""
    batch = log.to_batch()
    return len(batch) == N * (LENGTH - 1) and bool((batch.y - batch.x == 1).all())


def hours(word: str) -> list[str]:
    """Return five times, an hour apart over noon, in a format."""
    return [(START + dt.timedelta(hours=2 + t)).strftime(word) for t in range(LENGTH)]


@pytest.mark.parametrize(
    "word",
    [
        *("%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M:%S", "%Y/%m/%d %H:%M:%S.5", "%Y-%m-%d %H:%M:%SZ"),
        *("%Y-%m-%d %H:%M UTC", "%Y-%m-%d %H:%M:%S+02:00", "%Y-%m-%dT%H:%M-0330"),
    ],
)
def test_times_that_say_all_need_no_format(word: str) -> None:
    assert is_in_order(opened(table(hours(word))))


@pytest.mark.parametrize("tail", [" garbage", " CEST", "?", " (est.)", " 7", " +2"])
def test_a_time_with_a_tail_is_refused(tail: str) -> None:
    with pytest.raises(DataError, match="which is no date"):
        opened(table([text + tail for text in hours("%Y-%m-%d %H:%M:%S")]))


@pytest.mark.parametrize("word", ["%Y-%m-%d %I:%M %p", "%m/%d/%Y %I:%M:%S %p", "%d.%m.%Y %H:%M"])
def test_a_usual_format_is_advised_and_works(word: str) -> None:
    with pytest.raises(DataError, match=f"--date-format '{word}'"):
        opened(table(hours(word)))
    assert is_in_order(opened(table(hours(word)), date_format=word))


@pytest.mark.parametrize("word", ["%d/%m/%y", "%d-%m-%y", "%m/%d/%y", "%d.%m.%y", "%y-%m-%d"])
def test_years_of_two_digits_are_refused_with_the_formats_that_fit(word: str) -> None:
    days = [(START + dt.timedelta(days=7 * t)).strftime(word) for t in range(LENGTH)]
    with pytest.raises(DataError, match=f"--date-format '{word}'") as caught:
        opened(table(days))
    assert "%Y'" not in str(caught.value)
    assert is_in_order(opened(table(days), date_format=word))


def test_distances_from_utc_count() -> None:
    times = ["2024-10-27T02:30:00+02:00", "2024-10-27T02:00:00+01:00", "2024-10-27 03:00+0100"]
    times += ["2024-10-27T03:30:00Z", "2024-10-26T23:30:00-05"]
    assert is_in_order(opened(table(times)))


@pytest.mark.parametrize("days", [7.0, 1500.0, 0.25, 1 / 1440])
def test_the_spacing_that_is_advised_is_taken(days: float) -> None:
    gaps = np.cumsum([0, 1, 1, 1.5, 1]) * days
    times = [str(START + dt.timedelta(days=gap)) for gap in gaps]
    (text,) = opened(table(times)).notes
    advised = text.split("--every ")[1].rstrip(")").split(")")[0]
    assert "e+" not in text
    assert len(opened(table(times), every=advised).to_batch()) == N * 3


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
@pytest.mark.parametrize("type", [pa.duration("ns"), pa.duration("s"), pa.time32("s")], ids=str)
def test_durations_and_times_of_day_are_steps(kind: str, type: Any, tmp_path: Path) -> None:
    hourly = [dt.timedelta(hours=t) for t in range(LENGTH)]
    steps = hourly if pa.types.is_duration(type) else [dt.time(t) for t in range(LENGTH)]
    source: Any = table(steps, type=type)
    if kind == "parquet":
        pq.write_table(source, tmp_path / "log.parquet")
        source = str(tmp_path / "log.parquet")
    assert is_in_order(opened(source))
    assert is_in_order(opened(source, every="1h"))


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_a_time_with_a_zone_that_stands_twice_is_named(kind: str, tmp_path: Path) -> None:
    times = [START + dt.timedelta(days=t // 2) for t in range(LENGTH)]
    source: Any = table(times, type=pa.timestamp("us", "UTC"))
    if kind == "parquet":
        pq.write_table(source, tmp_path / "log.parquet")
        source = str(tmp_path / "log.parquet")
    with pytest.raises(
        InputError, match=r"episode 'p\d+' has step '2024-03-0\d 08:00:00\+00' twice"
    ):
        opened(source)


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_an_hour_that_the_machines_clock_repeats_is_two_hours(
    kind: str, unit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times with a zone are moments, read alike wherever the program runs."""
    monkeypatch.setenv("TZ", "America/New_York")
    start = dt.datetime(2024, 11, 3, 4, 30, tzinfo=dt.UTC)  # clocks go back at 6:00 UTC
    times = [start + dt.timedelta(hours=t) for t in range(LENGTH)]
    source = table(times, type=pa.timestamp(unit, "UTC"))
    if kind == "parquet":
        pq.write_table(source, tmp_path / "log.parquet")
    log = opened(tmp_path / "log.parquet" if kind == "parquet" else source, every="1h")
    assert is_in_order(log)


def test_moments_with_fractions_of_a_second_in_a_csv_file_are_steps(tmp_path: Path) -> None:
    """Arrow reads them as nanoseconds with a zone."""
    pa.csv.write_csv(table(hours("%Y-%m-%dT%H:%M:%S.250Z")), tmp_path / "log.csv")
    assert is_in_order(opened(tmp_path / "log.csv", every="1h"))


def test_steps_of_letters_are_told_of_numbers_and_dates(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("id,t,x,a,z\n" + "".join(f"{i // 4},V{i % 4},1,2,3\n" for i in range(8)))
    with pytest.raises(InputError, match=r"'V0' .* no date; expected numbers .0, 1"):
        ivvi.read_logs(path, state="x", action="a", instrument="z", episode="id", step="t")
