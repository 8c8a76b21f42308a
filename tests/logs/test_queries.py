"""Columns whose names differ only in case, which DuckDB takes for one."""

import numpy as np
import pandas as pd
import pytest

from ivvi import read_logs

ROLES = {"action": "a", "instrument": "z", "episode": "id", "step": "t"}
ASKED = {
    "plain": {},
    "where": {"where": "x > -1"},
    "where the twin": {"where": "{} > -1"},
    "lags": {"lags": 1},
    "seen after": {"seen": "after"},
    "categorical": {"categorical": "w"},
    "leave-one-out": {"instrument": "loo:doctor"},
}


def twins(other, *, ordered=True):
    """A log whose state x has a second column beside it."""
    rng = np.random.default_rng(0)
    n = 60
    frame = pd.DataFrame({"id": [f"p{i // 6:02}" for i in range(n)], "t": np.arange(n) % 6})
    frame[other] = rng.normal(size=n)
    for name in "xaz":
        frame[name] = rng.normal(size=n)
    frame["w"], frame["doctor"] = np.arange(n) % 3, [f"d{i // 6 % 4}" for i in range(n)]
    return frame if ordered else frame.sample(frac=1.0, random_state=1)


def written(frame, path, kind):
    if kind == "frame":
        return frame
    path = path / f"log.{kind}"
    frame.to_parquet(path) if kind == "parquet" else frame.to_csv(path, index=False)
    return path


def rows_of(log):
    batch = log.in_order().to_batch()
    return np.hstack([batch.x, batch.a, batch.z, batch.y])


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("ordered", [True, False], ids=["sorted", "unsorted"])
@pytest.mark.parametrize("kind", ["csv", "parquet", "frame"])
def test_a_column_that_differs_in_case_alone_is_another_column(tmp_path, asked, ordered, kind):
    rows = []
    for other in ("X", "other"):
        settings = {k: v.format(other) if k == "where" else v for k, v in ASKED[asked].items()}
        source = written(twins(other, ordered=ordered), tmp_path, kind)
        log = read_logs(source, **ROLES | {"state": ("x", other, "w")} | settings)
        rows.append(rows_of(log))
    assert np.array_equal(*rows)


@pytest.mark.parametrize("kind", ["csv", "parquet", "frame"])
def test_an_unused_twin_and_a_twin_of_a_made_column_do_no_harm(tmp_path, kind):
    frame = twins("X", ordered=False).assign(Next_X=1.0, A=2.0, T_number=3, x_Lag1=4.0)
    known = rows_of(read_logs(twins("other"), state="x", lags=1, **ROLES))
    log = read_logs(written(frame, tmp_path, kind), state="x", lags=1, **ROLES)
    assert np.array_equal(rows_of(log), known)


@pytest.mark.parametrize("kind", ["csv", "parquet", "frame"])
def test_levels_that_differ_only_in_case_become_two_columns(tmp_path, kind):
    frame = twins("other", ordered=False)
    frame["sex"] = np.array(["f", "F", "m"])[np.arange(len(frame)) // 6 % 3]
    log = read_logs(written(frame, tmp_path, kind), state="x", context="sex", **ROLES)
    assert {"sex[f]", "sex[m]"} <= set(log.roles.state)
    assert len(rows_of(log)) == 50


@pytest.mark.parametrize("other", ['a "quoted" name', "naïve É", "c_78", "", "x]'"])
def test_any_name_survives_the_sorting(tmp_path, other):
    if other == "":
        other = " "
    source = written(twins(other, ordered=False), tmp_path, "parquet")
    log = read_logs(source, state=("x", other), lags=1, **ROLES)
    plain = read_logs(twins("other"), state=("x", "other"), lags=1, **ROLES)
    assert np.array_equal(rows_of(log), rows_of(plain))
    assert log.roles.state[0] == "x"
    assert other in log.roles.state
