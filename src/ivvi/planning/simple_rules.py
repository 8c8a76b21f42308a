"""Rules that need no plan: a constant action, the log's usual action, or the user's own policy.

They are the rivals of a plan, and the fallbacks of a cautious plan where it is not sure. Which
fallback is best is not known beforehand: the usual action may be the worst of all once nobody acts
on the hidden confounder. The default is the one whose value, in models that the log allows, has the
best lower bound.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from ivvi._io.arrays import Array
from ivvi._io.files import Saved
from ivvi._io.result import Compact
from ivvi.actions import Actions
from ivvi.diagnostics.tails_and_quantiles import two_sided
from ivvi.dynamics.rollout import run_episodes
from ivvi.errors import FileError, InputError
from ivvi.features.custom_block import import_path, import_saved
from ivvi.planning.behaviour_policy import BehaviourPolicy
from ivvi.planning.problem import Problem, Rule

MOST_HELD = 64
"""Number of constant actions that are tried."""
FALLBACK_WORDS = ("best", "usual", "zero")
EPISODES, STEPS = 64, 50
"""Simulated episodes in each model, and the most steps of an episode."""
ActFunction = Callable[[Array, Array, Array], Array]
"""(parameters, states (n, d_x), step) to actions (n, d_a)."""


@dataclass(frozen=True, eq=False, repr=False)
class HeldRule(Compact):
    """Take the same action, `action` (d_a,), in every state."""

    kind: ClassVar[str] = "held"
    action: np.ndarray

    @classmethod
    def from_parts(
        cls, problem: Problem, settings: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
    ) -> HeldRule:
        """Make the rule again from `parts`."""
        return cls(arrays["action"])

    def parts(self) -> Saved:
        """Return the action."""
        return {}, {"action": self.action}

    def begin(self, n: int) -> Any:
        """Return the empty state: the rule is stateless."""
        return ()

    def act(self, x: Array, h: Array, memory: Any) -> tuple[Array, Any]:
        """Return the action for every state."""
        return self.decide(self.numbers, x, h, memory)

    @property
    def shape(self) -> Hashable:
        """The number of actions: held actions of one shape share programs."""
        return self.kind, len(self.action)

    @property
    def numbers(self) -> Any:
        """The action."""
        return self.action

    def decide(self, numbers: Any, x: Array, h: Array, memory: Any) -> tuple[Array, Any]:
        """Return the held action, passed as `numbers`, for every state."""
        return jnp.broadcast_to(jnp.asarray(numbers), (len(x), len(self.action))), memory


@dataclass(frozen=True, eq=False, repr=False)
class UsualRule(Compact):
    """Take the action that was usual in such a state, or the nearest allowed one."""

    kind: ClassVar[str] = "usual"
    problem: Problem
    behaviour: BehaviourPolicy

    @classmethod
    def of(cls, problem: Problem) -> UsualRule:
        """Fit the behaviour policy to the model's sample of the log."""
        behaviour = BehaviourPolicy.of(problem.model)
        if behaviour is None:
            raise InputError(
                "the usual action needs rows of the log; this model holds none: fit it from a log"
            )
        return cls(problem, behaviour)

    @classmethod
    def from_parts(
        cls, problem: Problem, settings: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
    ) -> UsualRule:
        """Make the rule again from the rows of the log that the problem's model holds."""
        return cls.of(problem)

    def parts(self) -> Saved:
        """Return nothing: the model holds the rows."""
        return {}, {}

    def begin(self, n: int) -> Any:
        """Return the empty state: the rule is stateless."""
        return ()

    def act(self, x: Array, h: Array, memory: Any) -> tuple[Array, Any]:
        """Return the usual action of every state."""
        return self.problem.actions.nearest(self.behaviour.usual(x)), memory


@dataclass(frozen=True, eq=False)
class Unplanned:
    """A planner that returns the same rule whatever the model."""

    rule: Rule

    def solve(self, problem: Problem, *, seed: int = 0) -> Rule:
        """Return the rule."""
        return self.rule


def held_actions(problem: Problem, seed: int) -> np.ndarray:
    """Return actions to try as held ones, (k, d_a): all allowed ones, or corners and draws."""
    actions, rng = problem.actions, np.random.default_rng(seed)
    if actions.is_finite and actions.count <= MOST_HELD:
        return actions.choices
    candidates = (*actions.corners, np.zeros(actions.dim), actions.middle)
    allowed = [action for action in candidates if actions.contains(action)]
    return np.unique(np.vstack([*allowed, actions.sample(MOST_HELD - 4, rng)]), axis=0)


@dataclass(frozen=True, eq=False)
class FallbackRule:
    """The user's own policy: one from `ivvi.plan`, or a function of states written for JAX."""

    kind: ClassVar[str] = "policy"
    actions: Actions
    policy: Any

    @classmethod
    def from_parts(
        cls, problem: Problem, settings: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
    ) -> FallbackRule:
        """Make the rule again by importing the function."""
        return cls(problem.actions, import_saved(settings["path"]))

    def begin(self, n: int) -> Any:
        """Return the empty state: the rule is stateless."""
        return ()

    def act(self, x: Array, h: Array, memory: Any) -> tuple[Array, Any]:
        """Return the policy's actions."""
        if hasattr(self.policy, "act") and hasattr(self.policy, "begin"):
            action = self.policy.act(x, h, self.policy.begin(len(x)))[0]
        else:
            action = jnp.asarray(self.policy(x))
        if action.shape != (len(x), self.actions.dim):
            raise InputError(
                f"the fallback returned actions of shape {action.shape} for {len(x)} states; "
                f"expected {(len(x), self.actions.dim)}"
            )
        return self.actions.nearest(action), memory

    def parts(self) -> Saved:
        """Return the import path of the function."""
        if hasattr(self.policy, "act"):
            raise InputError(
                "the policy cannot be saved: its fallback is another plan; save that one, and "
                "fall back on a module-level function that loads it (ivvi.load_policy)"
            )
        path, imported = import_path(self.policy)
        if not imported:
            raise InputError(
                "the policy cannot be saved: its fallback is a function that cannot be imported; "
                "define it at module level, or fall back on usual, zero or an action"
            )
        return {"path": path}, {}


FALLBACKS: dict[Any, Callable[..., Rule]] = {
    rule.kind: rule.from_parts for rule in (HeldRule, UsualRule, FallbackRule)
}
"""How fallbacks are rebuilt from their saved parts."""


def make_fallback(fallback: Any, problem: Problem, drawn: np.ndarray, caution: float) -> Rule:
    """Return the fallback given in any of its forms; ``best`` is chosen in the `drawn` models."""
    actions = problem.actions
    if isinstance(fallback, HeldRule | UsualRule | FallbackRule):
        return fallback
    if isinstance(fallback, str) and fallback in FALLBACK_WORDS:
        if fallback == "best":
            return _best(problem, drawn, caution)
        if fallback == "usual":
            return UsualRule.of(problem)
        return HeldRule(_allowed(np.zeros(actions.dim), problem))
    if callable(fallback):
        return _tried(FallbackRule(actions, fallback), problem)
    try:
        action = np.atleast_1d(np.asarray(fallback, dtype=np.float64))
    except (TypeError, ValueError):
        action = np.zeros(0)
    if action.shape != (actions.dim,) or not np.isfinite(action).all():
        raise InputError(
            f"the fallback is {fallback!r}; expected usual, zero, best, an action of {actions.dim} "
            "numbers or a policy"
        )
    return HeldRule(_allowed(action, problem))


def fallback_from_parts(
    problem: Problem, settings: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> Rule:
    """Make a fallback again from its kind and its `parts`."""
    if settings["kind"] not in FALLBACKS:
        raise FileError(f"unknown fallback {settings['kind']!r} in a saved policy")
    return FALLBACKS[settings["kind"]](problem, settings, arrays)


def fall_back(rule: Rule, x: Array, h: Array) -> Array:
    """Return a fallback's actions (n, d_a) in states (n, d_x) at step h, without memory."""
    return rule.act(x, h, rule.begin(len(x)))[0]


def lower_bounds(
    problem: Problem, drawn: np.ndarray, caution: float, act: ActFunction, parameters: np.ndarray
) -> np.ndarray:
    """Return lower bounds (c,) of the values V of acting with the rows of `parameters` (c, ...).

    V(W_hat) - kappa (mean_m (V(W_m) - V(W_hat))^2)^1/2 for `drawn` W_hat, W_1, W_2, ...
    """
    with jax.enable_x64(True):
        values = np.asarray(_values(problem, act)(jnp.asarray(parameters), jnp.asarray(drawn)))
    kappa = two_sided(level=caution)
    off = values[:, 1:] - values[:, :1]
    bounds = values[:, 0] - kappa * np.sqrt(np.mean(off**2, axis=1))
    return np.where(np.isfinite(bounds), bounds, -np.inf)


def _tried(fallback: FallbackRule, problem: Problem) -> FallbackRule:
    """Return a user's policy, or raise an error if it cannot be compiled."""
    x = np.zeros((3, len(problem.model.state)))
    try:
        with jax.enable_x64(True):
            jax.eval_shape(lambda x: fall_back(fallback, x, 0), x)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            "the fallback cannot be compiled: expected a policy from ivvi.plan, or a function of "
            f"states (n, d_x) written with jax.numpy ({type(error).__name__})"
        ) from error
    return fallback


def _allowed(action: np.ndarray, problem: Problem) -> np.ndarray:
    """Return an action, or raise an error if it is not allowed."""
    if not problem.actions.contains(action):
        numbers = ", ".join(f"{v:g}" for v in action)
        raise InputError(f"the fallback ({numbers}) is not among the actions that are allowed")
    return action


def _best(problem: Problem, drawn: np.ndarray, caution: float) -> Rule:
    """Return the candidate with the best lower bound of its value."""
    candidates = held_actions(problem, 0)
    rule = HeldRule(candidates[0])
    bounds = lower_bounds(
        problem, drawn, caution, lambda a, x, h: rule.decide(a, x, h, ())[0], candidates
    )
    best = HeldRule(candidates[int(np.argmax(bounds))])
    if len(problem.model.acted) == 0:
        return best
    usual = UsualRule.of(problem)
    act = lambda _, x, h: fall_back(usual, x, h)  # noqa: E731
    usual_bound = lower_bounds(problem, drawn, caution, act, np.zeros((1, 0)))
    return usual if usual_bound[0] >= bounds.max() else best


def _values(problem: Problem, act: ActFunction) -> Callable[[Array, Array], Array]:
    """Return a function that gives mean returns (c, M) of c parameters in M models, same noise."""
    model, rng = problem.model, np.random.default_rng(0)
    first_states, law = problem.starts, model.noise_law
    starts = first_states[rng.integers(len(first_states), size=EPISODES)]
    noise = rng.normal(size=(min(problem.horizon, STEPS), *starts.shape))

    def value(parameters: Array, W: Array) -> Array:
        world = problem.with_weights(W)
        returns = run_episodes(
            lambda x, h, memory: (act(parameters, x, h), memory),
            lambda x, a, h, memory: world.step(x, a, jnp.asarray(noise)[h], h, law),
            jnp.asarray(starts),
            (),
            len(noise),
            discount=problem.discount,
        )[1]
        return jnp.mean(returns)

    def all_values(parameters: Array, drawn: Array) -> Array:
        return jax.lax.map(lambda g: jax.lax.map(lambda W: value(g, W), drawn), parameters)

    return jax.jit(all_values)  # type: ignore[no-any-return]
