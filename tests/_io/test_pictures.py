"""Results draw themselves: a figure, a file where asked for, and what a notebook shows."""

import pytest

import ivvi
from ivvi.errors import InputError

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
    return named | {"value": worth, "sensitivity": doubt}


KINDS = ("log", "fit", "diagnostics", "policy", "value", "sensitivity")


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
