"""Survival curves of policies, against what is known of the model."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import ivvi
from ivvi import Dynamics, linear
from ivvi.evaluation import Valuation
from ivvi.reporting.policy_sections import value_section

SE = 0.02


def mortal() -> Dynamics:
    """x' = x / 2; the episode ends with chance 0.3 - 0.2 a, each known to SE."""
    W = np.array([[0.0, 0.5, 0.0], [0.3, 0.0, -0.2]])
    states = np.linspace(-1, 1, 11)[:, None]
    rows = {"acted": np.arange(11.0)[:, None] % 2, "followed": np.zeros((11, 2))}
    W_cov = np.diag([0.0, 0, 0, SE**2, 0, 0])
    names = ("x",), ("a",), ("next_x", "died")
    covs = np.diag([0.0, 0.2]), np.zeros((3, 3))
    made = Dynamics(
        linear(), W, *covs, *names, states=states, ends=("died",), starts=states, **rows
    )
    return dataclasses.replace(made, W_cov=W_cov)


def nothing(x, a):
    return 0.0 * a[:, 0]


@pytest.fixture(scope="module")
def worth() -> Valuation:
    def treat(x):
        return np.ones((len(x), 1))

    settings = {"reward": nothing, "horizon": 6, "against": {"none": np.zeros(1)}}
    return ivvi.value(treat, mortal(), draws=200, **settings)


def test_curves_are_the_powers_of_the_chance_to_go_on(worth: Valuation) -> None:
    steps = np.arange(7)
    assert np.allclose(worth.survival["policy"].estimate, 0.9**steps)
    assert np.allclose(worth.survival["none"].estimate, 0.7**steps)


def test_bands_carry_the_error_of_the_chance(worth: Valuation) -> None:
    curve = worth.survival["none"]
    assert curve.low[0] == curve.high[0] == 1
    width = 2 * 1.96 * SE  # after one step
    spread = 5 * width / np.sqrt(2 * 200)  # of a quantile range of 200 draws, five errors
    assert abs(curve.high[1] - curve.low[1] - width) < spread
    assert (curve.low <= curve.estimate).all()
    assert (curve.estimate <= curve.high).all()


def test_reports_and_results_show_the_curves(worth: Valuation) -> None:
    assert "share of episodes that go on after 6 steps: policy 0.531" in worth.summary()
    assert np.allclose(worth.to_json()["survival"]["none"]["estimate"][-1], 0.7**6)
    section = value_section(worth)
    titles = [getattr(part, "title", "") for part in section.parts]
    assert "Share of episodes that go on" in titles
    lines = worth.plot().axes[-1].get_lines()
    assert [line.get_label() for line in lines] == ["policy", "none"]


def test_where_nothing_ends_there_are_no_curves() -> None:
    alive = dataclasses.replace(
        mortal(), ends=(), W=np.array([[0.0, 0.5, 0.0]]), noise_cov=np.zeros((1, 1)),
        outputs=("next_x",), followed=np.zeros((11, 1)), W_cov=None,
    )  # fmt: skip
    worth = ivvi.value(np.zeros(1), alive, reward=nothing, horizon=2, against=(), draws=20)
    assert worth.survival == {}
    assert worth.to_json()["survival"] == {}
