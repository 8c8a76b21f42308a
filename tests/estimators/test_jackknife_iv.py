"""JIVE1, IJIVE and UJIVE: against their definitions, published digits, and many instruments."""

from pathlib import Path

import numpy as np
import pytest

import ivvi
from ivvi import InputError
from ivvi.estimators.covariance.bekker import with_bekker
from ivvi.estimators.kclass import liml_k
from ivvi.estimators.registry import make_method
from ivvi.features.design import build_design
from ivvi.moments import compute_moments

DATA = Path(__file__).parents[3] / "shared" / "data" / "iv"
pytestmark = pytest.mark.filterwarnings("ignore::ivvi.errors.IvviWarning")


def make_rows(rows=400, groups=25, seed=0):
    rng = np.random.default_rng(seed)
    g, u = rng.integers(groups, size=rows), rng.normal(size=rows)
    x = rng.normal(size=rows) + 3
    a = rng.normal(size=groups)[g] + u + rng.normal(size=rows) + 0.3 * x
    y = -0.5 * a + 0.2 * x + u + rng.normal(size=rows)
    z = {f"z{k}": (g == k).astype(float) for k in range(1, groups)}
    return {"x": x, "a": a, "y": y, "w": rng.integers(1, 3, size=rows).astype(float), **z}


def by_hand(rows, kind):
    """Return the coefficient of a and its standard error by matrices of all rows."""
    y, a = rows["y"], rows["a"]
    w = np.column_stack([np.ones(len(y)), rows["x"]])
    psi = np.column_stack([w, *(v for k, v in rows.items() if k.startswith("z"))])
    H, H_w = (m @ np.linalg.pinv(m) for m in (psi, w))
    h, low = np.diag(H), np.diag(H_w)
    D, left = a - H_w @ a, a - H @ a
    if kind == "ujive":
        P = (H - H_w) @ a - (h - low) / (1 - h) * left
    else:
        t = left / (1 - h + (low if kind == "ijive" else 0))
        P = D - (t - H_w @ t)
    b = (P @ y) / (P @ a)
    e = y - H_w @ y - b * D
    return b, np.sqrt(np.sum((P * e) ** 2)) / abs(P @ a)


def open_log(rows, **more):
    columns = {"state": "x", "action": "a", "instrument": "z*", "next_state": "y"}
    return ivvi.read_logs(rows, **columns | more)


@pytest.mark.parametrize("kind", ["ujive", "ijive", "jive1"])
def test_the_estimates_are_those_of_the_definition(kind):
    rows = make_rows()
    fit = ivvi.estimate(open_log(rows), method=kind)
    at = fit.estimate.design.phi_names.index("a")
    expected, se = by_hand(rows, kind)
    assert fit.W[0, at] == pytest.approx(expected, rel=1e-9)
    assert fit.se[0, at] == pytest.approx(se, rel=1e-9)
    given = np.column_stack([np.ones(400), rows["x"]])
    rest = np.linalg.lstsq(given, rows["y"] - expected * rows["a"], rcond=None)[0]
    np.testing.assert_allclose(fit.W[0, :2], rest, rtol=1e-8)
    assert np.isfinite(fit.se).all()


def test_a_weight_of_two_counts_as_two_rows():
    rows = make_rows()
    weighted = ivvi.estimate(open_log(rows, weight="w"), method="liml", se="robust")
    assert np.isfinite(ivvi.estimate(open_log(rows, weight="w"), method="ujive").se).all()
    assert weighted.estimate.n == 400


def test_many_instruments_bias_two_stages_and_not_the_jackknife():
    """Means over 30 logs; truth -0.5, within four standard errors of the mean."""
    found = {"exact": [], "ujive": []}
    for seed in range(30):
        log = open_log(make_rows(300, 40, seed=seed))
        moments, _ = compute_moments(log, build_design(log, "linear"))
        for method, values in found.items():
            values.append(make_method(method).solve(moments, log).W[0, 2])
    mean = {method: np.mean(values) for method, values in found.items()}
    error = {method: np.std(values) / np.sqrt(30) for method, values in found.items()}
    assert mean["exact"] > -0.5 + 5 * error["exact"]
    assert abs(mean["ujive"] + 0.5) < 4 * error["ujive"]


def dummies(values, name, but=0):
    return {f"{name}{v}": (values == v) * 1.0 for v in sorted(set(values.tolist()))[but:]}


@pytest.mark.skipif(not DATA.exists(), reason="the data are not here")
def test_alaska_has_the_published_digits():
    frame = pytest.importorskip("pandas").read_parquet(DATA / "angrist_krueger_1980.parquet")
    frame = frame[frame.sob == "AK"]
    year, quarter = frame.yob.to_numpy(), frame.qob.astype(str).to_numpy()
    z = {
        f"z{q}{v}": (quarter == q) * d
        for q in ("Q2", "Q3", "Q4")
        for v, d in dummies(year, "").items()
    }
    x = dummies(year, "x", 1)
    rows = {"y": frame.lwage.to_numpy(float), "a": frame.education.to_numpy(float), **x, **z}
    fit = ivvi.estimate(open_log(rows, state="x*"), method="ujive", se="robust")
    at = fit.estimate.design.phi_names.index("a")
    assert fit.W[0, at] == pytest.approx(0.090491169, abs=5e-10)
    assert fit.se[0, at] == pytest.approx(0.211386425, abs=5e-10)


@pytest.mark.thorough
@pytest.mark.skipif(not DATA.exists(), reason="the data are not here")
def test_patents_have_the_published_digits():
    frame = pytest.importorskip("pandas").read_parquet(DATA / "fhl.parquet").iloc[:1000]
    x = dummies(frame.gau.astype(str).to_numpy(), "x", 1)
    z = dummies(frame.examiner.astype(str).to_numpy(), "z")
    known = {values.tobytes() for values in x.values()}
    z = {name: values for name, values in z.items() if values.tobytes() not in known}
    y = frame.ln_total_patents_appl.to_numpy(float)
    rows = {"y": y, "a": frame.dallowed.to_numpy(float), **x, **z}
    log = open_log(rows, state="x*")
    moments, _ = compute_moments(log, build_design(log, "linear"))
    fit = make_method("ujive").solve(moments, log)
    at = moments.design.phi_names.index("a")
    assert fit.W[0, at] == pytest.approx(2.452386784, abs=5e-10)
    assert fit.se[0, at] == pytest.approx(2.151379876, abs=5e-10)


@pytest.mark.thorough
@pytest.mark.skipif(not DATA.exists(), reason="the data are not here")
def test_table_v_has_the_published_digits():
    """Angrist and Krueger's 30 instruments, with the years absorbed."""
    frame = pytest.importorskip("pandas").read_parquet(DATA / "angrist_krueger_1980.parquet")
    year, quarter = frame.yob.to_numpy(), frame.qob.astype(str).to_numpy()
    z = {
        f"z{q}{v}": (quarter == q) * d
        for q in ("Q1", "Q2", "Q3")
        for v, d in dummies(year, "").items()
    }
    rows = {"y": frame.lwage.to_numpy(float), "a": frame.education.to_numpy(float), "yob": year}
    log = open_log(rows | z, state=())
    published = {
        ("exact", "unadjusted"): (0.0891154613, 0.0161098202),
        ("exact", "robust"): (0.0891154613, 0.0162120317),
        ("liml", "unadjusted"): (0.0928764165, 0.0177441446),
    }
    for (method, kind), (expected, se) in published.items():
        errors = ivvi.StandardErrors(kind, debiased=False)
        fit = ivvi.estimate(log, method=method, absorb="yob", se=errors)
        assert fit.W[0, 1] == pytest.approx(expected, abs=5e-11)
        assert fit.se[0, 1] == pytest.approx(se, abs=5e-11)


@pytest.mark.slow
@pytest.mark.skipif(not DATA.exists(), reason="the data are not here")
def test_table_vii_has_the_published_digits():
    """Angrist and Krueger's 180 instruments by a formula, years and states absorbed."""
    source = str(DATA / "angrist_krueger_1980.parquet")
    formula = "lwage ~ 1 | yob + sob | education ~ C(qob) + C(qob):C(yob) + C(qob):C(sob)"
    log = ivvi.read_logs(source, formula=formula)
    published = {
        ("exact", "unadjusted"): (0.0928180625, 0.0093013345),
        ("exact", "robust"): (0.0928180625, 0.0096641481),
        ("liml", "unadjusted"): (0.1063979834, 0.0116383738),
    }
    for (method, kind), (expected, se) in published.items():
        fit = ivvi.estimate(log, method=method, se=ivvi.StandardErrors(kind, debiased=False))
        assert len(fit.moments.design.psi_names) == 181
        digits = 1e-9 if method == "liml" else 5e-11
        assert fit.W[0, -1] == pytest.approx(expected, abs=digits)
        assert fit.se[0, -1] == pytest.approx(se, abs=digits)


def test_what_a_jackknife_cannot_do_is_refused():
    rows = make_rows(100, 5)
    with pytest.raises(InputError, match="only robust standard errors"):
        ivvi.estimate(open_log(rows), method="ujive", se="unadjusted")
    shard = ivvi.estimate(open_log(rows), episodes=True).shard
    with pytest.raises(InputError, match="ujive"):
        ivvi.estimate(shard, method="ujive")
    with pytest.raises(InputError, match="unknown method 'ujiv'"):
        ivvi.estimate(open_log(rows), method="ujiv")
    alone = {**rows, **{f"z{k}": np.eye(100)[k] for k in range(1, 99)}}
    with pytest.raises(InputError):
        ivvi.estimate(open_log(alone), method="ujive", se="robust")


def test_ijive_of_absorbed_effects_is_that_of_dummies_and_others_are_refused():
    rows, g = make_rows(600, 15), np.random.default_rng(1).integers(40, size=600)
    rows |= {"g": g, "y": rows["y"] + np.sin(g), "a": rows["a"] + np.cos(g)}
    absorbed = ivvi.estimate(open_log(rows), absorb="g", method="ijive", se="robust")
    with_dummies = rows | {f"d{k}": (g == k) * 1.0 for k in range(1, 40)}
    expected = ivvi.estimate(open_log(with_dummies, state="x,d*"), method="ijive", se="robust")
    at = expected.estimate.design.phi_names.index("a")
    assert absorbed.W[0, 2] == pytest.approx(expected.W[0, at], rel=1e-9)
    assert absorbed.se[0, 2] == pytest.approx(expected.se[0, at], rel=0.01)
    for kind in ("ujive", "jive1"):
        with pytest.raises(InputError, match="use ijive"):
            ivvi.estimate(open_log(rows), absorb="g", method=kind, se="robust")


def test_the_verdict_recommends_a_jackknife_where_many_weak_instruments_are_strong_together():
    rng = np.random.default_rng(4)
    n, q = 800, 16
    z, u = rng.normal(size=(n, q)), rng.normal(size=n)

    def diagnosed(strength, count=q, **options):
        a = z[:, :count] @ np.full(count, np.sqrt(strength / n)) + u + rng.normal(size=n)
        rows = {"a": a, "y": -0.5 * a + u, **{f"z{k}": z[:, k] for k in range(count)}}
        rows |= {"firm": np.arange(n) // 10}
        return ivvi.estimate(open_log(rows, state=()), **{"se": "unadjusted"} | options)

    spread = diagnosed(6)
    assert spread.diagnostics.verdict.method == "ujive"
    assert spread.to_json()["diagnostics"]["recommended_method"] == "ujive"
    assert "--method ujive" in dict(spread.brief.items)["Next"]
    assert "estimator         ujive" in spread.summary()
    taken = diagnosed(6, method="ujive", se="robust")
    assert "--method ujive" not in dict(taken.brief.items)["Next"]
    assert diagnosed(0.1).diagnostics.verdict.method == ""  # weak together
    assert diagnosed(200).diagnostics.verdict.method == ""  # strong one by one
    assert diagnosed(6, 4).diagnostics.verdict.method == ""  # few
    by_firm = diagnosed(6, se=ivvi.StandardErrors("clustered", "firm"))
    assert by_firm.diagnostics.verdict.method == ""  # rows that depend on each other


# Bekker's standard errors for LIML and Fuller


def bekker_by_hand(rows, c=0.0):
    """Return LIML's (or Fuller's) coefficients and Bekker's covariance by matrices of all rows."""
    y, n = rows["y"], len(rows["y"])
    X = np.column_stack([np.ones(n), rows["x"], rows["a"]])
    Z = np.column_stack([X[:, :2], *(v for k, v in rows.items() if k.startswith("z"))])
    P, both = Z @ np.linalg.pinv(Z), np.column_stack([y, X])
    a = np.linalg.eigvals(np.linalg.solve(both.T @ both, both.T @ P @ both)).real.min()
    k = 1 / (1 - a) - c / (n - Z.shape[1])
    a = 1 - 1 / k
    H = X.T @ P @ X - a * X.T @ X
    w = np.linalg.solve(H, X.T @ P @ y - a * X.T @ y)
    u = y - X @ w
    alpha = u @ P @ u / (u @ u)
    left = X - np.outer(u, u @ X) / (u @ u)
    middle = (1 - alpha) ** 2 * left.T @ P @ left + alpha**2 * (left.T @ left - left.T @ P @ left)
    return w, u @ u / n * np.linalg.inv(H) @ middle @ np.linalg.inv(H)


@pytest.mark.parametrize(("method", "c"), [("liml", 0.0), ("fuller:1", 1.0)])
def test_bekker_errors_are_those_of_the_definition(method, c, tmp_path):
    rows = make_rows()
    log = open_log(rows)
    fit = ivvi.estimate(log, method=method, se="bekker")
    assert fit.estimate.design.phi_names == ("1", "x", "a")
    w, covariance = bekker_by_hand(rows, c)
    np.testing.assert_allclose(fit.W[0], w, rtol=1e-8)
    np.testing.assert_allclose(fit.estimate.W_cov.blocks[0], covariance, rtol=1e-7)
    usual = ivvi.estimate(log, method=method, se="unadjusted")
    np.testing.assert_array_equal(fit.W, usual.W)
    assert fit.se[0, 2] > usual.se[0, 2]
    assert "Bekker's for many instruments" in fit.summary()
    fit.save(tmp_path / "model")
    loaded = ivvi.load_fit(tmp_path / "model")
    assert (loaded.to_json()["bekker"], loaded.to_json()["se_kind"]) == (True, "unadjusted")
    again = ivvi.estimate(fit.shard, method=method, se="bekker")  # from the sums alone
    np.testing.assert_allclose(again.se, fit.se, rtol=1e-12)


def test_bekker_errors_of_other_methods_are_refused():
    for method in ("exact", "ujive", "gmm"):
        with pytest.raises(InputError, match=r"liml and fuller:1; the method is|robust"):
            ivvi.estimate(open_log(make_rows()), method=method, se="bekker")


@pytest.mark.thorough
def test_bekker_errors_cover_with_many_weak_instruments_where_the_usual_do_not():
    """100 instruments of 300 rows, first-stage F about 1.6; 100 draws, binomial sd 2.2%."""
    rng, hits = np.random.default_rng(3), np.zeros(2)
    draws, n, q = 100, 300, 100
    for _ in range(draws):
        z, u = rng.normal(size=(n, q)), rng.normal(size=n)
        a = z.sum(axis=1) * np.sqrt(0.2 / q) + 0.2 * u + rng.normal(size=n)
        rows = {"a": a, "y": -0.5 * a + u, **{f"z{k}": z[:, k] for k in range(q)}}
        log = open_log(rows, state=())
        moments, _ = compute_moments(log, build_design(log, "linear"))
        estimate = make_method("liml").solve(moments)
        many = with_bekker(estimate, moments, liml_k(moments))
        hits += [abs(e.W[0, 1] + 0.5) < 1.96 * e.se[0, 1] for e in (estimate, many)]
    usual, bekker = hits / draws
    assert usual < 0.85
    assert abs(bekker - 0.95) < 3 * np.sqrt(0.95 * 0.05 / draws)
