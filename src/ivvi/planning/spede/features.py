"""Spectral features of a Gaussian transition (Ren et al. 2022).

For x' ~ N(m, Sigma), the mean of a polynomial or a wave of x' is a polynomial or wave of m:

    E cos(omega . x' + b) = exp(-omega^T Sigma omega / 2) cos(omega . m + b)
    E x'_i x'_j           = m_i m_j + Sigma_ij

so that a value function that is linear in such features of x' gives, without any draw of
the noise, an expectation that is linear in features of m = W phi(x, a).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from ivvi._io.arrays import Array
from ivvi._io.result import Compact

MOST_CROSSED = 30
"""States with more coordinates than this get squares, but no products of two coordinates."""
ARRAYS = ("centre", "scale", "noise", "omega", "phase", "pairs")
TERMS = 14


@dataclass(frozen=True, eq=False, repr=False)
class Spectral(Compact):
    """1, s, s_i s_j and sqrt(2) cos(omega . s + phase) of whitened states s.

    Attributes
    ----------
    centre, scale
        s = (x - centre) scale, of shapes (d_x,) and (d_x, d_x).
    noise
        Covariance of the noise of s, (d_x, d_x).
    omega, phase
        Frequencies (d_x, M) and phases (M,).
    pairs
        The products s_i s_j that are included, i <= j.
    """

    centre: Array
    scale: Array
    noise: Array
    omega: Array
    phase: Array
    pairs: tuple[tuple[int, int], ...]

    @classmethod
    def draw(
        cls,
        states: np.ndarray,
        noise_cov: np.ndarray,
        count: int,
        bandwidth: float,
        rng: np.random.Generator,
        *,
        quadratic: bool = True,
    ) -> Spectral:
        """Draw frequencies for states (n, d_x).

        The states are whitened by their own spread, and the kernel has width `bandwidth`
        sqrt(d_x) there. The literal width, one standard deviation of the noise, would need
        exponentially many features. Every other frequency is of one coordinate alone, with width
        `bandwidth`: values are often close to sums of functions of one coordinate.
        """
        d = states.shape[1]
        cov = np.cov(states, rowvar=False).reshape(d, d) + noise_cov
        values, vectors = np.linalg.eigh(cov)
        values = np.maximum(values, 1e-12 * max(float(values[-1]), 1e-300))
        root = (vectors / np.sqrt(values)) @ vectors.T
        omega = rng.normal(size=(d, count)) / (bandwidth * math.sqrt(d))
        alone = np.arange(0, count, 2) if d > 1 else np.arange(0)
        axis = rng.integers(d, size=len(alone))
        # one coordinate of the state, not of the whitened state
        along = np.linalg.inv(root)[:, axis] / np.sqrt(np.diag(cov))[axis]
        omega[:, alone] = along * rng.normal(size=len(alone)) / bandwidth
        pairs = [(i, j) for i in range(d) for j in range(i, d) if i == j or d <= MOST_CROSSED]
        return cls(
            states.mean(axis=0),
            root,
            root @ noise_cov @ root,
            omega,
            rng.uniform(0, 2 * np.pi, count),
            tuple(pairs) if quadratic else (),
        )

    @property
    def width(self) -> int:
        """Number of features."""
        return self.polynomials + int(self.omega.shape[1])

    @property
    def polynomials(self) -> int:
        """Number of features that are polynomials; they come first."""
        return 1 + int(self.omega.shape[0]) + len(self.pairs)

    def first(self, count: int) -> Spectral:
        """Return the features with the first `count` waves only."""
        fields = self.omega[:, :count], self.phase[:count]
        return Spectral(self.centre, self.scale, self.noise, *fields, self.pairs)

    def of_states(self, x: Array) -> Array:
        """Evaluate the features of states (n, d_x); returns (n, width)."""
        s = self._whitened(x)
        i, j = np.array(self.pairs, dtype=int).reshape(-1, 2).T
        waves = math.sqrt(2) * cosine(s @ self.omega + self.phase)
        return jnp.concatenate([jnp.ones((len(s), 1)), s, s[:, i] * s[:, j], waves], axis=1)

    def expected(self, m: Array, w: Array) -> Array:
        """Return E[w . features(x')], (n,), for x' ~ N(m, Sigma) with means (n, d_x)."""
        s = self._whitened(m)
        constant, slope, square, waves = self._split(w)
        smooth = jnp.sum((s @ square) * s, axis=1) + jnp.sum(square * self.noise)
        return constant + s @ slope + smooth + cosine(s @ self.omega + self.phase) @ waves

    def expected_of_sums(self, u: Array, v: Array, w: Array) -> Array:
        """`expected` at all sums u_i + v_j of (n, d_x) and (k, d_x), (n, k), as matrix products.

        With p and q the whitened u and v: cos(p + q) = cos p cos q - sin p sin q, and
        (p + q)^T S (p + q) = p^T S p + 2 p^T S q + q^T S q.
        """
        p, q = self._whitened(u), v @ self.scale
        _, slope, square, waves = self._split(w)
        smooth = 2 * (p @ square) @ q.T + q @ slope + jnp.sum((q @ square) * q, axis=1)
        angle, turn, quarter = p @ self.omega + self.phase, q @ self.omega, math.pi / 2
        cosines = (cosine(angle) * waves) @ (cosine(turn) - 1).T
        sines = (cosine(angle - quarter) * waves) @ cosine(turn - quarter).T
        return self.expected(u, w)[:, None] + smooth + cosines - sines

    def hessian(self, m: Array, w: Array) -> Array:
        """Second derivatives of `expected` with respect to m, (n, d_x, d_x)."""
        s = self._whitened(m)
        _, _, square, waves = self._split(w)
        d = len(square)
        omega = self.scale @ self.omega
        products = (omega[:, None] * omega[None]).reshape(d * d, -1)
        wavy = (cosine(s @ self.omega + self.phase) * waves) @ products.T
        return 2 * self.scale @ square @ self.scale.T - wavy.reshape(-1, d, d)

    def _whitened(self, x: Array) -> Array:
        return (x - self.centre) @ self.scale

    def _split(self, w: Array) -> tuple[Array, Array, Array, Array]:
        """Return constant, slope (d,), the matrix of the squares (d, d), waves (M,), damped."""
        d = self.omega.shape[0]
        i, j = np.array(self.pairs, dtype=int).reshape(-1, 2).T
        half = w[1 + d : self.polynomials] / 2
        square = jnp.zeros((d, d)).at[i, j].add(half).at[j, i].add(half)
        damping = jnp.exp(-jnp.sum(self.omega * (self.noise @ self.omega), axis=0) / 2)
        return w[0], w[1 : 1 + d], square, math.sqrt(2) * damping * w[self.polynomials :]

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return arrays from which `from_arrays` makes the features again."""
        return {name: np.asarray(getattr(self, name)) for name in ARRAYS}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Spectral:
        """Make the features again."""
        pairs = tuple((int(i), int(j)) for i, j in arrays["pairs"].reshape(-1, 2))
        return cls(**{name: arrays[name] for name in ARRAYS[:-1]}, pairs=pairs)


jax.tree_util.register_dataclass(Spectral, list(ARRAYS[:-1]), list(ARRAYS[-1:]))


def cosine(u: Array) -> Array:
    """Return cos(u) to 2e-15 for |u| up to 1e3, by its series after subtracting whole turns.

    On a CPU, XLA evaluates its own cosine one number at a time. This one is a dozen times as fast,
    and takes most of the time of planning.
    """
    return _cosine(u)


def _series(u: Array) -> Array:
    turns = u / (2 * math.pi)
    square = (2 * math.pi * (turns - jnp.round(turns))) ** 2
    total = jnp.zeros_like(u)
    for k in reversed(range(TERMS)):
        total = total * square + (-1) ** k / math.factorial(2 * k)
    return total


_cosine = jax.custom_jvp(_series)
_cosine.defjvps(lambda tangent, _, u: -_cosine(u - math.pi / 2) * tangent)
