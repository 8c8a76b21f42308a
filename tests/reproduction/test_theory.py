"""The studies behind the pages' sentences on the theorems."""

import itertools

import numpy as np
import pytest

from ivvi_reproduction.error_exponents import SERIES, StaticModel, measure, slope
from ivvi_reproduction.misspecification import conditional_mean
from ivvi_reproduction.misspecification import measure as bound
from ivvi_reproduction.planning_error import Plans, decompose, kernel, lemma, policy_value


def tiny(seed, states=3, actions=2, horizon=3):
    """Two random decision processes on a few states, with one reward."""
    rng = np.random.default_rng(seed)
    kernels = rng.dirichlet(np.ones(states), size=(2, states, actions))
    r = rng.uniform(size=states)
    return [Plans(P, r, horizon) for P in kernels]


def by_paths(true, choices, value):
    """Sum value(h, x, a) over every path of states from each start, by its chance."""
    total = np.zeros(len(true.r))
    for path in itertools.product(range(len(true.r)), repeat=true.horizon):
        chance, earned = 1.0, 0.0
        for h, x in enumerate(path):
            earned += value(h, x, choices[h][x])
            if h + 1 < true.horizon:
                chance *= true.P[x, choices[h][x], path[h + 1]]
        total[path[0]] += chance * earned
    return total


@pytest.mark.parametrize("seed", range(3))
def test_the_sums_of_the_lemma_are_those_over_all_paths(seed):
    true, model = tiny(seed)

    def iota(h, x, a):
        return true.r[x] + true.P[x, a] @ model.V[h + 1] - model.Q[h][x, a]

    def xi(h, x, a):
        return model.Q[h][x, a] - model.Q[h][x].max()

    parts = decompose(true, model)
    for name, choices, value in (
        ("iota_optimal", true.choices, iota),
        ("xi", true.choices, xi),
        ("iota_model", model.choices, iota),
    ):
        np.testing.assert_allclose(parts[name], by_paths(true, choices, value), atol=1e-12)
    earned = by_paths(true, model.choices, lambda h, x, a: true.r[x])
    np.testing.assert_allclose(policy_value(true.P, true.r, model.choices), earned, atol=1e-12)
    gap = by_paths(true, true.choices, lambda h, x, a: true.r[x]) - earned
    total = parts["iota_optimal"] + parts["xi"] - parts["iota_model"]
    np.testing.assert_allclose(total, gap, atol=1e-12)
    assert (parts["xi"] <= 1e-12).all()


def test_the_lemma_holds_on_the_grid_for_a_wrong_model():
    sums = lemma(np.array([0.2, 0.4, 0.1]), horizon=6)
    assert sums["their sum"] == pytest.approx(sums["V*_1 - V^pi_1"], abs=1e-10)
    assert sums["V*_1 - V^pi_1"] > 0.01
    assert sums["E_pi* xi"] < 0


def test_the_grid_has_the_mean_of_the_model():
    P = kernel(np.array([0.1, 0.5, -0.5]))
    assert P[40, 15] @ np.linspace(-5, 5, 81) == pytest.approx(0.1 - 0.5 * 0.5, abs=1e-3)


def test_a_conditional_mean_is_found():
    rng = np.random.default_rng(0)
    x, z = rng.uniform(-2, 2, (2, 4000, 1))
    truth = np.sin(x[:, 0]) * z[:, 0] ** 2
    noisy = truth + rng.normal(size=4000)
    # 45 coefficients from 4,000 rows: an error of about sqrt(45 / 4000) = 0.11
    assert np.sqrt(np.mean((conditional_mean(x, z, noisy[:, None])[:, 0] - truth) ** 2)) < 0.17


def test_theorem_2_holds_and_is_nearly_vacuous():
    theorem = bound("III", episodes=40)
    assert theorem.left < theorem.right
    assert theorem.right > 100 * theorem.left
    assert theorem.left >= theorem.eta_1  # nothing in the span is nearer than the projection


@pytest.mark.thorough
def test_the_error_grows_with_the_number_of_outputs_and_falls_less_than_the_theorem_allows():
    """Each mean of 32 runs has a relative error of about 0.15, a slope over log 8 one of 0.08."""
    settings = {"runs": 32, "steps": 4096, "seed": 1}
    wide = slope([measure("d_x", value, **settings) for value in (1, 8)])
    assert wide[0] == pytest.approx(1, abs=4 * wide[1])
    strong = slope([measure("mu_iv", value, **settings) for value in (0.5, 0.9)])
    assert SERIES["mu_iv"][1] < strong[0] < 0.5


def test_a_scale_of_the_instrument_moves_mu_b_alone():
    rng = np.random.default_rng(0)
    one, half = (StaticModel(scale=s).strength(rng) for s in (1.0, 0.5))
    assert one[0] == pytest.approx(half[0], rel=0.02)
    assert half[1] == pytest.approx(0.25, rel=0.02)
