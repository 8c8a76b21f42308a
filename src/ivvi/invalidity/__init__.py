"""What if the instrument is not quite valid? Breakdown points and bands."""

from ivvi.invalidity.analysis import sensitivity
from ivvi.invalidity.results import Sensitivity

__all__ = ["Sensitivity", "sensitivity"]
