"""The actions of a policy along the states of a log, as curves and as a picture."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ivvi._io.plotting import IV, check_figure, finished, make_axes
from ivvi._io.result import Compact
from ivvi.dynamics.model import Dynamics
from ivvi.errors import InputError

MOST_CURVES = 6
"""Most curves that are drawn."""
Decide = Callable[[np.ndarray], np.ndarray]
"""From states (n, d_x) to actions (n, d_a)."""


@dataclass(frozen=True, slots=True, repr=False)
class ActionCurve(Compact):
    """One action along one state (m,), the other states at their medians.

    `limits` are the lowest and highest values of the action over the curves of that action;
    `indicator` is whether the state is 0 or 1 in all rows, and only these two are shown.
    """

    action: str
    state: str
    x: np.ndarray
    a: np.ndarray
    limits: tuple[float, float]
    indicator: bool = False

    @property
    def is_flat(self) -> bool:
        """Whether the action is the same along all states that were tried."""
        return self.limits[0] == self.limits[1]


def policy_curves(model: Dynamics, decide: Decide, sample: np.ndarray) -> list[ActionCurve]:
    """Return each action along the states that move it most, from their 5% to 95% quantile."""
    low, middle, high = np.quantile(sample, (0.05, 0.5, 0.95), axis=0)
    is_indicator = np.all(np.isin(sample, (0.0, 1.0)), axis=0, keepdims=True)[0]
    low, high = np.where(is_indicator, 0.0, low), np.where(is_indicator, 1.0, high)
    grid, along, ends = np.linspace(0, 1, 41), [], [0, -1]
    for k, name in enumerate(model.state):
        x = np.tile(middle, (len(grid), 1))
        x[:, k] = low[k] + grid * (high[k] - low[k])
        drawn_points = ends if is_indicator[k] else slice(None)
        along.append((name, x[drawn_points, k], decide(x)[drawn_points], bool(is_indicator[k])))
    per_action, curves = max(1, MOST_CURVES // len(model.action)), []
    for j, action in enumerate(model.action[:MOST_CURVES]):
        strongest = sorted(
            ((name, x, a[:, j], flag) for name, x, a, flag in along),
            key=lambda curve: -float(np.ptp(curve[2])),
        )[:per_action]
        actions = [a for *_, a, _ in strongest]
        limits = float(min(a.min() for a in actions)), float(max(a.max() for a in actions))
        curves += [ActionCurve(action, name, x, a, limits, flag) for name, x, a, flag in strongest]
    return curves


def draw_curve(ax: Any, curve: ActionCurve, colour: str = IV) -> None:
    """Plot the action along a state, or at 0 and 1 of an indicator."""
    if curve.indicator:
        ax.plot(curve.x, curve.a, "o", color=colour, ms=7)
        ax.set_xticks((0, 1))
        ax.set_xlim(-0.5, 1.5)
    else:
        ax.plot(curve.x, curve.a, color=colour, lw=2)
        ax.margins(x=0.02)


def plot_policy(
    model: Dynamics, decide: Decide, path: str | os.PathLike[str] | None, *, force: bool
) -> Any:
    """Plot the curves, each state on an axis of its own."""
    check_figure(path, force=force)
    if not len(model.states):
        raise InputError("this policy cannot be drawn: its model holds no states of the log")
    curves = policy_curves(model, decide, model.states)
    columns = min(3, len(curves))
    figure, axes = make_axes(-(-len(curves) // columns), columns)
    for ax, curve in zip(axes.ravel(), curves, strict=False):
        room = 0.08 * (curve.limits[1] - curve.limits[0]) or 0.5
        draw_curve(ax, curve)
        ax.set(xlabel=curve.state, ylabel=curve.action)
        ax.set_ylim(curve.limits[0] - room, curve.limits[1] + room)
    for ax in axes.ravel()[len(curves) :]:
        ax.set_visible(False)
    return finished(figure, path, force=force)
