"""Plans, values and decisions say where they use a model beyond what the log shows."""

import json
import warnings
from dataclasses import replace

import numpy as np
import pytest

import ivvi
from ivvi import InputError
from ivvi.dynamics.range_warnings import simulation_doubts
from ivvi.errors import IvviWarning, PlanningWarning
from ivvi.policy.json_lines_server import serve

ROLES = {
    "state": "x",
    "action": "a",
    "instrument": "z",
    "next_state": "y",
    "episode": "episode",
    "step": "step",
}


def simulate(step, act, start, episodes=150, horizon=10, seed=0):
    """Return the rows of a log: step(x, a, u, e) -> x', act(x, z, u) -> a, start of normals."""
    rng = np.random.default_rng(seed)
    x = start(rng.normal(size=episodes))
    rows = {name: [] for name in ("x", "a", "z", "y", "step")}
    for h in range(horizon):
        z, u, e = rng.normal(size=(3, episodes))
        a = act(x, z, u)
        y = step(x, a, u, e)
        for name, column in zip(rows, (x, a, z, y, np.full(episodes, h)), strict=True):
            rows[name].append(column)
        x = y
    columns = {name: np.stack(parts, axis=1).ravel() for name, parts in rows.items()}
    return columns | {"episode": np.repeat(np.arange(episodes), horizon)}


def linear_log(**settings):
    """States around 0, doses between 0 and 4."""
    return simulate(
        lambda x, a, u, e: 0.7 * x + 0.5 * (a - 2) + 0.3 * u + 0.2 * e,
        lambda x, z, u: np.clip(2 + 0.7 * z + 0.5 * u, 0, 4),
        lambda n: n,
        **settings,
    )


def quadratic_cost_log():
    """Rewards -x'^2 - a^2 / 10, none above 0, which linear features cannot express.

    Each is multiplied by a number of its own, so that no function of (x, a, x') can be read off.
    """
    columns = simulate(
        lambda x, a, u, e: 0.9 * x - 0.5 * a + 0.7 * u + 0.3 * e,
        lambda x, z, u: 0.3 * x + z + u,
        lambda n: 2 + n,
    )
    size = np.random.default_rng(1).exponential(size=len(columns["a"]))
    columns["r"] = -size * (columns["y"] ** 2 + 0.1 * columns["a"] ** 2)
    return columns


def bounded_log():
    """States between 0 and 1; a binary action pushes them to the top."""
    return simulate(
        lambda x, a, u, e: np.clip(x - 0.1 + 0.35 * a + 0.1 * u + 0.05 * e, 0, 1),
        lambda x, z, u: 1.0 * (0.8 * z + u + 1.5 * (0.5 - x) > 0),
        lambda n: np.clip(0.5 + 0.3 * n, 0, 1),
        horizon=20,
    )


def fitted(columns, **roles):
    """Fit without the doubts about features, which come before those about ranges."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = ivvi.fit(ivvi.read_logs(columns, **ROLES, **roles))
    return replace(fit, doubts=())


@pytest.fixture(scope="module")
def linear_fit():
    return fitted(linear_log())


def test_a_plan_for_rewards_that_no_row_earned_is_not_to_be_acted_on(tmp_path):
    fit = fitted(quadratic_cost_log(), reward="r")
    settings = {"horizon": 10, "method": "value-iteration"}
    with pytest.warns(PlanningWarning) as caught:
        policy = ivvi.plan(fit, "learned", (-3, 3), **settings)
    outside = "per step where no row of the log earned more than"
    assert any(outside in str(warning.message) for warning in caught)
    told = " ".join(policy.brief.text.split())
    assert "Do not act on it" in told
    again = ivvi.load_policy(policy.save(tmp_path / "policy"))
    assert again.brief == policy.brief
    with pytest.warns(IvviWarning):
        worth = ivvi.value([3.0], fit, reward="learned", horizon=10, against=("zero",), draws=20)
    told = " ".join(worth.brief.text.split())
    assert "Do not act on this" in told
    assert "then try it" not in told
    assert any("no row of the log earned" in text for text in worth.to_json()["warnings"])


def test_a_plan_that_leaves_the_bounds_of_a_state_names_them():
    fit = fitted(bounded_log())
    outside = "of the simulated steps the model puts x clearly outside 0 to 1, its range in the log"
    with pytest.warns(PlanningWarning, match=outside):
        ivvi.plan(fit, "linear:state=1", [[0.0], [1.0]], horizon=20, method="mpc")
    with pytest.warns(PlanningWarning, match=outside):
        worth = ivvi.value(
            lambda x: np.ones((len(x), 1)), fit, reward="linear:state=1", against=(), draws=20
        )
    assert "Do not act on this" in " ".join(worth.brief.text.split())


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ["rain", "score"])
def test_a_state_whose_own_noise_leaves_its_range_is_not_held_against_a_plan(kind):
    """The Gaussian noise of a model takes rain below 0, whatever is done."""
    rng = np.random.default_rng(0)
    columns = linear_log()
    del columns["y"]
    n = len(columns["x"])
    rain = np.maximum(0, rng.normal(size=n)).round(1)
    columns["v"] = rain if kind == "rain" else rng.integers(1, 6, n)
    roles = {name: one for name, one in ROLES.items() if name != "next_state"} | {"state": "x,v"}
    fit = replace(ivvi.fit(ivvi.read_logs(columns, **roles)), doubts=())
    settings = {"horizon": 8, "method": "mpc"}
    assert ivvi.plan(fit, "quadratic:weight=x:1", (0, 4), **settings).comparison.outside == ()
    with pytest.warns(PlanningWarning) as caught:
        ivvi.plan(fit, "quadratic:weight=x:1,target=40", (0, 60), **settings)
    assert any("the model puts x clearly outside" in str(one.message) for one in caught)


def test_allowed_actions_beyond_the_log_are_told_once(linear_fit):
    with pytest.warns(PlanningWarning) as caught:
        ivvi.plan(linear_fit, "quadratic:weight=1", (0, 20), horizon=5, method="mpc")
    assert [
        str(w.message)
        for w in caught
        if "a is allowed from 0 to 20, but the log has 0 to 4" in str(w)
    ]
    assert len(caught) == 1  # nothing pays beyond the log here


@pytest.mark.filterwarnings("error")
def test_nothing_is_said_of_plans_within_the_log(linear_fit):
    policy = ivvi.plan(linear_fit, "quadratic:weight=1", (-0.5, 4.5), horizon=8, method="mpc")
    assert policy.comparison.outside == ()
    policy([[1.0], [-2.5]])
    fit = fitted(bounded_log())
    choices = ivvi.Actions.binary(1)
    ivvi.plan(fit, "quadratic:weight=1,target=0.5", choices, horizon=5, method="mpc")


@pytest.mark.parametrize("method", ["mpc", "value-iteration"])
def test_a_decision_far_from_the_log_or_after_the_horizon_is_not_silent(linear_fit, method):
    settings = {"horizon": 5, "method": method, "compare": False}
    policy = ivvi.plan(linear_fit, "quadratic:weight=1", (0, 4), **settings)
    with pytest.warns(PlanningWarning, match="x = 1000 is far outside the states of the log"):
        policy([1000.0])
    line = next(serve(policy, ['{"state": [1000.0]}']))
    assert "far outside" in json.loads(line)["warnings"][0]
    with pytest.raises(InputError, match="the step is 25; the plan has the steps 0 to 4"):
        policy([0.0], step=25)


def test_plans_that_do_the_same_are_said_to_do_the_same(linear_fit):
    reward = "linear:state=1"
    policy = ivvi.plan(linear_fit, reward, [[0.0], [4.0]], horizon=5, method="mpc")
    worth = ivvi.value(policy, linear_fit, against=("least-squares",), draws=20)
    told = " ".join(worth.brief.text.split())
    assert "earns the same: both choose the same actions" in told
    assert "cannot tell" not in told


def test_the_default_horizon_is_that_of_the_return_recorded_in_the_log(linear_fit):
    columns = linear_log(episodes=60, horizon=11)
    del columns["y"]
    roles = {name: column for name, column in ROLES.items() if name != "next_state"}
    log = ivvi.read_logs(columns, **roles)
    fit = ivvi.fit(log)
    settings = {"reward": "quadratic:weight=1", "against": ("behaviour",), "draws": 20, "log": log}
    with pytest.warns(IvviWarning, match="draws are few"):
        worth = ivvi.value([2.0], fit, **settings)
    assert worth.horizon == 10
    assert worth.gap is not None
    assert linear_fit.model.usual_horizon[0] == 10


@pytest.mark.parametrize(
    ("values", "remedy"), [((0, 3), "--action-set"), ((0, 1), "--action-binary")]
)
def test_whole_doses_of_the_log_are_not_taken_for_amounts_without_a_word(values, remedy):
    low, high = values
    columns = simulate(
        lambda x, a, u, e: 0.9 * x - 0.5 * a + 0.3 * u + 0.2 * e,
        lambda x, z, u: np.clip(np.round(high / 2 + z + 0.5 * u), low, high),
        lambda n: 2 + n,
    )
    fit = ivvi.estimate(ivvi.read_logs(columns, **ROLES))
    with pytest.warns(PlanningWarning, match=f"a is only ever {low}, .*{remedy}"):
        policy = ivvi.plan(fit, "quadratic:weight=1", values, horizon=3)
    assert "First check the actions: a is only ever" in " ".join(policy.brief.text.split())
    with warnings.catch_warnings():
        warnings.simplefilter("error", PlanningWarning)
        ivvi.plan(fit, "quadratic:weight=1", [[v] for v in range(low, high + 1)], horizon=3)


@pytest.mark.filterwarnings("ignore")
def test_a_plan_that_abstains_already_is_not_told_to_abstain():
    columns = bounded_log()
    model = ivvi.estimate(ivvi.read_logs(columns, **ROLES), "spline:4").model
    x, a, alive = np.full((5, 3, 1), 9.0), np.zeros((5, 3, 1)), np.ones((5, 3))
    settings = {"learned": False}
    (asked,) = simulation_doubts(model, x, a, alive, abstains=True, **settings)
    (free,) = simulation_doubts(model, x, a, alive, **settings)
    assert "--abstain 0.99" in free
    assert "--abstain 0.99" not in asked
    assert "--fallback usual" in asked
