"""Ids that seem to be one, and those that are none."""

from __future__ import annotations

import numpy as np
import pytest

import ivvi
from ivvi.errors import DataError, MissingError

N = 240


def notes(ids: list[str]) -> tuple[str, ...]:
    """Return what is said of the episodes of a log."""
    x, a, z = np.random.default_rng(0).normal(size=(3, N))
    rows = {"who": ids, "step": np.arange(N), "x": x, "a": a, "z": z}
    log = ivvi.read_logs(rows, state="x", action="a", instrument="z", episode="who")
    log.to_batch()
    return log.notes


def test_ids_that_differ_in_blanks_are_named() -> None:
    (text,) = notes([f"p{i // 6}" + " " * (i == 7) for i in range(N)])
    assert text.startswith("who holds 'p1' and 'p1 ' (1 such pairs)")


def test_ids_with_blanks_in_every_other_row_are_why_there_is_no_next_state() -> None:
    with pytest.raises(
        DataError, match=r"no.* next state, because who holds 'p0' and 'p0 '.*alike"
    ):
        notes([f"p{i // 6}" + " " * (i % 2) for i in range(N)])


def test_rows_that_follow_nothing_are_single_decisions_without_episode_and_step() -> None:
    z, u = np.random.default_rng(0).normal(size=(2, N))
    rows = {"who": np.arange(N), "t": np.ones(N), "x": u, "a": z + u, "z": z, "y": z + 2 * u}
    roles = {"state": "x", "action": "a", "instrument": "z", "reward": "y"}
    with pytest.raises(
        DataError, match=r"do not follow each other, leave --episode and --step out"
    ):
        ivvi.read_logs(rows, **roles, episode="who", step="t").to_batch()
    assert ivvi.read_logs(rows, **roles).to_batch().y.shape == (N, 1)


def test_many_ids_that_differ_in_case_are_named() -> None:
    (text,) = notes([f"{'pP'[i % 6 < 3]}{i // 6}" for i in range(N)])
    assert "differ only in case or blanks" in text


def test_rows_without_an_id_are_named() -> None:
    (text,) = notes(["Unknown" if i // 6 == 3 else f"p{i // 6}" for i in range(N)])
    assert text.startswith("who is 'Unknown' in 6 rows")


def test_a_blank_id_is_a_missing_value() -> None:
    with pytest.raises(MissingError, match=r"6 missing or infinite values in 6 of 240 rows.*'who'"):
        notes(["" if i // 6 == 3 else f"p{i // 6}" for i in range(N)])


@pytest.mark.parametrize("seed", range(10))
def test_ordinary_ids_are_not_doubted(seed: int) -> None:
    letters = np.array(list("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"))
    names = np.random.default_rng(seed).choice(letters, (N // 6, 4))
    assert notes(["".join(names[i // 6]) for i in range(N)]) == ()
