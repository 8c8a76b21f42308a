"""Simulators: what the log shows, what it hides, and what happens when we intervene."""

import dataclasses
import math

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pyarrow.parquet as pq
import pytest
from gymnasium.utils.env_checker import check_env

import ivvi
from ivvi.errors import InputError
from ivvi.simulators import ConfoundedEnv, World, gaussian, linear_world
from ivvi.simulators import env as env_module
from ivvi.simulators.catalogue import NAMES
from ivvi.simulators.recommender import ORIGINAL, REVISED

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


def true_mean(world, batch):
    with jax.enable_x64(True):
        return np.asarray(jax.vmap(world.transition)(jnp.asarray(batch.x), jnp.asarray(batch.a)))


def correlations(left, right):
    """Return the correlations of the columns, (d_left, d_right)."""
    left, right = (part - part.mean(axis=0) for part in (left, right))
    left, right = (part / np.sqrt((part**2).sum(axis=0)) for part in (left, right))
    return left.T @ right


def assert_covariance(sample, wanted):
    """Compare the covariance of Gaussian rows of mean zero, within 5 standard errors."""
    found = sample.T @ sample / len(sample)
    variance = np.diag(wanted)
    error = np.sqrt((np.outer(variance, variance) + wanted**2) / len(sample))
    assert (np.abs(found - wanted) < 5 * error).all(), np.abs(found - wanted) / error


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
    wanted = ["episode", "step", *(f"x{i}" for i in range(k)), *(f"a{i}" for i in range(d_a))]
    wanted += [*(f"z{i}" for i in range(d_z)), "reward", *(f"next_x{i}" for i in range(k))]
    assert log.table.schema.names == wanted
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
            wanted = np.clip(ratings, 0, 5).sum(axis=1)
        else:
            wanted = -0.05 * (x**2).sum(axis=1)
        np.testing.assert_allclose(reward, wanted, rtol=1e-10, atol=1e-10)


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


def test_same_seed_same_log_bit_for_bit(simulator):
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


# recommender


@pytest.mark.parametrize("name", ["recommender", "recommender-revised"])
def test_recommendations_have_a_fixed_total(name, simulated):
    batch = simulated(*LOGS[name][:3], **WATCHED).to_batch()
    assert (batch.z.sum(axis=1) == 10).all()
    assert (batch.z >= 0).all()
    assert set(np.unique(batch.a)) == {0.0, 1.0}


def assert_shares(z, chances):
    """Compare the mean of multinomial rows of total 10, within 5 standard errors."""
    chances = np.array(chances)
    error = np.sqrt(10 * chances * (1 - chances) / len(z))
    assert (np.abs(z.mean(axis=0) - 10 * chances) <= 5 * error).all()


def test_recommendations_follow_the_table(simulated):
    batch = simulated("recommender", None, "II", **WATCHED).to_batch()
    assert_shares(batch.z, ORIGINAL["II"])


def test_revised_recommendations_follow_the_ratings(simulated, factors):
    """Ranks are taken after the projection to [0, 5], ties by the movie's index."""
    batch = simulated("recommender-revised", None, "I", **WATCHED).to_batch()
    ratings = np.clip(batch.x @ (factors.V_tilde * factors.singular_values).T, 0, 5)
    assert (np.diff(np.sort(ratings)) == 0).any()  # there are ties to break
    order = np.argsort(-ratings, axis=1, kind="stable")
    by_rank = np.take_along_axis(batch.z, order, axis=1)
    assert (by_rank[:, 3:] == 0).all()
    assert_shares(by_rank, REVISED["I"])


def test_watching_follows_recommendation_taste_and_confounder(simulated, simulator):
    """The coefficients of the logit are 2, 0.1 and -0.8: the scores vanish, up to chance."""
    batch = simulated("recommender", None, "II", **WATCHED).to_batch()
    e = batch.y - true_mean(simulator("recommender", None, "II").world, batch)
    chance = 1 / (1 + np.exp(-(2 * batch.z + 0.1 * batch.x - 0.8 * e)))
    for v in (np.ones_like(e), batch.z, batch.x, e):
        score = np.sum((batch.a - chance) * v)
        assert abs(score) < 5 * np.sqrt(np.sum(chance * (1 - chance) * v**2))


def test_recommender_says_that_it_is_synthetic(simulator, factors):
    world = simulator("recommender").world
    assert world.label == factors.label
    assert "not MovieLens" in world.label
    np.testing.assert_allclose(
        world.W_star, np.hstack([np.zeros((10, 1)), np.eye(10), factors.V_tilde.T])
    )


# worlds of your own


def my_world(**settings):
    """Return x' = 0.8 x - 0.6 a + e; the behaviour policy sees e and pushes the same way."""
    world = World(
        name="mine",
        d_x=1,
        d_z=1,
        actions=gymnasium.spaces.Box(-20.0, 20.0, (1,), np.float64),
        transition=lambda x, a: 0.8 * x - 0.6 * a,
        reward=lambda x, a: -jnp.sum(x**2),
        initial=lambda key: jax.random.normal(key, (1,), jnp.float64),
        confounder=gaussian([[1.0]]),
        instrument=lambda key, x, history: jax.random.normal(key, (1,), jnp.float64),
        behaviour=lambda key, x, z, e: z + e - 0.3 * x,
        horizon=40,
        episodes=50,
    )
    return dataclasses.replace(world, **settings)


def drifting(key, x, history):
    return 0.9 * history + jax.random.normal(key, (1,), jnp.float64)


WORLDS = {
    "global": {"scope": "episode"},
    "drifting": {"instrument": drifting},
    "resuming": {"resume": lambda key, last: last + 1.0},
}


@pytest.fixture(scope="module")
def my_logs():
    """Return a log of each of these worlds."""
    return {
        name: ConfoundedEnv(my_world(**settings)).collect(seed=1)
        for name, settings in WORLDS.items()
    }


@pytest.mark.parametrize("name", WORLDS)
def test_a_world_of_your_own(name, my_logs):
    fit = ivvi.estimate(my_logs[name])
    error = (fit.W - [[0.0, 0.8, -0.6]]) / fit.se
    assert np.abs(error).max() < 4
    assert fit.baseline.W[0, 2] - -0.6 > 10 * fit.baseline.se[0, 2]
    assert fit.counts.transitions == 50 * 40


def test_global_instrument_is_constant_within_episodes(my_logs):
    z = my_logs["global"].to_batch().z.reshape(50, 40)
    assert (z == z[:, :1]).all()
    assert len(np.unique(z[:, 0])) == 50


def test_episodes_that_begin_where_the_last_one_ended(my_logs, monkeypatch):
    batch = my_logs["resuming"].to_batch()
    first, last = batch.x.reshape(50, 40)[:, 0], batch.y.reshape(50, 40, -1)[:, -1, 0]
    np.testing.assert_allclose(first[1:], last[:-1] + 1.0)
    monkeypatch.setattr(env_module, "ROWS_AT_ONCE", 7 * 40)
    again = ConfoundedEnv(my_world(**WORLDS["resuming"])).collect(seed=1)
    np.testing.assert_allclose(again.to_batch().x, batch.x)


def test_instrument_with_a_memory(my_logs):
    """z = 0.9 times the last z plus noise: what is left of it is white."""
    z = my_logs["drifting"].to_batch().z.reshape(50, 40)
    left = z - 0.9 * np.column_stack([np.zeros(50), z[:, :-1]])
    assert abs(left.var() - 1) < 5 * math.sqrt(2 / left.size)
    before, after = z[:, :-1].reshape(-1, 1), left[:, 1:].reshape(-1, 1)
    assert abs(correlations(after, before)[0, 0]) < 5 / math.sqrt(len(after))
    assert z.var() > 2


def test_remember_chooses_the_memory():
    world = my_world(
        instrument=lambda key, x, history: history[:1] + history[1:],
        remember=lambda history, x, z: history + jnp.array([1.0, 0.0]),
        history=np.array([0.0, 5.0]),
    )
    log = ConfoundedEnv(world).collect(episodes=3, horizon=40)
    steps = log.to_arrow()["step"].to_numpy()
    np.testing.assert_array_equal(log.to_batch().z[:, 0], 5.0 + steps)


def test_wrong_worlds_are_refused():
    with pytest.raises(InputError, match="scope 'week'"):
        my_world(scope="week")
    world = my_world(actions=gymnasium.spaces.Discrete(3))
    with pytest.raises(InputError, match="no vector shape"):
        ConfoundedEnv(world).rollout(lambda x: x)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ivvi.make_env("linaer"), "did you mean 'linear'"),
        (lambda: ivvi.make_env("maze"), "are known"),
        (lambda: ivvi.make_env("linear", dim=0), "dimension 0"),
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


@pytest.mark.parametrize("name", ["recommender", "recommender-revised"])
def test_recommenders_have_three_settings(name, factors):
    with pytest.raises(InputError, match="setting 'IV'"):
        ivvi.make_env(name, setting="IV", ratings=factors)


# intervening


@pytest.mark.filterwarnings("ignore:.*A Box observation space m.*infinity:UserWarning")
@pytest.mark.parametrize("name", NAMES)
def test_gymnasium_accepts(name, simulator):
    check_env(simulator(name, {"linear": 2, "nonlinear": 1}.get(name)), skip_render_check=True)


def test_step_and_reset(simulator):
    env = ConfoundedEnv(dataclasses.replace(simulator("linear", 2).world, horizon=4))
    with pytest.raises(InputError, match="before reset"):
        env.step(np.zeros(2))
    runs = []
    for seed in (1, 1, 2):
        state, _ = env.reset(seed=seed)
        assert (state == 10.0).all()
        taken = [env.step(np.array([0.5, -0.5])) for _ in range(4)]
        assert [truncated for _, _, _, truncated, _ in taken] == [False, False, False, True]
        assert not any(terminated for _, _, terminated, _, _ in taken)
        assert taken[0][1] == -0.05 * 200
        runs.append(np.array([state for state, *_ in taken]))
    np.testing.assert_array_equal(runs[0], runs[1])
    assert (runs[0] != runs[2]).all()


def test_step_moves_by_the_unconfounded_dynamics(simulator):
    """x' - F(x, a) is noise of the covariance of settings I-III, also in setting IV."""
    env = simulator("linear", 2, "IV")
    W, rng = env.world.W_star, np.random.default_rng(0)
    x, _ = env.reset(seed=3)
    noise = []
    for _ in range(400):
        a = rng.uniform(-1, 1, 2)
        moved, _, _, _, _ = env.step(a)
        noise.append(moved - W @ np.r_[1.0, x, a])
        x = moved
    assert_covariance(np.array(noise), np.array([[1.0, 0.3], [0.3, 1.0]]))


def push(x):
    return np.clip(x, -1, 1)


def noise_of(states, policy, world):
    """Return x' - F(x, policy(x)), (episodes, horizon, d_x), of a world with W_star."""
    x = states[:, :-1]
    Phi = np.concatenate([np.ones_like(x[..., :1]), x, policy(x)], axis=-1)
    return states[:, 1:] - Phi @ world.W_star.T


def test_rollout_shapes_and_rewards(simulator):
    env = simulator("linear", 2)
    run = env.rollout(push, episodes=8, horizon=20, keep=True)
    assert run.rewards.shape == (8, 20)
    assert run.states.shape == (8, 21, 2)
    assert (run.states[:, 0] == 10.0).all()
    np.testing.assert_allclose(run.rewards, -0.05 * (run.states[:, :-1] ** 2).sum(axis=-1))
    np.testing.assert_allclose(run.returns, run.rewards.sum(axis=1))
    bare = env.rollout(push, episodes=8, horizon=20)
    assert bare.states is None
    np.testing.assert_array_equal(bare.rewards, run.rewards)


def test_rollout_moves_by_the_unconfounded_dynamics(simulator):
    env = simulator("linear", 2, "IV")
    states = env.rollout(push, episodes=300, horizon=10, keep=True).states
    noise = noise_of(states, push, env.world).reshape(-1, 2)
    x = states[:, :-1].reshape(-1, 2)
    assert_covariance(noise, np.array([[1.0, 0.3], [0.3, 1.0]]))
    assert np.abs(correlations(noise, push(x))).max() < 5 / np.sqrt(len(x))


def test_common_random_numbers(simulator):
    """Policies that agree meet the same noise; a policy that differs meets it too."""
    env = simulator("linear", 2)
    settings = {"episodes": 8, "horizon": 20, "keep": True}
    one, same = env.rollout(push, **settings), env.rollout(lambda x: push(x) + 0.0, **settings)
    np.testing.assert_array_equal(one.states, same.states)
    np.testing.assert_array_equal(one.rewards, same.rewards)
    idle = env.rollout(np.zeros_like, **settings)
    noise = noise_of(one.states, push, env.world)
    np.testing.assert_allclose(noise_of(idle.states, np.zeros_like, env.world), noise, atol=1e-10)
    assert len(np.unique(noise[:, :, 0])) == 8 * 20
    other = env.rollout(push, **settings, seed=1)
    assert (other.states[:, 1:] != one.states[:, 1:]).all()


def test_rollout_of_fewer_episodes_is_the_beginning(simulator):
    env = simulator("linear", 2)
    few, many = (env.rollout(push, episodes=n, horizon=20) for n in (3, 8))
    np.testing.assert_array_equal(few.rewards, many.rewards[:3])


def test_steps_and_rollouts_agree_without_noise():
    world = dataclasses.replace(linear_world(2), noise=lambda key: jnp.zeros(2), horizon=12)
    env = ConfoundedEnv(world)
    run = env.rollout(push, episodes=2, keep=True)
    x, _ = env.reset(seed=0)
    states, rewards = [x], []
    for _ in range(12):
        x, reward, _, truncated, _ = env.step(push(x))
        states.append(x)
        rewards.append(reward)
    assert truncated
    np.testing.assert_allclose(run.states[1], states, rtol=1e-13)
    np.testing.assert_allclose(run.rewards[1], rewards, rtol=1e-13)


@pytest.mark.parametrize(
    "policy", [lambda x: x[0], lambda x: x[:, :1], lambda x: 0.0], ids=["row", "column", "number"]
)
def test_rollout_refuses_actions_of_the_wrong_shape(policy, simulator):
    with pytest.raises(InputError, match=r"expected \(8, 2\)"):
        simulator("linear", 2).rollout(policy, episodes=8, horizon=20)


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        ({"d_x": 2}, ("initial", r"returns \(1,\)", r"expected \(2,\)")),
        ({"d_z": 2}, ("instrument", r"expected \(2,\)")),
        ({"transition": lambda x, a: x[0]}, ("transition", r"returns \(\)")),
        ({"transition": lambda x, a: x[:, 0]}, ("transition", "fails on")),
        ({"confounder": gaussian(np.eye(2))}, ("confounder", r"returns \(2,\)")),
        ({"reward": lambda x, a: -(x**2)}, ("reward", r"expected \(\)")),
        ({"behaviour": lambda key, x, z, e: jnp.append(z, e)}, ("behaviour", r"returns \(2,\)")),
        ({"done": lambda x: x > 3}, ("done", r"expected \(\)")),
    ],
)
def test_functions_of_other_dimensions_than_declared_are_refused(settings, facts):
    with pytest.raises(
        InputError, match=".*".join((*facts[:1], "of the world 'mine'", *facts[1:]))
    ):
        my_world(**settings)


def test_signs_change_the_task_and_not_the_ratings():
    from ivvi.simulators.catalogue import load_factors
    from ivvi.simulators.ratings.factors import SIGNS

    factors = load_factors()
    theirs = factors.with_signs("authors")
    signs = np.array(SIGNS["authors"])
    np.testing.assert_array_equal(theirs.V, factors.V * signs)
    full, other = (f.U[:5] * f.singular_values @ f.V[:7].T for f in (factors, theirs))
    np.testing.assert_allclose(full, other)
    env = ivvi.make_env("recommender", ratings=factors, signs="authors")
    np.testing.assert_array_equal(env.world.W_star[:, 11:], theirs.leading(10).T)
    with pytest.raises(InputError, match="unknown signs 'author'; did you mean 'authors'"):
        ivvi.make_env("recommender", ratings=factors, signs="author")
    with pytest.raises(InputError, match="for the recommenders"):
        ivvi.make_env("linear", signs="authors")


def test_a_literal_recommender_starts_at_zero_and_scores_as_printed():
    from ivvi.simulators.catalogue import load_factors

    factors = load_factors()
    env = ivvi.make_env("recommender", ratings=factors, literal=True)
    x, _ = env.reset(seed=0)
    np.testing.assert_array_equal(x, np.zeros(10))
    state = np.linspace(-1, 1, 10)[None]
    printed = factors.singular_values * (factors.leading(10).T @ state[0])
    found = env.reward(state, np.zeros((1, 10)), state, 0)
    np.testing.assert_allclose(found, np.clip(printed, 0, 5).sum(), rtol=1e-6)
