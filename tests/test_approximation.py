"""Whether richer features change the answer: both statistics worked out from the rows."""

import numpy as np
import pytest

import ivvi
from helpers import dependent_log, dependent_rows


def two_stage(Phi, Psi, y):
    """Return W (d_y, d), its residuals, the projector on psi as a function, and (Phi' P Phi)^-1."""

    def project(v):
        return Psi @ np.linalg.lstsq(Psi, v, rcond=None)[0]

    fitted = project(Phi)
    inverse = np.linalg.inv(fitted.T @ fitted)
    W = y.T @ fitted @ inverse
    return W, y - Phi @ W.T, project, inverse


@pytest.fixture(scope="module")
def case():
    data = dependent_rows(4, d_x=1, d_z=2)
    x, a, z, y, *_ = data
    one = np.ones_like(x)
    maps = {
        "phi": np.hstack([one, x, a]),
        "psi": np.hstack([one, x, z]),
        "richer phi": np.hstack([one, x, a, x**2, a**2]),
        "richer psi": np.hstack([one, x, z, x**2, z**2]),
    }
    return maps, y, ivvi.check_sequence(dependent_log(data))


def test_a_richer_psi_adds_to_sargans_statistic(case):
    maps, y, found = case
    _, rest, project, _ = two_stage(maps["phi"], maps["psi"], y)
    _, left, richly, _ = two_stage(maps["phi"], maps["richer psi"], y)
    gained = np.sum(richly(left) ** 2, axis=0) - np.sum(project(rest) ** 2, axis=0)
    test = found["richer psi (poly2)"].test
    assert test.statistic.value == pytest.approx(np.max(gained / np.mean(left**2, axis=0)))
    assert (test.statistic.df, test.compared) == ((3,), 2)


def test_a_richer_phi_is_walds_test_of_what_it_adds(case):
    maps, y, found = case
    W, rest, _, inverse = two_stage(maps["richer phi"], maps["richer psi"], y)
    added, noise = W[:, 3:], np.mean(rest**2, axis=0)
    values = [
        w @ np.linalg.solve(s * inverse[3:, 3:], w) for w, s in zip(added, noise, strict=True)
    ]
    test = found["richer phi (poly2)"].test
    assert test.statistic.value == pytest.approx(max(values))
    assert test.statistic.df == (2,)
