"""The recursion of value iteration, and when it need not go on."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from ivvi.blocks import Array
from ivvi.errors import InputError, PlanningWarning
from ivvi.planners.integration import uses_step
from ivvi.planners.problem import Problem

STEADY = 1e-11
"""Spread of V_h - V_h+1 over the states, relative to V, below which it is a constant."""
MOST_STEPS = 100_000
MOST_NUMBERS = 1 << 27
"""Of coefficients that are kept: 1 GiB."""


def iterate(
    backup: Callable[[Array, Any], Array],
    fit: Callable[[np.ndarray], np.ndarray],
    problem: Problem,
    n: int,
    *,
    tolerance: float | None,
    progress: Any = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return coefficients (K, p) of the last K steps and shifts (H,) of all; (1, p), (1,) at rest.

    `backup(c, h)` gives V_h at n states from coefficients of G_h, `fit` the coefficients of
    G_h-1 from V_h. Where neither the reward looks at the step nor an episode ends early,
    V_h - V_h+1 = d + small, and a constant passes through the recursion:

        V_h-1 - V_h = discount d + less than that.

    When the spread of d over the states is negligible, the earlier steps are known without
    further work. With a `tolerance` the fixed point is looked for: it lies between
    V_h + discount / (1 - discount) times the smallest and the largest d (MacQueen, 1966).
    """
    discount, steps = problem.discount, problem.horizon if tolerance is None else MOST_STEPS
    kept = [fit(np.zeros(n))]
    before = np.zeros(n)
    for count in range(1, steps + 1):
        values = _checked(np.asarray(backup(kept[-1], steps - count)), count)
        if progress is not None:
            progress(1)
        low, high = _bounds(values - before, problem)
        size = 1 + float(np.abs(values).max())
        before = values
        if tolerance is not None:
            far = discount / (1 - discount)
            kept = [fit(values + far * (low + high) / 2)]
            if far * (high - low) / 2 <= tolerance * size:
                return np.array(kept), np.zeros(1)
            kept = [fit(values)]
            continue
        if count == steps:
            break
        kept.append(fit(values))
        _check_memory(kept, steps, problem)
        if high - low <= STEADY * size and not uses_step(problem):
            ahead = (low + high) / 2 * discount ** np.arange(1, steps - count)
            shifts = np.concatenate([np.cumsum(ahead)[::-1], np.zeros(len(kept))])
            return np.array(kept[::-1]), shifts
    if tolerance is not None:
        warnings.warn(
            f"the values still move by {np.abs([low, high]).max():.3g} after {steps} iterations; "
            "the plan is that of the last",
            PlanningWarning,
            stacklevel=5,
        )
        return np.array(kept), np.zeros(1)
    return np.array(kept[::-1]), np.zeros(steps)


def _bounds(change: np.ndarray, problem: Problem) -> tuple[float, float]:
    """Smallest and largest change; around zero where episodes end and constants do not pass."""
    low, high = float(change.min()), float(change.max())
    return (low, high) if problem.terminal is None else (min(low, 0.0), max(high, 0.0))


def _checked(values: np.ndarray, count: int) -> np.ndarray:
    if not np.isfinite(values).all():
        raise InputError(
            f"the values are not finite numbers after {count} steps: the model, the reward or "
            "the fitted values explode; a shorter horizon, a discount or value='grid' may help"
        )
    return values


def _check_memory(kept: list[np.ndarray], steps: int, problem: Problem) -> None:
    if len(kept) * len(kept[0]) > MOST_NUMBERS:
        raise InputError(
            f"the values of {len(kept)} of {steps} steps fill {MOST_NUMBERS >> 27} GiB and still "
            "change; fewer points, a shorter horizon or a stationary plan is wanted"
        )
