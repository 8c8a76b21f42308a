"""The plain sentences of a plan and of its decisions."""

from types import SimpleNamespace

import numpy as np
import pytest

import ivvi
from helpers import run
from ivvi.diagnostics import Verdict
from ivvi.planning import Comparison
from ivvi.policy.brief import act_brief, plan_brief

STRONG = Verdict("strong", "the effective F is 90; 23 and above counts as strong")
WEAK = Verdict("weak", "the effective F is 3; below 12 as weak")


def policy_with(returns, simple, chosen, verdict=STRONG, horizon=5):
    compared = Comparison.of(returns, simple, {}, chosen, horizon)
    doubts = dict.fromkeys(("fit_doubts", "effect_doubts", "choice_doubts", "reward"), ())
    problem = SimpleNamespace(model=SimpleNamespace(verdict=verdict), horizon=horizon, **doubts)
    return SimpleNamespace(problem=problem, comparison=compared)


PLAN, HELD = np.array([3.0, 5.0, 4.0, 4.0]), np.array([1.0, 2.0, 2.0, 1.0])


def test_a_plan_opens_with_what_it_earns_and_the_error_of_the_simulation():
    policy = policy_with({"mpc": PLAN, "held 1": HELD}, ["held 1"], "mpc")
    said = plan_brief(policy.problem, policy.comparison).to_json()
    assert said["instrument"].startswith("Good enough: the effective F is 90")
    assert "4 +- 0.41 per episode in the model, 2.5 +- 0.29 more than" in said["plan"]
    assert "`ivvi value` adds the uncertainty of the model" in said["next"]
    table = policy.comparison.summary()
    assert "4 +- 0.41" in table
    assert "1.5 +- 0.29" in table


def test_a_plan_that_is_beaten_and_a_weak_instrument_say_so():
    beaten = policy_with({"mpc": HELD, "held 1": PLAN}, ["held 1"], "mpc", WEAK)
    said = plan_brief(beaten.problem, beaten.comparison).to_json()
    assert "2.5 less than the simple rule 'held 1'" in said["plan"]
    assert said["instrument"].startswith("Too weak")
    assert said["next"].startswith("Do not act on it")
    simple = policy_with({"mpc": HELD, "held 1": PLAN}, ["held 1"], "held 1")
    said = plan_brief(simple.problem, simple.comparison).to_json()
    assert said["plan"].startswith("No plan earns more than the simple")


def test_decisions_open_with_what_is_done():
    problem = policy_with({"mpc": PLAN, "held 1": HELD}, ["held 1"], "mpc").problem
    one = act_brief(problem, {"dose": [2.5], "ward": ["ICU"]}, None).to_json()
    assert one["action"] == "dose 2.5; ward ICU."
    assert one["next"].startswith("This is for the first of 5 steps")
    sure = SimpleNamespace(agreement=np.array([0.9, 0.7]), outside=np.array([True, False]))
    many = act_brief(problem, {"dose": [1.0, 2.0], "ward": ["A", "A"]}, 0, sure).to_json()
    assert "dose from 1 to 2, 1.5 on average of 2 states; ward A in 2." in many["action"]
    assert "At least 70% of the models" in many["action"]
    assert "1 of 2 states" in many["action"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policy")
    fit = ivvi.fit(ivvi.make_env("linear", dim=1).collect(episodes=40, horizon=20, seed=1))
    policy = ivvi.plan(fit, "quadratic:weight=0.05", (-1, 1), horizon=5)
    policy.save(folder / "policy")
    return policy, folder / "policy"


def test_act_keeps_standard_output_for_programs(saved):
    policy, folder = saved
    done = run("act", folder, "--state", "1")
    assert done.out.splitlines()[0] == "a0"
    assert done.err.startswith("Instrument   Good enough")
    assert policy.summary().startswith(policy.brief.text)
    assert policy._repr_html_().startswith("<p><b>Instrument</b>")


def test_a_gain_within_the_error_of_the_simulation_is_about_the_same():
    close = policy_with({"mpc": PLAN + 1e-6, "held 1": PLAN[::-1]}, ["held 1"], "mpc")
    said = plan_brief(close.problem, close.comparison).to_json()
    assert "about the same as the best simple rule, 'held 1'" in said["plan"]
    assert close.comparison.share is None


def test_a_reward_that_nothing_changes_is_told():
    fit = ivvi.estimate(ivvi.make_env("linear", dim=1).collect(episodes=20, horizon=20, seed=0))
    policy = ivvi.plan(fit, "quadratic:weight=0", (-1, 1), horizon=5)
    assert "the reward does not depend on what" in " ".join(policy.summary().split())
    worth = ivvi.value(policy, fit, draws=20, against=("zero", "behaviour"))
    assert "the reward does not depend on what" in " ".join(worth.summary().split())
