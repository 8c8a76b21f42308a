"""A fit and a policy that all analyses doubt."""

import pytest

import ivvi


@pytest.fixture(scope="session")
def case(simulator):
    """Return a fit of a log of two states, and a policy planned with it."""
    log = simulator("linear", dim=2, setting="III").collect(episodes=30, horizon=100, seed=3)
    fit = ivvi.estimate(log)
    return fit, ivvi.plan(
        fit.model, "quadratic:weight=0.05", (-1, 1), horizon=10, method="mpc", compare=False
    )
