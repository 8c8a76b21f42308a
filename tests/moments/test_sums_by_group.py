"""Sums over runs and groups of rows: every way of adding them gives what a plain loop gives."""

import numpy as np
import pytest

from ivvi import linear
from ivvi.features.design import Design
from ivvi.logs import Batch, Roles
from ivvi.moments import GroupTally
from ivvi.moments.welford import run_products, scatter_of

LENGTHS = {
    "one length": [7] * 30,
    "one length, cut at both ends": [3, *[7] * 30, 5],
    "few lengths": [2, 5, 9] * 12,
    "short and all different": list(range(1, 20)),
    "long and all different": list(range(24, 40)),
    "one run": [50],
    "two runs": [4, 9],
}


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_products_over_runs_are_those_of_a_loop(lengths):
    starts = np.cumsum([0, *lengths[:-1]])
    E, Z = np.split(np.random.default_rng(0).normal(size=(8, sum(lengths))), [3])
    stops = starts + lengths
    expected = [E[:, i:j] @ Z[:, i:j].T for i, j in zip(starts, stops, strict=True)]
    np.testing.assert_allclose(run_products(E, Z, starts), expected, atol=1e-12)


@pytest.mark.parametrize("level", [0.0, 1.0, 1e3, 1e9])
def test_scatter_keeps_its_digits_however_far_the_mean_is_from_zero(level):
    rows = np.random.default_rng(0).normal(size=(500, 3))
    exact = np.round(rows * 2**20) / 2**20  # such numbers can be moved without rounding
    _, mean, scatter = scatter_of(np.asfortranarray(exact + level), None)
    np.testing.assert_allclose(mean - level, exact.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(scatter, len(rows) * np.cov(exact.T, bias=True), atol=1e-6)


def tally_of(codes, x, sizes):
    """Sum x by episode over batches of so many rows, and return the tally."""
    roles = Roles(("x",), ("a",), ("z",), (), None, "e", "s", None)
    design = Design.build(linear(), linear(), roles)
    tally, at = GroupTally(["e"], roles, design), 0
    for size in sizes:
        part = slice(at, at + size)
        column = x[part, None]
        batch = Batch(column, column, column, column, episode=codes[part])
        tally.add(batch, design.rows(batch))
        at += size
    return tally


@pytest.mark.parametrize("order", ["sorted", "mixed"])
def test_sums_by_group_do_not_depend_on_how_rows_are_cut_into_batches(order):
    rng = np.random.default_rng(3)
    codes = np.repeat(np.arange(60), rng.integers(1, 9, 60))
    codes = rng.permutation(codes) if order == "mixed" else codes
    x, n = rng.normal(5, 1, len(codes)), len(codes)
    (whole,) = tally_of(codes, x, [n]).sums
    cuts = np.sort(rng.choice(np.arange(1, n), 40, replace=False))
    (parts,) = tally_of(codes, x, np.diff([0, *cuts, n])).sums
    expected = np.bincount(codes, x)
    for sums in (whole, parts):
        np.testing.assert_array_equal(sums.keys, np.arange(60))
        np.testing.assert_array_equal(sums.weight, np.bincount(codes))
        np.testing.assert_allclose(sums.about(np.zeros(5))[:, 1], expected, rtol=1e-12)


def test_a_copy_of_a_tally_does_not_change_with_it():
    codes, x = np.repeat(np.arange(20), 3), np.arange(60.0)
    tally = tally_of(codes, x, [30, 15])
    copy = tally.copy()
    batch = Batch(*[x[45:, None]] * 4, episode=codes[45:])
    tally.add(batch, np.column_stack([x[45:]] * 4))
    assert len(copy.sums[0]) == 15
    assert len(tally.sums[0]) == 20
