"""Which standard errors a log gets: the automatic choice, and requests that are refused."""

import numpy as np
import pytest

import ivvi
from helpers import ROLES, dependent_log, dependent_rows, make_rows
from ivvi import InputError, StandardErrors
from ivvi.errors import DataError

pytestmark = pytest.mark.filterwarnings("ignore:weak instruments")


def test_automatic_errors_follow_the_shape_of_the_log():
    data = dependent_rows(10)
    fit = ivvi.estimate(dependent_log(data))
    assert fit.to_json()["se_kind"] == "clustered"
    assert fit.to_json()["clusters"] == {"episode": 60}
    assert "clustered by episode (60)" in fit.summary()
    x, a, z, y = data[:4]
    alone = dependent_log((x, a, z, y, np.arange(len(y)), data[5]))
    assert ivvi.estimate(alone).to_json()["se_kind"] == "robust"
    few = ivvi.estimate(dependent_log((x, a, z, y, np.arange(len(y)) // 600, data[5])))
    assert few.to_json()["se_kind"] == "hac"
    assert few.to_json()["bandwidth"] == 5  # 4 (600 / 100)^(2/9), rounded down
    assert "2 episodes are too few to cluster by, with 4 coefficients" in few.summary()
    assert few.errors.note.endswith("too small if an instrument is drawn once per episode")
    firms = ivvi.estimate(dependent_log(data), se=StandardErrors(cluster="firm"))
    assert firms.to_json()["clusters"] == {"firm": 25}


@pytest.mark.parametrize(
    ("errors", "episodes", "said"),
    [
        (StandardErrors(), 29, "29 clusters by 'episode' count as 2"),
        (StandardErrors("clustered"), 29, "29 clusters by 'episode' count as 2"),
        (StandardErrors("clustered", "step"), 40, "19 clusters by 'step' count as 1"),
        (StandardErrors("clustered", "step, episode"), 40, "19 clusters by 'step' and 40 clusters"),
        (StandardErrors(), 60, ""),
        (StandardErrors("robust"), 29, ""),
    ],
)
def test_few_clusters_are_said(errors, episodes, said):
    fit = ivvi.estimate(ivvi.read_logs(make_rows(episodes, 20), **ROLES), se=errors)
    assert fit.errors.note.startswith(said)
    assert bool(fit.errors.note) == bool(said)
    assert fit.errors.note in str(fit.summary())


@pytest.mark.parametrize(
    ("errors", "said"),
    [
        (StandardErrors("clustered", "constant"), "has one value in all rows"),
        (StandardErrors("wild", "half"), "2 clusters by 'half' are too few for the wild"),
        (StandardErrors("clustered", "frim"), "did you mean 'firm'"),
    ],
)
def test_clusters_that_cannot_be_used_are_refused(errors, said):
    x, a, z, y, episode, firm = dependent_rows(11)
    columns = {"episode": episode, "step": np.arange(len(y)), "firm": firm}
    columns |= {"constant": np.zeros(len(y)), "half": np.arange(len(y)) % 2}
    for letter, part in zip("xazy", (x, a, z, y), strict=True):
        columns |= {f"{letter}{i}": part[:, i].copy() for i in range(part.shape[1])}
    log = ivvi.read_logs(columns, state="x*", action="a*", instrument="z*", next_state="y*")
    with pytest.raises(InputError, match=said):
        ivvi.estimate(log, se=errors)


def test_missing_clusters_are_missing_values():
    x, a, z, y, episode, firm = dependent_rows(12)
    log = dependent_log((x, a, z, y, episode, firm))
    names = [None, *log.table.table["firm"].to_pylist()[1:]]
    at = log.table.table.schema.names.index("firm")
    table = log.table.table.set_column(at, "firm", [names])
    settings = {"state": "x*", "action": "a*", "instrument": "z*", "next_state": "y*"}
    errors = StandardErrors("clustered", "firm")
    with pytest.raises(DataError, match="the first in column 'firm', row 0"):
        ivvi.estimate(ivvi.read_logs(table, **settings), se=errors)
    fit = ivvi.estimate(ivvi.read_logs(table, **settings, drop_missing=True), se=errors)
    assert fit.counts.missing == 1


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"kind": "clusterd"}, "'clusterd'; did you mean 'clustered'"),
        ({"kind": "robust", "cluster": "firm"}, "but the standard errors are robust"),
        ({"cluster": "a,b,c,d"}, "4 cluster columns are given; expected at most 3"),
        ({"kind": "hac", "bandwidth": -1}, "bandwidth is -1"),
        ({"kind": "robust", "bandwidth": 3}, "a bandwidth is given, but the .* are robust"),
        ({"kernel": "flat"}, "unknown kernel 'flat'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, said):
    with pytest.raises(InputError, match=said):
        StandardErrors(**settings)


def test_hac_needs_an_order(log_of, confounded):
    with pytest.raises(DataError, match="rows of an episode in order"):
        ivvi.estimate(log_of(*confounded(0)), se="hac")
    with pytest.raises(DataError, match="no episode column to cluster by"):
        ivvi.estimate(log_of(*confounded(0)), se="clustered")
