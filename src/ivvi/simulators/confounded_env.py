"""A world to observe and to act in: confounded logs, and a Gymnasium environment."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ivvi._io.files import atomic_file
from ivvi._io.memory import check_disk, check_memory
from ivvi.dynamics.gym_env import SimulatedEnv
from ivvi.errors import InputError, check_seed
from ivvi.logs import SOURCE_KEY, ArrowTable, Log, Schema
from ivvi.rewards import Function, Reward, is_reward
from ivvi.simulators.world import World

ROWS_AT_ONCE = 1 << 18
"""Rows simulated in one call, which limits the memory of a long simulation."""
SMALLEST_SHARE = 0.3
"""Parquet's compressed share of a log's bytes where actions and instruments have few values."""


class ConfoundedEnv(SimulatedEnv):
    """One world in two modes.

    *Observe*: `collect` lets the confounded behaviour policy write a log, from which the
    confounder is absent. *Intervene*: `reset` and `step` (Gymnasium), or `rollout` for
    thousands of episodes at once, run your own policy, which gets no help from the confounder. The
    same seed gives the same numbers, bit for bit.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world, world.d_x, world.actions, world.horizon)
        self.world = world
        self._observe = lru_cache(maxsize=8)(self._compile_observe)

    @property
    def _name(self) -> str:
        return self.world.name

    @property
    def reward(self) -> Reward:
        """The reward for planners: a function of batches of states and actions."""
        reward = self.world.reward
        if is_reward(reward):
            return reward
        return Function.of(jnp.vectorize(reward, signature="(x),(a)->()"))

    @property
    def source(self) -> str:
        """The source that the logs name."""
        label = f" ({self.world.label})" if self.world.label else ""
        return f"simulated {self.world.name}{label}"

    def collect(
        self, episodes: int | None = None, horizon: int | None = None, seed: int = 0
    ) -> Log:
        """Return a log of the behaviour policy, in memory.

        Columns: episode, step, x0.., a0.., z0.., reward, next_x0... With the same seed, a log of
        fewer episodes is the beginning of a log of more.
        """
        schema = Schema("x*", "a*", "z*", "next_x*")
        check_memory(*self._extent(episodes, horizon))
        table = pa.Table.from_batches(self._blocks(episodes, horizon, seed))
        return Log(ArrowTable(table, self.source), schema.resolve(table.column_names))

    def write_log(
        self,
        path: str | os.PathLike[str],
        episodes: int | None = None,
        horizon: int | None = None,
        seed: int = 0,
        *,
        force: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Write a log to a Parquet file in bounded memory; return the number of rows."""
        rows = 0
        with atomic_file(path, force=force) as temporary:
            size, label = self._extent(episodes, horizon)
            check_disk(SMALLEST_SHARE * size, temporary, label)
            writer: pq.ParquetWriter | None = None
            for block in self._blocks(episodes, horizon, seed):
                writer = writer or pq.ParquetWriter(temporary, block.schema)
                writer.write_batch(block, row_group_size=ROWS_AT_ONCE // 2)
                rows += block.num_rows
                if progress:
                    progress(block.num_rows)
            if writer is not None:
                writer.close()
        return rows

    def _lengths(self, episodes: int | None, horizon: int | None) -> tuple[int, int]:
        return (
            _positive("episodes", self.world.episodes if episodes is None else episodes),
            _positive("horizon", self.world.horizon if horizon is None else horizon),
        )

    def _extent(self, episodes: int | None, horizon: int | None) -> tuple[float, str]:
        """Return the bytes of a log, and its name."""
        count, steps = self._lengths(episodes, horizon)
        columns = 3 + 2 * self.world.d_x + self.world.d_a + self.world.d_z
        return 8.0 * count * steps * columns, f"a log of {count:,} episodes of {steps:,} steps"

    def _blocks(
        self, episodes: int | None, horizon: int | None, seed: int
    ) -> Iterator[pa.RecordBatch]:
        check_memory(*self._extent(1, horizon))
        episodes, horizon = self._lengths(episodes, horizon)
        check_seed(seed)
        at_once = max(1, ROWS_AT_ONCE // horizon)
        last = np.full(self.world.d_x, np.nan)
        for first in range(0, episodes, at_once):
            numbers = np.arange(first, min(first + at_once, episodes))
            with jax.enable_x64(True):
                logged = self._observe(horizon)(jax.random.key(seed), jnp.asarray(numbers), last)
                arrays = [np.asarray(part) for part in logged]
            last = arrays[-1][-1, -1]
            yield self._block(numbers, horizon, arrays)

    def _block(self, numbers: np.ndarray, horizon: int, logged: list[np.ndarray]) -> pa.RecordBatch:
        """Return the rows of the episodes `numbers`, from arrays (episodes, horizon, d)."""
        x, a, z, r, x_next = logged
        columns: dict[str, np.ndarray] = {
            "episode": np.repeat(numbers, horizon),
            "step": np.tile(np.arange(horizon), len(numbers)),
        }
        for name, values in (("x", x), ("a", a), ("z", z)):
            columns |= _columns(name, values)
        columns |= {"reward": r.ravel(), **_columns("next_x", x_next)}
        return pa.RecordBatch.from_pydict(columns, metadata={SOURCE_KEY: self.source})

    def _compile_observe(self, horizon: int) -> Callable[[Any, Any, Any], tuple[Any, ...]]:
        """Compile (key, numbers of episodes, last state before them) -> their rows."""
        episode = partial(self.world.observe, horizon=horizon)

        def at_once(key: Any, numbers: Any, last: Any) -> Any:
            return jax.vmap(lambda i: episode(jax.random.fold_in(key, i)))(numbers)

        def in_turn(key: Any, numbers: Any, last: Any) -> Any:
            def following(last: Any, i: Any) -> tuple[Any, Any]:
                logged = episode(jax.random.fold_in(key, i), last=last)
                return logged[-1][-1], logged

            return jax.lax.scan(following, last, numbers)[1]

        return jax.jit(at_once if self.world.resume is None else in_turn)  # type: ignore[no-any-return]


def _columns(name: str, values: np.ndarray) -> dict[str, np.ndarray]:
    """Return (episodes, horizon, d) values as named flat columns, one per coordinate."""
    return {f"{name}{i}": values[..., i].ravel() for i in range(values.shape[-1])}


def _positive(name: str, value: int) -> int:
    if value < 1:
        raise InputError(f"{name} is {value}; expected at least 1")
    return int(value)
