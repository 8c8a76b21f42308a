"""Tail probabilities and quantiles against SciPy."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from ivvi.diagnostics import Statistic
from ivvi.diagnostics.tails_and_quantiles import (
    chi2_quantile,
    chi2_tail,
    chi2_tails,
    f_quantile,
    f_tail,
)

FREEDOMS = [1, 2, 3, 7, 30, 200]
DENOMINATORS = [1, 2, 5, 40, 997, 79_989, 10**7]
VALUES = [1e-3, 0.3, 1.0, 2.5, 10.0, 80.0, 400.0, 3000.0]
SMALLEST = 1e-250
RTOL = 1e-7


def assert_tail(ours, wanted):
    """Below the smallest probability that is promised, small is enough."""
    if wanted > SMALLEST:
        assert ours == pytest.approx(wanted, rel=RTOL, abs=0)
    else:
        assert 0 <= ours <= 10 * SMALLEST


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("freedom", FREEDOMS)
def test_chi_squared_tails_are_those_of_scipy(value, freedom):
    assert_tail(chi2_tail(value, freedom), stats.chi2.sf(value, freedom))


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("numerator", FREEDOMS)
def test_f_tails_are_those_of_scipy(value, numerator):
    for denominator in DENOMINATORS:
        ours = f_tail(value, numerator, denominator)
        assert_tail(ours, stats.f.sf(value, numerator, denominator))


def test_an_f_near_zero_with_many_rows_has_the_tail_of_scipy():
    assert_tail(f_tail(1e-8, 1, 10**7), stats.f.sf(1e-8, 1, 10**7))


@given(
    level=st.floats(1e-12, 0.99),
    numerator=st.integers(1, 500),
    denominator=st.integers(1, 10**6),
)
def test_tails_are_the_inverse_of_the_quantiles(level, numerator, denominator):
    """Look where the values of the tests are: at every level, not at round values."""
    f = stats.f.isf(level, numerator, denominator)
    if math.isfinite(f):
        assert f_tail(f, numerator, denominator) == pytest.approx(
            stats.f.sf(f, numerator, denominator), rel=RTOL
        )
    chi2 = stats.chi2.isf(level, numerator)
    assert chi2_tail(chi2, numerator) == pytest.approx(stats.chi2.sf(chi2, numerator), rel=RTOL)


@pytest.mark.parametrize("value", [0.0, -1e-9, -3.0])
def test_nothing_lies_below_zero(value):
    assert f_tail(value, 3, 9) == 1.0
    assert chi2_tail(value, 3) == 1.0


@given(low=st.floats(0, 50), more=st.floats(1e-3, 50), freedom=st.integers(1, 60))
def test_tails_fall_as_the_statistic_grows(low, more, freedom):
    assert 0 <= chi2_tail(low + more, freedom) <= chi2_tail(low, freedom) <= 1
    assert 0 <= f_tail(low + more, freedom, 55) <= f_tail(low, freedom, 55) <= 1


@pytest.mark.parametrize(
    ("df", "words", "p_value"),
    [((2, 97), "F(2, 97)", stats.f.sf(3.1, 2, 97)), ((4,), "chi2(4)", stats.chi2.sf(3.1, 4))],
)
def test_a_statistic_knows_its_distribution(df, words, p_value):
    statistic = Statistic(3.1, df, "nothing happens")
    assert statistic.distribution == words
    assert statistic.p_value == pytest.approx(p_value, rel=1e-10)
    assert statistic.to_json() == {
        "value": 3.1,
        "distribution": words,
        "df": list(df),
        "p_value": statistic.p_value,
        "null": "nothing happens",
    }


@pytest.mark.parametrize("freedom", [1, 2, 3, 8, 31])
def test_tails_and_quantiles_equal_those_of_scipy(freedom):
    values = np.array([0.0, 1e-3, 0.7, 3.0, 20.0, 90.0])
    np.testing.assert_allclose(
        chi2_tails(values, freedom), stats.chi2.sf(values, freedom), rtol=1e-10, atol=1e-300
    )
    for level in (0.05, 0.5, 0.95, 0.999):
        assert chi2_quantile(level, freedom) == pytest.approx(stats.chi2.ppf(level, freedom))
        assert f_quantile(level, freedom, 57) == pytest.approx(stats.f.ppf(level, freedom, 57))
