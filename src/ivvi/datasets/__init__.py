"""Rating data: GroupLens' MovieLens files, a synthetic default, and their factors."""

from ivvi.datasets.download import download
from ivvi.datasets.factors import Factors, factorize
from ivvi.datasets.ratings import Ratings, ratings_from_table, read_ratings
from ivvi.datasets.synthetic import synthetic_ratings

__all__ = [
    "Factors",
    "Ratings",
    "download",
    "factorize",
    "ratings_from_table",
    "read_ratings",
    "synthetic_ratings",
]
