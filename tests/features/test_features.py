"""Feature maps: the same on NumPy and JAX, named, saved and loaded, and what they compute."""

import json
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.interpolate import BSpline

import ivvi
from ivvi import InputError, custom, linear, one_hot
from ivvi._io.trust import trusting
from ivvi.errors import DataError, FileError
from ivvi.features import FeatureMap, fourier, parse_features, polynomial, spline
from ivvi.features.blocks import Constant, Fourier, Interactions, OneHot, Power, Spline
from ivvi.features.custom_block import Custom

D_X, D_U = 2, 3
STATE, INPUTS = ("x0", "x1"), ("u0", "u1", "u2")


def product(x, u):
    """Return two columns in plain operators; found again by its import path."""
    return x[..., :2] * u[..., :2]


def sine(x, u):
    xp = u.__array_namespace__()
    return xp.sin(u[..., :1])


BLOCKS = {
    "constant": Constant(),
    "power 1": Power(1, "input"),
    "power 3": Power(3, "state"),
    "interactions": Interactions(2),
    "interactions of the input": Interactions(3, "input"),
    "interactions of one column": Interactions(1),
    "spline of the state": Spline(5),
    "spline of the input": Spline(3, "input"),
    "Fourier": Fourier(8),
    "Fourier of the state": Fourier(4, bandwidth=0.5, seed=3, of="state"),
    "one-hot": OneHot("input"),
    "custom": Custom.of_function(product, ["p0", "p1"]),
}
SMOOTH = [name for name in BLOCKS if name != "one-hot"]
MAPS = {
    "linear": linear(),
    "poly3": polynomial(3),
    "cross": polynomial(3, cross=True),
    "fourier": fourier(6, bandwidth=2.0, seed=1),
    "spline": spline(4, of_input=3),
    "one_hot": one_hot("input"),
    "custom": linear() + custom(product, ["p0", "p1"]),
}


def rows(n=50, seed=0, spread=1.0):
    """Return states and inputs; the last input takes a few values only."""
    rng = np.random.default_rng(seed)
    x, u = spread * rng.normal(size=(n, D_X)), spread * rng.normal(size=(n, D_U))
    u[:, 2] = rng.integers(0, 3, n)
    return x, u


@pytest.fixture(params=BLOCKS.values(), ids=BLOCKS.keys(), name="block")
def fitted_block(request):
    x, u = rows()
    if request.param == BLOCKS["one-hot"]:
        u = np.round(u)
    return request.param.fitted(x, u)


@pytest.fixture(params=MAPS.values(), ids=MAPS.keys(), name="features")
def fitted_map(request):
    return request.param.fitted(*rows())


@cache
def in_jax(name):
    """Evaluate a block at points inside and outside the knots, and differentiate it.

    Returns the fitted block, the points, the values, and the derivatives of the weighted
    sum of the values by x and by u. It is compiled once for both tests.
    """
    x, u = rows()
    few = name == "one-hot"
    block = BLOCKS[name].fitted(x, np.round(u) if few else u)
    x, u = rows(n=12, seed=1, spread=2.0)
    u = np.round(u) if few else u

    def total(x, u):
        values = block(x, u)
        return (values * jnp.arange(1.0, 1 + values.shape[-1])).sum(), values

    with jax.enable_x64(True):
        differentiate = jax.jit(jax.value_and_grad(total, argnums=(0, 1), has_aux=True))
        (_, values), gradients = differentiate(jnp.asarray(x), jnp.asarray(u))
        assert values.dtype == jnp.float64
    return block, x, u, np.asarray(values), [np.asarray(g) for g in gradients]


@pytest.mark.parametrize("name", BLOCKS)
def test_numpy_and_jax_agree(name):
    block, x, u, values, _ = in_jax(name)
    ours = block(x, u)
    assert isinstance(ours, np.ndarray)
    np.testing.assert_allclose(ours, values, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", SMOOTH)
def test_derivatives_agree_with_finite_differences(name):
    block, x, u, _, gradients = in_jax(name)
    for which, gradient in enumerate(gradients):
        numeric = np.empty_like(gradient)
        for at in np.ndindex(gradient.shape):
            sides = []
            for step in (1e-5, -1e-5):
                moved = [x.copy(), u.copy()]
                moved[which][at] += step
                values = block(*moved)
                sides.append(values @ np.arange(1.0, 1 + values.shape[-1]))
            numeric[at] = (sides[0] - sides[1]).sum() / 2e-5
        np.testing.assert_allclose(gradient, numeric, rtol=1e-5, atol=1e-6)


def test_jax_arrays_stay_jax_arrays_without_a_transformation():
    with jax.enable_x64(True):
        values = linear()(jnp.ones((2, 1)), jnp.full((2, 1), 3.0))
    assert isinstance(values, jax.Array)
    assert values.tolist() == [[1.0, 1.0, 3.0]] * 2


def test_a_map_can_be_compiled_as_it_is():
    assert jax.jit(linear())(jnp.ones(1), jnp.ones(1)).tolist() == [1.0, 1.0, 1.0]


def test_each_column_has_one_name(block):
    x, u = rows()
    names = block.names(STATE, INPUTS)
    assert block(x, u).shape == (len(x), len(names))
    assert len(set(names)) == len(names)


def test_single_points_and_batches_of_any_shape_have_the_same_features(block):
    x, u = rows()
    u = np.round(u) if isinstance(block, OneHot) else u
    whole = block(x, u)
    np.testing.assert_allclose(block(x[3], u[3]), whole[3], rtol=1e-12, atol=1e-14)
    folded = block(x.reshape(5, 10, D_X), u.reshape(5, 10, D_U))
    np.testing.assert_allclose(folded, whole.reshape(5, 10, -1), rtol=1e-12, atol=1e-14)
    assert block(x[:0], u[:0]).shape == (0, whole.shape[1])


def test_maps_concatenate_their_blocks(features):
    x, u = rows(seed=3)
    values = features(x, u)
    np.testing.assert_array_equal(values, np.column_stack([b(x, u) for b in features.blocks]))
    assert len(features.names(STATE, INPUTS)) == values.shape[1]
    np.testing.assert_allclose(features(x[0], u[0]), values[0], rtol=1e-12, atol=1e-14)
    assert features + features == features


def test_feature_maps_survive_a_round_trip_by_json(features):
    with trusting("a map", __name__):
        again = FeatureMap.from_json(json.loads(json.dumps(features.to_json(), allow_nan=False)))
    assert again == features
    assert hash(again) == hash(features)
    x, u = rows(seed=4)
    np.testing.assert_array_equal(again(x, u), features(x, u))
    assert not again.needs_data


def test_maps_need_no_state(features):
    unfitted = next(m for name, m in MAPS.items() if MAPS[name].fitted(*rows()) == features)
    if unfitted == MAPS["custom"]:
        unfitted = linear() + custom(sine, ["sin u0"])
    _, u = rows()
    x = np.empty((len(u), 0))
    values = unfitted.fitted(x, u)(x, u)
    assert values.shape == (len(u), len(unfitted.fitted(x, u).names((), INPUTS)))


@pytest.mark.parametrize("unfitted", [Spline(3), Fourier(4), OneHot()], ids=lambda b: str(b)[:6])
def test_blocks_that_were_not_fitted_refuse_rows(unfitted):
    assert unfitted.needs_data
    assert FeatureMap((unfitted,)).needs_data
    with pytest.raises(InputError, match="fit the feature map"):
        FeatureMap((unfitted,))(*rows())
    assert not unfitted.fitted(*rows()).needs_data


# what they compute


def test_poly2_is_the_papers():
    x, u = rows()
    phi, psi = parse_features("poly2")
    expected = np.column_stack([np.ones(len(x)), x, u, x**2, u**2])
    np.testing.assert_array_equal(phi(x, u), expected)
    assert phi == psi == polynomial(2)
    assert phi.names(["x"], ["a"]) == ("1", "x", "a", "x^2", "a^2")


def test_linear_is_the_papers():
    x, u = rows()
    phi, psi = parse_features("linear")
    np.testing.assert_array_equal(phi(x, u), np.column_stack([np.ones(len(x)), x, u]))
    assert phi == psi
    assert phi.names(STATE, INPUTS) == ("1", *STATE, *INPUTS)


def test_cross_terms_are_all_mixed_monomials():
    x, u = rows()
    features = polynomial(2, cross=True)
    assert features.names(["x"], ["a", "b"])[-3:] == ("x*a", "x*b", "a*b")
    mixed = features(x[:, :1], u[:, :2])[:, -3:]
    np.testing.assert_allclose(mixed, np.column_stack([x[:, :1] * u[:, :2], u[:, 0] * u[:, 1]]))
    count = len(polynomial(3, cross=True).names(STATE, INPUTS))
    assert count == 56  # all monomials of degree at most 3 in 5 columns: (5 + 3 over 3)


@pytest.mark.parametrize("knots", [2, 3, 5, 16])
def test_spline_is_scipys_inside_and_linear_outside(knots):
    x, u = rows(n=300)
    block = Spline(knots).fitted(x, u)
    for j, grid in enumerate(block.grids):
        np.testing.assert_allclose(grid, np.quantile(x[:, j], np.linspace(0, 1, knots)))
        t = np.r_[[grid[0]] * 3, grid, [grid[-1]] * 3]
        width = knots + 1
        inside = np.linspace(grid[0], grid[-1], 101)
        points = np.zeros((101, D_X))
        points[:, j] = inside
        ours = block(points, u[:101])[:, j * width : (j + 1) * width]
        scipys = BSpline.design_matrix(inside, t, 3).toarray()
        np.testing.assert_allclose(ours, scipys[:, 1:], atol=1e-12)
        for end, sign in ((grid[0], -1), (grid[-1], 1)):
            points = np.zeros((3, D_X))
            points[:, j] = end + sign * np.array([0.0, 0.7, 2.1])
            ours = block(points, u[:3])[:, j * width : (j + 1) * width]
            slope = [BSpline.basis_element(t[i : i + 5], False) for i in range(1, width + 1)]
            tangent = np.array([derivative_at(s, end, sign) for s in slope])
            np.testing.assert_allclose(ours[1] - ours[0], 0.7 * sign * tangent, atol=1e-5)
            np.testing.assert_allclose(ours[2] - ours[0], 2.1 * sign * tangent, atol=1e-5)


def derivative_at(basis, end, sign, step=1e-5):
    """Differentiate from inside, to second order, a function that is NaN or zero outside."""
    at = end - sign * step * np.array([1e-9, 1.0, 2.0])
    f = np.nan_to_num(basis(at))
    return sign * (3 * f[0] - 4 * f[1] + f[2]) / (2 * step)


def test_spline_spans_the_constant_and_lines():
    """With the constant, a spline reproduces every straight line, far outside too."""
    x, u = rows(n=300)
    phi = spline(5).fitted(x, u)
    far = 20 * rows(n=100, seed=9)[0]
    both, y = np.vstack([x, far]), lambda x: 3 + x @ np.array([2.0, -1.0])
    u_both = np.zeros((400, D_U))
    W = np.linalg.lstsq(phi(x, u), y(x))[0]
    np.testing.assert_allclose(phi(both, u_both)[:, :-D_U] @ W[:-D_U], y(both), atol=1e-8)


def test_spline_leaves_columns_of_few_values_alone():
    x, u = rows()
    block = Spline(5, "input").fitted(x, u)
    assert block.grids[2] == ()
    assert block.names(STATE, INPUTS)[-1] == "u2"
    np.testing.assert_array_equal(block(x, u)[:, -1], u[:, 2])


def test_spline_bends_a_clipped_column():
    """Many values, a third of the rows at each end: it has more values than knots."""
    x = np.clip(2 * rows(n=300)[0], -1, 1)
    block = Spline(5).fitted(x, x)
    assert len(np.unique(x[:, 0])) > 50
    assert block(x, x).shape[1] > x.shape[1]


def test_fourier_features_approach_the_gaussian_kernel():
    """The error of M features is at most 5 / sqrt(M) or so, at each of 100 pairs."""
    x, u = rows(n=200)
    count, bandwidth = 20_000, 1.5
    block = Fourier(count, bandwidth).fitted(x, u)
    v = np.column_stack([x, u])
    s = (v - v.mean(axis=0)) / v.std(axis=0)
    F = block(x[:10], u[:10])
    distance = np.sum((s[:10, None] - s[None, :10]) ** 2, axis=-1)
    kernel = np.exp(-distance / (2 * bandwidth**2 * (D_X + D_U)))
    assert np.abs(F @ F.T - kernel).max() < 5 / np.sqrt(count)


def test_fourier_features_depend_on_the_seed_alone():
    x, u = rows()
    one, same, other = (Fourier(5, seed=s).fitted(x, u)(x, u) for s in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert np.abs(one - other).max() > 0.1


def test_fourier_features_of_a_constant_column_are_finite():
    x, u = rows()
    u[:, 0] = 7.0
    values = Fourier(4).fitted(x, u)(x, u)
    assert np.isfinite(values).all()


def test_one_hot_leaves_the_smallest_value_out():
    x, u = rows()
    block = OneHot("input").fitted(x, u[:, 2:])
    assert block.names(STATE, ["u2"]) == ("u2=1", "u2=2")
    values = block(x, u[:, 2:])
    np.testing.assert_array_equal(values, u[:, 2:] == [1.0, 2.0])
    assert block(x[:1], np.full((1, 1), 1.4)).tolist() == [[1.0, 0.0]]  # the nearest
    assert block(x[:1], np.full((1, 1), 99.0)).tolist() == [[0.0, 1.0]]


def test_linear_cross_adds_state_times_action():
    phi, psi = parse_features("linear:cross")
    assert phi == psi
    assert phi.names(["x", "y"], ["a"]) == ("1", "x", "y", "a", "x*a", "y*a")
    assert phi(np.array([[2.0, 3.0]]), np.array([[5.0]])).tolist() == [[1, 2, 3, 5, 10, 15]]


def test_one_hot_refuses_a_continuous_column():
    x = np.arange(1001.0)[:, None]
    with pytest.raises(DataError, match="1001 values, too many for one-hot"):
        OneHot("state").fitted(x, x)


# words


@pytest.mark.parametrize(
    ("word", "phi", "psi"),
    [
        ("linear", linear(), linear()),
        ("poly3", polynomial(3), polynomial(3)),
        ("poly2:cross", polynomial(2, cross=True), polynomial(2, cross=True)),
        ("fourier:200", fourier(200), fourier(200)),
        ("spline:5", spline(5), spline(5, of_input=5)),
        ("spline:9", spline(9), spline(9, of_input=5)),
        ("spline:3", spline(3), spline(3, of_input=3)),
    ],
)
def test_feature_words_make_the_columns_they_promise(word, phi, psi):
    assert parse_features(word) == (phi, psi)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("liner", "did you mean 'linear'"),
        ("", "choose from"),
        ("poly0", "degree of the polynomial is 0"),
        ("poly2:crosss", "unknown features"),
        ("spline", "whole number"),
        ("spline:1", "at least 2"),
        ("fourier:many", "fourier:5"),
        ("spline:-3", "whole number"),
    ],
)
def test_unknown_feature_words_are_refused(word, message):
    with pytest.raises(InputError, match=message):
        parse_features(word)


@pytest.mark.parametrize("word", ["poly²", "spline:²"])
def test_words_with_strange_digits_are_refused(word):
    try:
        parse_features(word)
    except InputError:
        return
    pytest.fail("no error")


# your own


def test_custom_checks_the_number_of_columns():
    with pytest.raises(InputError, match="returned shape"):
        custom(product, ["p0", "p1", "p2"])(*rows())


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no_such_module:f", "cannot be imported"),
        ("math:no_such_name", "cannot be imported"),
        ("math:pi", "not a function"),
    ],
)
def test_custom_functions_that_cannot_be_found_are_refused(path, message):
    block = {"kind": "Custom", "path": path, "columns": ["c"], "of": "both"}
    with pytest.raises(FileError, match=message), trusting("a map", path.partition(":")[0]):
        FeatureMap.from_json({"blocks": [block]})


def test_two_lambdas_do_not_replace_each_other():
    x, u = rows()
    one, two = custom(lambda x, u: x[..., :1], ["one"]), custom(lambda x, u: u[..., :1], ["two"])
    np.testing.assert_array_equal(one(x, u), x[:, :1])
    np.testing.assert_array_equal(two(x, u), u[:, :1])


def test_unknown_blocks_are_refused():
    with pytest.raises(FileError, match="unknown feature block 'Wavelet'"):
        FeatureMap.from_json({"blocks": [{"kind": "Wavelet"}]})


def test_unknown_settings_are_refused():
    with pytest.raises(FileError):
        FeatureMap.from_json({"blocks": [{"kind": "Power", "power": 2}]})


@pytest.mark.filterwarnings("ignore:weak instruments")
@pytest.mark.filterwarnings("ignore:.*fitted values of y0 lie outside its range")
def test_maps_give_the_estimate_of_their_words(confounded, log_of):
    log = log_of(*confounded(0, d_x=2, d_z=2))
    one, two = ivvi.estimate(log, "poly2"), ivvi.estimate(log, polynomial(2), polynomial(2))
    np.testing.assert_array_equal(one.W, two.W)
    with pytest.raises(InputError, match="psi must be given too"):
        ivvi.estimate(log, polynomial(2))
    mixed = ivvi.estimate(log, "linear", "poly2")
    assert len(mixed.estimate.design.psi_names) == 9


def test_knots_that_are_given_stay(confounded, log_of):
    x, a, z, y = confounded(0, d_x=1, d_z=1)
    mine = FeatureMap((Constant(), Spline(3, "state", ((-1.0, 0.0, 1.0),)), Power(1, "input")))
    fit = ivvi.estimate(log_of(x, a, z, y), mine, spline(3, of_input=4))
    assert fit.estimate.design.phi == mine
