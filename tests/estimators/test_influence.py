"""HAC errors of one long series: a bandwidth that the rows choose."""

import numpy as np
import pytest

import ivvi
from ivvi import StandardErrors


def series(seed, n, lasting):
    """One series; instrument and residual keep `lasting` of themselves from row to row."""
    rng = np.random.default_rng(seed)
    shocks = rng.normal(size=(n, 2)) * np.sqrt(1 - lasting**2)
    values = np.empty((n, 2))
    values[0] = rng.normal(size=2)
    for t in range(1, n):
        values[t] = lasting * values[t - 1] + shocks[t]
    (z, e), u = values.T, rng.normal(size=n)
    rows = {"episode": np.zeros(n, int), "step": np.arange(n), "z": z, "a": z + u}
    rows["y"] = 0.5 * rows["a"] + u + 2 * e
    return ivvi.read_logs(rows, action="a", instrument="z", next_state="y")


@pytest.mark.filterwarnings("ignore::ivvi.errors.IvviWarning")
def test_rows_that_last_have_more_lags_and_fewer_degrees_of_freedom():
    lags, freedom = {}, {}
    for lasting in (0.0, 0.7, 0.95):
        fit = ivvi.fit(series(1, 400, lasting))
        lags[lasting], freedom[lasting] = fit.errors.bandwidth, fit.estimate.freedoms[0, 1]
        assert fit.errors.note.startswith("1 episode is too few")
        assert bool(fit.errors.warning) == (lasting == 0.95)
    assert lags[0.0] == 5 < lags[0.7] < lags[0.95]
    assert freedom[0.0] > freedom[0.7] > freedom[0.95]
    asked = ivvi.fit(series(1, 400, 0.95), se=StandardErrors("hac"))
    assert asked.errors.bandwidth == 5
    assert asked.estimate.freedoms is None


@pytest.mark.filterwarnings("ignore::ivvi.errors.IvviWarning")
def test_intervals_of_a_series_hold_the_truth():
    """60 logs: at 92% fewer than 43 have a chance of less than one in a million."""
    held = 0
    for seed in range(60):
        row = ivvi.fit(series(seed, 200, 0.6)).records()[1]
        held += row["low"] <= 0.5 <= row["high"]
    assert held >= 43


@pytest.mark.parametrize("seed", range(5))
def test_independent_rows_of_a_short_series_raise_no_alarm(seed):
    assert not ivvi.fit(series(seed, 45, 0.0)).errors.warning
