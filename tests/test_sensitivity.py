"""How far the instrument may be invalid: algebra, breakdown points, bands, the command."""

import json
from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ivvi
from helpers import run
from ivvi.actions import Actions
from ivvi.errors import InputError
from ivvi.estimators import Exact
from ivvi.experiments.breakdown import Record, measure, root, table
from ivvi.invalidity.flips import has_flipped
from ivvi.invalidity.gains import deviations, first_loss, smallest_crossing
from ivvi.invalidity.violations import Exclusion, Violation
from ivvi.invalidity.worlds import Worlds, constant
from ivvi.model_env import ModelSimulator, one_of
from ivvi.rollouts import roll_out

REWARD = "quadratic:weight=0.05"


@pytest.fixture(scope="module")
def case(simulator):
    """Return a fit of a log of two states, and a policy planned with it."""
    log = simulator("linear", dim=2, setting="III").collect(episodes=30, horizon=100, seed=3)
    fit = ivvi.estimate(log)
    return fit, ivvi.plan(fit.model, REWARD, (-1, 1), horizon=10)


def exclusion_of(moments_of, x, a, z, y, features="linear"):
    moments = moments_of(x, a, z, y, features=features)
    estimate = Exact().solve(moments)
    names = [tuple(f"{c}{i}" for i in range(p.shape[1])) for c, p in (("x", x), ("a", a))]
    outputs = moments.layout.outputs
    parts = (estimate.layout.phi, estimate.W, estimate.noise_cov, estimate.bread)
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
    layout, space = found.moments.layout, found.space
    rows = np.zeros((len(x), layout.width))
    for block, argument, at in layout.pieces:
        values = block(x, a if argument == "action" else z)
        rows[:, at : at + values.shape[1]] = values
    psi = (rows - space.shift) @ space.T
    np.testing.assert_allclose(psi.T @ psi / len(x), np.eye(found.rank), atol=1e-8)
    cleaned = y - t * (psi @ G.T) * found.noise
    expected = Exact().solve(moments_of(x, a, z, cleaned, features=features)).W
    np.testing.assert_allclose(found.W_at(Violation("", G), t), expected, rtol=1e-6, atol=1e-7)


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
    t = abs(reduced) / found.noise[0]
    size = found.size(violation, t)
    assert size.share[0] == pytest.approx(1.0, rel=1e-6)
    assert size.direct[0] == pytest.approx(abs(reduced), rel=1e-6)
    W = found.W_at(violation, np.sign(reduced) * t)
    assert W[0, 2] == pytest.approx(0.0, abs=1e-6 * np.abs(found.model.W).max())
    signed = np.sign(reduced) * t
    error = y - np.column_stack([np.ones(len(x)), x, a]) @ found.W_at(violation, signed)[0][:, None]
    rho = np.corrcoef(clean[:, 0], error[:, 0])[0, 1]
    assert found.size(violation, signed).correlation[0] == pytest.approx(abs(rho), rel=1e-6)


def test_no_direction_moves_an_effect_more_than_its_own(case):
    fit, _ = case
    found = Exclusion(fit.moments, fit.model)
    rng = np.random.default_rng(0)
    own = found.against(0, 3)
    most = (fit.W - found.W_at(own, 1.0))[0, 3]
    assert np.sign(most) == np.sign(fit.W[0, 3])
    for _ in range(20):
        G = np.zeros_like(own.G)
        G[0] = rng.normal(size=found.rank)
        G[0] /= np.linalg.norm(G[0])
        assert abs((fit.W - found.W_at(Violation("", G), 1.0))[0, 3]) <= abs(most) * (1 + 1e-9)


def test_worlds_earn_what_the_model_simulator_earns(case):
    """The same model, other draws: within four standard errors."""
    fit, policy = case
    starts = np.full((200, 2), 2.0)
    worlds = Worlds(replace(policy.problem, model=fit.model), starts, seed=1)
    simulator = ModelSimulator(fit.model, policy.problem.reward, one_of(starts))
    half = constant(np.array([0.5, -0.5]))
    stacked = worlds.returns(half, np.stack([fit.W] * 3), np.stack([fit.model.noise_cov] * 3))
    assert np.ptp(stacked) < 1e-9 * abs(stacked[0])
    alone = roll_out(simulator, half, episodes=200, horizon=10, seed=2).returns
    assert abs(stacked[0] - alone.mean()) < 4 * np.sqrt(2) * alone.std() / np.sqrt(200)


def test_a_compiled_policy_earns_the_same_as_the_function(case):
    fit, policy = case
    worlds = Worlds(replace(policy.problem, model=fit.model), np.full((8, 2), 2.0))
    W = np.stack([fit.W, 0.9 * fit.W, 1.1 * fit.W])
    noise = np.stack([fit.model.noise_cov] * 3)
    called = worlds.returns(lambda x: policy(x), W, noise)
    np.testing.assert_allclose(worlds.returns(policy, W, noise), called, rtol=1e-9)


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
    policy = ivvi.plan(fit.model, REWARD, (-1, 1), horizon=10)
    settings = {"states": [[2.0]], "planner": Push(), "violations": ("-z0",), "draws": 20}
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


def test_bands_widen_with_the_violation_and_hold_the_gain(case):
    fit, policy = case
    found = ivvi.sensitivity(policy, fit, violations=("worst", "z0", "-z1:x0"), draws=10)
    assert [b.violation for b in found.bands] == ["worst direction", "z0", "-z1:x0"]
    for band in found.bands:
        widths = [np.subtract(*band.union(t)[::-1]) for t in (0.0, 0.5 * band.t[-1], band.t[-1])]
        assert widths == sorted(widths)
        assert (band.lower < band.gain).all()
    worst, single = (b.size for b in found.breakdowns[:2])
    assert worst is not None
    assert single is None or abs(worst.t) <= abs(single.t) * 1.02
    text = found.summary()
    assert "gain over zero" in text
    assert "worst direction" in text
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["level"] == 0.95


def test_the_worst_direction_follows_the_gradient(case):
    fit, _ = case
    found = Exclusion(fit.moments, fit.model)
    gradient = np.array([[3.0, 4.0], [0.0, 0.0]])
    np.testing.assert_allclose(found.along("worst", gradient).G, [[-0.6, -0.8], [0, 0]])
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
    t = np.linspace(-1, 1, 201)
    assert smallest_crossing(t, 0.5 - t, (1.0, -1.0)) == pytest.approx(0.5)
    assert smallest_crossing(t, 0.5 + t, (1.0, -1.0)) == pytest.approx(-0.5)
    assert smallest_crossing(t, 0.5 + t, (1.0,)) is None


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
            "unknown rival 'noone'; behaviour, zero, least-squares are known",
        ),
        ({"against": ()}, "no rival was given"),
        ({"violations": ("z9",)}, "there is no instrument 'z9'"),
        ({"violations": ("z0:x9",)}, "there is no output 'x9'"),
        ({"states": [[1.0]]}, "rows of 2 finite numbers"),
        ({"starts": [[1.0]]}, "rows of 2 are wanted"),
        ({"most": 0.0}, "most is 0.0; a number above 0"),
        ({"level": 2.0}, "the level is 2"),
        ({"horizon": 0}, "the horizon is 0; at least 1"),
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
    with pytest.raises(InputError, match="a function is no plan"):
        ivvi.sensitivity(lambda x: x, fit)
    with pytest.raises(InputError, match="a fit or a saved model is wanted"):
        ivvi.sensitivity(policy, 3)
    log = simulator("linear", dim=2, setting="III").collect(episodes=20, horizon=100, seed=3)
    with pytest.raises(InputError, match="least squares uses no instrument"):
        ivvi.sensitivity(policy, ivvi.estimate(log, method="least-squares"))
    with pytest.raises(InputError, match="a policy of this model is wanted"):
        ivvi.sensitivity(policy, ivvi.estimate(log, "poly2"))


def test_the_command_says_and_draws_the_same(case, tmp_path):
    fit, policy = case
    fit.save(tmp_path / "model")
    policy.save(tmp_path / "policy")
    target, figure = tmp_path / "found.json", tmp_path / "found.svg"
    options = ("--model", tmp_path / "model", "--violations", "z0", "--draws", 4, "--episodes", 8)
    result = run(
        *("sensitivity", tmp_path / "policy", *options, "--json", target, "--plot", figure)
    )
    assert result.code == 0, result.err
    found = ivvi.sensitivity(policy, fit, violations=("z0",), draws=4, episodes=8)
    assert result.out.splitlines()[:-1] == found.summary().splitlines()
    assert json.loads(target.read_text()) == json.loads(json.dumps(found.to_dict()))
    assert figure.read_text().lstrip().startswith("<?xml")
    again = run("sensitivity", tmp_path / "policy", *options, "--plot", figure)
    assert again.code == 2
    assert "exists" in again.err


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--against", "nobody"), "unknown rival 'nobody'"),
        (("--state", "1,2", "--states", "t.csv"), "not both"),
        (("--state", "one"), "is not a number"),
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


def test_brute_force_bisects_to_the_first_change_of_sign():
    assert root(lambda v: 0.3 - v, 1.0, 12) == pytest.approx(0.3, abs=1e-3)
    assert root(lambda v: 0.3 + v, -1.0, 12) == pytest.approx(-0.3, abs=1e-3)
    with pytest.raises(InputError, match="does not change"):
        root(lambda v: 1.0, 1.0)
    assert "0.980" in table([Record("gain", 1, "I", 0.5, 0.49, 1.0, 0.2)])


@pytest.mark.slow
@pytest.mark.parametrize("question", ["gain", "action"])
@pytest.mark.parametrize("setting", ["I", "III"])
def test_breakdown_agrees_with_brute_force(question, setting):
    """Logs with as much invalidity as the breakdown point says lose what it says."""
    assert measure(question, 2, setting).ratio == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("word", ["behaviour", "least-squares"])
def test_rivals_by_word_earn_what_their_values_say(case, word):
    """Without doubt the gain is that of `ivvi.value`: 0.7 and 2.7.

    The gain of one episode has a standard deviation of about 1; the tolerance is four standard
    errors of means over 512 and 400 episodes.
    """
    fit, policy = case
    settings = {"against": (word,), "starts": [[2.0, -1.0]]}
    found = ivvi.sensitivity(policy, fit, **settings, episodes=512, draws=0, most=0.1)
    gain = np.interp(0.0, found.bands[0].t, found.bands[0].gain)
    worth = ivvi.value(policy, fit, **settings, draws=20)
    assert gain == pytest.approx(worth.gains[word].estimate, abs=0.27)
