"""Where the recommended action changes as the instrument is doubted more and more."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ivvi.actions import Actions
from ivvi.errors import PlanningWarning
from ivvi.features.design import Floats
from ivvi.planning.policy import Policy
from ivvi.planning.problem import Planner, Problem
from ivvi.sensitivity_analysis.violations import Exclusion, Violation

HALVINGS = 5
FIRST, RATIO = 0.03, 2.0
"""Sizes that are planned with: the first, and how much larger each next one is."""


@dataclass(frozen=True, eq=False)
class Replanned:
    """What the planner recommends in some states when the violation has size t."""

    exclusion: Exclusion
    violation: Violation
    problem: Problem
    planner: Planner
    states: np.ndarray
    progress: Callable[[int], None] | None = None
    _known: dict[float, np.ndarray] = field(default_factory=dict)

    def __call__(self, t: float) -> np.ndarray:
        """Plan again with W(t); returns actions (k, d_a)."""
        if t not in self._known:
            W = self.exclusion.weights(self.exclusion.effects(self.violation, t))
            problem = self.problem.with_weights(W, self.exclusion.noise_cov(W))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", PlanningWarning)  # said when it was planned
                policy = Policy(problem, self.planner.solve(problem))
            self._known[t] = policy(self.states)
            if self.progress is not None:
                self.progress(1)
        return self._known[t]

    def first_flip(self, row: int, most: float) -> tuple[float, int] | None:
        """Return the smallest size, of a sign allowed, at which the action of a state flips.

        Also the coordinate that flips; None if none does up to `most`.
        """
        start = self(0.0)[row]

        def flipped(t: float) -> Any:
            return has_flipped(self.problem.actions, start, self(t)[row])

        before, count = 0.0, max(0, math.ceil(math.log(most / FIRST) / math.log(RATIO) - 1e-9))
        for size in (*(FIRST * RATIO ** np.arange(count)), most):
            for sign in self.violation.signs:
                if not flipped(sign * size).any():
                    continue
                low, high = before, float(size)
                for _ in range(HALVINGS):
                    middle = (low + high) / 2
                    low, high = (low, middle) if flipped(sign * middle).any() else (middle, high)
                at = int(np.flatnonzero(flipped(sign * high))[0])
                return sign * (low + high) / 2, at
            before = float(size)
        return None


def has_flipped(actions: Actions, before: Floats, after: Floats) -> Any:
    """Tell which coordinates of an action are now on the other side, (d_a,).

    A discrete coordinate flips when it changes. A continuous one flips when it crosses 0, or
    the middle of its range where that does not hold 0.
    """
    changed = np.abs(after - before) > 0
    for i, low, high in zip(actions.continuous, actions.low, actions.high, strict=True):
        side = 0.0 if low < 0 < high else (low + high) / 2
        changed[i] = (before[i] - side) * (after[i] - side) < 0
    return changed
