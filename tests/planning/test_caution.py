"""Caution: bounds on gains, directions of action, support, and the firmness of advice."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ivvi
from helpers import run
from ivvi import InputError
from ivvi.planning.behaviour_policy import BehaviourPolicy, Support
from ivvi.planning.cautious import SCENARIOS, STEPS, directions, scenarios
from ivvi.planning.simple_rules import fall_back

# what a cautious plan leaves undone may be worth something in the model
pytestmark = pytest.mark.filterwarnings("ignore:the plan loses to a simple rival")

REWARD = "quadratic:weight=0.05"


@pytest.fixture(scope="module")
def fit(simulated):
    return ivvi.estimate(simulated("linear", 2, episodes=40, horizon=25, seed=1), episodes=True)


@pytest.fixture(scope="module")
def cautious(fit):
    return ivvi.plan(
        fit.model, REWARD, (-1, 1), horizon=20, caution=0.9, method="mpc", compare=False
    )


@pytest.fixture(scope="module")
def plain(fit):
    return ivvi.plan(fit.model, REWARD, (-1, 1), horizon=20, method="mpc", compare=False)


def vague(model, scale, column=None):
    """Return the model with the covariance of W multiplied, of one feature or of all."""
    root = np.ones(model.W.shape)
    root[:, slice(None) if column is None else column] = scale
    return replace(model, W_cov=model.W_cov * np.outer(root.ravel(), root.ravel()))


def test_no_caution_is_the_plan_itself(fit, plain):
    assert plain.rule.kind == "mpc"
    assert (
        ivvi.plan(
            fit.model, REWARD, (-1, 1), horizon=20, caution=0.0, method="mpc", compare=False
        ).rule.kind
        == "mpc"
    )


def test_where_the_log_is_sure_caution_follows_the_plan(plain, cautious):
    x = np.array([[5.0, 4.0], [-6.0, 3.0], [-9.0, -9.0]])
    np.testing.assert_allclose(cautious(x), plain(x), atol=1e-6)


def test_where_the_log_is_unsure_caution_does_what_was_usual(fit):
    settings = {
        "horizon": 20,
        "caution": 0.9,
        "fallback": "usual",
        "method": "mpc",
        "compare": False,
    }
    unsure = ivvi.plan(vague(fit.model, 1000.0), REWARD, (-1, 1), **settings)
    x = fit.model.states[::100]
    with jax.enable_x64(True):
        usual = np.asarray(BehaviourPolicy.of(fit.model).usual(jnp.asarray(x)))
    np.testing.assert_allclose(unsure(x), usual, atol=1e-9)


def test_caution_leaves_alone_the_direction_that_is_not_known(fit):
    a1 = fit.estimate.design.phi_names.index("a1")
    model = vague(fit.model, 100.0, a1)
    settings = {"caution": 0.9, "fallback": "usual", "method": "mpc", "compare": False}
    policy = ivvi.plan(model, REWARD, (-1, 1), horizon=20, **settings)
    x = np.array([[8.0, 8.0], [-8.0, -8.0]])
    with jax.enable_x64(True):
        usual = np.asarray(BehaviourPolicy.of(model).usual(jnp.asarray(x)))
    acted = policy(x)
    np.testing.assert_allclose(acted[:, 0], [1.0, -1.0], atol=0.05)
    np.testing.assert_allclose(acted[:, 1], usual[:, 1], atol=0.05)


def test_more_caution_never_raises_a_bound(fit, cautious):
    rule = cautious.rule
    with jax.enable_x64(True):
        x = jnp.asarray(fit.model.states[:5])
        b = fall_back(rule.fallback, x, 0)
        options = jnp.stack([b + t * (1.0 - b) for t in (0.0, 0.25, 0.5, 1.0)], axis=1)
        bounds = [
            np.asarray(replace(rule, caution=level).bounds(x, options, 0))
            for level in (0.1, 0.5, 0.9)
        ]
    assert (bounds[0][:, 0] == 0).all()
    assert (np.diff(bounds, axis=0) <= 1e-12).all()
    assert (np.diff(bounds, axis=0)[:, :, 1:] < 0).all()


def test_draws_agree_with_the_directions_of_the_error(fit):
    drawn = scenarios(fit.model, 4000, np.random.default_rng(0))
    np.testing.assert_array_equal(drawn[0], fit.W)
    np.testing.assert_allclose(drawn[1:].std(axis=0), fit.se, rtol=0.08)
    towards = directions(fit.model, drawn)
    np.testing.assert_allclose(towards[-1], np.eye(2), atol=1e-12)
    np.testing.assert_allclose(towards[0] @ towards[0], towards[0], atol=1e-12)
    assert np.linalg.matrix_rank(towards[0]) == 1


def test_free_directions_are_drawn_wide(simulated):
    log = simulated("linear", 2, episodes=40, horizon=25, seed=1)
    rows = {n: log.to_arrow()[n].to_numpy() for n in log.to_arrow().column_names}
    roles = {"state": "x*", "action": "a*", "instrument": "z0", "next_state": "next_x*"}
    with pytest.warns(ivvi.errors.IvviWarning, match="not identified"):
        fit = ivvi.estimate(ivvi.read_logs(rows, **roles), allow_unidentified=True)
    drawn = scenarios(fit.model, SCENARIOS, np.random.default_rng(0))
    towards = directions(fit.model, drawn)
    best = np.linalg.eigh(towards[0] + towards[0].T)[1][:, -1]
    assert abs(best[0]) > 0.9  # z0 moves a0 and leaves a1 free
    assert drawn[1:, :, 3:].std() > 3


def test_cautious_policies_are_saved_and_loaded(fit, tmp_path, cautious):
    guarded = ivvi.plan(
        fit.model,
        REWARD,
        (-1, 1),
        horizon=20,
        caution=0.5,
        abstain=0.9,
        method="mpc",
        compare=False,
    )
    guarded.save(tmp_path / "guarded")
    same = ivvi.load_policy(tmp_path / "guarded")
    assert (same.rule.caution, same.rule.abstain) == (0.5, 0.9)
    x = fit.model.states[:50]
    np.testing.assert_array_equal(same(x), guarded(x))
    cautious.save(tmp_path / "cautious")
    assert ivvi.load_policy(tmp_path / "cautious").rule.support is None


def test_outside_the_log_what_was_usual_is_done(fit, plain):
    model = fit.model
    support = Support.of(model, 0.95)
    with jax.enable_x64(True):
        inside = np.asarray(support.outside(jnp.asarray(model.states), jnp.asarray(model.acted)))
        far = jnp.full((1, 2), 100.0)
        usual = np.asarray(BehaviourPolicy.of(model).usual(far))
        assert bool(support.outside(far, jnp.zeros((1, 2)))[0])
    assert inside.mean() == pytest.approx(0.05, abs=0.002)
    policy = ivvi.plan(
        model,
        REWARD,
        (-1, 1),
        horizon=20,
        abstain=0.95,
        fallback="usual",
        method="mpc",
        compare=False,
    )
    np.testing.assert_allclose(policy([[100.0, 100.0]]), usual)
    near = np.array([[0.3, -0.2]])
    np.testing.assert_allclose(policy(near), plain(near), atol=1e-9)


def test_caution_chooses_from_a_finite_set(fit):
    choices = [[-1.0, -1.0], [0.0, 0.0], [1.0, 1.0]]
    x = np.array([[8.0, 8.0]])
    sure = ivvi.plan(
        fit.model, REWARD, choices, horizon=20, caution=0.9, method="mpc", compare=False
    )
    assert sure(x).tolist() == [[1.0, 1.0]]
    settings = {
        "horizon": 20,
        "caution": 0.9,
        "fallback": "usual",
        "method": "mpc",
        "compare": False,
    }
    unsure = ivvi.plan(vague(fit.model, 1000.0), REWARD, choices, **settings)
    assert unsure(x).tolist() == [[0.0, 0.0]]


def test_advice_is_firm_where_plans_for_all_draws_agree(fit, plain):
    stability = ivvi.stability(plain, fit, [[10.0, 10.0], [0.05, 0.0], [300.0, 0.0]], draws=20)
    assert stability.agreement[0] == 1.0  # saturated
    assert stability.drawn.shape == (20, 3, 2)
    assert stability.outside.tolist() == [False, False, True]
    assert "outside the log" in stability.summary().splitlines()[-1]
    loose = ivvi.stability(plain, vague(fit.model, 30.0), [[3.0, -3.0]] * 3, draws=20)
    assert loose.agreement[0] < 0.9


def test_the_command_line_is_cautious_and_says_how_firm(fit, plain, tmp_path):
    fit.save(tmp_path / "model")
    done = run(
        *("plan", tmp_path / "model", "--reward", REWARD, "--action-low", -1, "--action-high", 1),
        *("--horizon", 20, "--caution", 0.9, "--abstain", 0.99, "--out", tmp_path / "careful"),
    )
    assert done.code == 0, done.err
    assert ivvi.load_policy(tmp_path / "careful").rule.support is not None
    plain.save(tmp_path / "plain")
    done = run(
        *("act", tmp_path / "plain", "--state", "10,10", "--model", tmp_path / "model"),
        *("--json", "-"),
    )
    assert done.code == 0, done.err
    assert json.loads(done.out)["agreement"] == [1.0]


@pytest.mark.parametrize(
    ("settings", "fact"),
    [
        ({"caution": 1.0}, "in [0, 1)"),
        ({"caution": -0.1}, "in [0, 1)"),
        ({"abstain": 0.0}, "(0, 1]"),
    ],
)
def test_impossible_caution_is_refused(fit, settings, fact):
    with pytest.raises(InputError, match="expected") as caught:
        ivvi.plan(fit.model, REWARD, (-1, 1), **settings)
    assert fact in str(caught.value)


def test_caution_needs_rows_of_the_log(fit):
    bare = replace(fit.model, acted=np.empty((0, 0)))
    with pytest.raises(InputError, match="needs rows of the log"):
        ivvi.plan(bare, REWARD, (-1, 1), caution=0.5, method="mpc", compare=False)


def treated_or_not(cost):
    """A log in which nearly everybody was treated, for better or worse: x' = .5 x + 2 a + e."""
    rng = np.random.default_rng(2)
    x, z, e = rng.normal(size=(3, 3000))
    a = (2.0 + z + e > 0) * 1.0
    rows = {"x0": x, "a0": a, "z0": z, "next_x0": 0.5 * x + 2 * a + e}
    columns = {"state": "x0", "action": "a0", "instrument": "z0", "next_state": "next_x0"}
    model = ivvi.estimate(ivvi.read_logs(rows, **columns)).model
    return ivvi.plan(
        vague(model, 3.0),
        f"quadratic:weight=1,action_weight={cost}",
        [[0.0], [1.0]],
        horizon=10,
        caution=0.9,
        method="mpc",
        compare=False,
    )


def test_caution_does_not_fall_back_on_what_is_worst():
    """Treatment does harm, and most were treated: doing nothing is what to fall back on."""
    rule = treated_or_not(5).rule
    assert rule.fallback.kind == "held"
    assert rule.fallback.action.tolist() == [0.0]


@pytest.mark.parametrize(
    ("asked", "done"),
    [("zero", [0.0, 0.0]), ([0.5, -0.5], [0.5, -0.5]), (lambda x: 0 * x + 0.25, [0.25, 0.25])],
)
def test_the_fallback_may_be_asked_for(fit, asked, done):
    settings = {"horizon": 20, "caution": 0.9, "fallback": asked, "method": "mpc", "compare": False}
    unsure = ivvi.plan(vague(fit.model, 1000.0), REWARD, (-1, 1), **settings)
    np.testing.assert_allclose(unsure(fit.model.states[:3]), [done] * 3)


def test_a_learned_reward_fades_outside_the_log_for_caution_too():
    """Returns are those of the model: beyond its reach a learned reward falls."""
    rng = np.random.default_rng(0)
    states, acted = rng.normal(size=(400, 1)), rng.uniform(-1, 1, (400, 1))
    W = np.array([[0.0, 0.5, 1.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0, 0.0]])  # [1, x, a, x^2, a^2]
    followed = np.hstack([0.5 * states + acted, states])
    names = ("x0",), ("a0",), ("x0", "r")
    rows = {"states": states, "starts": states[:64], "acted": acted, "followed": followed}
    phi, noise = ivvi.features.polynomial(2), 0.01 * np.eye(2)
    model = ivvi.Dynamics(phi, W, noise, np.eye(5) * 1e-4, *names, has_reward=True, **rows)
    settings = {"horizon": 1, "caution": 0.9, "fallback": "zero", "method": "mpc", "compare": False}
    rule = ivvi.plan(model, "learned", (-1, 1), **settings).rule
    x, a, total = np.array([[1.0], [50.0]]), np.full((2, 1), 0.5), np.zeros(2)
    with jax.enable_x64(True):
        earned = np.asarray(rule.returns(jnp.asarray(x), jnp.asarray(a), 0, jnp.asarray(W)))
    for _ in range(STEPS + 1):
        total += np.asarray(model.reward(x, a))
        x, a = np.asarray(model.mean(x, a)), 0 * a
    np.testing.assert_allclose(earned, total, atol=1e-9)
    assert earned[1] < earned[0]  # without the fading it would earn more


def test_a_policy_may_be_the_fallback(fit, plain, tmp_path):
    settings = {"horizon": 20, "caution": 0.9, "fallback": plain, "method": "mpc", "compare": False}
    unsure = ivvi.plan(vague(fit.model, 1000.0), REWARD, (-1, 1), **settings)
    x = fit.model.states[:3]
    np.testing.assert_allclose(unsure(x), plain(x), atol=1e-6)
    with pytest.raises(InputError, match="cannot be saved: its fallback is another plan"):
        unsure.save(tmp_path / "unsure")


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ("usuall", "the fallback is 'usuall'"),
        ([1.0], "an action of 2 numbers"),
        ([7.0, 0.0], r"the fallback \(7, 0\) is not among the actions"),
        (lambda x: x[:, 0], r"the fallback returned actions of shape"),
        (lambda x: np.array(x) * 0.0, "the fallback cannot be compiled"),
    ],
)
def test_a_fallback_that_is_none_is_refused(fit, asked, sentence):
    with pytest.raises(InputError, match=sentence):
        ivvi.plan(
            fit.model,
            REWARD,
            (-1, 1),
            horizon=5,
            caution=0.9,
            fallback=asked,
            method="mpc",
            compare=False,
        )([1.0, 1.0])


def test_fallbacks_are_saved_and_asked_for_on_the_command_line(fit, tmp_path):
    fit.save(tmp_path / "model")
    for word, kind in (("zero", "held"), ("0.5,-0.5", "held"), ("usual", "usual")):
        done = run(
            *("plan", tmp_path / "model", "--reward", REWARD, "--action-low", -1),
            *("--action-high", 1, "--horizon", 20, "--caution", 0.9, "--fallback", word),
            *("--out", tmp_path / "careful", "--force", "--method", "mpc"),
        )
        assert done.code == 0, done.err
        assert ivvi.load_policy(tmp_path / "careful").rule.fallback.kind == kind
    bad = run(
        *("plan", tmp_path / "model", "--reward", REWARD, "--action-low", -1, "--action-high", 1),
        *("--caution", 0.9, "--fallback", "nobody", "--out", tmp_path / "none"),
    )
    assert bad.code == 2
    assert "the fallback is 'nobody'" in bad.err
