"""The recursion of value iteration, and when it can stop."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from ivvi._io.arrays import Array
from ivvi.errors import InputError, PlanningWarning
from ivvi.planning.problem import Problem
from ivvi.planning.progress import step_done
from ivvi.planning.quadrature import uses_step

STEADY = 1e-11
"""V_h - V_h+1 counts as constant if its spread over the states, relative to V, is below this."""
MOST_STEPS = 100_000
MOST_NUMBERS = 1 << 27
"""Most coefficients that are stored: 1 GiB."""


def backward(
    backup: Callable[[Array, Any], Array],
    fit: Callable[[np.ndarray], np.ndarray],
    problem: Problem,
    n: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the coefficients (K, p) of the last K steps, and the shifts (H,) of all.

    `backup(c, h)` gives V_h at n states from coefficients of G_h, `fit` the coefficients of
    G_h-1 from V_h. If the reward does not depend on the step and no episode ends early, a constant
    passes through the recursion: if V_h - V_h+1 is the constant d, V_h-1 - V_h is discount d. So
    when the spread of the difference over the states is negligible, the earlier steps need no
    further work.
    """
    steps = problem.horizon
    coefficients, before = [fit(np.zeros(n))], np.zeros(n)
    for count in range(1, steps):
        values = _checked(np.asarray(backup(coefficients[-1], steps - count)), count)
        coefficients.append(fit(values))
        _check_memory(coefficients, steps)
        step_done()
        low, high = _bounds(values - before, problem)
        before = values
        if high - low <= STEADY * _size(values) and not uses_step(problem):
            ahead = (low + high) / 2 * problem.discount ** np.arange(1, steps - count)
            return np.array(coefficients[::-1]), np.r_[
                np.cumsum(ahead)[::-1], np.zeros(len(coefficients))
            ]
    return np.array(coefficients[::-1]), np.zeros(steps)


def fixed_point(
    backup: Callable[[Array, Any], Array],
    fit: Callable[[np.ndarray], np.ndarray],
    problem: Problem,
    n: int,
    tolerance: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the coefficients (1, p) of the fixed point, and a shift of zero (1,).

    The fixed point lies between V + discount / (1 - discount) times the smallest and the
    largest change of V in a step (MacQueen, 1966); the middle is taken when they are within
    `tolerance` of the largest value.
    """
    far = problem.discount / (1 - problem.discount)
    c, before = fit(np.zeros(n)), np.zeros(n)
    for count in range(1, MOST_STEPS + 1):
        values = _checked(np.asarray(backup(c, 0)), count)
        step_done()
        low, high = _bounds(values - before, problem)
        if far * (high - low) / 2 <= tolerance * _size(values):
            return fit(values + far * (low + high) / 2)[None], np.zeros(1)
        c, before = fit(values), values
    warnings.warn(
        f"the values still move by {max(-low, high):.3g} after {MOST_STEPS} iterations; the plan "
        "is that of the last",
        PlanningWarning,
        stacklevel=6,
    )
    return c[None], np.zeros(1)


def _bounds(change: np.ndarray, problem: Problem) -> tuple[float, float]:
    """Return the smallest and largest change, extended to zero where episodes can end."""
    low, high = float(change.min()), float(change.max())
    return (low, high) if not problem.can_end else (min(low, 0.0), max(high, 0.0))


def _size(values: np.ndarray) -> float:
    return 1 + float(np.abs(values).max())


def _checked(values: np.ndarray, count: int) -> np.ndarray:
    if not np.isfinite(values).all():
        raise InputError(
            f"the values are not finite numbers after {count} steps: the model, the reward or "
            "the fitted values explode; a shorter horizon, a discount or value='grid' may help"
        )
    return values


def _check_memory(coefficients: list[np.ndarray], steps: int) -> None:
    if len(coefficients) * len(coefficients[0]) > MOST_NUMBERS:
        raise InputError(
            f"the values of {len(coefficients)} of {steps} steps fill {MOST_NUMBERS >> 27} GiB "
            "and still change; expected fewer points, a shorter horizon or a stationary plan"
        )
