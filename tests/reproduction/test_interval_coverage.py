"""How often recommended intervals hold the truth, on logs of many kinds."""

import json

import numpy as np
import pytest

from ivvi_reproduction.interval_coverage import (
    DESIGNS,
    CoverageDesign,
    clusters,
    command,
    measure,
    weekly,
)


@pytest.mark.slow
@pytest.mark.parametrize("weeks", [30, 60])
def test_intervals_cover_with_a_shared_instrument(weeks):
    """Within four binomial deviations of the band from 91.5% to 98.5%."""
    record = measure(CoverageDesign("", weekly(weeks)), 200)
    assert 0.915 - 4 * 0.015 <= record.wald <= 1.0
    assert record.by == {"episode and step": 200}


@pytest.mark.parametrize(
    "name", ["15 clusters, Pareto", "30 clusters, Pareto", "15 clusters, equal"]
)
@pytest.mark.slow
def test_intervals_cover_with_few_and_uneven_clusters(name):
    design = next(one for one in DESIGNS if one.name == name)
    record = measure(design, 200)
    assert 0.915 - 4 * 0.015 <= record.wald <= 1.0


def test_the_coverage_table_has_a_line_for_each_design(capsys, tmp_path):
    command(logs=2, only="clusters", json=str(tmp_path / "c.json"))
    out = capsys.readouterr().out
    records = json.loads((tmp_path / "c.json").read_text())
    assert [r["design"] for r in records] == [d.name for d in DESIGNS if "clusters" in d.name]
    assert all(r["design"] in out for r in records)
    assert clusters(5, pareto=True)(np.random.default_rng(0)).roles.episode == "episode"
