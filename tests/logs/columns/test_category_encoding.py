"""Categories, facts that never change, and ends of episodes, as a log has them."""

import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ivvi
from ivvi import read_logs
from ivvi.categories import decode_rows, encode_rows
from ivvi.errors import ColumnError, DataError, IdentificationError, IvviWarning
from ivvi.fitting.incremental.saved_moments import open_like

ROLES = {"action": "drug", "instrument": "z", "episode": "patient", "step": "day"}


def table(episodes=6, steps=8, seed=0):
    rng = np.random.default_rng(seed)
    n = episodes * steps
    patient, day = np.repeat(np.arange(episodes), steps), np.tile(np.arange(steps), episodes)
    return {
        "patient": patient,
        "day": day,
        "ward": rng.choice(["ICU", "general", "surgery"], n),
        "temperature": rng.normal(38, 1, n),
        "smoker": rng.random(n) < 0.5,
        "drug": rng.choice(["none", "A", "B"], n),
        "z": rng.normal(size=n),
        "sex": np.array(["f", "m"])[np.arange(episodes) % 2][patient],
        "died": (day == steps - 1) & (patient % 2 == 0),
        "reward": rng.normal(size=n),
    }


def test_text_becomes_indicators_of_all_levels_but_the_first():
    columns = table()
    log = read_logs(columns, state="temperature,ward", **ROLES)
    assert log.roles.state == ("temperature", "ward[general]", "ward[surgery]")
    assert log.roles.action == ("drug[B]", "drug[none]")
    batch = log.to_batch()
    kept = columns["day"] < 7
    assert np.array_equal(batch.x[:, 1], (columns["ward"] == "general")[kept])
    assert np.array_equal(batch.a[:, 1], (columns["drug"] == "none")[kept])
    following = np.roll(columns["ward"], -1)[kept]
    assert np.array_equal(batch.y[:, 2], following == "surgery")
    assert "ward: 3 levels, reference 'ICU'" in log.roles.lines()


@pytest.mark.parametrize("kind", ["pandas", "dictionary", "parquet", "csv", "unordered"])
def test_categories_are_the_same_from_every_source(tmp_path, kind):
    columns = table()
    frame = pd.DataFrame(columns)
    expected = read_logs(columns, state="temperature,ward", **ROLES).to_batch()
    source = frame
    if kind == "dictionary":
        source = frame.astype({"ward": "category", "drug": "category"})
    elif kind == "csv":
        source = tmp_path / "log.csv"
        frame.to_csv(source, index=False)
    elif kind in ("parquet", "unordered"):
        source = tmp_path / "log.parquet"
        mixed = frame.sample(frac=1.0, random_state=0) if kind == "unordered" else frame
        mixed = pa.Table.from_pandas(mixed, preserve_index=False)
        pq.write_table(mixed, source, row_group_size=7)
    batch = read_logs(source, state="temperature,ward", **ROLES).to_batch()
    for name in "xazy":
        assert np.allclose(getattr(batch, name), getattr(expected, name))


def test_numbers_are_categories_when_asked():
    columns = table() | {"code": np.arange(48) % 3 + 1}
    log = read_logs(columns, state="temperature", context="code", categorical="code", **ROLES)
    assert log.roles.state == ("temperature", "code[2]", "code[3]")


def test_a_boolean_is_one_column_and_its_words_are_understood():
    log = read_logs(table(), state="temperature,smoker", **ROLES)
    assert log.roles.state == ("temperature", "smoker")
    for word, number in (("yes", 1), ("true", 1), ("0", 0), (False, 0)):
        rows = {"temperature": [38], "smoker": [word]}
        encoded = encode_rows(rows, log.roles.state, log.roles.categories, "here")
        assert encoded.tolist() == [[38, number]]


def test_rows_are_encoded_and_decoded_by_level_names():
    log = read_logs(table(), state="temperature,ward", **ROLES)
    names, categories = log.roles.state, log.roles.categories
    rows = {"ward": ["surgery", "ICU"], "temperature": [37.5, 39]}
    x = encode_rows(rows, names, categories, "here")
    assert x.tolist() == [[37.5, 0, 1], [39, 0, 0]]
    assert decode_rows(x, names, categories) == {
        "temperature": [37.5, 39.0],
        "ward": ["surgery", "ICU"],
    }


def test_a_fact_that_never_changes_is_carried_and_not_predicted():
    log = read_logs(table(), state="sex,temperature", **ROLES)
    assert log.roles.state == ("temperature", "sex[m]")
    assert log.roles.outputs == ("next_temperature",)
    assert log.roles.carried == (("sex[m]", "sex[m]"),)


def test_a_fact_with_missing_cells_is_a_fact():
    columns = table() | {"age": np.repeat([50.0, 60, 70, 80, 30, 20], 8)}
    columns["age"][[3, 8, 20]] = np.nan
    columns["sex"] = [None if i in (0, 9) else sex for i, sex in enumerate(columns["sex"])]
    log = read_logs(columns, state="temperature,age,sex", drop_missing=True, **ROLES)
    assert dict(log.roles.carried).keys() == {"age", "sex[m]"}


@pytest.mark.parametrize("kind", ["table", "parquet"])
def test_a_column_that_changes_late_in_the_log_is_predicted(tmp_path, kind):
    columns = table(episodes=9000)
    columns["sex"] = columns["sex"].copy()
    columns["sex"][-3:] = ["f", "f", "m"]
    source = pa.table(columns)
    if kind == "parquet":
        pq.write_table(source, tmp_path / "log.parquet")
        source = tmp_path / "log.parquet"
    log = read_logs(source, state="temperature,sex,smoker", **ROLES)
    assert log.roles.carried == ()
    assert "next_sex[m]" in log.roles.outputs


def test_a_fact_of_an_earlier_log_that_changes_in_another_is_refused():
    first = read_logs(table(), state="temperature,sex", **ROLES)
    moved = table()
    moved["sex"] = moved["sex"].copy()
    moved["sex"][20] = "m"
    with pytest.raises(DataError, match=r"'sex\[m\]' looked constant .* \(patient 2 and day 4\)"):
        list(open_like(moved, first.roles).batches(size=7))


def test_context_that_changes_is_drawn_anew():
    log = read_logs(table(), state="temperature", context="ward", **ROLES)
    assert log.roles.outputs == ("next_temperature",)
    assert set(dict(log.roles.carried).values()) == {""}


def test_the_row_that_ends_an_episode_is_kept_and_stands_still():
    columns = table()
    roles = ROLES | {"reward": "reward", "terminal": "died"}
    log = read_logs(columns, state="temperature", **roles)
    assert log.roles.outputs == ("next_temperature", "died", "reward")
    walk = log.batches(size=5)
    batches = list(walk)
    y = np.concatenate([batch.y for batch in batches])
    x = np.concatenate([batch.x for batch in batches])
    ended = y[:, 1] == 1
    assert (walk.counts.ended, ended.sum(), walk.counts.without_next) == (3, 3, 3)
    assert np.array_equal(y[ended, 0], x[ended, 0])
    assert np.array_equal(np.sort(y[ended, 2]), np.sort(columns["reward"][columns["died"]]))


def test_an_end_needs_no_next_state():
    columns = table()
    following = np.roll(columns["temperature"], -1)
    following[columns["day"] == 7] = np.nan
    columns["later"] = following
    roles = ROLES | {"terminal": "died", "where": "day < 7 or died"}
    log = read_logs(columns, state="temperature", next_state="later", **roles)
    batch = log.to_batch()
    ended = batch.y[:, 1] == 1
    assert ended.sum() == 3
    assert np.array_equal(batch.y[ended, 0], batch.x[ended, 0])


def test_another_log_is_read_with_the_same_levels():
    first = read_logs(table(), state="temperature,ward,sex", terminal="died", **ROLES)
    few = {name: values[:8] for name, values in table().items()}
    again = open_like(few, first.roles)
    assert again.roles == first.roles
    strange = few | {"ward": np.array(["ICU", "morgue"] * 4)}
    with pytest.raises(DataError, match="'ward' of the table holds 'morgue', which is none of"):
        open_like(strange, first.roles).to_batch()


def test_missing_categories_are_dropped_or_refused():
    columns = table()
    columns["ward"] = [None, *columns["ward"][1:]]
    with pytest.raises(DataError, match=r"1 missing.*'ward', row 0"):
        read_logs(columns, state="temperature,ward", **ROLES).to_batch()
    log = read_logs(columns, state="temperature,ward", drop_missing=True, **ROLES)
    assert len(log.to_batch()) == 6 * 7 - 1


BAD = {
    "one level": ({"ward": ["ICU"] * 48}, "'ward' of the table has one level, 'ICU'"),
    "a level per row": ({"ward": [f"w{i}" for i in range(48)]}, "has a level per row, such as"),
    "a slip": ({"ward": ["1.5"] * 47 + ["x"]}, "holds text: 'x' in data row 47 .from 0."),
    "a date": ({"ward": [np.datetime64("2024-01-01")] * 48}, "holds .*; expected numbers"),
    "words for the end": ({"died": ["home"] * 48}, r"'died\[home\]' says .* ended, and a row"),
    "numbers for the end": ({"died": np.full(48, 2)}, "holds 2; expected true and false"),
    "a row after the end": ({"died": np.arange(48) == 3}, "a row follows it .patient 0 and day 4"),
    "a reward in words": ({"reward": ["good", "bad"] * 24}, "'good' in data row 0 .* numbers"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_category_or_no_end_is_refused(case):
    changed, sentence = BAD[case]
    roles = ROLES | {"reward": "reward", "terminal": "died"}
    with pytest.raises((ColumnError, DataError), match=sentence):
        read_logs(table() | changed, state="temperature,ward", **roles).to_batch()


def one_decision(**changed: Any) -> dict[str, Any]:
    """Return a cross-section with some columns changed."""
    rng = np.random.default_rng(0)
    x, z, u, e = rng.normal(size=(4, 400))
    a = (z + u > 0).astype(float)
    return {"x": x, "a": a, "z": z, "y": x - a + u + e} | changed


ONE_DECISION = {"state": "x", "action": "a", "instrument": "z", "reward": "y"}


@pytest.mark.parametrize(
    ("column", "write", "said"),
    [
        ("x", lambda v: f"{v:.3f}".replace(".", ","), "with a decimal comma; expected numbers"),
        ("x", lambda v: f"${1000 * v:,.0f}", r"with the sign '\$'; expected numbers"),
        ("x", lambda v: f"{abs(5000 * v) + 2000:,.1f}", "with commas between thousands"),
        ("y", lambda v: f"{v:.2f} EUR", "with the sign 'EUR'; expected numbers"),
        ("x", lambda v: f"{v:.2f} mg", "with the sign 'mg'; expected numbers"),
        ("x", lambda v: f"{abs(v):.2f}mg/kg", "with the sign 'mg/kg'; expected numbers"),
        ("x", lambda v: f"\u2212{abs(v):.2f}", "with a typographic minus sign"),
        ("x", lambda v: f"1\u202f{100 + abs(v):.2f}", "with spaces between its digits"),
    ],
)
def test_numbers_in_other_words_are_shown_with_their_row(
    column: str, write: Callable[[float], str], said: str
) -> None:
    table = one_decision()
    table[column] = [write(value) for value in table[column]]
    with pytest.raises(ColumnError, match=said) as refused:
        ivvi.read_logs(table, **ONE_DECISION)
    assert f"{table[column][0]!r} in data row 0" in str(refused.value)


def test_a_level_beside_empty_cells_is_told_from_a_constant() -> None:
    treated = ["treated" if i % 3 else None for i in range(400)]
    words = r"is 'treated' in 266 rows and empty in 134; an empty cell is a missing value"
    with pytest.raises(ColumnError, match=words):
        ivvi.read_logs(one_decision(a=treated), **ONE_DECISION)


def test_levels_that_differ_only_in_case_are_named() -> None:
    levels = np.array(["yes", "Yes", "no"])
    place = np.where(one_decision()["a"] > 0, np.arange(400) % 2, 2)
    words = "a has the levels 'Yes' and 'yes', which differ only in case"
    with pytest.raises(IdentificationError, match=words):
        ivvi.fit(ivvi.read_logs(one_decision(a=levels[place]), **ONE_DECISION))
    ward = np.array(["A", "a", "B"])[np.arange(400) % 3]
    asked = ONE_DECISION | {"state": "x,ward"}
    with pytest.warns(IvviWarning, match="ward has the levels 'A' and 'a'"):
        ivvi.fit(ivvi.read_logs(one_decision(ward=ward), **asked))


def test_the_path_of_a_text_instrument_is_called_by_its_column() -> None:
    rng = np.random.default_rng(1)
    doctor = rng.integers(0, 12, 240)
    z, u = rng.normal(size=12), rng.normal(size=(240, 6))
    a, x = z[doctor][:, None] + u, np.zeros((240, 7))
    for t in range(6):
        x[:, t + 1] = 0.5 * x[:, t] - 0.4 * a[:, t] + u[:, t] + rng.normal(size=240)
    episode, step = (one.ravel() for one in np.mgrid[:240, :6])
    names = np.array([f"Dr {i:02}" for i in doctor])
    table = {"episode": episode, "step": step, "x0": x[:, :-1].ravel(), "a0": a.ravel()}
    log = ivvi.read_logs(table | {"doctor": np.repeat(names, 6)}, instrument="doctor")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IvviWarning)
        fit = ivvi.fit(log)
        assert fit.errors.clusters == ("episode", "path of doctor")
        named = ivvi.fit(log, se=ivvi.StandardErrors(cluster="path of doctor"))
    assert "Dr 01" not in fit.errors.note
    assert named.errors.clusters == ("path of doctor",)


@pytest.mark.parametrize("word", ["-", "?", ".", "None"])
def test_a_level_that_may_mean_missing_is_named(word: str) -> None:
    ward = np.array([word, "f", "m"])[np.arange(400) % 3]
    asked = ONE_DECISION | {"state": "x,ward"}
    with pytest.warns(IvviWarning, match=re.escape(f"ward has the level {word!r}")):
        ivvi.fit(ivvi.read_logs(one_decision(ward=ward), **asked))
    log = ivvi.read_logs(one_decision(ward=ward), **asked, missing=word, drop_missing=True)
    assert log.roles.state == ("x", "ward[m]")


@pytest.mark.parametrize("levels", [("-", "+", "++"), ("None", "Mild", "Severe"), ("A", "B", "C")])
def test_levels_that_mean_themselves_raise_no_doubt(levels: tuple[str, ...]) -> None:
    ward = np.array(levels)[np.arange(400) % 3]
    fit = ivvi.fit(ivvi.read_logs(one_decision(ward=ward), **(ONE_DECISION | {"state": "x,ward"})))
    assert not [text for text in fit.to_json()["warnings"] if "has the level" in text]


def test_the_one_word_among_numbers_may_mean_missing() -> None:
    ward = np.where(np.arange(400) % 9, (np.arange(400) % 7).astype(str), "-")
    with pytest.raises(ColumnError, match=r"holds text: '-' in data row 0 .* \(--missing - if it"):
        ivvi.read_logs(one_decision(ward=ward), **(ONE_DECISION | {"state": "x,ward"}))
