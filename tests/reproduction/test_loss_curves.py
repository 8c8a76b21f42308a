"""The paper's loss figure: stronger instruments fall faster."""

import json

import numpy as np
import pytest

from ivvi import InputError
from ivvi._io.plotting import check_figure, save_figure
from ivvi_reproduction.loss_curves import SETTINGS, LossCurve, command, draw, run, table


@pytest.fixture(scope="module")
def curves():
    """Return the curves of a small linear cell by steps, the weakest instrument first."""
    found = {"constant": [], "paper": []}
    for setting in SETTINGS:
        for steps, ran in found.items():
            ran.append(run("linear", 5, setting, steps, iterations=300, episodes=20))
    return found


def time_to(curve, share):
    """Return the iteration at which the loss first is below `share` of its start."""
    below = np.array(curve.loss) < share * curve.loss[0]
    return curve.t[int(np.argmax(below))] if below.any() else np.inf


def assert_falls_faster(curves, share):
    times = [time_to(curve, share) for curve in curves]
    assert np.isfinite(times).all(), table(curves)
    assert times[0] > times[1] > times[2], table(curves)


def test_stronger_instruments_fall_faster_with_one_step_for_all(curves):
    curves = curves["constant"]
    assert_falls_faster(curves, 0.5)
    assert_falls_faster(curves, 0.2)
    for t in (30, 100):
        losses = [c.loss[c.t.index(t)] for c in curves]
        assert losses == sorted(losses, reverse=True)
    assert curves[-1].loss[-1] < 2 * curves[-1].closed_form  # it arrives


def test_stronger_instruments_fall_faster_with_the_papers_steps(curves):
    assert_falls_faster(curves["paper"], 0.7)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("experiment", "dim", "steps", "share"),
    [
        ("linear", 10, "paper", 0.6),
        ("linear", 10, "constant", 0.2),
        ("linear", 20, "constant", 0.2),
        ("nonlinear", 1, "paper", 0.8),
        ("nonlinear", 3, "paper", 0.8),
        ("nonlinear", 5, "paper", 0.8),
        ("nonlinear", 5, "constant", 0.7),
    ],
)
def test_stronger_instruments_fall_faster_in_every_dimension(experiment, dim, steps, share):
    settings = {"steps": steps, "iterations": 300}
    assert_falls_faster([run(experiment, dim, s, **settings) for s in SETTINGS], share)


@pytest.mark.slow
def test_the_papers_steps_do_not_settle_at_k_20():
    for setting in SETTINGS:
        curve = run("linear", 20, setting, "paper", iterations=300)
        assert curve.loss[-1] > curve.loss[0], table([curve])


def test_loss_curves_make_a_table_and_a_figure(tmp_path):
    curves = [
        LossCurve("linear", k, setting, "constant", (1, 10), (2.0, 1.0 / i), 0.1)
        for k in (5, 10)
        for i, setting in enumerate(SETTINGS, 1)
    ]
    lines = table(curves).splitlines()
    assert len(lines) == 7
    assert lines[3].split() == ["constant", "5", "III", "2", "0.333", "0.1"]
    figure = draw(curves)
    assert len(figure.axes) == 2
    for name, start in (("loss.png", b"\x89PNG"), ("loss.svg", b"<?xml")):
        save_figure(figure, tmp_path / name, force=False)
        assert (tmp_path / name).read_bytes().startswith(start)


def test_the_command_writes_json(tmp_path, monkeypatch):
    monkeypatch.setattr("ivvi_reproduction.loss_curves.DIMENSIONS", {"linear": (1,)})
    monkeypatch.setattr("ivvi_reproduction.loss_curves.SETTINGS", ("II",))
    command("linear", iterations=2, json=str(tmp_path / "loss.json"))
    facts = json.loads((tmp_path / "loss.json").read_text())
    assert [curve["steps"] for curve in facts] == ["paper", "constant"]
    assert facts[0]["t"] == [1, 2]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"experiment": "movielens"}, "unknown experiment 'movielens'"),
        ({"iterations": 0}, "--iterations is 0"),
        ({"plot": "loss.gif"}, "an unknown file ending"),
    ],
)
def test_bad_settings_are_refused(settings, words):
    with pytest.raises(InputError, match=words):
        command(**settings)


def test_a_figure_that_exists_is_not_replaced(tmp_path):
    (tmp_path / "loss.png").write_text("mine")
    with pytest.raises(InputError, match="exists"):
        check_figure(tmp_path / "loss.png", force=False)
    check_figure(None, force=False)
