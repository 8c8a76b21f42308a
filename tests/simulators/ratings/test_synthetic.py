"""The synthetic default: its shape, its skew, and that it is a function of the seed."""

import numpy as np
import pytest

from ivvi.errors import DataError
from ivvi.simulators.ratings import factorize, synthetic_ratings


@pytest.fixture(scope="module")
def ratings():
    return synthetic_ratings()


@pytest.fixture(scope="module")
def factors(ratings):
    return factorize(ratings, 12)


def test_label_says_what_it_is(ratings, factors):
    assert ratings.synthetic is True
    assert ratings.label == "synthetic ratings (not MovieLens)"
    assert (factors.label, factors.synthetic) == (ratings.label, True)


def test_the_seed_decides_the_ratings(ratings):
    again, other = synthetic_ratings(0), synthetic_ratings(1)
    for name in ("user", "movie", "rating"):
        assert np.array_equal(getattr(ratings, name), getattr(again, name))
    assert not np.array_equal(ratings.movie, other.movie)


def test_synthetic_ratings_have_the_shape_of_movielens_1m(ratings):
    assert np.array_equal(np.unique(ratings.user), np.arange(1, 6041))
    assert 1 <= ratings.movie.min() <= ratings.movie.max() <= 3952
    assert 3600 <= len(np.unique(ratings.movie)) <= 3706
    assert 0.98e6 <= len(ratings) <= 1.02e6
    assert np.unique(ratings.rating).tolist() == [1, 2, 3, 4, 5]
    assert 3.4 < ratings.rating.mean() < 3.8
    assert len(np.unique(ratings.user * 4000 + ratings.movie)) == len(ratings)


def test_activity_and_popularity_are_skewed(ratings):
    activity = np.bincount(ratings.user)[1:]
    assert activity.min() >= 20
    assert activity.max() > 1000
    assert activity.mean() > 1.5 * np.median(activity)
    popularity = np.bincount(ratings.movie)[1:]
    assert popularity.max() > 2000
    assert popularity.mean() > 1.5 * np.median(popularity)
    assert popularity[:10].min() > 100
    assert popularity[:10].max() > 1000


def test_ten_singular_values_stand_out(factors):
    s = factors.singular_values
    assert 1700 < s[0] < 2100
    assert 600 < s[1] < 750
    assert 280 < s[9] < 350
    assert s[10] < 0.8 * s[9]


def test_leading_movies_have_the_size_of_movielens(factors):
    V_tilde = factors.leading(10)[:, :10]
    assert factors.movies[:10].tolist() == list(range(1, 11))
    assert 0.24 < np.linalg.norm(V_tilde) < 0.30
    assert np.linalg.svd(V_tilde, compute_uv=False)[-1] > 1e-3


def test_a_negative_seed_is_refused():
    with pytest.raises(DataError, match="seed of the synthetic ratings is -1; expected 0 or more"):
        synthetic_ratings(-1)
