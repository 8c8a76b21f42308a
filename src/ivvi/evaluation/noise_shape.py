"""The shape of the noise in the log: skewed, heavy in its tails, or wider in some states.

Covariances say how large the noise is. Where the log's residuals, r = y - W phi(x, a), are clearly
not Gaussian, or their spread clearly changes with the state, standard normal draws g are turned
into draws of their law,

    e_j = s_j(x) T_j(g_j),   E T_j(g) = 0,   E T_j(g)^2 = 1,   mean over the log of s_j(x)^2 = 1,

with T_j the quantiles of the j-th whitened residual (divided by s_j) and s_j linear in states
and their squares. Second moments stay what the covariances say, draws of g stay common to all
models and policies, and columns of categories, which are drawn as such, are left alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from ivvi._io.arrays import Array
from ivvi._io.result import compact_repr
from ivvi.diagnostics.tails_and_quantiles import chi2_tail
from ivvi.dynamics.model import Dynamics

FEWEST_ROWS = 200
"""Number of residuals below which the noise counts as Gaussian."""
CLEAR = 1e-3
"""A deviation counts if its probability by chance, over all columns, is below this."""
FAR_APART = 1.35
"""Distance of the distribution functions, times the root of m, beyond Lilliefors' 0.1%."""
KNOTS = np.linspace(-3.2, 3.2, 65)
"""Standard normal numbers at which T is known; T is linear between and beyond them."""
SQUARED_COLUMNS = 10
"""Largest number of states whose squares may also enter the spread."""
LEAST_SPREAD, MOST_SPREAD = 0.2, 5.0
"""Bounds of s_j(x)."""
ALIKE = 2.0
"""Largest factor between the residuals' variance and the model's if they are its noise."""
SHAPES = 200
"""Shapes that are estimated again from resampled rows; more draws share them."""


class NoiseShape(NamedTuple):
    """Maps of standard normal draws to the log's noise, for any number of models.

    T at `KNOTS`, (..., d_x, K), NaN for columns that stay normal; the weights of s, (..., d_x, q);
    lowest, highest, middle and scale of the states that s depends on, (..., 4, d_x).
    """

    quantiles: np.ndarray
    spread: np.ndarray
    frame: np.ndarray

    def __repr__(self) -> str:
        return compact_repr(self, self._fields)

    def rows(self, at: Any) -> NoiseShape:
        """Return the shapes of the draws `at`."""
        return NoiseShape(*(part[at] for part in self))


def shaped(noise: Array, x: Array, shape: NoiseShape | None) -> Array:
    """Return e (draws, n, d_x) for standard normal draws and states of that shape."""
    if shape is None:
        return noise
    xp = noise.__array_namespace__()
    known = xp.isfinite(shape.quantiles[..., 0])[:, None]
    step = float(KNOTS[1] - KNOTS[0])
    place = xp.clip(xp.floor((noise - KNOTS[0]) / step), 0, len(KNOTS) - 2).astype(int)
    left, right = (
        xp.swapaxes(xp.take_along_axis(shape.quantiles, xp.swapaxes(at, 1, 2), axis=2), 1, 2)
        for at in (place, place + 1)
    )
    along = (noise - KNOTS[0]) / step - place
    shaped_noise = xp.where(known, left + along * (right - left), noise)
    if not shape.spread.shape[-1]:
        return shaped_noise
    return shaped_noise * _spread(_basis(x, shape.frame[:, None], xp), shape.spread, xp)


def shape_of(model: Dynamics) -> NoiseShape | None:
    """Return the shape of the noise in the model's rows; None where it is Gaussian, or unknown."""
    whitened = _whitened(model)
    if whitened is None:
        return None
    e, x, columns = whitened
    frame = _frame(x)
    changing = _changes(e, _basis(x, frame, np))
    spread, scaled = _fitted(e, x, frame, changing)
    bent = np.array([not _is_normal(scaled[:, j], e.shape[1]) for j in range(e.shape[1])])
    if not (changing.any() or bent.any()):
        return None
    return _placed(scaled, spread, frame, bent, columns, len(model.state))


def resampled_shapes(
    model: Dynamics, shape: NoiseShape, count: int, rng: np.random.Generator
) -> NoiseShape:
    """Return `count` shapes, each estimated again from resampled rows."""
    whitened = _whitened(model)
    if whitened is None:
        return shape
    shapes = list(_shapes_again(shape, *whitened, min(count, SHAPES), rng))
    stack = NoiseShape(*(np.stack(part) for part in zip(*shapes, strict=True)))
    return stack.rows(np.arange(count) % len(shapes))


def _shapes_again(
    shape: NoiseShape,
    e: np.ndarray,
    x: np.ndarray,
    columns: np.ndarray,
    count: int,
    rng: np.random.Generator,
) -> Iterator[NoiseShape]:
    """Yield shapes of resampled rows; the same columns deviate from normal in all of them."""
    bent = np.isfinite(shape.quantiles[columns, 0])
    changing = (shape.spread[columns, 1:] != 0).any(axis=1)
    for _ in range(count):
        rows = rng.integers(len(e), size=len(e))
        spread, scaled = _fitted(e[rows], x[rows], shape.frame, changing)
        yield _placed(scaled, spread, shape.frame, bent, columns, len(shape.quantiles))


def _whitened(model: Dynamics) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Return residuals (m, k) of mean 0 and covariance I, their states, and their columns.

    None where the model holds too few rows, or residuals that are not those of its noise.
    """
    if len(model.followed) < FEWEST_ROWS or model.refused or not model.update.predicted:
        return None
    r, x = _residuals(model)
    factor = model.noise_law.factor
    columns = np.flatnonzero(np.diagonal(factor) > 0)
    used = factor[np.ix_(columns, columns)]
    triangular = np.allclose(factor, np.tril(factor)) and np.linalg.matrix_rank(used) == len(used)
    if len(r) < FEWEST_ROWS or not len(columns) or not triangular:
        return None
    r = r[:, columns] - r[:, columns].mean(axis=0)
    covariance = r.T @ r / len(r)
    ratio = np.linalg.solve(used, np.linalg.solve(used, covariance).T)
    values = np.linalg.eigvalsh((ratio + ratio.T) / 2)
    if values.min() < 1 / ALIKE or values.max() > ALIKE:
        return None
    return np.linalg.solve(np.linalg.cholesky(covariance), r.T).T, x, columns


def _residuals(model: Dynamics) -> tuple[np.ndarray, np.ndarray]:
    """Return the next state minus its prediction, (m, d_x), and the states, (m, d_x).

    Only rows that go on count; the part that the level of a category explains is subtracted.
    """
    update, predicted = model.update, model.update.predicted
    goes_on = model.followed[:, predicted : predicted + update.ends].sum(axis=1) == 0
    x, a, y = model.states[goes_on], model.acted[goes_on], model.followed[goes_on]
    mean = np.asarray(model.mean(x, a))
    r = np.asarray(update.observed(y, x, a)) - mean
    if update.drawn:
        again = np.random.default_rng(0).permutation(len(x))
        r[:, list(update.drawn)] = x[again][:, list(update.drawn)] - np.asarray(update.means)
    surprise = np.zeros_like(r)
    for category in model.categories:
        p = np.asarray(category.probabilities(mean)) @ category.levels
        surprise[:, list(category)] = (r + mean)[:, list(category)] - p
    return r - surprise @ np.swapaxes(model.noise_law.gain, -1, -2), x


def _frame(x: np.ndarray) -> np.ndarray:
    """Return lowest, highest, middle and scale of each column, (4, d_x)."""
    low, high = np.quantile(x, [0.005, 0.995], axis=0)
    scale = x.std(axis=0)
    return np.stack([low, high, x.mean(axis=0), np.where(scale > 0, scale, 1.0)])


def _basis(x: Array, frame: Array, xp: Any) -> Array:
    """Return 1, the states and perhaps their squares, (..., q), held within the frame."""
    low, high, middle, scale = (frame[..., i, :] for i in range(4))
    z = (xp.clip(x, low, high) - middle) / scale
    squares = [z**2 - 1.0] if x.shape[-1] <= SQUARED_COLUMNS else []
    return xp.concatenate([xp.ones_like(z[..., :1]), z, *squares], axis=-1)


def _spread(basis: Array, weights: Array, xp: Any) -> Array:
    """Return s (..., d) for weights (..., d, q)."""
    s = basis @ xp.swapaxes(weights, -1, -2)
    return xp.clip(s, LEAST_SPREAD, MOST_SPREAD)


def _changes(e: np.ndarray, basis: np.ndarray) -> np.ndarray:
    """Return whether the spread of each column clearly changes with the state, (k,).

    Koenker's test: n R^2 of the regression of |e| on the states is chi-squared.
    """
    size = np.abs(e)
    left = size - basis @ np.linalg.lstsq(basis, size, rcond=None)[0]
    freedom = np.linalg.matrix_rank(basis) - 1
    statistic = len(e) * (1.0 - left.var(axis=0) / size.var(axis=0))
    tails = np.array([chi2_tail(float(value), max(freedom, 1)) for value in statistic])
    clear: np.ndarray = (tails < CLEAR / e.shape[1]) & (freedom > 0)
    return clear


def _fitted(
    e: np.ndarray, x: np.ndarray, frame: np.ndarray, changing: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights of s (k, q), of width 0 where none changes, and e / s (m, k)."""
    if not changing.any():
        return np.zeros((e.shape[1], 0)), e
    basis = _basis(x, frame, np)
    weights = np.linalg.lstsq(basis, np.abs(e), rcond=None)[0].T
    weights[~changing] = np.eye(1, basis.shape[1])
    for _ in range(3):  # clipping s changes the mean of its square
        s = _spread(basis, weights, np)
        weights = weights / np.sqrt((s**2).mean(axis=0))[:, None]
    return weights, e / _spread(basis, weights, np)


def _is_normal(e: np.ndarray, columns: int) -> bool:
    """Return whether numbers (m,) may be normal, by Jarque and Bera's test and by Lilliefors'."""
    z, m = np.sort((e - e.mean()) / e.std()), len(e)
    statistic = m / 6 * ((z**3).mean() ** 2 + ((z**4).mean() - 3) ** 2 / 4)
    ranks = np.arange(m + 1) / m
    normal = special.ndtr(z)
    distance = max(np.abs(normal - ranks[1:]).max(), np.abs(normal - ranks[:-1]).max())
    return chi2_tail(float(statistic), 2) >= CLEAR / columns and distance * np.sqrt(m) < FAR_APART


def _interpolation() -> tuple[np.ndarray, np.ndarray]:
    """Return the means (K,) and second moments (K, K) of the knots' weights at g ~ N(0, 1)."""
    g = special.ndtri((np.arange(8192) + 0.5) / 8192)
    step = KNOTS[1] - KNOTS[0]
    place = np.clip(np.floor((g - KNOTS[0]) / step), 0, len(KNOTS) - 2).astype(int)
    along = (g - KNOTS[0]) / step - place
    weight = np.zeros((len(g), len(KNOTS)))
    weight[np.arange(len(g)), place] = 1.0 - along
    weight[np.arange(len(g)), place + 1] = along
    return weight.mean(axis=0), weight.T @ weight / len(g)


MEAN_WEIGHTS, SECOND_WEIGHTS = _interpolation()


def _quantiles(e: np.ndarray) -> np.ndarray:
    """Return T_j at the knots, (K,), of mean 0 and variance 1 over standard normal numbers."""
    quantiles = np.quantile(e, special.ndtr(KNOTS), method="hazen")
    quantiles = quantiles - MEAN_WEIGHTS @ quantiles
    standard: np.ndarray = quantiles / np.sqrt(quantiles @ SECOND_WEIGHTS @ quantiles)
    return standard


def _placed(
    scaled: np.ndarray,
    spread: np.ndarray,
    frame: np.ndarray,
    bent: np.ndarray,
    columns: np.ndarray,
    width: int,
) -> NoiseShape:
    """Return the shape of all columns of the state, from estimates for some of them."""
    quantiles = np.full((width, len(KNOTS)), np.nan)
    for j in np.flatnonzero(bent):
        quantiles[columns[j]] = _quantiles(scaled[:, j])
    weights = np.zeros((width, spread.shape[1]))
    weights[:, :1] = 1.0
    weights[columns] = spread
    return NoiseShape(quantiles, weights, frame)
