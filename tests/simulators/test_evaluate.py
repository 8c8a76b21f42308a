"""Rollouts, the model as an environment, evaluation and what regret is made of."""

import csv
import json
import shutil
from dataclasses import replace

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium.utils.env_checker import check_env

import ivvi
from helpers import assert_refused, run
from ivvi.dynamics.rollout import roll_out
from ivvi.simulators import Behaviour
from ivvi.simulators.evaluate import Average, optimal_policy

REWARD = "quadratic:weight=0.05"
SHORT = {"episodes": 32, "horizon": 40, "seed": 3}


@pytest.fixture(scope="module")
def fit(simulated):
    return ivvi.estimate(simulated("linear", 2, episodes=40, horizon=100))


@pytest.fixture(scope="module")
def policy(fit):
    return ivvi.plan(fit.model, REWARD, (-1, 1), horizon=60)


@pytest.fixture(scope="module")
def env(simulator):
    return simulator("linear", 2)


def push(x):
    return np.clip(x, -1, 1)


# Rollouts


def test_compiled_and_called_policies_earn_the_same(policy, env):
    compiled = env.rollout(policy, **SHORT, keep=True)
    called = env.rollout(lambda x: policy(x), **SHORT, keep=True)
    np.testing.assert_allclose(compiled.states, called.states, atol=1e-8)
    np.testing.assert_allclose(compiled.actions, called.actions, atol=1e-8)
    np.testing.assert_allclose(compiled.rewards, called.rewards, atol=1e-8)


def test_states_follow_the_actions_that_are_kept(env):
    run = env.rollout(push, **SHORT, keep=True)
    W = env.world.W_star
    noise = run.states[:, 1:] - run.states[:, :-1] @ W[:, 1:3].T - run.actions @ W[:, 3:].T
    other = env.rollout(lambda x: -push(x), **SHORT, keep=True)
    same = other.states[:, 1:] - other.states[:, :-1] @ W[:, 1:3].T - other.actions @ W[:, 3:].T
    np.testing.assert_allclose(noise, same, atol=1e-12)  # common random numbers
    np.testing.assert_allclose(run.rewards, -0.05 * (run.states[:, :-1] ** 2).sum(axis=-1))


def test_an_ended_episode_earns_nothing_more():
    world = ivvi.simulators.World(
        name="walk",
        d_x=1,
        d_z=1,
        actions=gymnasium.spaces.Box(-1, 1, (1,), np.float64),
        transition=lambda x, a: x + a,
        reward=lambda x, a: 1.0 + 0 * x[0],
        initial=lambda key: jnp.zeros(1),
        confounder=lambda key: jnp.zeros(1),
        instrument=lambda key, x, history: jnp.zeros(1),
        behaviour=lambda key, x, z, e: jnp.zeros(1),
        done=lambda x: x[0] > 2.5,
        horizon=10,
    )
    env = ivvi.ConfoundedEnv(world)
    walk = env.rollout(lambda x: np.ones((len(x), 1)), episodes=2, keep=True)
    np.testing.assert_array_equal(walk.rewards, [[1.0] * 3 + [0.0] * 7] * 2)
    np.testing.assert_array_equal(walk.states[0, :, 0], [0, 1, 2, *[3] * 8])
    env.reset(seed=0)
    ends = [env.step(np.ones(1))[2] for _ in range(3)]
    assert ends == [False, False, True]


@pytest.mark.filterwarnings("ignore::ivvi.errors.IvviWarning")
def test_rollouts_are_a_log(policy, fit, tmp_path):
    """The rows of episodes in the model, fitted again, give the model back."""
    model_env = fit.model.as_env(REWARD, (-1, 1), horizon=30)
    rng = np.random.default_rng(0)
    run = model_env.rollout(lambda x: rng.uniform(-1, 1, size=(len(x), 2)), episodes=200, keep=True)
    table = run.to_arrow(fit.model.state, fit.model.action)
    assert table.num_rows == 6000
    pq.write_table(table, tmp_path / "log.parquet")
    again = ivvi.read_logs(
        tmp_path / "log.parquet",
        state="x*",
        action="a*",
        instrument="reward",  # least squares does not look at it
        next_state="next_x*",
    )
    least = ivvi.estimate(again, method="least-squares")
    error = np.abs(least.W - fit.W) / least.se
    assert error.max() < 5  # 10 coefficients: five standard errors hold for any seed
    with pytest.raises(ivvi.InputError, match="keep=True"):
        model_env.rollout(push, episodes=2).to_arrow(fit.model.state, fit.model.action)


# The model as an environment


@pytest.mark.filterwarnings("ignore:.*A Box observation space:UserWarning")
@pytest.mark.parametrize("actions", [(-1, 1), [[0, 0], [1, 1], [-1, 1]]], ids=["box", "finite"])
def test_the_model_is_a_gymnasium_environment(fit, actions):
    check_env(fit.model.as_env(REWARD, actions, starts=[[1.0, 2.0]]), skip_render_check=True)


def test_a_box_and_choices_make_a_gymnasium_space():
    both = ivvi.Actions.product(ivvi.Actions.box([0.0], [5.0]), ivvi.Actions.binary(1))
    space = both.to_space()
    assert space[1].n == 2
    np.testing.assert_array_equal(both.from_space((np.array([2.5]), 1)), [2.5, 1.0])


@pytest.mark.parametrize(
    ("settings", "fact"),
    [
        ({"starts": [[1.0]]}, r"shape \(1, 1\)"),
        ({"horizon": 0}, "horizon is 0"),
    ],
)
def test_bad_settings_of_the_model_environment_are_refused(fit, settings, fact):
    with pytest.raises(ivvi.InputError, match=fact):
        fit.model.as_env(REWARD, (-1, 1), **settings)


# Evaluation


def test_regret_is_paired_and_zero_for_the_optimal(policy, env):
    evaluation = ivvi.evaluate({"plan": policy}, env, against=("optimal", "zero"), **SHORT)
    assert evaluation.regret("optimal").mean == 0
    by_hand = evaluation.rewards["optimal"].sum(axis=1) - evaluation.rewards["plan"].sum(axis=1)
    assert evaluation.regret("plan").mean == pytest.approx(by_hand.mean())
    renamed = {f"{name}-{'of' * 10}": r for name, r in evaluation.rewards.items()}
    lines = (
        replace(evaluation, rewards=renamed, reference=next(iter(renamed))).summary().splitlines()
    )
    assert len({line.index("[") for line in lines[2:]}) == 1  # long names keep the columns
    assert evaluation.regret("plan").se == pytest.approx(by_hand.std(ddof=1) / np.sqrt(32))
    assert abs(evaluation.regret("plan").mean) < 0.05 * evaluation.regret("zero").mean
    assert evaluation.regret("zero").interval[0] > 0
    curve = evaluation.curve("plan")
    np.testing.assert_allclose(curve[:, 0], evaluation.rewards["plan"].mean(axis=0))
    assert (curve[1:, 1] < curve[1:, 2]).all()


def test_without_the_optimum_regret_is_to_the_first(policy, env):
    evaluation = ivvi.evaluate(policy, env, against=("zero",), **SHORT)
    assert evaluation.reference == "zero"
    assert evaluation.regret("policy").mean < 0
    alone = ivvi.evaluate({"one": policy, "two": push}, env, against=(), **SHORT)
    assert alone.reference == "one"


def test_the_log_flatters_its_own_policy(env):
    """The confounder helps the logged actions; without it the same habits earn less."""
    log = env.collect(episodes=200, horizon=40, seed=5)
    shown = np.asarray(log.table.table["reward"]).reshape(200, 40).sum(axis=1)
    earned = env.rollout(Behaviour(env.world), episodes=200, horizon=40, seed=5).returns
    gap = shown.mean() - earned.mean()
    assert gap > 5 * np.hypot(shown.std(), earned.std()) / np.sqrt(200)


def test_the_decomposition_adds_up(policy, env):
    parts = ivvi.simulators.decompose(policy, env, **SHORT)
    total = parts.along_optimal.mean + parts.planning.mean + parts.along_policy.mean
    assert total == pytest.approx(parts.regret.mean, abs=1e-9)
    assert parts.planning.mean < 3 * parts.planning.se  # in the model, its own plan is best
    assert set(parts.to_json()) == {"along_optimal", "planning", "along_policy", "regret"}


def test_a_true_model_leaves_nothing_to_decompose(env):
    best = optimal_policy(env, horizon=40)
    parts = ivvi.simulators.decompose(best, env, **SHORT)
    for name in ("along_optimal", "planning", "along_policy", "regret"):
        assert abs(getattr(parts, name).mean) < 1e-9, name


def test_true_models_have_the_world_s_mean_and_noise(simulator):
    for name, dim in (("linear", 3), ("nonlinear", 2)):
        world = simulator(name, dim).world
        model = world.true_model()
        rng = np.random.default_rng(0)
        x, a = rng.normal(size=(5, dim)), rng.uniform(-1, 1, size=(5, dim))
        with jax.enable_x64(True):
            mean = np.asarray(model.mean(jnp.asarray(x), jnp.asarray(a)))
            wanted = [np.asarray(world.transition(u, v)) for u, v in zip(x, a, strict=True)]
        np.testing.assert_allclose(mean, wanted, rtol=1e-12)
        usual = np.eye(dim) + (
            0.3 * (np.eye(dim, k=1) + np.eye(dim, k=-1)) if name == "linear" else 0
        )
        np.testing.assert_allclose(model.noise_cov, usual)


def test_an_amount_of_one_episode_has_no_interval():
    alone = Average.of(np.array([3.0])).to_json()
    assert alone == {"mean": 3.0, "se": None, "interval": None}


@pytest.mark.parametrize(
    ("call", "fact"),
    [
        (lambda env: ivvi.evaluate(push, env, against=("optimum",)), "did you mean 'optimal'"),
        (lambda env: ivvi.evaluate({}, env, against=()), "at least one policy"),
        (lambda env: ivvi.evaluate({"zero": push}, env), "a policy is called 'zero'"),
        (lambda env: ivvi.evaluate(push, env, against=("zero",), episodes=0), "episodes is 0"),
        (lambda env: roll_out(env.world, push, episodes=2, horizon=0), "horizon is 0"),
        (lambda env: ivvi.evaluate(push, env, against=("zero",), seed=-1), "the seed is -1"),
    ],
)
def test_evaluations_that_make_no_sense_are_refused(env, call, fact):
    with pytest.raises(ivvi.InputError, match=fact):
        call(env)


# The command line


@pytest.fixture(scope="module")
def saved(fit, tmp_path_factory):
    folder = tmp_path_factory.mktemp("planned")
    fit.save(folder / "model")
    box = ("--action-low", -1, "--action-high", "1,1")
    done = run(
        "plan",
        folder / "model",
        "--reward",
        REWARD,
        *box,
        "--horizon",
        60,
        "--out",
        folder / "policy",
        "--json",
        folder / "plan.json",
    )
    assert done.code == 0, done
    return folder


def test_what_plan_has_saved_acts_as_the_policy_does(saved, policy):
    facts = json.loads((saved / "plan.json").read_text())
    assert facts["method"] == "auto"
    assert facts["rule"]["kind"].split("-")[0] in facts["comparison"]["chosen"]
    assert facts["warnings"] == []
    done = run("act", saved / "policy", "--state", "10,-3")
    assert done.out.splitlines()[0] == "a0,a1"
    acted = [float(v) for v in done.out.splitlines()[1].split(",")]
    np.testing.assert_allclose(acted, policy([10.0, -3.0]), atol=1e-9)
    assert "This is for the first of " in done.err
    assert (
        "This is for the first of "
        not in run("act", saved / "policy", "--state", "10,-3", "--step", 0).err
    )


def test_act_adds_actions_to_a_table_of_states(saved, policy, tmp_path):
    states = np.random.default_rng(0).normal(size=(7, 2))
    table = pa.table({"x0": states[:, 0], "x1": states[:, 1]})
    pq.write_table(table, tmp_path / "states.parquet")
    done = run(
        "act",
        saved / "policy",
        "--states",
        tmp_path / "states.parquet",
        "--out",
        tmp_path / "acts.parquet",
    )
    assert done.code == 0, done
    answers = pq.read_table(tmp_path / "acts.parquet")
    assert answers.column_names == ["x0", "x1", "a0", "a1"]
    np.testing.assert_allclose(
        np.column_stack([answers["a0"], answers["a1"]]), policy(states), atol=1e-9
    )


def test_the_command_line_evaluates_policies(saved, tmp_path):
    done = run(
        *("evaluate", saved / "policy", "--env", "linear", "--dim", 2, "--horizon", 20),
        *("--episodes", 16, "--against", "optimal,zero", "--plot", tmp_path / "r.png"),
        *("--json", tmp_path / "e.json"),
    )
    assert done.code == 0, done
    assert "reference" in done.out
    facts = json.loads((tmp_path / "e.json").read_text())
    assert list(facts["policies"]) == ["optimal", "zero", "policy"]
    assert (
        facts["policies"]["policy"]["regret"]["mean"] < facts["policies"]["zero"]["regret"]["mean"]
    )
    assert (tmp_path / "r.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.thorough
def test_folders_of_one_name_are_told_apart(saved, tmp_path):
    for name in ("other/policy", "zero"):
        shutil.copytree(saved / "policy", tmp_path / name)
    done = run(
        *("evaluate", saved / "policy", tmp_path / "other/policy", tmp_path / "zero"),
        *("--env", "linear", "--dim", 2, "--horizon", 5, "--episodes", 4),
        *("--against", "zero", "--json", "-"),
    )
    folders = [saved / "policy", tmp_path / "other/policy", tmp_path / "zero"]
    assert list(json.loads(done.out)["policies"]) == ["zero", *map(str, folders)]


def test_act_quotes_names_with_commas(linear_model, tmp_path):
    model = replace(linear_model(), action=("offer, net", "a1"))
    ivvi.plan(model, "quadratic", (-1, 1), horizon=3, method="mpc", compare=False).save(
        tmp_path / "policy"
    )
    done = run("act", tmp_path / "policy", "--state", "1,2")
    header, row = csv.reader(done.out.splitlines())
    assert (header, len(row)) == (["offer, net", "a1"], 2)


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        (("--reward", REWARD), "give the actions in only one way"),
        (("--reward", REWARD, "--action-low", 1), "together"),
        (("--reward", REWARD, "--action-low", 1, "--action-high", -1), "[1, -1]"),
        (("--reward", REWARD, "--action-low", "a", "--action-high", 1), "--action-low 'a'"),
        (("--reward", "quadratc:weight=1", "--action-low", -1, "--action-high", 1), "quadratc"),
        (
            ("--reward", "learned", "--action-low", -1, "--action-high", 1),
            "fitted with a reward column",
        ),
        (("--reward", REWARD, "--action-low", -1, "--action-high", 1, "--horizon", 0), "horizon"),
        (("--reward", REWARD, "--action-low", -1, "--action-high", 1, "--method", "mcp"), "'mpc'"),
    ],
)
def test_plans_with_bad_options_are_refused(saved, tmp_path, options, fact):
    assert_refused(run("plan", saved / "model", "--out", tmp_path / "policy", *options), fact)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        ((), "one of --state, --states and --stdin"),
        (("--state", "1,2,3"), "has 3 values; expected 2: x0, x1"),
        (("--state", "1,b"), "'b'"),
        (("--state", "1,nan"), "finite"),
        (("--state", "1,2", "--step", 1000), "the plan has the steps 0 to "),
        (
            ("--state", "1,2", "--out", "advice.txt"),
            "advice.txt has an unknown file ending; choose from .parquet, ",
        ),
        (
            ("--state", "1,2", "--out", "advice"),
            "advice has an unknown file ending; choose from .parquet, .csv",
        ),
    ],
)
def test_acts_with_bad_options_are_refused(saved, options, fact):
    assert_refused(run("act", saved / "policy", *options), fact)


@pytest.mark.parametrize(
    ("table", "fact"),
    [
        ("x0,x1\n1,2\n3,\n,4\n", "no finite number in column 'x1', row 1 (from 0)"),
        ("x0,x1\n1,2\ninf,3\n", "no finite number in column 'x0', row 1 (from 0)"),
        ("x0,x1\n1,a\n", "column 'x1' of"),
    ],
)
def test_a_table_of_states_names_the_bad_cell(saved, table, fact, tmp_path):
    (tmp_path / "states.csv").write_text(table)
    assert_refused(run("act", saved / "policy", "--states", tmp_path / "states.csv"), fact)


def test_the_ending_decides_the_format(saved, tmp_path):
    done = run("act", saved / "policy", "--state", "1,2", "--out", tmp_path / "advice.csv")
    assert done.code == 0, done
    header, row = csv.reader((tmp_path / "advice.csv").read_text().splitlines())
    assert header == ["x0", "x1", "a0", "a1"]
    assert [float(v) for v in row[:2]] == [1.0, 2.0]


def test_a_policy_for_other_states_is_refused(saved):
    result = run("evaluate", saved / "policy", "--env", "linear", "--dim", 3)
    assert_refused(result, "'policy' is for 2 states and 2 actions; the simulator", "has 3 and 3")


def test_a_policy_for_another_reward_is_split_by_the_world_s_own(policy, env):
    """The model is nearly right, so that its errors are small; the reward was not the world's."""
    settings = {"horizon": 40, "method": "mpc", "compare": False}
    model, actions = policy.problem.model, policy.problem.actions
    other = ivvi.plan(model, "linear:state=100", actions, **settings)
    parts = ivvi.simulators.decompose(other, env, **SHORT)
    own = ivvi.simulators.decompose(policy, env, **SHORT)
    assert parts.regret.mean > own.regret.mean
    assert abs(parts.planning.mean - parts.regret.mean) < 0.5 * parts.regret.mean
    total = parts.along_optimal.mean + parts.planning.mean + parts.along_policy.mean
    assert total == pytest.approx(parts.regret.mean, abs=1e-9)
    assert parts.along_optimal.mean == own.along_optimal.mean
