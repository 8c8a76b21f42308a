"""The truncated decomposition of a rating matrix, its order and its signs."""

import os
import re
from pathlib import Path

import numpy as np
import pytest

import ivvi
from helpers import ROOT
from ivvi.errors import DataError
from ivvi.simulators.ratings import Ratings, factorize, ratings_from_table, read_ratings

SHARED = ROOT.parent / "shared/data/ml-1m/ratings.parquet"
MOVIELENS = Path(os.environ.get("IVVI_MOVIELENS") or SHARED)


def from_matrix(R, label="small"):
    """Return the nonzero entries of R as ratings; ids are 10, 20, ... and 5, 10, ..."""
    row, column = np.nonzero(R)
    return Ratings(10 * (row + 1), 5 * (column + 1), R[row, column], label, synthetic=False)


@pytest.fixture(name="R")
def small_matrix():
    rng = np.random.default_rng(3)
    ratings = rng.integers(1, 6, (30, 18)) * (rng.random((30, 18)) < 0.6)
    return ratings.astype(float)


@pytest.mark.parametrize("rank", [1, 5, 17, 18])
def test_factors_agree_with_the_dense_decomposition(R, rank):
    factors = factorize(from_matrix(R), rank)
    U, s, Vt = np.linalg.svd(R, full_matrices=False)
    np.testing.assert_allclose(factors.singular_values, s[:rank], rtol=1e-10)
    best = (U[:, :rank] * s[:rank]) @ Vt[:rank]
    ours = (factors.U * factors.singular_values) @ factors.V.T
    np.testing.assert_allclose(ours, best, atol=1e-9)
    np.testing.assert_allclose(factors.U.T @ factors.U, np.eye(rank), atol=1e-9)
    np.testing.assert_allclose(factors.V.T @ factors.V, np.eye(rank), atol=1e-9)


@pytest.mark.parametrize("rank", [5, 18])
def test_largest_loading_of_each_right_vector_is_positive(R, rank):
    V = factorize(from_matrix(R), rank).V
    assert np.all(V.max(axis=0) == np.abs(V).max(axis=0))
    centred = factorize(from_matrix(R - 3 * (R > 0) - 0.5), rank).V
    assert np.all(centred.max(axis=0) == np.abs(centred).max(axis=0))


def test_rows_are_the_sorted_ids_and_labels_are_kept(R):
    factors = factorize(from_matrix(R), 3)
    assert factors.users.tolist() == list(range(10, 310, 10))
    assert factors.movies.tolist() == list(range(5, 95, 5))
    assert factors.U.shape == (30, 3)
    assert factors.V.shape == (18, 3)
    assert (factors.label, factors.synthetic) == ("small", False)


def test_unrated_ids_have_no_row():
    ratings = ratings_from_table({"user": [1, 2, 9], "movie": [7, 3, 7], "rating": [5, 4, 3]})
    factors = factorize(ratings, 2)
    assert factors.movies.tolist() == [3, 7]
    assert factors.users.tolist() == [1, 2, 9]
    np.testing.assert_allclose(factors.singular_values, [np.sqrt(34), 4])
    np.testing.assert_allclose(factors.V, [[0, 1], [1, 0]], atol=1e-12)


def test_order_of_rows_does_not_matter(R):
    ratings = from_matrix(R)
    mixed = np.random.default_rng(0).permutation(len(ratings))
    again = Ratings(
        ratings.user[mixed], ratings.movie[mixed], ratings.rating[mixed], "", synthetic=False
    )
    one, two = factorize(ratings, 5), factorize(again, 5)
    assert np.array_equal(one.V, two.V)
    assert np.array_equal(one.U, two.U)


def test_leading_rows_of_the_factors_are_copies(R):
    factors = factorize(from_matrix(R), 5)
    assert np.array_equal(factors.V_tilde, factors.V[:10])
    assert np.array_equal(factors.leading(3), factors.V[:3])
    factors.leading(3)[:] = 0
    assert np.any(factors.V[:3] != 0)
    for n in (0, 19):
        with pytest.raises(DataError, match=rf"of 18 movies, so the first {n} cannot be taken"):
            factors.leading(n)


def test_first_duplicate_pair_is_named():
    table = {
        "user": [1, 2, 3, 2, 1],
        "movie": [10, 30, 10, 30, 10],
        "rating": [1, 2, 3, 4, 5],
    }
    with pytest.raises(
        DataError, match=r"mine row 4 repeats the rating of movie 30 by user 2 from row 2;"
    ):
        factorize(ratings_from_table(table, "mine"), 1)


@pytest.mark.parametrize("rank", [0, 19])
def test_a_rank_beyond_the_matrix_is_refused(R, rank):
    with pytest.raises(DataError, match=f"rank at most 18, so {rank} singular values above 0"):
        factorize(from_matrix(R), rank)


def test_a_rank_beyond_that_of_the_values_is_refused():
    rng = np.random.default_rng(0)
    low = rng.normal(size=(40, 2)) @ rng.normal(size=(2, 30))
    with pytest.raises(DataError, match="rank at most 2, so 5 singular values above 0"):
        factorize(from_matrix(low), 5)


def test_zero_ratings_have_no_factors():
    table = {"user": [1, 2, 3, 4], "movie": [1, 2, 3, 4], "rating": [0, 0, 0, 0]}
    with pytest.raises(DataError, match="rank at most 0, so 2 singular values"):
        factorize(ratings_from_table(table), 2)


@pytest.mark.skipif(not MOVIELENS.exists(), reason="MovieLens 1M is not here")
def test_factors_of_movielens_1m_have_known_sizes():
    ratings = read_ratings(MOVIELENS)
    assert len(ratings) == 1_000_209
    factors = factorize(ratings)
    assert factors.U.shape == (6040, 10)
    assert factors.V.shape == (3706, 10)
    assert factors.movies[:10].tolist() == list(range(1, 11))
    np.testing.assert_allclose(factors.singular_values[[0, 1, 9]], [1893.21, 671.34, 316.09], 1e-5)
    np.testing.assert_allclose(np.linalg.norm(factors.V_tilde), 0.26719, rtol=1e-4)
    assert np.all(factors.V.max(axis=0) == np.abs(factors.V).max(axis=0))


@pytest.mark.skipif(not MOVIELENS.exists(), reason="MovieLens 1M is not here")
@pytest.mark.parametrize("simulator", ["recommender", "recommender-revised"])
def test_movielens_leaves_the_movies_against_the_constant_free(simulator):
    """Recommendations add up to ten, so that only the sum of all effects is not identified."""
    log = ivvi.make_env(simulator, ratings=MOVIELENS, setting="II").collect(episodes=100, seed=0)
    with pytest.raises(ivvi.errors.IdentificationError) as refused:
        ivvi.estimate(log)
    assert re.search(r"\[z0 \+ z1 .* - 10\] is 0, or nearly 0, in every row", str(refused.value))
    with pytest.warns(ivvi.errors.IvviWarning, match="not identified"):
        estimate = ivvi.estimate(log, allow_unidentified=True).estimate
    (named,) = estimate.unidentified
    assert re.fullmatch(r"a\d \+ .* - \d+(\.\d+)?", named)
    (free,) = estimate.null
    assert (free[0] * free[11:] < 0).all()  # each movie against the constant
    assert np.abs(free[1:11]).max() < 0.1 * np.abs(free[11:]).min()  # no state
