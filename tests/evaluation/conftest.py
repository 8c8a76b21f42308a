"""A fit that keeps its episodes, and a plan, for all tests of values."""

import pytest

import ivvi


@pytest.fixture(scope="session")
def fit(simulated):
    """Fit a log of 60 episodes of the linear simulator, and keep their moments."""
    return ivvi.estimate(simulated("linear", 2, episodes=60, horizon=40, seed=3), episodes=True)


@pytest.fixture(scope="session")
def policy(fit):
    """Plan with this fit."""
    return ivvi.plan(
        fit.model, "quadratic:weight=0.05", (-1, 1), horizon=40, method="mpc", compare=False
    )
