"""Steps out of dates, lags, time to the next row, leave-one-out instruments."""

import numpy as np
import pandas as pd
import pytest

from ivvi import InputError, estimate, read_logs
from ivvi.fitting.incremental.saved_moments import open_like

RNG = np.random.default_rng(0)
ROLES = {"state": "x", "action": "a", "instrument": "z", "episode": "id", "step": "date"}


def visits(episodes=5, steps=6, gap="7D"):
    frames = [
        pd.DataFrame({"id": e, "date": pd.date_range("2024-01-01", periods=steps, freq=gap)})
        for e in range(episodes)
    ]
    frame = pd.concat(frames, ignore_index=True)
    n = len(frame)
    frame["x"], frame["z"] = RNG.normal(size=n), RNG.normal(size=n)
    frame["a"] = np.where(RNG.random(n) < 0.5, 1.0, 0.0)
    return frame.assign(doctor=[f"d{i % 4}" for i in range(n)])


@pytest.mark.parametrize("kind", ["dates", "text", "parquet", "csv"])
def test_rows_of_an_episode_are_ordered_by_their_dates(tmp_path, kind):
    frame = visits()
    expected = read_logs(
        frame.assign(step=frame.groupby("id").cumcount()), **ROLES | {"step": "step"}
    ).to_batch()
    source = frame.sample(frac=1.0, random_state=1)
    if kind == "text":
        source = source.assign(date=source["date"].dt.strftime("%Y-%m-%d"))
    elif kind == "parquet":
        source.to_parquet(tmp_path / "log.parquet")
        source = tmp_path / "log.parquet"
    elif kind == "csv":
        source.to_csv(tmp_path / "log.csv", index=False)
        source = tmp_path / "log.csv"
    log = read_logs(source, **ROLES)
    assert log.roles.step == "date_number"
    for name in "xazy":
        assert np.allclose(getattr(log.to_batch(), name), getattr(expected, name))


def test_only_rows_as_far_apart_are_consecutive_when_asked():
    frame = visits().drop(index=[2])
    assert len(read_logs(frame, **ROLES).to_batch()) == 24
    assert len(read_logs(frame, every="7d", **ROLES).to_batch()) == 23
    assert len(read_logs(frame, every="1w", **ROLES).to_batch()) == 23
    tens = frame.assign(date=10 * frame.groupby("id").cumcount())
    assert len(read_logs(tens, every="10", **ROLES).to_batch()) == 24


@pytest.mark.parametrize(("every", "unit"), [("1mo", "MS"), ("3mo", "QS"), ("1y", "YS")])
def test_months_and_years_are_those_of_the_calendar(every, unit):
    frame = visits(episodes=2, steps=14)
    frame["date"] = [*pd.date_range("2023-01-01", periods=14, freq=unit)] * 2
    assert len(read_logs(frame, every=every, **ROLES).to_batch()) == 26
    without_one = frame.drop(index=[5])
    assert len(read_logs(without_one, every=every, **ROLES).to_batch()) == 24


def test_uneven_spacing_is_told_unless_it_is_used():
    frame = visits()
    frame["date"] += pd.to_timedelta(RNG.integers(0, 5, len(frame)), "D")
    assert "--context dt" in read_logs(frame, **ROLES).notes[0]
    log = read_logs(frame, context="dt", **ROLES)
    assert log.roles.state == ("x", "dt")
    assert not log.notes
    days = frame.groupby("id")["date"].diff().dt.days.dropna()
    assert np.allclose(log.to_batch().x[:, 1], days)
    assert not read_logs(visits(), **ROLES).notes


def test_a_few_longer_gaps_are_told_with_the_way_to_make_gaps_of_them():
    frame = visits(episodes=10, steps=20).drop(index=[30, 77, 78, 150])
    (note,) = read_logs(frame, **ROLES).notes
    assert "are 7 days apart in date, except for 1." in note
    assert "--every 7d" in note
    assert not read_logs(frame, every="7d", **ROLES).notes


@pytest.mark.parametrize("kind", ["dates", "numbers", "parquet"])
def test_states_seen_after_the_action_are_what_followed_it(tmp_path, kind):
    frame = visits().assign(ward=lambda f: np.where(f["id"] % 2, "A", "B"))
    if kind == "numbers":
        frame["date"] = frame.groupby("id").cumcount()
    source = frame.sample(frac=1.0, random_state=1)
    if kind == "parquet":
        source.to_parquet(tmp_path / "log.parquet")
        source = tmp_path / "log.parquet"
    log = read_logs(source, **ROLES | {"state": "x,ward"}, seen="after")
    assert (log.roles.state, log.roles.outputs) == (("x", "ward[B]"), ("next_x",))
    later = frame.groupby("id").cumcount() > 0
    batch = log.to_batch()
    assert np.allclose(batch.x[:, 0], frame.groupby("id")["x"].shift()[later])
    assert np.allclose(batch.y[:, 0], frame["x"][later])
    assert np.allclose(batch.a[:, 0], frame["a"][later])
    again = open_like(source, log.roles)
    assert again.roles == log.roles
    assert np.allclose(again.to_batch().y, batch.y)


def test_lags_of_states_seen_after_the_action_go_one_row_further_back():
    frame = visits()
    log = read_logs(frame, lags=1, seen="after", **ROLES)
    assert log.roles.state == ("x", "x_lag1", "a_lag1")
    kept, by = frame.groupby("id").cumcount() > 1, frame.groupby("id")
    earlier = np.column_stack([by["x"].shift(1), by["x"].shift(2), by["a"].shift(1)])
    assert np.allclose(log.to_batch().x, earlier[kept])


def test_lags_are_earlier_states_and_actions_and_are_carried():
    frame = visits()
    log = read_logs(frame, lags=2, **ROLES)
    assert log.roles.state == ("x", "x_lag1", "x_lag2", "a_lag1", "a_lag2")
    assert dict(log.roles.carried) == {
        "x_lag1": "x",
        "x_lag2": "x_lag1",
        "a_lag1": "a",
        "a_lag2": "a_lag1",
    }
    batch = log.to_batch()
    by = frame.groupby("id")
    rows = by.cumcount().between(2, 4)
    expected = [frame["x"], by["x"].shift(1), by["x"].shift(2), by["a"].shift(1), by["a"].shift(2)]
    assert np.allclose(batch.x, np.column_stack(expected)[rows])
    assert np.allclose(batch.y[:, 0], by["x"].shift(-1)[rows])
    assert open_like(frame, log.roles).roles == log.roles


def test_lags_of_categories_have_their_levels_and_facts_have_none():
    frame = visits().assign(ward=lambda f: RNG.choice(["A", "B"], len(f)))
    frame["sex"] = np.where(frame["id"] % 2, "f", "m")
    log = read_logs(frame, lags=1, **ROLES | {"state": "x,ward,sex"})
    assert log.roles.state == ("x", "ward[B]", "sex[m]", "x_lag1", "ward_lag1[B]", "a_lag1")


def test_a_leave_one_out_instrument_is_the_mean_over_other_episodes():
    frame = visits()
    log = read_logs(frame, **ROLES | {"instrument": "loo:doctor"})
    assert log.roles.instrument == ("a_by_doctor",)
    assert log.roles.groups == ("doctor",)
    expected = []
    for row in frame.itertuples():
        others = frame[(frame["doctor"] == row.doctor) & (frame["id"] != row.id)]
        expected.append(others["a"].mean())
    rows = frame.groupby("id").cumcount() < 5
    assert np.allclose(log.to_batch().z[:, 0], np.array(expected)[rows])
    assert "means over other episodes" in log.notes[0]
    assert open_like(frame, log.roles).roles == log.roles


def test_a_leave_one_out_instrument_has_one_column_for_each_level_of_the_action():
    frame = visits().assign(a=lambda f: RNG.choice(["A", "B", "C"], len(f)))
    log = read_logs(frame, **ROLES | {"instrument": "loo:doctor"})
    assert log.roles.instrument == ("a[B]_by_doctor", "a[C]_by_doctor")


BAD = {
    "a date that does not parse": (
        lambda f: f.assign(date=["soon", *f["date"].astype(str)[1:]]),
        {},
        "'soon' in data row 0 .from 0., which is no date",
    ),
    "lags longer than any episode": (
        lambda f: f,
        {"lags": 5},
        "5 lags were requested, but the longest episode of the table has 6 rows",
    ),
    "a spacing without a meaning": (lambda f: f, {"every": "soon"}, "every is 'soon'; expected"),
    "a date twice": (lambda f: f.assign(date=f["date"].iloc[0]), {}, "episode . has step .* twice"),
    "states seen at no time": (lambda f: f, {"seen": "later"}, "seen is 'later'"),
    "states seen after, and next states": (
        lambda f: f.assign(after=f["x"]),
        {"seen": "after", "next_state": "after"},
        "remove the next-state columns",
    ),
    "a doctor who is not there": (
        lambda f: f,
        {"instrument": "loo:nurse"},
        "instrument column 'nurse' is not in the log",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_ordered_or_lagged_is_refused(case):
    change, options, sentence = BAD[case]
    with pytest.raises(InputError, match=sentence):
        read_logs(change(visits()), **ROLES | options).to_batch()


# padding, and what is counted

PADDED = {
    "e": [1, 1, 1, 1, 2, 2, 2, 3],
    "s": [0, 1, 2, 4, 0, 1, 2, 0],
    "x": [1.0, 2, 3, 4, 5, 6, 7, 8],
    "a": [0, 1, 0, 1, 0, 1, 1, 0],
    "z": [0.0, 1, 4, 9, 16, 25, 36, 49],
}
LAGGED = {"state": "x", "action": "a", "instrument": "z", "episode": "e", "step": "s"}


@pytest.mark.parametrize(
    ("padding", "seen", "states", "early"),
    [
        ("drop", "before", [[2, 1, 0], [6, 5, 0]], 4),
        ("drop", "after", [[2, 1, 1], [6, 5, 1]], 6),
        ("first", "before", [[1, 1, 0], [2, 1, 0], [5, 5, 0], [6, 5, 0]], 1),
        ("first", "after", [[1, 1, 0], [2, 1, 1], [5, 5, 0], [6, 5, 1]], 4),
    ],
)
def test_lags_of_first_rows_are_dropped_or_padded(
    padding: str, seen: str, states: list[list[float]], early: int
) -> None:
    log = read_logs(PADDED, lags=1, lag_padding=padding, seen=seen, **LAGGED)
    assert log.roles.state == ("x", "x_lag1", "a_lag1")
    walk = log.batches()
    assert np.concatenate([batch.x for batch in walk]).tolist() == states
    assert walk.counts.early == early  # the row after a gap is never padded
    assert walk.counts.early + walk.counts.rows == len(PADDED["e"])


def test_a_padded_text_action_is_its_first_level_and_is_opened_again() -> None:
    table = PADDED | {"a": ["no" if a == 0 else "yes" for a in PADDED["a"]]}
    log = read_logs(table, lags=1, lag_padding="first", **LAGGED)
    batch = log.to_batch()
    assert batch.x.tolist() == [[1, 1, 0], [2, 1, 0], [5, 5, 0], [6, 5, 0]]
    again = open_like(table, log.roles)
    assert again.to_batch().x.tolist() == batch.x.tolist()


def test_an_unknown_padding_is_refused() -> None:
    with pytest.raises(InputError, match=r"expected 'drop'.* or 'first'"):
        read_logs(PADDED, lags=1, lag_padding="zero", **LAGGED)


@pytest.mark.filterwarnings("ignore::ivvi.errors.IvviWarning")
def test_rows_that_windows_remove_are_told_by_reason() -> None:
    n = 60
    rng = np.random.default_rng(0)
    table = {
        "patient": np.repeat(np.arange(n // 3), 3),
        "day": np.tile(np.arange(3), n // 3),
        "doctor": ["one"] * 3 + ["many", "more", "most"] * (n // 3 - 1),
        "x": rng.normal(size=n),
        "a": rng.normal(size=n),
        "r": rng.normal(size=n),
    }
    table["doctor"][:3] = ["alone"] * 3
    names = {"state": "x", "action": "a", "instrument": "loo:doctor", "reward": "r"}
    log = read_logs(table, episode="patient", step="day", **names)
    fitted = estimate(log)
    assert fitted.dropped["without another episode of their group"] == 3
    assert "3 without another episode of their group" in fitted.summary()
    lagged = read_logs(table, episode="patient", step="day", lags=1, **names)
    counts = lagged.removed
    assert (counts.early, counts.alone) == (20, 2)


def test_a_missing_category_counts_once_and_is_found_in_the_user_s_file() -> None:
    table = {
        "who": ["A", "A", "B", "B"],
        "date": ["2024-01-02", "2024-01-01", "2024-01-02", "2024-01-01"],
        "vital": ["low", "high", None, "mid"],
        "a": [0.0, 1.0, 0.5, 0.2],
        "z": [1.0, 2.0, 3.0, 5.0],
    }
    names = {"state": "vital", "action": "a", "instrument": "z", "episode": "who"}
    log = read_logs(table, step="date", **names)
    with pytest.raises(InputError, match=r"has 1 missing .* in column 'vital', who B, date 2024"):
        log.to_batch()


# dates as people write them


def written(form: str) -> pd.DataFrame:
    """Return visits whose dates are text of some format."""
    frame = visits()
    return frame.assign(date=frame["date"].dt.strftime(form))


@pytest.mark.parametrize("form", ["%d.%m.%Y", "%m/%d/%Y", "%d %b %Y", "%Y%m%d"])
def test_dates_may_be_written_in_any_format(form: str) -> None:
    frame = written(form)
    if form == "%Y%m%d":
        frame = frame.assign(date=frame["date"].astype(int))
    log = read_logs(frame.sample(frac=1, random_state=1), date_format=form, **ROLES)
    assert len(log.to_batch()) == 25
    assert open_like(frame, log.roles).roles == log.roles


def test_several_formats_are_tried_in_turn() -> None:
    frame, other = written("%d.%m.%Y"), written("%Y-%m-%d")
    frame.loc[frame["id"] > 2, "date"] = other["date"]
    log = read_logs(frame, date_format="%d.%m.%Y;%Y-%m-%d", **ROLES)
    assert len(log.to_batch()) == 25


def test_the_format_that_fits_all_dates_is_suggested() -> None:
    with pytest.raises(InputError, match=r"--date-format '%d/%m/%Y' fits all"):
        read_logs(written("%d/%m/%Y"), **ROLES)


@pytest.mark.parametrize(
    ("form", "sentence"),
    [("%d.%m.%Y", r"'01/01/2024' in data row 0 .* expected dates as %d"), ("%Q", "cannot be read")],
)
def test_a_format_that_does_not_fit_is_refused(form: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        read_logs(written("%d/%m/%Y"), date_format=form, **ROLES)


def test_rows_without_a_doctor_have_no_instrument_and_are_no_doctor_of_their_own():
    frame = visits(episodes=40)
    frame.loc[frame.index % 7 == 3, "doctor"] = None
    words = ROLES | {"instrument": "loo:doctor"}
    with pytest.raises(InputError, match="missing"):
        read_logs(frame, **words).to_batch()
    log = read_logs(frame, **words, drop_missing=True)
    z = log.to_batch().z[:, 0]
    known = frame.dropna()
    others = [
        known.query("doctor == @d and id != @i")["a"].mean()
        for d, i in zip(known["doctor"], known["id"], strict=True)
    ]
    last = known.groupby("id")["date"].transform("max") == known["date"]
    assert set(np.round(z, 9)) <= set(np.round(others, 9))
    assert len(z) >= (~last).sum()
