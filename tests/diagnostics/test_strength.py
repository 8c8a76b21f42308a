"""First stages, rank tests and critical values against linearmodels, ivmodels and formulas.

Kleibergen-Paap, Sanderson-Windmeijer and the effective F are in neither peer: they are
worked out here from the rows, by other routes than the package takes.
"""

import numpy as np
import pytest
from scipy import stats

import ivvi
from helpers import TEXTBOOK, dependent_log, dependent_rows, mark_thorough, textbook_rows
from ivvi import StandardErrors
from ivvi.diagnostics import diagnose
from ivvi.diagnostics.stock_yogo import bias_values, size_values
from ivvi.diagnostics.tails_and_quantiles import noncentral_quantile, noncentral_tail

lm = pytest.importorskip("linearmodels.iv")
ivmodels_tests = pytest.importorskip("ivmodels.tests")
pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore:weak instruments")]
SHAPES = {  # d_x, d_a, d_z
    "one, just identified": (2, 1, 1),
    "one, over-identified": (2, 1, 3),
    "three, just identified": (0, 3, 3),
    "three, over-identified": (1, 3, 5),
}
KINDS = ("robust", "clustered")


@pytest.fixture(
    params=mark_thorough([*SHAPES, *TEXTBOOK], "card", "wage2"), name="data", scope="module"
)
def rows_of_a_shape_or_a_textbook(request):
    if request.param in TEXTBOOK:
        return textbook_rows(request.param)
    d_x, d_a, d_z = SHAPES[request.param]
    return dependent_rows(31, d_x=d_x, d_a=d_a, d_z=d_z)


def partial_out(data, weight=1.0):
    """Return actions and instruments after regression on [1, x], and the latter's width.

    Rows are multiplied by the roots of their weights.
    """
    root = np.sqrt(weight) * np.ones(len(data[0]))
    x, a, z = (root[:, None] * part for part in data[:3])
    exogenous = np.column_stack([root, x])
    rest = [v - exogenous @ np.linalg.lstsq(exogenous, v)[0] for v in (a, z)]
    return *rest, exogenous.shape[1]


def stage_covariance(X, Z, codes):
    """Return Pi (q, m), residuals, and the sandwich covariance of vec(Pi), columns stacked."""
    Pi = np.linalg.lstsq(Z, X)[0]
    V = X - Z @ Pi
    inverse = np.linalg.inv(Z.T @ Z)
    scores = np.einsum("nm,nq->nmq", V, Z @ inverse).reshape(len(Z), -1)
    sums = np.array([scores[codes == c].sum(axis=0) for c in np.unique(codes)])
    return Pi, V, sums.T @ sums


def codes_of(data, kind):
    return data[4] if kind == "clustered" else np.arange(len(data[0]))


@pytest.mark.parametrize("kind", KINDS)
def test_first_stages_equal_those_of_linearmodels(data, kind):
    x, a, z, y, episode, _ = data
    d = ivvi.estimate(dependent_log(data), se=kind).diagnostics
    clusters = {"clusters": episode} if kind == "clustered" else {}
    exog = np.column_stack([np.ones(len(y)), x])
    for debiased in (False, True):
        other = lm.IV2SLS(y[:, 0], exog, a, z).fit(cov_type=kind, debiased=debiased, **clusters)
        for stage, (_, row) in zip(
            d.first_stage, other.first_stage.diagnostics.iterrows(), strict=True
        ):
            n, k, groups = len(y), exog.shape[1] + z.shape[1], len(np.unique(episode))
            correction = (n - 1) / (n - k) * groups / (groups - 1)
            correction = correction if kind == "clustered" else n / (n - k)
            wald = stage.robust_f.value * z.shape[1] * (1 if debiased else correction)
            assert wald == pytest.approx(row["f.stat"], rel=1e-7)
            assert stage.partial_r2 == pytest.approx(row["partial.rsquared"], rel=1e-7)
    df = (z.shape[1], groups - 1 if kind == "clustered" else n - k)
    assert d.first_stage[0].robust_f.df == df


def kleibergen_paap_by_hand(X, Z, codes):
    """Follow the paper: G Pi F', its singular value decomposition, and the blocks A_2, B_2."""
    n, q, m = len(X), Z.shape[1], X.shape[1]
    Pi, V, covariance = stage_covariance(X, Z, codes)
    G = np.linalg.cholesky(Z.T @ Z / n).T
    F = np.linalg.cholesky(np.linalg.inv(V.T @ V / n)).T
    Theta = G @ Pi @ F.T
    W = n * np.kron(F, G) @ covariance @ np.kron(F, G).T
    U, S, Vt = np.linalg.svd(Theta)
    S = np.pad(np.diag(S), ((0, q - m), (0, 0)))
    r = m - 1
    U22, V22 = U[r:, r:], Vt.T[r:, r:]

    def root(M):
        values, vectors = np.linalg.eigh(M)
        return vectors @ np.diag(np.sqrt(values)) @ vectors.T

    A = U[:, r:] @ np.linalg.inv(U22) @ root(U22 @ U22.T)
    B = root(V22 @ V22.T) @ np.linalg.inv(V22.T) @ Vt.T[:, r:].T
    assert np.allclose(U @ S @ Vt, Theta)
    combine = np.kron(B, A.T)
    value = combine @ Theta.T.ravel()
    return n * value @ np.linalg.solve(combine @ W @ combine.T, value)


@pytest.mark.parametrize("weighted", [False, True], ids=["equal", "weighted"])
@pytest.mark.parametrize("kind", KINDS)
def test_kleibergen_paap_follows_its_definition(data, kind, weighted):
    weight = np.random.default_rng(1).uniform(0.2, 3, len(data[0])) if weighted else np.array(1.0)
    X, Z, k = partial_out(data, weight)
    codes = codes_of(data, kind)
    n, q, m = len(X), Z.shape[1], X.shape[1]
    wanted = kleibergen_paap_by_hand(X, Z, codes)
    d = ivvi.estimate(dependent_log(data, weight if weighted else None), se=kind).diagnostics
    assert d.kleibergen_paap.wald.value == pytest.approx(wanted, rel=1e-6)
    assert d.kleibergen_paap.wald.df == (q - m + 1,)
    groups = len(np.unique(codes))
    small = (n - k - q) / n if kind == "robust" else (n - k - q) / (n - 1) * (groups - 1) / groups
    assert d.kleibergen_paap.f == pytest.approx(wanted * small / q, rel=1e-6)
    if m == 1:
        assert d.kleibergen_paap.f == pytest.approx(d.first_stage[0].robust_f.value, rel=1e-8)


def test_cragg_donald_is_kleibergen_paap_without_heteroskedasticity(data):
    """The rank test that ivmodels has; chi-squared, not corrected for small samples."""
    x, a, z = data[:3]
    d = ivvi.estimate(dependent_log(data), se="unadjusted").diagnostics
    n, k = len(a), 1 + x.shape[1] + z.shape[1]
    statistic, p_value = ivmodels_tests.rank_test(z, a, C=x)
    assert d.cragg_donald_test.value * (n - k) / n == pytest.approx(statistic, rel=1e-7)
    assert d.cragg_donald_test.df == (z.shape[1] - a.shape[1] + 1,)
    assert stats.chi2.sf(statistic, *d.cragg_donald_test.df) == pytest.approx(p_value, abs=1e-12)
    assert d.kleibergen_paap is None
    assert "homoskedastic" in d.reasons["kleibergen_paap"]


def test_conditional_f_follows_its_definition(data):
    """Regress an action on the others by 2SLS, and the residual on the instruments."""
    X, Z, k = partial_out(data)
    n, q, m = len(X), Z.shape[1], X.shape[1]
    d = ivvi.estimate(dependent_log(data)).diagnostics
    fitted = Z @ np.linalg.lstsq(Z, X)[0]
    for i, stage in enumerate(d.first_stage):
        others = np.delete(X, i, axis=1)
        hat = np.delete(fitted, i, axis=1)
        rest = X[:, i] - others @ np.linalg.lstsq(hat, fitted[:, i])[0] if m > 1 else X[:, i]
        inside = Z @ np.linalg.lstsq(Z, rest)[0]
        left = rest - inside
        wanted = (inside @ inside / (q - m + 1)) / (left @ left / (n - k - q))
        assert stage.conditional_f.value == pytest.approx(wanted, rel=1e-6)
        assert stage.conditional_f.df == (q - m + 1, n - k - q)
    if m == 1:
        assert d.first_stage[0].conditional_f.value == pytest.approx(
            d.first_stage[0].partial_f.value, rel=1e-8
        )


@pytest.mark.parametrize("kind", KINDS)
def test_robust_conditional_f_follows_its_definition(data, kind):
    """Robust Wald test of that last regression, in the directions that the others leave free."""
    X, Z, k = partial_out(data)
    Z = Z @ np.linalg.inv(np.linalg.cholesky(Z.T @ Z).T)  # orthonormal
    n, q, m = len(X), Z.shape[1], X.shape[1]
    codes = codes_of(data, kind)
    groups = len(np.unique(codes))
    fitted = Z @ (Z.T @ X)
    d = ivvi.estimate(dependent_log(data), se=kind).diagnostics
    for i, stage in enumerate(d.first_stage):
        hat = np.delete(fitted, i, axis=1)
        rest = X[:, i] - np.delete(X, i, axis=1) @ np.linalg.lstsq(hat, X[:, i])[0]
        left = rest - Z @ (Z.T @ rest)
        scores = np.array([(Z * left[:, None])[codes == c].sum(axis=0) for c in np.unique(codes)])
        used, _, _ = np.linalg.svd(Z.T @ hat)
        free = used[:, m - 1 :]
        value = free.T @ (Z.T @ rest)
        wald = value @ np.linalg.solve(free.T @ scores.T @ scores @ free, value)
        small = (n - k - q) / n
        if kind == "clustered":
            small = (n - k - q) / (n - 1) * (groups - 1) / groups
        statistic = stage.robust_conditional_f
        assert statistic.value == pytest.approx(wald * small / (q - m + 1), rel=1e-6)
        assert statistic.df == (q - m + 1, groups - 1 if kind == "clustered" else n - k - q)
    if m == 1:
        assert statistic.value == pytest.approx(d.first_stage[0].robust_f.value, rel=1e-8)


@pytest.mark.filterwarnings("ignore:the instruments contradict")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("source", [1, 3, 6, *TEXTBOOK])
def test_effective_f_and_its_critical_values_follow_their_definitions(kind, source):
    """x'P_Z x / tr of the first stage's variance, and Patnaik's critical values from SciPy."""
    data = textbook_rows(source) if source in TEXTBOOK else dependent_rows(32, d_z=source)
    X, Z, k = partial_out(data)
    n, d_z = Z.shape
    d = ivvi.estimate(dependent_log(data), se=kind).diagnostics
    codes = codes_of(data, kind)
    Pi, _, covariance = stage_covariance(X, Z, codes)
    groups = len(np.unique(codes))
    rows = n - k - d_z
    covariance *= n / rows if kind == "robust" else (n - 1) / rows * groups / (groups - 1)
    units = np.linalg.cholesky(Z.T @ Z).T  # orthonormal instruments
    white = units @ covariance @ units.T
    value = float(Pi[:, 0] @ Z.T @ Z @ Pi[:, 0]) / np.trace(white)
    assert d.effective_f.value == pytest.approx(value, rel=1e-6)
    x, t, top = 10.0, np.trace(white), np.linalg.eigvalsh(white)[-1]
    dimension = t**2 * (1 + 2 * x) / (np.sum(white**2) + 2 * x * t * top)
    assert d.effective_f.dimension == pytest.approx(dimension, rel=1e-6)
    for share, found in zip((0.05, 0.1, 0.2, 0.3), d.effective_f.critical, strict=True):
        x = 1 / share
        K = t**2 * (1 + 2 * x) / (np.sum(white**2) + 2 * x * t * top)
        assert found == pytest.approx(stats.ncx2.ppf(0.95, K, x * K) / K, rel=1e-6)
    if d_z == 1:
        assert value == pytest.approx(d.kleibergen_paap.f, rel=1e-6)


def test_critical_values_of_one_instrument_are_the_published_ones():
    """Those that Montiel Olea and Pflueger's software prints, with 1 / 0.3 rounded to 3.33."""
    d = ivvi.estimate(dependent_log(dependent_rows(33, d_z=1))).diagnostics
    np.testing.assert_allclose(d.effective_f.critical, [37.418, 23.109, 15.062, 12.039], atol=7e-3)
    assert d.effective_f.to_json()["critical_values"].keys() == {"5%", "10%", "20%", "30%"}


@pytest.mark.parametrize(("k", "nc"), [(1, 20.0), (2.3, 23.0), (30, 300.0), (5, 0.0), (7.7, 1e-6)])
def test_noncentral_tails_and_quantiles_equal_those_of_scipy(k, nc):
    law = stats.ncx2(k, nc) if nc else stats.chi2(k)
    for value in (0.3 * (k + nc), k + nc, 2 * (k + nc)):
        assert noncentral_tail(value, k, nc) == pytest.approx(law.sf(value), rel=1e-9)
    assert noncentral_quantile(0.95, k, nc) == pytest.approx(law.ppf(0.95), rel=1e-8)


@pytest.mark.parametrize(("instruments", "share"), [(3, 0.1), (5, 0.05), (10, 0.3), (30, 0.2)])
def test_stock_yogo_bias_values_follow_their_definition(instruments, share):
    """The share of bias that 2SLS keeps is exp(-l/2) 1F1(K/2 - 1, K/2, l/2).

    The critical value is the 95% point of a noncentral chi-squared / K at the concentration
    l for which that is the share; Stock and Yogo's were simulated, to about 1%.
    """
    from scipy.optimize import brentq
    from scipy.special import hyp1f1

    half = instruments / 2

    def gap(concentration):
        bias = np.exp(-concentration / 2) * hyp1f1(half - 1, half, concentration / 2)
        return bias - share

    concentration = brentq(gap, 1e-6, 1000)
    wanted = stats.ncx2.ppf(0.95, instruments, concentration) / instruments
    assert bias_values(1, instruments)[share] == pytest.approx(wanted, rel=0.015)


def test_stock_yogo_tables_have_their_edges():
    values = size_values(1, 1)
    assert values == {0.10: 16.38, 0.15: 8.96, 0.20: 6.66, 0.25: 5.53}
    assert size_values(2, 1) is None
    assert size_values(3, 5) is None
    assert bias_values(1, 2) is None
    assert bias_values(3, 31) is None
    for table, names in ((bias_values, (1, 2, 3)), (size_values, (1, 2))):
        for m in names:
            assert table(m, 30) is not None
            rows = [table(m, q) for q in range(m + 2, 31)]
            assert all(list(row.values()) == sorted(row.values(), reverse=True) for row in rows)


# verdicts


def verdict(data, se="robust", **settings):
    return ivvi.estimate(dependent_log(data), se=se, **settings).diagnostics.verdict


def made(effect, n=4000, d_a=1, d_z=1, seed=0):
    """Rows whose first-stage F is about effect^2 n / d_z."""
    rng = np.random.default_rng(seed)
    x, z, e = (rng.normal(size=(n, d)) for d in (1, d_z, 1))
    a = effect * z[:, :1] + e + rng.normal(size=(n, 1))
    if d_a == 2:
        a = np.column_stack([a, z[:, 1:2] + rng.normal(size=(n, 1))])
    return x, a, z, a.sum(axis=1, keepdims=True) + e, np.arange(n), np.zeros(n, int)


@pytest.mark.parametrize(("effect", "word"), [(1.0, "strong"), (0.092, "doubtful"), (0.01, "weak")])
def test_the_verdict_for_one_action_follows_its_strength(effect, word):
    judged = verdict(made(effect))
    assert (judged.word, "Montiel Olea" in judged.rule) == (word, True), judged


def test_several_actions_are_judged_by_bias_and_without_spare_instruments_by_size():
    strong = verdict(made(1.0, d_a=2, d_z=4))
    assert (strong.word, "bias of 10%" in strong.rule) == ("strong", True)
    assert "Kleibergen-Paap" in strong.rule
    just = verdict(made(0.01, d_a=2, d_z=2), se="unadjusted")
    assert (just.word, "size of 10%" in just.rule) == ("weak", True)
    assert "Cragg-Donald" in just.rule


def test_the_verdict_says_that_nothing_is_identified(confounded, moments_of):
    x, a, z, y = confounded(1, d_a=2, d_z=1)
    judged = diagnose(moments_of(x, a, z, y)).verdict
    assert judged.word == "not identified"
    assert "rank of A is" in judged.rule


def test_nothing_endogenous_gets_no_verdict(confounded, moments_of):
    x, _, z, y = confounded(3, d_z=1)
    assert diagnose(moments_of(x, 2 * z, z, y)).verdict.word == ""


@pytest.mark.filterwarnings("ignore:6 clusters by 'episode' count as")
def test_too_many_instruments_for_the_clusters_leave_reasons():
    """Six clusters cannot weigh eight instruments; the rest is still there."""
    data = dependent_rows(34, n=600, d_x=0, d_z=8, episodes=6)
    fit = ivvi.estimate(dependent_log(data), se=StandardErrors("clustered"))
    d = fit.diagnostics
    assert d.kleibergen_paap is None
    assert "singular" in d.reasons["kleibergen_paap"]
    assert "singular" in d.reasons["hansen_j"]
    assert d.first_stage[0].robust_f is None
    assert "singular" in d.first_stage[0].reasons["robust"]
    assert d.sargan is not None


@pytest.mark.filterwarnings("ignore:6 clusters by 'i'")
def test_an_indefinite_two_way_covariance_has_no_effective_f():
    """Six and six clusters whose pairs outweigh them: K_eff would be below one."""
    rng = np.random.default_rng(4)
    i, j = np.divmod(np.arange(72) % 36, 6)
    z = rng.normal(size=(72, 2))
    a = 2 * z[:, 0] + np.where((i + j) % 2, 1.0, -1.0) / np.where(z[:, 1] > 0, 1, -1)
    columns = {"i": i, "j": j, "z0": z[:, 0].copy(), "z1": z[:, 1].copy(), "a0": a, "y0": a + i}
    log = ivvi.read_logs(columns, action="a0", instrument="z*", next_state="y0")
    d = ivvi.estimate(log, se=StandardErrors("clustered", "i,j")).diagnostics
    assert d.effective_f is None
    assert "not positive definite" in d.reasons["effective_f"]


@pytest.mark.parametrize("kind", ["unadjusted", "clustered"])
def test_the_panel_says_the_null_of_every_statistic(data, kind):
    from ivvi.diagnostics.result import panel_table

    fit = ivvi.estimate(dependent_log(data), se=kind)
    d, text = fit.diagnostics, panel_table(fit.diagnostics)
    tests = [d.cragg_donald_test, d.effective_f, *(test for test in d.joint.values())]
    tests += [d.kleibergen_paap and d.kleibergen_paap.wald]
    tests += [one for found in d.by_output.values() for one in found or ()]
    for stage in d.first_stage:
        tests += [stage.partial_f, stage.robust_f]
        tests += [stage.conditional_f, stage.robust_conditional_f] * (len(d.first_stage) > 1)
    for test in (test for test in tests if test is not None):
        assert f"null: {test.null}" in text
        assert test.distribution in text
        assert f"p = {test.p_value:.4f}" in text
    reasons = {name: why for name, why in d.reasons.items() if why != "there is one output"}
    for name, why in reasons.items():
        shown = not name.startswith("joint_") or d.by_output[name.removeprefix("joint_")]
        assert why in text or not shown


def test_an_instrument_that_rounding_hides_is_not_called_constant():
    x, z, e = np.random.default_rng(0).normal(size=(3, 400))
    rows = {"x": x, "a": z + e, "next_x": x + z}
    roles = {"state": "x", "action": "a", "instrument": "z", "next_state": "next_x"}
    for instrument, cause in ((z, "z varies by 1"), (np.zeros(400), "z is 1.7e.12 in every row")):
        log = ivvi.read_logs(rows | {"z": instrument + 1.7e12}, **roles)
        with pytest.raises(ivvi.InputError, match=cause):
            ivvi.fit(log)
