"""Rows in the opposite order of their steps."""

import numpy as np
import pytest

from helpers import make_rows, write_table
from ivvi import read_logs

ROLES = {"state": "x0", "action": "a0", "instrument": "z0"}


def notes(rows, **roles):
    return [text for text in read_logs(rows, **ROLES, **roles).notes if "opposite order" in text]


@pytest.mark.parametrize("kind", [None, "csv", "parquet"])
def test_steps_that_count_down_are_named(tmp_path, kind):
    rows = make_rows(20, 5, d=1)
    source = rows | {"step": -rows["step"]}
    source = source if kind is None else write_table(source, tmp_path / f"log.{kind}")
    (text,) = notes(source)
    assert "step in 100% of episodes" in text


def test_steps_in_order_in_any_order_and_dates_say_nothing():
    rows = make_rows(20, 5, d=1)
    assert notes(rows) == []
    shuffled = np.random.default_rng(0).permutation(100)
    assert notes({name: values[shuffled] for name, values in rows.items()}) == []
    days = np.datetime64("2024-01-01") - rows["step"]
    del rows["step"]
    assert notes(rows | {"t": days}, step="t") == []


def test_one_episode_in_its_own_order_says_nothing():
    rows = make_rows(40, 5, d=1)
    steps = np.where(rows["episode"] < 5, -rows["step"], rows["step"])
    assert notes(rows | {"step": steps}) == []
