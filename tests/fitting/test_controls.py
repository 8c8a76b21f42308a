"""Many controls: partially linear IV with cross-fitted learners, and everything else after it."""

import json

import numpy as np
import pytest

import ivvi
from helpers import assert_refused, run, write_table
from ivvi.fitting.partialling import folds_of

sklearn = pytest.importorskip("sklearn")

from sklearn.ensemble import RandomForestRegressor  # noqa: E402
from sklearn.linear_model import LassoCV, LinearRegression  # noqa: E402
from sklearn.neighbors import KNeighborsRegressor  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import SplineTransformer, StandardScaler  # noqa: E402

EFFECT = 0.7


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
    assert np.isclose(fit.W[0, 0], theta, rtol=1e-10)
    assert np.isclose(fit.se[0, 0], np.sqrt(psi @ psi) / abs(z @ a), rtol=1e-8)


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
    assert np.allclose(fit.W[0, 0], peer.coef, rtol=1e-6)
    assert np.allclose(fit.se[0, 0], peer.se, rtol=1e-6)


def test_bent_controls_bias_a_linear_fit_and_not_a_learner():
    data = rows(n=1500, width=2)
    straight = ivvi.fit(opened(data, state="c*"))
    bends = make_pipeline(SplineTransformer(12), LinearRegression())
    fit = ivvi.fit(opened(data), controls="c*", learner=bends)
    assert abs(straight.W[0, 3] - EFFECT) > 5 * straight.se[0, 3]
    assert abs(fit.W[0, 0] - EFFECT) < 3 * fit.se[0, 0]
    assert fit.partialled.explained["a"] > 0.3


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
    assert np.allclose(fit.W, again.W)
    assert np.allclose(fit.se, again.se)
    J, other = (one.to_json()["diagnostics"]["hansen_j"] for one in (fit, again))
    assert J is not None
    assert np.isclose(next(iter(J.values()))["value"], next(iter(other.values()))["value"])
    mine = ivvi.interval(fit, "y", "a")
    assert np.allclose(mine.intervals, ivvi.interval(again, "y", "a", log=again.log).intervals)
    assert fit.partialled.by == "firm"
    assert "3 taken out by LinearRegression, 5 folds of firm" in fit.summary()
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
    assert np.isclose(fit.W[0, 0], (weight * z) @ y / ((weight * z) @ a))


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
    assert fit.estimate.design.phi_names == ("x0", "a0")
    assert fit.estimate.design.outputs == ("next_x0", "next_x1")
    assert fit.partialled.by == "episode"
    assert abs(fit.W[0, 0] - 0.5) < 3 * fit.se[0, 0]
    assert abs(fit.W[0, 1] - -0.5) < 3 * fit.se[0, 1]


def test_what_controls_left_is_no_model_to_plan_with(tmp_path):
    data = rows(n=300)
    fit = ivvi.fit(opened(data), controls="c*", learner=LinearRegression())
    fit.save(tmp_path / "model")
    for model in (fit, ivvi.load_model(tmp_path / "model")):
        with pytest.raises(ivvi.InputError, match="c0, c1, c2 were taken out before this fit"):
            ivvi.plan(model, "linear:state=1", (-1, 1))
    with pytest.raises(ivvi.InputError, match="keeps no moments"):
        ivvi.update(tmp_path / "model", data)
    assert "fit without controls" in fit.brief.to_json()["next"]


def test_learners_and_settings_that_cannot_be_used_are_refused():
    log = opened(rows(n=60))
    shown = {
        "no controls": {"learner": "lasso"},
        "unknown learner 'lass'": {"controls": "c*", "learner": "lass"},
        "linear features": {"controls": "c*", "phi": "poly2"},
        "absorbed effects": {"controls": "c*", "absorb": "c1"},
        "expected 2 or more": {"controls": "c*", "folds": 1},
        "60 rows cannot make 61 folds": {"controls": "c*", "folds": 61},
        "controls column 'age'": {"controls": "age"},
        "cannot be imported": {"controls": "c*", "learner": "nowhere:thing"},
        "not a scikit-learn regressor": {"controls": "c*", "learner": "math:pi"},
        "expected lasso, forest": {"controls": "c*", "learner": 3},
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
    found = {}
    for name in ("lasso", "own_learners:ready", "own_learners:made", "own_learners:Ridge"):
        out = f"{name.replace(':', '-')}.json"
        result = run(*options, f"model-{name[-4:]}", "--learner", name, "--json", out)
        assert result.code == 0, result.err
        facts = json.loads((tmp_path / out).read_text())
        assert facts["controls"]["learner"] == name
        found[name] = facts["W"]
    assert found["own_learners:ready"] == found["own_learners:made"] == found["own_learners:Ridge"]
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
        "taken out before this fit",
    )
    ivvi.load_fit(tmp_path / "model-eady")  # which imports nothing of one's own
