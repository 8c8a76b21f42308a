"""Strength, identification and what is said about them, on cases built by hand."""

import dataclasses
import json
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ivvi
from ivvi import InputError
from ivvi.diagnostics import cragg_donald, diagnose, first_stage, strength
from ivvi.errors import DataError, IdentificationError, IvviWarning
from ivvi.estimators import Exact, LeastSquares


def pinv(M):
    return np.linalg.pinv(M, rcond=1e-10, hermitian=True)


def minimum_norm(m):
    """Return C B^+ A (A^T B^+ A)^+ from the raw matrices."""
    strong = m.A.T @ pinv(m.B) @ m.A
    return m.C @ pinv(m.B) @ m.A @ pinv(strong)


# strength


@pytest.mark.parametrize("word", ["linear", "poly2"])
@given(
    d_x=st.integers(0, 3), d_a=st.integers(1, 2), more=st.integers(0, 2), seed=st.integers(0, 10**6)
)
def test_mu_iv_is_the_smallest_eigenvalue(confounded, moments_of, word, d_x, d_a, more, seed):
    m = moments_of(*confounded(seed, 400, d_x, d_a, d_a + more), features=word)
    s = strength(m)
    wanted = np.linalg.eigvalsh(m.A.T @ np.linalg.inv(m.B) @ m.A)
    np.testing.assert_allclose(s.eigenvalues, wanted, rtol=1e-7, atol=1e-9)
    assert s.mu_iv == s.eigenvalues[0] == min(s.eigenvalues)
    assert s.mu_iv == pytest.approx(wanted[0], rel=1e-6)
    assert s.mu_b == pytest.approx(np.linalg.eigvalsh(m.B)[0], rel=1e-7)
    assert (s.rank, s.rank_psi) == (s.d_phi, s.d_psi) == m.A.shape[::-1]
    assert s.identified
    assert s.unidentified == ()
    assert s.mu_iv_identified == s.mu_iv
    assert s.mean_smallest(2) == pytest.approx(wanted[:2].mean(), rel=1e-6)


def test_weakest_direction_is_named(confounded, moments_of):
    """The second action hardly answers to any instrument."""
    rng = np.random.default_rng(0)
    z, x = rng.normal(size=(2000, 2)), rng.normal(size=(2000, 1))
    a = np.column_stack([z[:, 0], 0.05 * z[:, 1]]) + rng.normal(size=(2000, 2))
    s = strength(moments_of(x, a, z, x))
    assert s.weakest.startswith("a1")


# identification


def unidentified_cases():
    """Cases: instruments (n, d_z), number of actions, and the words for the free direction."""
    return {
        "collinear": (lambda z: np.column_stack([z[:, 0], -2 * z[:, 0]]), 2, {"a0", "a1"}),
        "constant": (lambda z: np.full((len(z), 1), 3.0), 1, {"a0"}),
        "one constant": (lambda z: np.column_stack([z[:, 0], 0 * z[:, 0]]), 2, {"a0", "a1"}),
        "too few": (lambda z: z[:, :1], 2, {"a0", "a1"}),
        "fixed sum": (lambda z: np.column_stack([z[:, 0], 10 - z[:, 0]]), 2, {"a0", "a1"}),
        "far too few": (lambda z: z[:, :1], 3, {"a0", "a1", "a2"}),
    }


@pytest.fixture(params=unidentified_cases(), name="case")
def unidentified_case(request, confounded):
    change, d_a, named = unidentified_cases()[request.param]
    rng = np.random.default_rng(5)
    n = 800
    x, z, e = rng.normal(size=(n, 2)), rng.normal(size=(n, 3)), rng.normal(size=(n, 2))
    z[:, 0] = rng.binomial(10, 0.4, n)
    z = change(z)
    reach = rng.uniform(0.5, 1, (z.shape[1], d_a))
    a = z @ reach + e @ rng.normal(size=(2, d_a)) + rng.normal(size=(n, d_a))
    y = x + a @ rng.normal(size=(d_a, 2)) + e
    return request.param, (x, a, z, y), named


def test_missing_ranks_are_counted_and_free_directions_named(case, moments_of):
    name, data, named = case
    m = moments_of(*data)
    s, fit = strength(m), Exact().solve(m)
    free = 2 if name == "far too few" else 1
    assert s.rank == np.linalg.matrix_rank(m.A, tol=1e-8) == s.d_phi - free
    assert s.rank_psi == np.linalg.matrix_rank(m.B, tol=1e-8)
    assert not s.identified
    assert s.mu_iv == 0.0
    assert fit.null.shape == (free, s.d_phi)
    np.testing.assert_allclose(fit.null @ fit.null.T, np.eye(free), atol=1e-10)
    np.testing.assert_allclose(fit.null @ m.A.T, 0, atol=1e-7)
    assert s.unidentified == fit.unidentified
    assert len(s.unidentified) == free
    words = " ".join(s.unidentified).replace("-", "+").split()
    assert named <= set(words)
    assert s.mean_smallest(2) == pytest.approx(s.eigenvalues[free] / 2 if free == 1 else 0)
    assert s.mean_smallest(1, with_zeros=False) == s.mu_iv_identified == s.eigenvalues[free] > 0


def test_an_unidentified_fit_has_the_minimum_norm(case, moments_of):
    _, data, _ = case
    m = moments_of(*data)
    fit = Exact().solve(m)
    np.testing.assert_allclose(fit.W, minimum_norm(m), rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(fit.W @ fit.null.T, 0, atol=1e-9)
    np.testing.assert_allclose(fit.K @ m.A, 0, atol=1e-8)


def test_standard_errors_are_missing_where_not_identified(case, moments_of):
    _, data, _ = case
    fit = Exact().solve(moments_of(*data))
    free = (np.abs(fit.null) > 1e-6).any(axis=0)
    assert free.any()
    np.testing.assert_array_equal(np.isnan(fit.se), np.tile(free, (2, 1)))


def test_standard_errors_remain_where_identified(confounded, moments_of):
    """A second action that repeats the first leaves everything else as it was."""
    x, a, z, y = confounded(1, d_x=2, d_a=1, d_z=2)
    m, alone = (moments_of(x, b, z, y) for b in (np.column_stack([a, 2 * a]), a))
    fit, plain = Exact().solve(m), Exact().solve(alone)
    assert np.isnan(fit.se).tolist() == [[False, False, False, True, True]] * 2
    np.testing.assert_allclose(fit.se[:, :3], plain.se[:, :3], rtol=1e-7)
    np.testing.assert_allclose(fit.W[:, :3], plain.W[:, :3], rtol=1e-7)
    np.testing.assert_allclose(fit.W[:, 3] + 2 * fit.W[:, 4], plain.W[:, 3], rtol=1e-7)
    assert fit.unidentified == ("a0 - 0.5 a1",)
    assert not np.isnan(plain.se).any()


def test_missing_standard_errors_do_not_depend_on_units(moments_of):
    rng = np.random.default_rng(0)
    x, z, e = np.empty((500, 0)), rng.normal(size=(500, 1)), rng.normal(size=(500, 2))
    a = z + e
    small, large = (Exact().solve(moments_of(x, a * [1, s], z, e)) for s in (1.0, 1e8))
    np.testing.assert_array_equal(np.isnan(large.se), np.isnan(small.se))


@pytest.mark.parametrize("mean", [1e3, 1e9])
def test_free_directions_do_not_depend_on_the_means(moments_of, mean):
    """Two actions, one instrument: whatever their means, both effects are free."""
    rng = np.random.default_rng(0)
    z, e = rng.normal(size=(500, 1)), rng.normal(size=(500, 2))
    x, a = rng.normal(size=(500, 1)), z + e
    near, far = (Exact().solve(moments_of(x, a + np.array([0.0, m]), z, e)) for m in (0.0, mean))
    assert {"a0", "a1"} <= set(near.unidentified[0].split())
    assert {"a0", "a1"} <= set(far.unidentified[0].split())
    np.testing.assert_array_equal(np.isnan(far.se), np.isnan(near.se))


def test_least_squares_needs_no_instrument(case, moments_of):
    _, data, _ = case
    fit = LeastSquares().solve(moments_of(*data))
    assert fit.identified
    assert not np.isnan(fit.se).any()


def test_collinear_but_sufficient_instruments_change_nothing(confounded, moments_of, log_of):
    x, a, z, y = confounded(2, d_a=1, d_z=2)
    more = np.column_stack([z, z @ [1.0, 2.0], np.full(len(z), 7.0)])
    plain, repeated = (Exact().solve(moments_of(x, a, v, y)) for v in (z, more))
    np.testing.assert_allclose(repeated.W, plain.W, rtol=1e-7)
    np.testing.assert_allclose(repeated.se, plain.se, rtol=1e-7)
    one, two = (diagnose(moments_of(x, a, v, y)) for v in (z, more))
    assert two.strength.identified
    assert (two.strength.rank_psi, two.strength.d_psi) == (5, 7)
    assert two.strength.mu_b == pytest.approx(0, abs=1e-12)
    assert two.strength.mu_iv == pytest.approx(one.strength.mu_iv, rel=1e-7)
    assert two.cragg_donald == pytest.approx(one.cragg_donald, rel=1e-7)
    assert [s.value for s in two.sargan] == pytest.approx([s.value for s in one.sargan], rel=1e-6)
    assert [s.df for s in two.sargan] == [s.df for s in one.sargan] == [(1,), (1,)]
    with pytest.warns(IvviWarning, match="collinear instrument features: 7 columns of rank 5"):
        fit = ivvi.estimate(log_of(x, a, more, y))
    np.testing.assert_allclose(fit.W, plain.W, rtol=1e-7)


BECAUSE = {
    "constant": "z0 is 3 in every row",
    "one constant": "z1 is 0 in every row",
    "too few": "1 instrument for 2 actions",
    "far too few": "1 instrument for 3 actions",
    "collinear": r"the instruments are collinear: \[z0 \+ 0.5 z1\] is 0, or nearly 0, in every row",
    "fixed sum": r"instruments are collinear: \[z0 \+ z1 - 10\] is 0, or nearly 0, in every row",
}


def test_the_refusal_of_an_unidentified_fit_says_why(case, log_of):
    name, data, _ = case
    log = log_of(*data)
    with pytest.raises(IdentificationError, match=BECAUSE[name]) as refused:
        ivvi.estimate(log)
    text = str(refused.value)
    assert "rank of A is" in text
    assert "--allow-unidentified" in text
    with pytest.warns(IvviWarning, match="not identified"):
        fit = ivvi.estimate(log, allow_unidentified=True)
    for words in fit.estimate.unidentified:
        assert f"[{words}]" in text
    with pytest.warns(IvviWarning, match="not identified"):
        assert ivvi.estimate(log, method="least-squares").estimate.identified


def test_refusal_does_not_blame_the_instruments_for_the_actions(confounded, log_of):
    x, a, z, y = confounded(1, d_a=1, d_z=2)
    with pytest.raises(IdentificationError) as refused:
        ivvi.estimate(log_of(x, np.column_stack([a, 2 * a]), z, y))
    assert "the instruments are collinear" not in str(refused.value)


@pytest.fixture(scope="module")
def recommended(simulated):
    """Return the fit of a recommender's log, whose instrument has a fixed total."""
    log = simulated("recommender", setting="II", episodes=60, horizon=100)
    with pytest.warns(IvviWarning, match="not identified"):
        return ivvi.estimate(log, allow_unidentified=True)


def test_recommender_mixes_the_actions_against_the_constant(recommended):
    s, m = recommended.diagnostics.strength, recommended.moments
    assert (s.rank, s.d_phi, s.rank_psi, s.d_psi) == (20, 21, 20, 21)
    assert re.fullmatch(r"a0 \+ .* - \d(\.\d)?", s.unidentified[0])  # against the constant
    null = recommended.estimate.null[0]
    np.testing.assert_allclose(null @ m.A.T, 0, atol=1e-9 * np.abs(m.A).max())
    assert (null[0] * null[11:] < 0).all()  # more watching against a lower constant
    eigenvalues = np.linalg.eigvalsh(m.A.T @ pinv(m.B) @ m.A)
    np.testing.assert_allclose(s.eigenvalues, eigenvalues, rtol=1e-7, atol=1e-10)
    assert s.mean_smallest() == pytest.approx(eigenvalues[:5].mean(), rel=1e-6)
    honest = s.mean_smallest(with_zeros=False)
    assert honest == pytest.approx(eigenvalues[1:6].mean(), rel=1e-6)
    assert honest > s.mean_smallest()


def test_the_recommender_gets_the_solution_of_minimum_norm(recommended):
    wanted = minimum_norm(recommended.moments)
    np.testing.assert_allclose(recommended.W, wanted, rtol=1e-7, atol=1e-8)


# statistics and their reasons


def test_a_just_identified_model_has_no_sargan_test_and_says_why(confounded, moments_of):
    d = diagnose(moments_of(*confounded(0, d_a=1, d_z=1)))
    assert d.sargan is None
    assert "just identified" in d.reasons["sargan"]
    assert d.cragg_donald == pytest.approx(d.first_stage[0].partial_f.value)
    assert d.to_json()["sargan"] is None
    assert d.warnings == ()


def test_an_unidentified_model_has_no_sargan_test_and_a_warning(case, moments_of):
    _, data, _ = case
    d = diagnose(moments_of(*data))
    assert d.sargan is None
    assert "do not identify" in d.reasons["sargan"]
    assert d.warnings[0].startswith("not identified: ")
    json.dumps(d.to_json(), allow_nan=False)


def test_every_missing_statistic_has_a_reason(case, moments_of):
    _, data, _ = case
    d = diagnose(moments_of(*data)).to_json()
    for word in ("cragg_donald", "kleibergen_paap", "sargan", "wu_hausman"):
        assert d[word] is not None or d["reasons"][word]


def test_an_instrument_that_moves_nothing_has_a_small_f_and_is_named_weak(moments_of):
    """Under the null F is about 1, and it is named weak."""
    rng = np.random.default_rng(8)
    x, a, z, y = (rng.normal(size=(5000, d)) for d in (1, 1, 3, 1))
    m = moments_of(x, a, z, y)
    (stage,) = first_stage(m)
    assert stage.feature == "a0"
    assert stage.partial_f.df == (3, 5000 - 5)
    assert stage.partial_f.value < 7.0  # exceeded with probability 1e-4
    assert stage.partial_f.p_value > 1e-4
    assert cragg_donald(m) == pytest.approx(stage.partial_f.value)
    (warning,) = diagnose(m).warnings
    assert warning.startswith("weak instruments: the effective F is")


def test_specification_tests_keep_their_size_and_have_power(moments_of):
    """p-values are uniform under the null, and small when it is false."""
    rng = np.random.default_rng(9)
    repeats = 150
    valid, unconfounded, invalid, confounded_p = [], [], [], []
    for _ in range(repeats):
        z, e, v = rng.normal(size=(200, 3)), rng.normal(size=(200, 1)), rng.normal(size=(200, 1))
        x = np.empty((200, 0))
        a = z @ np.ones((3, 1)) + v
        null = diagnose(moments_of(x, a, z, a + e))
        valid.append(null.sargan[0].p_value)
        unconfounded.append(null.wu_hausman[0].p_value)
        invalid.append(diagnose(moments_of(x, a, z, a + e + z[:, :1])).sargan[0].p_value)
        confounded_p.append(diagnose(moments_of(x, a, z, a + e + v)).wu_hausman[0].p_value)
    for uniform in (valid, unconfounded):
        ordered = np.sort(uniform)
        gap = np.abs(ordered - (np.arange(repeats) + 0.5) / repeats).max()
        assert gap < 2.3 / np.sqrt(repeats)  # Kolmogorov's statistic, exceeded once in 20,000
    assert np.median(invalid) < 1e-6
    assert np.median(confounded_p) < 1e-6


# at the edge


@pytest.mark.parametrize("d_z", [1, 2])
def test_actions_that_follow_the_instrument_exactly_leave_nothing_to_test(
    confounded, moments_of, d_z
):
    """Nothing is left of the action for the confounder: these statistics do not exist."""
    x, _, z, y = confounded(3, d_z=d_z)
    d = diagnose(moments_of(x, 2 * z[:, :1], z, y))
    assert d.wu_hausman is None
    assert d.cragg_donald is None
    assert "do not identify" not in d.reasons["cragg_donald"]
    json.dumps(d.to_json(), allow_nan=False)


def test_an_output_that_never_varies_has_diagnostics_in_json(confounded, moments_of):
    x, a, z, y = confounded(4, d_z=2)
    d = diagnose(moments_of(x, a, z, 0 * y[:, :1]))
    json.dumps(d.to_json(), allow_nan=False)


def test_as_many_rows_as_instruments_have_diagnostics_in_json(confounded, moments_of):
    d = diagnose(moments_of(*confounded(5, n=4, d_x=1, d_a=1, d_z=2)))
    json.dumps(d.to_json(), allow_nan=False)


def test_rows_of_no_weight_at_all_are_refused(confounded, log_of):
    data = confounded(6)
    with pytest.raises(DataError):
        ivvi.estimate(log_of(*data, weight=np.zeros(len(data[0]))))


def test_an_action_that_the_state_determines_is_not_identified(confounded, moments_of):
    x, _, z, y = confounded(7, d_x=1, d_z=1)
    d = diagnose(moments_of(x, 2 * x, z, y))
    assert not d.strength.identified
    assert d.cragg_donald is None
    assert d.wu_hausman is None


def test_unknown_methods_are_refused(confounded, log_of):
    with pytest.raises(InputError, match="did you mean 'exact'"):
        ivvi.estimate(log_of(*confounded(0)), method="exat")


def test_equal_diagnostics_compare_equal(confounded, moments_of):
    m = moments_of(*confounded(0))
    one, two = diagnose(m), diagnose(m)
    assert dataclasses.asdict(one) == dataclasses.asdict(two)
    assert math.isfinite(one.cragg_donald)


@pytest.mark.parametrize("mean", [0.0, 1e4, 2e6])
def test_a_state_far_from_zero_is_not_collinear_with_the_constant(mean, confounded, moments_of):
    """Times in seconds: mu_iv is one over n times the largest eigenvalue of the bread."""
    x, a, z, y = confounded(5, d_x=1)
    m = moments_of(x + mean, a, z, y)
    s = strength(m)
    assert (s.rank, s.d_phi, s.rank_psi, s.d_psi) == (3, 3, 4, 4)
    wanted = 1 / (m.n * np.linalg.eigvalsh(Exact().solve(m).bread)[-1])
    assert s.mu_iv == pytest.approx(wanted, rel=1e-5)
    assert diagnose(m).warnings == ()
