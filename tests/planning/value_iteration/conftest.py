"""What the tests of value iteration share."""

import numpy as np
import pytest

import ivvi
from value_problems import nonlinear_mean


@pytest.fixture(scope="module")
def model_of(names_of):
    """Return dynamics x' = W phi(x, a) + e."""

    def build(phi, W, noise_cov, states, d_a=1):
        W, noise_cov = np.atleast_2d(W), np.atleast_2d(np.asarray(noise_cov, float))
        x = names_of("x", len(W))
        bread, states = np.eye(W.shape[1]), np.asarray(states, float)
        return ivvi.Dynamics(phi, W, noise_cov, bread, x, names_of("a", d_a), x, states=states)

    return build


@pytest.fixture(scope="module")
def simulator_model(model_of):
    phi = ivvi.custom(nonlinear_mean, ["mean"])
    return model_of(phi, [[1.0]], [[1.0]], np.linspace(-4, 6, 50)[:, None])
