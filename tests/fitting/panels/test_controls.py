"""Many controls: partially linear IV with cross-fitted learners, and everything else after it."""

import json

import numpy as np
import pytest

import ivvi
from helpers import assert_refused, make_rows, run, write_table
from ivvi.fitting.panels.partialling import folds_of

sklearn = pytest.importorskip("sklearn")

from sklearn.ensemble import RandomForestRegressor  # noqa: E402
from sklearn.linear_model import LassoCV, LinearRegression  # noqa: E402
from sklearn.neighbors import KNeighborsRegressor  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import SplineTransformer, StandardScaler  # noqa: E402

EFFECT = 0.7
PLANNED = {"method": "mpc", "compare": False}


def rows(seed=0, n=800, width=3, instruments=1, groups=None):
    """y = 0.7 a + bent controls + e, where a and z lean on the same bent controls."""
    rng = np.random.default_rng(seed)
    C = rng.normal(size=(n, width))
    bent = np.sin(2 * C[:, 0]) + C[:, 1] ** 2 / 2
    z = rng.normal(size=(n, instruments)) + 0.8 * bent[:, None]
    e = rng.normal(size=n)
    if groups is not None:
        e = e + rng.normal(size=groups.max() + 1)[groups]
    a = z.sum(axis=1) + bent + e + rng.normal(size=n)
    y = EFFECT * a + 2 * bent + e + 0.5 * rng.normal(size=n)
    data = {f"c{i}": C[:, i] for i in range(width)} | {f"z{i}": z[:, i] for i in range(instruments)}
    return data | {"a": a, "y": y}


def opened(data, **others):
    columns = {"state": (), "action": "a", "instrument": "z*", "next_state": "y"}
    return ivvi.read_logs(data, **columns | others)


def left(learner, C, columns, fold, weight=None):
    """What each fold's own columns leave after the predictions of learners of the others."""
    found = np.empty_like(columns)
    for k in range(fold.max() + 1):
        inside = fold == k
        for j in range(columns.shape[1]):
            given = {} if weight is None else {"sample_weight": weight[~inside]}
            model = sklearn.base.clone(learner).fit(C[~inside], columns[~inside, j], **given)
            found[inside, j] = columns[inside, j] - model.predict(C[inside])
    return found


LEARNERS = {
    "linear": LinearRegression(),
    "forest": RandomForestRegressor(10, min_samples_leaf=5, random_state=0),
    "lasso": make_pipeline(StandardScaler(), LassoCV(max_iter=10_000)),
}


NAMES = ["linear", "forest", pytest.param("lasso", marks=pytest.mark.thorough)]


@pytest.mark.parametrize("name", NAMES)
def test_one_instrument_is_the_formula_of_double_machine_learning(name):
    """theta = sum z~ y~ / sum z~ a~, and DoubleML's variance of it."""
    data, learner = rows(n=300), LEARNERS[name]
    fit = ivvi.fit(opened(data), controls="c*", learner=learner, folds=3, seed=5, se="robust")
    fold = folds_of(np.arange(300), 3, 5)
    C = np.column_stack([data[f"c{i}"] for i in range(3)])
    z, a, y = left(learner, C, np.column_stack([data[n] for n in ("z0", "a", "y")]), fold).T
    theta = (z @ y) / (z @ a)
    psi = z * (y - theta * a)
    assert np.isclose(fit.W[0, 1], theta, rtol=1e-10)
    assert np.isclose(fit.se[0, 1], np.sqrt(psi @ psi) / abs(z @ a), rtol=1e-8)


@pytest.mark.peers
@pytest.mark.parametrize("name", LEARNERS)
def test_doubleml_says_the_same_with_the_same_folds(name):
    doubleml = pytest.importorskip("doubleml")
    data, learner = rows(n=300), LEARNERS[name]
    fit = ivvi.fit(opened(data), controls="c*", learner=learner, folds=3, se="robust")
    fold, at = folds_of(np.arange(300), 3, 0), np.arange(300)
    C = np.column_stack([data[f"c{i}"] for i in range(3)])
    table = doubleml.DoubleMLData.from_arrays(C, data["y"], data["a"], z=data["z0"])
    peer = doubleml.DoubleMLPLIV(table, *(sklearn.base.clone(learner) for _ in range(3)), n_folds=3)
    peer.set_sample_splitting([[(at[fold != k], at[fold == k]) for k in range(3)]])
    peer.fit()
    assert np.allclose(fit.W[0, 1], peer.coef, rtol=1e-6)
    assert np.allclose(fit.se[0, 1], peer.se, rtol=1e-6)


@pytest.mark.filterwarnings("ignore:linear features are too simple")
def test_bent_controls_bias_a_linear_fit_and_not_a_learner():
    data = rows(n=1500, width=2)
    straight = ivvi.fit(opened(data, state="c*"))
    bends = make_pipeline(SplineTransformer(12), LinearRegression())
    fit = ivvi.fit(opened(data), controls="c*", learner=bends)
    assert abs(straight.W[0, 3] - EFFECT) > 5 * straight.se[0, 3]
    assert abs(fit.W[0, 1] - EFFECT) < 3 * fit.se[0, 1]
    assert fit.partialled.explained["a"] > 0.3


@pytest.mark.parametrize("shape", ["curve", "product", "steps"])
def test_the_default_learner_takes_out_controls_that_act_in_a_curve(shape):
    """Within five standard errors, where a lasso of the controls is off by more than twice that."""
    rng = np.random.default_rng(1)
    C, (z, hidden, noise) = rng.normal(size=(700, 2)), rng.normal(size=(3, 700))
    bent = {
        "curve": np.sin(2 * C[:, 0]) + C[:, 1] ** 2 / 2,
        "product": C[:, 0] * C[:, 1],
        "steps": 2.0 * ((C[:, 0] > 0) ^ (C[:, 1] > 0)),
    }[shape]
    z = z + 0.8 * bent
    a = z + bent + hidden + noise
    data = {"c0": C[:, 0], "c1": C[:, 1], "z0": z, "a": a, "y": EFFECT * a + 2 * bent + hidden}
    fit, straight = (
        ivvi.fit(opened(data), controls="c*", folds=3, **options)
        for options in ({}, {"learner": "lasso"})
    )
    assert fit.partialled.learner == "auto"
    assert abs(fit.W[0, 1] - EFFECT) < 5 * fit.se[0, 1]
    assert abs(straight.W[0, 1] - EFFECT) > 10 * straight.se[0, 1]


def test_the_default_learner_is_a_lasso_where_controls_act_in_a_straight_line():
    """The two estimates differ by less than a standard error."""
    rng = np.random.default_rng(2)
    C, (z, hidden, noise) = rng.normal(size=(400, 3)), rng.normal(size=(3, 400))
    z = z + C @ [1.0, -0.5, 0.0]
    a = z + C[:, 0] + hidden + noise
    data = {f"c{i}": C[:, i] for i in range(3)} | {
        "z0": z,
        "a": a,
        "y": EFFECT * a + hidden - C[:, 1],
    }
    one, other = (
        ivvi.fit(opened(data), controls="c*", folds=3, learner=word) for word in ("auto", "lasso")
    )
    assert abs(one.W[0, 1] - other.W[0, 1]) < one.se[0, 1]
    assert np.isclose(one.se[0, 1], other.se[0, 1], rtol=0.1)


def test_everything_else_is_computed_from_what_is_left(tmp_path):
    """Over-identified, clustered: the residuals as a log of their own give the same, J and sets."""
    groups = np.repeat(np.arange(80), 10)
    data = rows(3, n=800, instruments=2, groups=groups) | {"firm": groups, "kept": groups % 7 * 1.0}
    log = opened(data, state="kept")
    fit = ivvi.fit(
        log, controls="c*", learner=LinearRegression(), se=ivvi.StandardErrors(cluster="firm")
    )
    fold = folds_of(groups, 5, 0)
    assert all(len(set(fold[groups == g])) == 1 for g in range(80))
    C = np.column_stack([data[f"c{i}"] for i in range(3)])
    names = ("kept", "a", "z0", "z1", "y")
    rest = left(LinearRegression(), C, np.column_stack([data[n] for n in names]), fold)
    again = ivvi.estimate(
        opened(dict(zip(names, rest.T, strict=True)) | {"firm": groups}, state="kept"),
        *([ivvi.features.FeatureMap(ivvi.linear().blocks[1:])] * 2),
        se=ivvi.StandardErrors(cluster="firm"),
    )
    assert np.allclose(fit.W[:, 1:], again.W)
    assert np.allclose(fit.se[:, 1:], again.se)
    J, other = (one.to_json()["diagnostics"]["hansen_j"] for one in (fit, again))
    assert J is not None
    assert np.isclose(next(iter(J.values()))["value"], next(iter(other.values()))["value"])
    mine = ivvi.interval(fit, "y", "a")
    assert np.allclose(mine.intervals, ivvi.interval(again, "y", "a", log=again.log).intervals)
    assert fit.partialled.by == "firm"
    assert "3 partialled out by LinearRegression, 5 folds of firm" in fit.summary()
    fit.save(tmp_path / "model")
    back = ivvi.load_fit(tmp_path / "model")
    assert back.partialled == fit.partialled
    assert np.array_equal(back.W, fit.W)
    json.dumps(fit.to_json(), allow_nan=False)


def test_weights_of_rows_reach_the_learners():
    data = rows(4, n=400)
    weight = np.random.default_rng(0).uniform(0.2, 2, 400)
    fit = ivvi.fit(
        opened(data | {"w": weight}, weight="w"), controls="c*", learner=LinearRegression(), folds=2
    )
    fold = folds_of(np.arange(400), 2, 0)
    C = np.column_stack([data[f"c{i}"] for i in range(3)])
    columns = np.column_stack([data[n] for n in ("z0", "a", "y")])
    z, a, y = left(LinearRegression(), C, columns, fold, weight).T
    assert np.isclose(fit.W[0, 1], (weight * z) @ y / ((weight * z) @ a))


def test_states_of_a_sequence_can_be_controls():
    rng = np.random.default_rng(1)
    x, parts = rng.normal(size=(60, 2)), []
    for step in range(15):
        z, e = rng.normal(size=(2, 60))
        a = z + e
        parts.append((np.arange(60), np.full(60, step), x[:, 0], x[:, 1], a, z))
        x = x @ [[0.5, 0.1], [0.3, 0.6]] + np.column_stack([e - 0.5 * a, rng.normal(size=60)])
    names = ("episode", "step", "x0", "x1", "a0", "z0")
    data = dict(
        zip(names, (np.concatenate(part) for part in zip(*parts, strict=True)), strict=True)
    )
    fit = ivvi.fit(data, controls="x1", learner=LinearRegression())
    assert fit.estimate.design.phi_names == ("1", "x0", "a0")
    assert fit.estimate.design.outputs == ("next_x0", "next_x1")
    assert fit.partialled.by == "episode"
    assert abs(fit.W[0, 1] - 0.5) < 3 * fit.se[0, 1]
    assert abs(fit.W[0, 2] - -0.5) < 3 * fit.se[0, 2]
    with pytest.raises(ivvi.InputError, match="the controls x1 are states that actions may move"):
        ivvi.plan(fit, "linear:state=1", (-1, 1))
    assert "fit without controls" in fit.brief.to_json()["next"]


def panel(kind, units=120, steps=10, seed=0):
    """x' = 0.5 x - 0.5 a + bent controls + e; controls are held, drawn anew, or last."""
    rng = np.random.default_rng(seed)
    c, x, parts = rng.uniform(-1, 1, size=(units, 2)), rng.normal(size=units), []
    for step in range(steps):
        if kind != "held":
            new = rng.uniform(-1, 1, size=(units, 2))
            c = new if kind == "drawn" else 0.8 * c + 0.2 * new
        g = 2 + 3 * c[:, 0] ** 2 + c[:, 1]
        z, e = rng.normal(size=(2, units))
        a = z + 0.5 * g + 0.7 * e
        parts.append(np.column_stack([np.arange(units), np.full(units, step), x, c, a, z, g]))
        x = 0.5 * x - 0.5 * a + g + e
    names = ("unit", "step", "x", "c0", "c1", "a", "z", "g")
    data = dict(zip(names, np.array(parts).transpose(1, 0, 2).reshape(-1, 8).T, strict=True))
    data["unit"] = np.char.add("u", data["unit"].astype(int).astype(str))
    columns = {"state": "x", "action": "a", "instrument": "z", "context": "c*"}
    return ivvi.read_logs(data, **columns, episode="unit", step="step"), data["g"]


BENT = make_pipeline(SplineTransformer(6), LinearRegression())


@pytest.mark.filterwarnings("ignore:a is allowed from -9 to 9")
@pytest.mark.usefixtures("few_episodes")
def test_controls_that_are_drawn_anew_are_noise_to_a_plan(tmp_path):
    log, g = panel("drawn")
    fit = ivvi.fit(log, controls="c*", learner=BENT)
    assert fit.partialled.later == "drawn"
    assert fit.roles.state == ("x",)
    rows = log.to_batch()
    rest = rows.y[:, 0] - fit.W[0, 1] * rows.x[:, 0] - fit.W[0, 2] * rows.a[:, 0]
    assert fit.W[0, 0] == pytest.approx(rest.mean())
    assert fit.estimate.noise_cov[0, 0] == pytest.approx(rest.var(ddof=1))
    truth = np.array([g.mean(), 0.5, -0.5])
    assert (np.abs(fit.W[0] - truth) < 4 * fit.se[0]).all()
    fit.save(tmp_path / "model")
    model = ivvi.load_model(tmp_path / "model")
    policy = ivvi.plan(model, "quadratic:weight=1,target=1", (-9, 9), horizon=3, **PLANNED)
    best = (0.5 * np.array([0.0, 2.0]) + g.mean() - 1) / 0.5  # lands on the target in the mean
    np.testing.assert_allclose(policy(np.array([[0.0], [2.0]]))[:, 0], best, atol=0.4)
    worth = ivvi.value(policy, ivvi.load_fit(tmp_path / "model"), draws=20, against=("behaviour",))
    assert worth.gains["behaviour"].interval[0] > 0
    with pytest.raises(ivvi.InputError, match="no absorbed effects"):
        fit.of_unit(unit="u3")


@pytest.mark.filterwarnings("ignore:a is allowed from -9 to 9")
@pytest.mark.usefixtures("few_episodes")
def test_controls_that_are_held_are_a_constant_of_each_episode(tmp_path):
    log, g = panel("held", units=200)
    fit = ivvi.fit(log, controls="c*", learner=BENT)
    assert fit.partialled.later == "held"
    fit.save(tmp_path / "model")
    again = ivvi.load_fit(tmp_path / "model")
    (units,) = again.effects
    assert (len(units), units.column) == (200, "unit")
    constants = [units[f"u{i}"][0] for i in range(200)]
    assert np.corrcoef(constants, g[::10])[0, 1] > 0.98
    one = again.of_unit(unit="u7")
    assert one.W[0, 0] == pytest.approx(fit.W[0, 0] + units["u7"][0])
    problem = ("quadratic:weight=1,target=1", (-9, 9))
    acts = [
        ivvi.plan(f, *problem, horizon=3, **PLANNED)(np.zeros((1, 1)))[0, 0] for f in (one, again)
    ]
    assert acts[0] - acts[1] == pytest.approx(2 * units["u7"][0], abs=0.1)
    asked = {"reward": problem[0], "actions": problem[1], "horizon": 2, "draws": 20}
    assert "least-squares" in ivvi.value("zero", again, **asked).values
    assert "least-squares" not in ivvi.value("zero", one, **asked).values


def test_controls_that_a_plan_would_have_to_predict_are_refused(tmp_path):
    fit = ivvi.fit(panel("lasting")[0], controls="c*", learner=BENT)
    fit.save(tmp_path / "model")
    for model in (fit, ivvi.load_model(tmp_path / "model")):
        with pytest.raises(
            ivvi.InputError, match=r"persists \(correlation 0\.\d+ with the step before"
        ):
            ivvi.plan(model, "linear:state=1", (-1, 1))
    with pytest.raises(ivvi.InputError, match="only moments without these"):
        ivvi.update(tmp_path / "model", panel("lasting")[0])


def test_one_decision_with_controls_is_planned_for_a_learned_reward():
    """Rows of their own: the outcome is the reward, and a column that is kept is the state."""
    data = rows(7, n=900)
    kept = np.random.default_rng(1).normal(size=900)
    data |= {"kept": kept, "y": data["y"] + kept}
    columns = {"action": "a", "instrument": "z0", "context": "kept", "reward": "y"}
    log = ivvi.read_logs(data, state=(), **columns)
    fit = ivvi.fit(log, controls="c*", learner=BENT)
    assert (fit.partialled.later, fit.roles.outputs) == ("drawn", ("y",))
    policy = ivvi.plan(fit, "learned", (-1, 2), horizon=1, **PLANNED)
    np.testing.assert_allclose(policy(np.array([[0.0], [1.0]])), 2.0, atol=1e-6)
    bare = ivvi.fit(
        ivvi.read_logs(data, state=(), action="a", instrument="z0", reward="y"), controls="c*"
    )
    with pytest.raises(ivvi.InputError, match="the model has no states"):
        ivvi.plan(bare, "learned", (-1, 2), horizon=1)


def test_learners_and_settings_that_cannot_be_used_are_refused():
    log = opened(rows(n=60))
    shown = {
        "without controls": {"learner": "lasso"},
        "unknown learner 'lass'": {"controls": "c*", "learner": "lass"},
        "linear features": {"controls": "c*", "phi": "poly2"},
        "absorbed effects": {"controls": "c*", "absorb": "c1"},
        "expected 2 or more": {"controls": "c*", "folds": 1},
        "60 rows cannot make 61 folds": {"controls": "c*", "folds": 61},
        "controls column 'age'": {"controls": "age"},
        "cannot be imported": {"controls": "c*", "learner": "nowhere:thing"},
        "not a scikit-learn regressor": {"controls": "c*", "learner": "math:pi"},
        "expected auto, lasso, forest": {"controls": "c*", "learner": 3},
        "the learner of 'a' failed": {"controls": "c*", "learner": KNeighborsRegressor(500)},
    }
    for words, settings in shown.items():
        with pytest.raises(ivvi.InputError, match=words):
            ivvi.fit(log, **settings)


def test_controls_that_determine_a_column_are_refused_by_name():
    data = rows(n=100)
    data["c9"] = 2 * data["a"] + 1
    with pytest.raises(ivvi.InputError, match="determine 'a'"):
        ivvi.fit(opened(data), controls="c*", learner=LinearRegression())


def test_without_scikit_learn_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sklearn.base", None)
    with pytest.raises(ivvi.InputError, match=r"pip install 'ivvi\[sklearn\]'"):
        ivvi.fit(opened(rows(n=60)), controls="c*")


MODULE = """
from sklearn.linear_model import LinearRegression, Ridge
ready = Ridge(alpha=1.0)
def made():
    return Ridge(alpha=1.0)
"""


def test_the_shell_takes_words_and_learners_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_learners.py").write_text(MODULE)
    write_table(rows(n=100), tmp_path / "log.parquet")
    columns = ("--state", "", "--action", "a", "--instrument", "z0", "--next-state", "y")
    options = ("fit", "log.parquet", *columns, "--controls", "c*", "--out")
    weights = {}
    for name in ("lasso", "own_learners:ready", "own_learners:made", "own_learners:Ridge"):
        out = f"{name.replace(':', '-')}.json"
        result = run(*options, f"model-{name[-4:]}", "--learner", name, "--json", out)
        assert result.code == 0, result.err
        facts = json.loads((tmp_path / out).read_text())
        assert facts["controls"]["learner"] == name
        weights[name] = facts["W"]
    assert (
        weights["own_learners:ready"]
        == weights["own_learners:made"]
        == weights["own_learners:Ridge"]
    )
    assert_refused(run(*options, "other", "--learner", "own_learners:none"), "cannot be imported")
    assert_refused(
        run(
            "plan",
            "model-asso",
            "--reward",
            "linear:state=1",
            "--action-low",
            "-1",
            "--action-high",
            "1",
            "--out",
            "policy",
        ),
        "the model has no states",
    )
    ivvi.load_fit(tmp_path / "model-eady")  # which imports nothing of one's own


def test_a_control_that_is_no_state_may_change_within_episodes():
    rows = make_rows(30, 10)
    rows["c0"] = np.random.default_rng(3).normal(size=len(rows["x0"]))
    fit = ivvi.fit(rows, controls="c0")
    assert fit.partialled.controls == ("c0",)
