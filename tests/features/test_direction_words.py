"""Directions of W in words: which combination of features is meant."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ivvi.features.feature_map import describe_direction


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ([0.0, 2.0, 0.0, -1.6], "b - 0.8 d"),
        ([-1.0, 0.0, 0.0, 0.5], "a - 0.5 d"),
        ([1.0, 1.0, 0.001, 0.0], "a + b"),
        ([0.3, 0.0, 0.0, 0.0], "a"),
        ([1.0, -0.02, 0.005, 0.0], "a - 0.02 b"),
    ],
)
def test_directions_are_written_in_words(weights, words):
    assert describe_direction(weights, "abcd") == words


def test_the_constant_of_a_direction_is_a_number():
    assert describe_direction([-0.57, 0.0, 1.0], ["1", "x0", "a0"]) == "a0 - 0.57"
    assert describe_direction([1.0, 0.5, 0.0], ["1", "x0", "a0"]) == "1 + 0.5 x0"


def test_long_directions_are_cut():
    names = [f"v{i}" for i in range(10)]
    assert describe_direction([1.0] * 10, names, most=2) == "v0 + v1 and 8 more"
    assert describe_direction([1.0] * 10, names).endswith("v5 and 4 more")


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=6), st.floats(0.1, 10))
def test_directions_have_no_scale_and_no_sign(weights, scale):
    names = [f"v{i}" for i in range(len(weights))]
    if max(map(abs, weights)) > 1e-3:
        words = describe_direction(weights, names)
        assert words[0] == "v"
        flipped = [-scale * w for w in weights]
        sizes = sorted(map(abs, weights))
        if len(sizes) == 1 or sizes[-1] > 1.05 * sizes[-2]:  # which is largest is clear
            assert len(describe_direction(flipped, names)) <= len(words) + len(weights)
            assert describe_direction(flipped, names)[:2] == words[:2]
