"""Simulators: what the log shows, what it hides, and what a seed fixes."""

import math

import jax.numpy as jnp
import numpy as np
import pyarrow.parquet as pq
import pytest

import ivvi
from ivvi import InputError
from ivvi.simulators import confounded_env as env_module
from world_checks import assert_covariance, correlations, true_mean

SMALL = {"episodes": 20, "horizon": 50}
WATCHED = {"episodes": 60, "horizon": 100}
LOGS = {  # name, dimension, setting, size
    "linear": ("linear", 5, "I", {}),
    "linear, Toeplitz": ("linear", 2, "IV", SMALL),
    "nonlinear": ("nonlinear", 1, "I", {}),
    "recommender": ("recommender", None, "II", WATCHED),
    "recommender-revised": ("recommender-revised", None, "I", WATCHED),
}


@pytest.fixture(params=LOGS, name="case")
def log_and_world(request, simulated, simulator):
    name, dim, setting, size = LOGS[request.param]
    log = simulated(name, dim, setting, **size)
    return request.param, log.to_batch(), log, simulator(name, dim, setting).world


COVARIANCES = {
    "linear": np.eye(5) + 0.3 * (np.eye(5, k=1) + np.eye(5, k=-1)),
    "linear, Toeplitz": np.array([[1.0, -0.5], [-0.5, 1.0]]),
    "nonlinear": np.eye(1),
    "recommender": np.eye(10),
    "recommender-revised": np.eye(10),
}


# what a log shows


def test_log_shows_no_confounder(case):
    name, batch, log, world = case
    k, d_a, d_z = world.d_x, world.d_a, world.d_z
    expected = ["episode", "step", *(f"x{i}" for i in range(k)), *(f"a{i}" for i in range(d_a))]
    expected += [*(f"z{i}" for i in range(d_z)), "reward", *(f"next_x{i}" for i in range(k))]
    assert log.table.schema.names == expected
    e = batch.y - true_mean(world, batch)
    assert_covariance(e, COVARIANCES[name])
    for column in np.column_stack([batch.x, batch.a, batch.z]).T:
        assert not np.isclose(e, column[:, None], atol=1e-6).all(axis=0).any()


def test_actions_are_confounded_and_instruments_are_not(case):
    """x' - F(x, a) moves with the action, and neither with the instrument nor the state."""
    name, batch, _, world = case
    e = batch.y - true_mean(world, batch)
    bound = 5 / np.sqrt(len(e))
    z = batch.z[:, batch.z.std(axis=0) > 0]
    assert np.abs(correlations(e, z)).max() < bound
    assert np.abs(correlations(e, batch.x)).max() < bound
    own = np.diag(correlations(e, batch.a))
    sign = -1 if name.startswith("recommender") else 1
    assert (sign * own > bound).all()


def test_instruments_move_the_actions(case):
    name, batch, _, _ = case
    if name != "recommender-revised":  # there, some movies are recommended to nobody
        assert (np.diag(correlations(batch.z, batch.a)) > 5 / np.sqrt(len(batch))).all()


def test_true_weights_are_the_true_mean(case):
    name, batch, _, world = case
    if name == "nonlinear":
        assert world.W_star is None
        return
    Phi = np.column_stack([np.ones(len(batch)), batch.x, batch.a])
    np.testing.assert_allclose(Phi @ world.W_star.T, true_mean(world, batch), atol=1e-10)


def test_rows_follow_each_other(case):
    _, batch, log, world = case
    table = log.to_arrow()
    episode, step = table["episode"].to_numpy(), table["step"].to_numpy()
    horizon = step.max() + 1
    np.testing.assert_array_equal(step, np.tile(np.arange(horizon), episode.max() + 1))
    np.testing.assert_array_equal(episode, np.repeat(np.arange(episode.max() + 1), horizon))
    inside = np.flatnonzero(step < horizon - 1)
    np.testing.assert_array_equal(batch.y[inside], batch.x[inside + 1])
    assert len(np.unique(batch.z.round(12), axis=0)) > 5
    first = batch.x[step == 0]
    assert (first == {"linear": 10.0, "nonlinear": 0.0}.get(world.name.split()[0], first)).all()


def test_rewards_are_those_of_the_paper(simulated, factors):
    for name, dim, setting, size in LOGS.values():
        log = simulated(name, dim, setting, **size)
        x = log.to_batch().x
        blocks = log.table.batches(["reward"], ["reward"], 1 << 20)
        reward = np.concatenate([np.asarray(block.column("reward")) for block in blocks])
        if name.startswith("recommender"):
            ratings = x @ (factors.V_tilde * factors.singular_values).T
            expected = np.clip(ratings, 0, 5).sum(axis=1)
        else:
            expected = -0.05 * (x**2).sum(axis=1)
        np.testing.assert_allclose(reward, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("name", "dim", "variance"), [("linear", 5, 2.7), ("nonlinear", 1, 2.0)])
def test_behaviour_clips_to_the_box(name, dim, variance, simulated):
    """a = clip(z + e + noise): how often it is clipped follows from the variances."""
    a = simulated(name, dim).to_batch().a
    assert np.abs(a).max() == 1.0
    chance = math.erfc(1 / math.sqrt(2 * variance))
    clipped = np.abs(a[:, 0]) == 1.0
    assert abs(clipped.mean() - chance) < 5 * math.sqrt(chance * (1 - chance) / len(a))


# seeds


@pytest.fixture(scope="module")
def fresh():
    """Return a simulator that shares nothing with the others."""
    return ivvi.make_env("linear", dim=2)


def test_the_seed_decides_the_log_bit_for_bit(simulator):
    env = simulator("linear", 2)
    one, two, other = (env.collect(**SMALL, seed=seed).to_arrow() for seed in (3, 3, 4))
    assert one.equals(two)
    assert not one.equals(other)


def test_fewer_episodes_are_the_beginning_of_more(simulator, fresh):
    many = simulator("linear", 2).collect(**SMALL, seed=5).to_arrow()
    few = fresh.collect(episodes=10, horizon=50, seed=5).to_arrow()
    assert few.equals(many.slice(0, 10 * 50))


def test_blocks_and_files_hold_the_same_rows(simulator, fresh, monkeypatch, tmp_path):
    whole = simulator("linear", 2).collect(**SMALL, seed=6)
    monkeypatch.setattr(env_module, "ROWS_AT_ONCE", 10 * 50)
    seen = []
    rows = fresh.write_log(tmp_path / "log.parquet", **SMALL, seed=6, progress=seen.append)
    assert seen == [500, 500]
    assert rows == 1000
    written = pq.read_table(tmp_path / "log.parquet")
    assert written.column_names == whole.table.schema.names
    columns = list(whole.roles.columns)
    assert written.select(columns).equals(whole.to_arrow().select(columns))


def test_jax_keeps_its_settings(simulated):
    simulated("linear", 2, **SMALL)
    assert jnp.ones(1).dtype == jnp.float32
    assert simulated("linear", 2, **SMALL).to_batch().x.dtype == np.float64


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ivvi.make_env("linaer"), "did you mean 'linear'"),
        (lambda: ivvi.make_env("maze"), "choose from"),
        (lambda: ivvi.make_env("linear", dim=0), "dimension is 0"),
        (lambda: ivvi.make_env("nonlinear", setting="VII"), "setting 'VII'"),
        (lambda: ivvi.make_env("recommender", dim=5), "10 categories"),
        (lambda: ivvi.make_env("linear").collect(episodes=0), "episodes is 0"),
        (lambda: ivvi.make_env("linear").collect(horizon=-1), "horizon is -1"),
        (lambda: ivvi.make_env("linear").rollout(lambda x: x, episodes=0), "episodes is 0"),
    ],
)
def test_wrong_settings_are_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()
