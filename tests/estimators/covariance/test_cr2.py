"""Few and uneven clusters: Bell and McCaffrey's correction."""

import numpy as np
import pytest

import ivvi
from ivvi import StandardErrors
from uneven_clusters import regression, uneven

pytestmark = pytest.mark.filterwarnings(
    "ignore:[0-9]+ clusters by 'ward' count as", "ignore:weak instruments"
)


def root(matrix, power):
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.maximum(values, 1e-8) ** power) @ vectors.T


def test_cr2_and_its_degrees_of_freedom_are_bell_and_mccaffreys():
    """From matrices of the rows themselves: residuals (I - H_gg)^-1/2 u, and E[V] by traces."""
    columns = uneven()
    fit = ivvi.estimate(ivvi.read_logs(columns), se=StandardErrors("cr2", "ward"))
    fitted, u, _, _ = regression(columns)
    g, n = columns["ward"], len(u)
    M = np.linalg.inv(fitted.T @ fitted)
    H = fitted @ M @ fitted.T
    rows = [np.flatnonzero(g == c) for c in range(10)]
    adjust = [root(np.eye(len(r)) - H[np.ix_(r, r)], -0.5) for r in rows]
    scores = np.array([fitted[r].T @ A @ u[r] for r, A in zip(rows, adjust, strict=True)])
    np.testing.assert_allclose(fit.se[0], np.sqrt(np.diag(M @ scores.T @ scores @ M)), rtol=1e-8)
    pairs = sum(len(r) ** 2 - len(r) for r in rows)
    rho = sum(u[r].sum() ** 2 - u[r] @ u[r] for r in rows) / pairs / (u @ u / n)
    omega = np.zeros((n, n))
    for r in rows:
        omega[np.ix_(r, r)] = np.clip(rho, 0, 1)
    np.fill_diagonal(omega, 1.0)
    left = np.eye(n) - H
    for j in range(3):
        G = np.array([left[:, r] @ A @ fitted[r] @ M[j] for r, A in zip(rows, adjust, strict=True)])
        K = G @ omega @ G.T
        assert fit.estimate.freedoms[0, j] == pytest.approx(
            np.trace(K) ** 2 / np.sum(K**2), rel=1e-6
        )
    assert "CR2" in fit.summary()
    assert fit.to_json()["cr2"]
