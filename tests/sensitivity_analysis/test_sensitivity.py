"""How far the instrument may be invalid: algebra, breakdown points, bands, the command."""

import json
import re
from dataclasses import dataclass, replace
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ivvi
from helpers import run
from ivvi.actions import Actions
from ivvi.dynamics.env import ModelSimulator, one_of
from ivvi.dynamics.rollout import roll_out
from ivvi.errors import InputError
from ivvi.estimators import Exact
from ivvi.evaluation.actors import Fixed, OneAction
from ivvi.evaluation.source import Source
from ivvi.evaluation.value_policy import acting, problem_of
from ivvi.sensitivity_analysis.action_changes import has_flipped
from ivvi.sensitivity_analysis.adjusted_covariance import Variances, errors_of, rows_of
from ivvi.sensitivity_analysis.analysis import effect_bands
from ivvi.sensitivity_analysis.gains import (
    GainSimulator,
    deviations,
    first_loss,
    ladder,
    smallest_loss,
)
from ivvi.sensitivity_analysis.result import Breakdown, Sensitivity
from ivvi.sensitivity_analysis.violations import Exclusion, Size, Violation

REWARD = "quadratic:weight=0.05"


@pytest.fixture(scope="module")
def case(simulator):
    """Return a fit of a log of two states, and a policy planned with it."""
    log = simulator("linear", dim=2, setting="III").collect(episodes=30, horizon=100, seed=3)
    fit = ivvi.estimate(log)
    return fit, ivvi.plan(fit.model, REWARD, (-1, 1), horizon=10, method="mpc")


def exclusion_of(moments_of, x, a, z, y, features="linear"):
    moments = moments_of(x, a, z, y, features=features)
    estimate = Exact().solve(moments)
    names = [tuple(f"{c}{i}" for i in range(p.shape[1])) for c, p in (("x", x), ("a", a))]
    outputs = moments.design.outputs
    parts = (estimate.design.phi, estimate.W, estimate.noise_cov, estimate.bread)
    return Exclusion(moments, ivvi.Dynamics(*parts, *names, outputs))


@given(seed=st.integers(0, 10**6), features=st.sampled_from(["linear", "poly2"]))
def test_taking_the_direct_effect_away_from_the_rows_gives_w_of_t(
    confounded, moments_of, seed, features
):
    """W(t) is the estimate of y - t sigma G psi~, computed from the moments alone."""
    x, a, z, y = confounded(seed, d_z=3)
    found = exclusion_of(moments_of, x, a, z, y, features)
    rng = np.random.default_rng(seed)
    G = rng.normal(size=(2, found.rank))
    G /= np.linalg.norm(G, axis=1, keepdims=True)
    t = rng.uniform(-1, 1)
    design, space = found.moments.design, found.space
    rows = np.zeros((len(x), design.width))
    for block, argument, at in design.pieces:
        values = block(x, a if argument == "action" else z)
        rows[:, at : at + values.shape[1]] = values
    psi = (rows - space.shift) @ space.T
    np.testing.assert_allclose(psi.T @ psi / len(x), np.eye(found.rank), atol=1e-8)
    cleaned = y - t * (psi @ G.T) * found.noise
    expected = Exact().solve(moments_of(x, a, z, cleaned, features=features)).W
    W = found.weights(found.effects(Violation("", G), t))
    np.testing.assert_allclose(W, expected, rtol=1e-6, atol=1e-7)


@given(seed=st.integers(0, 10**6))
def test_units_are_those_of_one_instrument(confounded, moments_of, seed):
    """One instrument: the share is of the reduced form, and 100% takes the effect away."""
    x, a, z, y = confounded(seed, d_x=1, d_z=1, d_y=1)
    found = exclusion_of(moments_of, x, a, z, y)
    violation = found.along("+z0:y0", np.ones((1, 1)))
    clean = (
        z
        - np.column_stack([np.ones(len(x)), x])
        @ np.linalg.lstsq(np.column_stack([np.ones(len(x)), x]), z, rcond=None)[0]
    )
    reduced = float((clean * y).mean() / clean.std())  # of one standard deviation of z
    t = reduced / found.noise[0]
    size = found.size(violation, t)
    assert size.share[0] == pytest.approx(1.0, rel=1e-6)
    assert size.direct[0] == pytest.approx(abs(reduced), rel=1e-6)
    W = found.weights(found.effects(violation, t))
    assert W[0, 2] == pytest.approx(0.0, abs=1e-6 * np.abs(found.model.W).max())
    error = y - np.column_stack([np.ones(len(x)), x, a]) @ W.T
    rho = np.corrcoef(clean[:, 0], error[:, 0])[0, 1]
    assert size.correlation[0] == pytest.approx(abs(rho), rel=1e-6)


def test_no_direction_moves_an_effect_more_than_its_own(case):
    fit, _ = case
    found = Exclusion(fit.moments, fit.model)
    rng = np.random.default_rng(0)
    own = found.against(0, 3)
    most = (fit.W - found.weights(found.effects(own, 1.0)))[0, 3]
    assert np.sign(most) == np.sign(fit.W[0, 3])
    for _ in range(20):
        G = np.zeros_like(own.direction)
        G[0] = rng.normal(size=found.rank)
        G[0] /= np.linalg.norm(G[0])
        moved = fit.W - found.weights(found.effects(Violation("", G), 1.0))
        assert abs(moved[0, 3]) <= abs(most) * (1 + 1e-9)


def stage_of(fit, policy, starts, episodes):
    return GainSimulator.of(
        Source.of(fit), replace(policy.problem, model=fit.model), starts, episodes, 1
    )


def test_worlds_earn_what_the_model_simulator_earns(case):
    """The same model, other draws: within four standard errors."""
    fit, policy = case
    starts = np.full((1, 2), 2.0)
    stage = stage_of(fit, policy, starts, 200)
    action = np.array([0.5, -0.5])
    valid = np.zeros((3, 2, 2))
    earned = stage.returns((OneAction(), action), valid, np.stack([fit.W] * 3))
    np.testing.assert_allclose(earned, earned[:1].repeat(3, axis=0), rtol=1e-9)
    simulator = ModelSimulator(fit.model, policy.problem.reward, one_of(starts))
    half = lambda x: np.broadcast_to(action, x.shape)  # noqa: E731
    alone = roll_out(simulator, half, episodes=200, horizon=10, seed=2).returns
    error = np.hypot(alone.std(), earned[0].std()) / np.sqrt(200)
    assert abs(earned[0].mean() - alone.mean()) < 4 * error


def test_a_compiled_policy_earns_the_same_as_the_function(case):
    fit, policy = case
    stage = stage_of(fit, policy, np.full((1, 2), 2.0), 8)
    W, valid = np.stack([fit.W, 0.9 * fit.W, 1.1 * fit.W]), np.zeros((3, 2, 2))
    called = stage.returns((lambda x: policy(x), ()), valid, W)
    np.testing.assert_allclose(stage.returns(Fixed.of(policy), valid, W), called, rtol=1e-9)


def test_the_direct_effect_comes_with_the_actions_of_those_who_see_z():
    """One step from 0 with a = z + eta, x' = b a + d z + e: E x'^2 holds (b + d)^2 var(z).

    Whoever does not look at z meets its direct effect as noise, E x'^2 = d^2 var(z) + var(e).
    """
    rng = np.random.default_rng(0)
    x, z, eta, e = rng.normal(size=(4, 4000))
    rows = {"x0": x, "a0": z + eta, "z0": z, "next_x0": -0.5 * (z + eta) + e}
    columns = {"state": "x0", "action": "a0", "instrument": "z0", "next_state": "next_x0"}
    fit = ivvi.estimate(ivvi.read_logs(rows, **columns))
    source = Source.of(fit)
    problem = problem_of("zero", source, "quadratic:weight=1", (-1, 1), {"horizon": 2})
    stage = GainSimulator.of(source, problem, [[0.0]], 4000, 0)
    d, b = np.array([0.0, 0.8]), fit.W[0, 2]
    E = d[:, None, None] * stage.exclusion.along("+z0", np.ones((1, 1))).direction
    W = np.stack([fit.W] * 2)
    left = stage.exclusion.noise_cov(fit.W)[0, 0]
    idle = -stage.returns(acting("zero", source, problem, None), E, W)
    behaviour = -stage.returns(acting("behaviour", source, problem, None), E, W)
    error = 4 / np.sqrt(4000)
    np.testing.assert_allclose(idle.mean(axis=1), left, atol=error * idle.std())
    var_a = fit.model.acted.var()
    g = source.behaviour.action_weights[0, 2]
    # the noise that W leaves holds d^2 already: what is new is the covariance 2 b d cov(a, z)
    wanted = b**2 * var_a + left + 2 * b * d * g * z.std()
    np.testing.assert_allclose(behaviour.mean(axis=1), wanted, atol=error * behaviour.std())
    assert np.diff(wanted)[0] < -2 * error * behaviour.std()  # it would show if it were missing


@dataclass(frozen=True)
class Push:
    """A planner that pushes x towards 0 as the effect of the action has it."""

    kind = "push"
    effect: float = 0.0

    def solve(self, problem, *, seed=0, progress=None):
        return Push(float(problem.model.W[0, 2]))

    def begin(self, n):
        return ()

    def act(self, x, h, memory):
        return -0.5 * np.sign(self.effect) * jnp.sign(x), memory


def test_one_action_one_instrument_breaks_at_the_whole_effect(simulator):
    """With no cost of acting, doing what helps pays as long as the effect keeps its sign."""
    log = simulator("linear", dim=1).collect(episodes=40, horizon=100, seed=1)
    fit = ivvi.estimate(log)
    policy = ivvi.plan(fit.model, REWARD, (-1, 1), horizon=10, method="mpc")
    settings = {"states": [[2.0]], "planner": Push(), "violations": ("-z0",), "draws": 20}
    settings |= {"against": ("zero",)}
    found = ivvi.sensitivity(policy, fit, **settings)
    gain, action = found.breakdowns
    (effect,) = found.effects
    assert effect.tipping.share[0] == pytest.approx(1.0, rel=1e-6)
    assert gain.size.share[0] == pytest.approx(1.0, rel=0.05)
    assert action.size.share[0] == pytest.approx(1.0, rel=0.05)
    assert action.question == "a0 at (2)"
    assert 0 < gain.unsure.share[0] < gain.size.share[0]
    (band,) = found.bands
    assert band.union(0.0)[0] > 0 > band.union(gain.size.t)[0]
    low, high = effect.union(effect.tipping.t)
    assert low <= 0 <= high


@pytest.mark.thorough
def test_bands_widen_with_the_violation_and_hold_the_gain(case):
    fit, policy = case
    settings = {"violations": ("worst", "z0", "-z1:x0"), "draws": 10, "episodes": 64}
    found = ivvi.sensitivity(policy, fit, **settings)
    assert [b.violation for b in found.bands] == ["worst direction", "z0", "-z1:x0"]
    for band in found.bands:
        widths = [np.subtract(*band.union(t)[::-1]) for t in (0.0, 0.5 * band.t[-1], band.t[-1])]
        assert widths == sorted(widths)
        assert (band.lower < band.gain).all()
    worst, single = (b.size for b in found.breakdowns[:2])
    assert worst is not None
    assert single is None or abs(worst.t) <= abs(single.t) * 1.02
    text = found.summary()
    assert "gain over behaviour" in text
    assert "worst direction" in text
    long = [replace(e, feature="a dose with a long name") for e in found.effects]
    rows = _rows(replace(found, effects=tuple(long)))
    assert len({row.index(b) for row, b in zip(rows, _violations(found), strict=True)}) == 1
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["level"] == 0.95


def _rows(found):
    """Return the rows of the table, below the plain sentences and the names of its columns."""
    return found.summary().partition("How far may the instrument be invalid?")[2].splitlines()[2:-1]


def _violations(found):
    shown = len(_rows(found)) - len(found.breakdowns)
    clear = [e for e in found.effects if abs(e.estimate) > e.critical * e.se]
    clear.sort(key=lambda e: -abs(e.estimate) / e.se)
    return [b.violation for b in found.breakdowns] + [e.violation for e in clear[:shown]]


def test_the_worst_direction_follows_the_gradient(case):
    fit, _ = case
    found = Exclusion(fit.moments, fit.model)
    gradient = np.array([[3.0, 4.0], [0.0, 0.0]])
    np.testing.assert_allclose(found.along("worst", gradient).direction, [[-0.6, -0.8], [0, 0]])
    with pytest.raises(InputError, match="nothing that the policy earns"):
        found.along("worst", np.zeros((2, 2)))


@given(at=st.floats(0.01, 0.9), most=st.floats(1.0, 3.0))
def test_losses_are_found_where_they_are(at, most):
    assert first_loss(lambda t: at - t, most) == pytest.approx(at, rel=1e-9)
    assert first_loss(lambda t: 1 + t, most) is None
    assert first_loss(lambda t: t - 1, most) == 0.0
    exploding = lambda t: np.where(t < at, 1.0, np.nan)  # noqa: E731
    assert first_loss(exploding, most) is None


def test_crossings_of_both_signs():
    both, one = Violation("", np.ones((1, 1))), Violation("", np.ones((1, 1)), (1.0,))
    falling, rising = (lambda sign, w=w: lambda t: 0.5 + w * sign * t for w in (-1, 1))
    assert smallest_loss(falling, both, 1.0) == pytest.approx(0.5)
    assert smallest_loss(rising, both, 1.0) == pytest.approx(-0.5)
    assert smallest_loss(rising, one, 1.0) is None


@given(most=st.floats(0.001, 50), more=st.floats(1.0, 20.0))
def test_the_same_sizes_are_looked_at_whatever_the_largest_is(most, more):
    few, many = ladder(most), ladder(more * most)
    assert few[-1] == most
    assert (np.diff(few) > 0).all()
    np.testing.assert_array_equal(few[:-1], many[: len(few) - 1])


def test_where_a_gain_is_unsure_does_not_depend_on_the_largest_size(case):
    """The gain, and the error that each size leaves, are those of the same draws."""
    fit, policy = case
    settings = {"against": ("zero",), "draws": 12, "episodes": 16}
    found = [ivvi.sensitivity(policy, fit, most=m, **settings) for m in (0.4, 1.0, 2.7)]
    first, *others = (one.breakdowns[0] for one in found)
    assert 0 < abs(first.unsure.t) < abs(first.size.t) < 0.4
    for other in others:
        assert other.size.t == pytest.approx(first.size.t, rel=1e-9)
        assert other.unsure.t == pytest.approx(first.unsure.t, rel=1e-9)
    (band,) = found[0].bands
    assert band.union(abs(first.unsure.t) * 0.9)[0] > 0 > band.union(abs(first.unsure.t) * 1.1)[0]
    with pytest.raises(InputError, match="the band was computed up to"):
        band.union(0.5)


def grouped(seed, direct=0.0, groups=40, size=8):
    """Return columns with errors and instruments that go together within groups."""
    rng = np.random.default_rng(seed)
    n, whole = groups * size, np.repeat(np.arange(groups), size)
    u, z = rng.normal(size=(2, n)) + rng.normal(size=(2, groups))[:, whole]
    x, eta, e = rng.normal(size=(3, n))
    a = 0.7 * z + 0.5 * x + u + eta
    y = 0.5 * x - 0.5 * a + u * (1 + 0.5 * np.abs(z)) + direct * z + e
    steps = np.tile(np.arange(size), groups)
    return {"x0": x, "a0": a, "z0": z, "next_x0": y, "e": whole, "t": steps}


GROUPED = {"state": "x0", "action": "a0", "instrument": "z0", "next_state": "next_x0"}
GROUPED |= {"episode": "e", "step": "t"}
IDLE = {"reward": REWARD, "horizon": 2, "against": {"half": [0.5]}, "draws": 0, "episodes": 2}


@pytest.mark.parametrize("kind", ["unadjusted", "robust", "clustered"])
@pytest.mark.parametrize("source", ["fit", "episodes", "folder"])
def test_unions_are_those_of_conley_hansen_and_rossi(kind, source, tmp_path):
    """At each size, two-stage least squares of y - gamma z with its own standard error."""
    from linearmodels.iv import IV2SLS

    rows = grouped(0)
    log = ivvi.read_logs(rows, **GROUPED)
    errors = ivvi.StandardErrors(kind, debiased=False)  # those of linearmodels
    fit = ivvi.estimate(log, se=errors, episodes=source == "episodes")
    given = {}
    if source == "folder":
        given = {"log": log}
        fit.save(tmp_path / "model")
    doubted = tmp_path / "model" if source == "folder" else fit
    words = ("z0:x0", "+z0:x0", "-z0:x0")
    found = ivvi.sensitivity("zero", doubted, violations=words, **IDLE, **given)
    assert found.notes == ()
    x, z = np.column_stack([np.ones(len(rows["x0"])), rows["x0"]]), rows["z0"]
    left = z - x @ np.linalg.lstsq(x, z, rcond=None)[0]
    covariance = {"cov_type": kind, "debiased": False}
    covariance |= {"clusters": rows["e"]} if kind == "clustered" else {}
    both, plus, minus = found.effects
    signs = {"z0:x0": 1, "+z0:x0": 1, "-z0:x0": -1}
    pulled = np.sign(both.slope * plus.slope)  # which way `z0:x0` was turned
    for effect, sizes in ((both, (-0.4, 0.4)), (plus, (0, 0.4)), (minus, (0, 0.4))):
        ends = []
        for t in np.linspace(*sizes, 41):
            sign = pulled if effect is both else signs[effect.violation]
            gamma = sign * t * np.sqrt(fit.model.noise_cov[0, 0]) / left.std()
            peer = IV2SLS(rows["next_x0"] - gamma * z, x, rows["a0"], z).fit(**covariance)
            ends.append(
                peer.params.iloc[-1]
                + np.array([-1, 1]) * 1.959963984540054 * peer.std_errors.iloc[-1]
            )
        ends = np.array(ends)
        expected = ends[:, 0].min(), ends[:, 1].max()
        np.testing.assert_allclose(effect.union(0.4), expected, rtol=1e-8)


def test_a_saved_model_says_how_its_errors_grow(tmp_path):
    fit = ivvi.estimate(ivvi.read_logs(grouped(0), **GROUPED))
    fit.save(tmp_path / "model")
    found = ivvi.sensitivity("zero", tmp_path / "model", violations=("z0",), **IDLE)
    assert "pass the log (log=, --log)" in found.to_json()["notes"][0]
    own = ivvi.sensitivity("zero", fit, violations=("z0",), **IDLE)
    assert own.effects[0].se == pytest.approx(found.effects[0].se, rel=1e-9)
    grown = own.effects[0].variance.v2 / found.effects[0].variance.v2
    assert abs(grown - 1) > 0.2  # which of them is right says the peer above


def test_a_tipping_point_has_the_sign_that_is_allowed(case):
    fit, policy = case
    words = ("+z0:x0", "-z0:x0", "z0:x0")
    found = ivvi.sensitivity(policy, fit, violations=words, draws=0, episodes=4)
    plus, minus, either = (
        next(e for e in found.effects if (e.violation, e.feature) == (word, "a0")) for word in words
    )
    assert plus.estimate < 0
    assert plus.tipping is None  # a positive direct effect hides a part of a negative effect
    assert minus.tipping.t > 0
    assert minus.tipping.share == pytest.approx(either.tipping.share)
    t = minus.tipping.t
    assert minus.union(t)[1] == pytest.approx(either.union(t)[1])
    assert plus.union(t)[0] == pytest.approx(either.union(t)[0])
    assert plus.union(t)[1] == pytest.approx(plus.union(0.0)[1], abs=0.2 * plus.se)


def test_unions_cover_at_the_stated_violation():
    """Direct effects of 1, at the end of the range allowed: 95% of 200 logs, four errors.

    Standard errors of a valid instrument, which are too small there, cover less.
    """
    direct, logs, hits, unmoved, union = 1.0, 200, 0, 0, 0
    for seed in range(logs):
        rows = grouped(seed, direct, groups=100, size=4)
        fit = ivvi.estimate(ivvi.read_logs(rows, **GROUPED))
        source = Source.of(fit)
        exclusion = Exclusion.of(source)
        violation = exclusion.along("+z0:x0", np.zeros((1, 1)))
        variances = Variances.of(exclusion, *errors_of(source), rows_of(source))
        (effect,) = effect_bands(variances, violation, 1.96, 10.0)
        x = np.column_stack([np.ones(len(rows["x0"])), rows["x0"]])
        left = rows["z0"] - x @ np.linalg.lstsq(x, rows["z0"], rcond=None)[0]
        t = direct * left.std() / exclusion.noise[0]
        low, high = effect.interval(t)
        hits += low < -0.5 < high
        unmoved += abs((low + high) / 2 + 0.5) < 1.96 * effect.se
        low, high = effect.union(t)
        union += low < -0.5 < high
    error = np.sqrt(0.95 * 0.05 / logs)
    assert abs(hits / logs - 0.95) < 4 * error
    assert union >= hits
    assert unmoved / logs < 0.95 - 4 * error


@pytest.mark.parametrize("kept", ["joint", "blocks", "none"])
def test_deviations_have_the_covariance_of_w(case, kept):
    model = case[0].model
    d_y, d_phi = model.W.shape
    whole = model.W_cov
    if kept == "blocks":
        parts = whole.reshape(d_y, d_phi, d_y, d_phi)
        model = replace(model, W_cov=np.stack([parts[i, :, i] for i in range(d_y)]))
    if kept == "none":
        model, whole = replace(model, W_cov=None), np.kron(model.noise_cov, model.bread)
    drawn = deviations(model, 4000, np.random.default_rng(0)).reshape(4000, -1)
    variance = drawn.var(axis=0)
    # a variance of 4000 normal draws has a relative standard error of sqrt(2 / 4000)
    assert np.abs(variance / np.diag(whole) - 1).max() < 5 * np.sqrt(2 / 4000)


def test_what_counts_as_a_flip():
    box = Actions.box([-1.0, 1.0], [1.0, 3.0])
    flips = has_flipped(box, np.array([0.5, 2.5]), np.array([0.1, 1.5]))
    assert flips.tolist() == [False, True]  # the second box does not hold 0: its middle is 2
    finite = Actions.binary(2)
    assert has_flipped(finite, np.array([0.0, 1.0]), np.array([0.0, 0.0])).tolist() == [False, True]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"against": ("noone",)},
            "unknown policy 'noone'; behaviour, zero, least-squares, lowest, highest are known",
        ),
        ({"against": ()}, "no rival was given"),
        ({"violations": ("z9",)}, "there is no instrument 'z9'"),
        ({"violations": ("z0:x9",)}, "there is no output 'x9'"),
        ({"states": [[1.0]]}, "rows of 2 finite numbers"),
        ({"starts": [[1.0]]}, "expected rows of 2"),
        ({"most": 0.0}, "most is 0.0; expected a finite number above 0"),
        ({"most": 1e308}, "most is 1e+308; expected at most 1e+06"),
        ({"most": np.inf}, "most is inf; expected a finite number above 0"),
        ({"most": np.nan}, "most is nan; expected a finite number above 0"),
        ({"level": 2.0}, "the level is 2"),
        ({"horizon": 0}, "the horizon is 0; expected a whole number from 1 on"),
        ({"episodes": 0}, "episodes is 0"),
    ],
)
def test_bad_requests_are_refused_in_a_sentence(case, settings, sentence):
    fit, policy = case
    with pytest.raises(InputError) as caught:
        ivvi.sensitivity(policy, fit, **{"draws": 0, "episodes": 4, **settings})
    assert sentence in str(caught.value)


def test_what_cannot_be_doubted_is_refused(case, simulator):
    fit, policy = case
    with pytest.raises(InputError, match="needs a reward"):
        ivvi.sensitivity(lambda x: x, fit)
    again = {"reward": REWARD, "horizon": 2, "states": [[1.0, 1.0]], "draws": 0, "episodes": 2}
    with pytest.raises(InputError, match="planning again needs planner="):
        ivvi.sensitivity(lambda x: np.clip(x, -1, 1), fit, **again)
    with pytest.raises(InputError, match="a fit, a saved model or dynamics"):
        ivvi.sensitivity(policy, 3)
    log = simulator("linear", dim=2, setting="III").collect(episodes=20, horizon=100, seed=3)
    with pytest.raises(InputError, match="least squares uses no instrument"):
        ivvi.sensitivity(policy, ivvi.estimate(log, method="least-squares"))


def test_the_command_says_and_draws_the_same(case, tmp_path):
    fit, policy = case
    fit.save(tmp_path / "model")
    policy.save(tmp_path / "policy")
    target, figure = tmp_path / "found.json", tmp_path / "found.svg"
    options = ("--model", tmp_path / "model", "--violations", "z0", "--draws", 4, "--episodes", 8)
    options += ("--against", "zero")
    result = run(
        *("sensitivity", tmp_path / "policy", *options, "--json", target, "--plot", figure)
    )
    assert result.code == 0, result.err
    settings = {"violations": ("z0",), "draws": 4, "episodes": 8, "against": ("zero",)}
    found = ivvi.sensitivity(policy, tmp_path / "model", **settings)
    assert result.out.splitlines()[:-1] == found.summary().splitlines()
    assert json.loads(target.read_text()) == json.loads(json.dumps(found.to_json()))
    assert figure.read_text().lstrip().startswith("<?xml")
    again = run("sensitivity", tmp_path / "policy", *options, "--plot", figure)
    assert again.code == 2
    assert "exists" in again.err


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--against", "nobody"), "unknown policy 'nobody'"),
        (("--state", "1,2", "--states", "t.csv"), "either --state or --states"),
        (("--state", "1,one"), "'one'"),
        (("--plot", "found.gif"), "no known ending"),
    ],
)
def test_bad_options_write_nothing(case, tmp_path, options, sentence, monkeypatch):
    fit, policy = case
    monkeypatch.chdir(tmp_path)
    fit.save("model")
    policy.save("policy")
    result = run("sensitivity", "policy", "--model", "model", *options)
    assert result.code == 2
    assert sentence in result.err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model", "policy"]


def test_a_model_without_moments_cannot_be_doubted(case, tmp_path):
    fit, policy = case
    fit.save(tmp_path / "model", moments=False)
    with pytest.raises(InputError, match="keeps no moments"):
        ivvi.sensitivity(policy, tmp_path / "model")


@pytest.mark.filterwarnings("ignore:.* draws are few:ivvi.errors.IvviWarning")
@pytest.mark.parametrize("word", ["behaviour", "least-squares"])
def test_without_doubt_the_gain_is_that_of_its_value(case, word):
    """The first of the episodes that `ivvi.value` simulates: four errors of their mean."""
    fit, policy = case
    settings = {"against": (word,), "starts": [[2.0, -1.0]]}
    found = ivvi.sensitivity(policy, fit, **settings, draws=0, most=0.1)
    (band,) = found.bands
    at = int(np.argmin(np.abs(band.t)))
    assert band.t[at] == pytest.approx(0.0, abs=1e-12)
    worth = ivvi.value(policy, fit, **settings, draws=20)
    error = band.simulation_error[at]
    assert 0 < error < 0.25 * band.gain[at]
    assert abs(band.gain[at] - worth.gains[word].estimate) < 4 * error


def test_a_model_of_moments_alone_is_told_the_other_rivals(case, tmp_path):
    fit, policy = case
    replace(fit, sample=None).save(tmp_path / "model")
    with pytest.raises(InputError, match=r"behaviour policy is not known.*name other rivals"):
        ivvi.sensitivity(policy, tmp_path / "model", starts=[[2.0, 2.0]])
    policy.save(tmp_path / "policy")
    options = ("--model", tmp_path / "model", "--draws", 0, "--episodes", 8, "--start", "2,2")
    result = run("sensitivity", tmp_path / "policy", *options, "--against", "zero")
    assert result.code == 0, result.err
    assert "gain over zero" in result.out


@pytest.mark.parametrize(
    ("unsure", "lost", "said", "advice"),
    [
        (None, None, "Sturdy: over doing nothing it bears every", "try the policy"),
        (0.8, 0.9, "Sturdy: over doing nothing it is no longer certain once", "try the policy"),
        (0.3, 0.9, "Middling: .* 30% .*, and lost at 90%", "try the policy"),
        (0.02, None, "Fragile: ", "Do not act on it"),
        (0.0, 0.9, "Not certain over doing nothing, even with a valid", "Collect more"),
    ],
)
def test_an_analysis_opens_with_how_much_the_gain_bears(unsure, lost, said, advice):
    def size(t):
        return None if t is None else Size(t, ("y",), (t,), (t,), (t / 4,))

    band = SimpleNamespace(rival="zero")
    gain = Breakdown("gain over zero", "worst", size(lost), size(unsure), size(2.0), True)
    brief = Sensitivity((gain,), (band,), (), 0.95).brief.to_json()
    assert re.match(said, brief["gain"])
    assert advice in brief["next"]
