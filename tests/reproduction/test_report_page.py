"""The report of a reproduction."""

import numpy as np

from ivvi.reporting.page import render
from ivvi_reproduction.report_page import report_page
from ivvi_reproduction.results import BandCurve, ResultFigure, Results, ResultTable


def test_a_run_of_experiments_draws_its_cells_and_gives_its_commands():
    columns = ("variant", "setting", "paper", "as the paper", "their estimate", "best")
    rows = (
        *(("k = 5", "Baseline", 600.0, 700.0, 650.0, 500.0), ("k = 5", "I", 15.0, 16.0, 9.0, 1.0)),
        *(("k = 5", "II", 4.0, "diverges", 3.0, 5.0), ("k = 5", "III", 2.0, None, None, None)),
    )
    table = ResultTable(
        "linear-regret", "Regret", columns, rows, "A note.", "ivvi reproduce linear"
    )
    x = np.array([1.0, 10.0, 100.0])
    curves = (
        BandCurve("setting I", x, 1 / x),
        BandCurve("exact, I", x, 1 / x, level_for="setting I"),
    )
    panels = tuple(
        ResultFigure(f"linear-{k}", f"k = {k}: Loss", "t", "|W|", curves, "It falls.", log_y=True)
        for k in (5, 10)
    )
    results = Results("Reproduced", (table,), panels, {"commits": ["abc"], "quick": False})
    text = render(report_page(results))
    assert "on a logarithmic scale, 4 cells. Without 4 numbers" in text
    assert "below the paper" not in text  # columns that do not share a planner are not compared
    assert text.count("<h3>Loss</h3>") == 1  # panels of one kind share a figure
    assert "diverges</td>" in text
    assert "dotted: at our best" in text
    assert "mathdefault" not in text
    assert text.count("<span>reproduce</span> <span>linear</span>") == 2
