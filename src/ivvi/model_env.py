"""An estimated world to act in: simulate it in bulk, or train in it through Gymnasium."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from ivvi.actions import make_actions
from ivvi.blocks import Array
from ivvi.errors import InputError
from ivvi.rewards import Reward, make_reward
from ivvi.rollouts import Rollout, roll_out


@dataclass(frozen=True, eq=False)
class ModelSimulator:
    """x' = W phi(x, a) + N(0, noise covariance) as a `rollouts.Simulator`.

    Attributes
    ----------
    model
        Dynamics (`ivvi.dynamics.Dynamics`).
    reward
        r(x, a, x', h).
    start
        Draws a first state from a key.
    terminal
        Tells which states end an episode.
    """

    model: Any
    reward: Reward
    start: Callable[[Array], Array]
    terminal: Callable[[Array], Array] | None = None

    @property
    def d_a(self) -> int:
        """Dimension of the action."""
        return len(self.model.action)

    def initial(self, key: Array) -> Array:
        """Draw a first state."""
        return self.start(key)

    def intervene(self, key: Array, x: Array, a: Array) -> tuple[Array, Array]:
        """Draw the next state; the same key gives the same standard normal draws always."""
        draws = jax.random.normal(key, (self.model.d_next,), jnp.float64)
        x_next = self.model.mean(x, a) + jnp.asarray(self._factor) @ draws
        return x_next, self.reward(x, a, x_next, 0)

    def ended(self, x: Array) -> Array:
        """Tell whether state x ends the episode."""
        return jnp.asarray(False) if self.terminal is None else self.terminal(x)

    @cached_property
    def _factor(self) -> np.ndarray:
        """A square root of the noise covariance: Cholesky's, as simulators use, if there is one."""
        d = self.model.d_next
        covariance = self.model.noise_cov[:d, :d]
        try:
            factor: np.ndarray = np.linalg.cholesky(covariance)
        except np.linalg.LinAlgError:
            values, vectors = np.linalg.eigh(covariance)
            factor = vectors * np.sqrt(np.clip(values, 0, None))
        return factor


def one_of(states: np.ndarray) -> Callable[[Array], Array]:
    """Return a sampler of the rows of `states`, (m, d_x)."""
    return lambda key: jnp.asarray(states)[jax.random.randint(key, (), 0, len(states))]


class ModelEnv(gymnasium.Env[np.ndarray, Any]):
    """Estimated dynamics as a Gymnasium environment; finite actions are told by number."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(
        self,
        model: Any,
        reward: Any,
        actions: Any,
        *,
        starts: Any = None,
        horizon: int = 100,
        terminal: Callable[[Array], Array] | None = None,
    ) -> None:
        self.actions = make_actions(actions, model.action)
        first = np.atleast_2d(np.asarray(model.states if starts is None else starts, float))
        if first.size == 0 or first.shape[1] != len(model.state):
            raise InputError(
                f"first states of shape {first.shape} were given; rows of {len(model.state)} "
                f"are wanted ({', '.join(model.state)})"
            )
        if horizon < 1:
            raise InputError(f"the horizon is {horizon}; at least 1 is wanted")
        self.simulator = ModelSimulator(model, make_reward(reward, model), one_of(first), terminal)
        self.horizon = horizon
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (len(model.state),), float)
        self.action_space = self.actions.to_space()
        self._step = jax.jit(self.simulator.intervene)
        self._state: np.ndarray | None = None
        self._key: Any = None
        self._time = 0

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
            x_next, r = self._step(key, self._state, self.actions.from_space(action))
            ended = bool(self.simulator.ended(x_next))
        self._state = np.asarray(x_next)
        return self._state, float(r), ended, self._time >= self.horizon, {}

    def rollout(
        self,
        policy: Any,
        *,
        episodes: int = 64,
        horizon: int | None = None,
        seed: int = 0,
        keep: bool = False,
    ) -> Rollout:
        """Run `policy`, (n, d_x) states to (n, d_a) actions, in all episodes side by side."""
        horizon = self.horizon if horizon is None else horizon
        return roll_out(
            self.simulator, policy, episodes=episodes, horizon=horizon, seed=seed, keep=keep
        )
