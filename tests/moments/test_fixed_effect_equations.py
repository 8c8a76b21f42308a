"""The equations of group effects once the largest column is eliminated."""

import numpy as np
import pytest

from ivvi.moments.fixed_effect_equations import ReducedEquations, gram, incidence
from ivvi.moments.fixed_effects import live_rows, redundant_levels


@pytest.mark.parametrize(("groups", "rows"), [(400, 900), (400, 20_000), (6, 2_000), (1, 1)])
@pytest.mark.parametrize("ordered", [True, False])
def test_gram_is_the_dense_product(groups, rows, ordered):
    """Short rows, full rows and both in one matrix."""
    rng = np.random.default_rng(groups + rows)
    one = (groups * rng.uniform(size=rows) ** 3).astype(np.int32)
    one = np.sort(one) if ordered else one
    two, weight = rng.integers(40, size=rows).astype(np.int32), rng.uniform(1, 2, rows)
    dense = np.zeros((groups, 40))
    np.add.at(dense, (one, two), weight)
    C, scale = incidence(one, two, weight, dense.shape), rng.uniform(size=groups)
    np.testing.assert_allclose(C.toarray(), dense, rtol=1e-13)
    np.testing.assert_allclose(gram(C, scale), dense.T @ (scale[:, None] * dense), rtol=1e-12)


@pytest.mark.parametrize("seed", range(20))
def test_connected_sets_are_the_same_from_shared_groups(seed):
    """Of a sparse panel with singletons: from the solved equations, and from the graph of rows."""
    rng = np.random.default_rng(seed)
    sizes = (12, 9) if seed % 2 else (9, 9)
    rows = int(rng.integers(8, 30))
    codes = [rng.integers(size, size=rows).astype(np.int32) for size in sizes]
    live, counts = live_rows(codes, sizes)
    if live is not None and not live.any():
        pytest.skip("all rows are alone")
    weight = [np.bincount(c, minlength=s).astype(float) for c, s in zip(codes, sizes, strict=True)]
    system = ReducedEquations.of(codes, None, weight, 0, [1])
    joined = system.solve(np.zeros((sizes[1], 1)))[1]
    assert redundant_levels(codes, counts, live, joined) == redundant_levels(codes, counts, live)
    kept = [code if live is None else code[live] for code in codes]
    for count, code, size in zip(counts, kept, sizes, strict=True):
        np.testing.assert_array_equal(count, np.bincount(code, minlength=size))
        assert not (count == 1).any()
