"""`ivvi.interval`: which rows and errors a set is made of, how an effect is named, the command."""

import json
import warnings
from dataclasses import replace

import numpy as np
import pytest

import ivvi
from helpers import OPTIONS, ROLES, assert_refused, make_rows, run, succeed, write_table
from ivvi import InputError
from ivvi.diagnostics.tails_and_quantiles import chi2_quantile
from ivvi.errors import DataError, IvviWarning


@pytest.mark.filterwarnings("ignore:weak instruments")  # poly2 of two actions
@pytest.mark.parametrize("se", ["robust", "clustered"])
@pytest.mark.parametrize("features", ["linear", "poly2"])
def test_a_second_pass_gives_what_the_rows_give(se, features, simulated):
    log = simulated("linear", 2, episodes=30, horizon=20)
    whole = log.to_batch(episodes=True)
    fit = ivvi.estimate(log, features, episodes=True)
    streamed = ivvi.interval(log, "x0", "a0", se=se, phi=features)
    if se == "clustered":
        held = ivvi.interval(fit, "x0", "a0", se=se)
    else:  # each row an episode
        rows = fit.moments.of_batch(
            fit.moments.design,
            type(whole)(whole.x, whole.a, whole.z, whole.y, None, np.arange(len(whole))),
            episodes=True,
        )
        held = ivvi.interval(rows, "x0", "a0", se="clustered")
    assert streamed.se == se
    np.testing.assert_allclose(streamed.intervals, held.intervals, rtol=1e-8)


def test_scattered_episodes_are_clusters_all_the_same(log_of, confounded):
    x, a, z, y = confounded(3, 400, 1, 1, 2)
    episode = np.random.default_rng(1).permutation(np.arange(400) % 40)
    columns = {"x0": x[:, 0], "a0": a[:, 0], "z0": z[:, 0], "z1": z[:, 1], "next_x0": y[:, 0]}
    order = np.argsort(episode, kind="stable")
    sets = []
    for rows in (np.arange(400), order):
        named = {name: values[rows] for name, values in columns.items()} | {
            "episode": episode[rows]
        }
        log = ivvi.read_logs(named)
        sets.append(ivvi.interval(log, "next_x0", "a0").intervals)
    np.testing.assert_allclose(sets[0], sets[1], rtol=1e-9)


def test_auto_clusters_where_episodes_have_steps_else_is_robust(simulated, log_of, confounded):
    log = simulated("linear", 2, episodes=30, horizon=20)
    assert ivvi.interval(log, "x0", "a0").se == "clustered"
    assert ivvi.interval(log, "x0", "a0", method="clr").se == "clustered"
    rows = log_of(*confounded(0))
    assert ivvi.interval(rows, "y0", "a0").se == "robust"  # as `estimate` does
    assert ivvi.interval(ivvi.estimate(rows), "y0", "a0").se == "robust"  # which knows its log


def test_a_fit_gives_the_set_of_its_log_and_a_saved_one_asks_for_the_log(simulated, tmp_path):
    log = simulated("linear", 2, episodes=30, horizon=20)
    for se in ("auto", "robust"):
        fit = ivvi.estimate(log, se=se)
        of_log = ivvi.interval(log, "x0", "a0", se=se).intervals
        np.testing.assert_allclose(ivvi.interval(fit, "x0", "a0").intervals, of_log, rtol=1e-12)
        fit.save(tmp_path / se)
        with pytest.raises(InputError, match=r"needs the rows: pass the log \(log=, --log\)"):
            ivvi.interval(tmp_path / se, "x0", "a0")
        of_saved = ivvi.interval(tmp_path / se, "x0", "a0", log=log).intervals
        np.testing.assert_allclose(of_saved, of_log, rtol=1e-12)


def test_the_shell_takes_the_log_of_a_saved_model(tmp_path):
    table, model = write_table(make_rows(30), tmp_path / "log.csv"), tmp_path / "model"
    effect = ("--output", "x0", "--feature", "a0", "--json", "-")
    succeed("fit", table, *OPTIONS, "--out", model)
    assert_refused(run("interval", model, *effect), "needs the rows", "--log")
    of_model = json.loads(succeed("interval", model, *effect, "--log", table).out)
    of_log = json.loads(succeed("interval", table, *OPTIONS, *effect).out)
    assert of_model["se"] == of_log["se"] == "clustered"
    np.testing.assert_allclose(of_model["intervals"], of_log["intervals"], rtol=1e-12)
    assert_refused(run("interval", table, *OPTIONS, "--log", table), "--log is for a saved model")


def test_sets_that_cannot_be_given_are_refused(simulated, confounded, moments_of):
    log = simulated("linear", 2, episodes=30, horizon=20)
    fit = ivvi.estimate(log)
    with pytest.raises(InputError, match="no feature 'a00'; did you mean 'a0'"):
        ivvi.interval(fit, "x0", "a00", se="unadjusted")
    with pytest.raises(InputError, match="no output 'next_x9'; did you mean 'next_x"):
        ivvi.interval(fit, "next_x9", "a0", se="unadjusted")
    fit = replace(fit, log=None)
    with pytest.raises(InputError, match="needs the rows: pass the log"):
        ivvi.interval(fit, "x0", "a0")
    assert ivvi.interval(fit, "x0", "a0", log=log).se == "clustered"
    with pytest.raises(InputError, match="unknown method 'lm'"):
        ivvi.interval(fit, "x0", "a0", method="lm")
    with pytest.raises(InputError, match="needs the rows: pass the log"):
        ivvi.interval(fit, "x0", "a0", method="clr", se="clustered")
    with pytest.raises(InputError, match="the level is 95"):
        ivvi.interval(fit, "x0", "a0", se="unadjusted", level=95)
    with pytest.raises(InputError, match="no nonzero weight"):
        ivvi.interval(fit, "x0", {"a0": 0.0}, se="unadjusted")
    few = moments_of(*confounded(1, 60, 1, 1, 4), episode=np.arange(60) // 20)
    with pytest.raises(DataError, match="3 clusters cannot give a set with 4 instrument"):
        ivvi.interval(few, "y0", "a0", se="clustered")
    with pytest.raises(DataError, match="5 rows are too few for 5 instrument features"):
        ivvi.interval(moments_of(*confounded(1, 5, 1, 1, 3)), "y0", "a0")


def test_the_command_prints_and_writes_the_set(tmp_path):
    source = write_table(make_rows(40, 10), tmp_path / "log.parquet")
    done = run("interval", source, *OPTIONS, "--output", "x0", "--feature", "a0")
    assert done.code == 0
    assert done.out.startswith(
        "95% Anderson-Rubin set (clustered by episode) of the effect of a0 on next_x0"
    )
    assert "null: the effect of a0 on next_x0 is the value; chi2(2), p >= 0.05" in done.out
    done = run(
        *("interval", source, *OPTIONS, "--output", "x0", "--feature", "a0:1,a1:-1"),
        *("--method", "clr", "--level", "0.9", "--json", "-"),
    )
    described = json.loads(done.out)
    assert described["effect"] == "effect of a0 - a1 on next_x0"
    assert (described["method"], described["level"]) == ("clr", 0.9)
    assert described["distribution"] == "chi2(2)"  # two instruments: just identified
    wrong = ("interval", source, *OPTIONS, "--output", "x0", "--feature")
    assert_refused(run(*wrong, "a00"), "no feature 'a00'; did you mean 'a0'?")
    assert_refused(run(*wrong, "a0:one"), "no number after 'a0'")


def test_the_only_effect_needs_no_name(tmp_path):
    rows = make_rows(40, 10, d=1)
    write_table(rows, tmp_path / "log.parquet")
    log = ivvi.read_logs(tmp_path / "log.parquet", **ROLES)
    named = ivvi.interval(log, "next_x0", "a0")
    assert ivvi.interval(log).intervals == named.intervals
    shown = run("interval", tmp_path / "log.parquet", *OPTIONS)
    assert shown.code == 0, shown.err
    assert named.label in shown.out


def test_one_of_several_effects_must_be_named(tmp_path):
    write_table(make_rows(40, 10), tmp_path / "log.parquet")
    assert_refused(
        run("interval", tmp_path / "log.parquet", *OPTIONS),
        "no output",
        "next_x0, next_x1",
        "--output",
    )
    assert_refused(
        run("interval", tmp_path / "log.parquet", *OPTIONS, "--output", "x0"), "a0, a1", "--feature"
    )


def long_series(steps=200, series=3, seed=5):
    """Return a few long episodes whose errors and instruments fade slowly."""
    rng = np.random.default_rng(seed)
    n = steps * series
    e, z1, z2 = np.zeros((3, n))
    for t in range(n):
        fresh = rng.normal(size=3)
        for one, new in zip((e, z1, z2), fresh, strict=True):
            one[t] = (0.7 * one[t - 1] if t % steps else 0.0) + new
    a = 0.5 * z1 + 0.3 * z2 + e + rng.normal(size=n)
    keys = {
        "episode": np.repeat(np.arange(series), steps),
        "step": np.tile(np.arange(steps), series),
    }
    return keys | {"a": a, "z1": z1, "z2": z2, "y": -0.5 * a + e}


SERIES = {"state": (), "action": "a", "instrument": "z1,z2", "next_state": "y"}


def hac_statistic(rows, theta, bandwidth):
    """Anderson and Rubin's statistic with Newey and West's variance, by its definition."""
    Z = np.column_stack([rows["z1"], rows["z2"]])
    Z = Z - Z.mean(axis=0)
    u = rows["y"] - theta * rows["a"]
    g = Z * (u - u.mean())[:, None]
    S = g.T @ g
    for lag in range(1, bandwidth + 1):
        follow = rows["episode"][lag:] == rows["episode"][:-lag]
        cross = (g[lag:] * follow[:, None]).T @ g[:-lag]
        S += (1 - lag / (bandwidth + 1)) * (cross + cross.T)
    total = g.sum(axis=0)
    return total @ np.linalg.solve(S, total)


def test_a_hac_set_ends_where_its_statistic_is_at_the_critical_value(tmp_path):
    rows = long_series()
    log = ivvi.read_logs(rows, **SERIES)
    confidence_set = ivvi.interval(log, "y", "a", se=ivvi.StandardErrors("hac", bandwidth=6))
    assert (confidence_set.se, confidence_set.kind) == ("hac", "bounded")
    for end in confidence_set.intervals[0]:
        assert hac_statistic(rows, end, 6) == pytest.approx(chi2_quantile(0.95, 2), rel=1e-6)
    robust = ivvi.interval(log, "y", "a", se="robust")
    assert np.diff(confidence_set.intervals[0]) > np.diff(robust.intervals[0])
    fit = ivvi.fit(log, se=ivvi.StandardErrors("hac", bandwidth=6))
    assert ivvi.interval(fit, "y", "a", log=log).intervals == confidence_set.intervals
    path = write_table(rows, tmp_path / "log.parquet")
    options = ("--action", "a", "--instrument", "z1,z2", "--next-state", "y", "--state", "")
    effect = ("--output", "y", "--feature", "a", "--se", "hac", "--bandwidth", 6)
    done = run("interval", path, *options, *effect, "--json", "-")
    assert done.code == 0, done
    assert json.loads(done.out)["intervals"][0] == pytest.approx(confidence_set.intervals[0])
    ratio = ivvi.interval(log, "y", "a", method="clr", se=ivvi.StandardErrors("hac", bandwidth=6))
    assert ratio.kind == "bounded"


def test_few_long_episodes_have_hac_sets_by_themselves():
    confidence_set = ivvi.interval(ivvi.read_logs(long_series(series=2), **SERIES), "y", "a")
    assert (confidence_set.se, confidence_set.kind) == ("hac", "bounded")


def test_hac_and_robust_sets_without_rows_are_refused():
    moments = ivvi.fit(ivvi.read_logs(long_series(), **SERIES), se="unadjusted").moments
    for se in ("robust", "hac", ivvi.StandardErrors("hac", bandwidth=3)):
        with pytest.raises(InputError, match="needs the rows: pass the log"):
            ivvi.interval(moments, "y", "a", se=se)


def test_a_yes_no_column_is_named_without_its_level():
    rng = np.random.default_rng(4)
    z, e = rng.normal(size=400), rng.normal(size=400)
    treated = np.where(z + e > 0, "yes", "no")
    ward = np.array(["A", "B", "C"])[rng.integers(3, size=400)]
    rows = {"Trainer session": treated, "ward": ward, "z": z, "y": 0.5 * (treated == "yes") + e}
    roles = {"action": "Trainer session", "instrument": "z", "next_state": "y", "state": "ward"}
    log = ivvi.read_logs(rows, **roles)
    confidence_set = ivvi.interval(log, "y", "Trainer session")
    assert confidence_set == ivvi.interval(log, "y", "Trainer session[yes]")
    assert "effect of Trainer session[yes] on y" in str(confidence_set)
    with pytest.raises(InputError, match=r"'ward' has 2 features, one for each level: ward\[B\], "):
        ivvi.interval(log, "y", "ward")


def shared_site() -> dict[str, np.ndarray]:
    """Return rows whose instrument and outcome share a site that nobody names."""
    rng = np.random.default_rng(0)
    site = np.repeat(np.arange(40), 30)
    level, (z, u) = rng.normal(size=40)[site], rng.normal(size=(2, 1200))
    z = z + level
    a = z + u
    named = np.array([f"site {i}" for i in site])
    return {"a": a, "z": z, "y": 0.5 * a + u + 2 * level, "site": named}


def test_a_set_of_a_log_says_what_a_fit_of_it_says(tmp_path) -> None:
    rows = shared_site()
    roles = {"state": (), "action": "a", "instrument": "z", "next_state": "y"}
    log = ivvi.read_logs(rows, **roles)
    with pytest.warns(IvviWarning, match="once effects of site are included"):
        ivvi.interval(log, "y", "a")
    with pytest.warns(IvviWarning, match="once effects of site are included"):
        fit = ivvi.fit(log)
    fit.save(tmp_path / "model")
    with pytest.warns(IvviWarning, match="once effects of site are included"):
        ivvi.interval(tmp_path / "model", "y", "a", se="unadjusted")
    with warnings.catch_warnings():
        warnings.simplefilter("error", IvviWarning)
        ivvi.interval(fit, "y", "a")  # the fit has said it
