"""An estimated world to act in: simulate it in bulk, or train in it through Gymnasium."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ivvi.actions import make_actions
from ivvi.dynamics.ends import EndReward, amounts, end_reward, with_told
from ivvi.dynamics.gym import SimulatedEnv
from ivvi.errors import InputError
from ivvi.features.blocks import Array
from ivvi.reward_functions import make_ending
from ivvi.rewards import Reward, make_reward


@dataclass(frozen=True, eq=False)
class ModelSimulator:
    """The estimated dynamics as a `rollouts.Simulator`.

    Attributes
    ----------
    model
        Dynamics (`ivvi.dynamics.model.Dynamics`).
    reward
        r(x, a, x', h).
    start
        Draws a first state from a key.
    terminal
        Tells which states end an episode.
    reward_at_end
        Paid when the episode ends, for any end or for each kind of it (`ivvi.dynamics.ends`).
    """

    model: Any
    reward: Reward
    start: Callable[[Array], Array]
    terminal: Callable[[Array], Array] | None = None
    reward_at_end: EndReward = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "terminal", make_ending(self.terminal))

    @cached_property
    def _paid(self) -> tuple[float, ...]:
        told = self.terminal is not None
        return amounts(self.reward_at_end, self.model.ends, told=told)

    @property
    def d_a(self) -> int:
        """Dimension of the action."""
        return len(self.model.action)

    def initial(self, key: Array) -> Array:
        """Draw a first state."""
        return self.start(key)

    def intervene(self, key: Array, x: Array, a: Array, h: Array) -> tuple[Array, Array]:
        """Draw the next state; the same key gives the same standard normal draws always."""
        draws = jax.random.normal(key, (self.model.d_next,), jnp.float64)
        x_next = self.model.next_state(self.model.mean(x, a), draws)
        r = self.reward(x, a, x_next, h)
        if self._paid:
            r = r + self._ends(key, x, a, x_next) @ jnp.asarray(self._paid)
        return x_next, r

    def ended(self, key: Array, x: Array, a: Array, x_next: Array) -> Array:
        """Tell whether the episode ends: drawn with the model's chance, or told by the state."""
        if not (self.model.ends or self.terminal is not None):
            return jnp.asarray(False)
        return self._ends(key, x, a, x_next).sum() > 0

    def _ends(self, key: Array, x: Array, a: Array, x_next: Array) -> Array:
        """Tell which kind of end there is, (E,), as 0 and 1: all 0 where the episode goes on."""
        told = None if self.terminal is None else 1.0 * (self.terminal(x_next) > 0)
        if not self.model.ends:
            return with_told(None, told)
        below = jnp.cumsum(self.model.chances_of_ends(x, a), axis=-1)
        u = jax.random.uniform(jax.random.fold_in(key, 1))
        drawn = jnp.diff(1.0 * (u < below), prepend=0.0)
        return with_told(drawn, told)


def one_of(states: np.ndarray) -> Callable[[Array], Array]:
    """Return a sampler of the rows of `states`, (m, d_x)."""
    return lambda key: jnp.asarray(states)[jax.random.randint(key, (), 0, len(states))]


class ModelEnv(SimulatedEnv):
    """Estimated dynamics as a Gymnasium environment; finite actions are numbered."""

    def __init__(
        self,
        model: Any,
        reward: Any,
        actions: Any,
        *,
        starts: Any = None,
        horizon: int | None = None,
        terminal: Callable[[Array], Array] | None = None,
        reward_at_end: Any = 0.0,
        instrument: Mapping[str, Any] | None = None,
    ) -> None:
        self.actions = make_actions(actions, model.action)
        first = np.atleast_2d(np.asarray(model.states if starts is None else starts, float))
        if first.size == 0 or first.shape[1] != len(model.state):
            raise InputError(
                f"first states of shape {first.shape} were given; expected rows of "
                f"{len(model.state)} ({', '.join(model.state)})"
            )
        horizon = model.usual_horizon[0] if horizon is None else horizon
        if horizon < 1:
            raise InputError(f"the horizon is {horizon}; expected at least 1")
        paid = end_reward(reward_at_end, model.ends, told=terminal is not None)
        made = make_reward(reward, model, instrument)
        simulator = ModelSimulator(model, made, one_of(first), terminal, paid)
        super().__init__(simulator, len(model.state), self.actions.to_space(), horizon)

    def vector_of(self, action: Any) -> Any:
        """Return an action, or the one with this number, as a vector."""
        return self.actions.from_space(action)
