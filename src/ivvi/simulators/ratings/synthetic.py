"""Made-up ratings like those of MovieLens 1M, for use without the real ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from ivvi.errors import DataError
from ivvi.simulators.ratings.ratings_data import Ratings

LABEL = "synthetic ratings (not MovieLens)"
N_USERS = 6040
N_MOVIE_IDS = 3952
N_RATED = 3706  # the other ids belong to movies that nobody can rate
N_FAMILIAR = 10  # the smallest ids, which are those of well-known movies
# How much each of the independent tastes changes the log of the chance to be watched.
TASTE_STRENGTHS = np.array([0.68, 0.57, 0.50, 0.44, 0.41, 0.37, 0.33, 0.30])
_BLOCK = 500  # users at a time, so that memory stays small


def synthetic_ratings(seed: int = 0) -> Ratings:
    """Make up about a million ratings, from 1 to 5, like those of MovieLens 1M.

    There are 6040 users, each with at least 20 ratings, and about 3706 rated movies among
    3952 ids. Some movies are far more popular and some users far more active than others;
    what a user watches and likes follows eight tastes, so with popularity and activity the
    rating matrix has ten singular values that stand out. No rating is taken from MovieLens.

    Parameters
    ----------
    seed
        The ratings are a function of this number alone.

    Raises
    ------
    DataError
        If the seed is negative.
    """
    if seed < 0:
        raise DataError(f"The seed of the synthetic ratings is {seed}; expected 0 or more")
    rng = np.random.default_rng(seed)
    ids = _movie_ids(rng)
    fame = _fame(rng)
    counts = _ratings_per_user(rng)
    users = rng.standard_normal((N_USERS, len(TASTE_STRENGTHS)))
    movies = rng.standard_normal((N_RATED, len(TASTE_STRENGTHS))) * TASTE_STRENGTHS
    column, liking = _watch(rng, counts, users, movies, _popularity(fame))
    row = np.repeat(np.arange(N_USERS), counts)
    rating = _rate(rng, row, column, liking, fame)
    return Ratings(row + 1, ids[column], rating, LABEL, synthetic=True)


def _movie_ids(rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the (N_RATED,) ids that can be rated, increasing; the familiar are among them."""
    familiar = np.arange(1, N_FAMILIAR + 1)
    unfamiliar = rng.choice(
        np.arange(N_FAMILIAR + 1, N_MOVIE_IDS + 1), N_RATED - N_FAMILIAR, replace=False
    )
    return np.concatenate([familiar, np.sort(unfamiliar)])


def _fame(rng: np.random.Generator) -> NDArray[np.float64]:
    """Return the (N_RATED,) share of movies that each movie is more popular than."""
    fame = rng.permutation((np.arange(N_RATED) + 0.5) / N_RATED)
    fame[:N_FAMILIAR] = rng.permutation(np.linspace(0.57, 0.995, N_FAMILIAR))
    return fame


def _popularity(fame: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how often each movie is watched, relatively: Weibull quantiles and a floor."""
    quantiles: NDArray[np.float64] = (-np.log1p(-fame)) ** (1 / 0.46)
    return quantiles + 0.02


def _ratings_per_user(rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the (N_USERS,) numbers of ratings: log-normal quantiles above 20, shuffled."""
    levels = (np.arange(N_USERS) + 0.5) / N_USERS
    counts = 20 + np.floor(75 * np.exp(1.17 * ndtri(levels)))
    return rng.permutation(np.minimum(counts, 2300).astype(np.int64))


def _watch(
    rng: np.random.Generator,
    counts: NDArray[np.int64],
    users: NDArray[np.float64],
    movies: NDArray[np.float64],
    popularity: NDArray[np.float64],
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Choose the movies that each user rates, without replacement.

    Every movie of every user waits an exponential time with rate popularity times the
    exponential of the user's liking; a user rates those that come first.

    Returns
    -------
    movie, liking
        Two arrays of length ``counts.sum()``, user by user in order of the movies.
    """
    chosen: list[NDArray[np.int64]] = []
    likings: list[NDArray[np.float64]] = []
    for start in range(0, N_USERS, _BLOCK):
        liking = users[start : start + _BLOCK] @ movies.T
        waits = rng.standard_exponential(liking.shape)
        waits /= np.exp(liking) * popularity
        for wait, like, count in zip(waits, liking, counts[start : start + _BLOCK], strict=True):
            first = np.sort(np.argpartition(wait, count - 1)[:count])
            chosen.append(first)
            likings.append(like[first])
    return np.concatenate(chosen), np.concatenate(likings)


def _rate(
    rng: np.random.Generator,
    row: NDArray[np.int64],
    column: NDArray[np.int64],
    liking: NDArray[np.float64],
    fame: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return ratings 1 to 5 from a user's mildness, a movie's quality, liking and chance."""
    mildness = rng.normal(0.0, 0.4, N_USERS)
    quality = rng.normal(0.0, 0.45, N_RATED) + fame - 0.5
    score = 3.05 + mildness[row] + quality[column] + 0.25 * liking
    score += rng.normal(0.0, 0.95, len(score))
    rating: NDArray[np.float64] = np.clip(np.rint(score), 1.0, 5.0)
    return rating
