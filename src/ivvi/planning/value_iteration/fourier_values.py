"""Values fitted to sampled states: a quadratic function plus random Fourier features."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ivvi._io.arrays import Array
from ivvi._io.result import Compact
from ivvi.errors import InputError
from ivvi.planning.problem import Problem
from ivvi.planning.quadrature import Noise
from ivvi.planning.value_iteration.grid import reachable_means

STATES = 2000
"""Default number of sampled states; one Fourier feature for every `PER_FEATURE` of them."""
PER_FEATURE = 8
RIDGE = 1e-6
AT_ONCE = 1 << 22


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False, repr=False)
class Fitted(Compact):
    """G(m) = E V(m + e) = c . [1, s, s s^T, sqrt(2 / M) cos(frequencies s + phases)].

    s = (m - centre) / scale. The expectation of each feature is in the span of the features: with
    S the covariance of the noise in units of `scale`, E s_i s_j gains S_ij, and a cosine of
    frequency w is damped by exp(-w . S w / 2). So V, fitted by ridge regression (only the cosines
    are penalised), is averaged over the noise in closed form. In problems where episodes can end,
    it is averaged over nodes and fitted again.

    Attributes
    ----------
    centre, scale
        Of the sampled states, (d_x,).
    frequencies, phases
        (d_x, M) and (M,); M = 0 makes the value quadratic.
    """

    centre: np.ndarray
    scale: np.ndarray
    frequencies: np.ndarray
    phases: np.ndarray

    @classmethod
    def to(cls, states: np.ndarray, seed: int, *, cosines: bool) -> Fitted:
        """Return features scaled to sampled states (n, d_x)."""
        n, d = states.shape
        features = n // PER_FEATURE if cosines else 0
        rng = np.random.default_rng(seed)
        frequencies = rng.normal(size=(d, features)) / d**0.5
        scale = states.std(axis=0)
        scale[scale < 1e-12] = 1.0
        phases = rng.uniform(0, 2 * np.pi, size=features)
        value = cls(states.mean(axis=0), scale, frequencies, phases)
        if n < 2 * value.width:
            raise InputError(
                f"{n} sampled states for {value.width} features of the value; expected "
                f"at least {3 * value.width}"
            )
        return value

    @classmethod
    def quadratic(cls, d: int) -> Fitted:
        """Return a quadratic function of d states that are not scaled."""
        return cls(np.zeros(d), np.ones(d), np.zeros((d, 0)), np.zeros(0))

    @classmethod
    def from_arrays(cls, problem: Problem, arrays: Mapping[str, np.ndarray]) -> Fitted:
        """Make the value again from `arrays`."""
        return cls(*(arrays[k] for k in ("centre", "scale", "frequencies", "phases")))

    @property
    def kind(self) -> str:
        """The word of this kind of value."""
        return "fitted" if len(self.phases) else "quadratic"

    @property
    def width(self) -> int:
        """Numbers that one evaluation uses."""
        d = len(self.centre)
        return 1 + d + d * (d + 1) // 2 + len(self.phases)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return what `from_arrays` needs."""
        return {k: getattr(self, k) for k in ("centre", "scale", "frequencies", "phases")}

    def nearest(self, x: Array) -> Array:
        """Return the states themselves: all have values."""
        return x

    def __call__(self, c: Array, m: Array) -> Array:
        """Evaluate with coefficients c (p,) at m (n, d_x); returns (n,)."""
        return self.features(m) @ c

    def features(self, m: Array) -> Array:
        """Evaluate the features, (..., d_x) to (..., p)."""
        xp = m.__array_namespace__()
        s = (m - self.centre) / self.scale
        i, j = np.triu_indices(len(self.centre))
        parts = [xp.ones_like(s[..., :1]), s, s[..., i] * s[..., j]]
        if self.phases.size:
            size = (2 / len(self.phases)) ** 0.5
            parts.append(size * xp.cos(s @ self.frequencies + self.phases))
        return xp.concatenate(parts, axis=-1)

    def design(
        self, problem: Problem, noise: Noise | None, states: np.ndarray
    ) -> Callable[[np.ndarray], np.ndarray]:
        """Return the map from V at the states to G's coefficients; closed form without nodes."""
        regress = self._regression(states)
        if noise is None:
            average = self.average(problem.model.next_cov)
        else:
            average = regress @ self.averaged_features(states, noise, problem.terminal)
        operator = average @ regress
        return lambda values: np.asarray(operator @ values)

    def _regression(self, states: np.ndarray) -> np.ndarray:
        """Return the map (p, n) from values at the states to ridge coefficients."""
        basis = self.features(states)
        free = self.width - len(self.phases)
        penalty = np.sqrt(RIDGE * len(basis)) * np.eye(self.width)[free:]
        return np.asarray(np.linalg.pinv(np.vstack([basis, penalty]), rcond=1e-13)[:, : len(basis)])

    def average(self, covariance: np.ndarray) -> np.ndarray:
        """Return the map (p, p) from coefficients of V to those of E V(m + e)."""
        d = len(self.centre)
        noise = covariance / np.outer(self.scale, self.scale)
        damping = np.exp(-0.5 * np.einsum("im,ij,jm->m", self.frequencies, noise, self.frequencies))
        free = self.width - len(self.phases)
        average = np.diag(np.concatenate([np.ones(free), damping]))
        average[0, 1 + d : free] = noise[np.triu_indices(d)]
        return average

    def averaged_features(self, states: np.ndarray, noise: Noise, terminal: Any) -> np.ndarray:
        """Return E features(m + e) while alive, around each of the states, (n, p)."""
        step = max(1, AT_ONCE // (len(noise.weights) * self.width))
        blocks = []
        for i in range(0, len(states), step):
            x_next = states[i : i + step, None] + noise.offsets
            share = noise.alive(x_next, terminal)
            blocks.append(np.einsum("nk,nkp->np", share, self.features(x_next)))
        return np.concatenate(blocks)


def sampled_states(problem: Problem, count: int, seed: int) -> np.ndarray:
    """Return `count` states: half of them the problem's, half one step with any action away."""
    rng = np.random.default_rng(seed)
    support = problem.support
    states = support[rng.integers(len(support), size=count - count // 2)]
    means = reachable_means(problem, states[: min(len(states), 256)], seed)
    means = means[rng.integers(len(means), size=count // 2)]
    none, cov = np.zeros(states.shape[1]), problem.model.next_cov
    noise = rng.multivariate_normal(none, cov, size=len(means), method="eigh")
    return np.vstack([states, means + noise])
