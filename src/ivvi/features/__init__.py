"""Features of a row: the maps phi(x, a) and psi(x, z), their blocks, and the design v."""

from ivvi.features.feature_map import (
    FeatureMap,
    custom,
    fourier,
    linear,
    one_hot,
    parse_features,
    polynomial,
    spline,
)

__all__ = [
    "FeatureMap",
    "custom",
    "fourier",
    "linear",
    "one_hot",
    "parse_features",
    "polynomial",
    "spline",
]
