"""What a policy is worth when there is a log and no simulator: values with intervals."""

from ivvi.evaluation.action_stability import Stability, stability
from ivvi.evaluation.interval_estimate import IntervalEstimate
from ivvi.evaluation.valuation import Valuation
from ivvi.evaluation.value_policy import value

__all__ = ["IntervalEstimate", "Stability", "Valuation", "stability", "value"]
