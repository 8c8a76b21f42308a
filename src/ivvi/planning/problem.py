"""A planning problem: dynamics, reward, actions and how long they matter."""

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

from ivvi._io.files import Saved
from ivvi._io.result import Compact
from ivvi.actions import Actions, make_actions
from ivvi.categories import encode_rows, raw_columns
from ivvi.dynamics.ends import EndReward, all_ends, amounts, end_reward
from ivvi.dynamics.log_range import simulation_doubts
from ivvi.dynamics.model import Dynamics
from ivvi.dynamics.noise_law import Category as CategoryLevels
from ivvi.dynamics.state_update import affine_part
from ivvi.errors import LARGEST, InputError, PlanningWarning
from ivvi.features.blocks import Array
from ivvi.logs.readers import open_table
from ivvi.rewards import Learned, Reward, make_reward
from ivvi.rewards.user_functions import make_ending

MOST_STATES = 4096
EXPLODING = 1e3
"""Growth of the states over the horizon beyond which a model is called unstable."""
MOST_STEPS = 100_000
"""Longest horizon."""


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
        What may be done.
    horizon
        Steps of an episode.
    discount
        Weight of a step against the one before, in (0, 1].
    states
        States where the plan should be good, (n, d_x): a sample of the log's, and starts.
    terminal
        Tells which states end an episode, from rows (n, d_x) to (n,); None when none does.
    reward_at_end
        Paid beside the reward of the step after which the episode ends for good: one amount for
        any end, or one for each kind (`ivvi.dynamics.ends`).
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
        """Check everything a user gives, and warn of models that should not be trusted."""
        model.check_whole()
        horizon = model.usual_horizon[0] if horizon is None else horizon
        if not isinstance(horizon, int | np.integer) or horizon < 1:
            raise InputError(f"the horizon is {horizon}; expected a whole number from 1 on")
        if horizon > MOST_STEPS:
            raise InputError(
                f"the horizon is {horizon:,}; at most {MOST_STEPS:,} steps are planned: a discount "
                "below 1 makes later ones worth next to nothing"
            )
        if not 0 < discount <= 1:
            raise InputError(f"the discount is {discount:g}; expected a number in (0, 1]")
        if not model.state:
            raise InputError(
                "the model has no states, so that one action is best for all, and the effects in "
                "the fit say which; keep a state or context (--state, --context) to plan by it"
            )
        if model.d_next != len(model.state):
            raise InputError(
                f"the model predicts {model.d_next} columns from {len(model.state)} states; "
                "planning needs the next value of every state, or the outcome of one decision as "
                "its reward (fit with reward=, --reward, and without a next state)"
            )
        made = allowed_actions(model, actions)
        rows = None if states is None else state_rows(states, model)
        parts = model, make_reward(reward, model, instrument), made, int(horizon), discount, rows
        paid = end_reward(reward_at_end, model.ends, by_state=terminal is not None)
        problem = cls(*parts, terminal, paid)
        _check_functions(problem)
        for text in problem.doubts:
            warnings.warn(text, PlanningWarning, stacklevel=3)
        return problem

    @cached_property
    def affine(self) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """c, P, Q of x' = c + P x + Q a when the model is of that form, else None."""
        model = self.model
        if model.bends:
            return None
        return affine_part(model.phi, model.W, model.update, len(model.state))

    @property
    def additive(self) -> bool:
        """Whether the mean is f(x) + g(a): no feature looks at states and actions at once."""
        return all(block.of in ("state", "input") for block in self.model.phi.blocks)

    @property
    def can_end(self) -> bool:
        """Whether an episode may end before the horizon."""
        return self.terminal is not None or bool(self.model.ends)

    def ended(self, x: Array, a: Array, x_next: Array) -> Array | float:
        """Return the chance (...) that the episode is over once a has led from x to x'.

        Of the ends that the model knows it is a probability, P(end | x, do(a)): what follows is
        weighted by it and no end is drawn. A state that `terminal` tells ends with certainty.
        """
        return self._chances(x, a, x_next).sum(axis=-1) if self.can_end else 0.0

    def doubts_of(self, x: np.ndarray, a: np.ndarray) -> tuple[str, ...]:
        """Say where simulated states (H, n, d_x) and actions (H, n, d_a) leave the log.

        Steps count by the chance that their episodes reach them. Nothing is said of states that
        explode: `doubts` does.
        """
        import jax

        if self._explosion:
            return ()

        with jax.enable_x64(True):
            over = np.asarray(self.ended(x[:-1], a[:-1], x[1:])) + np.zeros(x[1:, :, 0].shape)
        alive = np.concatenate([np.ones_like(x[:1, :, 0]), np.cumprod(1.0 - over, axis=0)])
        learned = isinstance(self.reward, Learned)
        return simulation_doubts(self.model, x, a, alive, learned=learned)

    def _chances(self, x: Array, a: Array, x_next: Array) -> Array:
        """Return the chance of each kind of end, and of a state that ends, (..., E)."""
        chances = self.model.chances_of_ends(x, a) if self.model.ends else None
        return all_ends(chances, None if self.terminal is None else self.terminal(x_next))

    @cached_property
    def end_amounts(self) -> tuple[float, ...]:
        """What each of them pays, (E,); empty where all pay nothing."""
        by_state = self.terminal is not None
        return amounts(self.reward_at_end, self.model.ends, by_state=by_state)

    def end_gain(self, x: Array, a: Array, x_next: Array) -> Array | float:
        """Return what the end of a step is expected to pay, (...)."""
        paid = self.end_amounts
        return self._chances(x, a, x_next) @ np.asarray(paid) if paid else 0.0

    def gain(self, x: Array, a: Array, x_next: Array, h: Array) -> Array:
        """Return the reward (...) of a step, and what its end is expected to pay."""
        r = self.reward(x, a, x_next, h)
        return r + self.end_gain(x, a, x_next) if self.end_amounts else r

    @property
    def numbers(self) -> tuple[Any, ...]:
        """The numbers of the model: weights, noise covariance, knots, reach."""
        return self.model.numbers

    def with_numbers(self, numbers: tuple[Any, ...]) -> Problem:
        """Return the same problem in a model with other `numbers` (tracers of JAX too)."""
        model = self.model.with_numbers(numbers)
        return dataclasses.replace(self, model=model, reward=make_reward(self.reward, model))

    def with_weights(self, W: Array, noise_cov: Array | None = None) -> Problem:
        """Return the same problem in a model with other weights, and other noise if it is given."""
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
        """Where episodes begin, (n, d_x): the log's first states, else the states to plan on."""
        return self.model.starts if len(self.model.starts) else self.support

    @property
    def doubts(self) -> tuple[str, ...]:
        """What a planner may be fooled by: unidentified actions, exploding dynamics."""
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
        """A sentence where linear dynamics grow beyond any use over the horizon."""
        if self.affine is None:
            return ()
        radius = float(np.abs(np.linalg.eigvals(self.affine[1])).max(initial=0.0))
        effective = min(self.horizon, 1 / (1 - self.discount) if self.discount < 1 else np.inf)
        if radius <= 1 or effective * np.log(radius) <= np.log(EXPLODING):
            return ()
        return (
            f"the model's states explode: spectral radius {radius:.4g} over "
            f"{self.horizon} steps; values far ahead mean nothing",
        )


@dataclass(frozen=True)
class Template:
    """The key of compiled programs: equal for all of one shape, with one example to trace."""

    shape: Any
    example: Any = field(compare=False)

    @classmethod
    def of(cls, example: Any, *also: Any) -> Template:
        """Return the key of the example's `shape`, and of what else the program depends on."""
        return cls((example.shape, *also), example)


class Rule(Protocol):
    """How a planner decides: a pure function for JAX, and settings and arrays to save.

    `kind` is the word of the planner that made it. A rule whose plan ends says after how many
    `steps`; without them (or None) it serves any number.
    """

    @property
    def kind(self) -> str:
        """The planner's word."""
        ...

    def begin(self, n: int) -> Any:
        """Return what is remembered between the steps of n episodes (arrays or ())."""
        ...

    def act(self, x: Array, h: Array, memory: Any) -> tuple[Array, Any]:
        """Return actions (n, d_a) for states (n, d_x) at step h, and what to remember."""
        ...

    def parts(self) -> Saved:
        """Return JSON settings and arrays from which the rule can be made again."""
        ...


class Planner(Protocol):
    """A planner: a frozen value that turns a problem into a rule."""

    def solve(self, problem: Problem, *, seed: int = 0, progress: Any = None) -> Rule:
        """Plan; `progress` is called with the number of iterations just done."""
        ...


def allowed_actions(model: Dynamics, given: Any) -> Actions:
    """Return the actions that a user allows.

    Those of categories are their levels unless rows are listed; a pair (low, high) bounds the
    others. Rows may be a table with the columns of the log.
    """
    if isinstance(given, Actions):
        return make_actions(given, model.action)
    if (listed := as_columns(given)) is not None:
        names = raw_columns(model.action, model.coded)
        if missing := [name for name in names if name not in listed]:
            raise InputError(f"the set of actions has no column {missing[0]!r}")
        where = "the set of actions"
        return Actions.finite(encode_rows(listed, model.action, model.coded, where))
    coded = {c.names[0]: c for c in model.coded if c.names and c.names[0] in model.action}
    made = {name for category in coded.values() for name in category.names}
    numbers = [name for name in model.action if name not in made]
    bounds = isinstance(given, tuple) and len(given) == 2
    if not coded or not (given is None or bounds):
        if given is None:
            raise InputError(
                f"no actions are given; expected (low, high) or rows for {', '.join(numbers)}"
            )
        return make_actions(given, model.action)
    if (given is None) == bool(numbers):
        what = f"bounds of {', '.join(numbers)}" if numbers else "none: the levels are the actions"
        raise InputError(f"the actions are {given!r}; expected {what}")
    box = Actions.box(*given, dim=len(numbers)) if bounds else None
    parts: list[Actions] = []
    for name in model.action:
        if name in coded:
            parts.append(
                Actions.finite(CategoryLevels(tuple(range(len(coded[name].names)))).levels)
            )
        elif name in numbers and box is not None:
            at = numbers.index(name)
            parts.append(Actions.box(box.low[at], box.high[at], dim=1))
    return Actions.product(*parts)


def as_columns(table: Any) -> Mapping[str, list[Any]] | None:
    """Return the columns of a mapping, a data frame or an Arrow table by name; None of others."""
    if isinstance(table, Mapping):
        return {str(name): list(np.atleast_1d(values)) for name, values in table.items()}
    if hasattr(table, "columns") or hasattr(table, "__arrow_c_stream__"):
        table = open_table(table)
        names = list(table.schema.names)
        blocks = list(table.batches(names, (), 1 << 16))
        return {n: [v for block in blocks for v in block.column(n).to_pylist()] for n in names}
    return None


def state_rows(states: Any, model: Dynamics) -> np.ndarray:
    """Return states that a user gives as rows (n, d_x) of finite numbers, or refuse them.

    They may be a table with the columns of the log.
    """
    if (columns := as_columns(states)) is not None:
        return model.encode_states(columns)
    rows = np.atleast_2d(state_numbers(states, model))
    if rows.ndim != 2 or rows.shape[1] != len(model.state):
        raise InputError(
            f"states of shape {rows.shape} were given; expected rows of {len(model.state)} "
            f"finite numbers ({', '.join(model.state)})"
        )
    return rows


def state_numbers(states: Any, model: Dynamics) -> np.ndarray:
    """Return states as numbers that can be computed with, in the shape they have."""
    try:
        numbers = np.asarray(states, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        d, names = len(model.state), ", ".join(model.state)
        raise InputError(
            f"the states are not a table of numbers ({error}); expected (n, {d}) or ({d},) "
            f"({names})"
        ) from error
    if not np.isfinite(numbers).all():
        raise InputError("a state holds values that are not finite numbers")
    if (np.abs(numbers) > LARGEST).any():
        largest = float(np.abs(numbers).max())
        raise InputError(f"a state holds {largest:g} in size; expected at most {LARGEST:g}")
    return numbers


def _check_functions(problem: Problem) -> None:
    """Try reward and end on a few states and actions: the right shape, finite numbers."""
    import jax
    import jax.numpy as jnp

    model = problem.model
    n = next(n for n in range(3, 6) if n not in (len(model.state), len(model.action)))
    rng = np.random.default_rng(0)
    states = model.states if problem.states is None else problem.states
    x = (
        states[rng.integers(len(states), size=n)]
        if len(states)
        else np.zeros((n, len(model.state)))
    )
    a = problem.actions.sample(n, rng)
    with jax.enable_x64(True):
        x_next = model.mean(jnp.asarray(x), jnp.asarray(a))
        arguments = jnp.asarray(x), jnp.asarray(a), x_next, 0
        values = _tried("the reward", problem.reward, arguments, n)
        ends = np.zeros(n)
        if problem.terminal is not None:
            ends = _tried("terminal", problem.terminal, (x_next,), n)
    for what, answer, at in (("the reward", values, x), ("terminal", ends, np.asarray(x_next))):
        if not np.isfinite(answer).all():
            bad = int(np.flatnonzero(~np.isfinite(answer))[0])
            where = ", ".join(f"{s}={v:.4g}" for s, v in zip(model.state, at[bad], strict=True))
            raise InputError(f"{what} is {answer[bad]} at {where}; a finite number is expected")


def _tried(
    what: str, function: Callable[..., Any], arguments: tuple[Any, ...], n: int
) -> np.ndarray:
    """Call a user's function, under JAX's tracing too; what goes wrong is said in a sentence."""
    import jax

    try:
        values = np.asarray(function(*arguments), dtype=np.float64)
        jax.eval_shape(function, *arguments)
    except InputError:
        raise
    except jax.errors.JAXTypeError as error:
        raise InputError(
            f"{what} cannot be compiled: write it with operators and jax.numpy, without branches "
            f"on values and without NumPy's own functions ({_sentence(error)})"
        ) from error
    except Exception as error:
        raise InputError(f"{what} cannot be evaluated on {n} states: {_sentence(error)}") from error
    if values.shape != (n,):
        raise InputError(
            f"{what} returned shape {values.shape} for {n} states; one number for each is expected"
        )
    return values


def _sentence(error: Exception) -> str:
    """Return the first line of an error's words, or its name."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:200]


def _names_any(direction: str, names: tuple[str, ...]) -> bool:
    return any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", direction) for name in names)
