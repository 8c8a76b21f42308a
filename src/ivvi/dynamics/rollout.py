"""Many episodes side by side: the noise of (seed, episode, step) is the same for all policies.

Returns then differ because the policies differ, and not by chance (common random numbers). That
holds in a simulator and in an estimated model.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa

from ivvi._io.arrays import Array
from ivvi._io.memory import check_memory
from ivvi._io.result import Records, TableResult
from ivvi.errors import InputError, check_seed
from ivvi.logs import ArrowTable, Log, Roles


class Simulator(Protocol):
    """A world to act in: first states, steps, and ends of episodes."""

    @property
    def d_a(self) -> int:
        """Dimension of the action."""
        ...

    def initial(self, key: Array) -> Array:
        """Draw a first state, (d_x,)."""
        ...

    def intervene(self, key: Array, x: Array, a: Array, h: Array) -> tuple[Array, Array]:
        """Draw the next state, (d_x,), and return the reward of action a in state x at step h."""
        ...

    def ended(self, key: Array, x: Array, a: Array, x_next: Array) -> Array:
        """Return whether the episode ends once a has led from x to x'."""
        ...


@dataclass(frozen=True, slots=True, repr=False)
class Rollout(TableResult):
    """Episodes under a policy.

    Attributes
    ----------
    rewards
        (episodes, horizon); zero after an episode's end.
    states, actions
        (episodes, horizon + 1, d_x) and (episodes, horizon, d_a), None when not kept.
    """

    rewards: np.ndarray
    states: np.ndarray | None = None
    actions: np.ndarray | None = None

    @property
    def returns(self) -> np.ndarray:
        """Sum of rewards of each episode, (episodes,)."""
        total: np.ndarray = self.rewards.sum(axis=1)
        return total

    def records(self) -> Records:
        """Return the return of each episode."""
        return [
            {"episode": number, "return": value}
            for number, value in enumerate(self.returns.tolist())
        ]

    def summary(self) -> str:
        """Return the mean return of the episodes, and their spread."""
        (episodes, horizon), returns = self.rewards.shape, self.returns
        lowest, highest = returns.min(), returns.max()
        return (
            f"{episodes:,} episodes of {horizon:,} steps: mean return {returns.mean():.5g}, "
            f"standard deviation {returns.std():.3g}, from {lowest:.5g} to {highest:.5g}"
        )

    def to_log(self, state: Sequence[str], action: Sequence[str], label: str = "rollouts") -> Log:
        """Return the episodes as a log without instruments, to be written as Parquet or Minari."""
        following = tuple(f"next_{name}" for name in state)
        names = (tuple(state), tuple(action), (), following)
        roles = Roles(*names, reward="reward", episode="episode", step="step", weight=None)
        return Log(ArrowTable(self.to_arrow(state, action), label), roles)

    def to_arrow(self, state: Sequence[str], action: Sequence[str]) -> pa.Table:
        """Return a table: episode, step, states, actions, reward, next states."""
        if self.states is None or self.actions is None:
            raise InputError("the states of these episodes were not kept; roll out with keep=True")
        episodes, horizon = self.rewards.shape
        columns: dict[str, np.ndarray] = {
            "episode": np.repeat(np.arange(episodes), horizon),
            "step": np.tile(np.arange(horizon), episodes),
        }
        following = [f"next_{name}" for name in state]
        parts = (
            (state, self.states[:, :-1]),
            (action, self.actions),
            (["reward"], self.rewards[..., None]),
            (following, self.states[:, 1:]),
        )
        for names, values in parts:
            columns |= {name: values[..., i].ravel() for i, name in enumerate(names)}
        return pa.table(columns)


def roll_out(
    simulator: Any,
    policy: Any,
    *,
    episodes: int,
    horizon: int,
    seed: int = 0,
    keep: bool = False,
) -> Rollout:
    """Run `policy` in all episodes of a `Simulator` at once.

    A policy with `begin` and `act` for JAX runs in one compiled loop; any other function of
    states (n, d_x) is called once per step.
    """
    for name, value in (("episodes", episodes), ("horizon", horizon)):
        if value < 1:
            raise InputError(f"{name} is {value}; expected at least 1")
    check_memory(8.0 * episodes * (horizon + 4), f"{episodes:,} episodes of {horizon:,} steps")
    check_seed(seed)
    with jax.enable_x64(True):
        keys = jax.vmap(partial(jax.random.fold_in, jax.random.key(seed)))(jnp.arange(episodes))
        if hasattr(policy, "act") and hasattr(policy, "begin"):
            decision = Decision.of(policy)
            run = _compiled(simulator, decision, horizon, keep)
            x, a, rewards = run(keys, decision.numbers)
        else:
            x, a, rewards = _called(simulator, policy, keys, horizon, keep)
    if not keep:
        return Rollout(np.asarray(rewards))
    return Rollout(np.asarray(rewards), np.asarray(x), np.asarray(a))


@dataclass(frozen=True)
class Decision:
    """How a policy acts, split into the part that is compiled and the numbers passed to it.

    Decisions of one `shape` are equal, and so share compiled programs: a policy planned in another
    estimate of the same model is not compiled again. Feature maps, problems and rules are split in
    the same way: a program is compiled for a `shape`, `numbers` are its arguments, and
    `with_numbers` replaces them.
    """

    shape: Hashable
    begin: Callable[[int], Any] = field(compare=False)
    decide: Callable[..., Any] = field(compare=False)
    numbers: Any = field(compare=False)

    @classmethod
    def of(cls, policy: Any) -> Decision:
        """Return a policy or a rule, split; without a `shape` it has its own compiled program."""
        rule = getattr(policy, "rule", policy)
        if hasattr(rule, "shape"):
            return cls(rule.shape, rule.begin, rule.decide, rule.numbers)
        return cls(policy, policy.begin, lambda _, *arguments: policy.act(*arguments), ())


def run_episodes(
    act: Callable[..., Any],
    step: Callable[..., Any],
    starts: Array,
    memory: Any,
    horizon: int,
    *,
    discount: Any = 1.0,
    keep: bool = False,
) -> Any:
    """Run episodes side by side in one loop for `jax.jit`; `called_steps` is for other policies.

    Parameters
    ----------
    act
        (x, h, memory) to actions (..., d_a) and the new memory.
    step
        (x, a, h, memory) to next states (..., d_x), rewards (...) and whether the episode ends.
    starts, memory
        First states (..., d_x), and the memory before the first step.
    keep
        Whether states and actions are returned too.

    Returns
    -------
    The last states, the discounted returns (...), and by step, along a first axis, ((states,
    actions), rewards). An episode that has ended stands still and earns nothing.
    """

    def advance(carry: Any, h: Array) -> Any:
        x, alive, memory, total = carry
        a, memory = act(x, h, memory)
        x_next, r, alive = take_step(x, alive, *step(x, a, h, memory))
        return (x_next, alive, memory, total + discount**h * r), ((x, a) if keep else ((), ()), r)

    none = jnp.zeros(starts.shape[:-1])
    begun = starts, none + 1.0, memory, none
    (last, _, _, total), path = jax.lax.scan(advance, begun, jnp.arange(horizon))
    return last, total, path


def take_step(x: Array, alive: Array, x_next: Array, r: Array, ended: Array) -> Any:
    """Return next states, rewards and which episodes go on; ended ones stand still.

    `alive` and `ended` are (...): one or zero, or a probability where no end is drawn.
    """
    return jnp.where(alive[..., None] > 0, x_next, x), alive * r, alive * (1.0 - ended)


@lru_cache(maxsize=64)
def _compiled(simulator: Any, decision: Decision, horizon: int, keep: bool) -> Callable[..., Any]:
    """Compile whole episodes: (episodes,) keys and numbers to states, actions and rewards."""
    step = _stepper(simulator)

    def run(keys: Array, numbers: Any) -> Any:
        last, _, ((x, a), rewards) = run_episodes(
            lambda x, h, memory: decision.decide(numbers, x, h, memory),
            lambda x, a, h, memory: step(keys, h + 1, x, a),
            _starts(simulator, keys),
            decision.begin(len(keys)),
            horizon,
            keep=keep,
        )
        if keep:
            x = jnp.moveaxis(jnp.concatenate([x, last[None]]), 0, 1)
            a = jnp.moveaxis(a, 0, 1)
        return x, a, rewards.T

    return jax.jit(run)  # type: ignore[no-any-return]


def _called(simulator: Any, policy: Any, keys: Array, horizon: int, keep: bool) -> Any:
    """Call a function of NumPy states once for each step."""
    step, starts = _compiled_step(simulator), np.asarray(_starts(simulator, keys))
    rewards = np.empty((len(keys), horizon))
    states, actions = [starts], []
    path = called_steps(policy, partial(step, keys), starts, horizon, d_a=simulator.d_a)
    for h, (_, a, r, x) in enumerate(path):
        rewards[:, h] = r
        if keep:
            states.append(x)
            actions.append(a)
    if not keep:
        return (), (), rewards
    return np.stack(states, axis=1), np.stack(actions, axis=1), rewards


def called_steps(
    policy: Callable[..., Any],
    step: Callable[..., Any],
    starts: np.ndarray,
    horizon: int,
    *,
    d_a: int | None = None,
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Run episodes side by side under a function of NumPy states, called once for each step.

    Parameters
    ----------
    policy
        States (n, d_x), and the step if it needs it, to actions (n, d_a).
    step
        (h, x, a, alive) to next states, rewards and who is left (`take_step`).
    starts
        First states (..., d_x).

    Yields
    ------
    States (..., d_x), actions (..., d_a), rewards (...) and next states of each step.
    """
    x, alive = starts, np.ones(starts.shape[:-1])
    for h in range(horizon):
        a = called_actions(policy, x.reshape(-1, x.shape[-1]), h, d_a).reshape(*x.shape[:-1], -1)
        following, r, alive = map(np.asarray, step(h, x, a, alive))
        yield x, a, r, following
        x = following


@lru_cache(maxsize=64)
def _compiled_step(simulator: Any) -> Callable[..., Any]:
    step = _stepper(simulator)
    return jax.jit(  # type: ignore[no-any-return]
        lambda keys, h, x, a, alive: take_step(x, alive, *step(keys, h + 1, x, a))
    )


def _stepper(simulator: Any) -> Callable[..., Any]:
    """Return (keys, time, x, a) -> (x', r, whether x' ends the episode)."""

    def step(keys: Array, time: Array, x: Array, a: Array) -> Any:
        now = jax.vmap(lambda key: jax.random.fold_in(key, time))(keys)
        x_next, r = jax.vmap(lambda key, x, a: simulator.intervene(key, x, a, time - 1))(now, x, a)
        return x_next, r, jax.vmap(simulator.ended)(now, x, a, x_next)

    return step


def _starts(simulator: Any, keys: Array) -> Array:
    return jax.vmap(lambda key: simulator.initial(jax.random.fold_in(key, 0)))(keys)


def called_actions(
    policy: Callable[..., Any], states: np.ndarray, step: int, d_a: int | None = None
) -> np.ndarray:
    """Return the actions (n, d_a) of a user's function of states (n, d_x).

    The function gets the step if it has a parameter `step` without a default.
    """
    try:
        actions = policy(states, step=step) if _needs_step(policy) else policy(states)
        rows = np.asarray(actions, dtype=np.float64)
    except InputError:
        raise
    except (TypeError, ValueError) as error:
        raise InputError(
            f"the policy failed for {len(states)} states: {error}; expected a function from rows "
            "of states (n, d_x) to rows of actions (n, d_a)"
        ) from error
    if rows.ndim != 2 or len(rows) != len(states):
        raise _wrong_shape(rows, f"expected one row for each of {len(states)} states")
    if d_a is not None and rows.shape[1] != d_a:
        raise _wrong_shape(rows, f"expected {(len(states), d_a)}")
    return rows


def _wrong_shape(actions: np.ndarray, expected: str) -> InputError:
    return InputError(f"the policy returned actions of shape {actions.shape}; {expected}")


def _needs_step(policy: Callable[..., Any]) -> bool:
    try:
        asked = inspect.signature(policy).parameters.get("step")
    except (TypeError, ValueError):
        return False
    return asked is not None and asked.default is inspect.Parameter.empty
