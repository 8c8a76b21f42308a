"""What the tests of value iteration share."""

import numpy as np
import pytest

import ivvi
from value_problems import nonlinear_mean


@pytest.fixture(scope="module")
def simulator_model(model_of):
    phi = ivvi.custom(nonlinear_mean, ["mean"])
    return model_of(phi, [[1.0]], [[1.0]], np.linspace(-4, 6, 50)[:, None])
