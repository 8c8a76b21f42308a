"""The compiled core of descent-ascent against the same steps written out in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ivvi.estimators.sgda.jax_kernel import JaxState, advance, advance_many, begin_many
from ivvi.estimators.sgda.loop import chosen_weights
from ivvi.estimators.sgda.schedules import Decay

RUNS, STEPS, TAIL = 3, 60, 37
POINTS = [1, 2, 5, 30, 60]
SCHEDULE = Decay(0.05, 0.4, 20.0, 1.5)


@pytest.fixture(scope="module", params=[1, 4], ids=["per sample", "mini-batches"])
def rows(request):
    """Return Phi, Psi and Y of three runs, (steps, runs, batch, d)."""
    rng = np.random.default_rng(request.param)
    shape = (STEPS, RUNS, request.param)
    Phi = rng.normal(size=(*shape, 5))
    Psi = rng.normal(size=(*shape, 4)) + Phi[..., :4]
    return Phi, Psi, rng.normal(size=(*shape, 2))


def written_out(Phi, Psi, Y, W):
    """Return all iterates W_1 .. W_T and the last K."""
    K, path = np.zeros((2, 4)), []
    for t in range(STEPS):
        step_W, step_K = SCHEDULE(t)
        dual = K @ Psi[t].T
        error = W @ Phi[t].T - Y[t].T - dual
        W, K = W - step_W * dual @ Phi[t] / len(Y[t]), K + step_K * error @ Psi[t] / len(Y[t])
        path.append(W)
    return np.array(path), K


def settings():
    return {"schedule": SCHEDULE, "sign": 1.0, "tail": TAIL, "points": jnp.asarray(POINTS)}


def test_iterates_averages_and_path_are_those_of_the_loop(rows):
    Phi, Psi, Y = (part[:, 0] for part in rows)
    start = np.full((2, 5), 0.3)
    path, K = written_out(Phi, Psi, Y, start)
    with jax.enable_x64(True):
        state = advance(JaxState.begin(start, 4, len(POINTS)), Phi, Psi, Y, **settings())
    assert (int(state.t), int(state.reached), int(state.tail_count)) == (STEPS, 5, STEPS - TAIL)
    np.testing.assert_allclose(state.W, path[-1], rtol=1e-12)
    np.testing.assert_allclose(state.K, K, rtol=1e-12)
    np.testing.assert_allclose(state.full_sum, path.sum(axis=0), rtol=1e-12)
    np.testing.assert_allclose(state.tail_sum, path[TAIL:].sum(axis=0), rtol=1e-12)
    np.testing.assert_allclose(state.path, path[np.array(POINTS) - 1], rtol=1e-12)
    wanted = {"last": path[-1], "tail": path[TAIL:].mean(axis=0), "full": path.mean(axis=0)}
    with jax.enable_x64(True):
        for average, W in wanted.items():
            np.testing.assert_allclose(chosen_weights(state, average), W, rtol=1e-12)


def test_a_run_in_pieces_is_the_same_run_bit_for_bit(rows):
    Phi, Psi, Y = (part[:, 0] for part in rows)
    with jax.enable_x64(True):
        begin = JaxState.begin(np.zeros((2, 5)), 4, len(POINTS))
        whole = advance(begin, Phi, Psi, Y, **settings())
        pieces = begin
        for piece in (slice(0, 7), slice(7, 41), slice(41, STEPS)):
            pieces = advance(pieces, Phi[piece], Psi[piece], Y[piece], **settings())
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(pieces), strict=True):
        np.testing.assert_array_equal(one, other)


def test_runs_side_by_side_are_the_runs_one_by_one(rows):
    starts = np.random.default_rng(0).normal(size=(RUNS, 2, 5))
    with jax.enable_x64(True):
        many = advance_many(begin_many(starts, 4, len(POINTS)), *rows, **settings())
        for run, start in enumerate(starts):
            alone = [part[:, run] for part in rows]
            one = advance(JaxState.begin(start, 4, len(POINTS)), *alone, **settings())
            for name in ("W", "K", "full_sum", "tail_sum", "path"):
                found, wanted = getattr(many, name)[run], getattr(one, name)
                np.testing.assert_allclose(found, wanted, rtol=1e-11, atol=1e-13)
    assert (int(many.t), int(many.reached)) == (STEPS, len(POINTS))
