"""Returns of a policy in many models at once, all under the same noise.

The noise of (episode, step) is the same in every model and for every policy, so that
differences of returns are differences of the models and of the policies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ivvi.dynamics.ends import with_told
from ivvi.dynamics.extrapolation import beyond
from ivvi.dynamics.next_state import Categories, next_state
from ivvi.dynamics.rollout import run_episodes
from ivvi.dynamics.state_update import StateUpdate
from ivvi.errors import InputError
from ivvi.evaluation.actors import Actor, Fixed, Planned
from ivvi.evaluation.model_draws import ModelDraws
from ivvi.features.blocks import Array
from ivvi.features.feature_map import FeatureMap
from ivvi.planning import Problem
from ivvi.rewards import Learned

FAR = 1e12
"""States are held within this: a model that explodes is very bad, not undefined."""


@dataclass(frozen=True)
class Task:
    """What is simulated, but for the weights: everything that a compiled loop depends on."""

    phi: FeatureMap
    update: StateUpdate
    categories: Categories
    reward: Any
    horizon: int
    discount: float
    terminal: Callable[[Array], Array] | None = None
    end_amounts: tuple[float, ...] = ()

    @classmethod
    def of(cls, problem: Problem) -> Task:
        """Take the weights out of a problem; a learned reward is the last output."""
        reward = problem.reward
        return cls(
            problem.model.phi,
            problem.model.update,
            problem.model.categories,
            Learned() if isinstance(reward, Learned) else reward,
            problem.horizon,
            problem.discount,
            problem.terminal,
            problem.end_amounts,
        )

    def step(
        self, models: ModelDraws, x: Array, a: Array, noise: Array, h: Array, pushed: Any = 0.0
    ) -> tuple[Array, Array, Array]:
        """Return the next states (B, n, d_x), the rewards and the chances of an end (B, n)."""
        inside = jnp.clip(x, models.reach[:, :1], models.reach[:, 1:])
        y = jnp.einsum("bnf,byf->bny", self.phi(inside, a), models.W) + pushed
        mean = jnp.clip(self.update.mean(y, x, a), -FAR, FAR)
        x_next = jnp.clip(next_state(mean, noise, models.law, self.categories), -FAR, FAR)
        chances = self._chances(y, x_next)
        if isinstance(self.reward, Learned):
            r = y[..., -1] - beyond(x, models.reach[:, None], models.fade[:, None])
        else:
            r = self.reward(x, a, x_next, h)
        if self.end_amounts:
            r = r + chances @ jnp.asarray(self.end_amounts)
        return x_next, r, chances.sum(axis=-1)

    def _chances(self, y: Array, x_next: Array) -> Array:
        """Return the chances of each kind of end, and of a state that ends, (B, n, E)."""
        if self.terminal is None:
            return self.update.chances(y)
        chances = self.update.chances(y) if self.update.ends else None
        return with_told(chances, self.terminal(x_next))


@dataclass(frozen=True)
class Episodes:
    """Where episodes start, (B, n, d_x), and the number of each, (B, n), which fixes its noise."""

    starts: np.ndarray
    numbers: np.ndarray
    seed: int = 0


def returns(
    task: Task, actor: Any, given: Any, models: ModelDraws, episodes: Episodes
) -> np.ndarray:
    """Return sum_h discount^h r_h of each episode in each model, (B, n).

    `actor` is an `Actor`, or any function of states (m, d_x), which is called once per step.
    """
    with jax.enable_x64(True):
        starts, keys = jnp.asarray(episodes.starts), _keys(episodes)
        if not hasattr(actor, "begin") and not isinstance(actor, Planned):
            return _called(task, actor, models, starts, keys)
        return np.asarray(_compiled(task, actor)(models, given, starts, keys))


def paid_by_step(
    task: Task, actor: Any, given: Any, models: ModelDraws, episodes: Episodes
) -> np.ndarray:
    """Return what a task pays in each step, (B, H, n), undiscounted."""
    with jax.enable_x64(True):
        starts, keys = jnp.asarray(episodes.starts), _keys(episodes)
        if not hasattr(actor, "begin"):
            return np.stack(list(_steps_called(task, actor, models, starts, keys)), axis=1)
        paid = _compiled_by_step(task, actor)(models, given, starts, keys)
        return np.moveaxis(np.asarray(paid), 0, 1)


def in_chunks(
    task: Task,
    actor: Any,
    given: Any,
    models: ModelDraws,
    episodes: Episodes,
    size: int,
    progress: Callable[[int], None] | None = None,
) -> np.ndarray:
    """Do the same, `size` models at a time; episodes (size, n) are those of every chunk."""
    chunks, count = [], len(models.W)
    for first in range(0, count, size):
        rows = np.minimum(np.arange(first, first + size), count - 1)
        own = given[rows] if isinstance(actor, Planned) and given.ndim == 3 else given
        some = models.rows(rows)
        chunks.append(returns(task, actor, own, some, episodes)[: count - first])
        if progress:
            progress(len(chunks[-1]))
    return np.concatenate(chunks)


@lru_cache(maxsize=32)
def _compiled(task: Task, actor: Any) -> Callable[..., Array]:
    if not isinstance(actor, Planned):
        return jax.jit(partial(_run, task, actor))  # type: ignore[no-any-return]

    def one(world: Any, W: Array, starts: Array, keys: Array) -> Array:
        alone = world.rows(None)
        return alike(alone, W, starts[None], keys[None])[0]

    def alike(models: ModelDraws, W: Array, starts: Array, keys: Array) -> Array:
        rule, numbers = Fixed.of(actor.rule(W))
        return _run(task, rule, models, numbers, starts, keys)

    def all_of(models: ModelDraws, W: Array, starts: Array, keys: Array) -> Array:
        if W.ndim == 2:
            return alike(models, W, starts, keys)
        return jax.vmap(one)(models, W, starts, keys)

    return jax.jit(all_of)  # type: ignore[no-any-return]


@lru_cache(maxsize=32)
def _compiled_by_step(task: Task, actor: Any) -> Callable[..., Array]:
    return jax.jit(lambda *given: _episodes(task, actor, *given)[2][1])  # type: ignore[no-any-return]


def _run(
    task: Task, actor: Actor, models: ModelDraws, given: Any, starts: Array, keys: Array
) -> Array:
    """Whole episodes: returns (B, n)."""
    return _episodes(task, actor, models, given, starts, keys)[1]


def _episodes(
    task: Task, actor: Actor, models: ModelDraws, given: Any, starts: Array, keys: Array
) -> Any:
    """Whole episodes, as `run_episodes` returns them."""

    def act(x: Array, h: Array, memory: Any) -> Any:
        return actor.act(models, given, x, h, memory, _at(_at(keys, h), 1))

    def step(x: Array, a: Array, h: Array, memory: Any) -> Any:
        pushed = actor.pushed(models, given, x, memory)
        return task.step(models, x, a, _noise(_at(keys, h), x.shape), h, pushed)

    memory = actor.begin(models, given, starts.shape[1])
    return run_episodes(act, step, starts, memory, task.horizon, discount=task.discount)


def _called(task: Task, policy: Any, models: ModelDraws, x: Array, keys: Array) -> np.ndarray:
    """Call a function of NumPy states once for each step; returns (B, n)."""
    paid = _steps_called(task, policy, models, x, keys)
    return np.asarray(sum(task.discount**h * r for h, r in enumerate(paid)))


def _steps_called(
    task: Task, policy: Any, models: ModelDraws, x: Array, keys: Array
) -> Iterator[np.ndarray]:
    """Yield what each step pays, (B, n)."""
    step, alive = _compiled_step(task), jnp.ones(x.shape[:2])
    for h in range(task.horizon):
        states = np.asarray(x).reshape(-1, x.shape[-1])
        a = np.asarray(policy(states), dtype=np.float64)
        if a.ndim != 2 or len(a) != len(states):
            raise InputError(
                f"the policy returned actions of shape {a.shape} for {len(states)} states; "
                "expected one row for each"
            )
        x, r, alive = step(models, x, a.reshape(*x.shape[:2], -1), keys, h, alive)
        yield np.asarray(r)


@lru_cache(maxsize=32)
def _compiled_step(task: Task) -> Callable[..., Any]:
    def step(models: ModelDraws, x: Array, a: Array, keys: Array, h: Array, alive: Array) -> Any:
        x_next, r, ended = task.step(models, x, a, _noise(_at(keys, h), x.shape), h)
        x_next = jnp.where(alive[..., None] > 0, x_next, x)
        return x_next, r * alive, alive * (1.0 - ended)

    return jax.jit(step)  # type: ignore[no-any-return]


def _keys(episodes: Episodes) -> Array:
    """Return the key of each episode, (B, n), which fixes its noise."""
    key = jax.random.key(episodes.seed)
    return jax.vmap(jax.vmap(partial(jax.random.fold_in, key)))(jnp.asarray(episodes.numbers))


def _at(keys: Array, h: Array) -> Array:
    return jax.vmap(jax.vmap(lambda key: jax.random.fold_in(key, h)))(keys)


def _noise(keys: Array, shape: tuple[int, ...]) -> Array:
    draw = lambda key: jax.random.normal(key, shape[-1:], jnp.float64)  # noqa: E731
    return jax.vmap(jax.vmap(draw))(keys)
