"""Minari data sets as logs and logs as Minari data sets."""

import warnings

import minari
import numpy as np
import pyarrow as pa
import pytest
from gymnasium.spaces import Box, Dict
from minari.data_collector import EpisodeBuffer

from helpers import ROLES, make_rows, run, take
from ivvi import estimate, read_logs
from ivvi.errors import ColumnError, DataError, FileError
from ivvi.logs import Counts
from ivvi.logs.tables import minari as minari_module

COLUMNS = make_rows(5, 4)


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))


def box(width):
    return Box(-np.inf, np.inf, (width,), np.float64)


def episodes_with(place, key):
    """Return the buffers of the log, with the instrument under `key` of infos or observation."""
    x, a, z = (np.column_stack([COLUMNS[f"{name}{i}"] for i in range(2)]) for name in "xaz")
    for number in range(5):
        all_, steps = slice(4 * number, 4 * number + 4), slice(4 * number, 4 * number + 3)
        inside = place == "observation"
        yield EpisodeBuffer(
            id=number,
            observations={"state": x[all_], key: z[all_]} if inside else x[all_],
            actions=a[steps],
            rewards=COLUMNS["reward"][steps].tolist(),
            terminations=[False, False, True],
            truncations=[False] * 3,
            infos={key: z[all_], "other": np.zeros((4, 1))} if place == "infos" else {},
        )


def create(place, key="z"):
    spaces = Dict({"state": box(2), key: box(2)}) if place == "observation" else box(2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about authors and descriptions
        return minari.create_dataset_from_buffers(
            "test/log-v0",
            list(episodes_with(place, key)),
            observation_space=spaces,
            action_space=box(2),
            data_format="arrow",
        )


@pytest.mark.parametrize("by_name", [True, False], ids=["by name", "by object"])
@pytest.mark.parametrize("key", ["z", "instrument"])
@pytest.mark.parametrize("place", ["infos", "observation"])
def test_the_instrument_is_found_in_infos_and_in_the_observation(place, key, by_name, rows_of):
    dataset = create(place, key)
    wanted, _ = rows_of(read_logs(COLUMNS, **ROLES, reward="reward"))
    log = read_logs("minari:test/log-v0" if by_name else dataset, reward="reward")
    rows, counts = rows_of(log, size=2)
    assert rows == wanted
    assert counts == Counts(rows=15, transitions=15, episodes=5)
    assert (log.num_rows, log.label) == (15, "minari:test/log-v0")
    assert log.roles.next_state == ("next_x0", "next_x1")


@pytest.mark.parametrize("at_once", [1, 2, 64])
def test_a_log_survives_being_written_as_minari(at_once, monkeypatch, rows_of):
    monkeypatch.setattr(minari_module, "EPISODES_AT_ONCE", at_once)
    log = read_logs(take(COLUMNS, range(19, -1, -1)), **ROLES, reward="reward")
    dataset = log.to_minari("test/log-v0", description="a test")
    assert dataset.total_episodes == 5
    again = read_logs("minari:test/log-v0", reward="reward")
    assert rows_of(again, numbered=True)[0] == rows_of(log, numbered=True)[0]


def test_a_gap_in_the_steps_makes_no_transition(rows_of):
    """Also where the gap falls between two batches, and where a step was dropped."""
    kept = [t for t in range(20) if t not in (1, 6, 12)]
    columns = take(COLUMNS, kept)
    columns["x0"] = pa.array([None if i == 14 else v for i, v in enumerate(columns["x0"])])
    log = read_logs(columns, **ROLES, drop_missing=True)
    log.to_minari("test/log-v0")
    assert rows_of(read_logs("minari:test/log-v0"))[0] == rows_of(log)[0]
    assert len(rows_of(log)[0]) == 20 - 5 - 5 - 2


def test_episodes_that_seem_to_go_on_are_kept_apart(rows_of):
    """The last next state of each is the first state of the next."""
    still = {**COLUMNS, "x0": np.zeros(20), "x1": np.ones(20)}
    log = read_logs(still, **ROLES)
    assert log.to_minari("test/log-v0").total_episodes == 5
    assert rows_of(read_logs("minari:test/log-v0"))[0] == rows_of(log)[0]


def test_next_states_that_are_no_next_rows_are_kept(rows_of):
    columns = {**COLUMNS, "y0": COLUMNS["x0"] + 1, "y1": COLUMNS["x1"] - 1}
    log = read_logs(columns, **ROLES, next_state="y*")
    log.to_minari("test/log-v0")
    assert rows_of(read_logs("minari:test/log-v0"))[0] == rows_of(log)[0]


def test_episodes_that_interleave_are_written_whole(rows_of):
    """Next states stand in columns, so that nothing else needs the rows in order."""
    after = {f"y{i}": np.append(COLUMNS[f"x{i}"][1:], 0.0) for i in range(2)}
    rows = take({**COLUMNS, **after}, np.argsort(COLUMNS["step"], kind="stable"))
    log = read_logs(rows, **ROLES, next_state="y*")
    assert log.to_minari("test/log-v0").total_episodes == 5
    assert rows_of(read_logs("minari:test/log-v0"))[0] == rows_of(log)[0]


def test_the_command_line_reads_minari(tmp_path):
    create("infos")
    result = run("fit", "minari:test/log-v0", "--out", tmp_path / "model")
    assert (result.code, "15 transitions of 5 episodes" in result.out) == (0, True)


def test_a_data_set_without_instrument_is_refused():
    create("nowhere")
    fact = r"infos of minari:test/log-v0 holds \[\]; expected 'z' or 'instrument'"
    with pytest.raises(ColumnError, match=fact):
        read_logs("minari:test/log-v0")


def test_a_data_set_that_is_not_there_is_refused():
    with pytest.raises(FileError, match="minari:test/none-v0 is not a local Minari data set"):
        read_logs("minari:test/none-v0")


@pytest.mark.parametrize("name", ["no version", "test/log-v0"])
def test_a_minari_name_that_cannot_be_written_is_refused(name):
    create("infos")
    with pytest.raises(FileError, match=f"cannot write the Minari data set '{name}'"):
        read_logs(COLUMNS, **ROLES).to_minari(name)


def test_only_logs_of_whole_states_are_written():
    log = read_logs(COLUMNS, state="x0", action="a0", instrument="z0", next_state="x0,x1")
    with pytest.raises(ColumnError, match="the next state must have the same columns"):
        log.to_minari("test/log-v0")


def test_nothing_is_written_of_a_log_without_transitions(tmp_path):
    with pytest.raises(DataError, match="none of the 3 rows"):
        read_logs(take(COLUMNS, [0, 4, 8]), **ROLES).to_minari("test/log-v0")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore:.* rows are dropped only because")
def test_weights_episodes_and_gaps_survive(tmp_path):
    """The fit of the data set is that of the log: same weights, same clusters."""
    rows = make_rows(12, 20, seed=3)
    rows["w"] = np.random.default_rng(0).uniform(0.5, 2, 240)
    log = read_logs(take(rows, [t for t in range(240) if t % 13 != 5]), **ROLES, weight="w")
    dataset = log.to_minari("test/log-v0")
    assert dataset.total_episodes > 12  # Minari knows no gaps
    again = read_logs("minari:test/log-v0", weight="weight")
    fits = [estimate(source) for source in (log, again)]
    assert [fit.counts.episodes for fit in fits] == [12, 12]
    for name in ("W", "se"):
        np.testing.assert_allclose(*(getattr(fit, name) for fit in fits), rtol=1e-12)
