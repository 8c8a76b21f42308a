"""A world in plain NumPy: what happens under do(a), who acted in the log, and what they saw.

Nothing here is compiled and nothing knows a planner. States are (n, d_x), actions (n, d_a), and
e (n, d_e) are standard normal draws that stand for everything nobody recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import ivvi
from ivvi._io.arrays import Array
from ivvi.features.feature_map import FeatureMap, parse_features


@dataclass(frozen=True, eq=False)
class World:
    """x' = mean(x, a) + spread e, rewards, actions, and a confounded behaviour.

    Attributes
    ----------
    name, about
        A word and a sentence.
    mean
        E[x' | x, do(a)].
    spread
        Standard deviations of the noise of each state, (d_x,).
    start
        Draws first states: (rng, n) to (n, d_x).
    reward
        r(x, a, x', h) on NumPy or JAX arrays.
    actions
        What may be done.
    phi
        Features in which `mean` is exactly linear.
    features
        What the log is fitted with: a word, or a pair (phi, psi).
    habit
        What the people in the log would do in state x, before instrument and confounder.
    wobble
        How far instrument, confounder and chance move them from it.
    grid
        (low, high, points) of each state, for dynamic programming.
    levels
        Points on each axis of a box of actions, for dynamic programming.
    draw
        x' given (x, a, e), where it is not mean plus Gaussian noise.
    learned
        The reward is unknown: the log has a noisy column of it.
    """

    name: str
    about: str
    mean: Callable[[Array, Array], Array]
    spread: tuple[float, ...]
    start: Callable[[np.random.Generator, int], np.ndarray]
    reward: Callable[..., Array]
    actions: ivvi.Actions
    horizon: int
    phi: FeatureMap
    features: Any = None
    discount: float = 1.0
    terminal: Callable[[Array], Array] | None = None
    habit: Callable[[Array], Array] = lambda x: 0.5
    wobble: float = 0.7
    grid: tuple[tuple[float, float, int], ...] = ()
    levels: int = 81
    draw: Callable[[Array, Array, Array], Array] | None = None
    learned: bool = False
    uses_next: bool = False
    """Whether the reward looks at x'."""
    solver: str = "grid"
    """How the optimum is found (`zoo.optimum.SOLVERS`)."""
    episode: int | None = None
    """Steps of an episode of the log, by default the horizon."""

    @property
    def d_x(self) -> int:
        """Number of states."""
        return len(self.spread)

    @property
    def d_a(self) -> int:
        """Number of actions."""
        return self.actions.dim

    @property
    def d_e(self) -> int:
        """Number of hidden draws of a step."""
        return 1 if self.draw else self.d_x

    def step(self, x: Array, a: Array, e: Array) -> np.ndarray:
        """Return the next states under do(a) with noise e, (n, d_x)."""
        return self.draw(x, a, e) if self.draw else self.mean(x, a) + e * np.array(self.spread)

    def is_over(self, x: Array) -> np.ndarray:
        """Return whether episodes end in states x, (n,)."""
        return np.zeros(len(x), bool) if self.terminal is None else np.asarray(self.terminal(x))

    def behave(self, x: Array, z: Array, e: Array, v: Array) -> np.ndarray:
        """Return the actions in the log: people saw e, which also moves x'."""
        seen = e[:, np.arange(self.d_a) % self.d_e]
        wish = np.asarray(self.habit(x)) + self.wobble * (z + seen + 0.5 * v)
        return nearest(self.actions, np.broadcast_to(wish, (len(x), self.d_a)))


def is_subsets(actions: ivvi.Actions) -> bool:
    """Return whether the actions are {0, 1}^d."""
    rows = actions.choices
    return actions.is_finite and len(rows) == 2**actions.dim and set(np.unique(rows)) == {0.0, 1.0}


def nearest(actions: ivvi.Actions, wish: np.ndarray) -> np.ndarray:
    """Return the allowed actions nearest to wishes (n, d_a): clipped, or a row of the list."""
    box = np.clip(wish[:, list(actions.continuous)], actions.low, actions.high)
    rows = actions.choices
    asked = wish[:, list(actions.discrete)]
    if is_subsets(actions):
        return np.where(asked > 0.5, 1.0, 0.0)
    distance = (rows**2).sum(axis=1) - 2 * asked @ rows.T
    return np.asarray(actions.join(box, rows[np.argmin(distance, axis=1)]))


def collect(world: World, rows: int, seed: int) -> dict[str, np.ndarray]:
    """Return a confounded log of about `rows` rows: episode, step, x0.., a0.., z0.., next_x0.."""
    length = world.episode or world.horizon
    rng = np.random.default_rng([seed, 7])
    n = max(2, round(rows / length))
    x, alive, parts = world.start(rng, n), np.ones(n, bool), []
    for h in range(length):
        z, v = rng.normal(size=(2, n, world.d_a))
        e = rng.normal(size=(n, world.d_e))
        a = world.behave(x, z, e, v)
        x_next = world.step(x, a, e)
        r = world.reward(x, a, x_next, h) + 0.5 * e[:, 0]
        whole = (np.arange(n), np.full(n, h), x, a, z, x_next, r)
        parts.append([part[alive] for part in whole])
        alive, x = alive & ~world.is_over(x_next), x_next
    episode, step, x, a, z, x_next, r = (np.concatenate(p) for p in zip(*parts, strict=True))
    log = {"episode": episode, "step": step}
    for name, values in (("x", x), ("a", a), ("z", z), ("next_x", x_next)):
        log |= {f"{name}{i}": values[:, i] for i in range(values.shape[1])}
    return log | ({"reward": r} if world.learned else {})


def noise_of(world: World, episodes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return first states and noise (episodes, horizon, d_e), keyed by (seed, episode, step)."""
    streams = [np.random.default_rng([seed, 11, i]) for i in range(episodes)]
    x = np.concatenate([world.start(rng, 1) for rng in streams])
    return x, np.stack([rng.normal(size=(world.horizon, world.d_e)) for rng in streams])


def run(world: World, policy: Callable[..., np.ndarray], episodes: int, seed: int) -> np.ndarray:
    """Return the discounted return of each episode under policy(x, h), (episodes,)."""
    x, noise = noise_of(world, episodes, seed)
    alive, total = np.ones(episodes), np.zeros(episodes)
    for h in range(world.horizon):
        a = np.asarray(policy(x, h))
        x_next = world.step(x, a, noise[:, h])
        total += alive * world.discount**h * np.asarray(world.reward(x, a, x_next, h))
        alive, x = alive * ~world.is_over(x_next), x_next
    return total


def true_weights(world: World) -> tuple[np.ndarray, float]:
    """Return W of mean(x, a) = W phi(x, a), and the largest error of it on other rows."""
    rng = np.random.default_rng(5)
    lows, highs = np.array(world.grid)[:, :2].T if world.grid else (-np.ones(world.d_x), 1.0)
    x = rng.uniform(lows, highs, size=(4000, world.d_x))
    if world.draw:
        x = world.start(rng, 4000)
    a = world.actions.sample(4000, rng)
    features, y = np.asarray(world.phi(x, a)), world.mean(x, a)
    if world.learned:
        y = np.column_stack([y, world.reward(x, a, None, 0)])
    W = np.linalg.lstsq(features[:2000], y[:2000], rcond=None)[0].T
    return W, float(np.abs(features[2000:] @ W.T - y[2000:]).max())


def open_log(world: World, columns: dict[str, np.ndarray]) -> ivvi.Log:
    reward = {"reward": "reward"} if world.learned else {}
    return ivvi.read_logs(columns, episode="episode", step="step", **reward)


def true_model(world: World, columns: dict[str, np.ndarray]) -> ivvi.Dynamics:
    """Return the model that an endless log would give, with the sample of states of this log."""
    log = open_log(world, columns)
    sample, W = log.sample(), true_weights(world)[0]
    left = sample.y - np.asarray(world.phi(sample.x, sample.a)) @ W.T
    noise = left.T @ left / len(left)
    if not world.draw:
        noise[: world.d_x, : world.d_x] = np.diag(np.square(world.spread))
    names = log.roles
    return ivvi.Dynamics(
        world.phi,
        W,
        noise,
        np.zeros((W.shape[1],) * 2),
        names.state,
        names.action,
        names.outputs,
        has_reward=world.learned,
        states=sample.x,
        starts=sample.starts,
        acted=sample.a,
        instruments=sample.z,
        followed=sample.y,
    )


def fitted_model(world: World, columns: dict[str, np.ndarray], method: str) -> ivvi.Dynamics:
    """Return the model estimated from the log by a method of `ivvi.estimate`."""
    features = world.features or world.phi
    phi, psi = parse_features(features) if isinstance(features, str) else (features, features)
    return ivvi.estimate(open_log(world, columns), phi, psi, method=method).model
