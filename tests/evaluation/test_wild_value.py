"""Wild draws of a value: the fit's few clusters, left out in turn."""

import numpy as np
import pytest

import ivvi
from ivvi import InputError, StandardErrors
from ivvi.evaluation.model_draws import left_out, reweighted, wild, wild_draws, wild_weights
from ivvi.evaluation.value_inputs import ValueInputs

pytestmark = pytest.mark.filterwarnings("ignore::ivvi.errors.IvviWarning")
EPISODES, STEPS, HORIZON, ACTION = 4, 12, 8, 0.5
ASKED = {"reward": "quadratic:weight=1", "actions": (-1, 1), "horizon": HORIZON, "against": ()}
TRUTH = -10.900588989257812
"""Value of the action 0.5 from the state 1: minus the sum of squared means and variances."""


def fitted(seed, wards, se="wild"):
    """Fit x' = x / 2 - a / 2 + e, where wards share seven tenths of z and of e in a step."""
    rng = np.random.default_rng([7, seed])
    n = wards * EPISODES
    ward = np.repeat(np.arange(wards), EPISODES)
    both = rng.normal(size=(2, wards, STEPS))[:, ward]
    z, e = np.sqrt(0.7) * both + np.sqrt(0.3) * rng.normal(size=both.shape)
    x, a = np.zeros((n, STEPS + 1)), np.zeros((n, STEPS))
    x[:, 0] = 1 + 0.3 * rng.normal(size=n)
    for t in range(STEPS):
        a[:, t] = z[:, t] + 0.7 * e[:, t] + 0.3 * x[:, t] + rng.normal(size=n)
        x[:, t + 1] = 0.5 * x[:, t] - 0.5 * a[:, t] + e[:, t]
    rows = {"x0": x[:, :-1], "a0": a, "z0": z, "ward": np.repeat(ward[:, None], STEPS, axis=1)}
    rows = {name: part.ravel() for name, part in rows.items()}
    rows |= {"episode": np.repeat(np.arange(n), STEPS), "step": np.tile(np.arange(STEPS), n)}
    log = ivvi.read_logs(rows, state="x0", action="a0", instrument="z0")
    return ivvi.estimate(log, se=StandardErrors(se, "ward", draws=99), episodes=True)


def worth(fit, **others):
    return ivvi.value([ACTION], fit, starts=[[1.0]], **ASKED | others)


def test_the_truth_is_what_it_is_said_to_be():
    mean, variance, total = 1.0, 0.0, 0.0
    for _ in range(HORIZON):
        total -= mean**2 + variance
        mean, variance = mean / 2 - ACTION / 2, variance / 4 + 1.0
    assert pytest.approx(total, rel=1e-12) == TRUTH


def test_draws_have_the_jackknifes_covariance():
    """Of 20,000 draws, four standard errors; Student's factor makes it (G - 1) / (G - 3)."""
    fit, count = fitted(1, 12), 20_000
    drawn = wild(ValueInputs.of(fit), count, np.random.default_rng(0)).W[:, 0]
    held = fit.moments.episodes
    without = np.array(
        [
            ivvi.estimators.Exact().solve(reweighted(fit.moments, 1.0 - row)).W[0]
            for row in np.eye(len(held))
        ]
    )
    gap = without - without.mean(axis=0)
    expected = 11 / 9 * (11 / 12) * np.sum(gap**2, axis=0)
    np.testing.assert_allclose(
        drawn.mean(axis=0), fit.W[0], atol=4 * np.sqrt(expected / count).max()
    )
    kurtosis = np.mean((drawn - drawn.mean(axis=0)) ** 4, axis=0) / drawn.var(axis=0) ** 2
    error = 4 * np.sqrt((kurtosis - 1).max() / count)
    np.testing.assert_allclose(drawn.var(axis=0) / expected, 1.0, atol=error)


def test_a_wild_fit_is_valued_by_wild_draws(tmp_path):
    fit = fitted(2, 12)
    valued = worth(fit, draws=60)
    assert valued.method == "wild"
    description = "clustered by ward, as the fit is: clusters get random signs"
    assert any(description in note for note in valued.notes)
    low, high = valued.value.interval
    assert low < valued.value.estimate < high
    fit.save(tmp_path / "model", episodes=True)
    again = worth(tmp_path / "model", draws=60)
    np.testing.assert_allclose(again.value.draws, valued.value.draws, rtol=1e-9)
    fit.save(tmp_path / "sums", episodes=False)
    again = worth(tmp_path / "sums", draws=60)
    assert again.method == "asymptotic"
    assert any("wild draws need the moments of each cluster" in note for note in again.notes)
    assert worth(fitted(2, 12, "clustered"), draws=60).method == "bootstrap"


def test_too_few_clusters_are_told():
    with pytest.raises(
        InputError, match="4 clusters are too few for wild draws; expected at least 5"
    ):
        left_out(4, np.random.default_rng(0))
    fit = fitted(2, 6)
    assert worth(fit, draws=60).method == "wild"
    with pytest.raises(InputError, match="the bootstrap of 6 clusters is unreliable"):
        worth(fit, draws=60, method="bootstrap")


def test_many_clusters_are_left_out_in_groups():
    out = left_out(1000, np.random.default_rng(0))
    assert out.shape == (200, 1000)
    np.testing.assert_array_equal((1 - out).sum(axis=0), 1)
    np.testing.assert_array_equal((1 - out).sum(axis=1), 5)
    one = wild_draws(
        np.array(2.0), np.full(200, 2.0), wild_weights(200, 5, np.random.default_rng(0))
    )
    np.testing.assert_array_equal(one, 2.0)


@pytest.mark.slow
def test_wild_draws_cover_where_clusters_are_few():
    """Eight clusters, 200 logs: wild within three deviations of 95%; a normal law far below."""
    hits = {"wild": 0, "asymptotic": 0}
    for seed in range(200):
        fit = fitted(seed, 8)
        for method in hits:
            low, high = worth(fit, draws=200, method=method, seed=seed).value.interval
            hits[method] += low <= TRUTH <= high
    assert abs(hits["wild"] / 200 - 0.95) <= 3 * np.sqrt(0.95 * 0.05 / 200), hits
    assert hits["asymptotic"] < hits["wild"]


@pytest.mark.parametrize("method", ["bootstrap", "asymptotic", "wild"])
def test_first_states_are_drawn_with_their_clusters(method):
    """Wards differ in whom they admit: thirty wards, not 180 patients, tell the first states."""
    rng = np.random.default_rng(3)
    wards, each, steps = 30, 6, 8
    n = wards * each
    ward = np.repeat(np.arange(wards), each)
    x, a = np.zeros((n, steps + 1)), np.zeros((n, steps))
    x[:, 0] = 2 * rng.normal(size=wards)[ward] + 0.5 * rng.normal(size=n)
    z, e = rng.normal(size=(2, n, steps))
    for t in range(steps):
        a[:, t] = z[:, t] + 0.7 * e[:, t] + 0.5 * rng.normal(size=n)
        x[:, t + 1] = 0.8 * x[:, t] - 0.5 * a[:, t] + e[:, t]
    rows = {"x0": x[:, :-1], "a0": a, "z0": z, "ward": np.repeat(ward[:, None], steps, axis=1)}
    rows = {name: part.ravel() for name, part in rows.items()}
    rows |= {"episode": np.repeat(np.arange(n), steps), "step": np.tile(np.arange(steps), n)}
    log = ivvi.read_logs(rows, state="x0", action="a0", instrument="z0")
    fit = ivvi.estimate(log, se=StandardErrors("clustered", "ward"), episodes=True)
    asked = {"reward": "linear:state=1", "horizon": steps, "against": (), "draws": 200}
    worth = ivvi.value([0.0], fit, method=method, **asked).value
    means = x[:, 0].reshape(wards, each).mean(axis=1)
    carried = 0.8 * (1 - 0.8**steps) / 0.2  # what a first state adds to the later ones, at least
    assert worth.draws.std() > 0.8 * carried * means.std() / np.sqrt(wards)
