"""Moments: what they are, that they add, and the few rows that stand for all."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ivvi import InputError, linear
from ivvi.estimators import Exact
from ivvi.features import FeatureMap, parse_features, polynomial, spline
from ivvi.features.blocks import Constant, Fourier, Interactions, OneHot, Power, Spline
from ivvi.features.design import Design
from ivvi.logs import Batch, Roles
from ivvi.moments import Moments, compress, compute_moments, group_codes, is_constant

WORDS = ("linear", "poly2", "poly2:cross", "spline:4", "fourier:7")


@st.composite
def rows(draw, most=120):
    """Draw arrays x, a, z, y of random shapes, and weights or None."""
    d_x, d_a, d_z, d_y = (draw(st.integers(low, high)) for low, high in SHAPES)
    n = draw(st.integers(2, most))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    parts = [rng.normal(rng.normal(), 1, size=(n, d)) for d in (d_x, d_a, d_z, d_y)]
    return parts, rng.uniform(0.1, 3, n) if draw(st.booleans()) else None


SHAPES = ((0, 3), (1, 3), (1, 4), (1, 3))


def take(parts, weight, index):
    return [part[index] for part in parts], None if weight is None else weight[index]


def assert_same(one, other, rtol=1e-10):
    """Compare moments, the scatter on the scale of its columns."""
    assert one.design == other.design
    assert one.n == other.n
    assert one.weight == pytest.approx(other.weight, rel=rtol)
    np.testing.assert_allclose(one.mean, other.mean, rtol=rtol, atol=rtol)
    spread = np.sqrt(np.diag(other.second))
    spread[spread == 0] = 1
    np.testing.assert_allclose(
        one.scatter / np.outer(spread, spread),
        other.scatter / np.outer(spread, spread),
        atol=rtol * other.weight,
    )


@pytest.mark.parametrize("word", WORDS)
@given(data=rows(), cut=st.floats(0, 1), seed=st.integers(0, 1000))
def test_moments_add_over_any_split_and_order(moments_of, word, data, cut, seed):
    (x, a, z, y), weight = data
    maps = parse_features(word)
    fitted = maps[0].fitted(x, a), maps[1].fitted(x, z)  # the same knots for both parts
    whole = moments_of(x, a, z, y, weight, features=fitted)
    order = np.random.default_rng(seed).permutation(len(y))
    at = int(cut * len(y))
    total = Moments.empty(whole.design)
    for index in (order[:at], order[at:]):
        if len(index):
            parts, w = take((x, a, z, y), weight, index)
            total = total + Moments.of_batch(whole.design, Batch(*parts, w))
    assert_same(total, whole)


@given(data=rows(), seed=st.integers(0, 1000))
def test_a_weight_is_a_number_of_copies(moments_of, data, seed):
    parts, _ = data
    copies = np.random.default_rng(seed).integers(0, 4, len(parts[0]))
    copies[0] = 1
    weighted = moments_of(*parts, copies.astype(float))
    repeated = moments_of(*(np.repeat(part, copies, axis=0) for part in parts))
    assert weighted.n == np.count_nonzero(copies)
    assert_same(dataclasses.replace(weighted, n=repeated.n), repeated)


@pytest.mark.parametrize("word", WORDS)
def test_moments_are_the_matrices_of_the_paper(confounded, moments_of, word):
    x, a, z, y = confounded(0, n=500, d_a=2, d_z=3)
    weight = np.random.default_rng(1).uniform(0.5, 2, len(y))
    phi, psi = parse_features(word)
    phi, psi = phi.fitted(x, a), psi.fitted(x, z)
    m = moments_of(x, a, z, y, weight, features=(phi, psi))
    Phi, Psi, w = phi(x, a), psi(x, z), (weight / weight.sum())[:, None]
    for ours, left, right in (
        (m.A, Psi, Phi),
        (m.B, Psi, Psi),
        (m.C, y, Psi),
        (m.D, Phi, Phi),
        (m.second[np.ix_(m.design.y_columns, m.design.y_columns)], y, y),
    ):
        np.testing.assert_allclose(ours, left.T @ (w * right), rtol=1e-10, atol=1e-12)
    assert (len(m.design.psi_names), len(m.design.phi_names)) == m.A.shape


def test_moments_of_a_log_are_those_of_its_rows(simulated, moments_of):
    log = simulated("linear", 5)  # more than one batch of rows
    phi, psi = parse_features("poly2")
    design = Design.build(phi, psi, log.roles)
    seen = []
    m, counts = compute_moments(log.watched(seen.append), design, episodes=True)
    batch = log.to_batch(episodes=True)
    whole = moments_of(batch.x, batch.a, batch.z, batch.y, features="poly2")
    assert len(seen) > 1
    assert sum(seen) == counts.rows == counts.transitions == m.n == 80_000
    np.testing.assert_allclose(m.scatter, whole.scatter, rtol=1e-9, atol=1e-9 * m.n)
    np.testing.assert_allclose(m.mean, whole.mean, rtol=1e-10)
    assert len(m.episodes) == counts.episodes == 80
    assert m.episodes.weight.tolist() == [1000.0] * 80


@given(data=rows(), many=st.integers(1, 7), cut=st.floats(0, 1))
def test_moments_of_episodes_sum_to_the_totals(moments_of, data, many, cut):
    parts, weight = data
    n = len(parts[0])
    episode = np.random.default_rng(n).integers(0, many, n)
    whole = moments_of(*parts, weight, episode)
    at = int(cut * n)
    if 0 < at < n:  # an episode may stand in two parts
        pieces = []
        for index in (slice(0, at), slice(at, n)):
            some, w = take(parts, weight, index)
            pieces.append(moments_of(*some, w, episode[index]))
        whole = pieces[0] + pieces[1]
    e = whole.episodes
    assert sorted(e.number.tolist()) == np.unique(episode).tolist()
    assert e.weight.sum() == pytest.approx(whole.weight)
    mean = e.weight @ e.mean / whole.weight
    np.testing.assert_allclose(mean, whole.mean, atol=1e-12)
    off = e.mean - mean
    between = (e.weight * off.T) @ off
    np.testing.assert_allclose(e.scatter.sum(axis=0) + between, whole.scatter, atol=1e-10)
    assert whole.without_episodes().episodes is None
    for number, weight_of, mean_of in zip(e.number, e.weight, e.mean, strict=True):
        mine = episode == number
        w = mine.astype(float) if weight is None else weight * mine
        assert weight_of == pytest.approx(w.sum())
        y = whole.design.y_columns[0]
        assert mean_of[y] == pytest.approx(w @ parts[3][:, 0] / w.sum())


def test_moments_of_episodes_need_episode_numbers(moments_of, confounded):
    m = moments_of(*confounded(0))
    with pytest.raises(InputError, match="episodes=True"):
        Moments.of_batch(m.design, Batch(*confounded(0)), episodes=True)


def test_moments_of_different_features_do_not_add(moments_of, confounded):
    data = confounded(0)
    with pytest.raises(InputError, match="different features"):
        moments_of(*data) + moments_of(*data, features="poly2")


def test_rows_of_weight_zero_change_nothing(moments_of, confounded):
    x, a, z, y = confounded(0, n=80)
    weight = np.r_[np.ones(50), np.zeros(30)]
    some = moments_of(x, a, z, y, weight)
    none = moments_of(x[50:], a[50:], z[50:], y[50:], weight[50:])
    few = moments_of(x[:50], a[:50], z[:50], y[:50])
    assert_same(dataclasses.replace(some, n=50), few)
    assert_same(dataclasses.replace(few + none, n=50), few)


def test_rows_of_weight_zero_are_not_counted(moments_of, confounded):
    """Standard errors of a masked log are those of the rows that are left."""
    x, a, z, y = confounded(0, n=80)
    weight = np.r_[np.ones(50), np.zeros(30)]
    masked = Exact().solve(moments_of(x, a, z, y, weight))
    few = Exact().solve(moments_of(x[:50], a[:50], z[:50], y[:50]))
    np.testing.assert_allclose(masked.W, few.W, rtol=1e-9)
    np.testing.assert_allclose(masked.se, few.se, rtol=1e-9)


def test_episodes_are_kept_for_all_rows_or_for_none(moments_of, confounded):
    data = confounded(0, n=60)
    numbered, plain = moments_of(*data, None, np.arange(60) // 20), moments_of(*data)
    total = numbered + plain
    assert total.episodes is None or total.episodes.weight.sum() == total.weight


@given(data=rows(), scale=st.sampled_from([1.0, 1e-6, 1e6]))
def test_compressed_rows_reproduce_the_scatter(moments_of, data, scale):
    (x, a, z, y), weight = data
    m = moments_of(x, scale * a, z, y, weight)
    R = compress(m)
    spread = np.sqrt(np.diag(m.scatter) / m.weight)
    spread[spread == 0] = 1
    assert R.shape[0] <= R.shape[1] == m.design.width
    np.testing.assert_allclose(
        R.T @ R / np.outer(spread, spread),
        m.scatter / m.weight / np.outer(spread, spread),
        atol=1e-12,
    )


def test_compressed_rows_of_collinear_columns_reproduce_the_scatter(moments_of, confounded):
    x, a, z, y = confounded(3, d_z=2)
    z = np.column_stack([z, z.sum(axis=1), np.full(len(z), 4.0)])
    m = moments_of(x, a, z, y)
    R = compress(m)
    np.testing.assert_allclose(R.T @ R, m.scatter / m.weight, atol=1e-12)
    constant = is_constant(m)
    names = np.array([*m.design.phi_names, "z0", "z1", "z2", "z3", "y0", "y1"])
    assert names[constant].tolist() == ["1", "z3"]


def test_layout_shares_what_looks_at_the_state_alone(roles_of):
    roles = roles_of(2, 1, 2, 2)
    design = Design.build(*parse_features("poly2"), roles)
    assert design.phi_names == ("1", "x0", "x1", "a0", "x0^2", "x1^2", "a0^2")
    assert design.psi_names == ("1", "x0", "x1", "z0", "z1", "x0^2", "x1^2", "z0^2", "z1^2")
    assert design.psi_columns == (0, 1, 2, 7, 8, 4, 5, 9, 10)
    assert design.shared == (0, 1, 2, 4, 5)
    assert design.y_columns == (11, 12)
    assert (design.width, design.constant) == (13, 0)


@pytest.mark.parametrize(
    ("phi", "psi", "constant"),
    [
        (linear(), linear(), 0),
        (linear(), FeatureMap(linear().blocks[1:]), None),
        (FeatureMap(linear().blocks[1:]), linear(), None),
    ],
)
def test_layout_knows_a_shared_constant(roles_of, phi, psi, constant):
    assert Design.build(phi, psi, roles_of(1, 1, 1, 1)).constant == constant


@pytest.mark.parametrize("features", [(linear(), linear()), (polynomial(2), linear())])
def test_raw_rows_are_taken_from_the_table_without_a_copy(simulated, features):
    log = simulated("linear", 2, episodes=20, horizon=50)
    batch = next(iter(log.batches()))
    design = Design.build(*features, log.roles)
    taken = design.rows(batch)
    assert np.shares_memory(taken, batch.table) == design.is_raw == (features[0] == linear())
    plain = Batch(batch.x, batch.a, batch.z, batch.y)
    np.testing.assert_array_equal(taken, design.rows(plain))


@pytest.mark.parametrize(
    "block",
    [Power(2, "input"), Interactions(2), Spline(4, "input"), Fourier(5), OneHot("input")],
    ids=lambda block: type(block).__name__,
)
def test_blocks_of_the_input_are_not_shared(confounded, moments_of, block):
    x, a, z, y = confounded(5, d_a=2, d_z=2)
    a, z = np.round(a), np.round(z)
    both = FeatureMap((Constant(), block))
    m = moments_of(x, a, z, y, features=(both, both))
    assert m.design.shared == (0,)
    phi = both.fitted(x, a)(x, a)
    np.testing.assert_allclose(m.D, phi.T @ phi / len(y), atol=1e-10)


def test_a_column_far_from_zero_keeps_its_digits(moments_of, confounded):
    x, a, z, y = confounded(6, n=2000)
    near = moments_of(x, a, z, y)
    for far in (moments_of(x + 1e6, a, z, y), sum_of_parts(moments_of, x + 1e6, a, z, y)):
        np.testing.assert_allclose(far.scatter, near.scatter, rtol=1e-8, atol=1e-6)


def sum_of_parts(moments_of, *parts):
    first, *others = (moments_of(*(p[i : i + 100] for p in parts)) for i in range(0, 2000, 100))
    for other in others:
        first = first + other
    return first


def test_spline_knots_are_shared_between_phi_and_psi(moments_of, confounded):
    x, a, z, y = confounded(7)
    m = moments_of(x, a, z, y, features=(spline(5), spline(5, of_input=4)))
    assert len(m.design.shared) == 1 + x.shape[1] * 6


def test_episodes_of_two_logs_stay_apart_when_numbered_on(moments_of, confounded):
    one, two = (moments_of(*confounded(s, n=60), None, np.arange(60) // 20) for s in (0, 1))
    assert len((one + two).episodes) == 3
    apart = one + two.following(one)
    assert apart.episodes.number.tolist() == [0, 1, 2, 3, 4, 5]
    assert_same(apart.without_episodes(), (one + two).without_episodes())


def test_steps_that_are_huge_are_told_apart_without_a_warning(recwarn):
    step = np.array([1e300, 2e300, 1e300])
    batch = Batch(x=np.ones((3, 1)), a=np.ones((3, 1)), z=np.ones((3, 1)), y=np.ones((3, 1)))
    roles = Roles(("x",), ("a",), ("z",), ("y",), None, "episode", "step", None)
    codes = group_codes(dataclasses.replace(batch, step=step), roles, "step")
    assert codes[0] == codes[2] != codes[1]
    assert not recwarn.list
