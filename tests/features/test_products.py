"""Bends of a column, and products of functions of several columns."""

import numpy as np
import pytest

from ivvi import InputError
from ivvi.features import FeatureMap, parse_features
from ivvi.features.products import Products
from ivvi.features.splines import bend_roughness, bends, rotation, second_derivatives, spline_basis

GRID = tuple(np.quantile(np.random.default_rng(0).gamma(2.0, size=4000), np.linspace(0, 1, 12)))


def test_bends_are_orthonormal_and_orthogonal_to_straight_lines_where_the_knots_are():
    knots = np.array(GRID)
    share = (np.arange(400) + 0.5) / 400
    points = (knots[:-1, None] + np.diff(knots)[:, None] * share).ravel()
    values = bends(points, GRID, len(GRID))
    lines = np.column_stack([np.ones_like(points), points])
    assert np.allclose(values.T @ values / len(points), np.eye(len(GRID)), atol=2e-3)
    assert np.abs(lines.T @ values / len(points)).max() < 2e-3


def test_second_derivatives_agree_with_finite_differences():
    points = np.linspace(GRID[0] + 0.01, GRID[-1] - 0.01, 50)
    h = 1e-4
    expected = (
        sum(w * spline_basis(points + d, GRID) for w, d in ((1, h), (-2, 0.0), (1, -h))) / h**2
    )
    inside = np.abs(points[:, None] - np.array(GRID)).min(axis=1) > 2 * h
    assert np.allclose(second_derivatives(points, GRID)[inside], expected[inside], atol=1e-4)


def test_roughness_rises_from_one_and_bends_are_straight_outside_the_knots():
    roughness = bend_roughness(GRID)
    assert roughness[0] == pytest.approx(1.0)
    assert (np.diff(roughness) > 0).all()
    outside = GRID[-1] + np.array([1.0, 2.0, 3.0])
    assert np.abs(np.diff(bends(outside, GRID, 5), n=2, axis=0)).max() < 1e-8
    assert rotation(GRID)[0].shape == (len(GRID) + 2, len(GRID))


def test_products_multiply_named_functions_and_come_back_from_json():
    block = Products((((0, 1), (1, 1)), ((0, 3),)), (1.0, 2.0), (2.0, 4.0), (GRID, ()))
    x, a = np.array([[3.0], [5.0]]), np.array([[10.0], [2.0]])
    values = block(x, a)
    assert values[:, 0].tolist() == [2.0, 0.0]
    assert np.allclose(values[:, 1], bends(x[:, 0], GRID, 2)[:, 1])
    assert block.names(["age"], ["dose"]) == ("std(age)*std(dose)", "bend2(age)")
    assert block.penalties == (1.0, pytest.approx(bend_roughness(GRID)[1]))
    again = FeatureMap.from_json(FeatureMap((block,)).to_json())
    assert again.blocks == (block,)


def test_products_are_the_same_under_jax():
    import jax
    import jax.numpy as jnp

    block = Products((((0, 2), (1, 1)),), (0.0, 0.0), (1.0, 1.0), (GRID, ()))
    x, a = np.array([[0.7], [3.0]]), np.array([[1.5], [-2.0]])
    with jax.enable_x64(True):
        traced = jax.jit(FeatureMap((block,)))(jnp.asarray(x), jnp.asarray(a))
    assert np.allclose(traced, block(x, a), atol=1e-10)


def test_spline_vary_multiplies_each_spline_by_each_input():
    rng = np.random.default_rng(1)
    x, a = rng.normal(size=(500, 2)), rng.normal(size=(500, 1))
    phi, psi = (one.fitted(x, a) for one in parse_features("spline:4:vary"))
    names = phi.names(["x0", "x1"], ["a0"])
    values = phi(x, a)
    assert "s1(x0)*a0" in names
    assert "s1(x0)*z0" in psi.names(["x0", "x1"], ["z0"])
    product = values[:, names.index("s1(x0)")] * a[:, 0]
    assert np.allclose(values[:, names.index("s1(x0)*a0")], product)
    with pytest.raises(InputError, match="spline:4:vary"):
        parse_features("spline:4:varied")


def test_products_of_named_columns_are_tensor_products():
    import ivvi
    from ivvi.features.design import build_design

    rng = np.random.default_rng(2)
    x, y, z, noise = rng.normal(size=(4, 400))
    a = z + 0.3 * noise
    columns = {"age": x, "sick": y, "dose": a, "push": z, "after": y}
    roles = {"state": "age,sick", "action": "dose", "instrument": "push", "reward": "after"}
    log = ivvi.read_logs(columns, **roles)
    design = build_design(log, "spline:4:age*dose,age*sick")
    added = [name for name in design.phi_names if "*" in name]
    assert len(added) == 3 + 9  # three functions of a state, one of an action
    assert "bend2(age)*std(dose)" in added
    assert "bend1(age)*bend2(sick)" in added
    instead = [name for name in design.psi_names if "*" in name]
    assert instead == [name.replace("dose", "push") for name in added]
    values = design.phi(np.column_stack([x, y]), a[:, None])
    block = design.phi.blocks[-1]
    age = bends(x, block.grids[0], 2)[:, 1]
    column = values[:, design.phi_names.index("bend2(age)*std(dose)")]
    assert np.allclose(column, age * (a - a.mean()) / a.std())
    assert ivvi.fit(log, "spline:4:age*dose").W.shape == (1, 1 + 2 * 5 + 1 + 3)
    for word, fact in (("spline:4:age*dos", "dos"), ("spline:4:age*age", "different columns")):
        with pytest.raises(InputError, match=fact):
            build_design(log, word)


def test_more_terms_do_not_make_a_longer_program():
    import jax

    def operations(count):
        terms = tuple(((0, k), (1, 1)) for k in range(1, count + 1))
        products = Products(terms, (0.0, 0.0), (1.0, 1.0), (GRID, ()))
        x, u = np.ones((3, 1)), np.full((3, 1), 2.0)
        expected = products(x, u)
        with jax.enable_x64(True):
            assert np.allclose(
                jax.jit(lambda x, u: products(x, u))(x, u), expected, rtol=1e-10, atol=1e-12
            )
            return len(jax.make_jaxpr(lambda x, u: products(x, u))(x, u).eqns)

    assert operations(10) == operations(3)


def test_bends_and_their_slopes_are_the_same_in_compiled_programs():
    import jax

    v = np.concatenate([np.linspace(GRID[0] - 1, GRID[-1] + 1, 301), GRID])
    with jax.enable_x64(True):
        traced = jax.jit(lambda u: bends(u, GRID, 9))
        assert np.allclose(traced(v), bends(v, GRID, 9), rtol=1e-9, atol=1e-9)
        inner = v[np.abs(v[:, None] - np.array(GRID)).min(axis=1) > 1e-4]
        slopes = jax.jvp(traced, (inner,), (np.ones_like(inner),))[1]
    expected = (bends(inner + 1e-5, GRID, 9) - bends(inner - 1e-5, GRID, 9)) / 2e-5
    assert np.allclose(slopes, expected, rtol=1e-5, atol=1e-5)
