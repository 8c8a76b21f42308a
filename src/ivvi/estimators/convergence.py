"""The path of an iterative estimate, and whether it has converged.

Where the moments are too large to be formed, weights are judged by the conditions that define them,
E[(y - W phi) psi^T] = 0, with linear memory: each entry of the mean of (y - W phi) psi^T in
units of its standard error. At the truth the root mean square of these is about 1; far from the
saddle point it grows with the root of n.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ivvi._io.arrays import Floats
from ivvi._io.plotting import IV, check_figure, finished, make_axes
from ivvi._io.result import Compact, Records, TableResult
from ivvi.moments import Moments

STALLED = 3.0
"""Root mean square distance from the closed form, in standard errors, that counts as a stall."""
EXPLODED = 1e3
"""Ratio of squared residuals to squared outputs that counts as divergence."""


@dataclass(frozen=True, slots=True, repr=False)
class Trace(TableResult):
    """Points of the path and a verdict.

    Attributes
    ----------
    t, loss, distance
        Iteration, saddle objective max_K L(W, K), and Frobenius distance to the target
        at logarithmic points.
    status
        ``converged``, ``stalled`` or ``diverged``.
    advice
        What happened and what to do, in a sentence.
    error
        Root mean square of (W - closed form) / standard error over the coefficients, or of
        the moment conditions E[(y - W phi) psi^T] = 0 in their standard errors.
    measure
        What `error` is about: ``closed form`` or ``moment conditions``.
    """

    t: tuple[int, ...]
    loss: tuple[float, ...]
    distance: tuple[float, ...]
    status: str = "converged"
    advice: str = ""
    error: float = 0.0
    measure: str = "closed form"

    @classmethod
    def of(
        cls, points: Sequence[int], path: Sequence[Floats], moments: Moments, target: Floats
    ) -> Trace:
        """Measure the iterates of a path."""
        A, B, C = moments.A, moments.B, moments.C
        inverse = np.linalg.pinv(B)
        loss, distance = [], []
        with np.errstate(over="ignore", invalid="ignore"):
            for W in path:
                gap = W @ A.T - C
                loss.append(float(0.5 * np.sum((gap @ inverse) * gap)))
                distance.append(float(np.linalg.norm(W - target)))
        return cls(tuple(points), tuple(loss), tuple(distance))

    def summary(self) -> str:
        """Return the verdict, and what to do, as text."""
        steps = f" after {self.t[-1]:,} steps" if self.t else ""
        far = f"{self.error:.3g} standard errors from the {self.measure}"
        return f"{self.status}{steps}, {far}" + (f"\n{self.advice}" if self.advice else "")

    def records(self) -> Records:
        """Return the points of the path, one row each."""
        names = ("t", "loss", "distance")
        points = zip(self.t, self.loss, self.distance, strict=True)
        return [dict(zip(names, point, strict=True)) for point in points]

    def plot(self, path: str | os.PathLike[str] | None = None, *, force: bool = False) -> Any:
        """Draw how the loss and the distance to the target fall; `path` saves the picture."""
        check_figure(path, force=force)
        figure, axes = make_axes(1, 2)
        panels = (("objective max_K L(W, K)", self.loss), ("distance to the target", self.distance))
        for ax, (label, values) in zip(axes[0], panels, strict=True):
            ax.plot(self.t, values, "o-", color=IV, ms=3, lw=1.4)
            ax.set(xlabel="iteration", xscale="symlog", yscale="log")
            ax.set_title(label, loc="left", fontsize=10)
        figure.suptitle(self.status, fontsize=10)
        return finished(figure, path, force=force)

    def to_json(self) -> dict[str, Any]:
        """Describe the trace with JSON values; what is infinite is null."""
        return {
            "status": self.status,
            "advice": self.advice,
            "error_in_se": _finite([self.error])[0],
            "error_of": self.measure,
            "t": list(self.t),
            "loss": _finite(self.loss),
            "distance": _finite(self.distance),
        }


def judge(trace: Trace, W: Floats, goal: Floats, error: float, moments: Moments) -> Trace:
    """Judge convergence to the closed form `goal`, with advice if W has stalled or diverged.

    `error` is the distance of W from it, in standard errors.
    """
    largest = float(np.linalg.eigvalsh(moments.B)[-1])
    with np.errstate(over="ignore"):
        far = np.linalg.norm(W) > 1e3 * (1 + np.linalg.norm(goal))
    if far or not np.isfinite(W).all():
        advice = (
            f"diverged: the dual step must stay below 2 / lambda_max(B) = {2 / largest:.2g} for "
            "these features; use the schedule auto, or smaller steps"
        )
        return replace(trace, status="diverged", advice=advice, error=float("inf"))
    if error > STALLED:
        advice = (
            f"stalled: after {trace.t[-1]} steps W is {error:.1f} standard errors from the saddle "
            "point; "
            "use the schedule auto, more passes, or steps that decay more slowly"
        )
        return replace(trace, status="stalled", advice=advice, error=error)
    return replace(trace, error=error)


def judge_conditions(trace: Trace, W: Floats, conditions: Conditions, stable: float) -> Trace:
    """Judge convergence from the moment conditions alone; `stable` is the largest stable step."""
    gap = conditions.gap
    trace = replace(trace, measure="moment conditions", error=gap)
    if not (np.isfinite(W).all() and np.isfinite(gap) and conditions.growth < EXPLODED):
        advice = (
            f"diverged: the steps must stay below about {stable:.2g} for these features; use "
            "the schedule auto, or smaller steps"
        )
        return replace(trace, status="diverged", advice=advice, error=float("inf"))
    if gap > STALLED:
        advice = (
            f"stalled: after {trace.t[-1]} steps the moment conditions are {gap:.1f} standard "
            "errors from zero; use more passes, or fewer features and the exact method"
        )
        return replace(trace, status="stalled", advice=advice)
    return trace


def log_points(steps: int, per_decade: int = 8) -> list[int]:
    """Return iterations 1, ..., steps at about equal distances of their logarithms."""
    count = max(2, int(per_decade * np.log10(max(steps, 10))))
    points = np.unique(np.geomspace(1, steps, count).round().astype(int))
    return [int(p) for p in points]


@dataclass(slots=True, repr=False)
class Conditions(Compact):
    """Sums over rows, with u = y - W phi.

    Attributes
    ----------
    n
        Rows.
    cross, squares
        u psi^T and its entries squared, (d_y, d_psi).
    noise, size
        u u^T (d_y, d_y), and y squared (d_y,).
    """

    n: int
    cross: Floats
    squares: Floats
    noise: Floats
    size: Floats

    @classmethod
    def empty(cls, d_y: int, d_psi: int) -> Conditions:
        """Return the sums over no rows."""
        wide = (d_y, d_psi)
        return cls(0, np.zeros(wide), np.zeros(wide), np.zeros((d_y, d_y)), np.zeros(d_y))

    def add(self, W: Floats, Phi: Floats, Psi: Floats, Y: Floats) -> None:
        """Add rows, in place."""
        with np.errstate(over="ignore", invalid="ignore"):
            residual = Y - Phi @ W.T
            self.n += len(Y)
            self.cross += residual.T @ Psi
            self.squares += (residual**2).T @ Psi**2
            self.noise += residual.T @ residual
            self.size += np.sum(Y**2, axis=0)

    @property
    def noise_cov(self) -> Floats:
        """Covariance of the residuals, (d_y, d_y)."""
        return self.noise / max(self.n, 1)

    @property
    def growth(self) -> float:
        """Largest ratio E[u^2] / E[y^2] over the outputs: huge when the weights explode."""
        with np.errstate(over="ignore", invalid="ignore"):
            return float(np.max(np.diag(self.noise) / np.where(self.size > 0, self.size, 1.0)))

    @property
    def gap(self) -> float:
        """Root mean square of the conditions in standard errors."""
        mean = self.cross / max(self.n, 1)
        variance = self.squares / max(self.n, 1) - mean**2
        varies = variance > 1e-12 * np.max(self.squares, initial=0.0) / max(self.n, 1)
        if not varies.any():
            return 0.0
        return float(np.sqrt(np.mean(self.n * mean[varies] ** 2 / variance[varies])))


def _finite(values: Sequence[float]) -> list[float | None]:
    return [value if np.isfinite(value) else None for value in values]
