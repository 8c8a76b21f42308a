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
    mark_thorough,
    run,
    textbook_rows,
    write_table,
)
from ivvi import InputError, StandardErrors
from ivvi.diagnostics import diagnose, difference

lm = pytest.importorskip("linearmodels.iv")
sm = pytest.importorskip("statsmodels.api")
pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore:weak instruments")]
SHAPES = {"one": (2, 1, 3), "three": (1, 3, 5), "no state": (0, 1, 2)}  # d_x, d_a, d_z
KINDS = ("robust", "clustered")
WEIGHTED = pytest.mark.parametrize(
    "weighted", mark_thorough([False, True], False), ids=["equal", "weighted"]
)


@pytest.fixture(
    params=mark_thorough([*SHAPES, *TEXTBOOK], "card", "wage2"), name="data", scope="module"
)
def rows_of_a_shape_or_a_textbook(request):
    if request.param in TEXTBOOK:
        return textbook_rows(request.param)
    d_x, d_a, d_z = SHAPES[request.param]
    return dependent_rows(41, d_x=d_x, d_a=d_a, d_z=d_z)


def design(data):
    x, a, z, y = data[:4]
    return np.column_stack([np.ones(len(y)), x]), a, z, y


def weights(n):
    return np.random.default_rng(1).uniform(0.2, 3, n)


def agree(ours, theirs):
    assert ours.value == pytest.approx(theirs.stat, rel=1e-6)
    assert ours.p_value == pytest.approx(theirs.pval, rel=1e-5, abs=1e-12)


@pytest.mark.filterwarnings("ignore:the instruments contradict")
@WEIGHTED
def test_homoskedastic_tests_equal_those_of_linearmodels(data, weighted):
    exog, a, z, y = design(data)
    weight = weights(len(y)) if weighted else None
    d = ivvi.estimate(dependent_log(data, weight), se="unadjusted").diagnostics
    for output in range(2):
        other = lm.IV2SLS(y[:, output], exog, a, z, weights=weight).fit()
        agree(d.by_output["sargan"][output], other.sargan)
        agree(d.by_output["basmann"][output], other.basmann)
        agree(d.by_output["wu_hausman"][output], other.wu_hausman())
        agree(d.by_output["durbin"][output], other.durbin())


@WEIGHTED
@pytest.mark.parametrize("kind", KINDS)
def test_hansen_j_equals_that_of_linearmodels(data, kind, weighted):
    exog, a, z, y = design(data)
    weight = weights(len(y)) if weighted else None
    how = {"weight_type": kind} | ({"clusters": data[4]} if kind == "clustered" else {})
    d = ivvi.estimate(dependent_log(data, weight), se=kind).diagnostics
    for output in range(2):
        other = lm.IVGMM(y[:, output], exog, a, z, weights=weight, **how).fit()
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
def test_joint_hansen_j_follows_its_definition(data, kind):
    n, A, c, S, _ = weigh(data, kind, (0, 1))
    d = ivvi.estimate(dependent_log(data), se=kind).diagnostics
    assert d.joint["hansen_j"].value == pytest.approx(distance(n, A, c, S), rel=1e-5)
    assert d.joint["hansen_j"].df == (len(c) - A.shape[1],)


def test_joint_homoskedastic_tests_follow_their_definitions(data):
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
def test_difference_in_sargan_follows_its_definition(data, kind):
    """Hansen's J with and without the suspects, both weighted by the whole set's variance."""
    fit = ivvi.estimate(dependent_log(data), se=kind)
    tests = fit.difference_in_sargan("z1")
    for output in range(2):
        n, A, c, S, r = weigh(data, "robust" if kind == "unadjusted" else kind, (output,))
        if kind == "unadjusted":
            exog, _, z, _ = design(data)
            Psi = np.column_stack([exog, z])
            S = fit.estimate.noise_cov[output, output] * Psi.T @ Psi / n
        keep = np.delete(np.arange(r), r - data[2].shape[1] + 1)
        part = distance(n, A[keep], c[keep], S[np.ix_(keep, keep)])
        wanted = distance(n, A, c, S) - part
        assert tests[output].value == pytest.approx(wanted, rel=1e-5)
        assert tests[output].df == (1,)
        assert tests[output].p_value == pytest.approx(stats.chi2.sf(wanted, 1), rel=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_robust_wu_hausman_equals_that_of_statsmodels(data, kind):
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


@pytest.mark.filterwarnings("ignore:the instruments contradict")
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


def test_suspects_that_cannot_be_tested_are_refused(confounded, moments_of):
    m = moments_of(*confounded(1, d_a=1, d_z=2))
    with pytest.raises(InputError, match="without z0, z1 the instruments do not identify"):
        difference(m, ["z0", "z1"])
    with pytest.raises(InputError, match="'x0' is not an instrument feature"):
        difference(m, ["x0"])


def test_a_suspect_that_others_repeat_cannot_be_tested(confounded, moments_of):
    x, a, z, y = confounded(1, d_a=1, d_z=2)
    with pytest.raises(InputError, match="z2 is collinear with the other"):
        difference(moments_of(x, a, np.column_stack([z, z.sum(axis=1)]), y), ["z2"])


def test_joint_tests_do_not_depend_on_units(data):
    x, a, z, y, *codes = data
    for kind in ("unadjusted", "clustered"):
        one, other = (
            ivvi.estimate(dependent_log((x, a, z, scaled, *codes)), se=kind).diagnostics.joint
            for scaled in (y, y * [1e9, 1e-9])
        )
        for name, test in one.items():
            assert (test is None) == (other[name] is None)
            assert test is None or other[name].value == pytest.approx(test.value, rel=1e-6)
        assert one["sargan"] is not None


@pytest.mark.parametrize("kind", ["unadjusted", "robust", "clustered"])
@pytest.mark.parametrize("exact", ["a sum of features", "a constant"])
def test_an_output_without_noise_has_nothing_to_test(kind, exact):
    """Rounding errors are no residuals: the statistics are 0, and the other output's its own."""
    x, a, z, y, *codes = dependent_rows(43, d_z=3)
    known = 7 + x[:, :1] + 2 * a if exact == "a sum of features" else np.full_like(a, 7.1)
    log = dependent_log((x, a, z, np.column_stack([y[:, 0], known]), *codes))
    alone = ivvi.estimate(dependent_log((x, a, z, y[:, :1], *codes)), se=kind)
    fit = ivvi.estimate(log, se=kind)
    for name, tests in alone.diagnostics.by_output.items():
        by_output = fit.diagnostics.by_output[name]
        assert (tests is None) == (by_output is None)
        if tests is not None:
            assert by_output[0].value == pytest.approx(tests[0].value, rel=1e-6)
            assert (by_output[1].value, by_output[1].p_value) == (0.0, 1.0)
    joint = fit.diagnostics.joint
    assert joint == dict.fromkeys(joint)
    assert "fitted exactly" in fit.diagnostics.reasons["joint_sargan"]
    assert fit.difference_in_sargan("z2")[1].value == 0.0
    gmm = ivvi.estimate(log, se=kind, method="gmm")
    np.testing.assert_allclose(gmm.W[1], fit.W[1], atol=1e-8)


def test_an_action_that_the_instruments_determine_is_named(confounded, moments_of):
    """Beside another that is endogenous: no test of both, and no verdict without its reason."""
    x, a, z, y = confounded(2, d_a=1, d_z=3)
    exact = 2 * z[:, 1:2] + x[:, :1]
    d = diagnose(moments_of(x, np.column_stack([a, exact]), z, y))
    why = "an action is an exact function of the instruments and the state"
    for name in ("cragg_donald", "wu_hausman", "durbin"):
        assert d.reasons[name] == why
    assert (d.verdict.word, d.verdict.rule) == ("", why)
    assert d.by_output["durbin"] is None


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
        facts = fit.diagnostics.to_json()
        for word in ("kleibergen_paap", "effective_f", "stock_yogo", *fit.diagnostics.by_output):
            assert facts[word] is not None or facts["reasons"][word]
        for stage in facts["first_stage"].values():
            for word in ("robust", "conditional", "robust_conditional"):
                assert (stage[word] is None) == (word in stage["reasons"])
                assert stage[word] is not None or stage["reasons"][word]
        for word, test in facts["joint"].items():
            assert test is not None or facts["reasons"][f"joint_{word}"]


def test_moments_alone_give_the_homoskedastic_panel(confounded, moments_of):
    d = diagnose(moments_of(*confounded(2, d_z=3)))
    assert d.by_output["hansen_j"] is None
    assert d.effective_f.value == pytest.approx(d.cragg_donald)
    assert d.effective_f.dimension == pytest.approx(3.0)
