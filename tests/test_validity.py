"""Over-identification and confounding against linearmodels, statsmodels and formulas."""

import numpy as np
import pytest
from scipy import stats

import ivvi
from helpers import (
    OPTIONS,
    TEXTBOOK,
    assert_refused,
    dependent_log,
    dependent_rows,
    run,
    textbook,
    write_table,
)
from ivvi.diagnostics import diagnose, difference
from ivvi.errors import InputError
from ivvi.estimators import StandardErrors

lm = pytest.importorskip("linearmodels.iv")
sm = pytest.importorskip("statsmodels.api")
pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore:weak instruments")]
SHAPES = {"one": (2, 1, 3), "three": (1, 3, 5), "no state": (0, 1, 2)}  # d_x, d_a, d_z
KINDS = ("robust", "clustered")


@pytest.fixture(params=SHAPES.values(), ids=SHAPES.keys(), name="data", scope="module")
def random_rows(request):
    d_x, d_a, d_z = request.param
    return dependent_rows(41, d_x=d_x, d_a=d_a, d_z=d_z)


def design(data):
    x, a, z, y = data[:4]
    return np.column_stack([np.ones(len(y)), x]), a, z, y


def agree(ours, theirs):
    assert ours.value == pytest.approx(theirs.stat, rel=1e-6)
    assert ours.p_value == pytest.approx(theirs.pval, rel=1e-5, abs=1e-12)


def test_homoskedastic_tests_against_linearmodels(data):
    exog, a, z, y = design(data)
    d = ivvi.estimate(dependent_log(data), se="unadjusted").diagnostics
    for output in range(2):
        other = lm.IV2SLS(y[:, output], exog, a, z).fit()
        agree(d.by_output["sargan"][output], other.sargan)
        agree(d.by_output["basmann"][output], other.basmann)
        agree(d.by_output["wu_hausman"][output], other.wu_hausman())
        agree(d.by_output["durbin"][output], other.durbin())


@pytest.mark.parametrize("kind", KINDS)
def test_hansen_j_against_linearmodels(data, kind):
    exog, a, z, y = design(data)
    clusters = {"clusters": data[4]} if kind == "clustered" else {}
    d = ivvi.estimate(dependent_log(data), se=kind).diagnostics
    for output in range(2):
        other = lm.IVGMM(y[:, output], exog, a, z, weight_type=kind, **clusters).fit()
        agree(d.by_output["hansen_j"][output], other.j_stat)


def weigh(data, kind, outputs):
    """Return moments g(w) = c - A w of stacked outputs and their variance at 2SLS."""
    exog, a, z, y = design(data)
    n = len(y)
    Phi, Psi = np.column_stack([exog, a]), np.column_stack([exog, z])
    hat = Psi @ np.linalg.lstsq(Psi, Phi)[0]
    u = y - Phi @ np.linalg.lstsq(hat, y)[0]
    scores = np.hstack([u[:, [j]] * Psi for j in outputs])
    codes = data[4] if kind == "clustered" else np.arange(n)
    sums = np.array([scores[codes == c].sum(axis=0) for c in np.unique(codes)])
    A = np.kron(np.eye(len(outputs)), Psi.T @ Phi / n)
    c = np.concatenate([Psi.T @ y[:, j] / n for j in outputs])
    return n, A, c, sums.T @ sums / n, Psi.shape[1]


def distance(n, A, c, S):
    weight = np.linalg.inv(S)
    w = np.linalg.solve(A.T @ weight @ A, A.T @ weight @ c)
    return n * (c - A @ w) @ weight @ (c - A @ w)


@pytest.mark.parametrize("kind", KINDS)
def test_joint_hansen_j_by_hand(data, kind):
    n, A, c, S, _ = weigh(data, kind, (0, 1))
    d = ivvi.estimate(dependent_log(data), se=kind).diagnostics
    assert d.joint["hansen_j"].value == pytest.approx(distance(n, A, c, S), rel=1e-5)
    assert d.joint["hansen_j"].df == (len(c) - A.shape[1],)


def test_joint_homoskedastic_tests_by_hand(data):
    """Seemingly unrelated Wald tests from the rows: n tr(S^-1 U'PU), (n - k) tr(S^-1 ...)."""
    exog, a, z, y = design(data)
    d = ivvi.estimate(dependent_log(data), se="unadjusted").diagnostics
    Phi, Psi = np.column_stack([exog, a]), np.column_stack([exog, z])

    def project(on, v):
        return on @ np.linalg.lstsq(on, v)[0]

    u = y - Phi @ np.linalg.lstsq(project(Psi, Phi), y)[0]
    wanted = len(y) * np.trace(np.linalg.solve(u.T @ u, u.T @ project(Psi, u)))
    assert d.joint["sargan"].value == pytest.approx(wanted, rel=1e-7)
    assert d.joint["sargan"].df == (2 * (Psi.shape[1] - Phi.shape[1]),)
    added = np.column_stack([Phi, a - project(Psi, a)])
    rest, before = y - project(added, y), y - project(Phi, y)
    moved = before.T @ before - rest.T @ rest
    freedom = len(y) - added.shape[1]
    assert d.joint["wu_hausman"].value == pytest.approx(
        freedom * np.trace(np.linalg.solve(rest.T @ rest, moved)), rel=1e-6
    )


@pytest.mark.parametrize("kind", ["unadjusted", *KINDS])
def test_difference_in_sargan_by_hand(data, kind):
    """Hansen's J with and without the suspects, both weighted by the whole set's variance."""
    fit = ivvi.estimate(dependent_log(data), se=kind)
    found = fit.difference_in_sargan("z1")
    for output in range(2):
        n, A, c, S, r = weigh(data, "robust" if kind == "unadjusted" else kind, (output,))
        if kind == "unadjusted":
            exog, _, z, _ = design(data)
            Psi = np.column_stack([exog, z])
            S = fit.estimate.noise_cov[output, output] * Psi.T @ Psi / n
        keep = np.delete(np.arange(r), r - data[2].shape[1] + 1)
        part = distance(n, A[keep], c[keep], S[np.ix_(keep, keep)])
        wanted = distance(n, A, c, S) - part
        assert found[output].value == pytest.approx(wanted, rel=1e-5)
        assert found[output].df == (1,)
        assert found[output].p_value == pytest.approx(stats.chi2.sf(wanted, 1), rel=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_robust_wu_hausman_against_statsmodels(data, kind):
    """The F test of the first stages' residuals in the augmented regression."""
    exog, a, z, y = design(data)
    Psi = np.column_stack([exog, z])
    added = a - Psi @ np.linalg.lstsq(Psi, a)[0]
    both = np.column_stack([exog, a, added])
    d = ivvi.estimate(dependent_log(data), se=kind).diagnostics
    m, k = a.shape[1], both.shape[1]
    for output in range(2):
        how = {"cov_type": "HC1"}
        if kind == "clustered":
            how = {"cov_type": "cluster", "cov_kwds": {"groups": data[4]}}
        other = sm.OLS(y[:, output], both).fit(use_t=True, **how)
        test = other.f_test(np.eye(k)[k - m :])
        ours = d.by_output["robust_wu_hausman"][output]
        assert ours.value == pytest.approx(float(test.fvalue), rel=1e-6)
        assert ours.df == (m, len(np.unique(data[4])) - 1 if kind == "clustered" else len(y) - k)


@pytest.mark.parametrize("name", TEXTBOOK)
def test_textbook_data_against_linearmodels(name):
    log, parts = textbook(name)
    d = ivvi.estimate(log, se="robust").diagnostics
    other = lm.IV2SLS(*parts).fit(cov_type="unadjusted")
    agree(d.by_output["sargan"][0], other.sargan)
    agree(d.by_output["basmann"][0], other.basmann)
    agree(d.by_output["wu_hausman"][0], other.wu_hausman())
    agree(d.by_output["durbin"][0], other.durbin())
    agree(d.by_output["hansen_j"][0], lm.IVGMM(*parts, weight_type="robust").fit().j_stat)


def test_an_invalid_instrument_is_found():
    """z0 touches the output by itself: J sees it, and suspecting it (not another) explains it."""
    rng = np.random.default_rng(5)
    n = 3000
    x, z, e = rng.normal(size=(n, 1)), rng.normal(size=(n, 3)), rng.normal(size=(n, 1))
    a = z @ np.ones((3, 1)) + e + rng.normal(size=(n, 1))
    y = x - a + e + 0.3 * z[:, :1]
    fit = ivvi.estimate(dependent_log((x, a, z, y, np.arange(n), np.zeros(n, int))), se="robust")
    assert fit.diagnostics.by_output["hansen_j"][0].p_value < 1e-6
    assert fit.difference_in_sargan("z0")[0].p_value < 1e-6
    both = fit.difference_in_sargan("z1", "z2")[0]
    assert both.df == (2,)
    left = fit.diagnostics.by_output["hansen_j"][0].value - fit.difference_in_sargan("z0")[0].value
    assert stats.chi2.sf(left, 1) > 1e-4


def test_suspects_that_cannot_be_tested(confounded, moments_of):
    m = moments_of(*confounded(1, d_a=1, d_z=2))
    with pytest.raises(InputError, match="without z0, z1 the instruments do not identify"):
        difference(m, ["z0", "z1"])
    with pytest.raises(InputError, match="'x0' is not an instrument feature"):
        difference(m, ["x0"])


def test_the_command_line_tests_a_suspect(tmp_path):
    rng = np.random.default_rng(6)
    t = np.arange(2000)
    z, e = rng.normal(size=(2000, 2)), rng.normal(size=2000)
    columns = {"episode": t // 20, "step": t % 20, "z0": z[:, 0].copy(), "z1": z[:, 1].copy()}
    columns |= {"a0": z.sum(axis=1) + e + rng.normal(size=2000), "x0": rng.normal(size=2000)}
    source = write_table(columns, tmp_path / "log.parquet")
    just = ("--state", "x0", "--action", "a0", "--instrument", "z0")  # nothing is left to test
    for options in (OPTIONS, just):
        assert_refused(run("diagnose", source, *options, "--suspect", "q"), "'q'")
    result = run("diagnose", source, *OPTIONS, "--suspect", "z1")
    assert result.code == 0, result
    assert "null: z1 is valid, as the others are" in result.out
    for title in ("STRENGTH", "VALIDITY", "CONFOUNDING", "Hansen J", "effective F", "Durbin"):
        assert title in result.out
    assert "clustered by episode (100)" in result.out


def test_everything_missing_has_a_reason(data):
    for kind in ("unadjusted", "robust"):
        fit = ivvi.estimate(dependent_log(data), se=StandardErrors(kind))
        found = fit.diagnostics.to_json()
        for word in ("kleibergen_paap", "effective_f", *fit.diagnostics.by_output):
            assert found[word] is not None or found["reasons"][word]
        for word, test in found["joint"].items():
            assert test is not None or found["reasons"][f"joint_{word}"]


def test_moments_alone_give_the_homoskedastic_panel(confounded, moments_of):
    d = diagnose(moments_of(*confounded(2, d_z=3)))
    assert d.by_output["hansen_j"] is None
    assert d.effective_f.value == pytest.approx(d.cragg_donald)
    assert d.effective_f.dimension == pytest.approx(3.0)
