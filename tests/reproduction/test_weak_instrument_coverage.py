"""Coverage of intervals with weak instruments, as the table of the docs has it."""

import pytest

from ivvi_reproduction.weak_instrument_coverage import DESIGNS, INTERVALS, measure, table

BY_NAME = {design.name: design for design in DESIGNS}
VALID = {  # which intervals must hold, by dependence of the errors within episodes
    False: ("AR", "CLR", "AR clustered", "CLR clustered"),
    True: ("AR clustered", "CLR clustered"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_NAME)
def test_robust_sets_cover_within_three_deviations_over_1000_logs(name):
    record = measure(BY_NAME[name], 1000)
    for interval in VALID[record.design.dependent]:
        assert abs(record.coverage[interval] - 0.95) <= 3 * record.deviation, table([record])
    if name.startswith(("very weak", "irrelevant")):
        assert record.coverage["Wald"] < 0.6
        assert record.coverage["Wald clustered"] < 0.6


def test_wald_intervals_fail_where_robust_sets_hold():
    record = measure(BY_NAME["very weak"], 60, seed=1)
    for interval in ("AR", "CLR", "AR clustered", "CLR clustered"):
        assert record.coverage[interval] >= 0.95 - 3 * record.deviation
        assert record.unbounded[interval] > 0.5
    assert record.coverage["Wald"] < 0.75  # 45% +- 20%
    assert record.first_stage < 3
    printed = table([record])
    assert all(interval in printed for interval in INTERVALS)
    assert "*" in printed.splitlines()[2]
