"""Episodes that end in several ways, each with its own pay, from the log to the value."""

import dataclasses
import json

import numpy as np
import pytest

import ivvi
from helpers import assert_refused, run, write_table
from ivvi import InputError
from ivvi.errors import DataError, IvviWarning
from ivvi.fitting.incremental.saved_moments import open_like
from ivvi.planning.comparison import Trials
from ivvi.reporting.policy_sections import value_section

PAID = {"died": -1.0, "discharged": 1.0}
COLUMNS = {"state": "vital", "action": "a", "instrument": "z", "episode": "patient", "step": "day"}
DAYS = 5
PLANNED = {"method": "value-iteration", "compare": False}
"""What the default chooses, and nothing beside it."""


pytestmark = pytest.mark.usefixtures("few_episodes")


def nothing(x, a):
    return 0.0 * a[:, 0]


def moving(died=0.1, discharged=0.1, **others):
    """x' = x / 2; ends: died with chance `died` - 0.05 a, discharged with `discharged` + 0.1 a."""
    W = np.array([[0.0, 0.5, 0.0], [died, 0.0, -0.05], [discharged, 0.0, 0.1]])
    states = np.linspace(-1, 1, 11)[:, None]
    names = ("x",), ("a",), ("next_x", "outcome[died]", "outcome[discharged]")
    rows = {"acted": np.arange(11.0)[:, None] % 2, "followed": np.zeros((11, 3))}
    covs = np.diag([0.0, 0.1, 0.1]), np.zeros((3, 3))
    made = ivvi.Dynamics(
        ivvi.linear(), W, *covs, *names, states=states, starts=states[:3], ends=tuple(PAID), **rows
    )
    return dataclasses.replace(made, **others)


def stays(patients=800, seed=0):
    """Return the log of patients who are sick or well, treated or not, and leave alive or dead."""
    rng = np.random.default_rng(seed)
    rows = []
    for patient in range(patients):
        sick = rng.random() < 0.5
        for day in range(DAYS):
            z, e = rng.normal(size=2)
            a = float(z + 0.5 * e + rng.normal() > 0)
            died = 0.05 + 0.15 * sick - 0.08 * sick * a + 0.02 * np.sign(e)
            left = 0.1 + 0.15 * (not sick) + 0.05 * a - 0.02 * np.sign(e)
            u = rng.random()
            outcome = "died" if u < died else "discharged" if u < died + left else None
            rows.append((patient, day, "sick" if sick else "well", a, z, outcome))
            if outcome:
                break
            sick = rng.random() < (0.7 if sick else 0.2)
    names = ("patient", "day", "vital", "a", "z", "outcome")
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    ways = columns["outcome"]
    columns |= {way: [float(one == way) for one in ways] for way in PAID}
    columns["pay"] = [PAID.get(one, 0.0) for one in ways]
    return columns


@pytest.fixture(scope="module")
def columns():
    return stays()


@pytest.fixture(scope="module")
def fit(columns):
    return ivvi.fit(ivvi.read_logs(columns, **COLUMNS, terminal="outcome"), "linear:cross")


# logs


def test_a_column_that_names_the_ends_is_one_output_for_each(columns):
    log = ivvi.read_logs(columns, **COLUMNS, terminal="outcome")
    assert log.roles.outputs == ("next_vital[well]", "outcome[died]", "outcome[discharged]")
    assert log.roles.ends == ("died", "discharged")
    several = ivvi.read_logs(columns, **COLUMNS, terminal="died,discharged")
    assert several.roles.ends == ("died", "discharged")
    assert np.array_equal(log.to_batch().y, several.to_batch().y)
    empty = columns | {"outcome": [one or "" for one in columns["outcome"]]}
    words = columns | {"outcome": [one or "no" for one in columns["outcome"]]}
    for same in (empty, words):
        again = ivvi.read_logs(same, **COLUMNS, terminal="outcome")
        assert np.array_equal(log.to_batch().y, again.to_batch().y)


def test_a_later_log_may_lack_a_kind_of_end_but_bring_no_new_one(columns):
    first = ivvi.read_logs(columns, **COLUMNS, terminal="outcome")
    none = columns | {"outcome": [""] * len(columns["day"])}
    assert open_like(none, first.roles).roles == first.roles
    other = columns | {"outcome": [one and "moved" for one in columns["outcome"]]}
    with pytest.raises(DataError, match="holds 'moved', which is none of the levels"):
        open_like(other, first.roles).to_batch()


BAD = {
    "two ends": ({"discharged": np.ones}, "died,discharged", "are both true in one row"),
    "yes and a name": ({"outcome": ["yes", "died"]}, "outcome", "holds 'died' and 'yes'"),
    "many names": ({"outcome": [f"w{i}" for i in range(30)]}, "outcome", "more than 10 words"),
    "names twice": ({}, "outcome,died", "expected only this one"),
    "no end at all": ({"outcome": ["", " "]}, "outcome", "holds nothing"),
    "a number": ({"outcome": [0.0, 2.0]}, "outcome", "text that names the kind of end"),
}


@pytest.mark.parametrize("case", BAD)
def test_ends_that_cannot_be_told_apart_are_refused(columns, case):
    changed, terminal, sentence = BAD[case]
    n = len(columns["day"])
    new = {
        k: v(n) if callable(v) else [v[i % len(v)] for i in range(n)] for k, v in changed.items()
    }
    with pytest.raises(DataError, match=sentence):
        ivvi.read_logs(columns | new, **COLUMNS, terminal=terminal).to_batch()


# plans and values


@pytest.mark.parametrize(
    "method", ["auto", pytest.param("mpc", marks=pytest.mark.thorough), "value-iteration"]
)
def test_each_kind_of_end_is_planned_for_by_its_pay(method):
    for paid, best in ((PAID, 1.0), ({"died": 1.0, "discharged": -1.0}, 0.0)):
        policy = ivvi.plan(
            moving(),
            nothing,
            [[0.0], [1.0]],
            horizon=4,
            method=method,
            reward_at_end=paid,
            compare=False,
        )
        assert policy([0.5]).tolist() == [best]
        p = np.array([0.1 - 0.05 * best, 0.1 + 0.1 * best])
        left = (1 - (1 - p.sum()) ** 4) / p.sum()
        earned = Trials.of(policy.problem, 0).returns(policy.rule)
        assert np.allclose(earned, left * (p @ list(paid.values())))


def test_chances_are_clipped_and_sum_to_one_at_most():
    x, a = np.zeros((1, 1)), np.zeros((1, 1))
    assert np.allclose(moving(-0.2, 0.4).chances_of_ends(x, a), [[0.0, 0.4]])
    assert np.allclose(moving(0.9, 0.6).chances_of_ends(x, a), [[0.6, 0.4]])
    assert np.allclose(moving(0.9, 0.6).chance_of_end(x, a), 1.0)


def test_environments_draw_one_kind_of_end():
    env = moving().as_env(nothing, [[0.0], [1.0]], horizon=4, reward_at_end=PAID)
    earned = env.rollout(lambda x: 0 * x + 1, episodes=4000, seed=1).returns
    assert set(np.unique(earned)) == {-1.0, 0.0, 1.0}
    share = (1 - 0.75**4) / 0.25
    for amount, p in ((-1.0, 0.05 * share), (1.0, 0.2 * share)):
        assert abs((earned == amount).mean() - p) < 4 * np.sqrt(p * (1 - p) / 4000)


def test_values_and_curves_tell_the_ends_apart(tmp_path):
    problem = {"horizon": 4, "reward_at_end": PAID}
    policy = ivvi.plan(moving(), nothing, [[0.0], [1.0]], **problem, **PLANNED)
    worth = ivvi.value(policy, moving(), against=("zero",), draws=20)
    share = (1 - 0.75 ** np.arange(5)) / 0.25
    assert np.isclose(worth.value.estimate, 0.15 * share[-1])
    assert np.isclose(worth.values["zero"].estimate, 0.0)
    assert np.allclose(worth.incidence["died"]["policy"].estimate, 0.05 * share)
    assert np.allclose(worth.incidence["discharged"]["policy"].estimate, 0.2 * share)
    assert np.allclose(worth.survival["policy"].estimate, 1 - 0.25 * share)
    assert "share of episodes that ended with 'died': policy 0.137" in worth.summary()
    titles = [getattr(part, "title", "") for part in value_section(worth.to_json()).parts]
    assert "Share of episodes that ended: discharged" in titles
    assert len(worth.plot().axes) == 5
    other = ivvi.value(policy, moving(), against=(), draws=20, reward_at_end=3)
    assert np.isclose(other.value.estimate, 3 * 0.25 * share[-1])


def test_policies_keep_what_each_end_pays(fit, tmp_path):
    policy = ivvi.plan(fit, "linear:state=0", [[0.0], [1.0]], reward_at_end=PAID, **PLANNED)
    policy.save(tmp_path / "policy")
    again = ivvi.load_policy(tmp_path / "policy")
    assert again.problem.reward_at_end == (("died", -1.0), ("discharged", 1.0))
    assert again.problem.model.ends == ("died", "discharged")
    assert policy({"vital": ["sick"]}) == again({"vital": ["sick"]})
    page = ivvi.report(fit, tmp_path / "report.html", policy=again).read_text()
    assert "died -1, discharged +1" in page
    low, high = ivvi.value(again, fit, against=(), draws=20).value.interval
    assert -1 <= low <= high <= 1


def test_pay_in_the_reward_column_comes_out_the_same(fit, columns):
    log = ivvi.read_logs(columns, **COLUMNS, terminal="outcome", reward="pay")
    learned = ivvi.fit(log, "linear:cross")
    settings = {"horizon": DAYS, "against": (), "draws": 20, "actions": [[0.0], [1.0]]}
    asked = {"reward": "linear:state=0", "reward_at_end": PAID, **settings}
    one = ivvi.value([1.0], fit, log=log, **asked)
    two = ivvi.value([1.0], learned, log=log, reward="learned", **settings)
    assert np.isclose(one.value.estimate, two.value.estimate, atol=1e-9)
    stays_paid = sum(columns["pay"]) / len(set(columns["patient"]))
    assert np.isclose(one.shown, stays_paid)
    assert np.isclose(two.shown, stays_paid)


def test_sums_updates_and_saved_fits_know_the_ends(fit, tmp_path):
    fit.save(tmp_path / "model")
    assert ivvi.load_fit(tmp_path / "model").model.ends == ("died", "discharged")
    assert ivvi.fit(fit.shard).model.ends == ("died", "discharged")
    with pytest.warns(IvviWarning, match="unadjusted"):
        more = ivvi.update(tmp_path / "model", stays(300, seed=5))
    assert more.counts.ended > fit.counts.ended
    assert "episodes ended (died, discharged)" in more.summary()


def test_pay_that_does_not_fit_the_ends_is_refused():
    refused = {
        "the end 'moved', but the log has no such end": PAID | {"moved": 1},
        "the reward of the end 'discharged' is not given": {"died": -1},
        "the reward of the end 'died' is nan": PAID | {"died": float("nan")},
        "the reward of the end 'died' is 'bad'": PAID | {"died": "bad"},
    }
    for sentence, paid in refused.items():
        with pytest.raises(InputError, match=sentence):
            ivvi.plan(moving(), nothing, [[0.0], [1.0]], reward_at_end=paid)
    told = {"terminal": lambda x: x[:, 0] > 9, "reward_at_end": PAID}
    with pytest.raises(InputError, match="have no names; expected one number"):
        ivvi.plan(moving(), nothing, [[0.0], [1.0]], **told)
    alive = ivvi.fit(ivvi.make_env("linear", dim=1).collect(episodes=20, horizon=30, seed=0))
    with pytest.raises(InputError, match="in this model no episode ends; expected one number"):
        ivvi.plan(alive, nothing, (-1, 1), reward_at_end=PAID)


def test_the_commands_take_the_pay_of_each_end(columns, tmp_path):
    log = write_table(columns, tmp_path / "stays.csv")
    roles = [word for name, value in COLUMNS.items() for word in (f"--{name}", value)]
    fitted = (*roles, "--terminal", "outcome", "--features", "linear:cross")
    assert run("fit", log, *fitted, "--out", tmp_path / "model").code == 0
    (tmp_path / "set.csv").write_text("a\n0\n1\n")
    plan = ("plan", tmp_path / "model", "--reward", "linear:state=0", "--method", "value-iteration")
    plan += ("--action-set", tmp_path / "set.csv", "--out", tmp_path / "policy")
    assert_refused(run(*plan, "--reward-at-end", "died=-1"), "'discharged' is not given")
    assert_refused(run(*plan, "--reward-at-end", "died=-1,2"), "expected a number, or one for each")
    done = run(*plan, "--reward-at-end", "died=-1,discharged=1", "--json", "-")
    assert json.loads(done.out)["reward_at_end"] == PAID
    few = ("--draws", 20, "--against", "zero")
    told = run("value", tmp_path / "policy", "--model", tmp_path / "model", *few)
    assert "share of episodes that ended with 'discharged': policy" in told.out


@pytest.mark.parametrize(
    "terminal", [pytest.param("outcome", marks=pytest.mark.thorough), "died,discharged"]
)
def test_a_formula_goes_with_kinds_of_end(columns, terminal):
    keys = {"episode": "patient", "step": "day", "terminal": terminal}
    formula = "next_vital ~ vital | a ~ z"
    told = ivvi.fit(ivvi.read_logs(columns, formula=formula, **keys), episodes=True)
    named = ivvi.fit(ivvi.read_logs(columns, **COLUMNS | keys), episodes=True)
    np.testing.assert_allclose(told.W, named.W)
    assert told.roles.ends == named.roles.ends
    assert told.counts == named.counts
    kinds = told.roles.ends
    pay = dict(zip(kinds, PAID.values(), strict=True))
    settings = {"horizon": DAYS, "reward_at_end": pay, **PLANNED}
    policies = [ivvi.plan(f, nothing, [[0.0], [1.0]], **settings) for f in (told, named)]
    states = {"vital": ["sick", "well"]}
    assert list(policies[0](states)["a"]) == list(policies[1](states)["a"])
    worth = [
        ivvi.value(policy, f, draws=20, against=())
        for policy, f in zip(policies, (told, named), strict=True)
    ]
    assert worth[0].value.estimate == pytest.approx(worth[1].value.estimate)
    assert list(worth[0].incidence) == list(kinds)
