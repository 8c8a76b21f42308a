"""Stochastic descent-ascent: Algorithm 1, its schedules, and the automatic one."""

import dataclasses
import json

import numpy as np
import pytest

import ivvi
from helpers import ROLES, make_rows
from ivvi import SGDA, InputError, linear
from ivvi.errors import DataError, IvviWarning
from ivvi.estimators import Exact
from ivvi.estimators.convergence import Trace, log_points
from ivvi.estimators.sgda.sampler import Shuffled, Streamed, SweepPosition, evaluate
from ivvi.estimators.sgda.schedules import (
    PAPER,
    ConstantSteps,
    Decay,
    Harmonic,
    Theorem,
    parse_schedule,
)
from ivvi.features import parse_features
from ivvi.features.design import Design
from ivvi.moments import Moments, compute_moments

CELLS = [(name, k, s) for name, ks in (("linear", (5, 10, 20)), ("nonlinear", (1, 3, 5)))
         for k in ks for s in ("I", "II", "III", "IV", "V", "VI")]  # fmt: skip
QUICK = {("linear", 5, "I"), ("nonlinear", 1, "I")}
THOROUGH = {("linear", 20, "III"), ("nonlinear", 5, "IV")}


def marks_of(cell):
    if cell in QUICK:
        return ()
    return pytest.mark.thorough if cell in THOROUGH else pytest.mark.slow


def prepared(name, dim, setting, seed=0, **size):
    log = ivvi.make_env(name, dim=dim, setting=setting).collect(seed=seed, **size)
    word = "linear" if name == "linear" else "poly2"
    moments, _ = compute_moments(log, Design.build(*parse_features(word), log.roles))
    return log, moments


@pytest.fixture(scope="module")
def small():
    """Return a linear log of 8,000 rows that starts where it stays, and its moments."""
    return prepared("linear", 2, "II", episodes=8)


@pytest.mark.parametrize("cell", [pytest.param(c, marks=marks_of(c)) for c in CELLS], ids=str)
def test_auto_reaches_the_closed_form_in_one_pass_and_more_so_in_five(cell):
    log, moments = prepared(*cell)
    one, five = (SGDA(passes=p).solve(moments, log).trace for p in (1, 5))
    assert (one.status, five.status) == ("converged", "converged")
    assert one.error <= 1.0
    assert five.error <= 0.3


@pytest.mark.filterwarnings("ignore:next_x0 seems to be in another unit")
def test_auto_does_not_depend_on_units(small):
    log, _ = small
    batch = log.to_batch()
    factors = {"x": np.array([1e3, 1.0]), "a": np.array([1.0, 50.0]), "z": np.array([1.0, 1e-3])}
    arrays = {name: getattr(batch, name) for name in "xaz"} | {"next_x": batch.y}
    scaled = {n: v * factors.get(n, 1.0) for n, v in arrays.items()}
    one, two = (ivvi.estimate(ivvi.read_logs(a), method="sgda") for a in (arrays, scaled))
    units = np.concatenate([[1.0], factors["x"], factors["a"]])
    np.testing.assert_allclose(two.W * units, one.W, rtol=1e-6, atol=1e-9)


def test_the_same_seed_gives_the_same_weights(small):
    log, moments = small
    one, two, other = (SGDA(seed=s).solve(moments, log).W for s in (3, 3, 4))
    np.testing.assert_array_equal(one, two)
    assert np.abs(one - other).max() > 0


@pytest.mark.thorough
def test_a_stream_needs_no_more_memory_and_does_as_well(tmp_path):
    log, moments = prepared("linear", 5, "I")
    log.to_parquet(tmp_path / "log.parquet")
    again = ivvi.read_logs(tmp_path / "log.parquet")
    one = SGDA().solve(moments, again)  # a file is streamed
    assert one.trace.error <= 1.0
    np.testing.assert_array_equal(one.W, SGDA(order="stream").solve(moments, log).W)
    assert SGDA(order="stream", passes=5).solve(moments, again).trace.error <= 0.3


@pytest.mark.parametrize("size", [1, 7, 100, 10**6])
def test_a_pass_uses_every_row_once(small, size):
    log, moments = small
    wanted = np.sort(log.to_batch().y[:, 0])
    for source in (Shuffled(log), Streamed(log, moments.n)):
        chunks = [chunk for chunk, _ in source.sweep(max(size, 50), 0, SweepPosition())]
        assert {len(chunk) for chunk in chunks[:-1]} <= {max(size, 50)}
        np.testing.assert_array_equal(np.sort(np.concatenate([c.y[:, 0] for c in chunks])), wanted)
        Phi, _, Y = evaluate(moments.design, chunks[0], 1.0)
        W = Exact().solve(moments).W
        assert np.std(Y - Phi @ W.T) < 1.5  # rows stay together


@pytest.mark.parametrize("whole", [False, True])
def test_a_stream_joins_batches_with_and_without_rows_of_no_weight(whole, monkeypatch):
    """Whatever else is read beside them: clusters, steps."""
    monkeypatch.setattr("ivvi.logs.log.batch_rows", lambda roles: 16)
    rows = make_rows(8, 10) | {"w": np.repeat([1.0, 0.0, 1.0], [30, 10, 40])}
    rows["g"] = np.arange(80) % 3
    log = ivvi.read_logs(rows, **ROLES, weight="w").clustered("g")
    chunks = [
        chunk for chunk, _ in Streamed(log, 63, by_episode=whole).sweep(25, 0, SweepPosition())
    ]
    assert sum(map(len, chunks)) == 63


@pytest.mark.parametrize("order", ["shuffled", "stream"])
def test_rows_that_do_not_fill_a_mini_batch_or_have_no_weight_are_left_out(
    small, order, monkeypatch
):
    monkeypatch.setattr("ivvi.estimators.sgda.loop.CHUNK", 64)
    log, moments = small
    trace = SGDA(batch=33, order=order).solve(moments, log).trace  # 8,000 = 242 * 33 + 14
    assert (trace.t[-1], trace.status) == (242, "converged")
    batch = log.to_batch()
    arrays = {name: getattr(batch, name) for name in "xaz"} | {"next_x": batch.y}
    weight = (np.arange(len(batch)) % 4 > 0).astype(float)
    few = ivvi.read_logs({name: values[weight > 0] for name, values in arrays.items()})
    masked = ivvi.read_logs(arrays | {"w": weight}, weight="w")
    one, two = (ivvi.estimate(log_, method=SGDA(order=order)).W for log_ in (few, masked))
    np.testing.assert_allclose(one, two, rtol=1e-9)


def test_full_batch_constant_steps_reach_the_saddle_point():
    log, moments = prepared("linear", 1, "III", episodes=2, horizon=200)
    batch = log.to_batch()
    keep = {n: getattr(batch, n)[30:] for n in "xaz"} | {"next_x": batch.y[30:]}  # no transient
    log = ivvi.read_logs(keep)
    moments, _ = compute_moments(log, Design.build(linear(), linear(), log.roles))
    method = SGDA(ConstantSteps(0.2, 0.2), batch=moments.n, passes=4000, average="last")
    estimate = method.solve(moments, log)
    exact = Exact().solve(moments)
    np.testing.assert_allclose(estimate.W, exact.W, atol=1e-9)
    np.testing.assert_allclose(estimate.K, exact.K, atol=1e-9)
    np.testing.assert_allclose(estimate.noise_cov, exact.noise_cov, rtol=1e-7)
    assert estimate.trace.distance[-1] < 1e-8 < estimate.trace.distance[0]


def test_one_step_is_the_update_of_the_algorithm():
    log, moments = prepared("linear", 2, "I", episodes=1, horizon=8)
    b = log.to_batch()
    Phi, Psi = linear()(b.x, b.a), linear()(b.x, b.z)
    W, K = np.full((2, 5), 0.2), np.zeros((2, 5))
    for _ in range(3):
        dual = K @ Psi.T
        error = W @ Phi.T - b.y.T - dual
        W, K = W - 0.01 * dual @ Phi / 8, K + 0.02 * error @ Psi / 8
    estimate = SGDA(ConstantSteps(0.01, 0.02), batch=8, passes=3, start=0.2).solve(moments, log)
    np.testing.assert_allclose(estimate.W, W, rtol=1e-12)
    np.testing.assert_allclose(estimate.K, K, rtol=1e-12)


def test_the_sign_that_algorithm_1_prints_diverges(small):
    log, moments = small
    step = ConstantSteps(0.02, 0.02)
    right, printed = (
        SGDA(step, passes=20, flip_dual=flip).solve(moments, log).trace for flip in (False, True)
    )
    assert printed.status == "diverged"
    assert right.status != "diverged"


@pytest.mark.thorough
def test_simultaneous_steps_of_the_papers_size_diverge_at_k_20_and_say_so(tmp_path):
    log, moments = prepared("linear", 20, "I")
    trace = SGDA(PAPER["paper-linear-20"].steps, passes=8, start=0.2).solve(moments, log).trace
    assert trace.status == "diverged"
    assert "lambda_max(B)" in trace.advice
    assert "auto" in trace.advice
    json.dumps(trace.to_json(), allow_nan=False)


def test_a_fit_that_diverged_is_not_saved(small, tmp_path):
    log, _ = small
    with pytest.warns(IvviWarning, match="diverged"):
        fit = ivvi.estimate(log, method=SGDA(ConstantSteps(1.0, 1.0), passes=20))
    with pytest.raises(InputError, match="diverged"):
        fit.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()
    json.dumps(fit.to_json(), allow_nan=False)


def test_simultaneous_steps_of_the_papers_size_stall_in_the_nonlinear_setting_and_say_so():
    log, moments = prepared("nonlinear", 1, "I")
    trace = SGDA(PAPER["paper-nonlinear"].steps, passes=16).solve(moments, log).trace
    assert trace.status == "stalled"
    assert trace.t[-1] == 20_000
    assert f"{trace.error:.1f} standard errors" in trace.advice


def test_the_average_of_the_tail_is_nearer_than_that_of_all(small):
    log, moments = small
    settings = {"schedule": Decay(0.02, 0.5), "batch": 8}
    last, tail, full = (
        SGDA(average=a, **settings).solve(moments, log).W for a in ("last", "tail", "full")
    )
    goal = Exact().solve(moments).W
    assert np.linalg.norm(tail - goal) < np.linalg.norm(full - goal)  # it starts far away
    assert np.abs(last - tail).max() > 0


def test_per_sample_steps_and_weighted_rows_come_near_the_closed_form(small):
    log, moments = small
    assert SGDA(batch=1).solve(moments, log).trace.error <= 1.0
    batch = log.to_batch()
    arrays = {name: getattr(batch, name) for name in "xaz"} | {"next_x": batch.y}
    weight = np.random.default_rng(0).uniform(0.5, 2.0, len(batch))
    weighted = ivvi.read_logs(arrays | {"w": weight}, weight="w")
    assert ivvi.estimate(weighted, method=SGDA(passes=5)).estimate.trace.error <= 0.5


def test_weighted_rows_have_the_weighted_moments(small):
    log, moments = small
    batch = dataclasses.replace(log.to_batch(), weight=np.linspace(0.5, 4.0, moments.n))
    wanted = Moments.of_batch(moments.design, batch)
    Phi, Psi, Y = evaluate(moments.design, batch, batch.weight.mean())
    for product, matrix in (
        (Psi.T @ Phi, wanted.A),
        (Psi.T @ Psi, wanted.B),
        (Y.T @ Psi, wanted.C),
    ):
        np.testing.assert_allclose(product / moments.n, matrix, rtol=1e-9, atol=1e-9)


def test_the_loss_of_the_path_is_the_largest_over_the_dual(small):
    _, moments = small
    A, B, C = moments.A, moments.B, moments.C
    W = Exact().solve(moments).W + np.random.default_rng(0).normal(size=(2, 5))
    K = (W @ A.T - C) @ np.linalg.inv(B)
    value = np.trace(K @ A @ W.T) - np.trace(C @ K.T) - 0.5 * np.trace(K @ B @ K.T)
    trace = Trace.of([1], [W], moments, np.zeros_like(W))
    assert trace.loss[0] == pytest.approx(value)
    assert trace.distance[0] == pytest.approx(np.linalg.norm(W))


@pytest.mark.thorough
def test_error_falls_like_one_over_t(small):
    """The rate of Theorem 4.1 (i): the squared distance to the truth falls like 1 / rows."""
    env = ivvi.make_env("linear", dim=2, setting="III")
    sizes, errors = (4, 16, 64), []
    for episodes in sizes:
        squared = []
        for seed in range(6):
            log = env.collect(episodes=episodes, horizon=500, seed=seed)
            design = Design.build(linear(), linear(), log.roles)
            W = SGDA(seed=seed).solve(compute_moments(log, design)[0], log).W
            squared.append(np.sum((W - env.world.W_star) ** 2))
        errors.append(np.mean(squared))
    slope = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    # Each mean of six sums of ten squares has a relative error of about sqrt(2 / 60) = 0.18;
    # over a range of log 16 the slope's is about 0.18 * sqrt(2) / log 16 = 0.1.
    assert slope == pytest.approx(-1, abs=0.4)


@pytest.mark.parametrize(
    ("schedule", "t", "steps"),
    [
        (PAPER["paper-linear"].steps, 2, (0.05 + 1 / 20, 1 / 20)),
        (PAPER["paper-linear-20"].steps, 0, (0.06 + 1 / 18, 1 / 18)),
        (PAPER["paper-nonlinear"].steps, 4, (1 / 20, 1 / 20)),
        (PAPER["paper-movielens"].steps, 50, (1 / 600, 1 / 1850)),
        (PAPER["paper-movielens-revised"].steps, 0, (1 / 600, 1 / 1800)),
        (ConstantSteps(0.1, 0.3), 7, (0.1, 0.3)),
        (Decay(0.5, 0.5, 10.0, 2.0), 30, (0.25, 0.5)),
        (Harmonic(3, 5), 1, (1 / 4, 1 / 6)),
        (Theorem(0.5, 0.25, (1.0, 2.0, 3.0)), 8, (4 / (3 * 16 * 128 + 8), 16 * 4 / 6152)),
    ],
)
def test_schedules_give_the_steps_of_their_formulas(schedule, t, steps):
    assert schedule(t) == pytest.approx(steps)


def test_words_of_schedules_are_read_and_written():
    assert parse_schedule("auto") is None
    assert parse_schedule("constant:0.1") == ConstantSteps(0.1, 0.1)
    assert parse_schedule("decay:0.1,0.3,5") == Decay(0.1, 0.3, 5.0)
    with pytest.raises(InputError, match="did you mean 'paper-linear'"):
        SGDA("papr-linear")
    with pytest.raises(InputError, match="unknown schedule"):
        SGDA("constant:fast")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"batch": 0}, "batch is 0"),
        ({"batch": "epoch"}, "is 'epoch'; expected at least 1, or the word episode"),
        ({"passes": 0}, "passes is 0"),
        ({"average": "most"}, "unknown average 'most'"),
        ({"order": "random"}, "unknown order 'random'"),
        ({"memory": "small"}, "unknown memory 'small'"),
    ],
)
def test_settings_of_descent_ascent_out_of_range_are_refused(settings, words):
    with pytest.raises(InputError, match=words):
        SGDA(**settings)


def test_descent_ascent_refuses_moments_alone(small):
    log, moments = small
    with pytest.raises(InputError, match="rows of a log"):
        SGDA().solve(moments)
    with pytest.raises(DataError, match="fewer than one mini-batch"):
        SGDA(batch=10**6).solve(moments, log)


@pytest.mark.parametrize("steps", [1, 2, 10, 12345])
def test_points_of_the_path_rise_from_the_first_step_to_the_last(steps):
    points = log_points(steps)
    assert points[0] == 1
    assert points[-1] == steps
    assert points == sorted(set(points))
