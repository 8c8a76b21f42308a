"""Episodes that several columns make together: in memory, on disk, in order or not, saved."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers import OPTIONS, ROLES, assert_refused, changed, make_rows, run, take, write_table
from ivvi import estimate, load_fit, read_logs, update
from ivvi.errors import ColumnError, DataError
from ivvi.logs import sorting

PARTS = ("store", "brand")
STORE = np.repeat([9, 9, 9, 10, 10, 10], 10)  # "10" comes before "9" as text
BRAND = np.repeat(["a", "b+", "b\\+"] * 2, 10)
COLUMNS = make_rows(6, 10) | {"store": STORE, "brand": BRAND}
BARE = {name: column for name, column in COLUMNS.items() if name != "episode"}
SHUFFLED = np.random.default_rng(5).permutation(60)


def placed(columns, place, folder):
    """Return the columns, or a file that holds them in small row groups."""
    if place == "memory":
        return columns
    settings = {"row_group_size": 7} if place == "parquet" else {}
    return write_table(columns, folder / f"log.{place}", **settings)


@pytest.mark.parametrize("place", ["memory", "parquet", "csv"])
@pytest.mark.parametrize("order", [np.arange(60), SHUFFLED], ids=["in order", "shuffled"])
@pytest.mark.parametrize("episode", [PARTS, "store,brand"])
def test_two_columns_make_the_episodes(episode, order, place, tmp_path, rows_of):
    log = read_logs(placed(take(BARE, order), place, tmp_path), **ROLES, episode=episode)
    expected = read_logs(COLUMNS, **ROLES)
    assert rows_of(log, size=8) == rows_of(expected)
    assert len(np.unique(log.to_batch(episodes=True).episode)) == 6


def test_a_log_in_order_of_the_parts_is_not_sorted(tmp_path, monkeypatch, rows_of):
    monkeypatch.setattr("ivvi.logs.log.sort_table", None)
    log = read_logs(placed(BARE, "parquet", tmp_path), **ROLES, episode=PARTS)
    assert rows_of(log, size=4) == rows_of(read_logs(COLUMNS, **ROLES))


def test_order_looks_at_each_part(tmp_path):
    path = placed(BARE, "parquet", tmp_path)
    table = read_logs(path, **ROLES, episode=PARTS).table
    assert sorting.is_ordered(table, ("store", "brand", "step"))
    assert not sorting.is_ordered(table, ("brand", "store", "step"))
    assert not sorting.is_ordered(table, ("store", "step"))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["a", "a+b"], ["b+c", "c"]),
        (["a\\", "a"], ["+b", "\\+b"]),
        ([1.0, 1.5], [1, 1]),
        ([True, False], [1, 1]),
        ([np.datetime64("2024-01-01"), np.datetime64("2024-01-02")], ["x", "x"]),
    ],
)
def test_different_values_are_different_episodes(one, other):
    columns = make_rows(2, 3)
    columns |= {"one": np.repeat(one, 3), "other": np.repeat(other, 3)}
    log = read_logs(columns, **ROLES, episode=("one", "other"))
    assert len(np.unique(log.to_batch(episodes=True).episode)) == 2


def test_with_next_states_any_order_will_do(tmp_path, rows_of):
    columns = take(BARE | {"y": COLUMNS["x0"]}, SHUFFLED)
    roles = ROLES | {"next_state": "y", "episode": PARTS}
    walk = read_logs(placed(columns, "csv", tmp_path), **roles).batches(episodes=True)
    batches = list(walk)
    assert walk.counts.episodes == 6
    assert sum(map(len, batches)) == 60


def test_a_step_twice_in_an_episode_is_refused(tmp_path):
    twice = changed(BARE, step={3: 2})
    for place in ("memory", "parquet"):
        with pytest.raises(DataError, match=r"episode '9\+a' has step 2 twice"):
            read_logs(placed(twice, place, tmp_path), **ROLES, episode=PARTS).to_batch()


@pytest.mark.parametrize("place", ["memory", "parquet", "csv"])
def test_a_row_without_a_part_is_of_no_episode(place, tmp_path):
    log = read_logs(placed(changed(BARE, store={4: None}), place, tmp_path), **ROLES, episode=PARTS)
    with pytest.raises(DataError, match=r"1 missing .* column 'store\+brand', row 4"):
        log.to_batch()


def test_a_part_may_be_a_cluster(tmp_path):
    path = placed(BARE, "parquet", tmp_path)
    clustered = read_logs(path, **ROLES, episode=PARTS).clustered("brand").to_batch(episodes=True)
    assert [len(np.unique(clustered.clusters[0])), len(np.unique(clustered.episode))] == [3, 6]


def test_a_copy_has_the_columns_of_the_log(tmp_path):
    log = read_logs(placed(BARE, "parquet", tmp_path), **ROLES, episode=PARTS)
    log.to_parquet(tmp_path / "copy.parquet")
    assert pq.read_table(tmp_path / "copy.parquet").equals(pa.table(BARE))


def test_a_filter_and_two_columns_go_together(tmp_path, rows_of):
    for place in ("memory", "parquet", "csv"):
        log = read_logs(
            placed(BARE, place, tmp_path), **ROLES, episode=PARTS, where="store == 10 or step > 4"
        )
        expected = read_logs(COLUMNS, **ROLES, where="episode >= 3 or step > 4")
        assert rows_of(log, size=8) == rows_of(expected)


@pytest.mark.parametrize(
    ("episode", "columns", "fact"),
    [
        ("store,bran", {}, "episode column 'bran' is not in the log; did you mean 'brand'"),
        ("store,store", {}, "column 'store' is given twice as episode"),
        (
            "store,brand",
            {"store+brand": STORE},
            r"'store\+brand', made of store and brand, has the name of an existing column",
        ),
        ("store,odd", {"odd": [b"x"] * 60}, "'odd' .*binary; expected numbers, text or dates"),
        ("store,odd", {"odd": [[1]] * 60}, "'odd' .*list.*; expected numbers, text or dates"),
    ],
)
def test_what_makes_no_episodes_is_refused(episode, columns, fact):
    with pytest.raises(ColumnError, match=fact):
        read_logs(pa.table({**BARE, **columns}), **ROLES, episode=episode)


# What is saved, and the shell


def two_logs(folder):
    paths = []
    for seed in (0, 1):
        columns = make_rows(30, 20, d=1, seed=seed)
        number = columns.pop("episode") + 30 * seed
        columns |= {"store": number // 4, "brand": number % 4}
        paths.append(write_table(columns, folder / f"{seed}.csv"))
    return paths


def test_a_model_remembers_its_episodes(tmp_path):
    old, new = two_logs(tmp_path)
    model = tmp_path / "model"
    words = ("--episode", "store,brand", "--keep-episodes", "--out", model)
    result = run("fit", old, *OPTIONS, *words, "--json", "-")
    assert result.code == 0, result
    facts = json.loads(result.out)
    assert facts["episodes"] == 30
    assert facts["clusters"] == {"store+brand": 30}
    assert load_fit(model).roles.episode_parts == PARTS
    added = update(model, new)
    both = estimate(read_logs(tmp_path / "*.csv", **ROLES, episode=PARTS), episodes=True)
    np.testing.assert_allclose(added.W, both.W, rtol=1e-9)
    np.testing.assert_allclose(added.se, both.se, rtol=1e-6)
    assert run("update", model, new).code == 0
    assert load_fit(model).counts.episodes == 60


@pytest.mark.parametrize("verb", ["diagnose", "check", "interval", "moments"])
def test_every_verb_that_reads_a_log_takes_several_columns(verb, tmp_path):
    path, _ = two_logs(tmp_path)
    more = {"interval": ("--output", "next_x0", "--feature", "a0")}
    more["moments"] = ("--out", tmp_path / "sums")
    result = run(verb, path, *OPTIONS, "--episode", "store,brand", *more.get(verb, ()))
    assert result.code == 0, result


def test_the_shell_names_the_column_that_is_not_there(tmp_path):
    path, _ = two_logs(tmp_path)
    words = ("--episode", "store,bran", "--out", tmp_path / "model")
    assert_refused(run("fit", path, *OPTIONS, *words), "episode column 'bran'", "'brand'")
