"""How firmly a log recommends an action: whether plans in other models that it allows agree."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ivvi._io.arrays import Array
from ivvi._io.plotting import IV, MUTED, check_figure, finished, make_axes
from ivvi._io.result import Records, TableResult
from ivvi.actions import Actions
from ivvi.dynamics.state_encoding import state_rows
from ivvi.evaluation.model_draws import draw
from ivvi.evaluation.value_inputs import ValueInputs
from ivvi.evaluation.value_policy import planner_of
from ivvi.planning import MPC, Problem
from ivvi.planning.behaviour_policy import Support
from ivvi.policy.policy import Policy

NEAR = 0.1
"""Two actions agree when no coordinate differs by more than this share of its range."""
INSIDE = 0.99
AT_ONCE = 20
"""Plans of MPC that are made in one call."""


@dataclass(frozen=True, eq=False, repr=False)
class Stability(TableResult):
    """The recommended actions in given states, and those that plans in other draws recommend.

    Attributes
    ----------
    states, actions
        States (n, d_x) and recommended actions (n, d_a).
    drawn
        Actions of the plans of the draws in these states, (draws, n, d_a).
    agreement
        Share of the draws whose action is the recommended one, or near it, (n,).
    outside
        Whether the log has no rows like this state and action, (n,); None if that is not known.
    names
        Columns of state and action.
    """

    states: np.ndarray
    actions: np.ndarray
    drawn: np.ndarray
    agreement: np.ndarray
    outside: np.ndarray | None
    names: tuple[tuple[str, ...], tuple[str, ...]]

    def records(self) -> Records:
        """Return states, recommended actions and agreement, one row per state."""
        names = (*self.names[0], *self.names[1])
        rows: Records = []
        for i, values in enumerate(np.hstack([self.states, self.actions]).tolist()):
            row = dict(zip(names, values, strict=True)) | {"agreement": float(self.agreement[i])}
            outside = None if self.outside is None else bool(self.outside[i])
            rows.append(row | {"outside": outside})
        return rows

    @property
    def headline(self) -> str:
        """How firmly the actions are recommended."""
        least, count = float(np.min(self.agreement)), len(self.agreement)
        return f"at least {least:.0%} of {len(self.drawn)} models agree in each of {count} states"

    def plot(self, path: str | os.PathLike[str] | None = None, *, force: bool = False) -> Any:
        """Plot the other models' actions in each state, one panel per action; `path` saves it.

        Grey dots are their actions, larger where more models agree; the recommended one is blue.
        """
        check_figure(path, force=force)
        figure, axes = make_axes(1, len(self.names[1]))
        figure.set_figheight(1.6 + 0.3 * len(self.states))
        ticks = np.arange(len(self.states), 0, -1)
        labels = [", ".join(f"{value:.3g}" for value in x) for x in self.states]
        for j, (ax, action) in enumerate(zip(axes[0], self.names[1], strict=True)):
            for i, y in enumerate(ticks):
                values, counts = np.unique(self.drawn[:, i, j], return_counts=True)
                size = 12 + 90 * counts / len(self.drawn)
                ax.scatter(values, np.full(len(values), y), s=size, color=MUTED, alpha=0.5, lw=0)
            ax.plot(self.actions[:, j], ticks, "D", color=IV, ms=5)
            shares = [
                f"{label}  ({share:.0%})"
                for label, share in zip(labels, self.agreement, strict=True)
            ]
            ax.set_yticks(ticks, shares if j == 0 else [""] * len(ticks))
            ax.set_ylim(0.4, len(ticks) + 0.6)
            ax.set_title(action, loc="left", fontsize=10)
        axes[0, 0].set(ylabel=", ".join(self.names[0]) + "  (agreement)")
        return finished(figure, path, force=force)

    def summary(self) -> str:
        """Return a table, one line per state."""
        state, action = self.names
        head = "".join(f"{name:>10}" for name in (*state, *action))
        lines = [f"{head}{'agreement':>12}"]
        for i, (x, a) in enumerate(zip(self.states, self.actions, strict=True)):
            cells = "".join(f"{value:>10.4g}" for value in (*x, *a))
            mark = "  outside the log" if self.outside is not None and self.outside[i] else ""
            lines.append(f"{cells}{self.agreement[i]:>12.0%}{mark}")
        return "\n".join(lines)

    def agreement_means(self) -> str:
        """Return a sentence that defines `agreement`."""
        return (
            f"share of {len(self.drawn)} other models that the log allows whose plans act the "
            f"same here; numbers count as the same within {NEAR:.0%} of their range"
        )

    @staticmethod
    def outside_means() -> str:
        """Return a sentence that defines `outside`."""
        return f"the log has no rows like this state and action (its inner {INSIDE:.0%})"

    def to_json(self) -> dict[str, Any]:
        """Describe with JSON values."""
        return {
            "state": list(self.names[0]),
            "action": list(self.names[1]),
            "states": self.states.tolist(),
            "actions": self.actions.tolist(),
            "spread": self.drawn.std(axis=0).tolist(),
            "agreement": self.agreement.tolist(),
            "outside": None if self.outside is None else self.outside.tolist(),
        }


def stability(
    policy: Policy,
    model: Any,
    states: Any,
    *,
    method: str = "auto",
    step: int = 0,
    draws: int = 200,
    seed: int = 0,
    progress: Any = None,
) -> Stability:
    """Plan again in models that the log allows, and compare what is recommended in `states`.

    Parameters
    ----------
    policy
        What `ivvi.plan` made.
    model, method, draws, seed
        As for `ivvi.value`.
    states
        (n, d_x), one state (d_x,), or a table with the columns of the log.
    step
        Step of the episode, from 0 on.
    progress
        Called with the number of plans just made.
    """
    source = ValueInputs.of(model)
    x = state_rows(states, policy.problem.model)
    actions = policy.decide(x, step)
    planner = planner_of(policy)
    models, _ = draw(source, method, draws, np.random.default_rng(seed))
    drawn = _actions(planner, policy.problem, models.W, x, step, progress)
    dynamics = source.model
    outside = None
    if len(dynamics.acted):
        with jax.enable_x64(True):
            outside = np.asarray(Support.of(dynamics, INSIDE).outside(jnp.asarray(x), actions))
    agreement = _agree(policy.problem.actions, drawn, actions).mean(axis=0)
    return Stability(x, actions, drawn, agreement, outside, (dynamics.state, dynamics.action))


def _actions(
    planner: Any, problem: Problem, W: np.ndarray, x: np.ndarray, step: int, progress: Any
) -> np.ndarray:
    """Return actions (draws, n, d_a) at a step in x, of plans for weights (draws, d_y, d_phi)."""

    def planned(weights: Array) -> Array:
        rule = planner.solve(problem.with_weights(weights))
        return rule.act(jnp.asarray(x), step, rule.begin(len(x)))[0]

    compiled = isinstance(planner, MPC)
    plan_in_all = jax.jit(partial(jax.lax.map, planned)) if compiled else planned
    drawn = []
    with jax.enable_x64(True):
        for weights in np.array_split(W, -(-len(W) // AT_ONCE)) if compiled else W:
            drawn.append(np.asarray(plan_in_all(jnp.asarray(weights))))
            if progress is not None:
                progress(len(weights) if compiled else 1)
    return np.concatenate(drawn) if compiled else np.array(drawn)


def _agree(allowed: Actions, drawn: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """Return which draws agree with the recommended actions, (draws, n)."""
    room = np.zeros(allowed.dim)
    room[list(allowed.continuous)] = NEAR * (allowed.high - allowed.low)
    agrees: np.ndarray = np.all(np.abs(drawn - actions) <= room + 1e-9, axis=-1)
    return agrees
