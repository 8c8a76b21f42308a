"""Descent-ascent with memory of order d, by whole episodes, and by independent draws."""

import itertools
import json
import subprocess
import sys

import numpy as np
import pytest

from helpers import OPTIONS, ROLES, assert_refused, make_rows, run, take, write_table
from ivvi import SGDA, InputError, estimate, load_model, read_logs
from ivvi.errors import DataError, IvviWarning
from ivvi.estimators import Exact
from ivvi.estimators.convergence import Conditions
from ivvi.estimators.sgda.loop import Descent, pieces
from ivvi.estimators.sgda.preconditioning import (
    Raw,
    Scaled,
    Start,
    decouple,
    largest_eigenvalue,
    plain_setup,
)
from ivvi.estimators.sgda.sampler import Shuffled, Streamed, SweepPosition, evaluate, survey
from ivvi.estimators.sgda.schedules import ConstantSteps, Decay
from ivvi.features.design import build_design
from ivvi.moments import compute_moments


@pytest.fixture(scope="module")
def small():
    """Return a log in memory whose episodes differ in length, and its moments."""
    rows = make_rows(30, 20, seed=4)
    keep = np.flatnonzero(rows["step"] < 3 + rows["episode"] % 17)
    log = read_logs(take(rows, keep), **ROLES)
    return log, compute_moments(log, build_design(log, "linear"))[0]


@pytest.fixture(scope="module")
def columns_of(confounded):
    """Return the columns of independent confounded transitions."""

    def build(seed, n, **sizes):
        return dict(zip(("x", "a", "z", "next_x"), confounded(seed, n, **sizes), strict=True))

    return build


# One step after another


def steps_by_hand(batches, schedule, W, K):
    for t, (Phi, Psi, Y) in enumerate(batches):
        step_W, step_K = schedule(t)
        dual = Psi @ K.T
        error = Phi @ W.T - Y - dual
        W = W - step_W * dual.T @ Phi / len(Y)
        K = K + step_K * error.T @ Psi / len(Y)
    return W, K


@pytest.mark.parametrize("order", ["shuffled", "stream"])
def test_a_step_by_episode_is_the_average_over_its_rows(small, order, tmp_path):
    log, moments = small
    source = (
        Shuffled(log, by_episode=True) if order == "shuffled" else Streamed(log, 0, by_episode=True)
    )
    chunks = [chunk for chunk, _ in source.sweep(100, 7, SweepPosition())]
    batches = []
    for chunk in chunks:
        edges = [0, *np.flatnonzero(np.diff(chunk.episode)) + 1, len(chunk)]
        Phi, Psi, Y = evaluate(moments.design, chunk, 1.0)
        batches += [(Phi[i:j], Psi[i:j], Y[i:j]) for i, j in itertools.pairwise(edges)]
    lengths = sorted(len(Y) for _, _, Y in batches)
    assert lengths == sorted(np.unique(log.to_batch(episodes=True).episode, return_counts=True)[1])
    W0, K0 = np.full((2, 5), 0.1), np.full((2, 5), -0.2)
    W, K = steps_by_hand(batches, ConstantSteps(0.01, 0.02), W0, K0)
    method = SGDA(
        ConstantSteps(0.01, 0.02), batch="episode", order=order, start=0.1, start_K=K0, seed=7
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ivvi.estimators.sgda.loop.CHUNK", 100)
        solution = method.solve(moments, log)
    np.testing.assert_allclose(solution.W, W, rtol=1e-12)
    np.testing.assert_allclose(solution.K, K, rtol=1e-12)
    assert solution.trace.t[-1] == 30


@pytest.mark.parametrize("batch", [1, 7, 32])
def test_both_kernels_take_the_same_steps(small, batch):
    log, moments = small
    setup = plain_setup(moments.design, Start(0.3, -0.1), Decay(0.05, 0.5, 10.0, 2.0))
    settings = {
        "setup": setup, "design": moments.design, "batch": batch, "passes": 2, "seed": 1,
        "steps": 2 * (moments.n // batch), "points": [1, 3], "mean_weight": 1.0, "sign": 1.0,
    }  # fmt: skip
    one, two = (Descent(compiled=c, **settings).run(Shuffled(log)) for c in (False, True))
    assert (one.t, one.tail_count, one.reached) == (two.t, two.tail_count, two.reached)
    for name in ("W", "K", "full_sum", "tail_sum", "path"):
        np.testing.assert_allclose(getattr(one, name), getattr(two, name), rtol=1e-10)


@pytest.mark.parametrize("whole", [False, True])
def test_draws_are_with_replacement_and_from_all_rows(small, whole):
    log, _ = small
    n = len(log.to_batch())
    source = Shuffled(log, draws=True, by_episode=whole)
    drawn = [
        y
        for sweep in range(40)
        for chunk, _ in source.sweep(64, 0, SweepPosition(sweep))
        for y in chunk.y
    ]
    values, counts = np.unique(np.array(drawn)[:, 0], return_counts=True)
    assert len(values) == n  # in 40 sweeps each row is missed with probability e^-40
    if not whole:
        assert len(drawn) == 40 * n
        spread = (counts - 40) / np.sqrt(40 * (1 - 1 / n))  # binomial: mean 40
        assert 0.8 < np.mean(spread**2) < 1.2  # 4.9 standard errors of sqrt(2 / n), n = 300
    first = [chunk.y for chunk, _ in source.sweep(64, 0, SweepPosition(0))]
    again = [chunk.y for chunk, _ in source.sweep(64, 0, SweepPosition(0))]
    np.testing.assert_array_equal(np.concatenate(first), np.concatenate(again))


@pytest.mark.parametrize("settings", [{"order": "iid"}, {"batch": "episode"}], ids=str)
def test_draws_and_episodes_reach_the_closed_form(settings, columns_of):
    t = np.arange(4000)
    log = read_logs(columns_of(1, 4000) | {"episode": t // 20, "step": t % 20})
    trace = estimate(log, method=SGDA(passes=5, **settings)).estimate.trace
    assert (trace.status, trace.error < 1.0) == ("converged", True)


def test_a_start_is_honoured_by_the_automatic_schedule(small):
    log, moments = small
    exact = Exact().solve(moments)
    far = SGDA(start=exact.W + 10.0, passes=1, average="last", batch=moments.n).solve(moments, log)
    near = SGDA(start=exact.W, start_K=exact.K, passes=1, average="last").solve(moments, log)
    assert np.abs(far.W - exact.W).max() > 5 > 1 > np.abs(near.W - exact.W).max()
    with pytest.raises(InputError, match=r"start_K has shape \(3,\)"):
        SGDA("constant:0.1", start_K=np.zeros(3)).solve(moments, log)


def test_episodes_that_are_not_together_are_refused_in_a_stream(tmp_path):
    rows = make_rows(30, 20)
    rows |= {f"next_x{i}": rows[f"x{i}"] for i in range(2)}
    mixed = write_table(take(rows, np.argsort(rows["step"], kind="stable")), tmp_path / "l.parquet")
    settings = {**ROLES, "state": "x0,x1", "next_state": "next_x*"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ivvi.estimators.sgda.loop.CHUNK", 100)
        with pytest.raises(DataError, match="not together"):
            estimate(read_logs(mixed, **settings), method=SGDA(batch="episode"))


def test_pieces_hold_whole_mini_batches(small):
    chunk = small[0].to_batch(episodes=True)
    for batch, most in ((32, 100), (32, 1), (None, 50), (None, 1), (1, 7)):
        parts = list(pieces(chunk, batch, most))
        stops = [part.stop for part, _ in parts]
        assert [0, *stops[:-1]] == [part.start for part, _ in parts]
        assert stops[-1] == (len(chunk) if batch is None else len(chunk) // batch * batch)
        for part, edges in parts:
            assert edges[-1] == part.stop - part.start
            assert len(edges) == 2 or edges[-1] <= most


# Coordinates


@pytest.mark.parametrize("kind", ["raw", "scaled", "no constant", "whitened"])
def test_weights_in_other_coordinates_predict_the_same(kind):
    rng = np.random.default_rng(0)
    Phi = np.hstack([np.ones((50, 1)), 100 + 7 * rng.normal(size=(50, 4))])
    made = {
        "raw": Raw(),
        "scaled": Scaled.of_rows(Phi, 0),
        "no constant": Scaled.of_rows(Phi, None),
        "whitened": decouple(Phi, Phi)[0],
    }[kind]
    W = rng.normal(size=(3, 5))
    np.testing.assert_allclose(made.of(Phi) @ made.inverse(W).T, Phi @ W.T, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(made.weights(made.inverse(W)), W, rtol=1e-7, atol=1e-7)


def test_the_largest_eigenvalue_needs_no_matrix():
    V = np.random.default_rng(0).normal(size=(200, 6)) * [5, 1, 1, 1, 1, 1]
    assert largest_eigenvalue(V) == pytest.approx(np.linalg.eigvalsh(V.T @ V / 200)[-1], rel=1e-6)
    assert largest_eigenvalue(np.zeros((3, 2))) == 0.0


def test_a_survey_draws_a_sample_of_all_rows(small, monkeypatch):
    log, moments = small
    monkeypatch.setattr("ivvi.estimators.sgda.sampler.SAMPLE", 50)
    seen = survey(log, 0)
    assert (seen.n, seen.mean_weight, len(seen.sample)) == (moments.n, 1.0, 50)
    pools = np.concatenate([survey(log, seed).sample.y[:, 0] for seed in range(40)])
    rows, counts = np.unique(pools, return_counts=True)
    assert len(rows) > 0.98 * moments.n  # each is missed with probability (1 - 50/n)^40 < 0.001
    assert set(rows) <= set(log.to_batch().y[:, 0])
    assert counts.max() < 40


# Verdicts without moments


def test_conditions_are_in_standard_errors(confounded):
    """At the truth the gap is about 1, at least squares it grows with the root of n."""
    x, a, z, y = confounded(3, n=4000)
    Phi, Psi = np.hstack([np.ones((4000, 1)), x, a]), np.hstack([np.ones((4000, 1)), x, z])
    fitted = Psi @ np.linalg.lstsq(Psi, Phi, rcond=None)[0]
    W = np.linalg.lstsq(fitted, y, rcond=None)[0].T
    gaps = []
    for weights in (W, np.linalg.lstsq(Phi, y, rcond=None)[0].T):
        found = Conditions.empty(2, Psi.shape[1])
        for rows in np.array_split(np.arange(4000), 7):
            found.add(weights, Phi[rows], Psi[rows], y[rows])
        gaps.append(found.gap)
        residual = y - Phi @ weights.T
        scores = residual[:, :, None] * Psi[:, None]
        t = scores.mean(axis=0) / scores.std(axis=0) * np.sqrt(4000)
        assert found.gap == pytest.approx(np.sqrt(np.mean(t**2)))
        np.testing.assert_allclose(found.noise_cov, residual.T @ residual / 4000)
    assert gaps[0] < 2 < 4 < gaps[1]


@pytest.mark.parametrize("word", ["linear", "poly2"])
def test_linear_memory_reaches_the_closed_form(word, columns_of, tmp_path):
    log = read_logs(columns_of(0, 10_000))
    exact = estimate(log, word)
    fit = estimate(log, word, method=SGDA(memory="linear", passes=5))
    error = np.sqrt(np.mean(((fit.W - exact.W) / exact.se) ** 2))
    assert error < 1.0
    assert fit.estimate.trace.status == "converged"
    np.testing.assert_allclose(
        fit.estimate.noise_cov, exact.estimate.noise_cov, rtol=0.02, atol=0.02
    )
    assert np.isnan(fit.se).all()
    fit.save(tmp_path / "model")
    model = load_model(tmp_path / "model")
    np.testing.assert_array_equal(model.W, fit.W)
    assert model.bread.shape == (0, 0)
    facts = fit.to_json()
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts
    assert (facts["se"], facts["diagnostics"]["mu_iv"]) == (None, None)
    assert "not computed" in facts["reasons"]["se"]
    assert "not computed" in facts["diagnostics"]["reasons"]["mu_iv"]
    assert "converged" in fit.summary()
    assert "not computed" in fit.summary()


@pytest.mark.parametrize(
    ("schedule", "status", "words"),
    [("constant:1000", "diverged", "below about"), ("constant:1e-7", "stalled", "standard errors")],
)
def test_linear_memory_tells_divergence_and_stalls(schedule, status, words, columns_of, tmp_path):
    log = read_logs(columns_of(0, 1000))
    with pytest.warns(IvviWarning, match=status):
        fit = estimate(log, method=SGDA(schedule, memory="linear"))
    assert fit.estimate.trace.status == status
    assert words in fit.warnings[0]
    if status == "diverged":
        with pytest.raises(InputError, match="is not written"):
            fit.save(tmp_path / "model")


def test_many_features_take_linear_memory_by_themselves(small, monkeypatch, tmp_path):
    log, _ = small
    assert estimate(log, method="sgda").inference is not None
    monkeypatch.setattr("ivvi.estimators.sgda.sgda.WIDE", 5)
    light = estimate(log, method=SGDA())
    assert light.inference is None
    for name in ("moments", "baseline", "diagnostics", "scored", "errors", "shard"):
        with pytest.raises(InputError, match="the moments are not computed"):
            getattr(light, name)
    assert estimate(log, method=SGDA(memory="quadratic")).inference is not None
    source = write_table(make_rows(30, 20), tmp_path / "log.parquet")
    arguments = ("fit", source, *OPTIONS, "--method", "sgda", "--out", tmp_path / "model")
    result = run(*arguments, "--json", "-", "--passes", 5)
    assert result.code == 0, result
    assert json.loads(result.out)["se"] is None
    result = run(
        *arguments, "--force", "--memory", "quadratic", "--batch", "episode", "--order", "iid"
    )
    assert "std.err." in result.out
    assert_refused(run(*arguments, "--force", "--batch", "x"), "'x'", "episode")
    assert_refused(run(*arguments, "--force", "--memory", "x"), "memory 'x'")


MEASURE = """
import re, sys
import ivvi
fit = ivvi.estimate(ivvi.read_logs(sys.argv[1]), "fourier:2000", method="sgda")
assert fit.W.shape == (20, 2041), fit.W.shape
peak = re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]
print(int(peak) * 1024 / 1e6, fit.estimate.trace.status)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self/status")
@pytest.mark.parametrize("n", [2000, pytest.param(80_000, marks=pytest.mark.slow)])
def test_two_thousand_features_and_twenty_outputs_fit_in_300_mb(n, columns_of, tmp_path):
    """The moments alone would take 133 MB, and solving with them several times that."""
    log = read_logs(columns_of(0, n, d_x=20, d_a=20, d_z=20, d_y=20))
    write_table(log.to_arrow(), tmp_path / "log.parquet", row_group_size=8192)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", MEASURE, str(tmp_path / "log.parquet")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    peak, status = done.stdout.split()
    assert float(peak) < 300
    assert status == "converged" or n < 80_000
