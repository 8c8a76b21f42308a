"""What tests of planners share."""

import numpy as np
import pytest

import ivvi


@pytest.fixture(scope="module")
def model_of(names_of):
    """Return dynamics x' = W phi(x, a) + e."""

    def build(phi, W, noise_cov, states, d_a=1):
        W, noise_cov = np.atleast_2d(W), np.atleast_2d(np.asarray(noise_cov, float))
        x = names_of("x", len(W))
        bread, states = np.eye(W.shape[1]), np.asarray(states, float)
        return ivvi.Dynamics(phi, W, noise_cov, bread, x, names_of("a", d_a), x, states=states)

    return build
