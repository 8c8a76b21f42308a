"""Actors in a stack of models: fixed policies, the behaviour policy, a plan for each model.

An actor acts in many drawn models with n episodes each, x (draws, n, d_x). The numbers of an actor
are arguments of the compiled simulation, so that actors of one kind share it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from ivvi._io.arrays import Array
from ivvi.dynamics.rollout import Decision
from ivvi.evaluation.model_draws import ModelDraws
from ivvi.planning import Planner
from ivvi.planning.behaviour_policy import BehaviourFeatures, BehaviourPolicy, BehaviourRows

Acting = tuple[Any, Any]
"""An actor (or a function of states) and its parameters."""


class Actor(Protocol):
    """Acts in every world of a stack."""

    def begin(self, models: ModelDraws, parameters: Any, count: int) -> Any:
        """Return the memory at the first step, for `count` episodes of each world."""
        ...

    def act(
        self, models: ModelDraws, parameters: Any, x: Array, h: Array, memory: Any, keys: Array
    ) -> tuple[Array, Any]:
        """Return actions (draws, n, d_a) for states (draws, n, d_x), and the new memory."""
        ...

    def pushed(self, models: ModelDraws, parameters: Any, x: Array, memory: Any) -> Array | float:
        """Return the direct effect of the instrument just acted on, (draws, n, d_y).

        Zero for actors that use no instrument: its effect is then a part of the noise.
        """
        return 0.0


@dataclass(frozen=True)
class Fixed(Actor):
    """A policy written for JAX, the same in every world: all states in one call.

    Its parameters are the numbers of the policy: policies of one shape share a compiled simulation.
    """

    decision: Decision

    @classmethod
    def of(cls, policy: Any) -> Acting:
        """Return the actor of a policy, or of a rule, and its numbers."""
        decision = Decision.of(policy)
        return cls(decision), decision.numbers

    def begin(self, models: ModelDraws, parameters: Any, count: int) -> Any:
        """Return the policy's memory at the first step of each episode of each world."""
        return self.decision.begin(len(models.W) * count)

    def act(
        self, models: ModelDraws, parameters: Any, x: Array, h: Array, memory: Any, keys: Array
    ) -> tuple[Array, Any]:
        """Return the policy's actions, and its new memory."""
        a, memory = self.decision.decide(parameters, x.reshape(-1, x.shape[-1]), h, memory)
        return a.reshape(*x.shape[:2], -1), memory


@dataclass(frozen=True)
class OneAction(Actor):
    """One action, its parameter, whatever the state."""

    def begin(self, models: ModelDraws, parameters: Any, count: int) -> Any:
        """Nothing is remembered."""
        return ()

    def act(
        self, models: ModelDraws, parameters: Array, x: Array, h: Array, memory: Any, keys: Array
    ) -> tuple[Array, Any]:
        """Return the action."""
        return jnp.broadcast_to(parameters, (*x.shape[:2], len(parameters))), memory


@dataclass(frozen=True)
class BehaviourActor(Actor):
    """The log's own policy without the confounder, with each world's own weights.

    Its parameters are `BehaviourRows`.
    """

    features: BehaviourFeatures

    def begin(self, models: ModelDraws, parameters: BehaviourRows, count: int) -> Any:
        """Remember the row whose instrument an episode has, where instruments are by episode."""
        return jnp.zeros((len(models.W), count), int)

    def act(
        self,
        models: ModelDraws,
        parameters: BehaviourRows,
        x: Array,
        h: Array,
        memory: Array,
        keys: Array,
    ) -> tuple[Array, Any]:
        """Draw rows of the log, and act in x as in those rows."""
        for_row, for_z, for_level = jnp.moveaxis(_each(jax.random.split, keys, 3), -1, 0)
        row = _each(jax.random.randint, for_row, (), 0, len(parameters.eta))
        if self.features.by_episode:
            drawn = _each(jax.random.randint, for_z, (), 0, len(parameters.eta))
            memory = jnp.where(h == 0, drawn, memory)
        else:
            memory = row
        u = _each(jax.random.uniform, for_level, (len(parameters.low),))
        return self._policy(models, parameters).draw(x, row, memory, u), memory

    def pushed(
        self, models: ModelDraws, parameters: BehaviourRows, x: Array, memory: Array
    ) -> Array | float:
        """Return the direct effect of the instrument that was drawn."""
        if self.features.psi is None or models.direct.shape[-1] == 0:
            return 0.0
        psi = self._policy(models, parameters).psi(x, memory)
        return jnp.einsum("bnp,byp->bny", psi, models.direct)

    def _policy(self, models: ModelDraws, parameters: BehaviourRows) -> BehaviourPolicy:
        """Return the behaviour policy of each model."""
        weights = models.action_weights, models.instrument_weights
        return BehaviourPolicy(self.features, *weights, *parameters)


@dataclass(frozen=True)
class Planned:
    """A plan made inside the simulation, for the weights that are its parameters.

    Weights (draws, d_y, d_phi) give each world its own plan; (d_y, d_phi) give all the same plan.
    Only planners that do their work when they act can be traced (`MPC`).
    """

    planner: Planner
    make: Callable[[Array], Any]
    """From weights (d_y, d_phi) to the problem."""

    def rule(self, W: Array) -> Any:
        """Return the rule for one set of weights."""
        return self.planner.solve(self.make(W))


def _each(draw: Callable[..., Array], keys: Array, *settings: Any) -> Array:
    """Call a function of one key for keys (draws, n)."""
    return jax.vmap(jax.vmap(lambda key: draw(key, *settings)))(keys)
