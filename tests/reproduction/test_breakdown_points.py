"""Breakdown points against brute force."""

import pytest

from ivvi import InputError
from ivvi_reproduction.breakdown_points import QUESTIONS, BreakdownComparison, measure, root, table


def test_brute_force_finds_the_first_change_of_sign():
    assert root(lambda v: 0.3 - v, 1.0) == pytest.approx(0.3, abs=1e-3)
    assert root(lambda v: 0.3 + v, -1.0) == pytest.approx(-0.3, abs=1e-3)
    assert root(lambda v: 1.0 if v < 0.3 else -1.0, 1.0) == pytest.approx(0.3, abs=2e-3)
    with pytest.raises(InputError, match="does not change"):
        root(lambda v: 1.0, 1.0)
    assert "0.980" in table([BreakdownComparison("gain", 1, "I", 0.5, 0.49, 1.0, 0.2)])


@pytest.mark.slow
@pytest.mark.parametrize(("question", "dim"), list(zip(QUESTIONS, (2, 1, 2), strict=True)))
@pytest.mark.parametrize("setting", ["I", "III"])
def test_breakdown_agrees_with_brute_force(question, dim, setting):
    """Logs with as much invalidity as the breakdown point says lose what it says."""
    breakdown = measure(question, dim, setting)
    assert 4 * breakdown.error < 0.1
    assert breakdown.ratio == pytest.approx(1.0, abs=0.1)
