"""Instruments that were set by group, in tables whose rows do not follow each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import ivvi
from ivvi.logs.instruments.assignment_level import few_values

COLUMNS: dict[str, Any] = {"state": "x", "action": "a", "instrument": "z", "reward": "y"}


def by_county(
    rng: np.random.Generator, counties: int = 30, people: int = 40, *, levels: bool = False
) -> dict[str, np.ndarray]:
    """Return people in counties that set the instrument, each with a shock of its own."""
    county = np.repeat(np.arange(counties), people)
    z, shock = rng.normal(size=(2, counties))
    z = (np.arange(counties) % 2).astype(float) if levels else z
    x, u, e = rng.normal(size=(3, len(county)))
    a = 0.8 * z[county] + 0.3 * x + u
    y = x - 0.4 * a + u + 0.5 * shock[county] + e
    place = rng.permutation(len(county))
    table = {"x": x, "a": a, "z": z[county], "y": y, "county": county}
    return {name: values[place] for name, values in table.items()}


@pytest.mark.parametrize("levels", [False, True])
def test_errors_are_clustered_by_the_column_within_which_no_instrument_varies(levels: bool) -> None:
    table = by_county(np.random.default_rng(0), levels=levels)
    log = ivvi.read_logs(table, **COLUMNS)
    fit, named = ivvi.fit(log), ivvi.fit(log, se=ivvi.StandardErrors(cluster="county"))
    assert fit.errors.clusters == ("county",)
    assert "errors are clustered by county: the instrument never varies within it" in (
        fit.errors.note
    )
    assert np.array_equal(fit.se, named.se)
    robust = ivvi.fit(log, se="robust")
    assert robust.errors.clusters == ()
    assert "county" not in robust.errors.note


def test_of_several_such_columns_the_coarsest_is_taken() -> None:
    table = by_county(np.random.default_rng(1), levels=True)
    county = table["county"]
    table["town"] = np.array([f"town {c}-{i % 3}" for i, c in enumerate(county)])
    table["id"], table["region"] = np.arange(len(county)), county // 4
    assert ivvi.read_logs(table, **COLUMNS).roles.set_by == ("county",)


def test_episodes_without_steps_are_clustered_by_the_group_that_set_their_instrument() -> None:
    table = by_county(np.random.default_rng(2))
    table["person"] = np.argsort(np.argsort(table["county"], kind="stable")) // 2
    asked = COLUMNS | {"reward": None, "next_state": "y"}
    log = ivvi.read_logs(table, **asked, episode="person")
    assert ivvi.fit(log).errors.clusters == ("county",)


@pytest.mark.filterwarnings("ignore:linear features are too simple")
@pytest.mark.parametrize("name", ["arm", "dose", "sex", "id", "missing"])
def test_what_is_no_group_leaves_errors_robust(name: str) -> None:
    """An instrument in other words, columns it varies within, and one that lacks values."""
    rng = np.random.default_rng(3)
    table: dict[str, Any] = by_county(rng, levels=True)
    county, n = table.pop("county"), len(table["x"])
    doses = rng.integers(0, 8, n)
    table["z"] = np.log1p(doses) if name == "dose" else doses
    others = {
        "arm": np.array(list("abcdefgh"))[doses],
        "dose": doses,
        "sex": rng.integers(0, 2, n),
        "id": np.arange(n),
        "missing": pa.array(county, mask=county == 3),
    }
    if name == "missing":
        table["z"] = np.cos(county * 7.0)
    table["a"] = table["a"] + table["z"]
    fit = ivvi.fit(ivvi.read_logs(table | {name: others[name]}, **COLUMNS))
    assert fit.errors.kind == "robust"


def test_a_group_that_fails_in_later_rows_is_none(tmp_path: Path) -> None:
    county = np.repeat(np.arange(40), 2000)
    rng = np.random.default_rng(4)
    table = {name: rng.normal(size=len(county)) for name in "xay"} | {"county": county}
    table["z"] = rng.normal(size=40)[county]
    table["z"][-1] += 1
    assert not ivvi.read_logs(table, **COLUMNS).roles.set_by
    table["z"][-1] -= 1
    path = tmp_path / "log.parquet"
    ivvi.read_logs(table, **COLUMNS).to_parquet(path)
    assert ivvi.read_logs(path, **COLUMNS).roles.set_by == ("county",)


def test_few_values_of_an_instrument_are_noted_where_no_column_tells_the_groups() -> None:
    table = by_county(np.random.default_rng(5))
    del table["county"]
    fit = ivvi.fit(ivvi.read_logs(table, **COLUMNS))
    assert "z takes only 30 values in 1,200 rows" in fit.errors.note
    assert "--cluster" in fit.errors.note


@pytest.mark.parametrize("z", ["years", "tenths", "log", "arms"])
def test_rounded_numbers_and_levels_are_not_taken_for_groups(z: str) -> None:
    rng = np.random.default_rng(6)
    table = by_county(rng)
    drawn = rng.normal(size=1200)
    table["z"] = {
        "years": np.round(12 + 3 * drawn),
        "tenths": np.round(drawn, 1),
        "log": np.log(np.clip(np.round(40 + 12 * drawn), 1, None)),
        "arms": np.array([0.0, 0.13, 1.7])[rng.integers(0, 3, 1200)],
    }[z]
    table["a"] = table["a"] + table["z"]
    fit = ivvi.fit(ivvi.read_logs(table, **COLUMNS))
    assert fit.errors.kind == "robust"
    assert not fit.errors.note


def test_rows_of_a_patient_that_was_not_named_are_clustered_and_the_episode_is_suggested() -> None:
    table = by_county(np.random.default_rng(7), counties=80, people=9)
    table["patient"] = table.pop("county")
    asked = COLUMNS | {"reward": None, "next_state": "y"}
    fit = ivvi.fit(ivvi.read_logs(table, **asked))
    assert fit.errors.clusters == ("patient",)
    assert "--episode" in fit.errors.note


def test_values_that_differ_by_rounding_alone_are_compared_without_warnings() -> None:
    """Tiny numbers have the same exponential."""
    z = np.repeat(np.concatenate([1e-17 * np.arange(40), np.linspace(-2, 2, 41) ** 3]), 5)
    table = dict(zip("xay", np.random.default_rng(0).normal(size=(3, len(z))), strict=True))
    log = ivvi.read_logs(table | {"z": z}, **COLUMNS)
    with np.errstate(all="raise"):
        assert few_values(log.head(), log.roles).startswith("z takes only 80 values in 405 rows")


def charges(rng: np.random.Generator, judges: int = 60, people: int = 600, each: int = 4) -> Any:
    """Return defendants with several charges each, all before one judge; truth 0.5."""
    judge, lean = rng.integers(0, judges, people), rng.normal(size=judges)
    own, person = rng.normal(size=people), np.repeat(np.arange(people), each)
    e, v = rng.normal(size=(2, len(person)))
    a = 0.35 * lean[judge][person] + own[person] + 0.3 * e
    table = {"defendant": person, "judge": [f"J{j}" for j in judge[person]], "a": a}
    return table | {"y": 0.5 * a + own[person] + 0.5 * v}


def test_charges_of_one_defendant_that_stay_in_the_mean_of_others_are_named() -> None:
    words: dict[str, Any] = {"state": "", "action": "a", "instrument": "loo:judge"}
    table = charges(np.random.default_rng(0))
    [text] = [n for n in ivvi.read_logs(table, **words, reward="y").notes if "leaves out" in n]
    assert "--episode defendant)" in text
    errors = []
    for seed in range(5):
        table = charges(np.random.default_rng(seed))
        log = ivvi.read_logs(table, **words, episode="defendant", next_state="y")
        assert not [note for note in log.notes if "leaves out" in note]
        with pytest.warns(ivvi.errors.IvviWarning):
            fit = ivvi.fit(log)
        errors.append((fit.W[0, 1] - 0.5) / fit.se[0, 1])
    assert abs(np.mean(errors)) < 4 / np.sqrt(5)


def test_persons_and_rooms_within_judges_are_no_repeated_defendants() -> None:
    rng = np.random.default_rng(1)
    table = charges(rng, people=2400, each=1)
    judge = np.array([int(j[1:]) for j in table["judge"]])
    table |= {"room": judge * 20 + rng.integers(0, 20, 2400), "age": rng.integers(20, 60, 2400)}
    words: dict[str, Any] = {"state": "", "action": "a", "instrument": "loo:judge"}
    notes = ivvi.read_logs(table, **words, reward="y").notes
    assert not [note for note in notes if "leaves out" in note]
