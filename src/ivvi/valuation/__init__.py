"""What a policy is worth when there is a log and no simulator: values with intervals."""

from ivvi.valuation.agreement import Stability, stability
from ivvi.valuation.result import Amount, Valuation
from ivvi.valuation.valuing import value

__all__ = ["Amount", "Stability", "Valuation", "stability", "value"]
