"""LIML, Fuller, the k-class and GMM against linearmodels and ivmodels."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ivvi
from helpers import TEXTBOOK, dependent_log, dependent_rows, mark_thorough, textbook
from ivvi import InputError, StandardErrors
from ivvi.errors import DataError, IdentificationError
from ivvi.estimators import GMM, LIML, Exact, Fuller, KClass, LeastSquares
from ivvi.estimators.kclass import liml_k

lm = pytest.importorskip("linearmodels.iv")
ivmodels = pytest.importorskip("ivmodels")
pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore:weak instruments")]
RTOL = 1e-7
SHAPES = {  # d_x, d_a, d_z
    "one, just identified": (2, 1, 1),
    "one, over-identified": (2, 1, 3),
    "three, over-identified": (1, 3, 5),
}
KINDS = ("unadjusted", "robust", "clustered")
PLAIN = ("gmm", "unadjusted")  # the closed form, see below


@pytest.fixture(params=SHAPES.values(), ids=SHAPES.keys(), name="data", scope="module")
def random_rows(request):
    d_x, d_a, d_z = request.param
    return dependent_rows(21, d_x=d_x, d_a=d_a, d_z=d_z)


def peer(data, output, method, kind, *, debiased=False):
    x, a, z, y, episode, _ = data
    exog = np.column_stack([np.ones(len(y)), x])
    clusters = {"clusters": episode} if kind == "clustered" else {}
    if method == "gmm":
        model = lm.IVGMM(y[:, output], exog, a, z, weight_type=kind, **clusters)
        return model.fit(cov_type=kind, debiased=debiased, **clusters)
    settings = {"liml": {}, "fuller:1": {"fuller": 1}, "kclass:0.5": {"kappa": 0.5}}[method]
    model = lm.IVLIML(y[:, output], exog, a, z, **settings)
    return model.fit(cov_type=kind, debiased=debiased, **clusters)


@pytest.mark.filterwarnings("ignore:k = 0.5 is far below one")
@pytest.mark.parametrize("debiased", mark_thorough([False, True], False), ids=["plain", "debiased"])
@pytest.mark.parametrize(
    ("method", "kind"),
    [(m, k) for m in ("liml", "fuller:1", "kclass:0.5", "gmm") for k in KINDS if (m, k) != PLAIN],
)
def test_k_class_estimates_equal_those_of_linearmodels(data, method, kind, debiased):
    fit = ivvi.estimate(
        dependent_log(data), method=method, se=StandardErrors(kind, debiased=debiased)
    )
    assert fit.method == method
    for output in range(2):
        other = peer(data, output, method, kind, debiased=debiased)
        np.testing.assert_allclose(fit.W[output], other.params, rtol=RTOL, atol=1e-9)
        cov = fit.estimate.covariance.blocks[output]
        np.testing.assert_allclose(cov, other.cov, rtol=1e-6, atol=1e-12)
        assert fit.estimate.noise_cov[output, output] == pytest.approx(other.s2, rel=RTOL)


def test_gmm_with_the_unadjusted_weight_is_the_closed_form(data):
    log = dependent_log(data)
    one, two = (ivvi.estimate(log, method=m, se="unadjusted") for m in ("gmm", "exact"))
    np.testing.assert_array_equal(one.W, two.W)


def test_liml_equals_that_of_ivmodels(data, moments_of):
    x, a, z, y = data[:4]
    d_x = x.shape[1]
    fit = LIML().solve(moments_of(x, a, z, y))
    for output in range(2):
        other = ivmodels.KClass("liml").fit(a, y[:, output], z, C=x)
        ours = np.r_[fit.W[output, 1 + d_x :], fit.W[output, 1 : 1 + d_x]]
        np.testing.assert_allclose(ours, other.coef_, rtol=1e-6, atol=1e-8)


@settings(max_examples=15)
@given(seed=st.integers(0, 10**6), d_a=st.integers(1, 2))
def test_k_class_estimates_meet_their_identities(confounded, moments_of, seed, d_a):
    over = moments_of(*confounded(seed, d_a=d_a, d_z=d_a + 2))
    just = moments_of(*confounded(seed, d_a=d_a, d_z=d_a))
    np.testing.assert_allclose(liml_k(just), 1.0, atol=1e-9)
    assert (liml_k(over) >= 1.0 - 1e-12).all()
    for one, two, m in (
        (KClass(1.0), Exact(), over),
        (KClass(0.0), LeastSquares(), over),
        (LIML(), Exact(), just),
        (Fuller(0.0), LIML(), over),
    ):
        np.testing.assert_allclose(one.solve(m).W, two.solve(m).W, rtol=1e-6, atol=1e-8)
    k = liml_k(over)[0]
    np.testing.assert_allclose(KClass(k).solve(over).W[0], LIML().solve(over).W[0], rtol=1e-9)
    se = KClass(1.0).solve(over).se
    np.testing.assert_allclose(se, Exact().solve(over).se, rtol=1e-6)


def test_dual_weights_are_the_inner_maximum(confounded, moments_of):
    m = moments_of(*confounded(3, d_z=3))
    fit = LIML().solve(m)
    np.testing.assert_allclose(fit.K, (fit.W @ m.A.T - m.C) @ np.linalg.inv(m.B), atol=1e-9)


def test_gmm_needs_no_estimate_to_resolve_its_weight():
    log = dependent_log(dependent_rows(22, d_z=3))
    fit = ivvi.estimate(log, method="gmm", se="clustered")
    alone = GMM(StandardErrors("clustered")).solve(fit.moments, log)
    np.testing.assert_allclose(alone.W, fit.W, rtol=1e-10)
    with pytest.raises(InputError, match="needs the rows of a log"):
        GMM().solve(fit.moments)


def test_gmm_refuses_a_singular_weight():
    """Eight episodes cannot weigh ten moments."""
    data = dependent_rows(23, d_x=3, d_z=6, episodes=8)
    with pytest.raises(DataError, match="weight of 10 moments is singular"):
        ivvi.estimate(dependent_log(data), method="gmm", se="clustered")


@pytest.mark.parametrize("method", ["liml", "fuller", "kclass:0.5", "gmm"])
def test_what_is_not_identified_is_refused(method, confounded, log_of):
    x, a, z, y = confounded(1, d_a=2, d_z=2)
    log = log_of(x, a, np.column_stack([z[:, 0], 2 * z[:, 0]]), y)
    with pytest.raises(IdentificationError, match="use the method exact"):
        ivvi.estimate(log, method=method, allow_unidentified=True)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("kclass", "needs its k"),
        ("fuller:one", "'one' in the method 'fuller:one' is not a number"),
        ("liml:2", "unknown method 'liml:2'"),
        ("limel", "did you mean 'liml'"),
        ("fuller:-1", "must not be negative"),
        ("kclass:inf", "expected a finite number"),
    ],
)
def test_words_that_name_no_method_are_refused(word, said, confounded, log_of):
    with pytest.raises(InputError, match=said):
        ivvi.estimate(log_of(*confounded(0)), method=word)


@pytest.mark.parametrize("name", TEXTBOOK)
def test_liml_and_gmm_of_textbook_data_equal_those_of_linearmodels(name):
    log, parts = textbook(name)
    order = ["const", *log.roles.state, "educ"]
    liml = lm.IVLIML(*parts).fit(cov_type="robust")
    gmm = lm.IVGMM(*parts, weight_type="robust").fit(cov_type="robust")
    for method, other in (("liml", liml), ("gmm", gmm)):
        fit = ivvi.estimate(log, method=method, se="robust")
        np.testing.assert_allclose(fit.W[0], other.params[order], rtol=1e-6)
        np.testing.assert_allclose(fit.se[0], other.std_errors[order], rtol=1e-6)


def test_a_k_far_below_one_is_said_to_be_partly_regression():
    rng = np.random.default_rng(0)
    z, u = rng.normal(size=(2, 500))
    rows = {"z": z, "a": z + u, "y": 0.5 * (z + u) + u + rng.normal(size=500)}
    log = ivvi.read_logs(rows, action="a", instrument="z", next_state="y")
    with pytest.warns(ivvi.errors.IvviWarning, match="partly that of regression"):
        fit = ivvi.estimate(log, method="kclass:0.5")
    assert fit.verdict.recommended == "none"
    assert "Do not plan" in fit.brief.text
    for word in ("kclass:1", "kclass:0.999", "kclass:1.01"):
        assert not ivvi.estimate(log, method=word).warnings
