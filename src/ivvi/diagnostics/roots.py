"""Where a function of one variable crosses a level."""

from __future__ import annotations

import math
from collections.abc import Callable

MOST_STEPS, HALVINGS = 80, 200


def find_root(function: Callable[[float], float], low: float, high: float) -> float:
    """Return where a continuous function of opposite signs at `low` and `high` is zero.

    Regula falsi, in which an end that stays counts half (Illinois); then halving.
    """
    left, right, side = function(low), function(high), 0
    precise = 1e-15 * max(abs(left), abs(right))
    for i in range(MOST_STEPS):
        if high - low <= 1e-13 * max(abs(low), abs(high)):
            break
        middle = (low * right - high * left) / (right - left)
        if not low < middle < high or i > MOST_STEPS / 2:
            middle = (low + high) / 2
        value = function(middle)
        if abs(value) <= precise:
            return middle
        if (value > 0) == (left > 0):
            low, left, right = middle, value, right / 2 if side == 1 else right
            side = 1
        else:
            high, right, left = middle, value, left / 2 if side == -1 else left
            side = -1
    return (low + high) / 2


def solve_decreasing(
    function: Callable[[float], float], target: float, low: float = 0.0, high: float | None = None
) -> float:
    """Return where a decreasing function meets `target`, by halving down to rounding error.

    Without `high` the bracket grows until it holds the solution.
    """
    if high is None:
        high = low + 1.0
        while function(high) > target and math.isfinite(high):
            high = low + 2 * (high - low)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (middle, high) if function(middle) > target else (low, middle)
    return high
