"""Ridge regressions on spectral features, and which features predict best."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ivvi.planning.spede.features import Spectral

HELD_OUT = 5
"""One in this many of the sampled states is held out of the regressions."""
COUNTS = (128, 256, 512)
BANDWIDTHS = (0.5, 1.0, 2.0, 4.0)
RIDGES = (1e-2, 1e-4, 1e-6)
WORTH = 1.1
"""More features must make the residual smaller by this factor to be worth their time."""


@dataclass(frozen=True, eq=False)
class Regression:
    """Minimise mean (F w - v)^2 + ridge |w of the waves|^2; polynomials are free.

    Attributes
    ----------
    F
        Features of the sampled states, (n, p); every fifth row is held out.
    polynomials
        How many columns, the first ones, are polynomials.
    gram
        F^T F over the rows that are not held out, (p, p).
    """

    F: np.ndarray
    polynomials: int
    ridge: float
    gram: np.ndarray

    @classmethod
    def of(cls, F: np.ndarray, polynomials: int, ridge: float) -> Regression:
        """Prepare a regression on features (n, p)."""
        used = F[_used(len(F))]
        return cls(F, polynomials, ridge, used.T @ used)

    def part(self, width: int, ridge: float) -> Regression:
        """Return the regression on the first columns alone."""
        F, gram = self.F[:, :width], self.gram[:width, :width]
        return Regression(F, self.polynomials, ridge, gram)

    def fit(self, v: np.ndarray) -> np.ndarray:
        """Return weights (p,) for values (n,), or (p, m) for (n, m)."""
        import scipy.linalg

        used, centre = _used(len(v)), v.mean(axis=0)
        w = scipy.linalg.cho_solve(self._factor, self.F[used].T @ (v - centre)[used])
        w[0] += centre
        return np.asarray(w)

    def residual(self, w: np.ndarray, v: np.ndarray) -> float:
        """Root mean square of v - F w on the held-out states over the spread of v there."""
        held_out = ~_used(len(v))
        error = v[held_out] - self.F[held_out] @ w
        return float(np.sqrt(np.mean(error**2)) / max(float(v[held_out].std()), 1e-300))

    @cached_property
    def _factor(self) -> Any:
        import scipy.linalg

        n = int(_used(len(self.F)).sum())
        penalty = np.full(self.F.shape[1], self.ridge * n)
        penalty[: self.polynomials] = 1e-9 * n  # keeps the matrix definite
        return scipy.linalg.cho_factor(self.gram + np.diag(penalty))


@dataclass(frozen=True)
class Choice:
    """Settings of the features, and the held-out residual by which they were chosen."""

    features: int
    bandwidth: float
    ridge: float
    quadratic: bool = True
    residual: float = np.nan


@dataclass(frozen=True, eq=False)
class HeldOutChoice:
    """Compare candidates by the residual of values (n,) on the held-out of states (n, d_x).

    Attributes
    ----------
    columns
        Evaluates features at the states, (n, p).
    counts, bandwidths, ridges
        The candidates; one of each when the user has decided.
    """

    x: np.ndarray
    v: np.ndarray
    noise_cov: np.ndarray
    columns: Callable[[np.ndarray, Spectral], np.ndarray]
    counts: tuple[int, ...] = COUNTS
    bandwidths: tuple[float, ...] = BANDWIDTHS
    ridges: tuple[float, ...] = RIDGES

    def winner(self, seeds: int, rng: np.random.Generator) -> tuple[Spectral, Choice]:
        """Choose width, penalty and number first, then among draws of the frequencies."""
        tried = [c for width in self.bandwidths for c in self._draw(width, True, rng)]
        best = _least(tried)[1]
        tried += self._draw(best.bandwidth, False, rng)
        best = _least(tried)[1]
        for _ in range(seeds - 1):
            tried += self._draw(best.bandwidth, best.quadratic, rng)
        return _least(tried)

    def _draw(
        self, bandwidth: float, quadratic: bool, rng: np.random.Generator
    ) -> list[tuple[Spectral, Choice]]:
        """Draw frequencies once and try every number of them with every penalty."""
        most = max(self.counts)
        drawn = Spectral.draw(self.x, self.noise_cov, most, bandwidth, rng, quadratic=quadratic)
        whole = Regression.of(self.columns(self.x, drawn), drawn.polynomials, 0.0)
        candidates = []
        for count in self.counts:
            features = drawn.first(count)
            for ridge in self.ridges:
                part = whole.part(features.width, ridge)
                residual = part.residual(part.fit(self.v), self.v)
                candidates.append((features, Choice(count, bandwidth, ridge, quadratic, residual)))
        return candidates


def _used(n: int) -> np.ndarray:
    """Tell which of n states are not held out."""
    return np.asarray(np.arange(n) % HELD_OUT != HELD_OUT - 1)


def _least(tried: list[tuple[Spectral, Choice]]) -> tuple[Spectral, Choice]:
    """Return the fewest features whose residual is close to the smallest."""
    enough = WORTH * min(choice.residual for _, choice in tried)
    good = [t for t in tried if t[1].residual <= enough]
    return min(good, key=lambda t: (t[1].features, t[1].residual))
