"""Results draw themselves: a figure, a file where asked for, and what a notebook shows."""

import numpy as np
import pytest

import ivvi
from ivvi import InputError
from ivvi._io.plotting import IV, LS, MUTED
from ivvi.planning import Comparison
from ivvi.planning.comparison import Bound, Entry
from ivvi.sequence.check_result import Check, plot_checks
from ivvi.sequence.cluster_tests import LargestContrast, Range
from ivvi.weak_iv.confidence_sets import ConfidenceSet

PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def results():
    """Return a result of each kind that has a picture, of one small log."""
    log = ivvi.make_env("linear", dim=2).collect(episodes=30, horizon=20, seed=1)
    fit = ivvi.fit(log)
    policy = ivvi.plan(
        fit, "quadratic:weight=0.05", (-1, 1), horizon=5, method="mpc", compare=False
    )
    worth = ivvi.value(policy, fit, horizon=5, against=("zero",), draws=20)
    few = {"violations": ("z0",), "draws": 4, "episodes": 8}
    doubt = ivvi.sensitivity(policy, fit, against=("zero",), **few)
    named = {"log": log, "fit": fit, "diagnostics": fit.diagnostics, "policy": policy}
    firm = ivvi.stability(policy, fit, [[0.0, 0.0], [1.0, -1.0]], draws=8)
    choice = ivvi.choose_features(log, ["linear", "spline:3"], folds=5)
    beside = ivvi.table({"all": fit}, features="a*", beside="least-squares")
    named |= {"stability": firm, "features": choice, "table": beside}
    named["structures"] = ivvi.fit(log, "auto").choice
    named["trace"] = ivvi.fit(log, method="sgda").estimate.trace
    return named | {"value": worth, "sensitivity": doubt}


KINDS = ("log", "fit", "diagnostics", "policy", "value", "sensitivity")
KINDS += ("stability", "features", "table", "structures", "trace")


@pytest.mark.parametrize("kind", KINDS)
def test_a_result_draws_itself_and_saves_the_picture_once(results, kind, tmp_path):
    figure = results[kind].plot(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(PNG)
    assert figure._repr_png_().startswith(PNG)
    assert any(ax.lines or ax.patches or ax.collections for ax in figure.axes)
    with pytest.raises(InputError, match="exists"):
        results[kind].plot(tmp_path / "picture.png")


@pytest.mark.parametrize("kind", KINDS)
def test_a_notebook_shows_a_result_as_html(results, kind):
    shown = results[kind]._repr_html_()
    assert shown.startswith("<")
    if kind in ("fit", "diagnostics", "value"):
        assert "<b>Instrument</b> Good enough" in shown


def test_the_picture_of_a_fit_marks_the_estimates_where_they_are(results):
    fit = results["fit"]
    first = fit.plot().axes[0]
    drawn = {round(float(x), 9) for line in first.lines for x in line.get_xdata()}
    for j in (3, 4):
        assert round(float(fit.W[0, j]), 9) in drawn
        assert round(float(fit.baseline.W[0, j]), 9) in drawn


def test_a_log_is_described_by_its_columns(results):
    shown = results["log"]._repr_html_()
    for name in ("x0", "a1", "z0", "next_x1"):
        assert f"<td>{name}</td>" in shown


def test_an_evil_column_name_does_nothing():
    evil = "<script>alert(1)</script>"
    rows = {evil: [1.0, 2.0, 4.0], "a": [0.0, 1.0, 5.0], "z": [1.0, 0.0, 2.0], "y": [1.0, 2.0, 0.0]}
    log = ivvi.read_logs(rows, state=[evil], action="a", instrument="z", next_state="y")
    assert "<script>" not in log._repr_html_()


def test_a_picture_of_checks_has_a_p_value_for_each():
    """What fails comes first and is red; a tiny p is an arrow, and what is not asked has none."""
    tests = [LargestContrast(Range(value, "nothing")) for value in (5.0, 0.5)]
    checks = (
        Check("fine", tests[1], 0.01),
        Check("none", None, 0.01),
        Check("bad", tests[0], 0.01),
    )
    ax = plot_checks(checks, None, force=False).axes[0]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["bad", "fine", "none"]
    bad, fine, line = ax.lines
    assert (bad.get_marker(), bad.get_color(), *bad.get_xdata()) == ("<", LS, 1e-4)
    assert (fine.get_marker(), fine.get_color(), *fine.get_ydata()) == ("o", IV, 2)
    assert fine.get_xdata()[0] == pytest.approx(tests[1].p_value)
    assert line.get_xdata()[0] == 0.01
    assert ax.get_title("left") == "1 of 2 checks fail"


def test_a_picture_of_a_confidence_set_shows_its_ends():
    """A finite end is a bar where it is; an infinite one an arrow at the edge."""
    confidence_set = ConfidenceSet("effect of a on y", ((-np.inf, -0.5), (1.2, np.inf)), 0.95, "ar")
    ax = confidence_set.plot().axes[0]
    marks = [(m.get_marker(), m.get_xdata()[0]) for m in ax.lines if len(m.get_xdata()) == 1]
    assert [mark for mark, _ in marks] == ["<", "|", "|", ">"]
    assert [x for mark, x in marks if mark == "|"] == [-0.5, 1.2]
    assert "weak" in ax.get_title("left").replace("\n", " ")
    empty = ConfidenceSet("effect of a on y", (), 0.95, "ar").plot().axes[0]
    assert len(empty.lines) == 1  # zero alone


def test_a_picture_of_a_comparison_shows_what_each_earns():
    """Values with two standard errors, the chosen one blue, and the bound."""
    entries = (Entry("mpc", 3.0, 0.1, 0, 0, False, 1), Entry("nothing", 1.0, 0.2, 2, 0.1, True, 0))
    bound = Bound(3.5, 0.1, 0.5, 0.1, "how")
    ax = Comparison(entries, "mpc", 96, 10, bound=bound).plot().axes[0]
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert names == ["mpc", "nothing (no plan)"]
    bar, point, other, _, line = ax.lines
    np.testing.assert_allclose(bar.get_xdata(), [2.8, 3.2])
    assert (point.get_xdata()[0], point.get_color(), other.get_color()) == (3.0, IV, MUTED)
    assert line.get_xdata()[0] == 3.5


def test_the_picture_of_a_table_has_every_column_of_each_coefficient(results):
    figure, fit = results["table"].plot(), results["fit"]
    for i, ax in enumerate(figure.axes):
        drawn = {round(float(x), 9) for line in ax.lines for x in line.get_xdata()}
        for j in (3, 4):
            assert {round(float(fit.W[i, j]), 9), round(float(fit.baseline.W[i, j]), 9)} <= drawn
        assert [t.get_text() for t in ax.get_yticklabels()] == ["a0", "a1"]
    assert len(figure.legends[0].texts) == 2


def test_the_picture_of_stability_marks_what_is_recommended(results):
    ax = results["stability"].plot().axes[0]
    marked = ax.lines[-1]
    np.testing.assert_allclose(marked.get_xdata(), results["stability"].actions[:, 0])
    assert "%" in ax.get_yticklabels()[0].get_text()
