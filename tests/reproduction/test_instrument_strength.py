"""Instrument strength in the cells of the paper's tables."""

import os
from pathlib import Path

import pytest

from helpers import ROOT
from ivvi.simulators.catalogue import load_factors
from ivvi_reproduction.instrument_strength import Cell, Record, cells, measure, table

SHARED = ROOT.parent / "shared/data/ml-1m/ratings.parquet"
RATINGS = Path(os.environ.get("IVVI_MOVIELENS", SHARED))
QUICK = {("linear", 5, "II"), ("linear", 20, "VI"), ("nonlinear", 1, "I"), ("nonlinear", 5, "IV")}


def _synthetic():
    for cell in cells():
        if cell.experiment != "movielens":
            key = (cell.simulator, cell.dim, cell.setting)
            marks = () if key in QUICK else (pytest.mark.slow,)
            yield pytest.param(cell, id="-".join(map(str, key)), marks=marks)


@pytest.mark.parametrize("cell", list(_synthetic()))
def test_synthetic_cells_round_to_the_printed_digits_within_two_seed_deviations(cell):
    record = measure(cell, range(5))
    # The mean of five logs has an error of its own (sd / sqrt 5) beside the paper's one log.
    assert record.deviation <= 2 * (1 + 1 / 5) ** 0.5, table([record])


@pytest.fixture(scope="module")
def movielens():
    if not RATINGS.exists():
        pytest.skip("MovieLens 1M is not here")
    return load_factors(RATINGS)


@pytest.mark.parametrize(
    "cell", list(cells("movielens")), ids=lambda c: f"{c.simulator}-{c.setting}"
)
def test_movielens_cells_are_within_thirty_percent(cell, movielens):
    record = measure(cell, range(3), movielens)
    assert record.mean == pytest.approx(cell.paper, rel=0.3)
    assert record.without_zero > record.mean
    assert "synthetic" not in record.data


def test_there_are_42_cells():
    assert len(list(cells())) == 18 + 18 + 6


def test_the_stand_in_is_labelled_in_the_table():
    cell = next(cells("movielens"))
    record = measure(cell, [0])
    assert "synthetic" in table([record]).splitlines()[-1]


@pytest.mark.parametrize(("mean", "off"), [(0.1449, 0.0), (0.1351, 0.0), (0.147, 2.0)])
def test_deviation_counts_from_the_rounding_interval(mean, off):
    record = Record(Cell("linear", "linear", 5, "I", 0.14, 0.01), mean, 0.001, mean, 5, "")
    assert record.deviation == pytest.approx(off, abs=1e-9)
