"""Caution: depart from a fallback only where the gain is certain enough.

Let b(x) be the fallback (`planning.simple_rules`: what was usual, E[a | x], nothing, one action, a
policy), and a*(x) the plan. Between them lie

    a = b + t M_r (a* - b),   M_r the projector on the r best identified directions of action,

and the policy takes the one of these (over a finite set: of all choices) whose gain over b has the
best lower bound. With D(W) the return of a now and b afterwards minus the return of b throughout,
in the mean dynamics of W over a few steps, the bound is

    D(W_hat) - kappa (mean_m (D(W_m) - D(W_hat))^2)^1/2,   W_m ~ N(W_hat, W_cov).

b itself has bound 0, so if the bounds are right, the policy is nowhere worse than b.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from ivvi._io.arrays import Array
from ivvi._io.files import Saved, nest, unnest
from ivvi._io.result import Compact
from ivvi.diagnostics.tails_and_quantiles import two_sided
from ivvi.dynamics.model import Dynamics
from ivvi.errors import InputError
from ivvi.planning.behaviour_policy import Support
from ivvi.planning.mpc.mpc import MPC, MPCRule
from ivvi.planning.problem import Planner, Problem, Rule
from ivvi.planning.simple_rules import (
    HeldRule,
    UsualRule,
    fall_back,
    fallback_from_parts,
    make_fallback,
)
from ivvi.planning.spede.spede import SPEDERule
from ivvi.planning.value_iteration.value_iteration import ValueRule

PLANS: dict[Any, Callable[..., Rule]] = {
    rule.kind: rule.from_parts for rule in (MPCRule, SPEDERule, ValueRule, HeldRule, UsualRule)
}
"""By the planner's word: the functions that rebuild the rules of other planners."""
MOST_LISTED = 64
SCENARIOS, STEPS = 24, 4
"""Draws of W, and steps over which a gain is counted."""
PARTS = (0.5, 1.0)
"""Steps t from the fallback towards the plan that are tried."""
WIDE = 10.0
"""Spread of W in unidentified directions: noise standard deviations per one of the feature."""


@dataclass(frozen=True)
class Cautious:
    """A planner that follows its plan only as far as the gain over a fallback is certain.

    Parameters
    ----------
    planner
        The planner that makes the plan.
    caution
        From 0, the plan itself, to a confidence below 1: the lower bounds are those of
        two-sided intervals of this confidence, kappa = Phi^-1((1 + caution) / 2).
    abstain
        Share of the log's rows that count as supported. Where (x, a) lies outside, the policy
        does what the fallback does. None turns this off.
    fallback
        ``usual`` (what was done in the log), ``zero``, an action (d_a,), a policy, or ``best``:
        what was usual, nothing or the best of the actions held, by the lower bound of its value.
    """

    planner: Planner = field(default_factory=MPC)
    caution: float = 0.95
    abstain: float | None = None
    fallback: Any = "best"

    def __post_init__(self) -> None:
        if not 0 <= self.caution < 1:
            raise InputError(f"caution is {self.caution:g}; expected a number in [0, 1)")
        if self.abstain is not None and not 0 < self.abstain <= 1:
            raise InputError(f"abstain is {self.abstain:g}; expected a share in (0, 1]")

    def solve(self, problem: Problem, *, seed: int = 0) -> CautiousRule:
        """Plan, then prepare the draws of W and the directions of action."""
        model = problem.model
        if len(model.acted) == 0:
            raise InputError(
                "caution needs rows of the log, and this model holds none; fit it from a log"
            )
        drawn = scenarios(model, SCENARIOS, np.random.default_rng(seed))
        fallback = make_fallback(self.fallback, problem, drawn, self.caution)
        inner = self.planner.solve(problem, seed=seed)
        support = None if self.abstain is None else Support.of(model, self.abstain)
        towards = directions(model, drawn)
        parts = (self.caution, drawn, towards, fallback, support, self.abstain)
        return CautiousRule(problem, inner, *parts)


@dataclass(frozen=True, eq=False, repr=False)
class CautiousRule(Compact):
    """How a cautious policy decides.

    Attributes
    ----------
    inner
        The plan.
    caution
        Confidence of the lower bounds.
    drawn
        W_hat and draws around it, (M + 1, d_y, d_phi).
    towards
        M_r for r = 1, ..., d_a, (d_a, d_a, d_a).
    fallback, support, abstain
        The rule where no gain is sure, the region with rows of the log, and its share of rows.
    """

    kind: ClassVar[str] = "cautious"
    problem: Problem
    inner: Rule
    caution: float
    drawn: Array
    towards: Array
    fallback: Rule
    support: Support | None = None
    abstain: float | None = None

    @property
    def steps(self) -> int | None:
        """Those of the plan."""
        return getattr(self.inner, "steps", None)

    @classmethod
    def from_parts(
        cls, problem: Problem, settings: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
    ) -> CautiousRule:
        """Make the rule again from `parts`."""
        named = dict(settings["inner"])
        inner = PLANS[named.pop("kind")](problem, named, unnest("inner", arrays))
        fallback = fallback_from_parts(problem, settings["fallback"], unnest("fallback", arrays))
        parts = [arrays.get(f"support.{k}") for k in ("centre", "scale", "limit")]
        support = None if parts[0] is None else Support(*parts)  # type: ignore[arg-type]
        fields = float(settings["caution"]), arrays["drawn"], arrays["towards"]
        return cls(problem, inner, *fields, fallback, support, settings["abstain"])

    def parts(self) -> Saved:
        """Return the plan's settings and arrays, and those of caution."""
        settings, arrays = self.inner.parts()
        all_arrays = nest("inner", arrays)
        all_arrays |= {"drawn": self.drawn, "towards": self.towards}
        fallback_settings, fallback_arrays = self.fallback.parts()
        fallback = {"kind": self.fallback.kind, **fallback_settings}
        all_arrays |= nest("fallback", fallback_arrays)
        if self.support is not None:
            names = ("centre", "scale", "limit")
            all_arrays |= {f"support.{k}": np.asarray(getattr(self.support, k)) for k in names}
        inner = {"kind": self.inner.kind, **settings}
        own_settings = {"caution": self.caution, "abstain": self.abstain, "fallback": fallback}
        return {"inner": inner, **own_settings}, all_arrays

    def begin(self, n: int) -> Any:
        """Return the memory of the plan."""
        return self.inner.begin(n)

    def act(self, x: Array, h: Array, memory: Any) -> tuple[Array, Any]:
        """Return the actions (n, d_a) with the best lower bounds."""
        plan, memory = self.inner.act(x, h, memory)
        b = fall_back(self.fallback, x, h)
        if self.caution > 0:
            options = self._options(plan, b)
            best = jnp.argmax(self.bounds(x, options, h), axis=1)
            plan = options[jnp.arange(len(x)), best]
        if self.support is not None:
            plan = jnp.where(self.support.outside(x, plan)[:, None], b, plan)
        return plan, memory

    def bounds(self, x: Array, options: Array, h: Array) -> Array:
        """Return lower bounds (n, c) of the gain over the first of the options (n, c, d_a)."""
        n, c = options.shape[:2]
        states = jnp.repeat(x, c, axis=0)
        value = partial(self.returns, states, options.reshape(n * c, -1), h)
        gained = jax.lax.map(value, jnp.asarray(self.drawn)).reshape(-1, n, c)
        gained = gained - gained[:, :, :1]
        kappa = two_sided(level=self.caution)
        return gained[0] - kappa * jnp.sqrt(jnp.mean((gained[1:] - gained[0]) ** 2, axis=0))

    def _options(self, plan: Array, b: Array) -> Array:
        """Return b, followed by actions between b and the plan, (n, c, d_a)."""
        actions, n = self.problem.actions, len(b)
        if actions.is_finite and len(actions.choices) <= MOST_LISTED:
            listed = jnp.broadcast_to(actions.choices, (n, *actions.choices.shape))
            return jnp.concatenate([b[:, None], listed], axis=1)
        if actions.choices.size:
            return jnp.stack([b, plan], axis=1)
        moves = jnp.einsum("rij,nj->nri", jnp.asarray(self.towards), plan - b)
        between = [jnp.clip(b[:, None] + t * moves, actions.low, actions.high) for t in PARTS]
        return jnp.concatenate([b[:, None], *between], axis=1)

    def returns(self, x: Array, a: Array, h: Array, W: Array) -> Array:
        """Return the return (n,) of actions (n, d_a) in states (n, d_x), then the fallback."""
        problem = self.problem.with_weights(W)
        total, alive = jnp.zeros(len(x)), jnp.ones(len(x))
        for step in range(STEPS + 1):
            x_next = problem.model.mean(x, a)
            r = problem.gain(x, a, x_next, h + step)
            total = total + problem.discount**step * alive * r
            alive = alive * (1.0 - problem.ended(x, a, x_next))
            x, a = x_next, fall_back(self.fallback, x_next, h + step + 1)
        return total


def scenarios(model: Dynamics, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return W_hat and draws of N(W_hat, W_cov), wide where W is free, (count + 1, d_y, d_phi)."""
    drawn = model.W + model.weights.draw_deviations(count, rng)
    if model.unidentified:
        units = np.std(model.phi(model.states, model.acted), axis=0)
        units[units == 0] = 1.0
        size, vectors = np.linalg.eigh(model.bread * np.outer(units, units))
        free = vectors[:, size <= 1e-9 * size[-1]] / units[:, None]
        spread = WIDE * np.sqrt(np.diag(model.noise_cov))
        extra = rng.normal(size=(count, len(model.W), free.shape[1]))
        drawn = drawn + (extra * spread[:, None]) @ free.T
    return np.concatenate([model.W[None], drawn])


def directions(model: Dynamics, drawn: np.ndarray) -> np.ndarray:
    """Return the projectors on the r best identified directions of action, (d_a, d_a, d_a).

    The best identified directions are those along which the effect of the action on the next
    state, in units of the noise and of the actions' spread, is most certain.
    """
    d, units = model.update.predicted, np.std(model.acted, axis=0)
    units = np.where(units > 0, units, 1.0)
    with jax.enable_x64(True):
        at = jnp.asarray(model.states.mean(axis=0)), jnp.asarray(model.acted.mean(axis=0))
        slope = np.asarray(jax.jacfwd(model.phi, argnums=1)(*at))
    effects = drawn[:, :d] @ slope * units
    noise = np.linalg.pinv(model.noise_cov[:d, :d])
    off = effects[1:] - effects[0]
    unsure = np.einsum("mij,ik,mkl->jl", off, noise, off)
    vectors = np.linalg.eigh(unsure)[1]
    projectors = [vectors[:, :r] @ vectors[:, :r].T for r in range(1, len(units) + 1)]
    return np.array([units[:, None] * projector / units for projector in projectors])
