"""The rate of Theorem 4.1 with the theorem's own steps."""

import json
import subprocess
import sys

import numpy as np
import pytest

from ivvi import ConfoundedEnv, InputError
from ivvi_reproduction.convergence_rate import (
    SETTLED,
    STRENGTHS,
    Rate,
    bounded_world,
    command,
    measure,
    table,
)


@pytest.mark.thorough
@pytest.mark.parametrize("rho", [STRENGTHS[1], pytest.param(STRENGTHS[0], marks=pytest.mark.slow)])
def test_error_times_t_is_flat(rho):
    """The squared error of 48 runs has a relative error of about 0.08 at each end.

    Over the factor of at least 40 in T between the ends, the slope's is about 0.03.
    """
    rate = measure(rho, runs=48, steps=1 << 15 if rho > 0.7 else 1 << 18)
    assert rate.t[-1] / (SETTLED * rate.gamma) > 40
    assert rate.slope == pytest.approx(-1, abs=0.15), table([rate])
    assert max(rate.error) == pytest.approx(rate.error[0], rel=0.2)  # it never blew up


def test_everything_in_the_bounded_world_is_bounded():
    env = ConfoundedEnv(bounded_world(0.8))
    log = env.collect(episodes=200, seed=1)
    batch = log.to_batch()
    a = 3**0.5 * (0.8 + 1.5)
    assert np.abs(batch.a).max() <= a
    assert np.abs(batch.x).max() <= (0.6 * a + 3**0.5) / (1 - 0.7)  # rows of P sum to 0.7
    residual = batch.y - np.hstack([np.ones((len(batch), 1)), batch.x, batch.a]) @ (
        env.world.W_star.T
    )
    assert np.abs(residual).max() <= 3**0.5
    assert np.abs(residual.T @ batch.z / len(batch)).max() < 4 / len(batch) ** 0.5  # exclusion


def test_the_slope_is_of_the_settled_points():
    t = (1, 10, 100, 1000, 10_000)
    error = (5.0, 5.0, 1.0, 0.1, 0.01)
    rate = Rate(1.0, 0.5, 0.5, 10.0, 2, t, error, (0.1,) * 5)
    assert rate.slope == pytest.approx(-1)
    assert "slope -1.000 from T = 80 on" in table([rate])


def test_few_runs_or_steps_are_refused():
    with pytest.raises(InputError, match="1 runs of 131072 steps"):
        command(runs=1, json=None)


@pytest.mark.slow
def test_the_command_prints_draws_and_writes(tmp_path):
    words = ["--runs", "2", "--steps", "32768", "--plot", "rates.png", "--json", "rates.json"]
    done = subprocess.run(
        [sys.executable, "-m", "ivvi_reproduction.convergence_rate", *words],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.count("slope") == 3
    assert (tmp_path / "rates.png").read_bytes().startswith(b"\x89PNG")
    assert [r["rho"] for r in json.loads((tmp_path / "rates.json").read_text())] == [*STRENGTHS]
