"""Integration over the noise."""

import numpy as np
import pytest

from ivvi.planning.quadrature import Noise
from ivvi.planning.value_iteration.fourier_values import Fitted


@pytest.mark.parametrize(
    ("integration", "nodes", "tolerance"),
    [("gauss-hermite", 4, 1e-12), ("quasi", 1 << 12, 0.01), ("antithetic", 1 << 14, 0.1)],
)
def test_nodes_have_the_moments_of_the_noise(integration, nodes, tolerance):
    """The tolerance of draws is five standard errors of a fourth moment or more."""
    covariance = np.array([[2.0, 0.6, 0.0], [0.6, 1.0, 0.0], [0.0, 0.0, 0.0]])
    noise = Noise.of(covariance, integration, nodes, seed=1)
    e, w = noise.offsets, noise.weights
    assert w.sum() == pytest.approx(1)
    np.testing.assert_allclose(w @ e, 0, atol=tolerance)
    np.testing.assert_allclose((e.T * w) @ e, covariance, atol=tolerance)
    assert w @ e[:, 1] ** 4 == pytest.approx(3, abs=3 * tolerance)
    assert (e[:, 2] == 0).all()


def test_features_of_a_fitted_value_are_averaged_in_closed_form():
    rng = np.random.default_rng(3)
    covariance = np.array([[0.5, 0.2], [0.2, 0.3]])
    value = Fitted.to(rng.normal(1.0, 2.0, size=(300, 2)), seed=1, cosines=True)
    noise, m = Noise.of(covariance, "gauss-hermite", 20, seed=0), rng.normal(size=(9, 2))
    drawn = value.features(m[:, None] + noise.offsets)
    np.testing.assert_allclose(
        value.features(m) @ value.average(covariance),
        np.einsum("k,nkp->np", noise.weights, drawn),
        atol=1e-10,
    )


def test_a_model_without_noise_has_one_node():
    noise = Noise.of(np.zeros((2, 2)), "auto", None, seed=0)
    assert noise.offsets.tolist() == [[0.0, 0.0]]
    assert noise.weights.tolist() == [1.0]
