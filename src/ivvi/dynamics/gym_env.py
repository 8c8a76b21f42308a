"""Environments: step by step through Gymnasium, or many episodes side by side.

`SimulatedEnv` wraps any simulator; `ModelEnv` is the estimated dynamics to train or test in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from ivvi._io.arrays import Array
from ivvi._io.result import Compact, short
from ivvi.actions import make_actions
from ivvi.dynamics.end_payoffs import EndReward, all_ends, amounts, end_reward
from ivvi.dynamics.rollout import Rollout, Simulator, roll_out
from ivvi.dynamics.state_encoding import state_rows
from ivvi.errors import InputError
from ivvi.rewards import Reward, make_reward
from ivvi.rewards.user_functions import make_ending


class SimulatedEnv(gymnasium.Env[np.ndarray, Any]):
    """A `Simulator` of states (d_x,) as a Gymnasium environment."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(self, simulator: Simulator, d_x: int, actions: Any, horizon: int) -> None:
        self.simulator, self.horizon = simulator, horizon
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (d_x,), np.float64)
        self.action_space = actions
        self._step = jax.jit(simulator.intervene)
        self._state: np.ndarray | None = None
        self._key: Any = None
        self._time = 0

    def __repr__(self) -> str:
        actions = short(self.action_space)
        return f"{type(self).__name__}({self._name}, actions {actions}, {self.horizon:,} steps)"

    @property
    def _name(self) -> str:
        """The simulated world, in a few words."""
        return type(self.simulator).__name__

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode (Gymnasium)."""
        super().reset(seed=seed)
        with jax.enable_x64(True):
            self._key = jax.random.key(int(self.np_random.integers(2**31)))
            self._state = np.asarray(self.simulator.initial(jax.random.fold_in(self._key, 0)))
        self._time = 0
        return self._state, {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Take one step (Gymnasium); the episode is truncated at the horizon."""
        if self._state is None:
            raise InputError("step was called before reset")
        self._time += 1
        with jax.enable_x64(True):
            key = jax.random.fold_in(self._key, self._time)
            vector = self.vector_of(action)
            x_next, r = self._step(key, self._state, vector, self._time - 1)
            ended = bool(self.simulator.ended(key, self._state, vector, x_next))
        self._state = np.asarray(x_next)
        return self._state, float(r), ended, self._time >= self.horizon, {}

    def vector_of(self, action: Any) -> Any:
        """Return an action of the space as a vector, (d_a,)."""
        return jnp.asarray(action, dtype=jnp.float64)

    def rollout(
        self,
        policy: Any,
        *,
        episodes: int = 64,
        horizon: int | None = None,
        seed: int = 0,
        keep: bool = False,
    ) -> Rollout:
        """Run `policy`, (n, d_x) states to (n, d_a) actions, in all episodes side by side.

        The noise of (seed, episode, step) is the same for every policy: differences
        between policies are differences of the policies (common random numbers).
        """
        steps = self.horizon if horizon is None else horizon
        return roll_out(
            self.simulator, policy, episodes=episodes, horizon=steps, seed=seed, keep=keep
        )


@dataclass(frozen=True, eq=False, repr=False)
class ModelSimulator(Compact):
    """The estimated dynamics as a `dynamics.rollout.Simulator`.

    Attributes
    ----------
    model
        Dynamics (`ivvi.dynamics.model.Dynamics`).
    reward
        r(x, a, x', h).
    start
        A function from a key to a random first state.
    terminal
        Whether states end an episode; None if no state does.
    reward_at_end
        Paid when the episode ends, for any or each kind of end (`ivvi.dynamics.end_payoffs`).
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
        by_state = self.terminal is not None
        return amounts(self.reward_at_end, self.model.ends, by_state=by_state)

    @property
    def d_a(self) -> int:
        """Dimension of the action."""
        return len(self.model.action)

    def initial(self, key: Array) -> Array:
        """Draw a first state."""
        return self.start(key)

    def intervene(self, key: Array, x: Array, a: Array, h: Array) -> tuple[Array, Array]:
        """Draw the next state; the same key always gives the same standard normal draws."""
        draws = jax.random.normal(key, (self.model.d_next,), jnp.float64)
        x_next = self.model.next_state(self.model.mean(x, a), draws)
        r = self.reward(x, a, x_next, h)
        if self._paid:
            r = r + self._ends(key, x, a, x_next) @ jnp.asarray(self._paid)
        return x_next, r

    def ended(self, key: Array, x: Array, a: Array, x_next: Array) -> Array:
        """Return whether the episode ends: by the state, or drawn with the model's chance."""
        if not (self.model.ends or self.terminal is not None):
            return jnp.asarray(False)
        return self._ends(key, x, a, x_next).sum() > 0

    def _ends(self, key: Array, x: Array, a: Array, x_next: Array) -> Array:
        """Return 1 for the kind of end that happens, else 0, (E,): all 0 if the episode goes on."""
        by_state = None if self.terminal is None else 1.0 * (self.terminal(x_next) > 0)
        if not self.model.ends:
            return all_ends(None, by_state)
        below = jnp.cumsum(self.model.chances_of_ends(x, a), axis=-1)
        u = jax.random.uniform(jax.random.fold_in(key, 1))
        drawn = jnp.diff(1.0 * (u < below), prepend=0.0)
        return all_ends(drawn, by_state)


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
        seen = model.starts if len(model.starts) else model.states
        first = seen if starts is None else state_rows(starts, model)
        if not first.size:
            raise InputError(
                "the model holds no states to start from; pass states (starts=), rows of "
                f"{len(model.state)} ({', '.join(model.state)})"
            )
        horizon = model.usual_horizon[0] if horizon is None else horizon
        if horizon < 1:
            raise InputError(f"the horizon is {horizon}; expected at least 1")
        paid = end_reward(reward_at_end, model.ends, by_state=terminal is not None)
        reward_function = make_reward(reward, model, instrument)
        simulator = ModelSimulator(model, reward_function, one_of(first), terminal, paid)
        super().__init__(simulator, len(model.state), self.actions.to_space(), horizon)

    @property
    def _name(self) -> str:
        return "estimated dynamics"

    def vector_of(self, action: Any) -> Any:
        """Return an action, or the action with this number, as a vector."""
        return self.actions.from_space(action)
