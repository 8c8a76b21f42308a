"""The mean of an action over a group, the row itself included, is no instrument."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest

import ivvi
from ivvi.diagnostics.misspecification.own_action_in_instrument import own_means


def cases(seed, kind, judges=60, each=25, binary=True):
    rng = np.random.default_rng(seed)
    judge = np.repeat(np.arange(judges), each)
    u, lenient = rng.normal(size=len(judge)), 0.35 * rng.normal(size=judges)[judge]
    a = lenient + u + 0.5 * rng.normal(size=len(judge))
    a = (a > 0) * 1.0 if binary else a
    data = pd.DataFrame({"y": a + 2 * u, "a": a, "judge": [f"j{k}" for k in judge]})
    mean = data.groupby("judge").a.transform("mean")
    others = (each * mean - a) / (each - 1)
    before = np.round(20 * (mean + 0.1 * rng.normal(size=judges)[judge])) / 20
    data["z"] = {"own": mean, "others": others, "before": before, "unrelated": lenient}[kind]
    return data.sample(frac=1, random_state=seed)


def told(data):
    log = ivvi.read_logs(data, formula="y ~ 1 | a ~ z")
    return own_means(log.head(episodes=True), log.roles)


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_a_mean_that_holds_the_row_itself_is_told_with_the_column_to_leave_out(binary, seed):
    data = cases(seed, "own", binary=binary)
    assert "instrument='loo:judge'" in told(data)
    assert "loo:COLUMN" in told(data.drop(columns="judge"))


@pytest.mark.parametrize("kind", ["others", "before", "unrelated"])
@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_other_means_are_not(kind, binary, seed):
    assert told(cases(seed, kind, binary=binary)) == ""


def test_means_of_large_groups_that_differ_much_do_no_harm_and_are_not_told():
    data = cases(0, "own", judges=12, each=600, binary=False)
    data["a"] += 10 * data.judge.str[1:].astype(float)
    data["z"] = data.groupby("judge").a.transform("mean")
    assert told(data) == ""


@pytest.mark.parametrize("binary", [True, False])
def test_a_mean_of_the_other_rows_is_not_told_as_a_place_either(binary):
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        fit = ivvi.fit(cases(1, "others", binary=binary), formula="y ~ 1 | a ~ z")
    texts = [*(str(one.message) for one in record), *fit.notes]
    assert not [text for text in texts if "once effects of judge" in text]
