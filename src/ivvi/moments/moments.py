"""`Moments`: count, mean and scatter of rows, which add; the paper's matrices are blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from ivvi._io.arrays import Bools, Floats, Ints
from ivvi._io.files import Saved, nest, unnest
from ivvi._io.memory import check_memory
from ivvi._io.serialization import Unpacker
from ivvi.errors import LARGEST, FileError, InputError, LargeError
from ivvi.features.design import Design
from ivvi.logs import Batch, SharedPaths
from ivvi.moments.fixed_effects import Absorbed
from ivvi.moments.group_sums import GroupSums
from ivvi.moments.welford import merge, merged_groups, scatter_by_group, scatter_of

ROUNDING = 1e-6
"""Rounding error, relative to the largest, that saved sums of products may have."""
LARGEST_SUM = 1e200
"""Largest size of a sum of squares of numbers up to `LARGEST`, with room for many rows."""
FIELDS = ("number", "weight", "mean", "scatter")


@dataclass(frozen=True, slots=True, repr=False)
class EpisodeMoments:
    """Moments of each episode: number (E,), weight (E,), mean (E, p), scatter (E, p, p).

    Where `by` names a cluster column, of each of its values instead, `labels` (E,) in words:
    rows of one label belong together wherever they come from. The labels of episodes are hashes
    of their ids, so that sums name nobody; there are none where the ids are not known. `spans`
    (E, 2) are their first and last steps, and `counted` whether the ids only count: 0, 1, 2...
    """

    number: Ints
    weight: Floats
    mean: Floats
    scatter: Floats
    by: str = ""
    labels: tuple[str, ...] = ()
    spans: Floats | None = None
    counted: bool = False

    def __repr__(self) -> str:
        return f"EpisodeMoments({len(self):,} by {self.by or 'episode'})"

    def __len__(self) -> int:
        return len(self.number)

    def saved(self) -> dict[str, np.ndarray]:
        """Return the arrays by name."""
        arrays = {name: getattr(self, name) for name in FIELDS}
        arrays |= {"by": np.array(self.by)} if self.by else {}
        arrays |= {"labels": np.array(self.labels)} if self.labels or self.by else {}
        arrays |= {} if self.spans is None else {"spans": self.spans}
        return arrays | ({"counted": np.array(1)} if self.counted else {})

    @classmethod
    def restore(cls, arrays: Mapping[str, np.ndarray]) -> EpisodeMoments:
        """Rebuild from what `saved` returned."""
        number, weight, mean, scatter = (arrays[name] for name in FIELDS)
        by = str(arrays["by"]) if "by" in arrays else ""
        labels = tuple(arrays["labels"].tolist()) if "labels" in arrays or by else ()
        groups, p = len(number), mean.shape[-1]
        shapes = (groups,), (groups,), (groups, p), (groups, p, p)
        stored = tuple(part.shape for part in (number, weight, mean, scatter))
        if (
            stored != shapes
            or number.dtype.kind not in "iu"
            or len(labels) not in (groups, 0 if by == "" else groups)
        ):
            raise FileError(f"invalid: its sums by {by or 'episode'} do not fit together")
        spans = arrays.get("spans")
        if spans is not None and spans.shape != (groups, 2):
            raise FileError("invalid: the steps of its episodes do not fit their sums")
        return cls(number, weight, mean, scatter, by, labels, spans, "counted" in arrays)

    def begins_anew(self, others: EpisodeMoments) -> bool:
        """Whether numbered episode ids and their steps repeat those of another log."""
        if not (self.counted and others.counted and self.labels and others.labels):
            return False
        if self.spans is None or others.spans is None:
            return False
        known = dict(zip(others.labels, others.spans, strict=True))
        own = zip(self.labels, self.spans, strict=True)
        pairs = [(span, known[label]) for label, span in own if label in known]
        return any(span[0] <= other[1] and other[0] <= span[1] for span, other in pairs)

    def first_sums(self, column: str, origin: Floats) -> GroupSums:
        """Return the sums of w (v - origin) of each group; rows count as of weight one."""
        sums = self.weight[:, None] * (self.mean - origin)
        return GroupSums(column, self.number, self.weight, self.weight, sums, origin)

    def following(self, others: EpisodeMoments) -> EpisodeMoments:
        """Return the same, numbered after another log's; groups of one label have one number."""
        first = int(others.number.max(initial=-1)) + 1
        if not (self.labels and others.labels) or self.begins_anew(others):
            return replace(self, number=self.number - int(self.number.min()) + first)
        number_of = dict(zip(others.labels, others.number.tolist(), strict=True))
        number = [number_of.setdefault(label, first + i) for i, label in enumerate(self.labels)]
        return replace(self, number=np.array(number, dtype=np.int64))

    @classmethod
    def of_rows(
        cls, design: Design, batch: Batch, V: Floats, codes: Ints, by: str
    ) -> EpisodeMoments:
        """Return the moments of the rows V (n, p) of a batch by codes (n,), which are labels."""
        numbers, weights, means, scatters = scatter_by_group(V, batch.weight, codes)
        labels = tuple(map(str, numbers.tolist()))
        return cls(numbers, weights, *design.embed(means, scatters), by, labels)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True, repr=False)
class Moments:
    """Count, mean and scatter of v, and the paper's matrices as blocks of them.

    Attributes
    ----------
    design
        Which column of v is what.
    n, weight
        Number of rows (of weight above zero) and sum of their weights.
    mean, scatter
        Weighted mean (p,) and sum of w (v - mean)(v - mean)^T (p, p).
    episodes
        The same for each episode (or cluster), when asked for.
    groups
        First sums of the groups of some columns, where a pass was asked for them; sums of
        several sets of rows have none.
    absorbed
        Fixed effects that were taken from the rows before.
    others
        Moments of the groups of further columns, where rows are clustered by two and the
        first of them makes `episodes`.
    paths
        Groups of episodes that instruments were set for, where a pass was asked to look.
    """

    design: Design
    n: int
    weight: float
    mean: Floats
    scatter: Floats
    episodes: EpisodeMoments | None = None
    groups: tuple[GroupSums, ...] = ()
    absorbed: Absorbed | None = None
    others: tuple[EpisodeMoments, ...] = ()
    paths: SharedPaths | None = None

    def __repr__(self) -> str:
        return f"Moments(n={self.n:,}, {self.design.width} columns)"

    @classmethod
    def empty(cls, design: Design) -> Moments:
        """Return the moments of no rows: the zero of ``+``."""
        p = design.width
        check_memory(4 * 8 * p**2, f"sums of {p:,} features")
        return cls(design, 0, 0.0, np.zeros(p), np.zeros((p, p)))

    @classmethod
    def of_batch(
        cls,
        design: Design,
        batch: Batch,
        *,
        episodes: bool = False,
        rows: Floats | None = None,
        codes: Ints | None = None,
    ) -> Moments:
        """Return the moments of one batch, whose `rows` (n, p) of v may be known already.

        Those of `episodes` are of the groups that `codes` (n,) tells apart, if given.
        """
        V = design.rows(batch) if rows is None else rows
        codes = batch.episode if codes is None else codes
        if episodes and codes is None:
            raise InputError("per-episode moments need batches read with episodes=True")
        blocks = None
        with np.errstate(over="ignore", invalid="ignore"):
            if episodes and codes is not None:
                numbers, *groups = scatter_by_group(V, batch.weight, codes)
                weight, mean, scatter = merged_groups(*groups)
                blocks = EpisodeMoments(numbers, groups[0], *design.embed(*groups[1:]))
            else:
                weight, mean, scatter = scatter_of(V, batch.weight)
            if not (weight * mean**2 + np.diag(scatter) <= LARGEST**2).all():  # a cheap look
                _check_size(V, design)
        n = len(batch) if batch.weight is None else int(np.count_nonzero(batch.weight))
        return cls(design, n, weight, *design.embed(mean, scatter), blocks)

    def __add__(self, other: Moments) -> Moments:
        """Return the moments of both sets of rows together.

        Episodes are kept if both have them; those of one number are one episode, so that
        the episodes of another log must be numbered on first (`following`).
        """
        if self.design != other.design:
            raise InputError("moments of different features or columns cannot be added")
        weight, mean, scatter = merge(
            (self.weight, self.mean, self.scatter), (other.weight, other.mean, other.scatter)
        )
        blocks = None
        if self.n == 0 or other.n == 0:
            blocks = self.episodes or other.episodes
        elif self.episodes is not None and other.episodes is not None:
            blocks = merge_episodes([self.episodes, other.episodes])
        n, others = self.n + other.n, self._others_with(other)
        return Moments(self.design, n, weight, mean, scatter, blocks, others=others)

    def _others_with(self, other: Moments) -> tuple[EpisodeMoments, ...]:
        """Join the moments of further columns that both have; groups of one label are one."""
        if self.n == 0 or other.n == 0:
            return self.others or other.others
        theirs = {block.by: block for block in other.others}
        pairs = [(block, theirs[block.by]) for block in self.others if block.by in theirs]
        return tuple(merge_episodes([one, two.following(one)]) for one, two in pairs)

    def following(self, others: Moments) -> Moments:
        """Return the same moments with episodes numbered after another log's."""
        if self.episodes is None or others.episodes is None:
            return self
        return replace(self, episodes=self.episodes.following(others.episodes))

    def group_sums(self, column: str | None) -> GroupSums | None:
        """Return the first sums by a column, if they were kept."""
        own = next((sums for sums in self.groups if sums.by == column), None)
        if own is not None or column is None:
            return own
        clusters = next((block for block in self.others if block.by == column), None)
        return None if clusters is None else clusters.first_sums(column, self.mean)

    def clusters_by(self, column: str, episode: str | None = None) -> EpisodeMoments | None:
        """Return the moments of the groups of a column, if they are kept.

        Those that are kept by episode are taken for the column, unless the name of the `episode`
        column is another.
        """
        other = next((block for block in self.others if block.by == column), None)
        if other is not None or self.episodes is None:
            return other
        return self.episodes if (self.episodes.by or episode or column) == column else None

    def saved(self) -> Saved:
        """Return all but the design as JSON values and arrays."""
        arrays = {"mean": self.mean, "scatter": self.scatter}
        if self.episodes is not None:
            arrays |= nest("episodes", self.episodes.saved())
        for i, block in enumerate(self.others):
            arrays |= nest(f"others{i}", block.saved())
        absorbed = None if self.absorbed is None else asdict(self.absorbed)
        return {"n": self.n, "weight": self.weight, "absorbed": absorbed}, arrays

    @classmethod
    def restore(
        cls, design: Design, facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
    ) -> Moments:
        """Rebuild moments from what `saved` returned."""
        parts = unnest("episodes", arrays)
        blocks = EpisodeMoments.restore(parts) if parts else None
        others: list[EpisodeMoments] = []
        while parts := unnest(f"others{len(others)}", arrays):
            others.append(EpisodeMoments.restore(parts))
        mean, scatter = arrays["mean"], arrays["scatter"]
        if scatter.shape != (design.width,) * 2 or mean.shape != (design.width,):
            raise FileError(
                f"invalid: its sums have shape {scatter.shape}; expected {design.width} columns"
            )
        n, weight = facts["n"], facts["weight"]
        if type(n) is not int or n < 0 or type(weight) not in (int, float):
            raise FileError(f"invalid: its sums are of {n!r} rows of weight {weight!r}")
        _check_sums(design, weight, mean, scatter)
        for block in (*([] if blocks is None else [blocks]), *others):
            if block.mean.shape[-1] != design.width:
                raise FileError(f"invalid: its sums by group are not of {design.width} columns")
            _check_sums(design, block.weight, block.mean, block.scatter)
        absorbed = Unpacker({}).unpack(Absorbed | None, facts["absorbed"])
        return cls(
            *(design, n, weight, mean, scatter, blocks), absorbed=absorbed, others=tuple(others)
        )

    def lost(self, clusters: Sequence[str] = ()) -> int:
        """Return the degrees of freedom that absorbed effects cost, given the `clusters`."""
        return 0 if self.absorbed is None else self.absorbed.freedom(clusters)

    def without_episodes(self) -> Moments:
        """Return the totals, without the moments of episodes."""
        return replace(self, episodes=None, others=(), paths=None)

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
        return self._block(self.design.psi_columns, self.design.phi_columns)

    @property
    def B(self) -> Floats:  # noqa: N802
        """E[psi psi^T], (d_psi, d_psi)."""
        return self._block(self.design.psi_columns, self.design.psi_columns)

    @property
    def C(self) -> Floats:  # noqa: N802
        """E[y psi^T], (d_y, d_psi)."""
        return self._block(self.design.y_columns, self.design.psi_columns)

    @property
    def D(self) -> Floats:  # noqa: N802
        """E[phi phi^T], (d_phi, d_phi)."""
        return self._block(self.design.phi_columns, self.design.phi_columns)


def _check_size(V: Floats, design: Design) -> None:
    """Refuse features that are too large to compute with, naming the first."""
    for column, size in zip(design.varying, np.abs(V).max(axis=0), strict=True):
        if not size <= LARGEST:
            raise LargeError(
                f"the feature {design.names[column]!r} reaches {size:g}, too large to compute "
                f"with; expected at most {LARGEST:g}: use other units or lower powers"
            )


def _check_sums(design: Design, weight: Any, mean: Floats, scatter: Floats) -> None:
    """Refuse saved sums that no rows can have: values that are not finite, or absurdly large."""
    bad = ~(np.abs(mean) <= LARGEST)
    bad |= ~(np.abs(scatter) <= LARGEST_SUM).all(axis=-1)
    if not bad.any():
        bad = _is_no_scatter(scatter)
    if bad.any():
        column = int(np.flatnonzero(bad.reshape(-1, design.width).any(axis=0))[0])
        raise FileError(
            f"invalid: its sums of {design.names[column]!r} are not finite numbers, or too large "
            "to compute with, or sums over no rows"
        )
    if not (np.isfinite(weight) & (np.asarray(weight) >= 0)).all():
        raise FileError("invalid: its weights are not finite numbers of at least 0")


def _is_no_scatter(scatter: Floats) -> Bools:
    """Return the columns whose products S (..., p, p) no rows can have: S_ij^2 <= S_ii S_jj.

    For the many small matrices of episodes only S_ii >= 0 is checked.
    """
    squares = np.diagonal(scatter, axis1=-2, axis2=-1)
    slack = ROUNDING * np.abs(squares).max(axis=-1, initial=0.0, keepdims=True)
    bad: Bools = squares < -slack
    if scatter.ndim == 2:
        size = np.sqrt(np.maximum(squares, 0.0))
        most = size[:, None] * size * (1 + ROUNDING) + slack
        bad |= (np.abs(scatter) > most).any(axis=-1)
        bad |= (np.abs(scatter - scatter.T) > ROUNDING * most).any(axis=-1)
    return bad


def merge_episodes(parts: Sequence[EpisodeMoments]) -> EpisodeMoments:
    """Join per-episode moments, and add up those of an episode that is in several parts."""
    every = [np.concatenate([getattr(part, name) for part in parts]) for name in FIELDS]
    numbers, first, place = np.unique(every[0], return_index=True, return_inverse=True)
    weight, mean, scatter = (values[first] for values in every[1:])
    again = np.bincount(place) > 1
    if again.any():
        rows = np.flatnonzero(again[place])
        at = (np.cumsum(again) - 1)[place[rows]]
        sums = _added(at, *(values[rows] for values in every[1:]))
        weight[again], mean[again], scatter[again] = sums
    named = [label for part in parts for label in part.labels]
    labels = tuple(named[i] for i in first) if len(named) == len(place) else ()
    spans = [part.spans for part in parts if part.spans is not None]
    joined_spans = None
    if labels and len(spans) == len(parts):
        joined_spans = np.tile([np.inf, -np.inf], (len(numbers), 1))
        np.minimum.at(joined_spans[:, 0], place, np.concatenate(spans)[:, 0])
        np.maximum.at(joined_spans[:, 1], place, np.concatenate(spans)[:, 1])
    counted = bool(labels) and all(part.counted for part in parts)
    return EpisodeMoments(
        numbers, weight, mean, scatter, parts[0].by, labels, joined_spans, counted
    )


def _added(
    at: Ints, weight: Floats, mean: Floats, scatter: Floats
) -> tuple[Floats, Floats, Floats]:
    """Add the moments of rows that have the same place `at` (m,): weight, mean and scatter."""
    count, p = int(at.max()) + 1, mean.shape[1]
    total = np.bincount(at, weight).astype(np.float64)
    centre, spread = np.zeros((count, p)), np.zeros((count, p, p))
    np.add.at(centre, at, weight[:, None] * mean)
    centre /= total[:, None]
    shift = mean - centre[at]
    np.add.at(spread, at, scatter + weight[:, None, None] * shift[:, :, None] * shift[:, None])
    return total, centre, spread
