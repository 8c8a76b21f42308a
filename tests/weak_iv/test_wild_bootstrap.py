"""Few clusters: the wild bootstrap from moments, by its definition, and what Stata prints."""

import json
from pathlib import Path

import numpy as np
import pytest

import ivvi
from helpers import OPTIONS, assert_refused, make_rows, run, write_table
from ivvi import InputError, StandardErrors
from ivvi.errors import IvviWarning
from ivvi.weak_iv.wild_bootstrap import WildBootstrap
from uneven_clusters import regression, uneven

DATA = Path(__file__).parents[3] / "shared" / "data" / "iv"
pytestmark = pytest.mark.filterwarnings(
    "ignore:[0-9]+ clusters by 'ward' count as", "ignore:weak instruments"
)


def brute_wild(columns, theta, weights):
    """The bootstrapped t statistics, row by row: an independent way."""
    _, _, X, Z = regression(columns)
    g, y, a = columns["ward"], columns["next_x0"], columns["a0"]
    P = Z @ np.linalg.pinv(Z)
    exogenous = X[:, :2]

    def t(y, a, value):
        X = np.column_stack([exogenous, a])
        hat = P @ X
        w = np.linalg.lstsq(hat, y)[0]
        bread = np.linalg.inv(hat.T @ hat)
        scores = hat * (y - X @ w)[:, None]
        sums = np.array([scores[g == c].sum(axis=0) for c in range(g.max() + 1)])
        return (w[2] - value) / np.sqrt((bread @ sums.T @ sums @ bread)[2, 2])

    u = y - theta * a
    g_hat = np.linalg.lstsq(exogenous, u)[0]
    u = u - exogenous @ g_hat
    first = np.linalg.lstsq(np.column_stack([Z, u]), a)[0][:-1]
    v = a - Z @ first
    drawn = []
    for row in weights:
        new = Z @ first + row[g] * v
        drawn.append(t(theta * new + exogenous @ g_hat + row[g] * u, new, theta))
    return t(y, a, theta), np.array(drawn)


@pytest.mark.parametrize("d_z", [1, 3])
def test_the_wild_bootstrap_from_moments_is_that_of_the_rows(d_z):
    columns = uneven(4, d_z=d_z)
    log = ivvi.read_logs(columns)
    fit = ivvi.estimate(log, se=StandardErrors("clustered", "ward"), episodes=True)
    wild = WildBootstrap(fit.moments, "next_x0", draws=200, seed=3)
    c = np.array([0.0, 0.0, 1.0])
    for theta in (0.0, -0.4):
        t, drawn = brute_wild(columns, theta, wild.weights)
        np.testing.assert_allclose(wild.restricted(c, theta)(wild.weights), drawn, rtol=1e-6)
        assert wild.test(c, theta).t == pytest.approx(t, rel=1e-8)
    test = wild.test(c)
    low, high = test.interval
    assert low < test.estimate < high
    assert wild.p_value(c, low - 0.05) < 0.05 < wild.p_value(c, low + 0.05)
    assert wild.p_value(c, high + 0.05) < 0.05 < wild.p_value(c, high - 0.05)


def test_the_command_gives_wild_errors_for_two_stage_least_squares_alone(tmp_path):
    source = write_table(uneven(), tmp_path / "log.parquet")
    options = ("--cluster", "ward", "--se", "wild", "--draws", 999)
    done = run("fit", source, *options, "--out", tmp_path / "m", "--json", tmp_path / "f.json")
    assert done.code == 0, done
    assert "wild bootstrap: t = " in done.out
    facts = json.loads((tmp_path / "f.json").read_text())["wild"]["next_x0"]["a0"]
    assert facts["clusters"] == 10
    assert facts["interval"][0] < facts["estimate"] < facts["interval"][1]
    with pytest.raises(InputError, match="only identified two-stage least squares"):
        ivvi.estimate(ivvi.read_logs(source), method="liml", se=StandardErrors("wild", "ward"))


@pytest.mark.skipif(not DATA.is_dir(), reason="the data are not here")
def test_errors_of_nlsw88_are_those_of_stata():
    pandas = pytest.importorskip("pandas")
    names = ["wage", "tenure", "ttl_exp", "collgrad", "union", "industry"]
    frame = pandas.read_stata(DATA / "nlsw88.dta", convert_categoricals=False)[names].dropna()
    log = ivvi.read_logs(
        frame.astype(float),
        state="ttl_exp,collgrad",
        action="tenure",
        instrument="union",
        next_state="wage",
    )
    with pytest.warns(IvviWarning, match="12 clusters by 'industry' count as"):
        fit = ivvi.estimate(log, se=StandardErrors("wild", "industry", draws=99_999), episodes=True)
    test = fit.inference.wild["wage", "tenure"]
    assert test.t == pytest.approx(2.6040, abs=5e-5)
    assert test.p_value == pytest.approx(0.0444, abs=5e-5)  # all 4,096 signs: no chance in it
    # Stata's Anderson-Rubin p is of 999 signs drawn at random
    assert test.ar_p_value == pytest.approx(0.0370, abs=2 * np.sqrt(0.037 * 0.963 / 999))
    # its search for the ends stops as soon as p is within 2 / 4,096 of 5%; here it goes on
    names = fit.moments.design.phi_names
    wild = WildBootstrap(fit.moments, "wage", draws=99_999)
    for published, end in zip((0.1188, 2.21), test.interval, strict=True):
        p_value = wild.p_value(np.eye(len(names))[names.index("tenure")], published)
        assert p_value == pytest.approx(0.05, abs=2 / 4096)
        assert end == pytest.approx(published, rel=0.012)


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        (("--cluster", "four"), "4 clusters by 'four' are too few for the wild bootstrap"),
        (("--cluster", "ward", "--draws", 10**12), "1,000,000,000,000 draws"),
        (("--cluster", "ward", "--draws", 0), "0 draws"),
        (("--cluster", "ward,episode"), "expected at most 1 for wild"),
    ],
)
def test_wild_bootstraps_that_cannot_be_made_are_refused(options, fact, tmp_path):
    rows = make_rows(20, 10)
    rows |= {"four": np.arange(200) % 4, "ward": np.arange(200) % 7}
    source, out = write_table(rows, tmp_path / "log.parquet"), tmp_path / "model"
    done = run("fit", source, *OPTIONS, "--se", "wild", *options, "--out", out)
    assert_refused(done, fact)
    assert not out.exists()
