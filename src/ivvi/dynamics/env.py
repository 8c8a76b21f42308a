"""An estimated world to act in: simulate it in bulk, or train in it through Gymnasium."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ivvi.actions import make_actions
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
        Paid when the episode ends.
    """

    model: Any
    reward: Reward
    start: Callable[[Array], Array]
    terminal: Callable[[Array], Array] | None = None
    reward_at_end: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "terminal", make_ending(self.terminal))

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
        if self.reward_at_end:
            r = r + self.reward_at_end * self.ended(key, x, a, x_next)
        return x_next, r

    def ended(self, key: Array, x: Array, a: Array, x_next: Array) -> Array:
        """Tell whether the episode ends: drawn with the model's chance, or told by the state."""
        over = jnp.asarray(False) if self.terminal is None else self.terminal(x_next) > 0
        if not self.model.ends:
            return over
        drawn = jax.random.uniform(jax.random.fold_in(key, 1)) < self.model.chance_of_end(x, a)
        return over | drawn


def one_of(states: np.ndarray) -> Callable[[Array], Array]:
    """Return a sampler of the rows of `states`, (m, d_x)."""
    return lambda key: jnp.asarray(states)[jax.random.randint(key, (), 0, len(states))]


class ModelEnv(SimulatedEnv):
    """Estimated dynamics as a Gymnasium environment; finite actions are told by number."""

    def __init__(
        self,
        model: Any,
        reward: Any,
        actions: Any,
        *,
        starts: Any = None,
        horizon: int | None = None,
        terminal: Callable[[Array], Array] | None = None,
        reward_at_end: float = 0.0,
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
        if reward_at_end and terminal is None and not model.ends:
            raise InputError("a reward at the end is asked for, and no episode of the model ends")
        made = make_reward(reward, model, instrument)
        simulator = ModelSimulator(model, made, one_of(first), terminal, reward_at_end)
        super().__init__(simulator, len(model.state), self.actions.to_space(), horizon)

    def vector_of(self, action: Any) -> Any:
        """Return an action, or the one with this number, as a vector."""
        return self.actions.from_space(action)
