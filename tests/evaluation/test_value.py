"""What a policy is worth: values in drawn models, against closed forms and simulators."""

import json
import warnings
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

import ivvi
from helpers import (
    OPTIONS,
    assert_refused,
    dependent_log,
    dependent_rows,
    make_rows,
    run,
    write_table,
)
from ivvi.dynamics.model import Dynamics
from ivvi.errors import InputError, IvviWarning
from ivvi.estimators import Exact
from ivvi.evaluation.actors import BehaviourActor, BehaviourRows
from ivvi.evaluation.model_draws import (
    ModelDraws,
    _estimates,
    asymptotic,
    bootstrap,
    episode_counts,
    estimated_model,
    reweighted,
)
from ivvi.evaluation.source import Source
from ivvi.evaluation.valuation import Amount
from ivvi.planning.behaviour_policy import BehaviourPolicy

REWARD = "quadratic:weight=0.05"
pytestmark = pytest.mark.filterwarnings("ignore:.* draws are few:ivvi.errors.IvviWarning")


@pytest.fixture(scope="module")
def fit(simulated):
    return ivvi.estimate(simulated("linear", 2, episodes=60, horizon=40, seed=3), episodes=True)


@pytest.fixture(scope="module")
def policy(fit):
    return ivvi.plan(fit.model, REWARD, (-1, 1), horizon=40, method="mpc")


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
    found = ivvi.value(
        action, fit, reward=REWARD, horizon=30, against=(), draws=40, starts=start, seed=5
    )
    exact = closed_form(fit.model, action, start, 30)
    assert abs(found.value.estimate - exact) < 4 * found.value.simulation_error
    models, _ = bootstrap(Source.of(fit), 40, np.random.default_rng(5))
    drawn = [
        closed_form(replace(fit.model, W=W, noise_cov=F @ F.T), action, start, 30)
        for W, F in zip(models.W, models.law.factor, strict=True)
    ]
    # the same models, so that only the simulation stands between the two
    assert np.corrcoef(drawn, found.value.draws)[0, 1] > 0.95
    assert found.value.draws.std() == pytest.approx(np.std(drawn), rel=0.25)


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


def test_the_log_flatters_its_own_policy(worth, fit, simulated):
    log = simulated("linear", 2, episodes=60, horizon=40, seed=3)
    rewards = log.table.table["reward"].to_numpy().reshape(60, 40)
    assert worth.shown == pytest.approx(rewards.sum(axis=1).mean(), rel=1e-9)
    assert worth.shown > worth.values["behaviour"].interval[1]
    short = ivvi.value("zero", fit, reward=REWARD, horizon=25, against=(), draws=20, log=log)
    assert short.shown == pytest.approx(rewards[:, :25].sum(axis=1).mean(), rel=1e-9)


def test_both_ways_of_drawing_worlds_agree(fit):
    """Within five of the standard errors with which 60 episodes know a spread; means within two.

    The logarithm of a spread is known to about 1 / sqrt(2 x 60), a correlation to 1 / sqrt(60).
    """
    source, rng = Source.of(fit), np.random.default_rng(0)
    one, (two, _) = asymptotic(source, 2000, rng), bootstrap(source, 2000, rng)
    error = 120**-0.5
    for a, b in (
        (one.W, two.W),
        (one.action_weights, two.action_weights),
        (one.instrument_weights, two.instrument_weights),
    ):
        ratio = np.log(b.std(axis=0) / a.std(axis=0))
        assert np.abs(ratio).max() < 5 * error
        assert abs(ratio.mean()) < 2 * error  # of 10 spreads and more, not independent
    for i, j in ((3, 3), (1, 1), (4, 2)):
        known = [np.corrcoef(w.W[:, 0, i], w.action_weights[:, 0, j])[0, 1] for w in (one, two)]
        assert known[0] == pytest.approx(known[1], abs=2 * 60**-0.5)
    assert (
        np.corrcoef(one.W[:, 0, 3], one.action_weights[:, 0, 3])[0, 1] > 0.3
    )  # the confounder ties them
    noises = [w.law.factor @ np.swapaxes(w.law.factor, 1, 2) for w in (one, two)]
    for noise in noises:
        np.testing.assert_allclose(noise.mean(axis=0), fit.model.noise_cov, rtol=0.1, atol=0.02)
    known, again = (np.diagonal(noise, axis1=1, axis2=2).std(axis=0) for noise in noises)
    assert np.abs(np.log(again / known)).max() < 5 * error


def test_bootstraps_of_gmm_lie_around_its_weights():
    """As those of the closed form lie around the closed form's, draw by draw."""
    log = dependent_log(dependent_rows(1, d_x=2, d_a=1, d_z=3, d_y=2))
    fits = [ivvi.estimate(log, method=method, episodes=True) for method in ("exact", "gmm")]
    exact, gmm = fits
    assert (np.abs(gmm.W - exact.W) / exact.se).max() > 0.1
    counts = np.random.default_rng(0).poisson(1.0, (20, len(exact.moments.episodes)))
    one, two = (_estimates(Source.of(f), counts)[0] for f in fits)
    np.testing.assert_allclose(two - gmm.W, one - exact.W, atol=1e-12)


def test_episodes_are_counted_with_the_spread_of_students_t():
    """Mean 1, variance G / (G - 1) times f / (f - 2); five standard errors of 40,000 counts."""
    for groups, freedom in ((20, 15.0), (80, np.inf), (200, 3.0)):
        counts = episode_counts(groups, freedom, 40_000 // groups, np.random.default_rng(1))
        f = max(min(freedom, groups - 1), 4.0)
        spread = groups / (groups - 1) * f / (f - 2)
        assert counts.mean() == pytest.approx(1.0, abs=5 * np.sqrt(spread / 40_000))
        error = np.sqrt(np.var((counts - 1) ** 2) / 40_000)
        assert np.mean((counts - 1) ** 2) == pytest.approx(spread, abs=5 * error)


def test_some_groups_count_in_every_draw():
    """With ten groups and few degrees of freedom, one draw in thousands would hold no row."""
    counts = episode_counts(10, 5.0, 200_000, np.random.default_rng(1))
    assert (counts > 0).sum(axis=1).min() >= 2
    assert counts.mean() == pytest.approx(1.0, abs=0.01)


def test_draws_of_few_clusters_have_the_tails_of_the_fits_own_intervals(simulated):
    """The variance of Student's draws is f / (f - 2) of the fit's; five standard errors."""
    fit = ivvi.estimate(simulated("linear", 2, episodes=12, horizon=40, seed=3))
    source = Source.of(fit)
    f, count = source.freedom, 20_000
    assert 4.5 < f < 12
    drawn = asymptotic(source, count, np.random.default_rng(0)).W
    share = np.mean((drawn - fit.W) ** 2, axis=0) / fit.se**2
    tails = np.std((drawn - fit.W) ** 2, axis=0) / fit.se**2
    np.testing.assert_array_less(np.abs(share - f / (f - 2)), 5 * tails / np.sqrt(count))


def test_an_interval_of_few_draws_holds_a_further_draw_as_often_as_it_says():
    """Over 4,000 repetitions of 99 draws, five standard errors (0.0017).

    A line between two draws in a tail costs at most 0.002; quantiles of the usual kind leave
    0.059 outside.
    """
    rng = np.random.default_rng(2)
    for kind in ("split", "percentile"):
        outside = []
        for _ in range(4000):
            low, high = Amount(0.0, rng.normal(size=99)).interval_of(kind)
            outside.append(norm.cdf(low) + norm.sf(high))
        assert np.mean(outside) == pytest.approx(0.049, abs=0.001 + 0.0017)


def test_the_length_of_an_interval_is_the_logs_where_episodes_end(fit):
    """Deaths are few: seeds of the simulation change the length by a third at most."""
    asked = {"reward": lambda x, a: 1.0 + 0.0 * x[:, 0], "terminal": lambda x: x[:, 0] > 2.5}
    lengths = []
    for seed in range(4):
        worth = ivvi.value(
            [-0.2, 0.0], fit, **asked, horizon=10, against=(), draws=200, seed=seed,
            method="asymptotic", starts=[[0.5, 0.0]],
        ).value  # fmt: skip
        lengths.append(worth.interval[1] - worth.interval[0])
    assert 0.3 < max(lengths) < 4 / 3 * min(lengths)  # of 16 episodes it was 2.3 times


def test_the_simulated_behaviour_is_the_simulators(simulator, simulated):
    log = simulated("linear", 2, episodes=60, horizon=40, seed=3)
    fit = ivvi.estimate(log)
    behaviour = Source.of(fit).behaviour
    assert behaviour.action_weights.shape == (2, 5)
    x, z = fit.model.states, fit.model.instruments
    fitted = behaviour.features.psi(x, z) @ behaviour.action_weights.T
    np.testing.assert_allclose(fitted + behaviour.eta, fit.model.acted, atol=1e-9)
    alone = BehaviourPolicy.of(fit.model, None)  # without moments: a on the features of x in phi
    assert alone.features.psi is None
    assert alone.action_weights.shape == (2, 3)


def acts_of_behaviour(behaviour, steps, *, episodes=3000):
    """Let the behaviour act in state zero for some steps; returns (steps, episodes, d_a)."""
    actor, rows = BehaviourActor(behaviour.features), BehaviourRows.of(behaviour)
    none = np.zeros((1, 1, 0))
    models = ModelDraws(
        none,
        none,
        behaviour.action_weights[None],
        behaviour.instrument_weights[None],
        none,
        none,
        none,
    )
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(0), (steps, 1, episodes))
        x, memory = jnp.zeros((1, episodes, 1)), actor.begin(models, rows, episodes)
        done = []
        for h in range(steps):
            a, memory = actor.act(models, rows, x, h, memory, keys[h])
            done.append(np.asarray(a[0]))
    return np.array(done)


def small_fit(rng, *, by_episode, binary):
    """Fit a log with a = z + noise, or a in {0, 1} with P(a = 1) = 0.3 + 0.2 z, z = -1, 1."""
    episode = np.repeat(np.arange(200), 10)
    z = rng.choice([-1.0, 1.0], size=200)[episode] if by_episode else rng.normal(size=2000)
    a = z + rng.normal(size=2000)
    if binary:
        a = 1.0 * (rng.uniform(size=2000) < 0.3 + 0.2 * z)
    x = rng.normal(size=2000)
    rows = {"episode": episode, "step": np.arange(2000) % 10, "x0": x, "a0": a, "z0": z}
    rows["next_x0"] = 0.5 * x - a + rng.normal(size=2000)
    return ivvi.estimate(rows)


def test_an_instrument_of_an_episode_is_drawn_once_for_each():
    behaviour = Source.of(
        small_fit(np.random.default_rng(0), by_episode=True, binary=False)
    ).behaviour
    assert behaviour.features.by_episode
    done = acts_of_behaviour(behaviour, 2)[..., 0]
    # a = z + noise with z the same: correlation 1 / 2, within five standard errors
    assert np.corrcoef(done)[0, 1] == pytest.approx(0.5, abs=5 / np.sqrt(3000))
    alone = replace(behaviour, features=replace(behaviour.features, by_episode=False))
    assert abs(np.corrcoef(acts_of_behaviour(alone, 2)[..., 0])[0, 1]) < 5 / np.sqrt(3000)


def test_discrete_habits_keep_their_probabilities():
    behaviour = Source.of(
        small_fit(np.random.default_rng(0), by_episode=True, binary=True)
    ).behaviour
    done = acts_of_behaviour(behaviour, 1)[0, :, 0]
    assert set(np.unique(done)) == {0.0, 1.0}
    # 0.3 of the simulator: the errors of 2,000 rows in 200 episodes and of 3,000 draws
    assert done.mean() == pytest.approx(0.3, abs=5 * np.hypot(0.018, 0.0085))


def test_counting_every_episode_once_changes_nothing(fit):
    again = reweighted(fit.moments, np.ones(60))
    np.testing.assert_allclose(again.mean, fit.moments.mean, rtol=1e-12)
    np.testing.assert_allclose(again.scatter, fit.moments.scatter, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(Exact().solve(again).W, fit.W, rtol=1e-9, atol=1e-12)


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
    policy = ivvi.plan(fit.model, REWARD, (-1, 1), horizon=3, method="value-iteration")
    found = ivvi.value(policy, fit, against=(), draws=20, replan=True)
    assert np.isfinite(found.value.draws).all()


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
    found = ivvi.value("zero", weak, reward=REWARD, horizon=5, against=(), draws=20)
    assert found.verdict.word == "weak"
    assert found.summary().startswith("Instrument   Too weak")
    assert dict(found.brief.items)["Next"].startswith("Compare it with what is done today")
    against = ivvi.value("zero", weak, reward=REWARD, horizon=5, against=("behaviour",), draws=20)
    assert dict(against.brief.items)["Next"].startswith("Do not act on this")
    assert "WEAK INSTRUMENTS" in found.summary().split("policy")[0]
    assert found.to_json()["warning"].startswith("WEAK")
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
    found = ivvi.value(
        action, fit, reward="learned", horizon=10, against=(), draws=60, starts=start, seed=4
    )

    def closed_form(W, row):
        x, total = start, 0.0
        for _ in range(10):
            y = np.concatenate([[1.0], x, action])
            x, total = W[:2] @ y, total + row @ y
        return total

    error = found.value.simulation_error
    assert abs(found.value.estimate - closed_form(fit.W, fit.W[2])) < 4 * error
    models, _ = bootstrap(Source.of(fit), 60, np.random.default_rng(4))
    drawn = np.array([closed_form(W, W[2]) for W in models.W])
    known = np.array([closed_form(W, fit.W[2]) for W in models.W])
    assert np.corrcoef(found.value.draws, drawn)[0, 1] > 0.9
    assert drawn.std() > 1.1 * known.std()  # what the reward's own row of W adds


def test_intervals_of_four_kinds():
    draws = np.linspace(-1, 3, 401)
    amount = Amount(0.0, draws, 0.9)
    assert amount.interval_of("percentile") == pytest.approx((-0.8, 2.8), abs=0.01)
    assert amount.interval_of("basic") == pytest.approx((-2.8, 0.8), abs=0.01)
    low, high = amount.interval_of("bias-corrected")
    assert low < -0.8
    assert high < 2.8
    assert amount.interval == pytest.approx((-0.9, 2.7), abs=0.02)  # a tenth of either side
    middle = Amount(1.0, draws, 0.9)
    assert middle.interval == pytest.approx(middle.interval_of("percentile"), abs=0.01)
    assert amount.probability == pytest.approx(300 / 401)
    assert amount.se == pytest.approx(4 * 0.6826 / 2, rel=1e-3)


@given(
    seed=st.integers(0, 10**6),
    off=st.floats(-6, 6),
    bend=st.floats(-2, 2),
    level=st.floats(0.5, 0.99),
)
def test_an_estimate_is_inside_its_interval_with_so_many_draws(seed, off, bend, level):
    """However the value bends: all draws may lie on one side of the estimate."""
    drawn = np.random.default_rng(seed).normal(size=400)
    amount = Amount(off, drawn + bend * drawn**2, level)
    low, high = amount.interval
    assert low <= amount.estimate <= high
    inside = np.mean((amount.draws >= low) & (amount.draws <= high))
    assert inside == pytest.approx(level, abs=3 / 400)


def test_the_simulation_error_of_an_end_is_its_spread():
    """Over 300 sets of draws; four errors of a standard deviation, and a tenth for Woodruff's."""
    rng = np.random.default_rng(0)
    amounts = [Amount(0.5, np.exp(rng.normal(size=400))) for _ in range(300)]
    spread = np.std([a.interval for a in amounts], axis=0)
    said = np.mean([a.interval_error for a in amounts], axis=0)
    np.testing.assert_allclose(said / spread, 1.0, atol=0.1 + 4 / np.sqrt(2 * 300))
    assert not Amount(0.5, amounts[0].draws[:60]).is_settled
    assert Amount(0.0, np.zeros(60)).is_settled


def test_a_verdict_that_other_draws_could_turn_says_so():
    draws = np.random.default_rng(0).normal(1.96, 1.0, 400)
    assert Amount(2.0, draws).may_turn  # the lower end is at zero
    assert not Amount(3.0, 1 + draws).may_turn
    assert not Amount(0.0, draws - 2).may_turn  # zero is well inside
    assert Amount(3.0, 1 + draws[:30]).may_turn  # 30 draws say little of an end
    assert not Amount(9.0, 7 + draws[:30]).may_turn


def test_few_draws_are_told_beside_the_verdict(fit):
    settings = {"reward": REWARD, "horizon": 10, "against": ("zero",)}
    worth = ivvi.value("behaviour", fit, **settings, draws=25)
    turning = Amount(1.0, np.linspace(-0.02, 2.0, 25))
    near = replace(worth, gains={"zero": turning})
    assert "But 25 draws are few for this verdict" in near.brief.to_json()["next"]
    far = replace(worth, gains={"zero": Amount(9.0, np.linspace(8.0, 10.0, 25))})
    assert "few" not in far.brief.text


@pytest.mark.thorough
def test_worlds_are_drawn_until_the_ends_are_known(fit, monkeypatch):
    settings = {"reward": REWARD, "horizon": 10, "against": ("zero",)}
    found = ivvi.value("behaviour", fit, **settings)
    for amount in (*found.values.values(), *found.gains.values()):
        low, high = amount.interval
        assert max(amount.interval_error) <= 0.05 * (high - low)
        assert len(amount.draws) >= 500
    assert found.to_json()["values"]["zero"]["interval_error"] == [
        *found.values["zero"].interval_error
    ]
    monkeypatch.setattr("ivvi.evaluation.value_policy.FIRST_DRAWS", 25)
    grown = ivvi.value("behaviour", fit, **settings)
    assert 25 < len(grown.value.draws) < 8000
    assert not any("draws are few" in note for note in grown.notes)
    with pytest.warns(IvviWarning, match="25 draws are few for the interval of the value of"):
        few = ivvi.value("behaviour", fit, **settings, draws=25)
    assert "draws are few" in few.summary()
    np.testing.assert_allclose(grown.value.draws[:25], few.value.draws)


def test_a_gap_is_the_confounders_help_and_misfit(fit, simulated):
    """Linear behaviours of a linear world: nothing is misfit but the error of a mean of 60 returns.

    In least-squares dynamics nothing is confounded, and nothing is said to be.
    """
    settings = {"reward": REWARD, "horizon": 40, "against": ("behaviour",)}
    gap = ivvi.value("zero", fit, **settings).gap
    assert gap.help.interval[0] > 0
    error = gap.whole.se
    assert gap.whole.interval[0] <= gap.whole.estimate <= gap.whole.interval[1]
    assert gap.whole.estimate == pytest.approx(gap.help.estimate + gap.misfit)
    assert abs(gap.misfit) < 4 * error
    log = simulated("linear", 2, episodes=60, horizon=40, seed=3)
    naive = ivvi.estimate(log, method="least-squares", episodes=True)
    found = ivvi.value("zero", naive, **settings)
    assert found.gap.help is None
    assert found.gap.whole.estimate == found.gap.misfit
    low, high = found.gap.whole.interval
    assert low - error < 0 < high + error
    assert "least squares takes nothing as confounded" in found.summary()
    assert "confounder's help" not in found.summary()
    assert found.to_json()["gap"]["confounder"] is None


def test_the_sample_of_a_log_knows_where_episodes_start(simulated):
    sample = simulated("linear", 2, episodes=5, horizon=7, seed=0).sample()
    assert sample.starts.shape == (5, 2)
    assert (sample.starts == 10.0).all()
    assert sample.x.shape == sample.a.shape == sample.z.shape == (35, 2)
    assert not sample.global_instrument
    rows = make_rows(4, 5)
    rows["z0"] = rows["z1"] = np.repeat(np.arange(4.0), 5)
    order = np.random.default_rng(0).permutation(20)
    shuffled = {name: values[order] for name, values in rows.items()}
    log = ivvi.read_logs(shuffled, state="x*", action="a*", instrument="z*")
    found = log.sample()
    assert found.global_instrument
    np.testing.assert_array_equal(found.starts[:, 0], rows["x0"][::5])


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
        ("zero", {"reward": REWARD, "replan": True}, ("ivvi.plan made",)),
        ("zero", {"reward": "learned"}, ("fitted without one",)),
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
    with pytest.raises(InputError, match="behaviour policy is not known"):
        ivvi.value(policy, bare, against=("behaviour",), draws=20)
    with pytest.raises(InputError, match="moments of the log"):
        ivvi.value(policy, fit.model, against=("least-squares",), draws=20)
    with pytest.raises(InputError, match="per-episode moments"):
        ivvi.value(policy, fit.model, against=(), method="bootstrap", draws=20)
    with pytest.raises(InputError, match="int was given"):
        ivvi.value(policy, 3)
    other = ivvi.plan(
        replace(fit.model, state=("u", "v")), REWARD, (-1, 1), horizon=5, method="mpc"
    )
    with pytest.raises(InputError, match="columns are u, v"):
        ivvi.value(other, fit, draws=20)
    unsure = replace(fit.model, bread=np.empty((0, 0)), W_cov=None)
    with pytest.raises(InputError, match="without the covariance of its weights"):
        ivvi.value(policy, unsure, against=(), draws=20)


def test_rows_of_w_are_drawn_by_blocks_where_only_these_are_known(fit):
    d_y, d_phi = fit.W.shape
    joint = fit.model.W_cov.reshape(d_y, d_phi, d_y, d_phi)
    blocks = np.array([joint[i, :, i] for i in range(d_y)])
    model = replace(fit.model, W_cov=blocks)
    drawn = asymptotic(Source.of(model), 4000, np.random.default_rng(0)).W
    np.testing.assert_allclose(drawn.std(axis=0), fit.se, rtol=0.08)
    assert isinstance(model, Dynamics)
    assert estimated_model(Source.of(model)).W.shape == (1, d_y, d_phi)


@pytest.fixture(scope="module")
def saved(fit, policy, tmp_path_factory):
    folder = tmp_path_factory.mktemp("value")
    fit.save(folder / "model", episodes=True)
    fit.save(folder / "small")
    fit.save(folder / "bare", moments=False)
    policy.save(folder / "policy")
    return folder


def test_the_command_line_values_saved_policies(saved, fit):
    done = run(
        *("value", "behaviour", "--model", saved / "model", "--against", "zero"),
        *("--reward", REWARD, "--horizon", 40, "--draws", 100, "--seed", 1, "--json", "-"),
    )
    assert done.code == 0, done.err
    found = json.loads(done.out)
    settings = {"against": ("zero",), "reward": REWARD, "horizon": 40, "draws": 100, "seed": 1}
    same = ivvi.value("behaviour", fit, **settings)
    assert found == json.loads(json.dumps(same.to_json()))
    assert found["method"] == "bootstrap"
    assert found["verdict"] == "strong"
    small = run(
        *("value", saved / "policy", "--model", saved / "small", "--against", "least-squares"),
        *("--draws", 20, "--start", "1,2", "--horizon", 5),
    )
    assert small.code == 0, small.err
    assert "asymptotic draws" in small.out
    assert "from a given state" in small.out
    assert "least-squares" in small.out


def test_a_rival_does_not_take_the_place_of_the_policy(saved, fit, policy, tmp_path):
    """Two folders of one name: both are valued, the policy as it is alone."""
    still = ivvi.plan(fit.model, REWARD, (-1e-3, 1e-3), horizon=5, method="mpc")
    (tmp_path / "other").mkdir()
    still.save(tmp_path / "other" / "policy")
    ask = ("value", saved / "policy", "--model", saved / "small", "--draws", 20, "--horizon", 5)
    alone = run(*ask, "--against", "zero", "--json", "-")
    done = run(*ask, "--against", tmp_path / "other" / "policy", "--json", "-")
    found, wanted = (json.loads(result.out)["values"] for result in (done, alone))
    assert list(found) == ["policy", str(tmp_path / "other" / "policy")]
    assert found["policy"] == wanted["policy"]
    with pytest.raises(InputError, match="a rival is called 'policy'"):
        ivvi.value(policy, fit, against={"policy": [0.0, 0.0]}, draws=20)


def test_a_plan_is_not_valued_beyond_its_end(fit, simulator):
    """Its last step does what costs least now, whatever comes of it; MPC plans anew."""
    ended = ivvi.plan(
        fit.model, REWARD, [[0.0, 0.0], [1.0, 1.0]], horizon=3, method="value-iteration"
    )
    assert ivvi.value(ended, fit, draws=20, against=()).horizon == 3
    calls = (
        lambda: ivvi.value(ended, fit, horizon=4, draws=20, against=()),
        lambda: ivvi.value("zero", fit, reward=REWARD, horizon=4, against={"plan": ended}),
        lambda: ivvi.sensitivity(ended, fit, horizon=4, against=("zero",)),
        lambda: ivvi.evaluate(ended, simulator("linear", 2), horizon=4),
        lambda: ended([1.0, 1.0], step=3),
    )
    for call in calls:
        with pytest.raises(InputError, match="the plan has 3 steps; 4 are asked for"):
            call()
    again = ivvi.plan(fit.model, REWARD, (-1, 1), horizon=3, method="mpc")
    assert ivvi.value(again, fit, horizon=4, draws=20, against=()).horizon == 4


def test_the_log_of_a_model_that_left_rows_out_is_read_alike(tmp_path):
    rows = make_rows(12, 10)
    rows["x0"][5] = np.nan
    source = write_table(rows, tmp_path / "log.parquet")
    fit = run("fit", source, *OPTIONS, "--drop-missing", "--out", tmp_path / "model")
    assert fit.code == 0, fit.err
    done = run(
        *("value", "zero", "--model", tmp_path / "model", "--against", "zero", "--log", source),
        *("--reward", "quadratic:weight=1", "--horizon", 5, "--draws", 20, "--json", "-"),
    )
    assert done.code == 0, done.err
    assert json.loads(done.out)["shown_by_the_log"] < 0


def test_the_command_line_refuses_with_one_sentence(saved):
    ask = ("value", saved / "policy", "--model")
    assert_refused(run("value", "nothing", "--model", saved / "model"), "nothing")
    assert_refused(run(*ask, saved / "nowhere"), "nowhere")
    assert_refused(run(*ask, saved / "small", "--method", "bootstrap"), "--keep-episodes")
    assert_refused(
        run(*ask, saved / "small", "--start", "1,2", "--starts", "x.csv"), "--start or --starts"
    )


def test_least_squares_is_a_rival_without_moments_too(saved):
    """A model that is saved without its moments keeps what least squares found."""
    done = run("value", saved / "policy", "--model", saved / "bare", "--against", "least-squares")
    assert done.code == 0, done.err
    assert "regression of the same log earns" in done.out


def test_fit_keeps_episodes_on_request_only(tmp_path):
    source = write_table(make_rows(12, 10), tmp_path / "log.parquet")
    fit = ("fit", source, *OPTIONS, "--out")
    assert run(*fit, tmp_path / "plain").code == 0
    assert run(*fit, tmp_path / "kept", "--keep-episodes").code == 0
    assert ivvi.load_fit(tmp_path / "plain").shard.moments.episodes is None
    assert len(ivvi.load_fit(tmp_path / "kept").shard.moments.episodes) == 12
