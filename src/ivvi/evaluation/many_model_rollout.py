"""Episodes in many models at once: their noise, their returns.

The noise of (episode, step) is the same in every model and for every policy, so that
differences of returns are differences of the models and of the policies (`returns`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ivvi._io.arrays import Array
from ivvi._io.result import Compact
from ivvi.dynamics.end_payoffs import all_ends
from ivvi.dynamics.next_state_distribution import Categories, next_state
from ivvi.dynamics.range_clamping import FAR, beyond
from ivvi.dynamics.rollout import called_steps, run_episodes, take_step
from ivvi.dynamics.state_update import StateUpdate
from ivvi.evaluation.actors import Actor, Fixed, Planned
from ivvi.evaluation.model_draws import ModelDraws
from ivvi.evaluation.noise_shape import shaped
from ivvi.features.feature_map import FeatureMap
from ivvi.planning import Problem
from ivvi.rewards import Learned


@dataclass(frozen=True, repr=False)
class RolloutTask(Compact):
    """Everything that a compiled simulation depends on, except the weights."""

    phi: FeatureMap
    update: StateUpdate
    categories: Categories
    reward: Any
    horizon: int
    discount: float
    terminal: Callable[[Array], Array] | None = None
    end_amounts: tuple[float, ...] | Array = ()

    @classmethod
    def of(cls, problem: Problem) -> RolloutTask:
        """Return a problem's task, without the weights; a learned reward is the last output."""
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
        """Return next states (draws, n, d_x), rewards and chances of an end (draws, n)."""
        inside = jnp.clip(x, models.reach[:, :1], models.reach[:, 1:])
        y = jnp.einsum("bnf,byf->bny", self.phi(inside, a), models.W) + pushed
        mean = jnp.clip(self.update.mean(y, x, a), -FAR, FAR)
        noise = shaped(noise, x, models.shape)
        x_next = jnp.clip(next_state(mean, noise, models.law, self.categories), -FAR, FAR)
        chances = self._chances(y, x_next)
        if isinstance(self.reward, Learned):
            r = y[..., -1] - beyond(x, models.reach[:, None], models.fade[:, None])
        else:
            r = self.reward(x, a, x_next, h)
        if len(self.end_amounts):
            r = r + chances @ jnp.asarray(self.end_amounts)
        return x_next, r, chances.sum(axis=-1)

    def _chances(self, y: Array, x_next: Array) -> Array:
        """Return the chances of each kind of end, and of a terminal state, (draws, n, E)."""
        if self.terminal is None:
            return self.update.chances(y)
        chances = self.update.chances(y) if self.update.ends else None
        return all_ends(chances, self.terminal(x_next))


@dataclass(frozen=True, repr=False)
class Episodes(Compact):
    """First states (draws, n, d_x), and the numbers (draws, n) that fix the noise.

    Episodes with the same number in `which` (draws, n) have the same first state.
    """

    starts: np.ndarray
    numbers: np.ndarray
    seed: int = 0
    which: np.ndarray | None = None


def returns(
    task: RolloutTask, actor: Any, parameters: Any, models: ModelDraws, episodes: Episodes
) -> np.ndarray:
    """Return sum_h discount^h r_h of each episode in each model, (draws, n).

    `actor` is an `Actor`, or any function of states (m, d_x), which is called once per step.
    """
    with jax.enable_x64(True):
        starts, keys = jnp.asarray(episodes.starts), _keys(episodes)
        if not hasattr(actor, "begin") and not isinstance(actor, Planned):
            return _called(task, actor, models, starts, keys)
        if task.horizon == 1 and isinstance(actor, Fixed):
            a = _first_actions(actor, parameters, episodes)
            alive = jnp.ones(starts.shape[:2])
            return np.asarray(_compiled_step(task)(models, keys, 0, starts, a, alive)[1])
        return np.asarray(_compiled(task, actor)(models, parameters, starts, keys))


def paths(
    task: RolloutTask, actor: Any, parameters: Any, models: ModelDraws, episodes: Episodes
) -> tuple[np.ndarray, np.ndarray]:
    """Return states (H, draws n, d_x) and actions (H, draws n, d_a) of all steps."""
    with jax.enable_x64(True):
        starts, keys = jnp.asarray(episodes.starts), _keys(episodes)
        if hasattr(actor, "begin"):
            states_and_actions = _compiled_paths(task, actor)(models, parameters, starts, keys)
        else:
            steps = list(_steps_called(task, actor, models, starts, keys))
            states_and_actions = (
                np.stack([x for x, _, _ in steps]),
                np.stack([a for _, a, _ in steps]),
            )
        x, a = (
            np.asarray(part).reshape(task.horizon, -1, part.shape[-1])
            for part in states_and_actions
        )
        return x, a


def ended_by_step(
    task: RolloutTask,
    kinds: int,
    actor: Any,
    parameters: Any,
    models: ModelDraws,
    episodes: Episodes,
) -> np.ndarray:
    """Return the share of episodes that end at each step, by kind of end, (draws, kinds, H).

    The episodes are simulated once; only what an end of each kind would pay differs.
    """
    counted = replace(task, reward=_nothing, discount=1.0)
    with jax.enable_x64(True):
        starts, keys = jnp.asarray(episodes.starts), _keys(episodes)
        if hasattr(actor, "begin"):
            shares = _compiled_ends(counted, actor, kinds)(models, parameters, starts, keys)
            return np.moveaxis(np.asarray(shares), 2, 0)
        by_kind = []
        for of_kind in np.eye(kinds).tolist():
            paid = replace(counted, end_amounts=tuple(of_kind))
            steps = _steps_called(paid, actor, models, starts, keys)
            by_kind.append([share.mean(axis=-1) for _, _, share in steps])
        return np.moveaxis(np.array(by_kind), 2, 0)


def in_chunks(
    task: RolloutTask,
    actor: Any,
    parameters: Any,
    models: ModelDraws,
    episodes: Episodes,
    size: int,
    progress: Callable[[int], None] | None = None,
) -> np.ndarray:
    """Return `returns`, `size` models at a time; every chunk has the same episodes (size, n)."""
    chunks, count = [], len(models.W)
    for first in range(0, count, size):
        rows = np.minimum(np.arange(first, first + size), count - 1)
        numbers = (
            parameters[rows] if isinstance(actor, Planned) and parameters.ndim == 3 else parameters
        )
        chunk = models.rows(rows)
        chunks.append(returns(task, actor, numbers, chunk, episodes)[: count - first])
        if progress:
            progress(len(chunks[-1]))
    return np.concatenate(chunks)


def _first_actions(actor: Fixed, parameters: Any, episodes: Episodes) -> np.ndarray:
    """Return a policy's actions (draws, n, d_a) in first states: one decision for equal ones."""
    starts, which = episodes.starts, episodes.which
    if which is None:
        which = np.arange(starts[..., 0].size)
    _, first, place = np.unique(which, return_index=True, return_inverse=True)
    distinct = starts.reshape(-1, starts.shape[-1])[first]
    actions = np.asarray(_compiled_first(actor)(parameters, distinct))
    return actions[place.ravel()].reshape(*starts.shape[:2], -1)


@lru_cache(maxsize=32)
def _compiled_first(actor: Fixed) -> Callable[..., Array]:
    """Compile the actions (m, d_a) of a policy in first states (m, d_x)."""
    begin, decide = actor.decision.begin, actor.decision.decide
    return jax.jit(lambda numbers, x: decide(numbers, x, 0, begin(len(x)))[0])  # type: ignore[no-any-return]


@lru_cache(maxsize=32)
def _compiled(task: RolloutTask, actor: Any) -> Callable[..., Array]:
    if not isinstance(actor, Planned):
        return jax.jit(partial(_run, task, actor))  # type: ignore[no-any-return]

    def plan_for_one(model: Any, W: Array, starts: Array, keys: Array) -> Array:
        alone = model.rows(None)
        return plan_for_all(alone, W, starts[None], keys[None])[0]

    def plan_for_all(models: ModelDraws, W: Array, starts: Array, keys: Array) -> Array:
        rule, numbers = Fixed.of(actor.rule(W))
        return _run(task, rule, models, numbers, starts, keys)

    def simulate(models: ModelDraws, W: Array, starts: Array, keys: Array) -> Array:
        if W.ndim == 2:
            return plan_for_all(models, W, starts, keys)
        return jax.vmap(plan_for_one)(models, W, starts, keys)

    return jax.jit(simulate)  # type: ignore[no-any-return]


@lru_cache(maxsize=32)
def _compiled_ends(task: RolloutTask, actor: Any, kinds: int) -> Callable[..., Array]:
    """Compile the simulation of `ended_by_step`: shares of the steps, (kinds, H, draws)."""

    def of_kind(amounts: Array, *arguments: Any) -> Array:
        paid = replace(task, end_amounts=amounts)
        return _episodes(paid, actor, *arguments)[2][1].mean(axis=-1)

    def every_kind(*arguments: Any) -> Array:
        return jax.vmap(lambda amounts: of_kind(amounts, *arguments))(jnp.eye(kinds))

    return jax.jit(every_kind)  # type: ignore[no-any-return]


@lru_cache(maxsize=32)
def _compiled_paths(task: RolloutTask, actor: Any) -> Callable[..., Any]:
    """Compile the simulation of `paths`: states and actions by step, (H, draws, n, ..)."""
    return jax.jit(lambda *arguments: _episodes(task, actor, *arguments, keep=True)[2][0])  # type: ignore[no-any-return]


def _nothing(x: Array, a: Array, x_next: Array, h: Array) -> Array:
    return jnp.zeros(x.shape[:-1])


def _run(
    task: RolloutTask, actor: Actor, models: ModelDraws, parameters: Any, starts: Array, keys: Array
) -> Array:
    """Simulate whole episodes; return their returns, (draws, n)."""
    return _episodes(task, actor, models, parameters, starts, keys)[1]


def _episodes(
    task: RolloutTask,
    actor: Actor,
    models: ModelDraws,
    parameters: Any,
    starts: Array,
    keys: Array,
    *,
    keep: bool = False,
) -> Any:
    """Simulate whole episodes, and return what `run_episodes` does."""

    def act(x: Array, h: Array, memory: Any) -> Any:
        return actor.act(models, parameters, x, h, memory, _at(_at(keys, h), 1))

    def step(x: Array, a: Array, h: Array, memory: Any) -> Any:
        pushed = actor.pushed(models, parameters, x, memory)
        return task.step(models, x, a, _noise(_at(keys, h), x.shape), h, pushed)

    memory = actor.begin(models, parameters, starts.shape[1])
    settings: dict[str, Any] = {"discount": task.discount, "keep": keep}
    return run_episodes(act, step, starts, memory, task.horizon, **settings)


def _called(
    task: RolloutTask, policy: Any, models: ModelDraws, x: Array, keys: Array
) -> np.ndarray:
    """Return returns (draws, n) of a function of NumPy states, called once for each step."""
    paid = _steps_called(task, policy, models, x, keys)
    return np.asarray(sum(task.discount**h * r for h, (_, _, r) in enumerate(paid)))


def _steps_called(
    task: RolloutTask, policy: Any, models: ModelDraws, x: Array, keys: Array
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield states (draws, n, d_x), actions and rewards (draws, n) of each step."""
    step = partial(_compiled_step(task), models, keys)
    for before, a, r, _ in called_steps(policy, step, np.asarray(x), task.horizon):
        yield before, a, r


@lru_cache(maxsize=32)
def _compiled_step(task: RolloutTask) -> Callable[..., Any]:
    def step(models: ModelDraws, keys: Array, h: Array, x: Array, a: Array, alive: Array) -> Any:
        noise = _noise(_at(keys, h), x.shape)
        return take_step(x, alive, *task.step(models, x, a, noise, h))

    return jax.jit(step)  # type: ignore[no-any-return]


def _keys(episodes: Episodes) -> Array:
    """Return the key of each episode, (draws, n), which fixes its noise."""
    key = jax.random.key(episodes.seed)
    return jax.vmap(jax.vmap(partial(jax.random.fold_in, key)))(jnp.asarray(episodes.numbers))


def _at(keys: Array, h: Array) -> Array:
    return jax.vmap(jax.vmap(lambda key: jax.random.fold_in(key, h)))(keys)


def _noise(keys: Array, shape: tuple[int, ...]) -> Array:
    draw = lambda key: jax.random.normal(key, shape[-1:], jnp.float64)  # noqa: E731
    return jax.vmap(jax.vmap(draw))(keys)
