"""What if the instrument is not quite valid? Breakdown points and bands."""

from ivvi.sensitivity_analysis.analysis import sensitivity
from ivvi.sensitivity_analysis.result import Sensitivity

__all__ = ["Sensitivity", "sensitivity"]
