"""What a policy is worth when there is a log and no simulator: values with intervals."""

from ivvi.valuation.result import Amount, Valuation
from ivvi.valuation.valuing import value

__all__ = ["Amount", "Valuation", "value"]
