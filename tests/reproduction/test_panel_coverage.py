"""How often intervals hold the slopes of panels with fixed effects."""

import json

import pytest

from ivvi_reproduction.panel_coverage import WAYS, command, measure


def test_the_table_has_a_line_for_each_way_and_slope(capsys, tmp_path):
    command(logs=2, steps=[6], json=str(tmp_path / "p.json"))
    records = json.loads((tmp_path / "p.json").read_text())
    ways = [(design, way) for design, some in WAYS.items() for way in some for _ in "xa"]
    assert [(r["design"], r["way"]) for r in records] == ways
    assert "2 logs each of 200 units" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("steps", [5, 10])
def test_exogenous_states_and_differences_hold_the_truth(steps):
    """Within four binomial deviations of 95%; absorbed lagged states do not."""
    records = [r for design in WAYS for r in measure(design, steps, 200, seed=1)]
    for record in records:
        if record.design == "exogenous" or record.way == "differences":
            assert abs(record.coverage - 0.95) < 4 * 0.0154, record
        if record.way == "absorbed" and record.design == "lagged" and record.slope == "x":
            assert record.coverage < 0.5
        if record.design == "late":
            assert record.told > (0.4 if steps == 5 else 0.9), record
        else:  # one in a thousand: of 200 panels at most four, in all but 1 of 1e5 runs
            assert record.told <= 0.02, record
