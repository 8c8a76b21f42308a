"""Weights of rows: of the kind frequency, the fit to the repeated rows; said in the output."""

import json
import warnings

import numpy as np
import pytest

import ivvi
from helpers import assert_refused, run, write_table
from ivvi import StandardErrors
from ivvi.errors import IvviWarning

ROLES = {"state": "x", "action": "a", "instrument": "z1,z2", "next_state": "y"}
OPTIONS = ("--state", "x", "--action", "a", "--instrument", "z1,z2", "--next-state", "y")


def make_rows(n=400, seed=0):
    rng = np.random.default_rng(seed)
    x, z1, z2, u = rng.normal(size=(4, n))
    a = z1 + 0.5 * z2 + 0.3 * x + u + rng.normal(size=n)
    y = -0.5 * a + x + u * (1 + z1**2)
    count, firm = rng.integers(0, 4, size=n), rng.integers(40, size=n)
    return {"x": x, "a": a, "z1": z1, "z2": z2, "y": y, "count": count, "firm": firm}


ROWS = make_rows()
REPEATED = {name: np.repeat(values, ROWS["count"]) for name, values in ROWS.items()}


@pytest.mark.parametrize(
    "options",
    [
        {"se": "unadjusted"},
        {"se": "robust", "method": "liml"},
        {"se": StandardErrors("clustered", "firm")},
        {"se": StandardErrors("robust", debiased=True), "absorb": "firm"},
        {"se": "robust", "method": "ujive"},
        {"se": "robust", "method": "gmm"},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:.*exact copies:ivvi.errors.IvviWarning")
def test_frequency_weights_are_the_repeated_rows(options):
    weighted = ivvi.read_logs(ROWS, **ROLES, weight="count", weight_kind="frequency")
    weighted_fit = ivvi.fit(weighted, **options)
    expected = ivvi.fit(ivvi.read_logs(REPEATED, **ROLES), **options)
    np.testing.assert_allclose(weighted_fit.W, expected.W, rtol=1e-10)
    np.testing.assert_allclose(weighted_fit.se, expected.se, rtol=1e-10)
    assert weighted_fit.estimate.n == expected.estimate.n == ROWS["count"].sum()
    ours, theirs = (fit.diagnostics.kleibergen_paap for fit in (weighted_fit, expected))
    assert (ours is None) == (theirs is None)
    assert ours is None or ours.f == pytest.approx(theirs.f, rel=1e-8)


def test_the_kind_of_the_weights_is_said_and_kept(tmp_path):
    write_table(ROWS, tmp_path / "log.parquet")
    about = ("fit", tmp_path / "log.parquet", *OPTIONS, "--weight", "count")
    for kind, words in (("probability", "n counts rows"), ("frequency", "stands for that many")):
        options = (
            "--weight-kind",
            kind,
            "--out",
            tmp_path / kind,
            "--json",
            tmp_path / f"{kind}.json",
        )
        done = run(*about, *options)
        assert done.code == 0, done
        assert f"weight count, {kind}: " in done.out
        assert words in done.out
        assert json.loads((tmp_path / f"{kind}.json").read_text())["columns"]["weight_kind"] == kind
        assert ivvi.load_fit(tmp_path / kind).roles.weight_kind == kind
    more = {name: values[:50] for name, values in make_rows(seed=1).items()}
    write_table(more, tmp_path / "more.parquet")
    longer = ivvi.update(tmp_path / "frequency", str(tmp_path / "more.parquet"))
    assert longer.moments.n == ROWS["count"].sum() + more["count"].sum()


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        (("--weight", "x", "--weight-kind", "frequency"), "must not be negative"),
        (("--weight", "half", "--weight-kind", "frequency"), "holds 0.5; frequency weights count"),
        (("--weight", "count", "--weight-kind", "analytic"), "expected probability or frequency"),
        (("--weight-kind", "frequency"), "frequency weights need a weight column"),
    ],
)
def test_weights_that_cannot_be_used_are_refused(options, fact, tmp_path):
    write_table(ROWS | {"half": np.full(400, 0.5)}, tmp_path / "log.parquet")
    roles = [
        o for pair in zip(OPTIONS[::2], OPTIONS[1::2], strict=True) for o in pair if "x" not in pair
    ]
    done = run(
        "fit", tmp_path / "log.parquet", *roles, "--state", "", *options, "--out", tmp_path / "m"
    )
    assert_refused(done, fact)
    assert not (tmp_path / "m").exists()


def test_frequencies_of_rows_that_follow_each_other_are_refused():
    rows = {"episode": np.arange(400) // 10, "step": np.arange(400) % 10, **ROWS}
    columns = {"state": "x", "action": "a", "instrument": "z1"}
    weights = {"weight": "count", "weight_kind": "frequency"}
    with pytest.raises(ivvi.InputError, match="need next-state columns"):
        ivvi.read_logs(rows, **columns, **weights)
    log = ivvi.read_logs(rows, **ROLES, **weights)
    for options in ({"difference": True}, {"checkpoint": ivvi.Checkpoint("none")}):
        with pytest.raises(ivvi.InputError, match="frequency weights do not work"):
            ivvi.fit(log, **options)
    with pytest.raises(ivvi.InputError, match="do not work with frequency weights"):
        ivvi.fit(log, se="hac")
    with pytest.raises(ivvi.InputError, match="does not work with frequency weights"):
        ivvi.check(log)


def test_a_few_huge_weights_leave_few_degrees_of_freedom(tmp_path):
    """G* = (sum g)^2 / sum g^2, g = (w z)^2 for one instrument and z about its mean."""
    rng = np.random.default_rng(2)
    z, u, noise = rng.normal(size=(3, 300))
    a = z + u + noise
    w = np.where(np.arange(300) < 5, 200.0, 1.0)
    rows = {"a": a, "z": z, "y": u - 0.5 * a, "w": w}
    roles = {"action": "a", "instrument": "z", "next_state": "y"}
    with pytest.warns(IvviWarning, match="300 rows with uneven influence count as"):
        fit = ivvi.estimate(ivvi.read_logs(rows, weight="w", **roles))
    g = (w * (z - np.average(z, weights=w))) ** 2
    assert fit.estimate.freedoms[0, 1] == pytest.approx(max(g.sum() ** 2 / (g**2).sum() - 1, 1))
    fit.save(tmp_path / "model")
    again = ivvi.load_fit(tmp_path / "model")
    np.testing.assert_allclose(again.estimate.freedoms, fit.estimate.freedoms)
    even = ivvi.estimate(ivvi.read_logs(rows | {"w": np.full(300, 7.0)}, weight="w", **roles))
    assert even.estimate.freedoms is None


def test_rows_of_uneven_influence_have_students_interval():
    """A long tail of distances, and errors that grow with them: 24 in 30 by the normal law."""
    truth, logs, covered = -0.4, 120, 0
    for seed in range(logs):
        rng = np.random.default_rng(seed)
        z, (x, u, e) = np.exp(1.3 * rng.normal(size=400)), rng.normal(size=(3, 400))
        a = 0.5 * z + u
        table = {"x": x, "a": a, "z": z, "y": x + truth * a + u + e * (1 + z)}
        log = ivvi.read_logs(table, state="x", action="a", instrument="z", next_state="y")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            frame = ivvi.fit(log).records()
        row = next(one for one in frame if one["feature"] == "a")
        covered += row["low"] <= truth <= row["high"]
    assert covered / logs > 0.95 - 4 * np.sqrt(0.95 * 0.05 / logs)


def test_an_effect_has_the_interval_of_its_fit():
    rng = np.random.default_rng(0)
    ward = np.repeat(np.arange(40), 30)
    z = np.repeat((np.arange(40) < 4) * 1.0, 30)
    x, u, e = rng.normal(size=(3, 1200))
    a = z + u + rng.normal(size=1200)
    table = {"x": x, "a": a, "z": z, "ward": ward, "y": x - 0.4 * a + u + e}
    log = ivvi.read_logs(table, state="x", action="a", instrument="z", next_state="y")
    with pytest.warns(IvviWarning, match="count as"):
        fit = ivvi.fit(log, se=ivvi.StandardErrors("clustered", "ward"))
    row = next(one for one in fit.records() if one["feature"] == "a")
    effect = ivvi.effect(fit, "a")
    assert (effect.low[0], effect.high[0]) == pytest.approx((row["low"], row["high"]))
