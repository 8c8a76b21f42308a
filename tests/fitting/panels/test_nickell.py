"""Lagged states and absorbed effects: the bias is told, and taken out."""

import json

import numpy as np
import pytest

import ivvi
from helpers import run, write_table
from ivvi import InputError

pytestmark = pytest.mark.filterwarnings("ignore::ivvi.errors.IvviWarning")
TRUTH = {"x": 0.5, "a": -0.5}
FORMULA = "y ~ lag | id | a ~ z"


def make_panel(units, steps, seed):
    """x' = 0.5 x - 0.5 a + alpha + e, with alpha in everything and a confounder of one step."""
    rng = np.random.default_rng(seed)
    alpha = rng.normal(size=units)
    x = 2 * alpha + rng.normal(size=units)
    columns = {name: np.empty((units, steps + 1)) for name in ("episode", "step", "x", "a", "z")}
    for t in range(steps + 1):
        e, z = rng.normal(size=(2, units))
        a = 0.8 * z + 0.5 * e + rng.normal(size=units) + alpha
        for name, values in zip(columns, (np.arange(units), t, x, a, z), strict=True):
            columns[name][:, t] = values
        x = 0.5 * x - 0.5 * a + alpha + e
    rows = {name: values.ravel() for name, values in columns.items()}
    return rows | {"episode": rows["episode"].astype(int), "step": rows["step"].astype(int)}


def open_log(rows):
    return ivvi.read_logs(rows, state="x", action="a", instrument="z")


def slope(fit, name):
    return fit.W[0, fit.estimate.design.phi_names.index(name)]


def test_the_bias_is_estimated_and_taken_out():
    log = open_log(make_panel(800, 16, seed=1))
    plain = ivvi.estimate(log, absorb="episode")
    se = plain.se[0, plain.estimate.design.phi_names.index("x")]
    bias = slope(plain, "x") - TRUTH["x"]
    assert bias < -5 * se
    at = plain.estimate.design.phi_names.index("x")
    assert plain.nickell.bias[0, at] == pytest.approx(bias, rel=0.35)
    assert any("Nickell bias" in text and "--half-panel" in text for text in plain.warnings)
    corrected = ivvi.estimate(log, absorb="episode", half_panel=True)
    assert abs(slope(corrected, "x") - TRUTH["x"]) < 0.35 * abs(bias) + 4 * se
    assert slope(corrected, "x") == pytest.approx(slope(plain, "x") - plain.nickell.bias[0, at])
    assert not any("Nickell" in text for text in corrected.warnings)
    assert "removed" in corrected.summary()


@pytest.mark.parametrize("half_panel", [False, True])
@pytest.mark.parametrize(("steps", "short"), [(3, True), (4, True), (6, False)])
def test_below_five_steps_differences_are_recommended(steps, short, half_panel):
    """Intervals of the jackknife hold too little there, so it is not offered."""
    log = open_log(make_panel(400, steps, seed=1))
    fit = ivvi.estimate(log, absorb="episode", half_panel=half_panel)
    told = [text for text in fit.warnings if "Nickell" in text]
    assert len(told) == (short or not half_panel)
    for text in told:
        assert "use differences (difference=True, --difference)" in text
        assert ("--half-panel" in text) == (not short)


def in_halves(rows):
    """The rows of two halves of each episode, one in the middle in both; and their groups."""
    place = np.concatenate([np.arange(size) for size in np.bincount(rows["episode"])])
    length = np.bincount(rows["episode"])[rows["episode"]]
    first, second = 2 * place < length, 2 * place + 1 >= length
    both = {name: np.concatenate([v[first], v[second]]) for name, v in rows.items()}
    later = np.repeat([0, 1], [first.sum(), second.sum()])
    return both, 2 * both["episode"] + later


def within(rows, group):
    """The columns x, z, a, y less their means by group."""
    parts = np.column_stack([rows[name] for name in ("x", "z", "a", "y")])
    for g in np.unique(group):
        parts[group == g] -= parts[group == g].mean(axis=0)
    return parts


def solved(rows, group):
    """Slopes of x and a by hand, what each episode moves in them, and G."""
    parts = within(rows, group)
    psi, phi, y = parts[:, [0, 1]], parts[:, [0, 2]], parts[:, 3]
    A = psi.T @ phi
    slopes = np.linalg.solve(A, psi.T @ y)
    scores = psi * (y - phi @ slopes)[:, None]
    sums = np.array([scores[rows["episode"] == e].sum(axis=0) for e in np.unique(rows["episode"])])
    G = np.linalg.solve(A, [psi[:, 0] @ psi[:, 0], 0.0])
    lengths = np.bincount(group)
    lengths = lengths[lengths > 1]
    return slopes, np.linalg.solve(A, sums.T).T, G * np.sum(1 - 1 / lengths) / np.sum(lengths - 1)


def jackknife(rows):
    """The bias of the slopes, and the influence of each episode on what is left, by hand."""
    W, u, G = solved(rows, rows["episode"])
    W_half, v, G_half = solved(*in_halves(rows))
    K = np.outer(G, [1 / (G_half - G)[0], 0.0])
    return K @ (W_half - W), u - (v - u) @ K.T


def transitions(data):
    """Rows with the state of the next one as y."""
    last = np.append(data["episode"][1:] != data["episode"][:-1], True)
    rows = {name: values[~last] for name, values in data.items()}
    rows["y"] = data["x"][1:][~last[:-1]]
    return rows


def test_the_bias_is_told_by_halves_that_share_the_middle():
    data = make_panel(60, 9, seed=2)
    plain = ivvi.estimate(open_log(data), absorb="episode")
    at = [plain.estimate.design.phi_names.index(name) for name in ("x", "a")]
    np.testing.assert_allclose(plain.nickell.bias[0, at], jackknife(transitions(data))[0])


@pytest.mark.parametrize("debiased", [True, False])
def test_standard_errors_count_the_correction(debiased):
    """Influence of each episode on the corrected slopes, squared; episodes of three lengths."""
    data = make_panel(30, 9, seed=6)
    kept = data["step"] < 8 + data["episode"] % 3
    data = {name: values[kept] for name, values in data.items()}
    rows = transitions(data)
    variance = (jackknife(rows)[1] ** 2).sum(axis=0)
    if debiased:
        n = len(rows["y"])
        variance = variance * 30 / 29 * (n - 1) / (n - 3)
    errors = ivvi.StandardErrors("clustered", debiased=debiased)
    fit = ivvi.estimate(open_log(data), absorb="episode", half_panel=True, se=errors)
    at = [fit.estimate.design.phi_names.index(name) for name in ("x", "a")]
    np.testing.assert_allclose(fit.se[0, at], np.sqrt(variance), rtol=1e-7)
    plain = ivvi.estimate(open_log(data), absorb="episode", se=errors)
    assert fit.se[0, at[0]] > 1.1 * plain.se[0, at[0]]


def test_the_action_keeps_no_bias_of_the_first_order():
    """Its slope is off by the instrument's correlation with x within episodes alone."""
    gaps = []
    for seed in range(12):
        log = open_log(make_panel(400, 5, seed=seed))
        fit = ivvi.estimate(log, absorb="episode", half_panel=True)
        gaps.append([slope(fit, name) - TRUTH[name] for name in ("x", "a")])
    mean, spread = np.mean(gaps, axis=0), np.std(gaps, axis=0, ddof=1) / 12**0.5
    assert (np.abs(mean) < 4 * spread + [0.03, 0.015]).all()


def test_nothing_is_said_where_there_is_no_lagged_state():
    rows = make_panel(50, 6, seed=3)
    rows["y"] = np.random.default_rng(0).normal(size=len(rows["x"]))
    log = ivvi.read_logs(rows, state="x", action="a", instrument="z", next_state="y")
    assert ivvi.estimate(log, absorb="episode").nickell is None
    with pytest.raises(InputError, match="half-panel jackknife needs absorbed effects of the"):
        ivvi.estimate(log, absorb="episode", half_panel=True)
    with pytest.raises(InputError, match="give absorb too"):
        ivvi.estimate(log, half_panel=True)


def test_episodes_that_are_too_short_are_told():
    log = open_log(make_panel(300, 2, seed=4))
    fit = ivvi.estimate(log, absorb="episode")
    assert any("too few to halve" in text for text in fit.warnings)
    with pytest.raises(InputError, match="2 steps: use differences"):
        ivvi.estimate(log, absorb="episode", half_panel=True)


def test_a_unit_has_its_own_constant(tmp_path):
    rows = make_panel(40, 12, seed=5)
    fit = ivvi.estimate(open_log(rows), absorb="episode")
    one = fit.of_unit(episode=7)
    effect = fit.effects[0][7][0]
    assert one.W[0, 0] == pytest.approx(fit.W[0, 0] + effect)
    state, action = np.array([[0.3]]), np.array([[0.1]])
    gap = one.model.mean(state, action) - fit.model.mean(state, action)
    assert gap[0, 0] == pytest.approx(effect)
    with pytest.raises(InputError, match="no effects of 'year'"):
        fit.of_unit(year=3)
    with pytest.raises(InputError, match="no effect of 99"):
        fit.of_unit(episode=99)
    with pytest.raises(InputError, match="no absorbed effects"):
        ivvi.estimate(open_log(rows)).of_unit(episode=7)


def test_the_shell_plans_for_a_unit(tmp_path):
    path = write_table(make_panel(40, 12, seed=5), tmp_path / "panel.parquet")
    columns = ("--state", "x", "--action", "a", "--instrument", "z")
    facts, model = tmp_path / "fit.json", tmp_path / "model"
    absorbed = ("--absorb", "episode", "--half-panel")
    done = run("fit", path, *columns, *absorbed, "--out", model, "--json", facts)
    assert done.code == 0, done
    assert json.loads(facts.read_text())["nickell"]["corrected"] is True
    problem = ("--reward", "quadratic:weight=1,target=0", "--horizon", 3, "--action-low", -1)
    problem = (*problem, "--action-high", 1, "--method", "value-iteration")
    done = run("plan", model, *problem, "--unit", "episode=7", "--out", tmp_path / "policy")
    assert done.code == 0, done
    done = run("plan", model, *problem, "--unit", "7", "--out", tmp_path / "other")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "expected COLUMN=VALUE" in done.err


def with_own_lag(units, steps, seed, *, shuffled=False):
    """The panel as a table of its own transitions: x is the y of the row before."""
    rows = transitions(make_panel(units, steps, seed))
    rows = {"id": rows.pop("episode"), "year": rows.pop("step"), "lag": rows.pop("x"), **rows}
    if not shuffled:
        return rows
    order = np.random.default_rng(0).permutation(len(rows["y"]))
    return {name: values[order] for name, values in rows.items()}


@pytest.mark.parametrize("named", [False, True])
def test_a_lag_that_stands_in_the_table_has_the_bias_of_a_derived_one(named):
    derived = ivvi.estimate(open_log(make_panel(80, 8, seed=3)), absorb="episode", half_panel=True)
    keys = {"episode": "id", "step": "year"} if named else {}
    log = ivvi.read_logs(with_own_lag(80, 8, 3, shuffled=named), formula=FORMULA, **keys)
    plain = ivvi.estimate(log)
    assert any("Nickell bias of lag" in text and "--half-panel" in text for text in plain.warnings)
    fit = ivvi.estimate(log, half_panel=True)
    for name, other in (("lag", "x"), ("a", "a")):
        at, same = (
            f.estimate.design.phi_names.index(n) for f, n in ((fit, name), (derived, other))
        )
        assert fit.W[0, at] == pytest.approx(derived.W[0, same], rel=1e-6)
        assert fit.se[0, at] == pytest.approx(derived.se[0, same], rel=1e-6)


def test_a_lag_in_rows_without_an_order_is_told_and_not_halved():
    log = ivvi.read_logs(with_own_lag(80, 8, 3, shuffled=True), formula=FORMULA)
    told = [text for text in ivvi.estimate(log).warnings if "Nickell" in text]
    assert "not in chronological order" in told[0]
    with pytest.raises(InputError, match="in the order of time"):
        ivvi.estimate(log, half_panel=True)


@pytest.mark.parametrize("seed", range(3))
def test_states_that_are_no_lags_have_no_such_bias(seed):
    """Constant, discrete and lasting states, and one that is the output of the same row's unit."""
    rng = np.random.default_rng(seed)
    n, units = 600, np.repeat(np.arange(60), 10)
    u, z, x = rng.normal(size=(3, n))
    rows = {"id": units, "x": np.cumsum(x), "d": rng.integers(0, 2, n), "z": z, "a": z + u}
    rows["y"] = (rows["a"] + u + rng.normal(size=n) > 0).astype(float)
    fit = ivvi.estimate(ivvi.read_logs(rows, formula="y ~ x + d | id | a ~ z"))
    assert fit.nickell is None
