"""A filter that keeps more rows where the instrument is high selects on what the action moved."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import ivvi
from ivvi.diagnostics.misspecification.filtered_rows import filtered_rows


def people(seed, n=20_000):
    rng = np.random.default_rng(seed)
    z, u = rng.integers(0, 2, n), rng.normal(size=n)
    a = (0.9 * z + u + 0.5 * rng.normal(size=n) > 0.5) * 1.0
    employed = 0.8 * a + u + 0.5 * rng.normal(size=n) > 0
    return pd.DataFrame(
        {
            "wage": 0.5 * a + u + 0.5 * rng.normal(size=n),
            "a": a,
            "z": z,
            "employed": employed * 1,
            "status": np.where(employed, "job", "none"),
            "age": rng.integers(18, 80, n),
            "site": np.array(["p", "q"])[rng.integers(0, 2, n)],
            "year": 2000 + z,  # the instrument came in one year
        }
    )


def told(data, where, formula="wage ~ 1 | a ~ z"):
    return filtered_rows(ivvi.read_logs(data, formula=formula, where=where))


@pytest.mark.parametrize(
    "where", ["employed == 1", "status == 'job'", "employed == 1 and age > 30"]
)
@pytest.mark.parametrize("seed", range(3))
def test_a_filter_on_what_the_action_moved_is_told(where, seed):
    data = people(seed)
    assert "rows pass the filter (where=, --where) more often where z is high" in told(data, where)
    assert "less often where z is high" in told(data, where.replace("==", "!="))


def test_sorted_tables_are_looked_at_as_a_whole():
    data = people(1, 120_000).sort_values("wage")
    assert "more often where z is high" in told(data, "employed == 1")


@pytest.mark.parametrize(
    "where", ["age >= 30", "site == 'p'", "year >= 2001", "z >= 0 and age < 60"]
)
@pytest.mark.parametrize("seed", range(5))
def test_a_filter_on_what_was_settled_before_is_not(where, seed):
    assert told(people(seed), where) == ""


def test_a_fit_says_it():
    log = ivvi.read_logs(people(0), formula="wage ~ 1 | a ~ z", where="employed == 1")
    with pytest.warns(UserWarning, match="rows pass the filter"):
        ivvi.fit(log)
