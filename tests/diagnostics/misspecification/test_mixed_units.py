"""Columns that hold values in two units."""

import numpy as np
import pytest

from helpers import make_rows
from ivvi import read_logs
from ivvi.diagnostics.misspecification.mixed_units import mixed_units, units_of

KINDS = {
    "lognormal": lambda r, n: r.lognormal(0, r.uniform(0.1, 2.5), n),
    "pareto": lambda r, n: (r.pareto(r.uniform(0.5, 4), n) + 1) * 10 ** r.uniform(-3, 3),
    "zeros": lambda r, n: np.where(r.random(n) < r.uniform(0.2, 0.9), 0, r.lognormal(1, 0.6, n)),
    "two clumps": lambda r, n: np.where(
        r.random(n) < r.uniform(0.05, 0.5),
        r.normal(m := 10 ** r.uniform(0.2, 3), r.uniform(0.02, 0.3) * m, n),
        r.normal(1, r.uniform(0.05, 0.3), n),
    ),
    "two groups": lambda r, n: (
        np.where(r.random(n) < r.uniform(0.05, 0.5), r.uniform(2, 30), 0) + r.normal(5, 1, n)
    ),
    "codes": lambda r, n: r.choice(10.0 ** r.integers(0, 5, 9) * r.integers(1, 9, 9), n),
    "counts": lambda r, n: r.negative_binomial(r.uniform(0.2, 5), r.uniform(0.001, 0.5), n) * 1.0,
    "heavy tails": lambda r, n: r.standard_t(r.uniform(1, 5), n),
    "outliers": lambda r, n: (
        r.normal(5, 1, n) * np.where(r.random(n) < 0.02, r.lognormal(2, 1.5, n), 1)
    ),
    "missing codes": lambda r, n: np.where(r.random(n) < 0.05, 99, r.normal(5, 1, n)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_in_one_unit_says_nothing(kind):
    rng = np.random.default_rng(0)
    sizes = [400, 2000, 8000] * 11
    assert [units_of("v", KINDS[kind](rng, n)) for n in sizes] == [None] * len(sizes)


@pytest.mark.parametrize("share", [0.02, 0.5, 0.95])
@pytest.mark.parametrize("factor", [100, 1000, 1e6, 1e-3])
def test_a_part_of_the_values_a_constant_factor_away_is_named(factor, share):
    rng = np.random.default_rng(2)
    values = rng.lognormal(1, 0.25, 2000)
    values[rng.random(2000) < share] *= factor
    found = units_of("v", values)
    assert found is not None
    assert found.factor == max(factor, 1 / factor)
    assert found.share == pytest.approx(min(share, 1 - share), abs=0.03)


def test_fahrenheit_beside_celsius_is_named():
    rng = np.random.default_rng(0)
    values = rng.normal(37, 0.8, 2000)
    values[::10] = 1.8 * values[::10] + 32
    assert "Celsius and Fahrenheit" in units_of("temperature", values).warning


def test_the_first_rows_say_which_column_mixes_units():
    rows = make_rows(60, 10, d=1)
    rows["a0"] = rows["a0"] + 30
    rows["a0"][::2] *= 1000
    log = read_logs(rows, state="x0", action="a0", instrument="z0")
    texts = mixed_units(log.head(episodes=True), log.roles)
    assert [text.partition(":")[0] for text in texts] == ["a0 seems to mix two units"]
