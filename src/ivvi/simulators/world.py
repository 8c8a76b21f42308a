"""A confounded decision process, defined by a few functions and distributions.

    z ~ instrument(x, history)      e ~ confounder        (nobody records e)
    a ~ behaviour(x, z, e)          x' = transition(x, a) + e

A confounder may also last a whole episode, and an instrument may be invalid, with a direct effect
on x'. Both are there to test methods that claim to handle them.

Functions take and return JAX arrays of one step of one episode; those that draw take a JAX random
key first. Everything else (batches, seeds, logs, Gymnasium) is done for you. `Behaviour` is the
policy that wrote the log, once it no longer sees the confounder.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from ivvi._io.arrays import Array
from ivvi._io.result import Compact
from ivvi.dynamics.model import Dynamics
from ivvi.errors import InputError
from ivvi.features.feature_map import custom, linear
from ivvi.rewards import is_reward

SCOPES = ("step", "episode")
LASTING = 1
"""Separates the key of a persistent confounder from an episode's other keys."""
DRAWS = 100_000
"""Number of draws that estimate the covariance of noise of unknown distribution."""


def last_instrument(history: Array, x: Array, z: Array) -> Array:
    """Return the last instrument as the history (the default of `World.remember`)."""
    return z


@dataclass(frozen=True, eq=False, repr=False)
class World(Compact):
    """A confounded Markov decision process with an instrument (the paper's CMDP-IV).

    Attributes
    ----------
    name
        Its name, for readers.
    d_x, d_z
        Dimensions of state and instrument; the action's follows from `actions`.
    actions
        Gymnasium space of the actions (a Box or MultiBinary).
    transition
        F(x, a), the mean of the next state.
    reward
        r(x, a), a scalar, or a reward of `ivvi.rewards`, whose formula planners can use.
    initial
        Draws x_0 from a key.
    resume
        Draws x_0 of a logged episode from (key, last state of the episode before): the paper's
        dependence between episodes, which does not change the moment condition. None if every
        episode begins with `initial`; the first one always does.
    confounder
        Draws e from a key.
    instrument
        Draws z from (key, x, history); a function may ignore some of these.
    behaviour
        Draws a from (key, x, z, e): the policy that wrote the log saw the confounder.
    noise
        Draws e when we intervene; None for the same law as `confounder`.
    scope
        ``step``: a new instrument each step; ``episode``: one for the whole episode
        (the paper's global instrument).
    remember
        (history, x, z) -> history, what a later instrument may depend on (the paper's
        relaxation of Assumption 2.1); by default the last z, and zeros at the start.
    history
        The history at the start, when it is not zeros of the shape of z.
    lasting
        Draws a part of e that is the same in all steps of a logged episode (a global
        confounder); None when there is none. Learned policies act without it.
    direct
        The direct effect of z on x', (d_z,) to (d_x,); None for a valid instrument.
    done
        Whether a state ends the episode, when acting; None if no state does.
    horizon, episodes
        Default size of a log.
    W_star
        True weights of the paper's features, (d_x, d_phi), for experiments only.
    label
        The source of the numbers, and whether they are synthetic.
    """

    name: str
    d_x: int
    d_z: int
    actions: gymnasium.Space[Any]
    transition: Callable[[Array, Array], Array]
    reward: Callable[..., Array]
    initial: Callable[[Array], Array]
    confounder: Callable[[Array], Array]
    instrument: Callable[[Array, Array, Array], Array]
    behaviour: Callable[[Array, Array, Array, Array], Array]
    noise: Callable[[Array], Array] | None = None
    scope: str = "step"
    remember: Callable[[Array, Array, Array], Array] = last_instrument
    history: Array = None
    lasting: Callable[[Array], Array] | None = None
    direct: Callable[[Array], Array] | None = None
    done: Callable[[Array], Array] | None = None
    resume: Callable[[Array, Array], Array] | None = None
    horizon: int = 100
    episodes: int = 100
    W_star: np.ndarray | None = None
    label: str = ""

    def __post_init__(self) -> None:
        if self.scope not in SCOPES:
            raise InputError(
                f"the scope of an instrument is {self.scope!r}; expected 'step' or 'episode'"
            )
        if self.actions.shape is not None and len(self.actions.shape) == 1:
            self._check_shapes()

    def _check_shapes(self) -> None:
        """Raise an error for functions whose results do not have the declared dimensions.

        Nothing is drawn: JAX only computes the shapes.
        """
        with jax.enable_x64(True):
            key, state = jax.random.key(0), (self.d_x,)
            widths = (self.d_x, self.d_a, self.d_z)
            x, a, z = (jax.ShapeDtypeStruct((d,), jnp.float64) for d in widths)
            history = z if self.history is None else jnp.asarray(self.history)
            calls: tuple[tuple[str, tuple[Any, ...], tuple[int, ...]], ...] = (
                ("initial", (key,), state),
                ("resume", (key, x), state),
                ("confounder", (key,), state),
                ("noise", (key,), state),
                ("lasting", (key,), state),
                ("instrument", (key, x, history), (self.d_z,)),
                ("behaviour", (key, x, z, x), (self.d_a,)),
                ("transition", (x, a), state),
                ("direct", (z,), state),
                ("done", (x,), ()),
            )
            for name, arguments, expected in calls:
                if (function := getattr(self, name)) is not None:
                    _check_shape(
                        f"{name} of the world {self.name!r}", function, arguments, expected
                    )
            _check_shape(f"reward of the world {self.name!r}", self.gain, (x, a, x), ())

    @property
    def d_a(self) -> int:
        """Dimension of the action."""
        shape = self.actions.shape
        if shape is None or len(shape) != 1:
            raise InputError(f"the action space {self.actions} has no vector shape")
        return int(shape[0])

    def observe(self, key: Array, horizon: int, last: Array = None) -> tuple[Array, ...]:
        """Let the behaviour policy act for one episode; return x, a, z, r, x' by step.

        `last` is the last state of the episode before, NaN where there is none; it matters to
        worlds that `resume`.
        """
        start, scope, steps = jax.random.split(key, 3)
        x0 = self.initial(start)
        if self.resume is not None and last is not None:
            x0 = jnp.where(jnp.isnan(last), x0, self.resume(start, last))
        history0 = jnp.zeros(self.d_z) if self.history is None else jnp.asarray(self.history)
        fixed = self.instrument(scope, x0, history0) if self.scope == "episode" else None
        lasting = self.lasting_part(key)

        def step(carry: tuple[Array, Array], key: Array) -> tuple[Any, Any]:
            x, history = carry
            for_z, for_e, for_a = jax.random.split(key, 3)
            z = self.instrument(for_z, x, history) if fixed is None else fixed
            e = self.confounder(for_e) + lasting
            a = self.behaviour(for_a, x, z, e)
            x_next = self.transition(x, a) + e + (0.0 if self.direct is None else self.direct(z))
            logged = x, a, z, self.gain(x, a, x_next), x_next
            return (x_next, self.remember(history, x, z)), logged

        _, logged = jax.lax.scan(step, (x0, history0), jax.random.split(steps, horizon))
        return logged  # type: ignore[no-any-return]

    def lasting_part(self, key: Array) -> Array:
        """Draw the lasting part of an episode's confounder, from the episode's key."""
        return 0.0 if self.lasting is None else self.lasting(jax.random.fold_in(key, LASTING))

    def intervene(self, key: Array, x: Array, a: Array, h: Array = 0) -> tuple[Array, Array]:
        """Take action a in state x at step h without the confounder's help; return x' and r."""
        x_next = self.transition(x, a) + (self.noise or self.confounder)(key)
        return x_next, self.gain(x, a, x_next, h)

    def gain(self, x: Array, a: Array, x_next: Array, h: Array = 0) -> Array:
        """Return the reward of step h."""
        return self.reward(x, a, x_next, h) if is_reward(self.reward) else self.reward(x, a)

    def ended(self, key: Array, x: Array, a: Array, x_next: Array) -> Array:
        """Return whether state x' ends the episode."""
        return jnp.asarray(False) if self.done is None else self.done(x_next)

    @property
    def noise_cov(self) -> np.ndarray:
        """Covariance of the noise when we intervene, (d_x, d_x); estimated from draws if needed."""
        noise = self.noise or self.confounder
        if isinstance(noise, Gaussian):
            return noise.covariance
        with jax.enable_x64(True):
            draws = jax.vmap(noise)(jax.random.split(jax.random.key(0), DRAWS))
        return np.atleast_2d(np.cov(np.asarray(draws).T, bias=True))

    def true_model(self) -> Dynamics:
        """Return the truth as a model, to plan with and to compare with."""
        state, action = (
            tuple(f"{letter}{i}" for i in range(width))
            for letter, width in (("x", self.d_x), ("a", self.d_a))
        )
        if self.W_star is not None:
            phi, W = linear(), self.W_star
        else:
            mean = jnp.vectorize(self.transition, signature="(x),(a)->(x)")
            phi, W = custom(mean, [f"F{i}" for i in range(self.d_x)]), np.eye(self.d_x)
        bread = np.zeros((W.shape[1], W.shape[1]))
        outputs = tuple(f"next_{name}" for name in state)
        return Dynamics(phi, W, self.noise_cov, bread, state, action, outputs)


@dataclass(frozen=True, eq=False, repr=False)
class Gaussian(Compact):
    """A sampler of N(0, covariance)."""

    covariance: np.ndarray

    def __call__(self, key: Array) -> Array:
        """Draw one vector."""
        factor = np.linalg.cholesky(self.covariance)
        return jnp.asarray(factor) @ jax.random.normal(key, (len(factor),), jnp.float64)


def gaussian(covariance: Any) -> Gaussian:
    """Return a sampler of N(0, covariance)."""
    return Gaussian(np.asarray(covariance, dtype=np.float64))


def tridiagonal(k: int, diagonal: float, off_diagonal: float) -> np.ndarray:
    """Return the k x k matrix with these values on and beside the diagonal."""
    return diagonal * np.eye(k) + off_diagonal * (np.eye(k, k=1) + np.eye(k, k=-1))


def toeplitz(k: int, rho: float) -> np.ndarray:
    """Return the paper's T(rho), with entries rho^|i - j|."""
    distance = np.abs(np.subtract.outer(np.arange(k), np.arange(k)))
    return np.where(distance == 0, 1.0, float(rho) ** distance)


@dataclass(frozen=True, eq=False)
class Behaviour:
    """a ~ behaviour(x, z, e') with an e' that is independent of what happens next.

    In the log the actions are correlated with the hidden e that also moves the next state, which
    makes them look better than they are. This is the same policy without that help.
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
        """Draw an instrument and an independent confounder, and act on them."""
        return jax.vmap(self._one, in_axes=(0, None, 0))(x, h, memory)  # type: ignore[no-any-return]

    def _one(self, x: Array, h: Array, memory: Any) -> tuple[Array, Any]:
        world, (key, history, fixed) = self.world, memory
        for_z, for_e, for_a = jax.random.split(jax.random.fold_in(key, h), 3)
        z = world.instrument(for_z, x, history)
        if world.scope == "episode":
            z = fixed = jnp.where(h == 0, z, fixed)
        a = world.behaviour(for_a, x, z, world.confounder(for_e) + world.lasting_part(key))
        return a, (key, world.remember(history, x, z), fixed)


def _check_shape(
    label: str, function: Any, arguments: tuple[Any, ...], expected: tuple[int, ...]
) -> None:
    """Raise an error for a function of a world that fails, or returns another shape."""
    shapes = ", ".join(str(v.shape) if v.ndim else "key" for v in arguments)
    try:
        result = jax.eval_shape(function, *arguments)
    except (TypeError, ValueError, IndexError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"{label} fails on ({shapes}): {reason}") from error
    shape = getattr(result, "shape", None)
    if shape != expected:
        raise InputError(f"{label} returns {shape} for ({shapes}); expected {expected}")
