"""The root and the minimum of a function.

They are written here because importing scipy.optimize takes longer than most fits.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ivvi._io.arrays import Floats

ROOT_STEPS = 80
DESCENTS = 100


def find_root(function: Callable[[float], float], low: float, high: float) -> float:
    """Return where a continuous function of opposite signs at `low` and `high` is zero.

    Regula falsi, in which an end that stays counts half (Illinois); then halving.
    """
    left, right, side = function(low), function(high), 0
    precise = 1e-15 * max(abs(left), abs(right))
    for i in range(ROOT_STEPS):
        if high - low <= 1e-13 * max(abs(low), abs(high)):
            break
        middle = (low * right - high * left) / (right - left)
        if not low < middle < high or i > ROOT_STEPS / 2:
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


def descend(
    evaluate: Callable[[Floats], tuple[float, Floats]], h: Floats, enough: float = -math.inf
) -> tuple[float, Floats]:
    """Minimise a function, given with its slope, by BFGS from `h`, down to `enough`."""
    value, slope = evaluate(h)
    inverse = np.eye(len(h)) / max(float(np.linalg.norm(slope)), 1.0)
    for _ in range(DESCENTS):
        step = -inverse @ slope
        if value <= enough or -float(slope @ step) <= 1e-10 * (1 + value):
            break
        new_value, new_slope = evaluate(h + step)
        while new_value > value + 1e-4 * float(slope @ step) and np.abs(step).max() > 1e-9:
            step = step / 2
            new_value, new_slope = evaluate(h + step)
        if value - new_value <= 1e-10 * (1 + value):
            break
        change = new_slope - slope
        h, value, slope = h + step, new_value, new_slope
        if (curvature := float(step @ change)) > 0:
            turn = np.eye(len(h)) - np.outer(step, change) / curvature
            inverse = turn @ inverse @ turn.T + np.outer(step, step) / curvature
    return value, h
