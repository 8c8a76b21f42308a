"""A planning problem: dynamics, reward, actions and horizon."""

from __future__ import annotations

import dataclasses
import json
import re
import warnings
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from ivvi._io.arrays import Array
from ivvi._io.files import Saved
from ivvi._io.result import Compact
from ivvi.actions import Actions
from ivvi.dynamics.end_payoffs import EndReward, all_ends, amounts, end_reward
from ivvi.dynamics.horizon import check_horizon
from ivvi.dynamics.model import Dynamics
from ivvi.dynamics.next_state_distribution import NoiseLaw, next_state
from ivvi.dynamics.range_clamping import FAR
from ivvi.dynamics.range_warnings import choices_as_amounts, simulation_doubts
from ivvi.dynamics.state_encoding import state_rows
from ivvi.dynamics.state_update import affine_part
from ivvi.errors import InputError, PlanningWarning
from ivvi.planning.allowed_actions import allowed_actions
from ivvi.planning.insignificant_effects import effect_doubts
from ivvi.rewards import Learned, Reward, make_reward
from ivvi.rewards.function_checks import check_functions
from ivvi.rewards.next_state_rewards import reward_doubts
from ivvi.rewards.user_functions import make_ending

MOST_STATES = 4096
EXPLODING = 1e3
"""A model whose states grow by more than this over the horizon is called unstable."""


@dataclass(frozen=True, eq=False, repr=False)
class Problem(Compact):
    """Maximise E sum_h discount^h r(x_h, a_h, x_h+1) in x' = W phi(x, a) + noise.

    Attributes
    ----------
    model
        The dynamics.
    reward
        r(x, a, x', h).
    actions
        The allowed actions.
    horizon
        Steps of an episode.
    discount
        Weight of a step relative to the one before, in (0, 1].
    states
        States where the plan should be good, (n, d_x): a sample of the log's, and starts.
    terminal
        Whether states end an episode, from rows (n, d_x) to (n,); None if no state does.
    reward_at_end
        Paid in addition to the reward of the step after which the episode ends for good: one amount
        for any end, or one for each kind (`ivvi.dynamics.end_payoffs`).
    """

    model: Dynamics
    reward: Reward
    actions: Actions
    horizon: int
    discount: float = 1.0
    states: np.ndarray | None = None
    terminal: Callable[[Array], Array] | None = None
    reward_at_end: EndReward = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "terminal", make_ending(self.terminal))

    @classmethod
    def of(  # noqa: PLR0913
        cls,
        model: Dynamics,
        reward: Any,
        actions: Any,
        *,
        horizon: int | None = None,
        discount: float = 1.0,
        states: Any = None,
        terminal: Callable[[Array], Array] | None = None,
        reward_at_end: Any = 0.0,
        instrument: Mapping[str, Any] | None = None,
    ) -> Problem:
        """Return the problem after checking a user's inputs; warn of models not to be trusted."""
        model.check_whole()
        horizon = model.usual_horizon[0] if horizon is None else horizon
        check_horizon(horizon)
        if not 0 < discount <= 1:
            raise InputError(f"the discount is {discount:g}; expected a number in (0, 1]")
        if not model.state:
            raise InputError(
                "the model has no states, so the same action is always best, and the effects in "
                "the fit show which; to plan, fit with a state or context (--state, --context)"
            )
        if model.d_next != len(model.state):
            raise InputError(
                f"the model predicts {model.d_next} columns from {len(model.state)} states; "
                "planning needs the next value of every state, or the outcome of one decision as "
                "its reward (fit with reward=, --reward, and without a next state)"
            )
        allowed = allowed_actions(model, actions)
        rows = None if states is None else state_rows(states, model)
        parts = model, make_reward(reward, model, instrument), allowed, int(horizon), discount, rows
        paid = end_reward(reward_at_end, model.ends, by_state=terminal is not None)
        problem = cls(*parts, terminal, paid)
        check_functions(problem.reward, problem.terminal, model, *problem._rows_to_try())
        for text in problem.doubts:
            warnings.warn(text, PlanningWarning, stacklevel=3)
        return problem

    @cached_property
    def affine(self) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """c, F, B of x' = c + F x + B a when the model is of that form, else None."""
        model = self.model
        if model.bends:
            return None
        return affine_part(model.phi, model.W, model.update, len(model.state))

    @property
    def additive(self) -> bool:
        """Whether the mean is f(x) + g(a): no feature depends on both states and actions."""
        return all(block.of in ("state", "input") for block in self.model.phi.blocks)

    @property
    def can_end(self) -> bool:
        """Whether an episode may end before the horizon."""
        return self.terminal is not None or bool(self.model.ends)

    def ended(self, x: Array, a: Array, x_next: Array) -> Array | float:
        """Return the chance (...) that the episode is over once a has led from x to x'.

        For ends in the model this is a probability, P(end | x, do(a)): later rewards are weighted
        by it, and no end is drawn. A state that is `terminal` ends the episode with certainty.
        """
        return self._chances(x, a, x_next).sum(axis=-1) if self.can_end else 0.0

    def doubts_of(self, x: np.ndarray, a: np.ndarray, *, abstains: bool = False) -> tuple[str, ...]:
        """Return warnings where simulated states (H, n, d_x) and actions (H, n, d_a) leave the log.

        Steps are weighted by the chance that their episodes reach them. States that explode are
        reported by `doubts` instead.
        """
        import jax

        if self._explosion:
            return ()

        with jax.enable_x64(True):
            over = np.asarray(self.ended(x[:-1], a[:-1], x[1:])) + np.zeros(x[1:, :, 0].shape)
        alive = np.concatenate([np.ones_like(x[:1, :, 0]), np.cumprod(1.0 - over, axis=0)])
        learned = isinstance(self.reward, Learned)
        settings = {"learned": learned, "abstains": abstains}
        return simulation_doubts(self.model, x, a, alive, **settings)

    def _chances(self, x: Array, a: Array, x_next: Array) -> Array:
        """Return the chance of each kind of end, and of a terminal state, (..., E)."""
        chances = self.model.chances_of_ends(x, a) if self.model.ends else None
        return all_ends(chances, None if self.terminal is None else self.terminal(x_next))

    @cached_property
    def end_amounts(self) -> tuple[float, ...]:
        """The amount that each kind of end pays, (E,); empty where all pay nothing."""
        by_state = self.terminal is not None
        return amounts(self.reward_at_end, self.model.ends, by_state=by_state)

    def end_gain(self, x: Array, a: Array, x_next: Array) -> Array | float:
        """Return the expected payment for an end at this step, (...)."""
        paid = self.end_amounts
        return self._chances(x, a, x_next) @ np.asarray(paid) if paid else 0.0

    def gain(self, x: Array, a: Array, x_next: Array, h: Array) -> Array:
        """Return the reward (...) of a step plus the expected payment for an end."""
        r = self.reward(x, a, x_next, h)
        return r + self.end_gain(x, a, x_next) if self.end_amounts else r

    def step(self, x: Array, a: Array, noise: Array, h: Array, law: NoiseLaw | None = None) -> Any:
        """Return the next states (n, d_x) from standard normal draws of their shape, the gains
        and the chances of an end (n,).

        States stay within `FAR`. If the model holds tracers of JAX, `law` is its noise from before
        tracing.
        """  # noqa: D205
        law = self.model.noise_law if law is None else law
        m = self.model.mean(x, a)
        m = m.__array_namespace__().clip(m, -FAR, FAR)
        x_next = next_state(m, noise, law, self.model.categories)
        return x_next, self.gain(x, a, x_next, h), self.ended(x, a, x_next)

    @property
    def numbers(self) -> tuple[Any, ...]:
        """The numbers of the model: weights, noise covariance, knots, reach."""
        return self.model.numbers

    def with_numbers(self, numbers: tuple[Any, ...]) -> Problem:
        """Return the same problem in a model with other `numbers` (tracers of JAX too)."""
        model = self.model.with_numbers(numbers)
        return dataclasses.replace(self, model=model, reward=make_reward(self.reward, model))

    def with_weights(self, W: Array, noise_cov: Array | None = None) -> Problem:
        """Return the same problem in a model with other weights, and optionally other noise."""
        _, noise, *rest = self.model.numbers
        return self.with_numbers((W, noise if noise_cov is None else noise_cov, *rest))

    @cached_property
    def shape(self) -> Hashable:
        """Everything but the numbers of the model: problems of one shape share programs."""
        model, learned = self.model, isinstance(self.reward, Learned)
        return (
            model.phi.shape,
            (model.state, model.action, model.outputs, model.categories, model.update),
            "learned" if learned else self.reward,
            json.dumps(self.actions.to_json()),
            self.discount,
            (self.terminal, self.reward_at_end),
        )

    @property
    def support(self) -> np.ndarray:
        """States to plan on, (n, d_x): those given, else the model's sample of the log."""
        chosen = self.model.states if self.states is None else self.states
        if len(chosen) == 0:
            raise InputError(
                "the model holds no sample of states (it was fitted from moments alone); pass "
                "the states where the plan should be good (states=, or --states TABLE)"
            )
        return chosen[:MOST_STATES]

    @property
    def starts(self) -> np.ndarray:
        """First states of episodes, (n, d_x): the log's, else the states to plan on."""
        return self.model.starts if len(self.model.starts) else self.support

    def _rows_to_try(self) -> tuple[np.ndarray, np.ndarray]:
        """Return states (n, d_x) and actions (n, d_a), with n different from d_x and d_a."""
        model, rng = self.model, np.random.default_rng(0)
        n = next(n for n in range(3, 6) if n not in (len(model.state), len(model.action)))
        states = model.states if self.states is None else self.states
        x = (
            states[rng.integers(len(states), size=n)]
            if len(states)
            else np.zeros((n, len(model.state)))
        )
        return x, self.actions.sample(n, rng)

    @cached_property
    def fit_doubts(self) -> tuple[str, ...]:
        """Warnings of the fit about its features, and about a learned reward."""
        model = self.model
        if isinstance(self.reward, Learned):
            return (*reward_doubts(model), *model.doubts)
        return tuple(text for text in model.doubts if text not in model.reward_doubts)

    @property
    def choice_doubts(self) -> tuple[str, ...]:
        """A warning on actions that may be any number although the log has only a few values."""
        return choices_as_amounts(self.model, self.actions)

    @cached_property
    def effect_doubts(self) -> tuple[str, ...]:
        """A warning if all effects of the actions may be zero."""
        return effect_doubts(self.model, learned=isinstance(self.reward, Learned))

    @property
    def doubts(self) -> tuple[str, ...]:
        """Warnings on what may mislead a planner: unidentified actions, exploding dynamics."""
        sentences = []
        directions = [d for d in self.model.unidentified if _names_any(d, self.model.action)]
        if directions:
            sentences.append(
                f"the log does not identify the effect of {'; '.join(directions)}: the plan "
                "rests on the minimum-norm guess there"
            )
        return tuple(sentences) + self._explosion

    @property
    def _explosion(self) -> tuple[str, ...]:
        """A warning if linear dynamics grow beyond any use over the horizon."""
        if self.affine is None:
            return ()
        radius = float(np.abs(np.linalg.eigvals(self.affine[1])).max(initial=0.0))
        effective = min(self.horizon, 1 / (1 - self.discount) if self.discount < 1 else np.inf)
        if radius <= 1 or effective * np.log(radius) <= np.log(EXPLODING):
            return ()
        return (
            f"the model's states explode: spectral radius {radius:.4g} over {self.horizon} steps; "
            "values far ahead are meaningless",
        )


@dataclass(frozen=True)
class Template:
    """The key of compiled programs: equal for problems of one shape, with an example to trace."""

    shape: Any
    example: Any = field(compare=False)

    @classmethod
    def of(cls, example: Any, *also: Any) -> Template:
        """Return the key from the example's `shape` and all else that the program depends on."""
        return cls((example.shape, *also), example)


class Rule(Protocol):
    """How a planner decides: a pure function for JAX, and settings and arrays to save.

    `kind` is the word of the planner that made it. A rule whose plan ends has a number of `steps`;
    without it (or with None) the rule serves any number of steps.
    """

    @property
    def kind(self) -> str:
        """The planner's word."""
        ...

    def begin(self, n: int) -> Any:
        """Return the memory at the first step of n episodes (arrays or ())."""
        ...

    def act(self, x: Array, h: Array, memory: Any) -> tuple[Array, Any]:
        """Return actions (n, d_a) for states (n, d_x) at step h, and the new memory."""
        ...

    def parts(self) -> Saved:
        """Return JSON settings and arrays from which the rule can be made again."""
        ...


class Planner(Protocol):
    """A planner: a frozen value that turns a problem into a rule."""

    def solve(self, problem: Problem, *, seed: int = 0) -> Rule:
        """Return the plan's rule; each step is reported to `planning.progress`."""
        ...


def _names_any(direction: str, names: tuple[str, ...]) -> bool:
    return any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", direction) for name in names)
