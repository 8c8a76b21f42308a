"""Ids that seem to be one, and those that are none."""

from __future__ import annotations

import numpy as np
import pytest

import ivvi
from ivvi.errors import MissingError

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
