"""Ratings of movies by users, from GroupLens' own files or any table."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ivvi._io.result import Compact
from ivvi.errors import DataError
from ivvi.simulators.ratings.tables import (
    SPELLINGS,
    check_finite,
    locate,
    numbers,
    read_file,
    to_arrow,
)


@dataclass(frozen=True, eq=False, repr=False)
class Ratings(Compact):
    """n ratings, each of one movie by one user.

    Attributes
    ----------
    user : (n,) integer array
        The user of each rating.
    movie : (n,) integer array
        The movie of each rating.
    rating : (n,) float array
        The rating; every value is finite.
    label
        A human name of where the ratings come from.
    synthetic
        Whether the ratings were made up by a program.

    Raises
    ------
    DataError
        If the arrays are empty, differ in length or hold a rating that is not finite.
    """

    user: NDArray[np.int64]
    movie: NDArray[np.int64]
    rating: NDArray[np.float64]
    label: str
    synthetic: bool

    def __post_init__(self) -> None:
        shapes = [np.shape(array) for array in (self.user, self.movie, self.rating)]
        if len(shapes[0]) != 1 or len(set(shapes)) > 1:
            raise DataError(
                f"{self.label}: user, movie and rating have shapes {shapes[0]}, {shapes[1]} and "
                f"{shapes[2]}; expected one-dimensional arrays of one length"
            )
        if shapes[0] == (0,):
            raise DataError(f"{self.label} is empty; expected at least one rating")
        check_finite(self.rating, self.label)

    def __len__(self) -> int:
        return len(self.rating)


def read_ratings(path: str | os.PathLike[str]) -> Ratings:
    """Read ratings from a file, a folder or a zip.

    Parameters
    ----------
    path
        GroupLens' ``ratings.dat`` (ml-1m, ml-10m), ``u.data`` (ml-100k) or
        ``ratings.csv`` (ml-latest, 20m, 25m, 32m): the file itself, the folder that holds
        it, or the zip as GroupLens ships it; or a table of user, movie and rating as a
        Parquet file, a CSV file with a header, or a folder that holds ``ratings.parquet``.

    Returns
    -------
    Ratings
        In the order of the file; rows in error messages count from 1, below any header.

    Raises
    ------
    FileError
        If the file is missing, damaged or holds no ratings.
    ColumnError
        If the user, the movie or the rating column is missing or no number.
    DataError
        If there are no rows, or a value is missing, not a number or not finite.
    """
    table, source, label = read_file(Path(path))
    return _from_arrow(table, source, label, synthetic=False)


def ratings_from_table(
    table: object, label: str = "ratings table", *, synthetic: bool = False
) -> Ratings:
    """Return the ratings in a data frame, an Arrow object or a dict of arrays.

    Parameters
    ----------
    table
        Anything with ``__arrow_c_stream__`` (pandas, polars, Arrow), or a dict of arrays
        of one length; its columns are user (or user_id, userId), movie (or movie_id,
        movieId, item, item_id, itemId) and rating, in any case; others are left out.
    label
        A human name for the ratings, also used in error messages.
    synthetic
        Whether the ratings were made up by a program.

    Raises
    ------
    ColumnError, DataError
        As for `read_ratings`.
    """
    return _from_arrow(to_arrow(table, label), label, label, synthetic=synthetic)


def _from_arrow(table: Any, source: str, label: str, *, synthetic: bool) -> Ratings:
    """Return the ratings in an Arrow table; `source` names it in error messages."""
    positions = locate(table.column_names, source)
    if not table.num_rows:
        raise DataError(f"{source} has no rows; expected at least one rating")
    user, movie, rating = (
        numbers(table.column(positions[role]), role, source) for role in SPELLINGS
    )
    check_finite(rating, source)
    return Ratings(user, movie, rating, label, synthetic)
