"""The chain of changes from our best number to the paper's."""

import pytest

from helpers import ROOT
from ivvi import InputError
from ivvi_reproduction.cell_statistics import CellStatistics
from ivvi_reproduction.one_change import (
    CHANGES,
    PAPER,
    ROWS,
    CellChanges,
    Change,
    Variation,
    command,
    table,
)
from ivvi_reproduction.records import RecordFile
from ivvi_reproduction.specs import Column, read_experiment, read_table


def last_setup(experiment):
    (_, setup), changes = CHANGES[experiment]
    for _, change in changes:
        setup = setup.changed(**change)
    return setup


def test_a_change_is_of_the_setup_or_of_its_column():
    before = Variation(Column("linear", "exact"))
    after = before.changed(noise="identity", temperature=0.5)
    assert after == Variation(Column("linear", "exact", temperature=0.5), noise="identity")
    assert before == Variation(Column("linear", "exact"))


@pytest.mark.parametrize("name", CHANGES)
def test_the_chain_ends_at_the_column_of_their_estimates(name):
    setup, experiment = last_setup(name), read_experiment(name)
    assert setup.column == experiment.columns["authors"]
    assert (setup.noise, setup.signs) == (experiment.noise, experiment.signs)
    assert setup.baseline == experiment.baseline


def test_the_table_has_a_block_for_each_variant():
    numbers = read_table("linear-regret").numbers
    printed = tuple(numbers[row][0][0] for row in ROWS)
    lines = table([Change("k5", PAPER, printed), Change("k10", PAPER, (1.0, 2.0, 3.0, 4.0))])
    assert [line.split()[0] for line in lines.splitlines()] == ["k5", "the", "k10", "the"]
    assert lines.splitlines()[1].split()[2:] == ["590.2", "14.84", "4.17", "1.44"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"experiment": "wages"}, "expected linear, nonlinear, movielens"),
        ({"experiment": "linear", "only": "k1"}, "no variant 'k1'; expected k5, k10, k20"),
        ({"experiment": "linear", "logs": 0}, "--logs is 0"),
    ],
)
def test_words_that_mean_nothing_are_refused(words, said):
    with pytest.raises(InputError, match=said):
        command(**words)


@pytest.mark.thorough
def test_regrets_are_those_of_the_records():
    """With noise and baseline as the authors had them, the closed form is the column best."""
    experiment = read_experiment("linear")
    setup = Variation(experiment.columns["best"], baseline="III", noise="identity")
    regrets = CellChanges(experiment, "k5", experiment.episodes, [0]).measured("", setup).regrets
    cells = CellStatistics(RecordFile.open(ROOT / "reproduction/results").read("linear"))
    keys = [("baseline", "III"), *(("ivvi", row) for row in ROWS[1:])]
    recorded = [cells.regrets(("k5", "best", *key))[0] for key in keys]
    assert regrets == pytest.approx(recorded, rel=1e-4)
