"""Ids that seem to be one, and those that are none."""

from __future__ import annotations

import numpy as np
import pytest

import ivvi
from helpers import make_rows
from ivvi.errors import DataError, IvviWarning, MissingError

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
    assert text.startswith("who holds 'p1' and 'p1 ' (1 such pair)")


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


def two_files(folder, begins: str, ids: int = 30, *, shared: bool = True) -> ivvi.Log:
    """Open two files of 8 rows per id; those of the second begin on a day of their own."""
    rng = np.random.default_rng(0)
    for k, (name, first) in enumerate({"north": "2024-01-01", "south": begins}.items()):
        who = np.repeat(np.arange(ids) + (0 if shared else k * ids), 8)
        days = np.datetime64(first) + 14 * np.tile(np.arange(8), ids)
        x, a, z = (column.tolist() for column in rng.normal(size=(3, len(who))))
        lines = [",".join(map(str, row)) for row in zip(who, days, x, a, z, strict=True)]
        (folder / f"{name}.csv").write_text("\n".join(["who,day,x,a,z", *lines]) + "\n")
    roles = {"state": "x", "action": "a", "instrument": "z", "episode": "who", "step": "day"}
    return ivvi.read_logs(folder / "*.csv", **roles)


def test_ids_that_two_files_use_at_times_between_each_other_are_named(tmp_path) -> None:
    (text,) = two_files(tmp_path, "2024-01-08").notes
    assert text.startswith("north.csv and south.csv share 30 ids of who")
    assert "give each file its own ids" in text


def test_steps_that_two_files_have_for_one_id_name_both(tmp_path) -> None:
    with pytest.raises(DataError, match=r"north.csv and south.csv both have step .*own ids"):
        two_files(tmp_path, "2024-01-15")


@pytest.mark.parametrize(("begins", "shared"), [("2024-04-22", True), ("2024-01-08", False)])
def test_ids_that_go_on_in_the_next_file_are_not_doubted(begins, shared, tmp_path) -> None:
    assert two_files(tmp_path, begins, shared=shared).notes == ()


@pytest.mark.parametrize("role", ["cluster", "absorb"])
def test_levels_to_cluster_by_or_absorb_that_differ_in_case_are_named(role: str) -> None:
    rows = make_rows(40, 10)
    wards = np.array(["ICU", "icu", "A", "B", "C", "D", "E", "F", "G", "H"])
    log = ivvi.read_logs(rows | {"ward": wards[rows["episode"] % 10]})
    with pytest.warns(IvviWarning) as said:
        ivvi.estimate(log, **{role: "ward"})
    assert any("ward holds 'ICU' and 'icu'" in str(one.message) for one in said)
