"""The distribution of the next state around its mean: Gaussian noise, and drawn categories.

Columns of 0 and 1 that exclude each other are the indicators of a category. Their mean m holds
the probabilities of its levels, so a level is drawn; the other columns follow it,

    x'_c = m_c + C (k - p) + N(0, S_cc - C S_kc),   C = S_ck S_kk^+,

with k the indicators drawn, p their probabilities and S the covariance of the noise.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from ivvi._io.arrays import Array
from ivvi._io.result import compact_repr
from ivvi.categories import CodedColumn

EXPECTED_TOGETHER = 10.0
"""Columns that are never 1 together count as exclusive if independent ones would be 1 together this
often."""


@dataclass(frozen=True)
class Category:
    """Columns of the state that are the indicators of one category.

    Attributes
    ----------
    columns
        The columns' numbers, ascending.
    complete
        Whether one of them is always 1; if not, zeros in all of them are the level left out.
    """

    columns: tuple[int, ...]
    complete: bool = False

    def __iter__(self) -> Iterator[int]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def levels(self) -> np.ndarray:
        """The indicators of each level, (L, columns); the level that was left out comes first."""
        every = np.eye(len(self.columns))
        return every if self.complete else np.vstack([np.zeros(len(every)), every])

    def probabilities(self, m: Array) -> Array:
        """Return the probability of each level, (..., L), for means m (..., d_x) of the state.

        The means of the indicators, clipped to [0, 1] and divided by their sum.
        """
        xp = m.__array_namespace__()
        p = m[..., list(self.columns)]
        if not self.complete:
            p = xp.concatenate([1.0 - p.sum(axis=-1, keepdims=True), p], axis=-1)
        p = xp.clip(p, 0.0, 1.0)
        total = p.sum(axis=-1, keepdims=True)
        return xp.where(total > 0, p / xp.where(total > 0, total, 1.0), 1.0 / p.shape[-1])


Categories = tuple[Category, ...]


class NoiseLaw(NamedTuple):
    """The maps that draw noise of a given covariance.

    `factor` (..., d, d) is a square root of the covariance of the columns that are not indicators,
    given those that are; `gain` (..., d, d) holds their slopes on the indicators, C of the module's
    lead. All other rows and columns are zero.
    """

    factor: Array
    gain: Array

    def __repr__(self) -> str:
        return compact_repr(self, self._fields)


def noise_law(covariance: Array, categories: Categories = ()) -> NoiseLaw:
    """Return the law for a covariance (..., d, d), of NumPy or of JAX, split at the indicators."""
    if not categories:
        return NoiseLaw(_root(covariance), np.zeros(covariance.shape))
    xp, d = covariance.__array_namespace__(), covariance.shape[-1]
    drawn = np.zeros(d, dtype=bool)
    drawn[[column for category in categories for column in category]] = True
    k, c = np.flatnonzero(drawn), np.flatnonzero(~drawn)
    pick_k, pick_c = np.eye(d)[k], np.eye(d)[c]
    S_kk, S_ck = pick_k @ covariance @ pick_k.T, pick_c @ covariance @ pick_k.T
    gain = S_ck @ xp.linalg.pinv(S_kk, rtol=1e-9, hermitian=True)
    rest = pick_c @ covariance @ pick_c.T - gain @ xp.swapaxes(S_ck, -1, -2)
    factor = _root((rest + xp.swapaxes(rest, -1, -2)) / 2) if len(c) else rest
    return NoiseLaw(pick_c.T @ factor @ pick_c, pick_c.T @ gain @ pick_k)


def next_state(m: Array, noise: Array, law: NoiseLaw, categories: Categories = ()) -> Array:
    """Return x' (..., d_x) for means m and standard normal draws of the same shape.

    A level is drawn with the uniform number Phi(noise) of its category's first column, so that
    the same draws are the same chance events in every model.
    """
    xp = m.__array_namespace__()
    following = m + _times(law.factor, noise)
    if not categories:
        return following
    surprise = xp.zeros(m.shape)
    for category in categories:
        p = category.probabilities(m)
        u = _uniform(noise[..., category.columns[0]])[..., None]
        level = (u > xp.cumsum(p, axis=-1)[..., :-1]).sum(axis=-1)
        k = xp.asarray(category.levels)[level]
        place = np.eye(m.shape[-1])[list(category.columns)]
        following = following * (1.0 - place.sum(axis=0)) + k @ place
        surprise = surprise + (k - p @ category.levels) @ place
    return following + _times(law.gain, surprise)


def outcomes(
    m: Array, nodes: np.ndarray, weights: np.ndarray, law: NoiseLaw, categories: Categories
) -> tuple[Array, Array]:
    """Return next states (K, n, d_x) and their weights (K, n) for means m (n, d_x).

    Every combination of levels, with its probability, times every one of the `nodes` (N, d_x),
    standard normal, with its weight (N,): sums over them are expectations.
    """
    xp, d = m.__array_namespace__(), m.shape[-1]
    indicators = np.zeros(d, dtype=bool)
    next_states: list[Any] = []
    chances = [category.probabilities(m) for category in categories]
    for combination in itertools.product(*(range(len(c.levels)) for c in categories)):
        levels_drawn, surprise, chance = xp.zeros(m.shape), xp.zeros(m.shape), xp.ones(m.shape[:-1])
        for category, p, level in zip(categories, chances, combination, strict=True):
            place = np.eye(d)[list(category.columns)]
            indicators[list(category.columns)] = True
            levels_drawn = levels_drawn + category.levels[level] @ place
            surprise = surprise + (category.levels[level] - p @ category.levels) @ place
            chance = chance * p[..., level]
        centre = xp.where(indicators, levels_drawn, m + _times(law.gain, surprise))
        next_states.append((centre + _times(law.factor, nodes)[:, None], weights[:, None] * chance))
    states, shares = zip(*next_states, strict=True)
    return xp.concatenate(states), xp.concatenate(shares)


def state_categories(
    state: Sequence[str], coded: Sequence[CodedColumn], samples: Sequence[np.ndarray]
) -> Categories:
    """Return the categories of a state with these columns, in their order.

    They are the log's `coded` ones and, among the other columns, those that look like indicators
    in `samples` of the state, (m, d_x) each (`indicator_categories`).
    """
    places = {name: i for i, name in enumerate(state)}
    named = (c.names for c in coded if c.names and c.names[0] in places)
    of_coded = [Category(tuple(places[name] for name in names)) for names in named]
    taken = {column for category in of_coded for column in category}
    others = [i for i in range(len(state)) if i not in taken]
    rows = [sample[:, others] for sample in samples]
    indicators = indicator_categories(np.concatenate(rows)) if rows and others else ()
    detected = (Category(tuple(others[i] for i in c), c.complete) for c in indicators)
    return tuple(sorted((*of_coded, *detected), key=lambda category: category.columns))


def indicator_categories(rows: np.ndarray) -> Categories:
    """Return the categories whose indicators are among the columns of rows (n, d).

    A column with both zeros and ones is an indicator. Two belong to one category if they are never
    1 together although independent ones would be, or if one of the category is always 1. A single
    indicator is a category of two levels.
    """
    binary = ((rows == 0) | (rows == 1)).all(axis=0) & (rows.min(axis=0) < rows.max(axis=0))
    left = sorted(map(int, np.flatnonzero(binary)), key=lambda j: (-rows[:, j].sum(), j))
    groups: list[list[int]] = []
    for j in left:
        for group in groups:
            on = rows[:, group].sum(axis=1)
            expected = rows[:, j].mean() * on.sum()
            if expected >= EXPECTED_TOGETHER and not (rows[:, j] * on).any():
                group.append(j)
                break
        else:
            groups.append([j])
    groups = _completed(rows, groups)
    categories = (
        Category(tuple(sorted(group)), bool((rows[:, group].sum(axis=1) == 1).all()))
        for group in groups
    )
    return tuple(sorted(categories, key=lambda category: category.columns))


def _completed(rows: np.ndarray, groups: list[list[int]]) -> list[list[int]]:
    """Add single, rare columns to a group if every row then has exactly one 1."""
    for group in groups:
        alone = [other[0] for other in groups if len(other) == 1 and other is not group]
        fits = [j for j in alone if not (rows[:, j] * rows[:, group].sum(axis=1)).any()]
        if fits and (rows[:, group + fits].sum(axis=1) == 1).all():
            rest = [g for g in groups if g is not group and g[0] not in fits]
            return [*rest, group + fits]
    return groups


def _root(covariance: Array) -> Array:
    """Return a square root: Cholesky's for NumPy arrays, the symmetric one for JAX tracers."""
    if isinstance(covariance, np.ndarray):
        return square_root(covariance)
    xp = covariance.__array_namespace__()
    values, vectors = xp.linalg.eigh(covariance)
    return vectors * xp.sqrt(xp.clip(values, 0.0))[..., None, :]


def _times(matrix: Array, rows: Array) -> Array:
    """Multiply each of the rows (..., d) by a matrix (..., d, d)."""
    return rows @ matrix.__array_namespace__().swapaxes(matrix, -1, -2)


def _uniform(noise: Array) -> Array:
    """Return Phi(noise)."""
    in_numpy = isinstance(noise, np.ndarray | np.floating)
    library = "scipy.special" if in_numpy else "jax.scipy.special"
    return import_module(library).ndtr(noise)  # by name: a model loads quickly without JAX


def square_root(covariance: np.ndarray) -> np.ndarray:
    """Return F with F F^T = covariance (..., d, d): Cholesky's factor where it exists.

    Columns that do not vary are left out of the factorisation.
    """
    d = covariance.shape[-1]
    varies = np.flatnonzero(np.diagonal(covariance, axis1=-2, axis2=-1).reshape(-1, d).any(axis=0))
    if 0 < len(varies) < d:
        pick = np.eye(d)[varies]
        return np.asarray(pick.T @ square_root(pick @ covariance @ pick.T) @ pick)
    try:
        return np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(covariance)
        return np.asarray(vectors * np.sqrt(np.clip(values, 0, None))[..., None, :])
