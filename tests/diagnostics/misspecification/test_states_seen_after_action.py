"""States that were written after the action of their row."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import ivvi
from ivvi.diagnostics.misspecification.states_seen_after_action import leaks

EPISODES, STEPS = 60, 8


def panel(seed: int, steps: int = STEPS + 2) -> dict[str, Any]:
    """Return rows of a state that an action moves, two steps more than are used."""
    rng = np.random.default_rng(seed)
    z, u, e = rng.normal(size=(3, EPISODES, steps))
    x = np.zeros((EPISODES, steps + 1))
    a = 0.8 * z + u
    for t in range(steps):
        x[:, t + 1] = 0.6 * x[:, t] - 0.4 * a[:, t] + u[:, t] + 0.5 * e[:, t]
    episode, step = np.mgrid[:EPISODES, :steps]
    age = step + rng.integers(40, 90, EPISODES)[:, None]
    return {"episode": episode, "step": step, "x": x[:, :-1], "a": a, "z": z, "age": age}


def found(rows: dict[str, Any], state: str, first: int = 1) -> list[tuple[str, str]]:
    """Return pairs of a state and the output that it gives away."""
    flat = {name: values[:, first : first + STEPS].ravel() for name, values in rows.items()}
    log = ivvi.read_logs(flat, state=state, action="a", instrument="z")
    return [(one.state, one.output) for one in leaks(log.head(episodes=True), log.roles)]


@pytest.mark.parametrize("digits", [None, 1])
def test_a_state_that_is_the_next_one_is_found(digits: int | None) -> None:
    rows = panel(0)
    later = np.roll(rows["x"], -1, axis=1)
    rows["later"] = 3 * (later if digits is None else later.round(digits)) + 2
    assert found(rows, "x,later,age") == [("later", "next_x")]


@pytest.mark.parametrize("seed", range(25))
def test_ordinary_states_are_not_suspected(seed: int) -> None:
    rows = panel(seed)
    quarter = rows["step"] % 4
    rows |= {"sin": np.sin(np.pi / 2 * quarter), "cos": np.cos(np.pi / 2 * quarter)}
    rows |= {"day": rows["step"] * 1.0, "hours": rows["step"] * 24.0}
    rows |= {f"q{k}": (quarter == k) * 1.0 for k in range(4)}
    rows |= {"x_lag1": np.roll(rows["x"], 1, axis=1), "total": np.cumsum(rows["a"], axis=1)}
    rows |= {"quarter": np.array(["I", "II", "III", "IV"])[quarter]}
    assert found(rows, "x,age,day,hours,total") == []
    assert found(rows, "x,sin,cos,q1,q2,q3") == []
    assert found(rows, "x,x_lag1,age,quarter") == []


def test_fit_says_so() -> None:
    rows = panel(1)
    rows["later"] = np.roll(rows["x"], -1, axis=1)
    flat = {name: values[:, 1 : 1 + STEPS].ravel() for name, values in rows.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = ivvi.fit(ivvi.read_logs(flat, state="x,later", action="a", instrument="z"))
    assert any(text.startswith("later equals next_x almost exactly") for text in fit.warnings)


def test_a_cross_section_has_no_next_states() -> None:
    flat = {name: panel(2)[name].ravel() for name in ("x", "a", "z", "age")}
    flat["pay"] = 2 * flat["x"]
    log = ivvi.read_logs(flat, state="x,age", action="a", instrument="z", reward="pay")
    assert leaks(log.head(), log.roles) == []
