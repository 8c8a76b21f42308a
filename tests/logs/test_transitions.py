"""Each row meets the next step of its own episode, and nothing else, however rows come."""

import math
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import ROLES, make_rows, mark_thorough, write_table
from ivvi import read_logs
from ivvi.errors import DataError
from ivvi.logs import Counts
from ivvi.logs.tables.arrow import Numbers

SIZES = (1, 2, 3, 1000)
NUMBERS = ("x0", "x1", "a0", "z0", "r", "w")
COLUMNS = ("episode", "step", *NUMBERS)


# A log as a list of dicts, None for a missing cell, and what must come of it.


@dataclass
class Expected:
    """The slow and obvious answer."""

    missing_cells: int = 0
    missing_rows: int = 0
    first: tuple[int, str] | None = None
    usable: list[dict] = field(default_factory=list)
    states: list[dict] = field(default_factory=list)  # with those that have no action

    @classmethod
    def of(cls, rows):
        answer = cls()
        for number, row in enumerate(rows):
            bad = [name for name in COLUMNS if is_missing(row[name])]
            answer.missing_cells += len(bad)
            answer.missing_rows += bool(bad)
            if bad and answer.first is None:
                answer.first = (number, bad[0])
            if not bad:
                answer.usable.append(row)
            if not set(bad) & {"episode", "step", "x0", "x1"}:
                answer.states.append(row)
        return answer

    def transitions(self):
        """Return rows [episode number, x, a, z, next x, reward, weight], sorted."""
        at = {(row["episode"], row["step"]): row for row in self.states}
        ids = sorted({row["episode"] for row in self.states})
        found = []
        for row in self.usable:
            following = at.get((row["episode"], row["step"] + 1))
            if following is not None:
                now = [row[name] for name in ("x0", "x1", "a0", "z0")]
                after = [following["x0"], following["x1"], row["r"], row["w"]]
                found.append([ids.index(row["episode"]), *now, *after])
        return sorted(found)

    def episodes(self):
        return len({row["episode"] for row in self.states})


def is_missing(value):
    return value is None or (isinstance(value, float) and not math.isfinite(value))


@st.composite
def logs(draw, *, holes):
    """Draw rows of several episodes with gaps, shuffled or not, and perhaps missing cells."""
    if draw(st.booleans()):
        ids = draw(st.lists(st.integers(-3, 40), min_size=1, max_size=5, unique=True))
    else:
        text = st.text("abc 'é\"", min_size=1, max_size=3).map(lambda s: f"<{s}>")
        ids = draw(st.lists(text, min_size=1, max_size=5, unique=True))
    rows = []
    for episode in ids:
        steps = draw(st.sets(st.integers(-2, 9), min_size=1, max_size=9))
        rows += [{"episode": episode, "step": step} for step in sorted(steps)]
    if draw(st.booleans()):
        rows = draw(st.permutations(rows))
    for number, row in enumerate(rows):  # every cell is another number
        row |= {name: float(len(NUMBERS) * number + i) for i, name in enumerate(NUMBERS)}
        row["z0"] = 10_000.0 + number**2  # and no multiple of the action
    if holes:
        cells = st.tuples(
            st.integers(0, len(rows) - 1),
            st.sampled_from(COLUMNS),
            st.sampled_from([None, math.nan, math.inf, -math.inf]),
        )
        for number, name, value in draw(st.lists(cells, max_size=5)):
            rows[number][name] = value if name in NUMBERS else None
    return rows


def to_table(rows):
    text = any(isinstance(row["episode"], str) for row in rows)
    kinds = {"episode": pa.string() if text else pa.int64(), "step": pa.int64()}
    return pa.table(
        {
            name: pa.array([row[name] for row in rows], kinds.get(name, pa.float64()))
            for name in COLUMNS
        }
    )


def in_memory(table, folder, cut):
    return pa.concat_tables([table.slice(0, cut), table.slice(cut)])


def in_memory_encoded(table, folder, cut):
    """Give each chunk a dictionary of its own."""
    chunks = [table.slice(0, cut), table.slice(cut)]
    encoded = [
        chunk.set_column(0, "episode", chunk["episode"].combine_chunks().dictionary_encode())
        for chunk in chunks
    ]
    return pa.concat_tables(encoded)


def in_parquet(table, folder, cut):
    return write_table(table, folder / "log.parquet", row_group_size=cut or 1)


def in_csv(table, folder, cut):
    return write_table(table, folder / "log.csv")


PLACES = [in_memory, in_memory_encoded, in_parquet, in_csv]
ALL = {"state": "x*", "action": "a0", "instrument": "z0", "reward": "r", "weight": "w"}


def open_log(rows, place, folder, cut, **settings):
    source = place(to_table(rows), Path(folder), min(cut, len(rows)))
    return read_logs(source, **ALL, **settings)


@pytest.mark.parametrize("place", mark_thorough(PLACES, in_csv))
@given(rows=logs(holes=False), cut=st.integers(0, 12))
def test_next_states_stay_inside_an_episode_and_cross_no_gap(place, rows, cut, rows_of):
    answer = Expected.of(rows)
    wanted = answer.transitions()
    with tempfile.TemporaryDirectory() as folder:
        log = open_log(rows, place, folder, cut)
        for size in SIZES:
            if not wanted:
                with pytest.raises(DataError, match=f"none of the {len(rows)} rows has a next"):
                    rows_of(log, size=size)
                continue
            found, counts = rows_of(log, size=size, numbered=True)
            assert found == wanted
            alone = len(rows) - len(wanted)
            assert counts == Counts(len(rows), len(wanted), answer.episodes(), alone, 0)


@pytest.mark.parametrize("place", PLACES)
@given(rows=logs(holes=True), cut=st.integers(0, 12))
def test_rows_with_missing_values_are_dropped_and_counted(place, rows, cut, rows_of):
    answer = Expected.of(rows)
    wanted = answer.transitions()
    with tempfile.TemporaryDirectory() as folder:
        log = open_log(rows, place, folder, cut, drop_missing=True)
        for size in SIZES:
            if not wanted:
                with pytest.raises(DataError, match=f"{len(rows)} rows"):
                    rows_of(log, size=size)
                continue
            found, counts = rows_of(log, size=size, numbered=True)
            assert found == wanted
            alone = len(answer.usable) - len(wanted)
            missing = answer.missing_rows
            assert counts == Counts(len(rows), len(wanted), answer.episodes(), alone, missing)


@pytest.mark.parametrize("place", mark_thorough(PLACES, in_csv, in_memory_encoded))
@settings(max_examples=settings.default.max_examples // 2)
@given(rows=logs(holes=True), cut=st.integers(0, 12))
def test_missing_values_are_refused_with_their_number_and_the_first(place, rows, cut, rows_of):
    answer = Expected.of(rows)
    if answer.first is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        log = open_log(rows, place, folder, cut)
        with pytest.raises(DataError) as caught:
            rows_of(log, size=3)
    row, column = answer.first
    message = str(caught.value)
    assert f"has {answer.missing_cells} missing or infinite values" in message
    assert f"in {answer.missing_rows} of {len(rows)} rows" in message
    assert f"the first in column {column!r}, row {row} (from 0)" in message


@pytest.mark.parametrize("place", mark_thorough(PLACES, in_csv, in_memory_encoded))
@settings(max_examples=settings.default.max_examples // 2)
@given(rows=logs(holes=True), cut=st.integers(0, 12))
def test_rows_with_their_own_next_state_are_all_kept(place, rows, cut, rows_of):
    """The next state here is the column x1; a row then needs no other row."""
    answer = Expected.of(rows)
    columns = {"state": "x0", "action": "a0", "instrument": "z0", "next_state": "x1"}
    wanted = sorted(
        [row[name] for name in ("x0", "a0", "z0", "x1", "r", "w")] for row in answer.usable
    )
    with tempfile.TemporaryDirectory() as folder:
        source = place(to_table(rows), Path(folder), min(cut, len(rows)))
        log = read_logs(source, **columns, reward="r", weight="w", drop_missing=True)
        for size in SIZES:
            if not wanted:
                with pytest.raises(DataError, match=f"all {len(rows)} rows have missing"):
                    rows_of(log, size=size)
                continue
            found, counts = rows_of(log, size=size, numbered=True)
            assert sorted(row[1:] for row in found) == wanted
            missing = answer.missing_rows
            episode_of = {row["x0"]: row["episode"] for row in answer.usable}
            episodes = len(set(episode_of.values()))
            assert counts == Counts(len(rows), len(wanted), episodes, 0, missing)
            pairs = {(row[0], episode_of[row[1]]) for row in found}
            assert len(pairs) == episodes  # one number for each episode
            assert sorted(number for number, _ in pairs) == list(range(episodes))


# Single facts


def test_a_last_state_without_an_action_is_a_next_state(rows_of):
    """As logs have it that end with what was seen last."""
    columns = {"episode": [0, 0, 0, 1, 1], "step": [0, 1, 2, 0, 1], "x0": [1.0, 2, 3, 4, 5]}
    columns |= {"a0": [5.0, 6, math.nan, 8, math.nan], "z0": [9.0, 10, math.nan, 11, math.nan]}
    for size in SIZES:
        rows, counts = rows_of(read_logs(columns, **ROLES, drop_missing=True), size=size)
        assert rows == [[1, 5, 9, 2], [2, 6, 10, 3], [4, 8, 11, 5]]
        assert (counts.transitions, counts.without_next, counts.missing) == (3, 0, 2)


@pytest.mark.parametrize("names", [["u", None, "u", "v", None], [1.0, math.nan, 1, 2, math.nan]])
def test_a_missing_name_of_a_cluster_or_fact_costs_one_row(names, rows_of):
    """The row is still the next state of the row before it, and its neighbour's cluster is kept."""
    columns = {"episode": [0, 0, 0, 1, 1], "step": [0, 1, 2, 0, 1], "x0": [1.0, 2, 3, 4, 5]}
    columns |= {"a0": [5.0, 6, 7, 8, 9], "z0": [9.0, 10, 11, 12, 13]}
    for size in SIZES:
        log = read_logs(columns | {"doctor": names}, **ROLES, drop_missing=True)
        log = log.clustered(("doctor",))
        rows, counts = rows_of(log, size=size)
        assert rows == [[1, 5, 9, 2], [4, 8, 12, 5]]
        assert (counts.transitions, counts.without_next, counts.missing) == (2, 1, 2)
        batch = log.to_batch()
        assert len(set(batch.clusters[0])) == 2
    aged = columns | {"born": [70.0, math.nan, 70, 50, 50]}
    for size in SIZES:
        log = read_logs(aged, **ROLES, context="born", drop_missing=True)
        rows, counts = rows_of(log, size=size)
        assert rows == [[1, 70, 5, 9, 2], [4, 50, 8, 12, 5]]
        assert counts.missing == 1


def test_steps_that_go_on_in_the_next_episode_are_not_linked(rows_of):
    columns = {"episode": [0, 0, 1, 1], "step": [0, 1, 2, 3], "x0": [1.0, 2, 3, 4]}
    columns |= {"a0": [5.0, 6, 7, 8], "z0": [9.0, 10, 11, 12]}
    for size in SIZES:
        rows, _ = rows_of(read_logs(columns, **ROLES), size=size)
        assert rows == [[1, 5, 9, 2], [3, 7, 11, 4]]


@pytest.mark.parametrize("next_state", [(), "y"], ids=["derived", "given"])
@pytest.mark.parametrize("place", [in_memory, in_parquet])
@pytest.mark.parametrize(
    ("episode", "step"),
    [
        (["b", "b", None, "a", "a", "b"], [0, 1, 0, 0, 1, 2]),
        ([2, 2, None, 1, 1, 2], [0, 1, 0, 0, 1, 2]),
        ([2.0, 2.0, math.nan, 1.0, 1.0, 2.0], [0, 1, 0, 0, 1, 2]),
        ([1, 1, 1, 1, 2, 2], [2, None, 0, 1, 0, 1]),
        ([1, 1, 1, 1, 2, 2], [2.0, math.nan, 0.0, 1.0, 0.0, 1.0]),
    ],
)
def test_a_row_without_a_key_does_not_hide_disorder(
    episode, step, place, next_state, tmp_path, rows_of
):
    """Comparing with it says neither yes nor no."""
    number = np.arange(6.0)
    table = pa.table({"episode": episode, "step": step, "x0": number, "a0": -number})
    table = table.append_column("z0", pa.array(number**2)).append_column("y", pa.array(number + 1))
    source = place(table, tmp_path, 6)
    log = read_logs(source, **ROLES, next_state=next_state, drop_missing=True)
    _, counts = rows_of(log)
    assert (counts.episodes, counts.missing) == (2, 1)
    assert counts.transitions == (5 if next_state else 3)


def test_without_keys_every_row_is_its_own_episode(rows_of):
    columns = {name: make_rows(2, 3, d=1)[name] for name in ("x0", "a0", "z0", "reward")}
    columns["y"] = columns["x0"] + 1
    log = read_logs(columns, **ROLES, next_state="y")
    rows, counts = rows_of(log, size=4, numbered=True)
    assert counts == Counts(rows=6, transitions=6, episodes=6)
    assert sorted(row[0] for row in rows) == list(range(6))


@pytest.mark.parametrize("size", SIZES)
def test_episode_numbers_count_up_over_batches(size):
    columns = make_rows(4, 3, d=1)
    walk = read_logs(columns, **ROLES).batches(size=size, episodes=True)
    numbers = np.concatenate([batch.episode for batch in walk])
    assert numbers.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert all(batch.episode is None for batch in read_logs(columns, **ROLES).batches(size=size))


def test_the_reward_is_one_more_output_and_not_shifted():
    columns = make_rows(2, 3, d=1)
    batch = read_logs(columns, **ROLES, reward="reward").to_batch()
    now = [0, 1, 3, 4]
    assert batch.y[:, 0].tolist() == columns["x0"][[1, 2, 4, 5]].tolist()
    assert batch.y[:, 1].tolist() == columns["reward"][now].tolist()


def test_batches_are_views_of_one_table():
    columns = {**make_rows(3, 5), "w": np.arange(15)}
    log = read_logs(columns, **ROLES, reward="reward", weight="w")
    batch = next(iter(log.batches()))
    assert np.array_equal(batch.table, np.hstack([batch.x, batch.a, batch.z, batch.y]))
    assert np.shares_memory(batch.table, batch.z)
    assert batch.weight.tolist() == [0, 1, 2, 3, 5, 6, 7, 8, 10, 11, 12, 13]


def test_long_runs_and_short_runs_are_copied_alike(rows_of):
    """Runs are copied by slices when they are long and by index when they are short."""
    lengths = [400, 1, 2, 1, 2, 300]
    episode = np.repeat(np.arange(6), lengths)
    step = np.concatenate([np.arange(n) for n in lengths])
    value = np.arange(len(step), dtype=float)
    columns = {"episode": episode, "step": step, "x0": value, "a0": -value, "z0": value**2}
    now = np.flatnonzero(np.diff(episode) == 0)
    for size in (len(step), 64, 5):
        rows, _ = rows_of(read_logs(columns, **ROLES), size=size)
        assert rows == [[t, -t, t**2, t + 1] for t in value[now]]


@pytest.mark.parametrize("size", SIZES)
def test_progress_counts_the_rows_of_a_pass(size):
    seen = []
    list(read_logs(make_rows(3, 5), **ROLES).watched(seen.append).batches(size=size))
    assert sum(seen) == 15
    assert max(seen) <= size


def test_a_negative_weight_is_refused():
    columns = {**make_rows(2, 4), "w": [1, 1, 1, 1, 1, -0.5, 1, 1]}
    with pytest.raises(DataError, match=r"weight column 'w' holds -0.5"):
        read_logs(columns, **ROLES, weight="w").to_batch()


def test_weights_that_are_all_zero_are_refused():
    columns = {**make_rows(2, 4), "w": np.zeros(8)}
    with pytest.raises(DataError, match="weight column 'w' is zero in every row"):
        read_logs(columns, **ROLES, weight="w").to_batch()
    columns["w"] = np.r_[0, 0, 1, np.zeros(5)]
    assert read_logs(columns, **ROLES, weight="w").to_batch().weight.sum() == 1


@pytest.mark.parametrize("copied", ["x1", "a0"])
def test_an_instrument_that_copies_a_column_is_refused(copied):
    columns = make_rows()
    role = "state" if copied == "x1" else "action"
    copy = {**columns, "z1": columns[copied]}
    fact = f"instrument column 'z1' equals the {role} column '{copied}' in every row"
    with pytest.raises(DataError, match=fact):
        list(read_logs(copy, **ROLES).batches(size=7))
    almost = columns[copied].copy()
    almost[-2] += 1e-9  # the last row of an episode is in no transition
    list(read_logs({**columns, "z1": almost}, **ROLES).batches(size=7))


@pytest.mark.parametrize("seed", range(5))
def test_values_are_numbered_as_they_are_met_whatever_they_are(seed):
    """Whole numbers close together and far apart, of several widths, and text, in any order."""
    rng = np.random.default_rng(seed)
    for _ in range(20):
        columns = []
        for kind in rng.integers(4, size=rng.integers(1, 6)):
            near, far = rng.integers(-50, 60, size=30), rng.integers(-(10**12), 10**12, size=30)
            columns.append(
                pa.array((near, far, near.astype(np.int16), [f"v{i}" for i in near])[kind])
            )
        numbers, known = Numbers(), {}
        for column in columns:
            expected = [known.setdefault(value, len(known)) for value in column.to_pylist()]
            assert numbers.of(column).tolist() == expected
            assert (len(numbers), numbers.values) == (len(known), tuple(known))


@pytest.mark.parametrize("shift", [0.0, 3.0])
@pytest.mark.parametrize("factor", [1000.0, -0.1])
def test_an_instrument_that_is_a_multiple_of_an_action_is_refused(factor, shift):
    rows = make_rows()
    rows["z0"] = shift + factor * rows["a0"]
    with pytest.raises(DataError, match="'a0' in every row, or a multiple of it"):
        read_logs(rows).to_batch()
    rows["z0"][7] += 1e-3
    assert len(read_logs(rows).to_batch())


def test_an_empty_action_may_mean_that_none_was_given():
    table = make_rows(4, 5)
    table["a0"] = [None if value < 0 else value for value in table["a0"].tolist()]
    with pytest.raises(DataError, match="if an empty a0 means that none was given, write 0 there"):
        read_logs(table).to_batch()
    table = make_rows(4, 5)
    table["z0"][3] = np.nan
    with pytest.raises(DataError, match=r"or repair them$"):
        read_logs(table).to_batch()


@pytest.mark.parametrize("location", [0.0, 1e6, 1.7e12])
def test_an_instrument_far_from_zero_is_no_multiple_of_the_action(location):
    rng = np.random.default_rng(4)
    x, a, z = rng.normal(size=(3, 400))
    data = {"x": x, "a": a, "next_x": x + a, "z": z + location}
    roles = {"state": "x", "action": "a", "instrument": "z", "next_state": "next_x"}
    assert len(read_logs(data, **roles).to_batch()) == 400
    for factor in (1.0, -0.3, 40.0):
        with pytest.raises(DataError, match="'a' in every row, or a multiple of it"):
            read_logs(data | {"z": factor * a + location}, **roles).to_batch()
