"""Upper bounds on the mean return of any policy in the model.

Three methods, for three kinds of problem:

- few states: dynamic programming on a table is exact;
- one state, values on a grid: with G_h the grid's value of a mean next state and V_h greedy for
  it, no policy earns more than V_0 and the sum of the largest Bellman residuals,
  V*_0 <= V_0 + sum_h discount^(h+1) max_m (E V_h+1(m + e) - G_h(m))^+, over all means m that any
  policy can reach after h steps, on the grid or beyond it;
- a linear model with a concave quadratic reward: a planner that foresees the noise, but pays for
this knowledge, earns at least as much as any policy (Brown, Smith and Sun, 2010). With the
  values of Riccati's recursion as the price,

      V*_0(x_0) <= V_0(x_0) - E min_a sum_h discount^h |a_h - K_h x_h - k_h|^2_{M_h}

  over sequences in the convex hull of the actions: a convex program for each path of the noise,
  whose duality gap makes the bound valid wherever the iterations stop.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ivvi._io.arrays import Array
from ivvi.actions import Actions
from ivvi.dynamics.range_clamping import FAR
from ivvi.planning.comparison import Bound, Trials, standard_error
from ivvi.planning.problem import Rule
from ivvi.planning.quadrature import Noise
from ivvi.planning.riccati import QuadraticValue, RiccatiStep, is_quadratic
from ivvi.planning.value_iteration.category_grid import CategoryGrid
from ivvi.planning.value_iteration.grid import DEVIATIONS, Grid, reachable_means
from ivvi.planning.value_iteration.tabular import CODED, StateTable
from ivvi.planning.value_iteration.value_iteration import ValueRule
from ivvi.rewards import Quadratic

MEANS, NODES, STATES = 801, 256, 1201
"""Means and nodes of the noise at which residuals of a grid are computed, and states between which
the value is interpolated."""
SPREAD = 65
"""States from which the means of a next step are computed."""
MOST_STEPS = 400
ITERATIONS = 300
MOST_PATHS = 64


def upper_bound(trials: Trials, plan: Rule, grid: Rule | None) -> Bound | None:
    """Return a bound on the mean return of any policy in the trials; None if none is known."""
    problem = trials.problem
    if isinstance(plan, ValueRule) and _is_exact(plan.values):
        return _exact(trials, plan)
    if problem.model.categories or problem.model.ends:
        return None
    bounds = []
    if isinstance(grid, ValueRule) and len(problem.model.state) == 1:
        bounds.append(residual_bound(trials, plan, grid))
    is_concave = is_quadratic(problem) and isinstance(problem.reward, Quadratic)
    if is_concave and problem.horizon <= MOST_STEPS:
        bounds.append(relaxed_bound(trials, plan))
    return min((b for b in bounds if np.isfinite(b.gap)), key=lambda b: b.gap, default=None)


def _is_exact(values: Any) -> bool:
    """Return whether the values are of finitely many states, with the chances of each."""
    if isinstance(values, CategoryGrid):
        return values.grid is None
    return isinstance(values, StateTable) and values.law == CODED


def _exact(trials: Trials, plan: ValueRule) -> Bound:
    """Return the bound of dynamic programming on all states: the plan's own value."""
    values = plan.value(trials.starts)
    return Bound(float(values.mean()), standard_error(values), 0.0, 0.0, "dynamic programming")


def residual_bound(trials: Trials, plan: Rule, grid: ValueRule) -> Bound:
    """Return the bound from a grid's value and largest Bellman residuals (module lead)."""
    problem = trials.problem
    low, high = _reachable(trials)
    if not np.isfinite(low).all():
        return Bound(np.inf, 0.0, np.inf, 0.0, "largest Bellman residuals")
    means = _spread_out(grid.values, low, high, MEANS)
    excess = _excess(grid, means[:, None])
    shares = problem.discount ** np.arange(1, problem.horizon)
    is_met = (means >= low[:, None]) & (means <= high[:, None])
    slack = float(shares @ np.where(is_met, excess, 0.0).max(axis=1, initial=0.0))
    value = grid.value(trials.starts) + slack
    if plan is grid:  # its return less a martingale leaves only the residuals on its way
        residuals = _residuals_met(trials, grid, means, excess)
        gap = slack - np.einsum("h,hn->n", shares, residuals)
    else:
        gap = value - trials.returns(plan)
    numbers = float(value.mean()), standard_error(value), float(gap.mean()), standard_error(gap)
    return Bound(*numbers, "largest Bellman residuals")


def _reachable(trials: Trials) -> tuple[np.ndarray, np.ndarray]:
    """Return the lowest and highest mean of the next state at each step but the last, (H - 1,).

    From the first states, with any action, and noise of DEVIATIONS standard deviations on the way:
    policies leave this range in one step in two million.
    """
    problem, sides = trials.problem, []
    noise = DEVIATIONS * float(np.sqrt(problem.model.next_cov[0, 0]))
    low, high = float(trials.starts.min()), float(trials.starts.max())
    for _ in range(problem.horizon - 1):
        between = np.linspace(low, high, SPREAD)[:, None]
        means = reachable_means(problem, between, seed=0)
        sides.append((means.min(), means.max()))
        low, high = np.clip([means.min() - noise, means.max() + noise], -FAR, FAR)
        if max(-low, high) >= FAR:
            return np.array([-np.inf]), np.array([np.inf])
    return tuple(np.array(sides).reshape(-1, 2).T)  # type: ignore[return-value]


def _spread_out(grid: Grid, low: np.ndarray, high: np.ndarray, count: int) -> np.ndarray:
    """Return `count` points along the grid, and `count` from the least `low` to the top `high`."""
    first, last = grid.low[0], grid.high[0]
    wide = np.linspace(np.min(low, initial=first), np.max(high, initial=last), count)
    return np.unique(np.concatenate([np.linspace(first, last, count), wide]))


def _excess(grid: ValueRule, means: np.ndarray) -> np.ndarray:
    """Return E V_h+1(m + e) - G_h(m) while alive, (H - 1, n), at means m (n, 1)."""
    problem = grid.problem
    noise = Noise.of(problem.model.next_cov, "quasi", NODES, smooth=False)
    x_next = means[:, None] + noise.offsets  # (means, nodes, 1)
    weights, residuals = noise.alive(x_next, problem.terminal), []
    fine = _spread_out(grid.values, x_next, x_next, STATES)
    for h in range(problem.horizon - 1):
        if h == 0 or h >= problem.horizon - len(grid.coefficients):
            after = np.interp(x_next[..., 0], fine, grid.value(fine[:, None], h + 1))
            residuals.append((weights * after).sum(axis=1) - grid.ahead(means, h))
        else:  # earlier steps differ by a constant
            residuals.append(residuals[-1])
    return np.array(residuals).reshape(-1, len(means))


def _residuals_met(
    trials: Trials, plan: ValueRule, means: np.ndarray, excess: np.ndarray
) -> np.ndarray:
    """Return residuals at the means that the plan reaches while alive, (H - 1, n)."""
    problem, (_, x, a) = trials.problem, trials.paths(plan)
    at = np.asarray(problem.model.mean(x[:-1], a[:-1]))[..., 0]
    residuals = np.array([np.interp(m, means, row) for m, row in zip(at, excess, strict=True)])
    residuals = residuals.reshape(at.shape)
    if problem.terminal is None:
        return residuals
    ended = np.array([np.asarray(problem.terminal(states)) for states in x[:-1]], bool)
    ended[0] = False
    return np.where(np.maximum.accumulate(ended, axis=0), 0.0, residuals)


def relaxed_bound(trials: Trials, plan: Rule) -> Bound:
    """Return the bound of a planner that pays for its foresight (module lead)."""
    problem, n = trials.problem, min(len(trials.starts), MOST_PATHS)
    ahead, steps = QuadraticValue.zero(len(problem.model.state)), []
    for _ in range(problem.horizon):
        step = RiccatiStep.of(problem, ahead)
        steps.append((step.gain, step.shift, step.curvature))
        ahead = step.value
    gain, offset, curvature = (np.array(part)[::-1] for part in zip(*steps, strict=True))
    curvature = curvature * problem.discount ** np.arange(problem.horizon)[:, None, None]
    c, F_x, F_a = problem.affine  # type: ignore[misc]
    law = (c, F_x, F_a, gain, offset, curvature)
    _, x, a = (part for part in trials.paths(plan))
    off = a - np.einsum("hij,hnj->hni", gain, x) - offset[:, None]
    paid = np.einsum("hni,hij,hnj->n", off, curvature, off)[:n]
    noise = np.moveaxis(trials.noise[:n] @ problem.model.noise_law.factor.T, 0, 1)
    with jax.enable_x64(True):
        least = _least_cost(law, trials.starts[:n], noise, a[:, :n], problem.actions)
    value, gap = ahead(trials.starts[:n]) - least, paid - least
    numbers = float(value.mean()), standard_error(value), float(gap.mean()), standard_error(gap)
    return Bound(*numbers, "information relaxation")


def _least_cost(
    law: Any, starts: np.ndarray, noise: np.ndarray, begun: np.ndarray, actions: Actions
) -> np.ndarray:
    """Return a lower bound of each path's least cost, (n,), from feasible actions (H, n, d_a)."""
    corners = actions.corners
    in_box = not actions.discrete or bool(actions.levels)
    arguments = law, starts, noise, begun, corners
    if in_box:
        return np.asarray(_compiled(_descend)(*arguments))
    return np.asarray(_compiled(_frank_wolfe)(*arguments, _vertices(actions)))


@lru_cache(maxsize=2)
def _compiled(solve: Any) -> Any:
    return jax.jit(solve)


def _vertices(actions: Actions) -> np.ndarray:
    """Return all choices, with zeros for the coordinates of a box."""
    return np.asarray(
        actions.join(np.zeros((len(actions.choices), len(actions.low))), actions.choices)
    )


def _cost(law: Any, starts: Array, noise: Array, a: Array) -> Array:
    """Return the cost of actions (H, n, d_a) along the paths, (n,)."""
    c, F_x, F_a, gain, offset, curvature = law

    def advance(x: Array, now: Any) -> Any:
        a, e, gain, offset, curvature = now
        off = a - x @ gain.T - offset
        return c + x @ F_x.T + a @ F_a.T + e, jnp.sum((off @ curvature) * off, axis=1)

    return jnp.sum(jax.lax.scan(advance, starts, (a, noise, gain, offset, curvature))[1], axis=0)


def _slope(law: Any, starts: Array, noise: Array, a: Array) -> tuple[Array, Array]:
    """Return the cost of each path and its gradient."""
    costs, back = jax.vjp(lambda u: _cost(law, starts, noise, u), a)
    return costs, back(jnp.ones_like(costs))[0]


def _curvature(law: Any, move: Array) -> Array:
    """Return the cost of a move alone, (n,): without starts, noise and constants."""
    c, F_x, F_a, gain, offset, curvature = law
    still = (0 * c, F_x, F_a, gain, 0 * offset, curvature)
    n, d = move.shape[1], len(F_x)
    return _cost(still, jnp.zeros((n, d)), jnp.zeros((len(move), n, d)), move)


def _descend(law: Any, starts: Array, noise: Array, begun: Array, corners: Array) -> Array:
    """Return the largest cost minus duality gap of accelerated projected gradient over a box."""
    law = tuple(jnp.asarray(part) for part in law)
    low, high = corners

    def power(_: Any, v: Array) -> Array:
        g = jax.vjp(lambda u: _curvature(law, u), v)[1](jnp.ones(v.shape[1]))[0]
        return g / jnp.sqrt(jnp.sum(g**2, axis=(0, 2), keepdims=True) + 1e-300)

    first = jax.random.normal(jax.random.key(0), begun.shape, jnp.float64)
    v = jax.lax.fori_loop(0, 30, power, first)
    size = 1.2 * 2 * _curvature(law, v) / jnp.maximum(jnp.sum(v**2, axis=(0, 2)), 1e-300) + 1e-12

    def step(carry: Any, _: Any) -> Any:
        u, y, t, best = carry
        costs, g = _slope(law, starts, noise, y)
        gap = jnp.sum(jnp.where(g > 0, g * (y - low), g * (y - high)), axis=(0, 2))
        best = jnp.maximum(best, costs - gap)
        new = jnp.clip(y - g / size[None, :, None], low, high)
        restart = jnp.sum((y - new) * (new - u), axis=(0, 2)) > 0
        t = jnp.where(restart, 1.0, t)
        later = (1 + jnp.sqrt(1 + 4 * t**2)) / 2
        push = jnp.where(restart, 0.0, (t - 1) / later)
        return (new, jnp.clip(new + push[None, :, None] * (new - u), low, high), later, best), None

    n = len(starts)
    carry = (begun, begun, jnp.ones(n), jnp.full(n, -jnp.inf))
    return jax.lax.scan(step, carry, None, length=ITERATIONS)[0][3]


def _frank_wolfe(
    law: Any, starts: Array, noise: Array, begun: Array, corners: Array, table: Array
) -> Array:
    """Return the same by Frank-Wolfe steps of best length over the hull of a list (and a box)."""
    law = tuple(jnp.asarray(part) for part in law)
    low, high = corners
    listed = jnp.any(table != table[:1], axis=0)

    def step(u: Array, _: Any) -> Any:
        costs, g = _slope(law, starts, noise, u)
        row = table[jnp.argmin(g @ table.T, axis=-1)]
        target = jnp.where(listed, row, jnp.where(g > 0, low, high))
        move = target - u
        fall = -jnp.sum(g * move, axis=(0, 2))
        share = jnp.clip(fall / jnp.maximum(2 * _curvature(law, move), 1e-300), 0.0, 1.0)
        return u + share[None, :, None] * move, costs - fall

    return jnp.max(jax.lax.scan(step, begun, None, length=ITERATIONS)[1], axis=0)
