"""The study of doubts about features: its worlds are what it calls them."""

import numpy as np
import pytest

from ivvi_reproduction.feature_doubts import RIGHT, WRONG, draw_rows, measure, table


@pytest.mark.parametrize("world", ["panel", "rows, instrument of 8 groups"])
def test_worlds_with_the_right_features_are_not_doubted(world):
    """One of 1,000 logs may be: two of eight have a probability below 1e-4."""
    assert measure((world, True), 8).doubted <= 1


def test_a_world_that_bends_is_doubted_and_named():
    record = measure(("rows, outcome that bends", False), 4)
    assert record.doubted == 4
    assert "does not change in proportion to x" in record.sentence
    assert "4 of 4" in table([record])


def test_every_world_is_drawn_with_a_seed():
    for draw in (*RIGHT.values(), *WRONG.values()):
        one, same = (draw(np.random.default_rng(3)).to_batch() for _ in range(2))
        np.testing.assert_array_equal(one.y, same.y)


def test_an_effect_that_varies_is_what_the_outcome_says():
    rng = np.random.default_rng(0)
    batch = draw_rows(rng, varies=0.3).to_batch()
    rest = batch.y[:, 0] - batch.x[:, 0] + (0.5 + 0.3 * batch.x[:, 0]) * batch.a[:, 0]
    assert abs(np.corrcoef(rest, batch.z[:, 0])[0, 1]) < 4 / np.sqrt(len(rest))
