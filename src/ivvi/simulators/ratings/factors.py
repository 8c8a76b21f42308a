"""The leading singular values and vectors of a rating matrix.

Here R ~ U diag(singular values) V^T is the matrix (users, movies), with U (users, rank) and V
(movies, rank).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array
from scipy.sparse.linalg import ArpackError, svds

from ivvi._io.result import Compact
from ivvi.errors import DataError, InputError, hint
from ivvi.simulators.ratings.ratings_data import Ratings

SIGNS: dict[str, tuple[int, ...]] = {
    "largest": (1,) * 10,
    "authors": (-1, -1, -1, -1, 1, -1, -1, 1, 1, 1),
}
"""Signs of the first ten pairs of singular vectors, by name: ``largest`` makes the largest absolute
loading of each right vector positive; ``authors`` are those of the paper's MovieLens 1M."""


@dataclass(frozen=True, eq=False, repr=False)
class Factors(Compact):
    """R ≈ U Σ Vᵀ, truncated to the largest singular values.

    R is (n_users, n_movies) with zeros where a user did not rate a movie; its rows and
    columns are the users and movies that have ratings, in increasing order of their ids.

    Attributes
    ----------
    U : (n_users, rank) array
        Left singular vectors.
    singular_values : (rank,) array
        The largest singular values, in decreasing order.
    V : (n_movies, rank) array
        Right singular vectors; the largest absolute loading of each is positive.
    movies : (n_movies,) integer array
        The movie id of each row of V.
    users : (n_users,) integer array
        The user id of each row of U.
    label
        A human name of where the ratings come from.
    synthetic
        Whether the ratings were made up by a program.
    """

    U: NDArray[np.float64]
    singular_values: NDArray[np.float64]
    V: NDArray[np.float64]
    movies: NDArray[np.int64]
    users: NDArray[np.int64]
    label: str
    synthetic: bool

    @property
    def V_tilde(self) -> NDArray[np.float64]:  # noqa: N802 - the name in the notation
        """The (10, rank) rows of V of the ten smallest movie ids that have ratings."""
        return self.leading(10)

    def with_signs(self, word: str) -> Factors:
        """Return the same decomposition with other signs, ``largest`` or ``authors``.

        U Σ Vᵀ does not change. The paper's recommender does: watching a movie moves the state by
        its row of V, and ratings start from a row of U.
        """
        if word not in SIGNS:
            raise InputError(f"unknown signs {word!r}{hint(word, SIGNS)}")
        signs = np.ones(len(self.singular_values))
        chosen = SIGNS[word][: len(signs)]
        signs[: len(chosen)] = chosen
        return replace(self, U=self.U * signs, V=self.V * signs)

    def leading(self, n: int = 10) -> NDArray[np.float64]:
        """Return the (n, rank) rows of V of the n smallest movie ids, as a copy.

        Raises
        ------
        DataError
            If fewer than n movies have ratings, or n is less than 1.
        """
        if not 1 <= n <= len(self.V):
            raise DataError(
                f"{self.label} has ratings of {len(self.V)} movies, so the first {n} cannot be "
                f"taken; ask for 1 to {len(self.V)}"
            )
        return self.V[:n].copy()


def factorize(ratings: Ratings, rank: int = 10) -> Factors:
    """Decompose the rating matrix and keep the `rank` largest singular values.

    The result is determined by the ratings alone, whatever the order of their rows: the
    iteration starts from a fixed vector and the signs of the singular vectors are fixed.

    Parameters
    ----------
    ratings
        At most one rating for each pair of a user and a movie.
    rank
        How many singular values to keep, at most the number of users and of movies.

    Returns
    -------
    Factors
        With U (n_users, rank), singular_values (rank,) and V (n_movies, rank).

    Raises
    ------
    DataError
        If a user rated a movie twice, or R has fewer than `rank` singular values above 0.
    """
    users, row = np.unique(ratings.user, return_inverse=True)
    movies, column = np.unique(ratings.movie, return_inverse=True)
    nonzero = int(np.count_nonzero(ratings.rating))
    _check_rank(ratings.label, rank, min(len(users), len(movies), nonzero))
    R = csr_array(coo_array((ratings.rating, (row, column)), shape=(len(users), len(movies))))
    if R.nnz < len(ratings):
        _refuse_duplicate(ratings, row * len(movies) + column)
    U, singular_values, V = _leading_svd(R, rank)
    positive = singular_values > singular_values[0] * max(R.shape) * np.finfo(float).eps
    _check_rank(ratings.label, rank, int(positive.sum()))
    signs = np.sign(V[np.abs(V).argmax(axis=0), np.arange(rank)])
    U, V = np.ascontiguousarray(U * signs), np.ascontiguousarray(V * signs)
    return Factors(U, singular_values, V, movies, users, ratings.label, ratings.synthetic)


def _check_rank(label: str, rank: int, largest: int) -> None:
    """Raise an error unless there are `rank` singular values, and at least one is requested."""
    if not 1 <= rank <= largest:
        raise DataError(
            f"The rating matrix of {label} has rank at most {largest}, "
            f"so {rank} singular values above 0 cannot be kept"
        )


def _refuse_duplicate(ratings: Ratings, pair: NDArray[np.int64]) -> None:
    """Raise an error that names the first row with a repeated rating of a user and movie."""
    order = np.argsort(pair, kind="stable")
    repeated = order[1:][pair[order][1:] == pair[order][:-1]]
    row = int(repeated.min())
    first = int(np.flatnonzero(pair == pair[row])[0])
    raise DataError(
        f"{ratings.label} row {row + 1} repeats the rating of movie {ratings.movie[row]} by user "
        f"{ratings.user[row]} from row {first + 1}; expected one rating per user and movie"
    )


def _leading_svd(
    R: csr_array, rank: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return U, the singular values and V in decreasing order, with arbitrary signs."""
    smallest = min(R.shape)
    if rank == smallest:  # the iterative solver needs fewer
        U, singular_values, Vt = np.linalg.svd(R.toarray(), full_matrices=False)
        return U, singular_values, Vt.T
    start = np.random.default_rng(0).standard_normal(smallest)
    try:
        factors = svds(R, k=rank, v0=start)
    except ArpackError as error:
        raise DataError(f"The rating matrix cannot be decomposed: {error}") from error
    U, singular_values, Vt = (np.asarray(factor, dtype=np.float64) for factor in factors)
    order = np.argsort(singular_values)[::-1]
    return U[:, order], singular_values[order], Vt[order].T
