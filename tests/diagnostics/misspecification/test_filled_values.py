"""A value inside a range that fills many rows of a continuous column may be a missing one."""

from __future__ import annotations

import numpy as np
import pytest

import ivvi
from ivvi.diagnostics.misspecification.filled_values import filled_values


def world(seed=0, n=1500):
    rng = np.random.default_rng(seed)
    z, u, x = rng.normal(size=(3, n))
    a = z + u
    return {"y": a + 2 * u + rng.normal(size=n), "a": a, "z": z, "x": x}


def doubts(data):
    log = ivvi.read_logs(data, formula="y ~ x | a ~ z")
    return filled_values(log.head(episodes=True), log.roles)


def filled(data, name, value, share, seed=0):
    rows = np.random.default_rng(seed).random(len(data["y"])) < share
    return {**data, name: np.where(rows, value, data[name])}


@pytest.mark.parametrize("name", ["y", "a", "x"])
@pytest.mark.parametrize("value", [0.0, 0.5])
def test_a_value_that_fills_rows_inside_the_range_is_named_with_the_remedy(name, value):
    (text,) = doubts(filled(world(), name, value, 0.15))
    assert text.startswith(f"{name} is exactly {value:g} in 1")
    assert f"--missing {value:g} --drop-missing" in text


def test_a_value_that_other_columns_hold_rightly_is_not_removed_everywhere():
    data = filled(world(), "y", 0.0, 0.15) | {"x": np.arange(1500) % 2 * 1.0}
    (text,) = doubts(data)
    assert "empty these cells of y" in text


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "change",
    [
        lambda y: y,
        lambda y: np.maximum(y, 0),
        lambda y: np.minimum(y, 0.5),
        np.round,
        lambda y: np.round(y, 1),
        lambda y: (y > 0) * 1.0,
    ],
)
def test_ends_of_a_range_whole_numbers_and_rounded_ones_are_none(change, seed):
    data = world(seed)
    assert doubts(data | {"y": change(data["y"])}) == []


def test_states_that_begin_at_zero_and_costs_of_no_dose_are_none():
    data = world()
    n = len(data["y"])
    start, dose = np.arange(n) % 10 == 0, np.arange(n) % 5 == 0
    panel = {"episode": np.arange(n) // 10, "step": np.arange(n) % 10}
    columns = data | panel | {"x": np.where(start, 0, data["x"]), "next_x": data["y"]}
    log = ivvi.read_logs(columns, state="x", action="a", instrument="z", next_state="next_x")
    assert filled_values(log.head(episodes=True), log.roles) == []
    assert doubts(data | {"x": 1.0 * dose, "y": np.where(dose, 0, data["y"])}) == []


def test_a_fit_says_it():
    with pytest.warns(UserWarning, match="y is exactly 0 in"):
        ivvi.fit(filled(world(), "y", 0.0, 0.2), formula="y ~ x | a ~ z")
