"""Rows that are lost more often where the instrument is high."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ivvi
from ivvi.diagnostics.misspecification.lost_rows import lost_rows

ONE_DECISION: dict[str, Any] = {"state": "", "action": "a", "instrument": "z", "reward": "y"}


def visits(seed: int, *, leave: str, people: int = 200, steps: int = 8) -> dict[str, np.ndarray]:
    """Return episodes that people leave for good after a high state or dose, or at random."""
    rng = np.random.default_rng(seed)
    x, stays = rng.normal(size=people), np.ones(people, dtype=bool)
    last, parts = rng.integers(2, steps, people), []
    for step in range(steps):
        z, u, e, v = rng.normal(size=(4, people))
        a = 0.7 * z + 0.3 * x + u + 0.3 * v
        row = {
            "episode": np.arange(people),
            "step": np.full(people, step),
            "x0": x,
            "a0": a,
            "z0": z,
        }
        parts.append({name: values[stays] for name, values in row.items()})
        x = 0.6 * x - 0.5 * a + u + 0.5 * e
        limit = 1 + 0.5 * rng.normal(size=people)
        leaves = {"state": x > limit, "dose": a > limit + 0.5, "chance": last == step}
        stays = stays & ~leaves.get(leave, np.zeros(people, dtype=bool))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def cross_section(seed: int, n: int = 3000) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    z, u, e, v = rng.normal(size=(4, n))
    a = z + u + e
    return {"z": z, "a": a, "y": 0.5 * a + u + v}


@pytest.mark.parametrize("leave", ["state", "dose"])
def test_episodes_that_stop_after_what_the_instrument_moved_are_warned_of(leave: str) -> None:
    for seed in range(5):
        text = lost_rows(ivvi.read_logs(visits(seed, leave=leave)))
        more = "more" if leave == "dose" else "less"
        assert f"lost {more} often where z0 is high" in text
        assert "--terminal" in text


@pytest.mark.parametrize("leave", ["chance", "never"])
def test_episodes_that_stop_by_chance_or_together_are_ordinary(leave: str) -> None:
    for seed in range(10):
        table = visits(seed, leave=leave)
        assert not lost_rows(ivvi.read_logs(table))
        holes = np.random.default_rng(seed).random((2, len(table["z0"]))) < 0.1
        table["z0"] = np.where(holes[0], np.nan, table["z0"])
        table["a0"] = np.where(holes[1], np.nan, table["a0"])
        assert not lost_rows(ivvi.read_logs(table, drop_missing=True))


@pytest.mark.filterwarnings("ignore::ivvi.errors.IvviWarning")
def test_doses_and_outcomes_that_are_missing_by_their_size_are_warned_of() -> None:
    table = cross_section(0)
    empty = table | {"a": np.where(table["a"] < 0, np.nan, table["a"])}
    fit = ivvi.fit(ivvi.read_logs(empty, **ONE_DECISION, drop_missing=True))
    [text] = [text for text in fit.warnings if "rows are lost" in text]
    assert text.endswith("if an empty a means that none was given, write 0 there")
    high = table | {"y": np.where(table["y"] > 0.5, np.nan, table["y"])}
    assert "fill them in" in lost_rows(ivvi.read_logs(high, **ONE_DECISION, drop_missing=True))


def test_outcomes_that_are_missing_at_random_are_ordinary() -> None:
    for seed in range(10):
        table = cross_section(seed)
        holes = np.random.default_rng(seed + 100).random(3000) < 0.2
        table["y"] = np.where(holes, np.nan, table["y"])
        assert not lost_rows(ivvi.read_logs(table, **ONE_DECISION, drop_missing=True))
