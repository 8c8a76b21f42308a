"""The policy that wrote the log, once it no longer sees the confounder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from ivvi.simulators.world import Array, World


@dataclass(frozen=True, eq=False)
class Behaviour:
    """a ~ behaviour(x, z, e') with an e' that is independent of what happens next.

    In the log the actions lean on the hidden e that also moves the next state, which
    flatters them; this is what the same habits earn without that help.
    """

    world: World
    seed: int = 0

    def begin(self, n: int) -> Any:
        """Return keys and histories of n episodes, and their instruments if those are fixed."""
        world = self.world
        key = jax.random.fold_in(jax.random.key(self.seed), 1)
        keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(n))
        start = jnp.zeros(world.d_z) if world.history is None else jnp.asarray(world.history)
        return keys, jnp.broadcast_to(start, (n, *start.shape)), jnp.zeros((n, world.d_z))

    def act(self, x: Array, h: Array, memory: Any) -> tuple[Array, Any]:
        """Draw an instrument and a confounder of its own, and act on them."""
        return jax.vmap(self._one, in_axes=(0, None, 0))(x, h, memory)  # type: ignore[no-any-return]

    def _one(self, x: Array, h: Array, memory: Any) -> tuple[Array, Any]:
        world, (key, history, fixed) = self.world, memory
        for_z, for_e, for_a = jax.random.split(jax.random.fold_in(key, h), 3)
        z = world.instrument(for_z, x, history)
        if world.scope == "episode":
            z = fixed = jnp.where(h == 0, z, fixed)
        a = world.behaviour(for_a, x, z, world.confounder(for_e) + world.lasting_part(key))
        return a, (key, world.remember(history, x, z), fixed)
