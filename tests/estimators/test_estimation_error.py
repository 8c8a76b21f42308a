"""How far the estimates are from the truth, in the paper's simulators.

Bounds come from theory: with noise covariance N and bread M the errors of W are normal
with covariance N (x) M, so that |W - W*|^2 has mean tr N tr M and variance
2 |N|^2 |M|^2 (Frobenius norms).
"""

import math

import numpy as np
import pytest

import ivvi

pytestmark = pytest.mark.thorough

LINEAR = {5: (0.044, 1.45), 10: (0.099, 2.05), 20: (0.204, 2.89)}
"""Measured error of the closed form and of least squares, setting I, 80,000 rows."""


SEEDS = {5: 6, 10: 2, 20: 1}
"""Logs of each dimension: the larger dimensions have coefficients enough."""


@pytest.fixture(scope="module")
def fits(simulated):
    """Return fits of logs of the linear simulator of each dimension."""
    return {
        k: [ivvi.estimate(simulated("linear", k, seed=seed)) for seed in range(count)]
        for k, count in SEEDS.items()
    }


@pytest.fixture(scope="module")
def truths(simulator):
    return {k: simulator("linear", k).world.W_star for k in LINEAR}


def correlation(covariance):
    spread = np.sqrt(np.diag(covariance))
    return covariance / np.outer(spread, spread)


@pytest.mark.parametrize("k", LINEAR)
def test_the_closed_form_errs_less_than_a_tenth_of_least_squares(k, fits, truths):
    exact, least_squares = LINEAR[k]
    for fit in fits[k]:
        error = np.linalg.norm(fit.W - truths[k])
        assert 0.5 * exact < error < 1.6 * exact
        confounded = np.linalg.norm(fit.baseline.W - truths[k])
        assert confounded == pytest.approx(least_squares, rel=0.1)
        assert error < confounded / 10


@pytest.mark.parametrize("k", LINEAR)
def test_standard_errors_are_honest(k, fits, truths):
    """The mean of ((W - W*) / se)^2 is 1, within 5 standard errors of that mean."""
    squares = np.array([((fit.W - truths[k]) / fit.se) ** 2 for fit in fits[k]])
    e = fits[k][0].estimate
    norms = np.linalg.norm(correlation(e.noise_cov)) * np.linalg.norm(correlation(e.bread))
    bound = 5 * math.sqrt(2) * norms / (squares[0].size * math.sqrt(len(squares)))
    assert abs(squares.mean() - 1) < bound
    assert bound < 0.6  # it can fail
    assert squares.max() < 5.5**2  # once in 30,000 sets of 820 coefficients


@pytest.mark.parametrize("k", LINEAR)
def test_covariance_of_all_coefficients_is_honest(k, fits, truths):
    """N^-1/2 (W - W*) M^-1/2 is white: its sum of squares is chi-squared."""
    total, count = 0.0, 0
    for fit in fits[k]:
        error = fit.W - truths[k]
        left = np.linalg.solve(fit.estimate.noise_cov, error)
        total += np.trace(left @ np.linalg.solve(fit.estimate.bread, error.T))
        count += error.size
    assert abs(total / count - 1) < 5 * math.sqrt(2 / count) < 0.4


@pytest.mark.parametrize("k", LINEAR)
def test_noise_covariance_is_the_confounders(k, fits, truths):
    """Within 5 standard errors: those of the rows, and those that the error of W adds."""
    wanted = np.eye(k) + 0.3 * (np.eye(k, k=1) + np.eye(k, k=-1))
    for fit in fits[k]:
        m, e = fit.moments, fit.estimate
        with_y = m.second[np.ix_(m.design.phi_columns, m.design.y_columns)]
        confounding = with_y - m.D @ truths[k].T  # E[phi e^T], (d_phi, k)
        added = np.sqrt(np.diag(confounding.T @ e.bread @ confounding))
        error = np.sqrt((1 + wanted**2) / m.n) + added + added[:, None]
        assert (np.abs(e.noise_cov - wanted) < 5 * error).all()


def test_error_falls_like_the_root_of_the_rows(simulated, truths):
    """From 4 to 80 episodes the error follows its expectation, which falls by 4.5."""
    table = simulated("linear", 5).to_arrow()
    errors, expected = [], []
    for episodes in (4, 20, 80):
        e = ivvi.estimate(ivvi.read_logs(table.slice(0, episodes * 1000))).estimate
        square = np.sum((e.W - truths[5]) ** 2)
        mean = np.trace(e.noise_cov) * np.trace(e.bread)
        spread = math.sqrt(2) * np.linalg.norm(e.noise_cov) * np.linalg.norm(e.bread)
        assert abs(square - mean) < 5 * spread
        errors.append(math.sqrt(square))
        expected.append(math.sqrt(mean))
    assert expected[0] / expected[1] == pytest.approx(math.sqrt(5), rel=0.1)
    assert expected[1] / expected[2] == pytest.approx(2, rel=0.1)
    assert errors[0] > 2 * errors[2]


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["I", "III", "VI"])
def test_standard_errors_are_the_spread_over_many_logs(simulator, setting):
    """The spread of W over 200 logs is what each log says it is."""
    env = simulator("linear", 2, setting)
    W_star, scores = env.world.W_star, []
    for seed in range(200):
        fit = ivvi.estimate(env.collect(20, 50, seed))
        scores.append((fit.W - W_star) / fit.se)
    scores = np.array(scores)
    assert np.abs(scores.mean(axis=0)).max() < 5 / math.sqrt(200) + 0.15  # 2SLS is biased a bit
    assert np.abs((scores**2).mean(axis=0) - 1).max() < 5 * math.sqrt(2 / 200)


@pytest.mark.parametrize(
    ("name", "dim", "word", "printed", "digit"),
    [("linear", 5, "linear", 0.14, 0.01), ("nonlinear", 1, "poly2", 0.0024, 0.0001)],
)
def test_strength_is_the_papers(name, dim, word, printed, digit, simulated):
    """The mean over seeds is the printed number, up to rounding and 4 standard errors."""
    logs = [simulated(name, dim, seed=seed) for seed in range(6)]
    strengths = [ivvi.estimate(log, word).diagnostics.strength.mu_iv for log in logs]
    error = np.std(strengths, ddof=1) / math.sqrt(len(strengths))
    assert abs(np.mean(strengths) - printed) < digit / 2 + 4 * error
    assert 4 * error < 0.2 * printed  # it can fail


def test_richer_features_learn_the_nonlinear_dynamics(simulated):
    """Splines of the state follow ln(|x - 1| + 1) closer than its best parabola."""
    log = simulated("nonlinear", 1)
    x = np.linspace(-2, 2, 81)[:, None]
    true = np.log(np.abs(x - 1) + 1)
    gaps = {}
    for word in ("poly2", "spline:8"):
        fit = ivvi.estimate(log, word)
        gaps[word] = np.sqrt(np.mean((fit.model.mean(x, 0 * x) - true) ** 2))
    assert gaps["spline:8"] < 0.5 * gaps["poly2"]
    action = fit.estimate.design.phi_names.index("a0")
    assert abs(fit.W[0, action] + 0.5) < 4 * fit.se[0, action] + 0.01
    assert abs(fit.baseline.W[0, action] + 0.5) > 0.3
