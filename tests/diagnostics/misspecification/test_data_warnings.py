"""Doubts about the rows of a log: codes read as amounts, gaps of steps, copies of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ivvi
from ivvi.errors import IvviWarning

ONE_DECISION: dict[str, Any] = {"action": "a", "instrument": "z", "reward": "y"}


def cross_section(rng: np.random.Generator, code: np.ndarray, effect: np.ndarray) -> dict[str, Any]:
    """Return decisions in places that are numbered by `code` and add `effect` to the outcome."""
    x, u, e, z = rng.normal(size=(4, len(code)))
    a = 0.8 * z + 0.3 * x + u
    return {"x": x, "code": code, "a": a, "z": z, "y": x - 0.4 * a + u + e + effect}


def panel(rng: np.random.Generator, steps: list[int], episodes: int = 200) -> dict[str, np.ndarray]:
    """Return episodes that are seen at these steps."""
    z, u, e = rng.normal(size=(3, episodes, len(steps)))
    x, a = rng.normal(size=(episodes, len(steps) + 1)), 0.8 * z + u
    for t in range(len(steps)):
        x[:, t + 1] = 0.5 * x[:, t] - 0.4 * a[:, t] + u[:, t] + e[:, t]
    flat = {"x0": x[:, :-1], "a0": a, "z0": z}
    keys = {"episode": np.repeat(np.arange(episodes), len(steps)), "step": np.tile(steps, episodes)}
    return keys | {name: values.ravel() for name, values in flat.items()}


def warned(source: Any, **columns: Any) -> list[str]:
    """Fit and return the warnings."""
    with pytest.warns(IvviWarning) as caught:
        ivvi.fit(ivvi.read_logs(source, **columns))
    return [str(one.message) for one in caught]


def test_a_numbered_category_is_warned_of_by_name() -> None:
    rng = np.random.default_rng(0)
    code = rng.integers(1, 6, 1500)
    table = cross_section(rng, code, np.array([0, 1.5, -1, 1, -1.5, 0])[code])
    [text] = warned(table, state="x,code", **ONE_DECISION)
    assert text.startswith("code has 5 whole-number values, and the mean of y is far from linear")
    assert "--categorical code" in text
    ivvi.fit(ivvi.read_logs(table, state="x,code", categorical="code", **ONE_DECISION))


@pytest.mark.filterwarnings("ignore:linear features are too simple")
@pytest.mark.parametrize("shape", ["nothing", "line", "logarithm"])
def test_amounts_in_whole_numbers_are_not_taken_for_codes(shape: str) -> None:
    rng = np.random.default_rng(1)
    score = rng.integers(1, 8, 1500)
    effect = {"nothing": 0 * score, "line": 0.5 * score, "logarithm": 1.5 * np.log(score)}[shape]
    table = cross_section(rng, score, effect)
    ivvi.fit(ivvi.read_logs(table, state="x,code", **ONE_DECISION))  # a warning is an error here


@pytest.mark.filterwarnings("ignore:.*something lasts")
def test_units_with_levels_of_their_own_do_not_make_a_code_of_a_number() -> None:
    rng = np.random.default_rng(2)
    table = panel(rng, list(range(8)), episodes=60)
    table["size"] = np.repeat(rng.integers(1, 13, 60), 8)
    level = np.repeat(rng.normal(size=60), 8)
    table |= {"x0": table["x0"] + 3 * level, "a0": table["a0"] + level}
    ivvi.fit(ivvi.read_logs(table, state="x0,size"))


@pytest.mark.parametrize(
    ("steps", "remedy", "option"),
    [
        ([0, 1, 3, 6, 12], "--context dt", {"context": "dt"}),
        ([2016, 2017, 2019, 2020, 2022], "--date-format %Y ", {"date_format": "%Y"}),
        ([202310, 202311, 202312, 202401], "--date-format %Y%m ", {"date_format": "%Y%m"}),
    ],
)
def test_rows_lost_to_gaps_of_step_numbers_are_warned_of(
    steps: list[int], remedy: str, option: dict[str, Any]
) -> None:
    table = panel(np.random.default_rng(3), steps)
    gaps = 200 * int(np.sum(np.diff(steps) != 1))
    [text] = warned(table)
    assert text.startswith(f"{gaps:,} of {200 * len(steps):,} rows are dropped only because")
    assert remedy in text
    mended = ivvi.read_logs(table, **option)
    assert len(mended.to_batch()) == 200 * (len(steps) - 1)


def test_few_gaps_and_those_of_missing_values_or_a_filter_are_ordinary() -> None:
    rng = np.random.default_rng(4)
    table = panel(rng, list(range(10)))
    some = rng.random(2000) > 0.03
    ivvi.fit({name: values[some] for name, values in table.items()})
    ivvi.fit(ivvi.read_logs(table | {"flag": rng.random(2000)}, where="flag < 0.7"))
    holes = table | {"x0": np.where(rng.random(2000) < 0.1, np.nan, table["x0"])}
    ivvi.fit(ivvi.read_logs(holes, drop_missing=True))


def test_copies_of_rows_in_a_cross_section_are_counted() -> None:
    rng = np.random.default_rng(5)
    once = cross_section(rng, np.zeros(500), np.zeros(500))
    del once["code"]
    again = rng.permutation(np.repeat(np.arange(500), 4))
    table = {name: values[again] for name, values in once.items()}
    [text] = warned(table, state="x", **ONE_DECISION)
    assert text.startswith("1,500 of 2,000 rows are exact copies of another row")
    ivvi.fit(ivvi.read_logs(once, state="x", **ONE_DECISION))


def test_persons_with_ids_of_their_own_are_no_copies_of_each_other() -> None:
    rng = np.random.default_rng(3)
    z, dose = rng.integers(0, 2, 600), 10 * rng.integers(0, 3, 600)
    dose = dose + 5 * z * (dose > 0)
    cost = np.where(dose > 0, rng.normal(size=600) + 0.1 * dose, 0)
    table = {"person": np.arange(600) + 10000, "z": z, "dose": dose, "cost": cost}
    words = {"state": "", "action": "dose", "instrument": "z", "reward": "cost"}
    ivvi.fit(ivvi.read_logs(table, **words))
    del table["person"]
    twice = {name: np.repeat(values, 2) for name, values in table.items()}
    assert [text for text in warned(twice, **words) if "copies" in text]
    numbered = twice | {"Unnamed: 0": np.arange(1200)}  # the index of a frame, in a CSV file
    assert [text for text in warned(numbered, **words) if "copies" in text]


def test_those_who_spent_nothing_are_no_copies_of_each_other() -> None:
    rng = np.random.default_rng(4)
    z, u = rng.integers(0, 2, 1500), rng.normal(size=1500)
    a = z * (u > -0.5)
    past = np.where(rng.random(1500) < 0.4, 0, rng.gamma(2, 30, 1500))
    spent = np.where(rng.random(1500) < 0.2, 0, rng.gamma(2, 20, 1500)) + 0.2 * past
    table = {"past": past, "a": a, "z": z, "y": spent.round(2) + 7 * a}
    ivvi.fit(ivvi.read_logs(table, state="past", **ONE_DECISION))  # a warning is an error here
    again = {name: np.repeat(values, 2) for name, values in table.items()}
    [text] = (t for t in warned(again, state="past", **ONE_DECISION) if "copies" in t)
    assert int(text.split()[0].replace(",", "")) < 1500  # those who spent something


def test_rows_of_whole_numbers_repeat_by_themselves() -> None:
    rng = np.random.default_rng(6)
    x, z, u = rng.integers(0, 3, (3, 2000))
    a = (z + u > 2).astype(int)
    table = {"x": x, "a": a, "z": z, "y": x + a + u}
    ivvi.fit(ivvi.read_logs(table, state="x", **ONE_DECISION))


def test_groups_by_which_errors_are_clustered_do_not_make_a_code_of_a_number() -> None:
    rng = np.random.default_rng(7)
    firm = np.repeat(np.arange(80), 10)
    table = cross_section(rng, firm % 7, 2 * rng.normal(size=80)[firm]) | {"firm": firm}
    log = ivvi.read_logs(table, state="x,code", **ONE_DECISION)
    ivvi.fit(log, se=ivvi.StandardErrors(cluster="firm"))


@pytest.mark.filterwarnings("ignore::ivvi.errors.IvviWarning")
def test_copies_that_a_cluster_holds_together_are_no_doubt() -> None:
    rng = np.random.default_rng(0)
    z, u = rng.normal(size=(2, 300))
    rows = {"z": z, "a": z + u, "y": z + 2 * u + rng.normal(size=300), "person": np.arange(300)}
    twice = {name: np.repeat(values, 2) for name, values in rows.items()}
    log = ivvi.read_logs(twice, action="a", instrument="z", next_state="y")
    assert not [text for text in ivvi.fit(log, cluster="person").warnings if "copies" in text]
    assert [text for text in ivvi.fit(log, se="robust").warnings if "copies" in text]


def test_a_table_of_counts_is_told_how_to_count_people() -> None:
    rng = np.random.default_rng(1)
    z, u = rng.integers(0, 2, 3000), rng.normal(size=3000)
    a = (z + u > 0.5).astype(int)
    y = (0.8 * a + u + rng.normal(size=3000) > 0.5).astype(int)
    cells, count = np.unique(np.column_stack([z, a, y]), axis=0, return_counts=True)
    table = dict(zip("zay", cells.T, strict=True)) | {"count": count}
    words: dict[str, Any] = {"state": "", "weight": "count", **ONE_DECISION}
    assert [text for text in warned(table, **words) if "--weight-kind frequency" in text]
    fit = ivvi.fit(ivvi.read_logs(table, **words, weight_kind="frequency"))
    assert fit.counts.transitions == fit.counts.episodes == 3000
    assert fit.to_json()["se_note"] is None
    people = ivvi.fit(ivvi.read_logs({"z": z, "a": a, "y": y}, state="", **ONE_DECISION))
    np.testing.assert_allclose(fit.se, people.se)
    survey = {"z": z, "a": a, "y": y, "count": rng.integers(100, 3000, 3000)}
    ivvi.fit(ivvi.read_logs(survey, **words))


def test_a_survey_in_which_nobody_is_like_another_is_no_table_of_counts() -> None:
    rng = np.random.default_rng(2)
    z, u, age = rng.integers(0, 2, 240), rng.normal(size=240), rng.integers(18, 90, 240)
    income, a = rng.integers(0, 80, 240), z * (u > -0.5)
    y = np.round(50 + 5 * a + 8 * u + 8 * rng.normal(size=240))
    table = {"age": age, "income": income, "a": a, "z": z, "y": y}
    table["count"] = rng.integers(120, 2400, 240)  # the people whom each row stands for
    log = ivvi.read_logs(table, state="age,income", weight="count", **ONE_DECISION)
    ivvi.fit(log)  # a warning is an error here
    cells = {name: values for name, values in table.items() if name in ("a", "z")}
    cells |= {"y": (y > 50).astype(int), "age": age // 10}
    keys, count = np.unique(np.column_stack(list(cells.values())), axis=0, return_counts=True)
    counted = dict(zip(cells, keys.T, strict=True)) | {"count": 10 * count}
    assert len(count) > 30
    texts = warned(counted, state="age", weight="count", **ONE_DECISION)
    assert [text for text in texts if "--weight-kind frequency" in text]


def cut(seed: int, low: float, high: float, n: int = 500) -> dict[str, np.ndarray]:
    """y = 0.5 a + 2 u + noise, recorded between two limits."""
    rng = np.random.default_rng(seed)
    z, u, noise = rng.normal(size=(3, n))
    a = z + u
    return {"a": a, "z": z, "y": np.clip(0.5 * a + 2 * u + noise, low, high)}


@pytest.mark.parametrize(("low", "high", "word"), [(-9, 2, "largest"), (-2, 9, "smallest")])
def test_an_outcome_that_was_cut_off_is_warned_of(low: float, high: float, word: str) -> None:
    columns = dict(state=(), action="a", instrument="z", next_state="y")
    (text,) = (text for text in warned(cut(0, low, high), **columns) if "are exactly" in text)
    assert f"of y are exactly {high if word == 'largest' else low}, its {word} value" in text


@pytest.mark.parametrize("most", [1, 100])
def test_a_share_or_percentage_of_all_was_not_cut_off(most: int) -> None:
    table = cut(0, -9, 2)
    table["y"] = most * (table["y"] + 9) / 11
    assert (table["y"] == most).mean() > 0.1
    log = ivvi.read_logs(table, state=(), action="a", instrument="z", next_state="y")
    ivvi.fit(log)  # a warning is an error here


def test_outcomes_that_are_zero_whole_or_seldom_at_their_end_are_not_called_cut_off() -> None:
    columns = dict(state=(), action="a", instrument="z", next_state="y")
    bought, seldom = cut(0, 0, 9), cut(0, -99, 5.5)
    score = {**cut(0, -4, 4)}
    score["y"] = np.round(score["y"])
    for table in (bought, seldom, score, cut(0, -99, 99)):
        assert not ivvi.fit(ivvi.read_logs(table, **columns)).warnings
