"""The horizon that is taken where none is given: the usual length of the log's episodes."""

import numpy as np
import pytest

import ivvi
from helpers import OPTIONS, ROLES, make_rows, run, take, write_table
from ivvi.dynamics.saved_model import model_from_parts
from ivvi.errors import FileError

REWARD = "quadratic:weight=1"


def rows_of(lengths, seed=0):
    """Return the columns of a log whose episodes have these lengths."""
    columns = make_rows(1, int(np.sum(lengths)), seed=seed)
    columns["episode"] = np.repeat(np.arange(len(lengths)), lengths)
    columns["step"] = np.concatenate([np.arange(length) for length in lengths])
    return columns


def model_of(columns, **roles):
    return ivvi.fit(ivvi.read_logs(columns, **ROLES, **roles)).model


def with_next(columns):
    """Add next-state columns, so that every row is a transition."""
    return columns | {f"y{i}": np.roll(columns[f"x{i}"], -1) for i in range(2)}


@pytest.mark.usefixtures("few_episodes")
def test_plans_values_and_environments_take_the_length_of_the_episodes(tmp_path):
    fit = ivvi.fit(ivvi.read_logs(make_rows(30, 9), **ROLES))  # nine rows show eight steps
    policy = ivvi.plan(fit, REWARD, (-1, 1), method="mpc", compare=False)
    assert policy.problem.horizon == 8
    worth = ivvi.value([0.0, 0.0], fit, reward=REWARD, against=("highest",), draws=20)
    assert worth.horizon == 8
    assert "horizon 8: the usual length of the log's episodes" in worth.summary()
    env = fit.model.as_env(REWARD, (-1, 1))
    env.reset(seed=0)
    steps = 1
    while not env.step(np.zeros(2))[3]:
        steps += 1
    assert steps == 8
    fit.save(tmp_path / "model")
    assert ivvi.load_model(tmp_path / "model").usual_horizon == fit.model.usual_horizon
    assert ivvi.load_fit(tmp_path / "model").model.length == 9


def test_the_command_says_where_the_horizon_comes_from(tmp_path):
    log = write_table(make_rows(30, 9), tmp_path / "log.parquet")
    assert run("fit", log, *OPTIONS, "--out", tmp_path / "model").code == 0
    settings = ("--reward", REWARD, "--action-low", -1, "--action-high", 1, "--method", "mpc")
    told = run("plan", tmp_path / "model", *settings, "--out", tmp_path / "policy")
    assert "horizon 8: the usual length of the log's episodes" in told.out
    asked = run("plan", tmp_path / "model", *settings, "--horizon", 3, "--out", tmp_path / "three")
    assert "usual length" not in asked.out


def test_a_few_long_episodes_do_not_count():
    model = model_of(rows_of([8] * 60 + [5] * 37 + [300] * 3))
    assert model.length == 8


def test_an_end_is_the_last_row_and_no_step_follows_it():
    columns = rows_of([5] * 40)
    died = np.zeros(200)
    died[4::10] = 1
    assert model_of(columns | {"died": died}, terminal="died").length == 5
    assert model_of(columns | {"died": np.tile([0, 0, 0, 0, 1], 40)}, terminal="died").length == 5


def test_episodes_that_go_on_tell_how_long_a_log_follows_them():
    lengths = np.array([2] * 95 + [9] * 5)
    died = np.zeros(lengths.sum())
    died[np.cumsum(lengths)[:95] - 1] = 1
    assert model_of(rows_of(lengths) | {"died": died}, terminal="died").length == 9


def test_rows_of_all_episodes_mixed_give_the_mean_length():
    columns = with_next(rows_of([3] * 10 + [8] * 10))
    mixed = take(columns, np.argsort(columns["step"], kind="stable"))
    assert model_of(mixed, next_state="y*").length == 6
    assert model_of(columns, next_state="y*").length == 8


def test_rows_that_name_no_episode_say_nothing_of_its_length():
    columns = with_next(make_rows())
    del columns["episode"], columns["step"]
    model = model_of(columns, next_state="y*")
    assert model.usual_horizon == (100, "the length of the log's episodes is not known")


def test_very_long_episodes_are_planned_for_a_thousand_steps():
    model = model_of(make_rows(2, 1501))
    assert model.usual_horizon == (1000, "the log's episodes are longer, 1,500 steps")


def test_sums_know_the_mean_length():
    log = ivvi.read_logs(make_rows(30, 8), **ROLES)
    assert ivvi.fit(ivvi.fit(log).shard).model.length == 8


def test_an_update_keeps_the_longer_episodes():
    short, long = (ivvi.read_logs(make_rows(30, n, seed=n), **ROLES) for n in (6, 9))
    with pytest.warns(ivvi.errors.IvviWarning, match="unadjusted"):
        assert ivvi.update(ivvi.fit(short), long).model.length == 9


@pytest.mark.usefixtures("few_episodes")
def test_the_return_of_shorter_episodes_is_not_compared_with_values():
    log = ivvi.read_logs(make_rows(30, 8), **ROLES)
    settings = {"reward": REWARD, "log": log, "draws": 20, "against": ("behaviour",)}
    worth = ivvi.value([0.0, 0.0], ivvi.fit(log), horizon=8, **settings)
    assert worth.gap is None
    assert "the recorded return is over 7 steps on average, and the values are over 8" in str(
        worth.summary()
    )
    assert ivvi.value([0.0, 0.0], ivvi.fit(log), **settings).gap is not None  # those recorded


def test_a_saved_length_below_zero_is_refused():
    document, arrays = model_of(make_rows()).parts()
    with pytest.raises(FileError, match="episodes have -3 steps"):
        model_from_parts(document | {"length": -3}, arrays)
