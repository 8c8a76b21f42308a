"""Rating data: GroupLens' MovieLens files, a synthetic default, and their factors."""

from ivvi.simulators.ratings.download import download
from ivvi.simulators.ratings.factors import Factors, factorize
from ivvi.simulators.ratings.ratings_data import Ratings, ratings_from_table, read_ratings
from ivvi.simulators.ratings.synthetic import synthetic_ratings

__all__ = [
    "Factors",
    "Ratings",
    "download",
    "factorize",
    "ratings_from_table",
    "read_ratings",
    "synthetic_ratings",
]
