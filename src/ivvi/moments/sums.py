"""`Moments`: count, mean and scatter of rows, which add; the paper's matrices are blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from ivvi.errors import FileError, InputError
from ivvi.files import Saved, nest, unnest
from ivvi.layout import Floats, Layout
from ivvi.logs import Batch
from ivvi.runs import Ints
from ivvi.scatter import merge, scatter_by_group, scatter_of

FIELDS = ("number", "weight", "mean", "scatter")


@dataclass(frozen=True, slots=True)
class EpisodeMoments:
    """Moments of each episode: number (E,), weight (E,), mean (E, p), scatter (E, p, p)."""

    number: Ints
    weight: Floats
    mean: Floats
    scatter: Floats

    def __len__(self) -> int:
        return len(self.number)

    def saved(self) -> dict[str, np.ndarray]:
        """Return the arrays by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Moments:
    """Count, mean and scatter of v, and the paper's matrices as blocks of them.

    Attributes
    ----------
    layout
        Which column of v is what.
    n, weight
        Number of rows (of weight above zero) and sum of their weights.
    mean, scatter
        Weighted mean (p,) and sum of w (v - mean)(v - mean)^T (p, p).
    episodes
        The same for each episode, when asked for.
    """

    layout: Layout
    n: int
    weight: float
    mean: Floats
    scatter: Floats
    episodes: EpisodeMoments | None = None

    @classmethod
    def empty(cls, layout: Layout) -> Moments:
        """Return the moments of no rows: the zero of ``+``."""
        p = layout.width
        return cls(layout, 0, 0.0, np.zeros(p), np.zeros((p, p)))

    @classmethod
    def of_batch(cls, layout: Layout, batch: Batch, *, episodes: bool = False) -> Moments:
        """Return the moments of one batch."""
        V = layout.rows(batch)
        blocks = None
        if episodes:
            if batch.episode is None:
                raise InputError("per-episode moments need batches read with episodes=True")
            numbers, weights, means, scatters = scatter_by_group(V, batch.weight, batch.episode)
            blocks = EpisodeMoments(numbers, weights, *layout.embed(means, scatters))
        weight, mean, scatter = scatter_of(V, batch.weight)
        n = len(batch) if batch.weight is None else int(np.count_nonzero(batch.weight))
        return cls(layout, n, weight, *layout.embed(mean, scatter), blocks)

    def __add__(self, other: Moments) -> Moments:
        """Return the moments of both sets of rows together.

        Episodes are kept if both have them; those of one number are one episode, so that
        the episodes of another log must be `renumbered` first.
        """
        if self.layout != other.layout:
            raise InputError("moments of different features or columns cannot be added")
        weight, mean, scatter = merge(
            (self.weight, self.mean, self.scatter), (other.weight, other.mean, other.scatter)
        )
        blocks = None
        if self.n == 0 or other.n == 0:
            blocks = self.episodes or other.episodes
        elif self.episodes is not None and other.episodes is not None:
            blocks = merge_episodes([self.episodes, other.episodes])
        return Moments(self.layout, self.n + other.n, weight, mean, scatter, blocks)

    def renumbered(self, first: int) -> Moments:
        """Return the same moments with episodes numbered from `first` on."""
        if self.episodes is None:
            return self
        shift = first - int(self.episodes.number.min())
        blocks = replace(self.episodes, number=self.episodes.number + shift)
        return replace(self, episodes=blocks)

    def saved(self) -> Saved:
        """Return all but the layout as JSON values and arrays."""
        arrays = {"mean": self.mean, "scatter": self.scatter}
        if self.episodes is not None:
            arrays |= nest("episodes", self.episodes.saved())
        return {"n": self.n, "weight": self.weight}, arrays

    @classmethod
    def restore(
        cls, layout: Layout, facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
    ) -> Moments:
        """Rebuild moments from what `saved` returned."""
        parts = unnest("episodes", arrays)
        blocks = EpisodeMoments(**parts) if parts else None
        mean, scatter = arrays["mean"], arrays["scatter"]
        if scatter.shape != (layout.width,) * 2 or mean.shape != (layout.width,):
            raise FileError(
                f"moments of shape {scatter.shape} were saved; {layout.width} columns are wanted"
            )
        return cls(layout, facts["n"], facts["weight"], mean, scatter, blocks)

    def without_episodes(self) -> Moments:
        """Return the totals alone."""
        return replace(self, episodes=None)

    @property
    def second(self) -> Floats:
        """E[v v^T], (p, p)."""
        second: Floats = self.scatter / self.weight + np.outer(self.mean, self.mean)
        return second

    def _block(self, rows: Sequence[int], columns: Sequence[int]) -> Floats:
        return self.second[np.ix_(rows, columns)]

    @property
    def A(self) -> Floats:  # noqa: N802
        """E[psi phi^T], (d_psi, d_phi)."""
        return self._block(self.layout.psi_columns, self.layout.phi_columns)

    @property
    def B(self) -> Floats:  # noqa: N802
        """E[psi psi^T], (d_psi, d_psi)."""
        return self._block(self.layout.psi_columns, self.layout.psi_columns)

    @property
    def C(self) -> Floats:  # noqa: N802
        """E[y psi^T], (d_y, d_psi)."""
        return self._block(self.layout.y_columns, self.layout.psi_columns)

    @property
    def D(self) -> Floats:  # noqa: N802
        """E[phi phi^T], (d_phi, d_phi)."""
        return self._block(self.layout.phi_columns, self.layout.phi_columns)

    @property
    def yy(self) -> Floats:
        """E[y y^T], (d_y, d_y)."""
        return self._block(self.layout.y_columns, self.layout.y_columns)


def merge_episodes(parts: Sequence[EpisodeMoments]) -> EpisodeMoments:
    """Join per-episode moments, adding those of an episode that stands in several parts."""
    every = [np.concatenate([getattr(part, name) for part in parts]) for name in FIELDS]
    numbers, first, place = np.unique(every[0], return_index=True, return_inverse=True)
    weight, mean, scatter = (values[first] for values in every[1:])
    again = np.ones(len(place), dtype=bool)
    again[first] = False
    for i in np.flatnonzero(again):
        at = place[i]
        one = float(weight[at]), mean[at], scatter[at]
        weight[at], mean[at], scatter[at] = merge(one, tuple(v[i] for v in every[1:]))
    return EpisodeMoments(numbers, weight, mean, scatter)
