"""A simulator to act in: step by step through Gymnasium, or in many episodes side by side."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from ivvi.dynamics.rollout import Rollout, Simulator, roll_out
from ivvi.errors import InputError


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
