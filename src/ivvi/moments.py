"""All that the estimators need of the data: A, B, C, D and friends, in one pass.

Every row gives one vector v = [phi(x, a), what psi(x, z) adds, y]; the moments are the
count, the mean and the scatter of v. They add over any split of the rows (Chan, Golub
and LeVeque's update), so shards, files and machines merge with ``+``, and the centred
form keeps its digits when a column's mean is large against its spread. The paper's
uncentred matrices (eq. 3.4) are blocks of E[v v^T]:

    A = E[psi phi^T]   B = E[psi psi^T]   C = E[y psi^T]   D = E[phi phi^T]
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from ivvi.checkpoint import Checkpoint
from ivvi.errors import FileError, InputError
from ivvi.files import Saved, nest, unnest
from ivvi.layout import Floats, Layout
from ivvi.logs import Batch, Counts, Log, Pass, Position
from ivvi.runs import Ints
from ivvi.scatter import merge, scatter_by_group, scatter_of

P = ParamSpec("P")
T = TypeVar("T")
FIELDS = ("number", "weight", "mean", "scatter")
SMALL_WIDTH = 512
"""Below this width a second BLAS thread costs more processor time than it saves."""


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


def compute_moments(
    log: Log,
    layout: Layout,
    *,
    episodes: bool = False,
    progress: Callable[[int], None] | None = None,
    checkpoint: Checkpoint | None = None,
) -> tuple[Moments, Counts]:
    """Walk once over a log and return its moments and what was met on the way.

    With a `checkpoint` the walk goes on where an earlier one was killed.
    """
    total, blocks, start = _resumed(layout, checkpoint)
    walk = log.batches(episodes=episodes, progress=progress, start=start)

    def state() -> Saved:
        blocks[:] = [merge_episodes(blocks)] if blocks else []
        return _with_position(replace(total, episodes=blocks[0] if blocks else None), walk)

    with few_threads(layout.width):
        for batch in walk:
            part = Moments.of_batch(layout, batch, episodes=episodes)
            total = total + part.without_episodes()
            if part.episodes is not None:
                blocks.append(part.episodes)
            if checkpoint is not None:
                checkpoint.offer("moments", state)
    if checkpoint is not None:
        checkpoint.offer("moments", state, now=True)
    return replace(total, episodes=merge_episodes(blocks) if blocks else None), walk.counts


def _resumed(
    layout: Layout, checkpoint: Checkpoint | None
) -> tuple[Moments, list[EpisodeMoments], Position | None]:
    """Return the totals, the episodes and the position from which to go on."""
    saved = checkpoint.stage("moments") if checkpoint is not None else None
    if saved is None:
        return Moments.empty(layout), [], None
    facts, arrays = saved
    total = Moments.restore(layout, facts, arrays)
    start = Position.restore(facts["position"], unnest("position", arrays))
    return total.without_episodes(), [total.episodes] if total.episodes else [], start


def _with_position(moments: Moments, walk: Pass) -> Saved:
    facts, arrays = moments.saved()
    where, rows = walk.position.saved()
    return {**facts, "position": where}, {**arrays, **nest("position", rows)}


def remembered(
    function: Callable[Concatenate[Moments, P], T],
) -> Callable[Concatenate[Moments, P], T]:
    """Compute a function of moments (and of words) once, as long as the moments live."""
    found: WeakKeyDictionary[Moments, dict[Any, T]] = WeakKeyDictionary()

    @wraps(function)
    def once(moments: Moments, /, *args: P.args, **kwargs: P.kwargs) -> T:
        known, key = found.setdefault(moments, {}), (args, tuple(kwargs.items()))
        if key not in known:
            known[key] = function(moments, *args, **kwargs)
        return known[key]

    return once


@remembered
def compress(moments: Moments) -> Floats:
    """Return at most p rows R with R^T R = scatter / weight, (m, p).

    They are a data set that no least-squares method can tell from the centred rows of v,
    so that estimators may use QR and SVD, whose errors grow with the condition number of
    the data and not with its square. Columns are brought to one scale first, which makes
    the result independent of units.
    """
    covariance = moments.scatter / moments.weight
    spread = np.sqrt(np.diag(covariance))
    varies = np.flatnonzero(~is_constant(moments))
    scale = spread[varies]
    correlation = covariance[np.ix_(varies, varies)] / np.outer(scale, scale)
    try:
        factor: Floats = np.linalg.cholesky(correlation).T
    except np.linalg.LinAlgError:  # collinear columns
        values, vectors = np.linalg.eigh(correlation)
        keep = values > 0
        factor = np.sqrt(values[keep])[:, None] * vectors[:, keep].T
    R = np.zeros((len(factor), len(spread)))
    R[:, varies] = factor * scale
    return R


def is_constant(moments: Moments) -> NDArray[np.bool_]:
    """Tell which columns of v never vary, up to rounding, (p,)."""
    spread = np.sqrt(np.diag(moments.scatter) / moments.weight)
    constant: NDArray[np.bool_] = spread <= 1e-12 * np.abs(moments.mean)
    return constant


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


@contextlib.contextmanager
def few_threads(width: int) -> Iterator[None]:
    """Keep BLAS to one thread for narrow data."""
    if width > SMALL_WIDTH:
        yield
    else:
        with _threads().limit(limits=1, user_api="blas"):
            yield


@cache
def _threads() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
