"""A number estimated from the log, with the interval that draws of other models give it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import special

from ivvi._io.result import Result
from ivvi.errors import InputError, hint

INTERVALS = ("split", "percentile", "basic", "bias-corrected")
"""Kinds of interval that can be computed from draws."""
FEWEST, ENOUGH = 100, 0.05
"""Fewest draws for which the error of an interval's end is known, and the largest error that is
small enough, in widths of the interval."""
TURNS = 2.0
"""Within this many errors of zero, an interval's end may change a verdict under other draws."""


@dataclass(frozen=True, eq=False, repr=False)
class IntervalEstimate(Result):
    """A number estimated from the log.

    Attributes
    ----------
    estimate
        In the estimated world, minus the optimism of a plan where draws were planned again.
    draws
        In models that the log allows, (draws,).
    level
        Of the interval.
    simulation_error
        Standard error of the estimate due to the number of simulated episodes; the
        draws include it.
    """

    estimate: float
    draws: np.ndarray
    level: float = 0.95
    simulation_error: float = 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """The interval that is reported: percentiles on either side of the estimate."""
        return self.interval_of("split")

    def interval_of(self, kind: str) -> tuple[float, float]:
        """Return an interval: ``split``, ``percentile``, ``basic`` or ``bias-corrected``.

        ``split`` cuts off the outermost share 1 - level of the draws below the estimate, and the
        same share of those above it. It contains as many draws as a percentile interval, and is the
        same interval if the estimate is the median. It always contains the estimate, however
        nonlinear the value is in W. ``percentile``: quantiles of the draws. ``basic``: those of
        2 estimate - draws. ``bias-corrected``: quantiles moved by the share of draws below the
        estimate (Efron's BC).
        """
        if kind not in INTERVALS:
            raise InputError(f"unknown interval {kind!r}{hint(kind, INTERVALS)}")
        tails = np.array([0.5 - self.level / 2, 0.5 + self.level / 2])
        if kind == "split":
            low, high = self._sides
            return float(_quantile(low, 1 - self.level)), float(_quantile(high, self.level))
        if kind == "basic":
            high, low = 2 * self.estimate - _quantile(self.draws, tails)
            return float(low), float(high)
        if kind == "bias-corrected":
            below = (np.sum(self.draws < self.estimate) + 0.5) / (len(self.draws) + 1)
            tails = special.ndtr(2 * special.ndtri(below) + special.ndtri(tails))
        low, high = _quantile(self.draws, tails)
        return float(low), float(high)

    @property
    def _sides(self) -> tuple[np.ndarray, np.ndarray]:
        """The draws up to the estimate and those from it on; the estimate itself where none are."""
        below = self.draws[self.draws <= self.estimate]
        above = self.draws[self.draws >= self.estimate]
        alone = np.array([self.estimate])
        return below if len(below) else alone, above if len(above) else alone

    @property
    def interval_error(self) -> tuple[float, float]:
        """Standard errors of the interval's ends that are due to the number of draws.

        A quarter of the distance between the quantiles two binomial standard deviations below and
        above (Woodruff, 1952). At one standard deviation fewer draws lie between them, and the
        error itself would be less certain.
        """
        errors, outside = [], 1 - self.level
        for side, share in zip(self._sides, (outside, self.level), strict=True):
            away = 2 * np.sqrt(outside * self.level / len(side))
            low, high = np.quantile(side, np.clip([share - away, share + away], 0.0, 1.0))
            errors.append(float(high - low) / 4)
        return errors[0], errors[1]

    @property
    def is_settled(self) -> bool:
        """Whether both ends are known to 5% of the interval's width, or there is no width.

        With fewer than 100 draws the error of the ends is not known well enough.
        """
        low, high = self.interval
        enough_draws = len(self.draws) >= FEWEST or not high > low
        return enough_draws and max(self.interval_error) <= ENOUGH * (high - low)

    @property
    def may_turn(self) -> bool:
        """Whether other draws could put an end of the interval on the other side of zero.

        That is so if an end is within two of its errors of zero. With fewer than 100 draws the
        error is not known well; the interval's width over the root of their number replaces it,
        which tends to be larger.
        """
        low, high = self.interval
        least = (high - low) / len(self.draws) ** 0.5 if len(self.draws) < FEWEST else 0.0
        return any(
            abs(end) <= TURNS * max(error, least)
            for end, error in zip((low, high), self.interval_error, strict=True)
        )

    def with_more(self, other: IntervalEstimate) -> IntervalEstimate:
        """Return the same amount with the draws of both."""
        counts = len(self.draws), len(other.draws)
        estimate = float(np.average([self.estimate, other.estimate], weights=counts))
        return replace(self, estimate=estimate, draws=np.concatenate([self.draws, other.draws]))

    @property
    def se(self) -> float:
        """Half the width of the middle 68% of the draws: a standard error without the tails."""
        low, high = np.quantile(self.draws, [0.1587, 0.8413])
        return float(high - low) / 2

    @property
    def probability(self) -> float:
        """Share of the draws above zero."""
        return float(np.mean(self.draws > 0))

    def summary(self) -> str:
        """Return the estimate, its standard error and its interval in a line."""
        return (
            f"{self.estimate:.5g}, standard error {self.se:.3g}, {100 * self.level:g}% interval "
            f"{interval_text(self)}"
        )

    def to_json(self) -> dict[str, Any]:
        """Describe with JSON values, without the draws."""
        numbers = {"estimate": self.estimate, "se": self.se, "interval": list(self.interval)}
        return {**numbers, "interval_error": list(self.interval_error)}


def gains_of(values: dict[str, IntervalEstimate]) -> dict[str, IntervalEstimate]:
    """Return how much more the first policy earns than each of the others."""
    (_, first), *others = values.items()
    return {
        name: IntervalEstimate(first.estimate - v.estimate, first.draws - v.draws, first.level)
        for name, v in others
    }


def interval_text(amount: IntervalEstimate) -> str:
    """Return the interval of an amount as it is printed."""
    low, high = amount.interval
    return f"[{low:.5g}, {high:.5g}]"


def _quantile(draws: np.ndarray, shares: Any) -> Any:
    """Return quantiles outside which another draw lies with exactly the requested probability.

    The k-th of m draws has the share k / (m + 1) of the law below it on average. The usual
    interpolation puts the ends of a 95% interval of 200 draws 94.1% apart.
    """
    return np.quantile(draws, shares, method="weibull")
