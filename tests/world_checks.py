"""What tests of simulators compare: true means, correlations, covariances."""

import jax
import jax.numpy as jnp
import numpy as np


def true_mean(world, batch):
    """Return F(x, a) of the rows of a batch, (n, d_x)."""
    with jax.enable_x64(True):
        return np.asarray(jax.vmap(world.transition)(jnp.asarray(batch.x), jnp.asarray(batch.a)))


def correlations(left, right):
    """Return the correlations of the columns, (d_left, d_right)."""
    left, right = (part - part.mean(axis=0) for part in (left, right))
    left, right = (part / np.sqrt((part**2).sum(axis=0)) for part in (left, right))
    return left.T @ right


def assert_covariance(sample, expected):
    """Compare the covariance of Gaussian rows of mean zero, within 5 standard errors."""
    found = sample.T @ sample / len(sample)
    variance = np.diag(expected)
    error = np.sqrt((np.outer(variance, variance) + expected**2) / len(sample))
    assert (np.abs(found - expected) < 5 * error).all(), np.abs(found - expected) / error
