"""The shape of the noise: values draw it as the log has it, and keep its second moments."""

import numpy as np
import pandas as pd
import pytest

import ivvi
from ivvi.evaluation.noise_shape import resampled_shapes, shape_of, shaped

EPISODES, STEPS = 300, 10


def noisy_log(noise, seed=0, extra=False):
    """x' = 0.8 x - a + 0.5 h + noise(rng, x), where the hidden h moves a as well."""
    rng = np.random.default_rng(seed)
    x, frames = 5 + rng.normal(size=EPISODES), []
    for t in range(STEPS):
        z, h = rng.normal(size=(2, EPISODES))
        a = z + 0.6 * h
        frames.append(pd.DataFrame({"ep": range(EPISODES), "t": t, "x": x, "a": a, "z": z}))
        x = 0.8 * x - a + 1 + 0.2 * h + noise(rng, x)
    table = pd.concat(frames)
    if extra:
        table["age"] = np.random.default_rng(1).exponential(size=EPISODES)[table.ep]
    roles = {"state": "x", "action": "a", "instrument": "z", "episode": "ep", "step": "t"}
    return ivvi.read_logs(table, **roles, **({"context": "age"} if extra else {}))


def skewed(rng, x):
    return rng.exponential(size=len(x)) - 1


def normal(rng, x):
    return rng.normal(size=len(x))


def widening(rng, x):
    return 0.3 * np.maximum(np.abs(x), 0.1) * rng.normal(size=len(x))


def drawn(shape, x, count=200_000):
    """Return shaped noise in the state x, (count,)."""
    g = np.random.default_rng(0).normal(size=(1, count, 1))
    return shaped(g, np.full((1, count, 1), x), shape.rows(None))[0, :, 0]


def test_normal_noise_of_one_spread_is_drawn_as_normal():
    """Two tests of one column at 0.1% each: by chance in less than 1 of 300 logs."""
    assert shape_of(ivvi.estimate(noisy_log(normal)).model) is None


@pytest.mark.parametrize("extra", [False, True])
def test_skewed_noise_keeps_its_moments_and_is_drawn_skewed(extra):
    """Residuals are exponential but for a little normal noise: a skewness of 2 / 1.04^1.5.

    That of 2,048 rows is known to about 0.25; moments of 200,000 draws to 1%.
    """
    model = ivvi.estimate(noisy_log(skewed, extra=extra)).model
    shape = shape_of(model)
    column = model.state.index("x")
    assert np.isfinite(shape.quantiles[column]).all()
    if extra:  # what is carried along has no noise
        assert np.isnan(shape.quantiles[1 - column]).all()
        return
    e = drawn(shape, 5.0)
    assert e.mean() == pytest.approx(0, abs=0.02)
    assert e.var() == pytest.approx(1, rel=0.03)
    assert (e**3).mean() == pytest.approx(2 / 1.04**1.5, abs=0.8)


def test_noise_that_widens_with_the_state_is_drawn_wider_there():
    """Its standard deviation is (0.04 + 0.09 x^2)^1/2: 10% is three times the error of a fit."""
    model = ivvi.estimate(noisy_log(widening)).model
    shape, scale = shape_of(model), np.sqrt(model.noise_cov[0, 0])
    for x in (2.0, 6.0):
        spread = scale * drawn(shape, x).std()
        assert spread == pytest.approx(np.sqrt(0.04 + 0.09 * x**2), rel=0.15)


def test_shapes_of_rows_drawn_again_lie_around_that_of_the_log():
    model = ivvi.estimate(noisy_log(skewed)).model
    shape = shape_of(model)
    again = resampled_shapes(model, shape, 300, np.random.default_rng(0))
    assert again.quantiles.shape == (300, *shape.quantiles.shape)
    middle = slice(20, 45)
    spread = again.quantiles[:, 0, middle].std(axis=0)
    off = again.quantiles[:, 0, middle].mean(axis=0) - shape.quantiles[0, middle]
    assert (spread > 0).all()
    assert (np.abs(off) < spread).all()


def test_a_rare_cost_of_skewed_noise_is_valued_as_it_is():
    """One step from x = 5 with a = 0 leads to 5 + e; P(e > 2) of the log's law and of a normal's.

    The value lies within four standard errors of the truth, which is 2.5 below that of the normal
    law; 2,048 rows know such a share to 0.5.
    """
    fit = ivvi.estimate(noisy_log(skewed))
    settings = {"horizon": 1, "starts": [[5.0]], "against": (), "draws": 200}
    worth = ivvi.value(np.zeros(1), fit, reward=exceeds, **settings)
    rng = np.random.default_rng(1)
    truth = -100 * np.mean(rng.exponential(size=10**6) - 1 + 0.2 * rng.normal(size=10**6) > 2)
    error = worth.value.draws.std() + worth.value.simulation_error
    assert abs(worth.value.estimate - truth) < 4 * error
    gaussian = -100 * 0.0249  # P(N(0, 1.04) > 2)
    assert worth.value.estimate < gaussian - 0.5


def exceeds(x, a, x_next):
    return -100.0 * (x_next[:, 0] > 7)
