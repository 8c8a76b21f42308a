"""The compiled steps of descent-ascent against the same loop in plain NumPy.

    python benchmarks/sgda.py [--steps 20000] [--repeats 5]

Shapes of the paper's linear setting: k outputs, 2k + 1 features and instruments; k = 20 is
20 x 41. Ours takes NumPy rows in chunks as `SGDA` does, keeps both averages and a path, and
is timed without compiling, which is printed apart; the loop in NumPy keeps nothing but W and
K. "eight" is eight runs with rows of their own in one vmapped call; against one run it is timed
by the processor and by the clock on the wall. Everything else is processor time of one run of
this script, best of the repeats, interleaved.
"""

from __future__ import annotations

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np

from ivvi.estimators.convergence import log_points
from ivvi.estimators.sgda.jax_kernel import JaxState, advance, advance_many, begin_many
from ivvi.estimators.sgda.loop import CHUNK
from ivvi.estimators.sgda.schedules import Decay

SCHEDULE = Decay(0.005, power=0.35, delay=50.0)
RUNS = 8


def numpy_loop(Phi: np.ndarray, Psi: np.ndarray, Y: np.ndarray) -> np.ndarray:
    W, K = np.zeros((Y.shape[2], Phi.shape[2])), np.zeros((Y.shape[2], Psi.shape[2]))
    batch = Y.shape[1]
    for t, (phi, psi, y) in enumerate(zip(Phi, Psi, Y, strict=True)):
        step_W, step_K = SCHEDULE(t)
        dual = psi @ K.T
        error = phi @ W.T - y - dual
        W = W - (step_W / batch) * (dual.T @ phi)
        K = K + (step_K / batch) * (error.T @ psi)
    return W


class Ours:
    """Steps in chunks, for one run or for several side by side."""

    def __init__(self, rows: list[np.ndarray], runs: int | None) -> None:
        self.rows, self.runs, self.steps = rows, runs, len(rows[0])
        self.chunk = max(1, CHUNK // (rows[0].shape[-2] * (runs or 1)))
        self.points = log_points(self.steps)

    def __call__(self) -> np.ndarray:
        """Take all steps; return the last iterates."""
        Phi, Psi, Y = self.rows
        shape, d_psi = (Y.shape[-1], Phi.shape[-1]), Psi.shape[-1]
        settings = {"schedule": SCHEDULE, "sign": 1.0, "tail": self.steps // 2}
        settings["points"] = jnp.asarray(self.points)
        if self.runs is None:
            state, take = JaxState.begin(np.zeros(shape), d_psi, len(self.points)), advance
        else:
            starts = np.zeros((self.runs, *shape))
            state, take = begin_many(starts, d_psi, len(self.points)), advance_many
        for first in range(0, self.steps, self.chunk):
            now = slice(first, first + self.chunk)
            state = take(state, Phi[now], Psi[now], Y[now], **settings)
        return np.asarray(state.W)


def draw(rng: np.random.Generator, shape: tuple[int, ...], k: int) -> list[np.ndarray]:
    """Return Phi, Psi and Y of random rows; psi is correlated with phi."""
    Phi = rng.normal(size=(*shape, 2 * k + 1))
    Psi = 0.7 * Phi + 0.7 * rng.normal(size=Phi.shape)
    return [Phi, Psi, rng.normal(size=(*shape, k))]


def clock(function: object) -> np.ndarray:
    """Seconds of the processor and of the wall."""
    started = np.array([time.process_time(), time.perf_counter()])
    function()
    return np.array([time.process_time(), time.perf_counter()]) - started


def compare(k: int, batch: int, steps: int, repeats: int) -> dict[str, np.ndarray]:
    """Time the three for one shape; returns seconds a step (processor, wall), and to compile."""
    rng = np.random.default_rng(0)
    rows = draw(rng, (steps, batch), k)
    chunk = max(1, CHUNK // batch)
    fewer_steps = max(chunk, steps // 5 // chunk * chunk)  # eight runs need eight times the memory
    one, eight = Ours(rows, None), Ours(draw(rng, (fewer_steps, RUNS, batch), k), RUNS)
    first = [clock(one), clock(eight)]
    np.testing.assert_allclose(one(), numpy_loop(*rows), rtol=1e-6, atol=1e-9)
    timings = {"numpy": [], "one": [], "eight": []}
    for _ in range(repeats):
        timings["numpy"].append(clock(lambda: numpy_loop(*rows)) / steps)
        timings["one"].append(clock(one) / steps)
        timings["eight"].append(clock(eight) / fewer_steps)
    best = {name: np.min(times, axis=0) for name, times in timings.items()}
    best["compile"] = first[0] - best["one"] * steps + first[1] - best["eight"] * fewer_steps
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20_000, help="mini-batch-32 steps")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print(
        f"{'shape':<10}{'batch':>6}{'steps':>8}{'NumPy us':>10}{'ivvi us':>9}{'faster':>8}"
        f"{'eight us':>10}{'eight / one':>13}{'on the wall':>13}{'compile s':>11}"
    )
    with jax.enable_x64(True):
        for k in (5, 10, 20):
            for batch, steps in ((1, 5 * options.steps), (32, options.steps)):
                best = compare(k, batch, steps, options.repeats)
                shape, (loop, one, eight) = (
                    f"{k} x {2 * k + 1}",
                    (1e6 * best[name][0] for name in ("numpy", "one", "eight")),
                )
                wall = best["eight"][1] / best["one"][1]
                print(
                    f"{shape:<10}{batch:>6}{steps:>8,}{loop:>10.2f}{one:>9.2f}{loop / one:>7.1f}x"
                    f"{eight:>10.2f}{eight / one:>12.1f}x{wall:>12.1f}x{best['compile'][0]:>11.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
