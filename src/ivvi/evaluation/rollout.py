"""Episodes in many models at once: their starts, their noise, their returns.

The noise of (episode, step) is the same in every model and for every policy, so that
differences of returns are differences of the models and of the policies (`returns`).

The value of the estimate is a mean over many episodes, that of a draw adds to it the
difference that the draw makes in a few of them, under the same noise (`RolloutDesign`):

    V_b = sum_i w_bi R_i / sum_i w_bi  +  mean_j (R_bj - R_j).

The weights w_b count first states again, as their episodes in the bootstrap, so that the
spread of V_b holds the errors of sampled first states and of the simulation too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ivvi.dynamics.encoding import state_numbers
from ivvi.dynamics.ends import all_ends
from ivvi.dynamics.extrapolation import beyond
from ivvi.dynamics.noise_law import Categories, next_state
from ivvi.dynamics.rollout import run_episodes
from ivvi.dynamics.state_update import StateUpdate
from ivvi.errors import InputError
from ivvi.evaluation.actors import Actor, Fixed, Planned
from ivvi.evaluation.model_draws import ModelDraws, student_variance
from ivvi.features.blocks import Array
from ivvi.features.feature_map import FeatureMap
from ivvi.planning import Problem
from ivvi.rewards import Learned

FAR = 1e12
"""States are held within this: a model that explodes is very bad, not undefined."""
CHUNK = 100
"""Models that are simulated at once."""
STEPS, FEW, SOME, MANY, MANY_STEPS = 400, 2, 16, 100, 6000
"""Steps simulated in each drawn world, in at least FEW episodes, SOME if starts differ, or MANY
(and MANY_STEPS) where episodes end or levels are drawn.

A world's noise is the estimate's: eight episodes of 50 steps add 1 to 4% to the variance where
returns are smooth in W. Where few episodes decide (a death, a level), what a draw changes in 27
of them made intervals of the same value a third or thrice as long from log to log."""
POINT_EPISODES, POINT_STEPS, GROUPS = 400, 100_000, 200
"""Episodes of the estimate itself, at least, and steps; groups that they are weighted in."""
FEW_STARTS = 10
KEPT_STEPS, FEW_KEPT, MOST_KEPT = 20_000, 24, 96
"""Steps whose states and actions are looked at, and in how many episodes."""


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
    end_amounts: tuple[float, ...] | Array = ()

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
        if len(self.end_amounts):
            r = r + chances @ jnp.asarray(self.end_amounts)
        return x_next, r, chances.sum(axis=-1)

    def _chances(self, y: Array, x_next: Array) -> Array:
        """Return the chances of each kind of end, and of a state that ends, (B, n, E)."""
        if self.terminal is None:
            return self.update.chances(y)
        chances = self.update.chances(y) if self.update.ends else None
        return all_ends(chances, self.terminal(x_next))


@dataclass(frozen=True)
class Episodes:
    """Where episodes start, (B, n, d_x), and the number of each, (B, n), which fixes its noise."""

    starts: np.ndarray
    numbers: np.ndarray
    seed: int = 0


def returns(
    task: Task, actor: Any, parameters: Any, models: ModelDraws, episodes: Episodes
) -> np.ndarray:
    """Return sum_h discount^h r_h of each episode in each model, (B, n).

    `actor` is an `Actor`, or any function of states (m, d_x), which is called once per step.
    """
    with jax.enable_x64(True):
        starts, keys = jnp.asarray(episodes.starts), _keys(episodes)
        if not hasattr(actor, "begin") and not isinstance(actor, Planned):
            return _called(task, actor, models, starts, keys)
        return np.asarray(_compiled(task, actor)(models, parameters, starts, keys))


def paths(
    task: Task, actor: Any, parameters: Any, models: ModelDraws, episodes: Episodes
) -> tuple[np.ndarray, np.ndarray]:
    """Return states (H, B n, d_x) and actions (H, B n, d_a) of each step of the episodes."""
    with jax.enable_x64(True):
        starts, keys = jnp.asarray(episodes.starts), _keys(episodes)
        if hasattr(actor, "begin"):
            both = _compiled_paths(task, actor)(models, parameters, starts, keys)
        else:
            steps = list(_steps_called(task, actor, models, starts, keys))
            both = np.stack([x for x, _, _ in steps]), np.stack([a for _, a, _ in steps])
        x, a = (np.asarray(part).reshape(task.horizon, -1, part.shape[-1]) for part in both)
        return x, a


def ended_by_step(
    task: Task, kinds: int, actor: Any, parameters: Any, models: ModelDraws, episodes: Episodes
) -> np.ndarray:
    """Return the share of episodes that each step ends in each of so many ways, (B, kinds, H).

    The episodes are simulated once: what an end of some kind would pay is all that differs.
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
    task: Task,
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
        own = (
            parameters[rows] if isinstance(actor, Planned) and parameters.ndim == 3 else parameters
        )
        some = models.rows(rows)
        chunks.append(returns(task, actor, own, some, episodes)[: count - first])
        if progress:
            progress(len(chunks[-1]))
    return np.concatenate(chunks)


@dataclass(frozen=True, eq=False)
class RolloutDesign:
    """Episodes of a simulation.

    Attributes
    ----------
    starts
        First states, (s, d_x).
    sampled
        Whether they are a sample of the log's, and not the states asked for.
    size, count
        Models in a chunk and episodes of each.
    chunks
        Chunks of episodes for the value of the estimate itself.
    seed
        Of the noise.
    """

    starts: np.ndarray
    sampled: bool
    size: int
    count: int
    chunks: int
    seed: int

    @classmethod
    def of(cls, problem: Problem, starts: Any, draws: int, seed: int) -> RolloutDesign:
        """Take the log's first states, in an order at random, or those given."""
        model = problem.model
        first = np.atleast_2d(state_numbers(model.starts if starts is None else starts, model))
        if first.size == 0 or first.ndim != 2 or first.shape[1] != len(model.state):
            raise InputError(
                f"first states of shape {first.shape} were found; expected rows of "
                f"{len(model.state)} ({', '.join(model.state)}): pass starts (--start)"
            )
        least = FEW if (first == first[0]).all() else SOME
        if problem.terminal is not None or model.categories:
            least = max(MANY, MANY_STEPS // problem.horizon)
        count = max(least, -(-STEPS // problem.horizon))
        size = min(CHUNK, draws)
        needed = max(POINT_EPISODES, len(first), POINT_STEPS // problem.horizon)
        return cls(first, starts is None, size, count, -(-needed // (size * count)), seed)

    @property
    def words(self) -> str:
        """What the values start from."""
        if len(self.starts) == 1:
            return "the log's first state" if self.sampled else "a given state"
        return f"{len(self.starts):,} first states {'of the log' if self.sampled else 'given'}"

    def episodes(self) -> Iterator[Episodes]:
        """Yield the chunks of episodes for the estimate itself, each with its own noise."""
        for chunk in range(self.chunks):
            numbers = np.arange(self.size * self.count) + chunk * self.size * self.count
            yield self._numbered(numbers.reshape(self.size, self.count))

    @property
    def few(self) -> Episodes:
        """The episodes of every drawn world: the first ones."""
        return self._numbered(np.broadcast_to(np.arange(self.count), (self.size, self.count)))

    def alone(self, horizon: int) -> Episodes:
        """Return the first episodes of one world, fewer where they are long."""
        count = int(np.clip(KEPT_STEPS // horizon, FEW_KEPT, MOST_KEPT))
        return self._numbered(np.arange(count)[None])

    def _numbered(self, numbers: np.ndarray) -> Episodes:
        order = np.random.default_rng(self.seed).permutation(len(self.starts))
        return Episodes(self.starts[order[numbers % len(order)]], numbers, self.seed)

    def shares(
        self,
        draws: int,
        weights: np.ndarray | None,
        rng: np.random.Generator,
        clusters: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return the weight of each group of episodes in each draw, (B, groups).

        Groups are first states, with the weights of their episodes in a bootstrap; where there
        are few of them, or they were given, just episodes. First states of one of the `clusters`
        (s,), if given, count together.
        """
        if not self.sampled or len(self.starts) < FEW_STARTS:
            return rng.exponential(size=(draws, GROUPS))
        if weights is None or weights.shape[1] < len(self.starts):
            if clusters is None or len(clusters) != len(self.starts):
                clusters = np.arange(len(self.starts))
            names, place = np.unique(clusters, return_inverse=True)
            weights = _counted(draws, len(names), rng)[:, place]
        order = np.random.default_rng(self.seed).permutation(len(self.starts))
        return weights[:, order]

    def combine(
        self, of_point: np.ndarray, of_draws: np.ndarray, shares: np.ndarray
    ) -> tuple[float, np.ndarray]:
        """Return the value of the estimate and of the draws from returns (N,) and (B, n).

        A mean return lies between the least and the largest return of an episode, and so does
        each draw: rewards paid at ends alone give no value beyond them.
        """
        group = np.arange(len(of_point)) % shares.shape[1]
        sums = np.bincount(group, of_point, shares.shape[1])
        counts = np.bincount(group, minlength=shares.shape[1])
        moved = (of_draws - of_point[: self.count]).mean(axis=1)
        again = shares @ sums / np.maximum(shares @ counts, 1e-300)
        low = np.minimum(of_draws.min(axis=1), of_point.min())
        high = np.maximum(of_draws.max(axis=1), of_point.max())
        return float(of_point.mean()), np.clip(again + moved, low, high)


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
def _compiled_ends(task: Task, actor: Any, kinds: int) -> Callable[..., Array]:
    """Compile what `ended_by_step` simulates: shares of the steps, (kinds, H, B)."""

    def of_kind(amounts: Array, *arguments: Any) -> Array:
        paid = replace(task, end_amounts=amounts)
        return _episodes(paid, actor, *arguments)[2][1].mean(axis=-1)

    def every_kind(*arguments: Any) -> Array:
        return jax.vmap(lambda amounts: of_kind(amounts, *arguments))(jnp.eye(kinds))

    return jax.jit(every_kind)  # type: ignore[no-any-return]


@lru_cache(maxsize=32)
def _compiled_paths(task: Task, actor: Any) -> Callable[..., Any]:
    """Compile what `paths` simulates: states and actions by step, (H, B, n, ..)."""
    return jax.jit(lambda *given: _episodes(task, actor, *given, keep=True)[2][0])  # type: ignore[no-any-return]


def _nothing(x: Array, a: Array, x_next: Array, h: Array) -> Array:
    return jnp.zeros(x.shape[:-1])


def _run(
    task: Task, actor: Actor, models: ModelDraws, parameters: Any, starts: Array, keys: Array
) -> Array:
    """Whole episodes: returns (B, n)."""
    return _episodes(task, actor, models, parameters, starts, keys)[1]


def _episodes(
    task: Task,
    actor: Actor,
    models: ModelDraws,
    parameters: Any,
    starts: Array,
    keys: Array,
    *,
    keep: bool = False,
) -> Any:
    """Whole episodes, as `run_episodes` returns them."""

    def act(x: Array, h: Array, memory: Any) -> Any:
        return actor.act(models, parameters, x, h, memory, _at(_at(keys, h), 1))

    def step(x: Array, a: Array, h: Array, memory: Any) -> Any:
        pushed = actor.pushed(models, parameters, x, memory)
        return task.step(models, x, a, _noise(_at(keys, h), x.shape), h, pushed)

    memory = actor.begin(models, parameters, starts.shape[1])
    settings: dict[str, Any] = {"discount": task.discount, "keep": keep}
    return run_episodes(act, step, starts, memory, task.horizon, **settings)


def _called(task: Task, policy: Any, models: ModelDraws, x: Array, keys: Array) -> np.ndarray:
    """Call a function of NumPy states once for each step; returns (B, n)."""
    paid = _steps_called(task, policy, models, x, keys)
    return np.asarray(sum(task.discount**h * r for h, (_, _, r) in enumerate(paid)))


def _steps_called(
    task: Task, policy: Any, models: ModelDraws, x: Array, keys: Array
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield states (B, n, d_x) and actions of each step, and what it pays, (B, n)."""
    step, alive = _compiled_step(task), jnp.ones(x.shape[:2])
    for h in range(task.horizon):
        states = np.asarray(x).reshape(-1, x.shape[-1])
        a = np.asarray(policy(states), dtype=np.float64)
        if a.ndim != 2 or len(a) != len(states):
            raise InputError(
                f"the policy returned actions of shape {a.shape} for {len(states)} states; "
                "expected one row for each"
            )
        before, a = np.asarray(x), a.reshape(*x.shape[:2], -1)
        x, r, alive = step(models, x, a, keys, h, alive)
        yield before, a, np.asarray(r)


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


def _counted(draws: int, groups: int, rng: np.random.Generator) -> np.ndarray:
    """Return weights of groups, (draws, groups): 1 on average, with Student's variance."""
    variance = student_variance(groups)
    weights: np.ndarray = rng.gamma(1 / variance, variance, size=(draws, groups))
    return weights
