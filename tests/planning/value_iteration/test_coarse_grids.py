"""Grids of two to four dimensions: noise is a convolution, an end an average over cells."""

import numpy as np
import pytest

import ivvi
from ivvi import ValueIteration, plan
from ivvi.planning.auto import COARSE, FINER
from ivvi.planning.quadrature import Noise
from ivvi.planning.value_iteration.grid import Grid, alive_average, convolution, interpolation


@pytest.mark.parametrize("d", [3, 4])
def test_splines_reproduce_cubic_polynomials(d):
    grid = Grid(np.full(d, -1.0), np.arange(d) + 1.0, 7)
    cubic = lambda x: (x**3).sum(axis=-1) + x.prod(axis=-1)  # noqa: E731
    c = interpolation(grid)(cubic(grid.lattice()))
    x = np.random.default_rng(0).uniform(grid.low, grid.high, (50, d))
    np.testing.assert_allclose(ivvi_value(grid, c, x), cubic(x), atol=1e-10)


def ivvi_value(grid, c, x):
    import jax

    with jax.enable_x64(True):
        return np.asarray(grid(c, x))


def test_a_convolution_averages_over_correlated_noise():
    """E (m + e)' Q (m + e) = m' Q m + tr(Q S), away from the edge; 1/1000 by Sobol's points."""
    rng = np.random.default_rng(1)
    L, Q = 0.3 * rng.normal(size=(3, 3)), rng.normal(size=(3, 3))
    S = L @ L.T
    grid = Grid(np.full(3, -6.0), np.full(3, 6.0), 31)
    x = grid.lattice()
    V = np.einsum("ni,ij,nj->n", x, Q, x)
    c = interpolation(grid)(V).reshape(33, 33, 33)
    G = convolution(grid, Noise.of(S, "quasi", 1 << 14))(c).ravel()
    inside = np.abs(x).max(axis=1) < 2.5
    np.testing.assert_allclose(G[inside], V[inside] + np.trace(Q @ S), atol=0.01)


def test_a_convolution_is_the_weighted_sum_over_nodes():
    grid = Grid(np.zeros(2), np.array([3.0, 5.0]), 41)
    noise = Noise.of(np.array([[0.01, 0.004], [0.004, 0.02]]), "gauss-hermite", 7)
    points = grid.lattice()
    c = interpolation(grid)(np.sin(points @ np.array([1.0, 0.7])))
    around = (points[:, None] + noise.offsets).reshape(-1, 2)
    exact = (ivvi_value(grid, c, around).reshape(len(points), -1) @ noise.weights).reshape(41, 41)
    found = convolution(grid, noise)(c.reshape(43, 43))
    np.testing.assert_allclose(found[10:-10, 10:-10], exact[10:-10, 10:-10], atol=1e-12)


def test_what_is_alive_keeps_its_mass_and_its_centre():
    """Sums over the lattice of V while alive, and of y V, against integrals; 128 points each."""
    grid = Grid(np.zeros(3), np.full(3, 4.0), 9)
    x, first, last, cell = grid.lattice(), 0.8, 2.9, 0.5
    alive = alive_average(grid, lambda x: (x[..., 1] < first) | (x[..., 1] > last))
    line = (alive @ (2.0 + x[:, 1])).reshape(9, 9, 9)[4, :, 4]
    y = np.linspace(0, 4, 9)
    assert not line[[0, 7, 8]].any()
    square, cube = ((last**k - first**k) / k for k in (2, 3))
    assert cell * line.sum() == pytest.approx(2 * (last - first) + square, rel=0.01)
    assert cell * (y * line).sum() == pytest.approx(2 * square + cube, rel=0.01)


def lived(x, a):
    return 1.0 - 0.4 * a[:, 0] + 0 * x[:, 0]


def is_over(x):
    return x[..., 0] < 0.0


@pytest.fixture(scope="module")
def patients(model_of):
    """Health, and two states that neither matter nor are mattered to."""

    def build(d):
        rng = np.random.default_rng(0)
        W = np.zeros((d, d + 2))
        W[0, [0, 1, -1]] = -0.2, 0.9, 0.9
        W[1:, 2:-1] = 0.5 * np.eye(d - 1)
        cov = np.diag([0.36] + [0.1] * (d - 1))
        states = np.column_stack([rng.uniform(0, 4, 200), rng.normal(size=(200, d - 1))])
        return model_of(ivvi.linear(), W, cov, states)

    return build


def test_three_states_of_which_one_counts_are_worth_what_it_is_worth_alone(patients):
    """The cells are nearly as wide as the noise: years of life are known to two percent."""
    settings = {"horizon": 6, "terminal": is_over, "discount": 0.97}
    alone, among = (
        plan(
            patients(d),
            lived,
            [[0.0], [1.0]],
            method=ValueIteration(value="grid"),
            **settings,
            compare=False,
        )
        for d in (1, 3)
    )
    health = np.linspace(0.2, 4, 20)[:, None]
    exact = alone.rule.value(health)
    found = among.rule.value(np.column_stack([health, 0.3 * np.ones((20, 2))]))
    np.testing.assert_allclose(found, exact, rtol=0.02)
    lost = alone.rule.value(health) - alone_with(alone, among, health)
    assert lost.max() < 0.03


def alone_with(alone, among, health):
    """Return what the first action of the plan in three states is worth in one."""
    import jax

    from ivvi.planning.value_iteration.value_iteration import action_value

    rule = alone.rule
    a = among(np.column_stack([health, np.zeros((len(health), 2))]), 0)
    with jax.enable_x64(True):
        c = rule.coefficients[0]
        return np.asarray(action_value(rule.problem, rule.values, rule.noise, c, 0)(health, a))


def test_the_default_tries_coarse_grids_and_saves_what_it_keeps(patients, tmp_path):
    settings = {"horizon": 3, "terminal": is_over}
    policy = plan(patients(3), lived, [[0.0], [1.0]], **settings)
    names = [entry.name for entry in policy.comparison.entries]
    assert {COARSE, FINER} <= set(names)
    assert policy.rule.values.kind == "grid"
    rule = policy.rule
    again = type(rule).from_parts(rule.problem, *rule.parts())
    x = patients(3).states[:20]
    np.testing.assert_array_equal(again.value(x), rule.value(x))


@pytest.mark.parametrize(
    ("d", "steps", "off"),
    [(1, 8, 1e-5), pytest.param(2, 8, 3e-3, marks=pytest.mark.thorough), (3, 8, 0.05)],
)
def test_ever_smaller_nets_find_the_best_of_a_box(d, steps, off):
    """The last nets have steps of 2e-6, 3e-3 and 8e-3, the smaller the fewer axes there are."""
    import jax

    from ivvi.planning.best_action import best_action

    x = np.random.default_rng(0).uniform(-1, 1, (20, d))
    bend = np.eye(d) + 0.6

    def q(x, a):
        return -jax.numpy.einsum("ni,ij,nj->n", a - x, bend, a - x)

    with jax.enable_x64(True):
        a, value = best_action(q, x, ivvi.Actions.box(-2, 2, dim=d), steps=steps, zoom=True)
    assert np.abs(np.asarray(a) - x).max() < off
    assert np.asarray(value).max() <= 0
