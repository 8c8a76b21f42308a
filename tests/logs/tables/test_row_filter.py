"""Filters of rows: what they keep, what they leave as gaps, and what is refused."""

import json
import pickle
import tempfile

import numpy as np
import pyarrow as pa
import pytest

from helpers import assert_refused, changed, make_rows, run, take, write_table
from ivvi import InputError, estimate, load_fit, read_logs, update
from ivvi.errors import ColumnError, DataError
from ivvi.logs.tables.row_filter import RowFilter

ROLES = {"state": "x*", "action": "a?", "instrument": "z*"}
OPTIONS = [word for role, columns in ROLES.items() for word in (f"--{role}", columns)]
AGE = np.arange(60) % 40
WARD = np.array(["ICU", "it's", "C"])[np.arange(60) % 3]
DIED = np.arange(60) % 4 == 0
DAY = np.datetime64("2024-01-01") + np.arange(60)
COLUMNS = make_rows(6, 10) | {
    **{"age": AGE, "ward": WARD, "died": DIED, "day": DAY, "Price paid": AGE + 0.5},
}
KEEP = {
    "age >= 18 and ward != 'ICU'": (AGE >= 18) & (WARD != "ICU"),
    "age > 3 or ward == 'C' and died": (AGE > 3) | ((WARD == "C") & DIED),
    "(age > 3 or ward == 'C') and died": ((AGE > 3) | (WARD == "C")) & DIED,
    "not died": ~DIED,
    "died == True": DIED,
    "died != 1": ~DIED,
    "5 < age <= 20": (AGE > 5) & (AGE <= 20),
    "20 > age": AGE < 20,
    "-1 < x0 and x0 < +1": np.abs(COLUMNS["x0"]) < 1,
    "x0 < x1": COLUMNS["x0"] < COLUMNS["x1"],
    "ward in ('ICU', 'C')": WARD != "it's",
    'ward not in ["ICU", "C"]': WARD == "it's",
    'ward == "it\'s"': WARD == "it's",
    "age in {3, 4.0}": (AGE == 3) | (AGE == 4),
    "`Price paid` > 9.5": AGE > 9,
    "ward != '`C`' and age < 1e30": np.ones(60, bool),
    "day >= '2024-02-01'": np.datetime64("2024-02-01") <= DAY,
    " age\n< 7 ": AGE < 7,
}


@pytest.mark.parametrize("place", ["memory", "parquet", "csv"])
@pytest.mark.parametrize("text", KEEP)
def test_rows_that_pass_are_kept(text, place, tmp_path):
    path = COLUMNS if place == "memory" else write_table(COLUMNS, tmp_path / f"log.{place}")
    kept = read_logs(path, **ROLES, where=text).to_arrow()
    has_next = np.arange(60) % 10 != 9
    expected = pa.table(COLUMNS).filter(pa.array(KEEP[text] & has_next))
    for name in ("episode", "step", "x0", "z1"):
        assert kept[name].to_pylist() == expected[name].to_pylist()


@pytest.mark.parametrize("size", [1, 4, 1000])
@pytest.mark.parametrize("place", ["memory", "parquet", "csv"])
def test_a_removed_row_is_still_the_next_state_of_the_row_before_it(place, size, tmp_path, rows_of):
    path = COLUMNS if place == "memory" else write_table(COLUMNS, tmp_path / f"log.{place}")
    keep = AGE % 5 != 2
    log = read_logs(path, **ROLES, where="age not in (2, 7, 12, 17, 22, 27, 32, 37)")
    rows, counts = rows_of(log, size=size)
    pairs = [i for i in range(59) if keep[i] and i % 10 != 9]
    x = np.column_stack([COLUMNS["x0"], COLUMNS["x1"]])
    assert sorted(row[:2] + row[6:] for row in rows) == sorted([*x[i], *x[i + 1]] for i in pairs)
    assert (counts.without_next, counts.transitions) == (keep.sum() - len(pairs), len(pairs))


def confounded_panel(episodes=500, length=8, seed=0):
    """x' = 0.6 x - 0.5 a + u + e, where u moves a too."""
    rng = np.random.default_rng(seed)
    x, parts = rng.normal(size=episodes), []
    for step in range(length):
        z, u, e, v = rng.normal(size=(4, episodes))
        a = 0.7 * z + 0.3 * x + u + 0.3 * v
        parts.append({"episode": np.arange(episodes), "step": step + 0 * z.astype(int)})
        parts[-1] |= {"x0": x, "a0": a, "z0": z}
        x = 0.6 * x - 0.5 * a + u + 0.5 * e
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


@pytest.mark.parametrize("lags", [0, 1])
def test_a_filter_on_a_state_does_not_select_on_the_outcome(lags):
    fit = estimate(read_logs(confounded_panel(), where="x0 < 0.5", lags=lags))
    effect = fit.to_json()["phi"].index("a0")
    assert abs(fit.W[0, effect] + 0.5) < 4 * fit.se[0, effect]
    assert fit.dropped["without next state"] > 0


def test_a_filter_on_facts_of_an_episode_removes_whole_episodes():
    columns = confounded_panel(60) | {"age": np.arange(480) % 60 + 20}
    log = read_logs(columns, where="age < 40")
    assert log.roles.derived
    assert log.num_rows == 20 * 8


def test_a_row_whose_next_state_is_missing_in_a_removed_row_has_none():
    columns = make_rows(2, 4) | {"age": [1, 1, 5, 1, 1, 1, 1, 1]}
    columns["x0"] = [0.0, 1.0, np.nan, 3.0, 4.0, 5.0, 6.0, 7.0]
    log = read_logs(columns, **ROLES, where="age < 3")
    assert log.to_batch().y[:, 0].tolist() == [1.0, 5.0, 6.0, 7.0]


def test_an_episode_that_ended_needs_no_next_state_where_rows_are_filtered():
    columns = make_rows(4, 3) | {"age": np.arange(12) % 5}
    for end in ([0, 0, 1, 0, 0, 0] * 2, ["", "", "died", "", "", ""] * 2):
        log = read_logs(columns | {"end": end}, **ROLES, where="age < 4", terminal="end")
        walk = log.batches()
        assert sum(map(len, walk)) == 8
        assert (walk.counts.ended, walk.counts.without_next) == (2, 2)


def test_rows_that_only_the_filter_tells_apart_are_refused_with_the_remedy():
    columns = make_rows(4, 3)
    both = {name: np.append(one, one) for name, one in columns.items()}
    both["store"] = np.repeat(["A", "B"], 12)
    with pytest.raises(DataError, match=r"twice.*--episode episode,COLUMN"):
        read_logs(both, **ROLES, where="store == 'A'")
    log = read_logs(both, **ROLES, episode=("episode", "store"), where="store == 'A'")
    assert log.to_batch().x.tolist() == read_logs(columns, **ROLES).to_batch().x.tolist()


def test_a_level_that_the_filter_removes_is_named_with_the_remedy():
    columns = confounded_panel(60)
    columns["ward"] = np.where(columns["x0"] > 1, "ICU", np.where(columns["x0"] > 0, "A", "B"))
    words = {"action": "a0", "instrument": "z0", "where": "ward != 'ICU'"}
    with pytest.raises(InputError, match="leave ward out of the states"):
        estimate(read_logs(columns, state="x0,ward", **words))
    assert estimate(read_logs(columns, state="x0", **words)).counts.transitions > 100


@pytest.mark.parametrize(
    ("where", "words", "named"),
    [
        ("a0 > 0 and x0 < 2", {}, "a0"),
        ("died == 0", {"terminal": "died"}, "died"),
        ("age > 3", {"reward": "age"}, "age"),
        ("x0 < 1", {"seen": "after", "step": "step"}, "x0"),
        ("x0 < 1 and z0 > -2 and step > 1", {"reward": "age"}, ""),
    ],
)
def test_a_filter_on_what_the_instrument_moves_is_named(where, words, named):
    ended = np.arange(60) % 10 == 9
    notes = read_logs(COLUMNS | {"died": ended}, **ROLES, where=where, **words).notes
    assert [f"chooses rows by {named}, which" in note for note in notes] == [True] * bool(named)


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_a_filtered_log_in_no_order_is_sorted_on_disk(ending, tmp_path, rows_of, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    shuffled = take(COLUMNS, np.random.default_rng(0).permutation(60))
    path = write_table(shuffled, tmp_path / f"log.{ending}")
    expected = read_logs(COLUMNS, **ROLES, where="ward != 'C' or age > 20")
    log = read_logs(path, **ROLES, where="ward != 'C' or age > 20")
    assert rows_of(log, numbered=True) == rows_of(expected, numbered=True)


@pytest.mark.parametrize("text", ["age < 20", "not age >= 20", "age != 3", "not age == 3"])
@pytest.mark.parametrize("hole", [None, float("nan")])
def test_a_row_without_the_value_is_removed(text, hole, tmp_path):
    ages = pa.array([hole, 1.0, 2.0, 4.0, *[5.0] * 56])
    log = read_logs(write_table({**COLUMNS, "age": ages}, tmp_path / "l.parquet"), where=text)
    assert log.to_arrow().num_rows == 60 - 1 - 6  # and the last row of each of 6 episodes


def test_missing_values_of_removed_rows_do_no_harm(rows_of):
    holes = changed(COLUMNS, x0={3: None, 43: None})
    log = read_logs(holes, **ROLES, where="age != 3")
    assert rows_of(log)[1].missing == 0
    with pytest.raises(DataError, match="where age >= 3 has 2 missing"):
        read_logs(holes, **ROLES, where="age >= 3").to_batch()


def test_batches_are_never_empty_and_bounded(tmp_path):
    path = write_table(COLUMNS, tmp_path / "log.parquet", row_group_size=6)
    table = read_logs(path, **ROLES, reward="age", next_state="x*", where="age > 35").table
    sizes = [block.num_rows for block in table.batches(["x0"], ["x0"], 3)]
    assert sum(sizes) == 4
    assert 0 < min(sizes) <= max(sizes) <= 3


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_a_pass_goes_on_where_an_earlier_one_stood(ending, tmp_path):
    log = read_logs(write_table(COLUMNS, tmp_path / f"log.{ending}"), **ROLES, where="age != 4")
    walk = log.batches(size=8, episodes=True)
    batches = iter(walk)
    first = [next(batches), next(batches)]
    rest = list(log.batches(size=8, episodes=True, start=walk.position))
    whole = log.to_batch(episodes=True)
    for name in ("x", "y", "episode"):
        found = np.concatenate([getattr(batch, name) for batch in (*first, *rest)])
        assert np.array_equal(found, getattr(whole, name))


def test_a_filter_can_be_sent_to_a_worker():
    rows = pa.record_batch({"age": pa.array([1, 30])})
    there = pickle.loads(pickle.dumps(RowFilter.of("age > 3", rows.schema, "log")))
    assert there.keeps(rows).to_pylist() == [False, True]


# What is refused

UNREADABLE = {
    "age >=": "at its end",
    "age = 3": "at character 5",
    "age > 3; died": "at character 8",
    "ward == 'C": "at character 9",
    "f(age) > 3": "at character 1",
    "died and age.real > 3": "at character 10",
    "age > 10 ** 3": "at character 7",
    "ward == 'é' and __import__('os')": "at character 17",
    "`Price paid` > 3 and [1]": "at character 22",
    "age": "at character 1",
    "1 < 2": "at character 1",
    "age is 3": "at character 8",
    "age in 3": "at character 8",
    "age in ()": "at character 8",
    "x0 == None": "at character 7",
    "age > -'a'": "at character 7",
    "age > " + "9" * 400: "at character 7",
    "(" * 500 + "died" + ")" * 500: "does not parse",
    "not " * 20000 + "died": "does not parse",
    "": "at its end",
}
UNFIT = {
    "agee > 3": ("'agee', which is not a column", "did you mean 'age'"),
    "`Price` > 3": ("'Price', which is not a column",),
    "ward > 3": ("compares text with numbers at character 1", "'ward'"),
    "age > 3 and ward == died": ("text with numbers at character 13",),
    "age in (1, 'b')": ("numbers with text",),
    "day > 'soon'": ("does not fit the columns", "'soon'"),
}


@pytest.mark.parametrize("text", UNREADABLE)
def test_what_does_not_parse_is_refused_with_its_place(text):
    with pytest.raises(InputError, match="does not parse") as refused:
        read_logs(COLUMNS, **ROLES, where=text)
    assert UNREADABLE[text] in str(refused.value)


@pytest.mark.parametrize("text", UNFIT)
def test_what_does_not_fit_the_columns_is_refused(text):
    with pytest.raises(ColumnError) as refused:
        read_logs(COLUMNS, **ROLES, where=text)
    assert all(fact in str(refused.value) for fact in UNFIT[text])


@pytest.mark.parametrize("place", ["memory", "parquet", "csv", "shuffled parquet"])
def test_a_filter_that_keeps_no_row_is_refused(place, tmp_path):
    columns = take(COLUMNS, np.arange(60)[::-1]) if "shuffled" in place else COLUMNS
    path = columns
    if place != "memory":
        path = write_table(columns, tmp_path / f"log.{place.split()[-1]}")
    with pytest.raises(DataError, match="where age > 100 has no rows"):
        estimate(read_logs(path, **ROLES, where="age > 100"))


# In the shell, and in what is saved


UNLIKE = {"seconds", "files", "columns"}


@pytest.mark.parametrize("verb", ["fit", "diagnose", "check", "interval", "moments"])
def test_every_verb_that_reads_a_log_has_the_filter(verb, tmp_path):
    columns = make_rows(30, 20, d=1) | {"age": np.arange(600) % 40}
    path = write_table(columns, tmp_path / "log.csv")
    kept = pa.table(columns).filter(pa.array(columns["age"] >= 7))
    write_table(kept, tmp_path / "kept.csv")
    said = []
    for words in ((path, "--where", "age >= 7"), (tmp_path / "kept.csv",)):
        out = ("--out", tmp_path / "out", "--force") if verb in ("fit", "moments") else ()
        out += ("--output", "next_x0", "--feature", "a0") if verb == "interval" else ()
        result = run(verb, *words, *OPTIONS, *out, "--json", "-")
        assert result.code == 0, result
        facts = json.loads(result.out)
        said.append({k: v for k, v in facts.items() if k not in UNLIKE and ".csv" not in str(v)})
    assert len(said[0]) > 3
    assert str(said[0]) == str(said[1])


@pytest.mark.parametrize("text", ["age >=", "agee > 3", "age > 100"])
def test_the_shell_refuses_with_one_sentence(text, tmp_path):
    path = write_table(COLUMNS, tmp_path / "log.parquet")
    result = run("fit", path, *OPTIONS, "--where", text, "--out", tmp_path / "model")
    assert_refused(result, text)
    assert not (tmp_path / "model").exists()


def test_the_filter_of_a_model_is_that_of_its_updates(tmp_path):
    old, new = (make_rows(20, 20, seed=seed) | {"age": np.arange(400) % 40} for seed in (0, 1))
    model = tmp_path / "model"
    path, later = (
        write_table(columns, tmp_path / f"{name}.csv") for columns, name in ((old, "a"), (new, "b"))
    )
    assert run("fit", path, *OPTIONS, "--where", "age >= 7", "--out", model).code == 0
    assert load_fit(model).roles.where == "age >= 7"
    n = update(model, later).moments.n
    assert n == 2 * load_fit(model).moments.n
    fewer = update(model, later, where="age >= 20").moments.n - n // 2
    result = run("update", model, later, "--where", "age >= 20", "--json", "-")
    assert result.code == 0, result
    assert 0 < json.loads(result.out)["added"] == fewer < n // 2


def test_numbers_beyond_the_signed_ones_are_compared():
    rows = pa.table({"id": pa.array([2**63 + 4096, 5, None], pa.uint64())})
    row_filter = RowFilter.of("id > 7", rows.schema, "log")
    assert row_filter.keeps(rows.to_batches()[0]).to_pylist() == [True, False, None]
    small = pa.table({"id": pa.array([9, 5, None], pa.uint64())})
    assert row_filter.keeps(small.to_batches()[0]).to_pylist() == [True, False, None]
