"""How outputs give the next state: columns are predicted, carried over or redrawn; episodes end.

The outputs are y = W phi(x, a): the next values of the predicted columns, which stand first in the
state, and the chance of each kind of end, p in all. In the log the next state of a row that ends
its episode is its own state (an episode that has ended stands still), so that there is no selection
on survival, and E[y | x, do(a)] = (1 - p) E[x' | goes on] + p x. A plan needs the mean of episodes
that go on,

    E[x' | x, do(a), goes on] = (y - p x) / (1 - p).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ivvi._io.arrays import Array
from ivvi.features.blocks import Constant
from ivvi.features.feature_map import FeatureMap

LARGEST_CHANCE = 0.9
"""Largest chance of ending that corrects the mean; beyond it episodes hardly ever go on."""


@dataclass(frozen=True)
class StateUpdate:
    """The next state as a function of outputs, state and action.

    Attributes
    ----------
    predicted
        Number of outputs that are next values of the first columns of the state.
    width, actions
        Columns of the state and of the action, d_x and d_a.
    copied
        For each carried column its place in the state, and the place in [x, a] of its next value.
    drawn, means, covariance
        Places of the columns that are drawn anew at every step, and their distribution.
    ends
        Number of outputs after the predicted ones that are chances of a kind of end.
    ended
        Share of the log's rows that ended an episode.
    """

    predicted: int
    width: int
    actions: int
    copied: tuple[tuple[int, int], ...] = ()
    drawn: tuple[int, ...] = ()
    means: tuple[float, ...] = ()
    covariance: tuple[tuple[float, ...], ...] = ()
    ends: int = 0
    ended: float = 0.0

    @classmethod
    def of(
        cls,
        state: Sequence[str],
        action: Sequence[str],
        carried: Mapping[str, str],
        states: np.ndarray,
        ends: int = 0,
        ended: float = 0.0,
    ) -> StateUpdate:
        """Return the update; columns drawn anew have the moments of the rows `states` (m, d_x)."""
        places = {name: i for i, name in enumerate((*state, *action))}
        copied = tuple((places[name], places[src]) for name, src in carried.items() if src)
        drawn = tuple(places[name] for name, source in carried.items() if not source)
        rows = states[:, list(drawn)] if len(states) else np.zeros((1, len(drawn)))
        centred = rows - rows.mean(axis=0)
        cov = centred.T @ centred / len(rows)
        return cls(
            len(state) - len(carried),
            len(state),
            len(action),
            copied,
            drawn,
            tuple(rows.mean(axis=0).tolist()),
            tuple(map(tuple, cov.tolist())),
            ends,
            ended,
        )

    @property
    def is_plain(self) -> bool:
        """Whether the outputs are the next state, and nothing else happens."""
        return not (self.copied or self.drawn or self.ends)

    def chance(self, y: Array) -> Array:
        """Return the probability (...) that the episode ends, for outputs y (..., d_y)."""
        return self.chances(y).sum(axis=-1)

    def chances(self, y: Array) -> Array:
        """Return the probability of each kind of end, (..., ends), for outputs y (..., d_y).

        The outputs, clipped to [0, 1], and scaled to sum to 1 where they sum to more.
        """
        xp, n = y.__array_namespace__(), self.predicted
        p = xp.clip(y[..., n : n + self.ends], 0.0, 1.0)
        return p / xp.maximum(p.sum(axis=-1, keepdims=True), 1.0)

    def mean(self, y: Array, x: Array, a: Array) -> Array:
        """Return E[x' | x, do(a), goes on], (..., d_x), for outputs y (..., d_y)."""
        m = y[..., : self.predicted]
        if self.is_plain:
            return m
        xp = y.__array_namespace__()
        if self.ends:
            p = xp.clip(self.chance(y), 0.0, LARGEST_CHANCE)[..., None]
            m = (m - p * x[..., : self.predicted]) / (1.0 - p)
        return self.observed(m, x, a)

    def observed(self, y: Array, x: Array, a: Array) -> Array:
        """Return x' (..., d_x) for outputs that were observed, and not their means."""
        xp, n = y.__array_namespace__(), self.predicted
        if len(self.copied) + len(self.drawn) == 0:
            return y[..., :n]
        state_and_action = xp.concatenate([x, a], axis=-1)
        return (
            y[..., :n] @ self._place(range(n))
            + state_and_action @ self._copies()
            + self._constant()
        )

    def affine(self, c: Array, F_x: Array, F_a: Array) -> tuple[Array, Array, Array]:
        """Return c, F_x, F_a of the whole state for those of the predicted columns."""
        put, copies = self._place(range(self.predicted)), self._copies()
        of_x, of_a = copies[: self.width].T, copies[self.width :].T
        return c @ put + self._constant(), put.T @ F_x + of_x, put.T @ F_a + of_a

    def noise(self, covariance: Array) -> Array:
        """Return the covariance of x' (..., d_x, d_x) for that of the outputs (..., d_y, d_y).

        For episodes that go on: the part of the outputs that the end explains is removed.
        """
        n = self.predicted
        of_predicted = covariance[..., :n, :n]
        if self.is_plain:
            return of_predicted
        xp = covariance.__array_namespace__()
        if self.ends:
            end = slice(n, n + self.ends)
            cross, of_ends = covariance[..., :n, end], covariance[..., end, end]
            explained = cross @ xp.linalg.pinv(of_ends, rtol=1e-9, hermitian=True)
            of_predicted = (of_predicted - explained @ xp.swapaxes(cross, -1, -2)) / (
                1.0 - min(self.ended, 0.9)
            )
        put, of_drawn = self._place(range(n)), self._place(self.drawn)
        moved = put.T @ of_predicted @ put
        return moved + of_drawn.T @ np.array(self.covariance) @ of_drawn if self.drawn else moved

    def _place(self, columns: Any) -> np.ndarray:
        """Return rows with a single one, (k, d_x), that put k numbers in their columns."""
        return np.eye(self.width)[list(columns)]

    def _copies(self) -> np.ndarray:
        """Return the map (d_x + d_a, d_x) from [x, a] to the carried columns."""
        copies = np.zeros((self.width + self.actions, self.width))
        for column, source in self.copied:
            copies[source, column] = 1.0
        return copies

    def _constant(self) -> np.ndarray:
        return (
            np.asarray(self.means) @ self._place(self.drawn) if self.drawn else np.zeros(self.width)
        )


def affine_part(
    phi: FeatureMap, W: Array, update: StateUpdate, d_x: int
) -> tuple[Array, Array, Array]:
    """Return c (d_x,), F_x (d_x, d_x), F_a (d_x, d_a) of x' = c + F_x x + F_a a.

    `phi` holds nothing but a constant, states and actions; W (d_y, d_phi) are its weights.
    """
    d_next = update.predicted
    widths = {"c": 1, "x": d_x, "a": update.actions}
    parts: dict[str, Array] = {name: np.zeros((d_next, width)) for name, width in widths.items()}
    column = 0
    for block in phi.blocks:
        name = "c" if isinstance(block, Constant) else "x" if block.of == "state" else "a"
        parts[name] = parts[name] + W[:d_next, column : column + widths[name]]
        column += widths[name]
    affine = parts["c"][:, 0], parts["x"], parts["a"]
    return affine if update.is_plain else update.affine(*affine)
