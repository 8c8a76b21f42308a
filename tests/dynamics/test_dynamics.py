"""The estimated world: its mean, its noise, its reward, and that it survives being saved."""

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import helpers
import ivvi
from ivvi import Dynamics, InputError, custom, linear, load_model, one_hot
from ivvi._io.files import save_folder
from ivvi.errors import FileError
from ivvi.features import fourier, polynomial, spline

RNG = np.random.default_rng(0)
X, A = RNG.normal(size=(40, 2)), RNG.integers(0, 3, size=(40, 1)).astype(float)
FEATURES = {
    "linear": linear(),
    "poly2": polynomial(2),
    "poly2:cross": polynomial(2, cross=True),
    "spline": spline(5),
    "fourier": fourier(30, seed=3),
    "one-hot": linear() + one_hot("input").fitted(X, A),
    "custom": linear() + custom(helpers.waves, ["product", "cube"]),
}
COVARIANCE = np.array([[2.0, -0.6, 0.3], [-0.6, 0.5, 0.1], [0.3, 0.1, 1.0]])


def model_with(features="linear", *, reward=True):
    phi = FEATURES[features].fitted(X, A)
    d_y, d_phi = 2 + reward, len(phi.names(["x0", "x1"], ["a0"]))
    rng = np.random.default_rng(1)
    bread = rng.normal(size=(d_phi, d_phi))
    return Dynamics(
        phi=phi,
        W=rng.normal(size=(d_y, d_phi)),
        noise_cov=COVARIANCE[:d_y, :d_y],
        bread=bread @ bread.T,
        state=("x0", "x1"),
        action=("a0",),
        outputs=("next_x0", "next_x1", "reward")[:d_y],
        has_reward=reward,
        unidentified=("a0 - x0",),
    )


@pytest.mark.parametrize("features", FEATURES)
def test_mean_and_reward_are_linear_in_the_features(features):
    model = model_with(features)
    outputs = model.phi(X, A) @ model.W.T
    assert np.array_equal(model.mean(X, A), outputs[:, :2])
    assert np.array_equal(model.reward(X, A), outputs[:, 2])


def test_the_mean_of_a_linear_model_is_w_times_its_features():
    model = model_with(reward=False)
    by_hand = model.W @ np.array([1.0, *X[3], *A[3]])
    assert model.mean(X[3], A[3]) == pytest.approx(by_hand, rel=1e-14)


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("lead", [(), (1,), (40,), (5, 8)])
def test_single_and_batched_inputs_keep_their_shapes(features, lead):
    model = model_with(features)
    n = int(np.prod(lead))
    x, a = X[:n].reshape(*lead, 2), A[:n].reshape(*lead, 1)
    assert model.mean(x, a).shape == (*lead, 2)
    assert model.reward(x, a).shape == lead
    assert model.sample(x, a, 0).shape == (*lead, 2)
    assert model.mean(x, a) == pytest.approx(model.mean(X[:n], A[:n]).reshape(*lead, 2), rel=1e-12)


@pytest.mark.parametrize("features", FEATURES)
def test_jax_and_numpy_agree(features):
    model = model_with(features)
    with jax.enable_x64(True):
        x, a = jnp.asarray(X), jnp.asarray(A)
        mean, reward = model.mean(x, a), model.reward(x, a)
        assert isinstance(mean, jax.Array)
        assert mean.dtype == reward.dtype == np.float64
        assert np.asarray(mean) == pytest.approx(model.mean(X, A), rel=1e-12, abs=1e-12)
        assert np.asarray(reward) == pytest.approx(model.reward(X, A), rel=1e-12, abs=1e-12)


def test_the_model_can_be_compiled_and_differentiated():
    model = model_with("poly2")
    with jax.enable_x64(True):
        key, x, a = jax.random.key(0), jnp.asarray(X), jnp.asarray(A)

        def step(key, x, a):
            slope = jax.grad(lambda a: model.mean(x[0], a)[0])(a[0])
            return model.mean(x, a), model.sample(x, a, key), slope

        mean, draw, slope = jax.jit(step)(key, x, a)
        assert np.asarray(mean) == pytest.approx(model.mean(X, A), rel=1e-12)
        assert np.asarray(draw) == pytest.approx(np.asarray(model.sample(x, a, key)), rel=1e-12)
    names = model.phi.names(model.state, model.action)
    by_hand = model.W[0, names.index("a0")] + 2 * A[0] * model.W[0, names.index("a0^2")]
    assert np.asarray(slope) == pytest.approx(by_hand, rel=1e-12)


@pytest.mark.parametrize("reward", [False, True])
@pytest.mark.parametrize("library", ["numpy", "jax"])
def test_samples_have_the_mean_and_covariance_of_the_noise(library, reward):
    """Entry (i, j) of a normal sample covariance has variance (s_ii s_jj + s_ij^2) / n."""
    model, n = model_with(reward=reward), 40_000
    x, a = np.tile(X[:1], (n, 1)), np.tile(A[:1], (n, 1))
    if library == "numpy":
        draws = model.sample(x, a, np.random.default_rng(2))
    else:
        with jax.enable_x64(True):
            draws = np.asarray(model.sample(jnp.asarray(x), jnp.asarray(a), jax.random.key(2)))
    noise, wanted = draws - model.mean(x, a), COVARIANCE[:2, :2]
    spread = np.diag(wanted)
    assert (np.abs(noise.mean(axis=0)) < 5 * np.sqrt(spread / n)).all()
    found = noise.T @ noise / n
    assert (np.abs(found - wanted) < 5 * np.sqrt((np.outer(spread, spread) + wanted**2) / n)).all()


def test_samples_of_a_model_without_noise_are_the_mean():
    model = model_with(reward=False)
    still = Dynamics(**{**vars(model), "noise_cov": np.zeros((2, 2))})
    assert np.array_equal(still.sample(X, A, 0), still.mean(X, A))


def test_a_seed_or_a_generator_decides_the_sample():
    model = model_with()
    one = model.sample(X, A, 5)
    assert np.array_equal(one, model.sample(X, A, 5))
    assert np.array_equal(one, model.sample(X, A, np.int64(5)))
    assert np.array_equal(one, model.sample(X, A, np.random.default_rng(5)))
    assert not np.array_equal(one, model.sample(X, A, 6))
    generator = np.random.default_rng(5)
    assert not np.array_equal(model.sample(X, A, generator), model.sample(X, A, generator))


def test_lists_and_whole_numbers_are_states_too():
    model = model_with("spline")
    wanted = model.mean(np.array([1.0, 2.0]), np.array([1.0]))
    assert np.array_equal(model.mean([1, 2], [1]), wanted)
    assert np.array_equal(model.mean(np.array([1, 2]), np.array([1])), wanted)


# Saving


def assert_same(model, again):
    assert again.phi == model.phi
    for name in ("W", "noise_cov", "bread"):
        assert np.array_equal(getattr(again, name), getattr(model, name))
    for name in ("state", "action", "outputs", "has_reward", "unidentified"):
        assert getattr(again, name) == getattr(model, name)
    assert np.array_equal(again.mean(X, A), model.mean(X, A))
    assert np.array_equal(again.sample(X, A, 3), model.sample(X, A, 3))


@pytest.mark.parametrize("reward", [False, True])
@pytest.mark.parametrize("features", FEATURES)
def test_a_model_survives_being_saved(features, reward, tmp_path):
    model = model_with(features, reward=reward)
    assert model.save(tmp_path / "model", facts={"note": 1}) == tmp_path / "model"
    assert_same(model, load_model(tmp_path / "model", trust="helpers"))
    assert_same(model, load_model(str(tmp_path / "model"), trust=["helpers"]))
    document = json.loads((tmp_path / "model" / "model.json").read_text())
    assert document["facts"] == {"note": 1}


def mean_elsewhere(model, folder):
    """Return what a process started in `folder` says about the mean, or its error."""
    code = """
import sys, ivvi
try:
    print(ivvi.load_model(sys.argv[1], trust="helpers").mean([0.5, 2], [3]).tolist())
except ivvi.InputError as error:
    print(error)"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(model)],
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
    )
    return done.stdout


def test_a_custom_function_is_found_again_by_another_process(tmp_path):
    model = model_with("custom")
    model.save(tmp_path / "model")
    said = mean_elsewhere(tmp_path / "model", tmp_path)
    assert "the function 'helpers:waves' cannot be imported" in said


def test_an_existing_model_is_replaced_only_by_force(tmp_path):
    one, two = model_with("linear"), model_with("poly2")
    one.save(tmp_path / "model")
    with pytest.raises(FileError, match="exists already"):
        two.save(tmp_path / "model")
    assert_same(one, load_model(tmp_path / "model"))
    two.save(tmp_path / "model", force=True)
    assert_same(two, load_model(tmp_path / "model"))


# Mistakes


@pytest.mark.parametrize("ask", ["mean", "reward", "sample"])
@pytest.mark.parametrize(
    ("x", "a", "fact"),
    [
        (np.zeros(3), np.zeros(1), r"states of shape \(3,\).*must be 2 \(x0, x1\)"),
        (np.zeros((4, 1)), np.zeros((4, 1)), r"states of shape \(4, 1\).*must be 2"),
        (np.zeros(2), np.zeros(2), r"actions of shape \(2,\).*must be 1 \(a0\)"),
        (np.zeros((4, 2)), np.zeros(4), r"actions of shape \(4,\).*must be 1"),
        (np.float64(1), np.zeros(1), r"states of shape \(\)"),
        (np.zeros((2, 4)).T, np.zeros((1, 4)), r"actions of shape \(1, 4\)"),
    ],
)
def test_wrong_shapes_are_refused(ask, x, a, fact):
    arguments = (x, a, 0) if ask == "sample" else (x, a)
    with pytest.raises(InputError, match=fact):
        getattr(model_with(), ask)(*arguments)


def test_a_model_without_reward_says_so():
    with pytest.raises(InputError, match="has no reward"):
        model_with(reward=False).reward(X, A)


@pytest.fixture(scope="module")
def simulated_model():
    return ivvi.estimate(ivvi.make_env("linear", dim=2).collect(episodes=8, horizon=100)).model


def test_states_and_actions_of_different_lengths_are_refused(simulated_model):
    model = simulated_model
    with pytest.raises(InputError, match=r"\(3, 2\).*\(4, 2\)"):
        model.mean(np.zeros((3, 2)), np.zeros((4, 2)))


@pytest.mark.parametrize("damage", ["list", "block", "shape"])
def test_a_model_that_does_not_fit_together_is_refused(tmp_path, damage, simulated_model):
    model = simulated_model
    phi = model.phi.to_json()
    if damage == "list":
        phi = []
    elif damage == "block":
        phi = {"blocks": ["Power"]}
    W = model.W[:, :-1] if damage == "shape" else model.W
    facts = {"phi": phi, "has_reward": False, "unidentified": []}
    facts |= {name: list(getattr(model, name)) for name in ("state", "action", "outputs")}
    arrays = {"W": W, "noise_cov": model.noise_cov, "bread": model.bread}
    save_folder(tmp_path / "model", "model", facts, arrays)
    with pytest.raises(FileError, match=r"is not a (complete|sound) model"):
        ivvi.load_model(tmp_path / "model")
