"""Numbers that stand for missing values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ivvi
from ivvi.errors import DataError, IvviWarning

N = 1500


def panel(rng: np.random.Generator, episodes: int = 150, steps: int = 10) -> dict[str, np.ndarray]:
    """Return episodes of a state that an action moves, with a confounder."""
    z, u, e = rng.normal(size=(3, episodes, steps))
    x = np.zeros((episodes, steps + 1))
    a = 0.8 * z + u
    for t in range(steps):
        x[:, t + 1] = 0.5 * x[:, t] - 0.4 * a[:, t] + u[:, t] + 0.5 * e[:, t]
    episode, step = (one.ravel() for one in np.mgrid[:episodes, :steps])
    flat = {"x0": x[:, :-1], "a0": a, "z0": z}
    return {"episode": episode, "step": step} | {n: v.ravel() for n, v in flat.items()}


@pytest.mark.parametrize(
    ("column", "code"), [("x0", -9.0), ("x0", -99.0), ("a0", 999.0), ("z0", 9999.0), ("x0", 1e5)]
)
def test_a_repeated_value_far_from_all_others_is_warned_of(column: str, code: float) -> None:
    rng = np.random.default_rng(0)
    table = panel(rng)
    table[column][rng.random(N) < 0.02] = code
    with pytest.warns(IvviWarning) as caught:
        ivvi.fit(table)
    texts = [str(one.message) for one in caught]
    assert any(t.startswith(f"{column} is {code:g} in") and "--missing" in t for t in texts)


def test_codes_are_warned_of_where_effects_are_absorbed() -> None:
    table = panel(np.random.default_rng(5))
    table["z0"][::40] = -99.0
    with pytest.warns(IvviWarning) as caught:
        ivvi.fit(table, absorb="episode")
    assert any("z0 is -99 in" in str(one.message) for one in caught)


def test_values_named_as_missing_are_dropped(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    table = panel(rng)
    gone = rng.random(N) < 0.02
    clean = table | {"a0": np.where(gone, np.nan, table["a0"])}
    coded = table | {"a0": np.where(gone, -9.0, table["a0"])}
    expected = ivvi.fit(ivvi.read_logs(clean, drop_missing=True)).W
    ivvi.read_logs(coded).to_parquet(tmp_path / "log.parquet")
    for source in (coded, tmp_path / "log.parquet"):
        log = ivvi.read_logs(source, missing="-9,9", drop_missing=True)
        assert np.array_equal(ivvi.fit(log).W, expected)
        assert log.to_batch(episodes=True).episode is not None
    with pytest.raises(DataError, match="missing or infinite values"):
        ivvi.fit(ivvi.read_logs(coded, missing=-9))


def test_an_update_reads_the_same_values_as_missing() -> None:
    rng = np.random.default_rng(2)
    table = panel(rng)
    table["a0"][::50] = -9.0
    fit = ivvi.fit(ivvi.read_logs(table, missing=-9, drop_missing=True), episodes=True)
    more = panel(rng) | {"episode": table["episode"] + 1000}
    more["a0"][::50] = -9.0
    updated = ivvi.update(fit, more, drop_missing=True)
    assert updated.counts.missing == 2 * fit.counts.missing


def ordinary(rng: np.random.Generator) -> dict[str, Any]:
    """Return columns as people have them, none of which holds a code."""
    normal = rng.normal(size=N)
    return {
        "heavy": rng.standard_t(2, size=N),
        "income": np.where(rng.random(N) < 0.3, 0.0, np.exp(10 + normal)),
        "clipped": np.clip(normal, -1.5, 1.5),
        "age": rng.integers(18, 100, N),
        "count": rng.poisson(2, N),
        "scale": rng.integers(-1, 10, N),
        "yes": rng.integers(0, 2, N),
        "tenths": np.round(9 * normal, 1),
        "dose": rng.choice([0, 10, 20, 100], N),
    }


def test_ordinary_columns_raise_no_doubt() -> None:
    rng = np.random.default_rng(3)
    table = panel(rng)
    columns = ordinary(rng)
    ivvi.fit(ivvi.read_logs(table | columns, context=list(columns)))  # a warning is an error here


def test_a_loss_of_everything_is_a_return_and_no_code() -> None:
    rng = np.random.default_rng(6)
    table = panel(rng)
    rate = np.clip(rng.normal(0.05, 0.12, N), -0.5, 0.6)
    lost = table | {"return": np.where(rng.random(N) < 0.01, -1.0, rate)}
    ivvi.fit(ivvi.read_logs(lost, context="return"))  # a warning is an error here
    share = table | {"share": np.where(rng.random(N) < 0.02, -1.0, np.abs(rate))}
    with pytest.warns(IvviWarning, match="share is -1 in"):
        ivvi.fit(ivvi.read_logs(share, context="share"))
