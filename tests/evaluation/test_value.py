"""What a policy is worth: values in drawn models, against closed forms and simulators."""

import warnings
from dataclasses import replace

import numpy as np
import pytest

import ivvi
from ivvi import InputError
from ivvi.errors import IvviWarning
from ivvi.evaluation.model_draws import bootstrap
from ivvi.evaluation.value_inputs import ValueInputs

REWARD = "quadratic:weight=0.05"
pytestmark = pytest.mark.filterwarnings("ignore:.* draws are few:ivvi.errors.IvviWarning")


def push_back(x):
    """Be a user's policy: act against the state."""
    return np.clip(x, -1.0, 1.0)


@pytest.fixture(scope="module")
def worth(fit):
    rivals = ("behaviour", "zero")
    return ivvi.value(push_back, fit, reward=REWARD, horizon=40, against=rivals, draws=100)


def closed_form(model, action, start, horizon, weight=0.05):
    """E sum_h -weight |x_h|^2 under one action, by propagating mean and covariance."""
    d = len(start)
    c, P, Q = model.W[:, 0], model.W[:, 1 : 1 + d], model.W[:, 1 + d :]
    mean, cov, total = np.asarray(start, float), np.zeros((d, d)), 0.0
    for _ in range(horizon):
        total -= weight * (mean @ mean + np.trace(cov))
        mean, cov = c + P @ mean + Q @ action, P @ cov @ P.T + model.noise_cov
    return total


def test_a_constant_action_has_its_closed_form_value_in_every_draw(fit):
    action, start = np.array([0.3, -0.2]), [4.0, -1.0]
    valued = ivvi.value(
        action, fit, reward=REWARD, horizon=30, against=(), draws=40, starts=start, seed=5
    )
    exact = closed_form(fit.model, action, start, 30)
    assert abs(valued.value.estimate - exact) < 4 * valued.value.simulation_error
    models, _ = bootstrap(ValueInputs.of(fit), 40, np.random.default_rng(5))
    drawn = [
        closed_form(replace(fit.model, W=W, noise_cov=F @ F.T), action, start, 30)
        for W, F in zip(models.W, models.law.factor, strict=True)
    ]
    # the same models, so that only the simulation stands between the two
    assert np.corrcoef(drawn, valued.value.draws)[0, 1] > 0.95
    assert valued.value.draws.std() == pytest.approx(np.std(drawn), rel=0.25)


def test_a_function_is_valued_like_the_policy_that_it_is(fit):
    settings = {"reward": REWARD, "horizon": 10, "against": (), "draws": 20}
    one = ivvi.value([0.5, 0.5], fit, **settings)
    same = ivvi.value(lambda x: np.full((len(x), 2), 0.5), fit, **settings)
    np.testing.assert_allclose(one.value.draws, same.value.draws, rtol=1e-9)


def test_the_value_is_that_of_the_simulator(worth, simulator):
    env = simulator("linear", 2)
    truth = ivvi.evaluate(push_back, env, against=("zero", "behaviour"), episodes=2000, horizon=40)
    for name, amount in worth.values.items():
        low, high = amount.interval
        middle, half = (low + high) / 2, (high - low) / 2
        true = truth.value(name)
        # five standard errors of the interval and of the simulator
        assert abs(true.mean - middle) < 5 * np.hypot(half / 1.96, true.se), name
    assert worth.gains["zero"].probability == 1.0


def test_a_log_shows_more_than_its_policy_is_worth(worth, fit, simulated):
    log = simulated("linear", 2, episodes=60, horizon=40, seed=3)
    rewards = log.table.table["reward"].to_numpy().reshape(60, 40)
    assert worth.shown == pytest.approx(rewards.sum(axis=1).mean(), rel=1e-9)
    assert worth.shown > worth.values["behaviour"].interval[1]
    short = ivvi.value("zero", fit, reward=REWARD, horizon=25, against=(), draws=20, log=log)
    assert short.shown == pytest.approx(rewards[:, :25].sum(axis=1).mean(), rel=1e-9)


@pytest.mark.slow
def test_planning_again_takes_the_optimism_of_a_plan_off(policy, fit):
    plain = ivvi.value(policy, fit, against=(), draws=100)
    again = ivvi.value(policy, fit, against=(), draws=100, replan=True)
    assert again.replanned
    # a plan looks best to the world that it was made for
    assert np.median(again.value.draws) < plain.value.estimate
    assert again.value.estimate < plain.value.estimate
    assert again.value.interval[0] < again.value.estimate < again.value.interval[1]
    assert again.value.se == pytest.approx(plain.value.se, rel=0.5)


@pytest.mark.slow
def test_other_planners_are_planned_again_one_by_one(simulated):
    fit = ivvi.estimate(simulated("linear", 1, episodes=20, horizon=20, seed=1), episodes=True)
    policy = ivvi.plan(
        fit.model, REWARD, (-1, 1), horizon=3, method="value-iteration", compare=False
    )
    valued = ivvi.value(policy, fit, against=(), draws=20, replan=True)
    assert np.isfinite(valued.value.draws).all()


@pytest.mark.usefixtures("few_episodes")
def test_weak_instruments_are_told_before_any_number(simulated, fit):
    log = simulated("linear", 2, episodes=20, horizon=10, seed=3)
    rows = {n: log.to_arrow()[n].to_numpy() for n in log.to_arrow().column_names}
    rng = np.random.default_rng(0)
    rows |= {f"z{i}": rng.normal(size=len(rows["z0"])) for i in range(2)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IvviWarning)
        weak = ivvi.estimate(
            ivvi.read_logs(rows, state="x*", action="a*", instrument="z*", next_state="next_x*")
        )
    valued = ivvi.value("zero", weak, reward=REWARD, horizon=5, against=(), draws=20)
    assert valued.verdict.word == "weak"
    assert valued.summary().startswith("Instrument   Too weak")
    assert dict(valued.brief.items)["Next"].startswith("Compare it with what is done today")
    against = ivvi.value("zero", weak, reward=REWARD, horizon=5, against=("behaviour",), draws=20)
    assert dict(against.brief.items)["Next"].startswith("Do not act on this")
    assert "WEAK INSTRUMENTS" in valued.summary().split("policy")[0]
    assert valued.to_json()["warning"].startswith("WEAK")
    strong = ivvi.value("zero", fit, reward=REWARD, horizon=5, against=(), draws=20)
    assert strong.summary().startswith("Instrument   Good enough")
    assert "instruments: STRONG" in strong.summary()
    assert strong.to_json()["warning"] is None


def test_a_learned_reward_is_valued_with_its_own_uncertainty(simulated):
    log = simulated("linear", 2, episodes=60, horizon=20, seed=3)
    rows = {n: log.to_arrow()[n].to_numpy() for n in log.to_arrow().column_names}
    e = rows["next_x0"] - 0.5 * rows["x0"]
    rows["reward"] = 1.0 - rows["x0"] + 2.0 * rows["a0"] - e  # confounded: a0 leans on e
    log = ivvi.read_logs(
        rows, state="x*", action="a*", instrument="z*", next_state="next_x*", reward="reward"
    )
    fit = ivvi.estimate(log, episodes=True)
    action, start = np.array([0.5, 0.0]), np.array([10.0, 10.0])
    valued = ivvi.value(
        action, fit, reward="learned", horizon=10, against=(), draws=60, starts=start, seed=4
    )

    def closed_form(W, row):
        x, total = start, 0.0
        for _ in range(10):
            y = np.concatenate([[1.0], x, action])
            x, total = W[:2] @ y, total + row @ y
        return total

    error = valued.value.simulation_error
    assert abs(valued.value.estimate - closed_form(fit.W, fit.W[2])) < 4 * error
    models, _ = bootstrap(ValueInputs.of(fit), 60, np.random.default_rng(4))
    drawn = np.array([closed_form(W, W[2]) for W in models.W])
    known = np.array([closed_form(W, fit.W[2]) for W in models.W])
    assert np.corrcoef(valued.value.draws, drawn)[0, 1] > 0.9
    assert drawn.std() > 1.1 * known.std()  # what the reward's own row of W adds


def test_a_gap_is_the_confounders_help_and_misfit(fit, simulated):
    """Linear behaviours of a linear world: nothing is misfit but the error of a mean of 60 returns.

    In least-squares dynamics nothing is confounded, and nothing is said to be.
    """
    settings = {"reward": REWARD, "horizon": 40, "against": ("behaviour",), "draws": 100}
    gap = ivvi.value("zero", fit, **settings).gap
    assert gap.help.interval[0] > 0
    error = gap.whole.se
    assert gap.whole.interval[0] <= gap.whole.estimate <= gap.whole.interval[1]
    assert gap.whole.estimate == pytest.approx(gap.help.estimate + gap.misfit)
    assert abs(gap.misfit) < 4 * error
    log = simulated("linear", 2, episodes=60, horizon=40, seed=3)
    naive = ivvi.estimate(log, method="least-squares", episodes=True)
    valued = ivvi.value("zero", naive, **settings)
    assert valued.gap.help is None
    assert valued.gap.whole.estimate == valued.gap.misfit
    low, high = valued.gap.whole.interval
    assert low - error < 0 < high + error
    assert "least squares assumes no confounding" in valued.summary()
    assert "of which confounding" not in valued.summary()
    assert valued.to_json()["gap"]["confounder"] is None


@pytest.mark.parametrize(
    ("policy", "settings", "facts"),
    [
        ([1.0], {"reward": REWARD}, ("one action of 2 numbers", "a0, a1")),
        ("zero", {}, ("needs a reward",)),
        ("zer", {"reward": REWARD}, ("did you mean 'zero'",)),
        ("zero", {"reward": REWARD, "draws": 5}, ("expected 20",)),
        ("zero", {"reward": REWARD, "level": 95}, ("number between 0 and 1",)),
        ("zero", {"reward": REWARD, "method": "boot"}, ("did you mean 'bootstrap'",)),
        ("zero", {"reward": REWARD, "starts": [1.0]}, ("rows of 2", "x0, x1")),
        ("zero", {"reward": REWARD, "replan": True}, ("from ivvi.plan",)),
        ("zero", {"reward": "learned"}, ("fitted with a reward column",)),
        (lambda x: np.zeros(3), {"reward": REWARD}, ("shape (3,)",)),
    ],
)
def test_what_cannot_be_valued_is_said_in_one_sentence(policy, settings, facts, fit):
    with pytest.raises(InputError) as caught:
        ivvi.value(policy, fit, **{"against": (), "horizon": 5, "draws": 20, **settings})
    for fact in facts:
        assert fact in str(caught.value)


def test_what_a_source_does_not_hold_is_missed_by_name(fit, policy):
    bare = replace(fit.model, acted=np.empty((0, 0)))
    with pytest.raises(InputError, match="behaviour policy is unknown"):
        ivvi.value(policy, bare, against=("behaviour",), draws=20)
    with pytest.raises(InputError, match="the regression of the log"):
        ivvi.value(policy, fit.model, against=("least-squares",), draws=20)
    with pytest.raises(InputError, match="per-episode moments"):
        ivvi.value(policy, fit.model, against=(), method="bootstrap", draws=20)
    with pytest.raises(InputError, match="found int"):
        ivvi.value(policy, 3)
    other = ivvi.plan(
        replace(fit.model, state=("u", "v")),
        REWARD,
        (-1, 1),
        horizon=5,
        method="mpc",
        compare=False,
    )
    with pytest.raises(InputError, match="columns are u, v"):
        ivvi.value(other, fit, draws=20)
    unsure = replace(fit.model, bread=np.empty((0, 0)), W_cov=None)
    with pytest.raises(InputError, match="no covariance of its weights"):
        ivvi.value(policy, unsure, against=(), draws=20)


@pytest.mark.usefixtures("few_episodes")
def test_a_plan_is_not_valued_beyond_its_end(fit, simulator):
    """Its last step does what costs least now, whatever comes of it; MPC plans anew."""
    ended = ivvi.plan(
        fit.model,
        REWARD,
        [[0.0, 0.0], [1.0, 1.0]],
        horizon=3,
        method="value-iteration",
        compare=False,
    )
    assert ivvi.value(ended, fit, draws=20, against=()).horizon == 3
    calls = (
        lambda: ivvi.value(ended, fit, horizon=4, draws=20, against=()),
        lambda: ivvi.value("zero", fit, reward=REWARD, horizon=4, against={"plan": ended}),
        lambda: ivvi.sensitivity(ended, fit, horizon=4, against=("zero",)),
        lambda: ivvi.evaluate(ended, simulator("linear", 2), horizon=4),
    )
    for call in calls:
        with pytest.raises(InputError, match="the plan has 3 steps, fewer than the 4 requested"):
            call()
    with pytest.raises(InputError, match="the step is 3; the plan has the steps 0 to 2"):
        ended([1.0, 1.0], step=3)
    again = ivvi.plan(fit.model, REWARD, (-1, 1), horizon=3, method="mpc", compare=False)
    assert ivvi.value(again, fit, horizon=4, draws=20, against=()).horizon == 4
