"""Rows that are spread over a log: runs of consecutive ones, made of whole episodes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import ivvi
from ivvi.logs import log as log_module
from ivvi.logs.batch import Batch, concatenate
from ivvi.logs.evenly_spaced_rows import RUN, SpreadRows, spread, spread_table

MOST = 2048


def rows(n, episode=None, step=None):
    V = np.arange(4.0 * n).reshape(4, n).T
    V[:, 0] = np.arange(n)
    return Batch(V[:, :1], V[:, 1:2], V[:, 2:3], V[:, 3:], episode=episode, step=step, table=V)


def numbered(n, length):
    return np.arange(n) // length, np.arange(n) % length


def kept(batch, size, *, ordered=True, expected=None):
    collected = SpreadRows(MOST, expected, has_steps=batch.step is not None, ordered=ordered)
    batches = [batch._views(slice(start, start + size)) for start in range(0, len(batch), size)]
    collected.start(batches[:2])
    for one in batches[2:]:
        collected.add(one)
    return collected.rows()


@pytest.mark.parametrize("n", [5_000, 33_333, 400_000])
@pytest.mark.parametrize("known", [True, False])
def test_runs_of_a_pass_reach_from_the_first_row_to_the_last_in_bounded_memory(n, known):
    found = kept(rows(n), 1000, expected=n if known else None)
    at = found.x[:, 0]
    assert MOST / 3 < len(found) <= MOST
    assert at[0] == 0
    assert n - at[-1] <= 2 * n / (len(found) / RUN)
    assert np.mean(np.diff(at) == 1) > 0.9
    assert np.max(np.diff(at)) <= 4 * n * RUN / MOST  # no part of the log is left out


@pytest.mark.parametrize("length", [1, 7, 100])
def test_a_pass_keeps_whole_episodes(length):
    n = 20_000 // length * length
    found = kept(rows(n, *numbered(n, length)), 777)
    assert set(np.unique(found.episode, return_counts=True)[1]) == {length}
    assert found.episode[-1] > 0.8 * n / length


def test_episodes_that_are_too_long_to_be_spread_are_not():
    n = 20_000
    assert kept(rows(n, *numbered(n, 5_000)), 1000) is None


def test_of_rows_in_another_order_whole_episodes_are_kept():
    episode, step = np.tile(np.arange(2_000), 10), np.repeat(np.arange(10), 2_000)
    found = kept(rows(20_000, episode, step), 1000, ordered=False)
    counts = np.unique(found.episode, return_counts=True)[1]
    assert set(counts) == {10}
    assert MOST / 4 < len(found) <= MOST
    assert 0.3 < np.mean(np.unique(found.episode) % 2) < 0.7  # not those of one parity alone


@pytest.mark.parametrize("length", [None, 5, 300, 3_000])
def test_spread_rows_of_a_batch_are_no_more_than_asked_for(length):
    n = 30_000
    batch = rows(n, *(numbered(n, length) if length else (None, None)))
    found = spread(batch, MOST)
    assert MOST / 2 < len(found) <= MOST
    assert found.x[-1, 0] > 0.9 * n
    np.testing.assert_array_equal(found.table[:, 0], found.x[:, 0])
    np.testing.assert_array_equal(spread(batch, MOST).x, found.x)


def test_few_rows_are_returned_as_they_are():
    batch = rows(100)
    assert spread(batch, 100) is batch
    assert spread_table(pa.table({"a": [1]}), 1, None) is None


def test_spread_rows_of_a_table_are_of_whole_episodes():
    n = 10_000
    table = pa.table({"e": [f"p{i // 4}" for i in range(n)], "i": np.arange(n)})
    found = spread_table(table, 1000, "e")
    assert set(found.group_by("e").aggregate([([], "count_all")])["count_all"].to_pylist()) == {4}
    assert len(found) >= 900
    assert found["i"][-1].as_py() > 0.9 * n


def test_a_log_of_several_batches_is_remembered_from_its_beginning_to_its_end(monkeypatch):
    small = {"BATCH_BYTES": 1, "HEAD_ROWS": MOST, "HEAD_LEAST": MOST, "KEPT": 2 * MOST}
    for name, value in small.items():
        monkeypatch.setattr(log_module, name, value)
    n = 30_000
    data = {"y": np.arange(n) / 1.0, "a": np.arange(n) % 7.0, "z": np.arange(n) % 5.0}
    log = ivvi.read_logs(data, reward="y", action="a", instrument="z").remembering()
    first = concatenate(list(log.batches()))
    head, beginning = log.head(episodes=True), log.beginning()
    assert len(first) == n
    assert len(head) <= MOST
    assert head.y[0, 0] == 0
    assert head.y[-1, 0] > 0.9 * n
    np.testing.assert_array_equal(beginning.y[:, 0], np.arange(len(beginning)))
    again = concatenate(list(log.batches(replay=True)))
    np.testing.assert_array_equal(again.y, first.y)


def told(data, formula="y ~ x | a ~ z"):
    with pytest.warns(UserWarning, match=".") as record:
        fit = ivvi.fit(data, formula=formula)
    return " ".join([*(str(one.message) for one in record), *fit.notes, *fit.doubts])


@pytest.mark.parametrize("order", ["shuffled", "site", "y"])
def test_a_sorted_table_is_told_what_a_shuffled_one_is(order):
    rng, n = np.random.default_rng(3), 40_000
    site = np.repeat(np.arange(10), n // 10)
    w = rng.normal(size=10)[site]
    z, u = rng.normal(size=n) + w, rng.normal(size=n)
    a = z + u
    y = a + 2 * u + 2 * w
    data = pd.DataFrame(
        {
            "y": np.minimum(y, np.quantile(y, 0.8)),
            "a": a,
            "z": z,
            "x": rng.normal(size=n),
            "site": np.array([f"s{i}" for i in site]),
        }
    )
    data = data.sample(frac=1, random_state=0) if order == "shuffled" else data.sort_values(order)
    text = told(data)
    assert "once effects of site are included" in text
    assert "its largest value" in text
