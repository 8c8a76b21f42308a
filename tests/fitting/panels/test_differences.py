"""Confounders that last an episode: differences between steps, and what must hold for them."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ivvi
from helpers import OPTIONS, ROLES, run
from ivvi import ConfoundedEnv, InputError
from ivvi.errors import IvviWarning
from ivvi.features.design import build_design
from ivvi.fitting.panels.differences import BEFORE, DifferencedTable
from ivvi.simulators import gaussian, linear_world

LASTING = np.array([[1.0, 0.5], [0.5, 1.0]])


@pytest.fixture(scope="module")
def world():
    return dataclasses.replace(linear_world(2, "III"), lasting=gaussian(LASTING))


@pytest.fixture(scope="module")
def log(world):
    return ConfoundedEnv(world).collect(episodes=300, horizon=15, seed=0)


@pytest.mark.filterwarnings("ignore:.*follows a trend, a season or lasting shocks of")
def test_differences_remove_what_lasts_and_levels_do_not(world, log):
    with pytest.warns(IvviWarning, match="something lasts that the states do not capture"):
        levels = ivvi.estimate(log)
    fit = ivvi.estimate(log, difference=True)
    assert np.abs((fit.W - world.W_star) / fit.se).max() < 4
    assert np.abs((levels.W - world.W_star) / levels.se)[:, 1:3].max() > 8
    # least squares in differences is confounded by the e of both steps
    assert np.abs((fit.baseline.W - world.W_star) / fit.baseline.se)[:, 1:].max() > 8
    # a covariance of n Gaussian rows, each error in two differences, has standard error sqrt(3/n)
    noise = world.confounder.covariance
    assert np.abs(fit.model.noise_cov - noise).max() < 5 * np.sqrt(3 / fit.counts.transitions)


def test_the_constant_is_that_of_the_average_episode():
    """x' = 3 + x / 2 - a / 2 + u + e: the constant is 3, whatever the single episodes have."""
    rng = np.random.default_rng(4)
    episodes, steps = 2000, 6
    u = rng.normal(size=episodes)
    x, rows = u + 6 + rng.normal(size=episodes), []
    for h in range(steps):
        z, e = rng.normal(size=(2, episodes))
        a = z + e + u + rng.normal(size=episodes)
        y = 3 + 0.5 * x - 0.5 * a + u + e
        rows.append((np.arange(episodes), np.full(episodes, h), x, a, z, y))
        x = y
    columns = [np.array(part).T.ravel() for part in zip(*rows, strict=True)]
    names = ("episode", "step", "x0", "a0", "z0", "next_x0")
    fit = ivvi.estimate(dict(zip(names, columns, strict=True)), difference=True)
    assert np.abs((fit.W - [[3.0, 0.5, -0.5]]) / fit.se).max() < 4
    assert fit.model.mean(np.array([2.0]), np.array([1.0])) == pytest.approx(fit.W @ [1, 2, 1])


@given(seed=st.integers(0, 10**6), size=st.integers(3, 50), steps=st.integers(3, 6))
def test_rows_are_differences_within_episodes(seed, size, steps):
    """However the rows are cut into batches; steps that are not consecutive are no pair."""
    rng = np.random.default_rng(seed)
    episodes = 4
    n = episodes * steps
    columns = {"episode": np.repeat(np.arange(episodes), steps)}
    columns["step"] = np.tile(np.arange(steps), episodes) + (np.arange(n) % steps > 1)  # a gap
    columns |= {name: rng.normal(size=n) for name in ("x0", "a0", "z0", "next_x0")}
    log = ivvi.read_logs(columns)
    design = build_design(log, "poly2")
    differences = DifferencedTable(log, design, ())
    blocks = list(differences.batches(differences.roles.columns, (), size))
    found = {
        n: np.concatenate([b.column(n).to_numpy() for b in blocks]) for n in blocks[0].schema.names
    }
    later = np.flatnonzero((np.arange(n) % steps > 0) & (np.arange(n) % steps != 2))
    for name in ("x0", "a0", "next_x0"):
        np.testing.assert_allclose(found[name], columns[name][later] - columns[name][later - 1])
    square = columns["a0"] ** 2
    np.testing.assert_allclose(found["a0^2"], square[later] - square[later - 1])
    np.testing.assert_allclose(found["z0"], columns["z0"][later])
    for name, values in (
        ("z0", columns["z0"]),
        ("x0", columns["x0"]),
        ("z0^2", columns["z0"] ** 2),
    ):
        np.testing.assert_allclose(found[name + BEFORE], values[later - 1])


def test_rows_out_of_order_and_weights_give_the_same(log):
    table = log.to_arrow()
    plain = ivvi.estimate(table, difference=True)
    order = np.random.default_rng(0).permutation(table.num_rows)
    shuffled = ivvi.estimate(table.take(order), difference=True)
    np.testing.assert_allclose(shuffled.W, plain.W, rtol=1e-8)
    weighted = table.append_column("w", [np.full(table.num_rows, 2.0)])
    roles = {"state": "x*", "action": "a*", "instrument": "z*", "next_state": "next_x*"}
    doubled = ivvi.read_logs(weighted, **roles, weight="w")
    np.testing.assert_allclose(ivvi.estimate(doubled, difference=True).W, plain.W, rtol=1e-8)


@pytest.mark.filterwarnings("ignore:weak instruments")
@pytest.mark.parametrize("features", ["poly2", "spline:4"])
def test_other_features_have_the_same_columns_as_in_levels(log, features):
    fit = ivvi.estimate(log, features, difference=True, se="unadjusted", allow_unidentified=True)
    wanted = build_design(log, features).phi_names
    assert fit.estimate.design.phi_names == wanted
    assert fit.W.shape == (2, len(wanted))
    assert fit.model.mean(np.zeros(2), np.zeros(2)).shape == (2,)


def panel(seed, firms=400, years=5, lasting=False):
    """Return firms with effects of the years, and w that no noise ever moves.

    x' = x / 2 - a / 2 + 0.4 w + YEARS[h] + u + e.
    """
    rng = np.random.default_rng(seed)
    u, w, kept = rng.normal(size=(3, firms))
    x, rows = u + rng.normal(size=firms), []
    for h in range(years):
        z, e, eta, change = rng.normal(size=(4, firms))
        z = kept if lasting else z
        w = 0.9 * w + change + 0.3 * u
        a = z + e + u + eta
        y = 0.5 * x - 0.5 * a + 0.4 * w + YEARS[h] + u + e
        rows.append((np.arange(firms), np.full(firms, h), x, w, a, z, y))
        x = y
    columns = [np.array(part).T.ravel() for part in zip(*rows, strict=True)]
    found = dict(zip(("firm", "year", "x", "w", "a", "z", "next_x"), columns, strict=True))
    return found | {f"d{h}": 1.0 * (found["year"] == h) for h in range(1, years)}


YEARS = (0.0, 0.5, -1.0, 2.0, 0.3)
STATES = ("x", "w", "d1", "d2", "d3", "d4")
TRUTH = np.array([0.0, 0.5, 0.4, *YEARS[1:], -0.5])
PANEL = {"action": "a", "instrument": "z", "next_state": "next_x"}
PANEL |= {"episode": "firm", "step": "year"}


def differences(rows, names):
    """Return changes and earlier levels of columns, from the second year on."""
    later = np.flatnonzero(rows["year"] > 0)
    now, before = (np.column_stack([rows[n][at] for n in names]) for at in (later, later - 1))
    return now - before, before, now


@pytest.mark.filterwarnings("ignore::ivvi.errors.IvviWarning")
@pytest.mark.parametrize("exogenous", [("w", "d*"), "d1:d4", ()])
def test_dummies_for_the_years_and_exogenous_states_are_their_own_instruments(exogenous):
    """Two-stage least squares of the changes, by hand; and the truth, within four errors."""
    rows = panel(0)
    log = ivvi.read_logs(rows, state=STATES, **PANEL)
    fit = ivvi.estimate(log, difference=True, exogenous=exogenous)
    change, *_ = differences(rows, (*STATES, "a"))
    y, *_ = differences(rows, ["next_x"])
    own = {("w", "d*"): STATES[1:], "d1:d4": STATES[2:], (): ()}[exogenous]
    (moved, _, _), rest = differences(rows, (*own, "x")), [n for n in STATES if n not in own]
    (_, z_before, z_now), (_, before, _) = differences(rows, ["z"]), differences(rows, rest)
    Psi = np.column_stack([moved[:, :-1], before, z_now, z_before, np.ones(len(y))])
    fitted = Psi @ np.linalg.lstsq(Psi, change, rcond=None)[0]
    slopes = np.linalg.lstsq(fitted, y, rcond=None)[0][:, 0]
    np.testing.assert_allclose(fit.W[0, 1:], slopes, rtol=1e-6)
    assert np.abs((fit.W[0] - TRUTH) / fit.se[0]).max() < 4
    assert fit.estimate.design.phi_names == ("1", *STATES, "a")
    assert fit.estimate.freedoms.shape == fit.W.shape
    assert "[95%    conf.]" in fit.summary()


@pytest.mark.filterwarnings("ignore::ivvi.errors.IvviWarning")
def test_degrees_of_freedom_stay_with_their_coefficients():
    """Exogenous features come first among the differences, and a state's cluster counts differ."""
    rows = panel(2, firms=60)
    rows["w"] = rows["w"] * (1 + 30 * (rows["firm"] < 2))
    log = ivvi.read_logs(rows, state=("x", "w"), **PANEL)
    counts = ivvi.estimate(log, difference=True, exogenous="w").estimate.W_cov.effective[0]
    assert counts[2] < 5  # two firms have nearly all that w says
    assert counts[1] > 5
    assert counts[3] > 10


@pytest.mark.filterwarnings("ignore::ivvi.errors.IvviWarning")
def test_a_year_that_no_transition_has_is_named_alone():
    rows = panel(0, firms=50)
    rows["d9"] = np.zeros(len(rows["x"]))
    log = ivvi.read_logs(rows, state=(*STATES, "d9"), **PANEL)
    with pytest.raises(
        InputError, match=r"\(d9 is 0 in every row\), .* effect of \[d9\] is not identified"
    ):
        ivvi.estimate(log, difference=True, exogenous="d*")


@pytest.mark.filterwarnings("ignore::ivvi.errors.IvviWarning")
def test_an_exogenous_state_is_known_better():
    log = ivvi.read_logs(panel(1), state=("x", "w"), **PANEL)
    plain = ivvi.estimate(log, difference=True)
    told = ivvi.estimate(log, difference=True, exogenous="w")
    assert told.se[0, 2] < 0.6 * plain.se[0, 2]
    bent = ivvi.estimate(log, "poly2", difference=True, exogenous="w", allow_unidentified=True)
    assert bent.estimate.design.phi_names == build_design(log, "poly2").phi_names


def test_exogenous_states_that_are_none_are_refused(tmp_path):
    rows = panel(1)
    log = ivvi.read_logs(rows, state=("x", "w"), **PANEL)
    with pytest.raises(InputError, match="only matter with differences"):
        ivvi.estimate(log, exogenous="w")
    with pytest.raises(InputError, match="'v'"):
        ivvi.estimate(log, difference=True, exogenous="v")
    path = tmp_path / "log.parquet"
    log.to_parquet(path)
    options = ("--state", "x,w", "--action", "a", "--instrument", "z", "--next-state", "next_x")
    options += ("--episode", "firm", "--step", "year", "--out", tmp_path / "m")
    refused = run("fit", path, *options, "--exogenous", "w")
    assert refused.code == 2
    assert "--difference" in refused.err
    assert not (tmp_path / "m").exists()
    target = tmp_path / "fit.json"
    done = run("fit", path, *options, "--difference", "--exogenous", "w", "--json", target)
    assert done.code == 0, done.err
    told = ivvi.estimate(log, difference=True, exogenous="w")
    np.testing.assert_allclose(json.loads(target.read_text())["W"], told.W, rtol=1e-8)


def test_a_global_instrument_drops_out_and_is_refused(simulator):
    """z that never changes moves no difference of actions that it does not move through x."""
    sepsis = simulator("sepsis").collect(episodes=20, seed=0)
    one = {"state": "x0", "action": "a*", "instrument": "z0", "next_state": "next_x0"}
    log = ivvi.read_logs(sepsis.to_arrow(), **one)
    with pytest.raises(InputError, match="'z0' never changes within an episode"):
        ivvi.estimate(log, difference=True)
    lasting = ivvi.read_logs(panel(0, lasting=True), state=("x", "w"), **PANEL)
    with pytest.raises(InputError, match="'z' never changes within an episode"):
        ivvi.estimate(lasting, difference=True)
    both = panel(0, lasting=True) | {"z1": np.random.default_rng(0).normal(size=2000)}
    two = PANEL | {"instrument": ("z1", "z")}
    with pytest.raises(InputError, match="'z' never changes within an episode"):
        ivvi.estimate(ivvi.read_logs(both, state="x", **two), difference=True)


def test_what_cannot_be_differenced_is_refused(log, tmp_path):
    one_step = {"x0": np.arange(9.0), "a0": np.arange(9.0) ** 2, "z0": np.sin(np.arange(9.0))}
    columns = {"state": "x0", "action": "a0", "instrument": "z0", "next_state": "y"}
    rows = ivvi.read_logs({**one_step, "y": np.cos(np.arange(9.0))}, **columns)
    with pytest.raises(InputError, match="the log has no episode column"):
        ivvi.estimate(rows, difference=True)
    with pytest.raises(InputError, match="clustered by the episode alone"):
        ivvi.estimate(log, difference=True, se=ivvi.StandardErrors(cluster="step"))
    for settings in ({"client": 2}, {"episodes": True}):
        with pytest.raises(InputError, match="differences need the rows of a log"):
            ivvi.estimate(log, difference=True, **settings)
    fit = ivvi.estimate(log, difference=True)
    with pytest.raises(InputError, match="fit from differences has only"):
        _ = fit.shard
    policy = ivvi.plan(fit.model, "quadratic:weight=0.05", (-1, 1), horizon=3, method="mpc")
    with pytest.raises(InputError, match="needs the moments of the log"):
        ivvi.sensitivity(policy, fit)


def test_the_command_line_writes_a_model_in_levels(log, tmp_path):
    path = tmp_path / "log.parquet"
    log.to_parquet(path)
    target = tmp_path / "fit.json"
    result = run("fit", path, *OPTIONS, "--difference", "--out", tmp_path / "m", "--json", target)
    assert result.code == 0, result.err
    facts = json.loads(target.read_text())
    fit = ivvi.estimate(ivvi.read_logs(path, **ROLES), difference=True)
    assert facts["difference"] is True
    np.testing.assert_allclose(facts["W"], fit.W, rtol=1e-8)
    model = ivvi.load_model(tmp_path / "m")
    np.testing.assert_allclose(model.W, fit.W, rtol=1e-8)
    more = run("update", tmp_path / "m", path, "--out", tmp_path / "n")
    assert more.code == 2
    assert "fit from differences has only" in more.err
