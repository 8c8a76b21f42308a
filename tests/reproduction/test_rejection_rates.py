"""Tests of nominal size 5% reject true nulls about that often."""

import json

import numpy as np
import pytest

from ivvi import StandardErrors
from ivvi_reproduction.rejection_rates import DESIGNS, NullDesign, command, measure, table

pytestmark = pytest.mark.filterwarnings("ignore:weak instruments")


@pytest.mark.slow
@pytest.mark.parametrize("design", DESIGNS, ids=lambda d: f"{d.name}{'-rank' * d.rank_null}")
def test_sizes_lie_within_three_binomial_deviations(design):
    records = measure(design, 1000)
    assert records
    for record in records:
        assert abs(record.deviation) < 3, record


@pytest.mark.thorough
def test_ignoring_the_clusters_is_caught():
    """The same logs, judged as if their rows were independent, are rejected far too often."""
    design = NullDesign("clustered", StandardErrors("clustered"), 50, 20)

    class Careless(NullDesign):
        def draw(self, rng):
            return design.draw(rng)

    wrong = Careless("careless", StandardErrors("robust", debiased=True), 50, 20)
    (wald,) = [r for r in measure(wrong, 60) if r.test == "Wald, 2SLS"]
    assert wald.deviation > 4  # about 12: scores of an episode's 20 rows have correlation 1/4
    assert "careless" in table([wald])


def test_the_command_prints_a_table_and_json(tmp_path, capsys):
    command(logs=2, seed=3, json=str(tmp_path / "size.json"))
    lines = capsys.readouterr().out.splitlines()
    records = json.loads((tmp_path / "size.json").read_text())
    assert len(lines) == 2 + len(records)
    assert {r["design"] for r in records} == {d.name for d in DESIGNS}
    assert all(0 <= r["rejected"] <= 1 for r in records)
    assert np.isfinite([r["rejected"] for r in records]).all()
