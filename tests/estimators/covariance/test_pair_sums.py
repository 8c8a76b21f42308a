"""White's sum by pairs of residuals and coordinates."""

from __future__ import annotations

import numpy as np
import pytest

from ivvi.estimators.covariance.meat import PairSums, RowGroup, members, products, worth_pairing


@pytest.mark.parametrize(
    "groups",
    [[slice(0, 3)], [slice(1, 2), slice(4, 5)], [[3, 0, 1], [4, 0, 1]], [slice(0, 5), [2, 4]]],
    ids=["together", "each for itself", "overlapping", "one inside another"],
)
def test_sums_by_pairs_are_the_squares_of_the_scores(groups: list[RowGroup]) -> None:
    rng = np.random.default_rng(5)
    E, white = rng.normal(size=(5, 40)), rng.normal(size=(3, 40))
    pairs = PairSums(groups, 3)
    for part in (slice(0, 25), slice(25, 40)):
        pairs.add(E[:, part], white[:, part])
    for group, square in zip(groups, pairs.squares(), strict=True):
        g = products(E[members(group)], white)
        np.testing.assert_allclose(square, g @ g.T, rtol=1e-12, atol=1e-12)


def test_one_residual_with_many_coordinates_is_squared_as_it_is() -> None:
    assert not worth_pairing([slice(0, 1)], 30)
    assert worth_pairing([slice(0, 10)], 30)
