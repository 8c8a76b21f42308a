"""The real libraries at the door: scikit-learn, Minari's program, pandas, polars, Arrow, DuckDB."""

import subprocess
import sys
from pathlib import Path

import duckdb
import linearmodels
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import sklearn
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import ivvi
from helpers import make_rows
from ivvi import InputError
from ivvi.sklearn import IVRegressor

FEWER_ROWS = "fewer rows than coefficients are refused"
EXPECTED = {
    "check_sample_weight_equivalence_on_dense_data": FEWER_ROWS,
    "check_regressor_multioutput": FEWER_ROWS,
}


@pytest.fixture
def wages():
    """Return a cross-section: age is exogenous, educ is not, two instruments."""
    rng = np.random.default_rng(0)
    z, (e, age) = rng.normal(size=(400, 2)), rng.normal(size=(2, 400))
    educ = z @ [1.0, 0.5] + e + rng.normal(size=400)
    X = pd.DataFrame({"educ": educ, "age": age})
    return X, 0.5 * educ + 0.2 * age + e, z


# scikit-learn


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_scikit_learn_finds_a_well_behaved_estimator():
    """All checks but those whose data have fewer rows than coefficients; these say so."""
    results = check_estimator(IVRegressor(), expected_failed_checks=EXPECTED, on_fail=None)
    by_status = {}
    for check in results:
        by_status.setdefault(check["status"], {})[check["check_name"]] = check["exception"]
    assert by_status.get("failed", {}) == {}
    assert by_status["xfail"].keys() == EXPECTED.keys()
    for error in by_status["xfail"].values():
        assert "expected more rows" in str(error)
    assert len(by_status["passed"]) > 30


def test_it_is_two_stage_least_squares(wages):
    X, y, z = wages
    ours = IVRegressor(actions=["educ"]).fit(X, y, Z=z)
    exog = np.column_stack([np.ones(len(X)), X["age"]])
    theirs = linearmodels.IV2SLS(y, exog, X["educ"].to_numpy(), z).fit(cov_type="robust")
    constant, age, educ = np.asarray(theirs.params)
    assert np.allclose([ours.intercept_, *ours.coef_], [constant, educ, age], atol=1e-10)
    assert np.allclose(ours.estimate_.se[0], np.asarray(theirs.std_errors), rtol=1e-6)
    assert np.allclose(ours.predict(X), constant + educ * X["educ"] + age * X["age"])
    assert ours.fit_.diagnostics.effective_f.value > 100


def test_without_instruments_it_is_least_squares(wages):
    X, y, _ = wages
    ours = IVRegressor().fit(X, y)
    theirs = sklearn.linear_model.LinearRegression().fit(X, y)
    assert np.allclose(ours.coef_, theirs.coef_)
    assert np.allclose(ours.score(X, y), theirs.score(X, y))


@pytest.mark.filterwarnings("ignore:the instruments contradict", "ignore:.* exact copies")
def test_several_outputs_weights_and_groups_are_taken(wages):
    X, y, z = wages
    Y, weight = np.column_stack([y, 2 * y]), np.arange(len(y)) % 3 + 1.0
    fit = IVRegressor(actions=[0]).fit(X, Y, Z=z, sample_weight=weight, groups=np.arange(400) // 8)
    assert fit.coef_.shape == (2, 2)
    assert np.allclose(fit.coef_[1], 2 * fit.coef_[0])
    again = np.repeat(np.arange(400), weight.astype(int))
    repeated = IVRegressor(actions=[0]).fit(X.iloc[again], Y[again], Z=z[again])
    assert np.allclose(fit.coef_, repeated.coef_)
    assert fit.fit_.to_json()["se_kind"] == "clustered"


def test_an_unknown_column_is_refused(wages):
    X, y, z = wages
    with pytest.raises(InputError, match="X has no column 'salary'"):
        IVRegressor(actions=["salary"]).fit(X, y, Z=z)
    with pytest.raises(InputError, match=r"actions \[0\] are endogenous; expected instruments Z"):
        IVRegressor(actions=[0]).fit(X, y)


@pytest.mark.filterwarnings("ignore:weak instruments", "ignore:doubtful instruments")
def test_columns_may_be_counted_from_the_end(wages):
    X, y, z = wages
    last = X.shape[1] - 1
    one, two = (IVRegressor(actions=[c]).fit(X, y, Z=z) for c in (last, -1))
    np.testing.assert_array_equal(two.coef_, one.coef_)
    np.testing.assert_array_equal(two.predict(X), one.predict(X))
    for actions in ([last + 1], [-last - 2], [0, 0], [last, -1]):
        with pytest.raises(InputError, match="are not distinct columns of X"):
            IVRegressor(actions=actions).fit(X, y, Z=z)


@pytest.mark.filterwarnings("ignore:weak instruments", "ignore:doubtful instruments")
def test_instruments_travel_through_cross_validation_and_pipelines(wages):
    X, y, z = wages
    with sklearn.config_context(enable_metadata_routing=True):
        model = IVRegressor(actions=[0]).set_fit_request(Z=True)
        pipeline = make_pipeline(StandardScaler(), model)
        scores = cross_validate(pipeline, X, y, params={"Z": z}, cv=3)["test_score"]
        search = GridSearchCV(model, {"features": ["linear", "poly2"]}, cv=3).fit(X, y, Z=z)
    assert np.isfinite(scores).all()
    assert search.best_params_["features"] in ("linear", "poly2")


# Tables


def address(column):
    """Return where the numbers of a column of one chunk are in memory."""
    chunk = column.chunks[0] if isinstance(column, pa.ChunkedArray) else column
    return chunk.buffers()[1].address


TABLES = {
    "Arrow": (pa.table, lambda table: address(table["x0"])),
    "polars": (pl.DataFrame, lambda table: table["x0"].to_numpy(allow_copy=False).ctypes.data),
    "pandas": (pd.DataFrame, lambda table: table["x0"].to_numpy().ctypes.data),
    "arrays": (dict, lambda table: table["x0"].ctypes.data),
}


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_in_memory_is_not_copied(kind):
    make, where = TABLES[kind]
    table = make(make_rows())
    log = ivvi.read_logs(table)
    assert address(log.table.table["x0"]) == where(table)
    assert np.array_equal(ivvi.estimate(log).W, ivvi.estimate(make_rows()).W)


def test_a_query_of_duckdb_is_a_log():
    rows = pa.table(make_rows(episodes=12))
    query = duckdb.sql("SELECT * EXCLUDE (reward) FROM rows WHERE episode < 6")
    assert np.array_equal(ivvi.estimate(query).W, ivvi.estimate(rows.slice(0, 60)).W)


# Minari


def test_minari_lists_what_we_write_and_we_read_it_back(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    log = ivvi.read_logs(make_rows(), reward="reward")
    log.to_minari("clinic/visits-v0")
    program = Path(sys.executable).with_name("minari")
    listed = subprocess.run([program, "list", "local"], capture_output=True, text=True, check=True)
    assert "visits-v0" in listed.stdout
    shown = subprocess.run(
        [program, "show", "clinic/visits-v0"], capture_output=True, text=True, check=True
    )
    assert "54" in shown.stdout  # steps with a next state
    again = ivvi.read_logs("minari:clinic/visits-v0", reward="reward")
    assert np.allclose(ivvi.estimate(again).W, ivvi.estimate(log).W, atol=1e-10)
