"""What the records behind docs/reproduction.md must show."""

import math

import numpy as np
import pytest

from helpers import ROOT
from ivvi_reproduction.cell_statistics import CellStatistics, Spread
from ivvi_reproduction.jobs import Job, list_jobs
from ivvi_reproduction.records import Records
from ivvi_reproduction.run_job import Options, run_job
from ivvi_reproduction.specs import names, read_experiment, read_table
from ivvi_reproduction.tables import deviation

LOGS = 5
RELEASED = ("I", "II", "III")
"""Settings whose estimates the authors released."""


@pytest.fixture(scope="module")
def records():
    return Records.open(ROOT / "reproduction/results")


def statistics(records, experiment):
    return CellStatistics(records.read(experiment))


def strengths(records, name):
    """Yield the strengths of each cell over logs, as the paper counts them, and what it prints."""
    found, experiment = statistics(records, name), read_experiment(name)
    part = "smallest" if experiment.needs_ratings else "mu_iv"
    for setting, row in read_table(f"{name}-strength").numbers.items():
        for variant, printed in zip(experiment.variants, row, strict=True):
            values = found.values((variant.key, "paper", "ivvi", setting), of="strength")
            yield f"{variant.key} {setting}", [value[part] for value in values], printed


def test_every_cell_has_five_logs(records):
    for name in names("experiments"):
        assert not [str(j) for j in list_jobs(read_experiment(name), LOGS) if j not in records.done]


@pytest.mark.parametrize("dim", [5, 10, 20])
def test_the_loop_stops_as_far_from_the_truth_as_the_authors_did(records, dim):
    found = statistics(records, "linear")
    for setting in RELEASED:
        ours = found.values((f"k{dim}", "paper", "ivvi", setting), of="distance")
        (theirs,) = found.values((f"k{dim}", "authors", "ivvi", setting), of="distance")
        assert len(ours) == LOGS
        assert np.mean(ours) == pytest.approx(theirs, rel=0.1), setting


@pytest.mark.parametrize("dim", [1, 3, 5])
def test_nonlinear_estimates_are_those_of_the_authors(records, dim):
    found = statistics(records, "nonlinear")
    for setting in RELEASED:
        away = found.values((f"k{dim}", "paper", "ivvi", setting), of="from_authors")
        assert len(away) == LOGS
        assert np.mean(away) < 0.1, setting


def test_strengths_of_movielens_are_within_five_percent_of_the_printed_ones(records):
    assert "synthetic" not in records.runs["movielens"]["paper"]["data"]
    for cell, values, printed in strengths(records, "movielens"):
        assert len(values) == LOGS
        assert np.mean(values) == pytest.approx(printed, rel=0.05), cell


@pytest.mark.parametrize("name", ["linear", "nonlinear"])
def test_other_strengths_round_to_the_printed_digits_within_sampling_error(records, name):
    """The printed number is of one log, and so off by three deviations or less.

    The deviation comes from five logs: Student's t with four degrees of freedom has 6.6 where a
    normal law has three (0.27% of 36 cells outside in both), and their mean adds a fifth.
    """
    digit = read_table(f"{name}-strength").digit
    for cell, values, printed in strengths(records, name):
        off = deviation(Spread.of(values), printed, digit)
        assert off <= 6.6 * math.sqrt(1 + 1 / LOGS), cell


@pytest.mark.parametrize(("mean", "off"), [(0.1449, 0.0), (0.1351, 0.0), (0.147, 2.0)])
def test_deviation_counts_from_the_rounding_interval(mean, off):
    assert deviation(Spread(mean, 0.001, 0.0, 5), 0.14, 0.01) == pytest.approx(off, abs=1e-9)


@pytest.mark.thorough
def test_a_job_that_is_run_again_has_the_result_of_its_record(records):
    job = Job("linear", "k5", "paper", "II", "ivvi", 3)
    recorded, result = records.done[job]["result"], run_job(job, Options()).result
    for part in ("distance", "from_authors"):
        assert result[part] == pytest.approx(recorded[part], rel=1e-6)
    np.testing.assert_allclose(result["returns"], recorded["returns"], rtol=1e-6)
    assert result["strength"] == pytest.approx(recorded["strength"], rel=1e-6)
