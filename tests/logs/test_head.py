"""The first rows of a log, by which features and warnings are chosen."""

from __future__ import annotations

import numpy as np
import pytest

import ivvi
from ivvi.logs.log import HEAD_ROWS


def rows(n):
    rng = np.random.default_rng(0)
    columns = {name: rng.normal(size=n) for name in ("x", "a", "z")}
    return {"episode": np.arange(n) // 10, "step": np.arange(n) % 10, **columns}


def reading(*_, **__):
    """Be a pass that should not be."""
    raise AssertionError("read again")


@pytest.mark.parametrize("n", [500, 3 * HEAD_ROWS])
def test_a_pass_keeps_the_first_rows_that_head_would_read_again(n, monkeypatch):
    log = ivvi.read_logs(rows(n), state="x", action="a", instrument="z")
    remembering = log.remembering()
    for _ in remembering.batches():
        pass
    with monkeypatch.context() as patch:
        patch.setattr(ivvi.Log, "batches", reading)
        first = remembering.head(episodes=True)
    again = log.head(episodes=True)
    assert len(first) == len(again) >= min(HEAD_ROWS, 400)
    for name in ("x", "a", "z", "y", "episode", "step"):
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))


def test_a_pass_from_the_middle_or_in_other_batches_is_not_kept():
    log = ivvi.read_logs(rows(500), state="x", action="a", instrument="z").remembering()
    for _ in log.batches(size=100):
        pass
    assert len(log.head(episodes=True)) == 450


def test_a_fit_does_not_keep_the_first_rows(monkeypatch):
    log = ivvi.read_logs(rows(500), state="x", action="a", instrument="z")
    with pytest.warns(UserWarning, match="."):  # noise alone: weak
        fit = ivvi.fit(log)
    monkeypatch.setattr(ivvi.Log, "batches", reading)
    with pytest.raises(AssertionError, match="read again"):
        fit.log.head(episodes=True)
