"""Adding up products of residuals and instruments, in bounded memory.

The score of row i is g_i = e_i (x) psi~_i, residuals times whitened instruments. What
standard errors need is the variance of its sum, under one of three readings:

    rows       sum_i g_i g_i^T
    clusters   sum_c G_c G_c^T,  G_c = sum of g_i over the rows of cluster c
    HAC        sum_i g_i k_i^T + k_i g_i^T - g_i g_i^T,  k_i = sum_l w_l g_{i-l}

with lags between steps that follow each other in an episode. Rows arrive in chunks, transposed:
resid (d_e, n), white (r, n); what is kept of them is copied. Sums over rows and over clusters that
several processes made, each of a stretch of the log, merge.

Entry (a c, b d) of the sum over rows does not change if a and b, or c and d, are swapped. So the
products e_a e_b, a <= b, times the products w_c w_d, c <= d, give the whole sum with half the work,
and overlapping groups of residuals share their common products (`PairSums`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ivvi._io.arrays import Floats, Ints
from ivvi._io.result import Compact
from ivvi.moments.welford import run_products, run_starts

Renumber = Callable[[Ints], Ints]
"""Turns the codes of a stretch of the log into those of the whole."""
RowGroup = slice | list[int]
"""Which of the residuals are squared together."""


@dataclass(frozen=True, slots=True, repr=False)
class Piece(Compact):
    """One sum of squares: for each group of residuals (k, k), and how many clusters it has."""

    groups: tuple[Floats, ...]
    clusters: int | None = None
    sign: float = 1.0


class Runs:
    """Clusters or episodes of some rows, `codes` (n,), and how to bring each one's together."""

    __slots__ = ("codes", "order", "starts")

    def __init__(self, codes: Ints) -> None:
        self.codes, self.order = codes, None
        if codes.ndim == 1:
            if np.any(codes[1:] < codes[:-1]):
                self.order = np.argsort(codes, kind="stable")
                self.codes = codes[self.order]
            self.starts = run_starts(self.codes)


class Meat(Protocol):
    """Something to which chunks of rows are added."""

    def add(self, resid: Floats, white: Floats, runs: Runs) -> None:
        """Add rows of these clusters or episodes."""
        ...

    def piece(self) -> Piece:
        """Return the sum so far."""
        ...


class RowMeat:
    """Each row by itself: White's sum, directly or, where that is less work, by `PairSums`."""

    def __init__(self, groups: Sequence[RowGroup]) -> None:
        self._groups, self._sums = groups, [np.zeros((1, 1))] * len(groups)
        self._pairs: PairSums | None = None
        self._began = False

    def add(self, resid: Floats, white: Floats, runs: Runs) -> None:
        """Add rows, whatever their clusters."""
        if not self._began:
            self._began, paired = True, worth_pairing(self._groups, len(white))
            self._pairs = PairSums(self._groups, len(white)) if paired else None
        if self._pairs is not None:
            self._pairs.add(resid, white)
            return
        for i, group in enumerate(self._groups):
            g = products(resid[group], white)
            self._sums[i] = self._sums[i] + g @ g.T

    def piece(self) -> Piece:
        """Return the sum so far."""
        return Piece(tuple(self.part()))

    def part(self) -> list[Floats]:
        """Return the part to be merged."""
        if self._pairs is None:
            return self._sums
        return [own + new for own, new in zip(self._sums, self._pairs.squares(), strict=True)]

    def merge(self, part: list[Floats], renumber: Renumber) -> None:
        """Add what another process has added up."""
        self._sums = [own + new for own, new in zip(self._sums, part, strict=True)]


class SquareMeat:
    """Each row by itself, and only the squares of its products: one (r,) per residual."""

    def __init__(self, residuals: int) -> None:
        self._sums = [np.zeros(1)] * residuals

    def add(self, resid: Floats, white: Floats, runs: Runs) -> None:
        """Add rows, whatever their clusters."""
        self._sums = [
            own + new for own, new in zip(self._sums, resid**2 @ (white**2).T, strict=True)
        ]

    def piece(self) -> Piece:
        """Return the sum so far."""
        return Piece(tuple(self._sums))

    def part(self) -> list[Floats]:
        """Return the part to be merged."""
        return self._sums

    def merge(self, part: list[Floats], renumber: Renumber) -> None:
        """Add what another process has added up."""
        self._sums = [own + new for own, new in zip(self._sums, part, strict=True)]


@dataclass(frozen=True, slots=True, repr=False)
class ClusterPart(Compact):
    """Clusters of a stretch of the log: squares of those that are whole, sums of the others.

    `codes` (c,) are the clusters that may go on elsewhere, `sums` theirs, (c, k) a group.
    """

    squares: list[Floats]
    whole: int
    codes: Ints
    sums: list[Floats]


class ClusterMeat:
    """Clusters of rows.

    Where the rows of a cluster are known to stand together (`ordered`), only the last one
    is open at any time, and the first one too in a stretch of the log (`inside`) that may
    begin in the middle of it; otherwise one sum is held for each cluster.
    """

    def __init__(self, groups: Sequence[RowGroup], *, ordered: bool, inside: bool = False) -> None:
        self._groups, self._ordered, self._inside = groups, ordered, inside
        self._first: tuple[int, list[Floats]] | None = None
        self._sums = [np.zeros((1, 1))] * len(groups)
        self._open_sums: list[Floats] | None = None  # for each group (clusters, k)
        self._present = np.zeros(0, dtype=bool)  # which clusters, when not ordered
        self._open = -1  # code of the cluster that is held, when ordered
        self._count = 0

    def add(self, resid: Floats, white: Floats, runs: Runs) -> None:
        """Add rows."""
        if runs.order is not None:
            resid, white = resid[:, runs.order], white[:, runs.order]
        self.add_sums(runs.codes[runs.starts], run_products(resid, white, runs.starts))

    def add_sums(self, codes: Ints, whole: Floats) -> None:
        """Add sums over parts of clusters, codes (c,) in order and sums (c, d_e, r)."""
        self._take(codes, [whole[:, group].reshape(len(codes), -1) for group in self._groups])

    def _take(self, codes: Ints, sums: list[Floats]) -> None:
        if not self._ordered:
            self._hold(codes, sums)
            return
        self._count += len(codes)
        if self._open_sums is not None and codes[0] == self._open:
            self._count -= 1
            for last, new in zip(self._open_sums, sums, strict=True):
                new[0] += last[0]
        elif self._open_sums is not None:
            self._close(self._open, self._open_sums)
        if len(codes) > 1:
            self._close(int(codes[0]), [part[:1] for part in sums])
            self._square([part[1:-1] for part in sums])
        self._open_sums, self._open = [part[-1:] for part in sums], int(codes[-1])

    def _close(self, code: int, sums: list[Floats]) -> None:
        if self._inside and self._first is None:
            self._first = code, sums
        else:
            self._square(sums)

    def _hold(self, codes: Ints, sums: Sequence[Floats]) -> None:
        size = int(codes.max()) + 1
        if self._open_sums is None:
            self._open_sums = [np.zeros((0, part.shape[1])) for part in sums]
        if size > len(self._open_sums[0]):
            more = max(size, 2 * len(self._open_sums[0])) - len(self._open_sums[0])
            self._open_sums = [np.pad(part, ((0, more), (0, 0))) for part in self._open_sums]
            self._present = np.pad(self._present, (0, more))
        for total, new in zip(self._open_sums, sums, strict=True):
            total[codes] += new
        self._present[codes] = True
        self._count = int(self._present.sum())

    def _square(self, sums: Sequence[Floats]) -> None:
        for i, part in enumerate(sums):
            self._sums[i] = self._sums[i] + part.T @ part

    def piece(self) -> Piece:
        """Return the sum so far."""
        if self._open_sums is not None:
            self._square(self._open_sums)
            self._open_sums = None
        return Piece(tuple(self._sums), self._count)

    def part(self) -> ClusterPart:
        """Return the squares of whole clusters, and the sums of those that may continue."""
        if not self._ordered:
            codes = np.flatnonzero(self._present)
            return ClusterPart(
                self._sums, 0, codes, [part[codes] for part in self._open_sums or ()]
            )
        ends = [] if self._first is None else [self._first]
        ends += [] if self._open_sums is None else [(self._open, self._open_sums)]
        codes = np.array([code for code, _ in ends], dtype=np.int64)
        sums = [np.vstack(parts) for parts in zip(*(sums for _, sums in ends), strict=True)]
        return ClusterPart(self._sums, self._count - len(ends), codes, sums)

    def merge(self, part: ClusterPart, renumber: Renumber) -> None:
        """Add a part in the order of the log; `renumber` gives its clusters their codes here."""
        self._sums = [own + new for own, new in zip(self._sums, part.squares, strict=True)]
        self._count += part.whole
        if len(part.codes):
            self._take(renumber(part.codes), part.sums)


@dataclass(frozen=True, slots=True, repr=False)
class Edge(Compact):
    """A few rows: resid (d_e, n), white (r, n) and codes of the stretches of steps, (n, 2)."""

    resid: Floats
    white: Floats
    codes: Ints

    def __len__(self) -> int:
        return len(self.codes)

    def __add__(self, other: Edge) -> Edge:
        """Put the other's rows after these."""
        resid, white = np.hstack([self.resid, other.resid]), np.hstack([self.white, other.white])
        return Edge(resid, white, np.concatenate([self.codes, other.codes]))

    def first(self, count: int) -> Edge:
        """Return a copy of the first rows."""
        return self._copied(slice(count))

    def last(self, count: int) -> Edge:
        """Return a copy of the last rows."""
        return self._copied(slice(max(0, len(self) - count), None))

    def _copied(self, rows: slice) -> Edge:
        return Edge(self.resid[:, rows].copy(), self.white[:, rows].copy(), self.codes[rows])

    def follow(self, lag: int) -> NDArray[np.bool_]:
        """Return which rows are `lag` steps after another in the same stretch, (n - lag,)."""
        follows: NDArray[np.bool_] = np.all(self.codes[lag:] == self.codes[:-lag], axis=1)
        return follows


@dataclass(frozen=True, slots=True, repr=False)
class HacPart(Compact):
    """Sums within a stretch of the log, and its first and last rows, which meet others."""

    sums: list[Floats]
    head: Edge
    tail: Edge


class HacMeat:
    """Rows of an episode that depend on those just before them, `codes` (n, 2) being equal."""

    def __init__(self, groups: Sequence[RowGroup], weights: Floats) -> None:
        self._groups, self._weights, self._lags = groups, weights, len(weights) - 1
        self._sums = [np.zeros((1, 1))] * len(groups)
        self._head: Edge | None = None
        self._tail: Edge | None = None

    def add(self, resid: Floats, white: Floats, runs: Runs) -> None:
        """Add rows in the order of their episodes."""
        rows = Edge(resid, white, runs.codes)
        self._tail = self._meet(rows, inside=True)
        if self._head is None:
            self._head = rows.first(self._lags)
        elif len(self._head) < self._lags:
            self._head = (self._head + rows).first(self._lags)

    def _meet(self, rows: Edge, *, inside: bool) -> Edge:
        """Add products of the rows with those before them; returns the last rows of all.

        Those among the rows themselves are added where `inside` says so.
        """
        first = 0 if self._tail is None else len(self._tail)
        rows = rows if self._tail is None else self._tail + rows
        reach = range(1, min(self._lags, len(rows) - 1) + 1)
        weights = [self._weights[lag] * rows.follow(lag) for lag in reach]
        for i, group in enumerate(self._groups):
            g = products(rows.resid[group], rows.white)
            earlier, k, part = g, 0.5 * g, np.empty_like(g)
            if not inside:
                earlier, k = g.copy(), np.zeros_like(g)
                earlier[:, first:] = 0.0
            for lag, weight in zip(reach, weights, strict=True):
                k[:, lag:] += np.multiply(earlier[:, :-lag], weight, out=part[:, lag:])
            cross = g[:, first:] @ k[:, first:].T
            self._sums[i] = self._sums[i] + cross + cross.T
        return rows.last(self._lags)

    def piece(self) -> Piece:
        """Return the sum so far."""
        return Piece(tuple(self._sums))

    def part(self) -> HacPart | None:
        """Return the part to be merged; None if there were no rows."""
        if self._head is None or self._tail is None:
            return None
        return HacPart(self._sums, self._head, self._tail)

    def merge(self, part: HacPart | None, renumber: Renumber) -> None:
        """Add a part in the order of the log: its sums, and its first rows with our last."""
        if part is None:
            return
        head, tail = (replace(edge, codes=renumber(edge.codes)) for edge in (part.head, part.tail))
        self._sums = [ours + new for ours, new in zip(self._sums, part.sums, strict=True)]
        self._meet(head, inside=False)
        self._tail = (tail if self._tail is None else self._tail + tail).last(self._lags)


def products(resid: Floats, white: Floats) -> Floats:
    """Return the scores e_i (x) psi~_i, (d_e r, n)."""
    return (resid[:, None] * white).reshape(len(resid) * len(white), -1)


def kernel_weights(kernel: str, bandwidth: int) -> Floats:
    """Return the weights of lags 0, ..., bandwidth: ``bartlett`` or ``parzen``."""
    u = np.arange(bandwidth + 1) / (bandwidth + 1)
    if kernel == "bartlett":
        return 1 - u
    return np.where(u <= 0.5, 1 - 6 * u**2 + 6 * u**3, 2 * (1 - u) ** 3)


def members(group: RowGroup) -> list[int]:
    """Return the residuals of a group."""
    return list(range(group.start or 0, group.stop)) if isinstance(group, slice) else group


def worth_pairing(groups: Sequence[RowGroup], rank: int) -> bool:
    """Whether it pays to form the pairs of `rank` coordinates for these pairs of residuals.

    Timed for 1 to 40 residuals and 1 to 100 coordinates.
    """
    return 5 * sum(len(members(group)) ** 2 for group in groups) > 2 * rank


class PairSums:
    """Adds rows to the sums of all pairs that the groups need."""

    def __init__(self, groups: Sequence[RowGroup], rank: int) -> None:
        together: dict[int, set[int]] = {}
        for group in map(members, groups):
            for a in group:
                together.setdefault(a, set()).update(b for b in group if b >= a)
        self._groups, self._rank = groups, rank
        self._residuals = _PairProducts(
            {a: sorted(others) for a, others in sorted(together.items())}
        )
        self._coordinates = _PairProducts({c: list(range(c, rank)) for c in range(rank)})
        self._sums = np.zeros((self._residuals.count, self._coordinates.count))

    def add(self, resid: Floats, white: Floats) -> None:
        """Add rows, resid (d_e, n) and white (r, n)."""
        self._sums += self._residuals.of(resid) @ self._coordinates.of(white).T

    def squares(self) -> list[Floats]:
        """Return the sum of (e (x) w)(e (x) w)^T of each group, (s r, s r)."""
        r, inner = self._rank, self._coordinates.places(list(range(self._rank)))
        blocks = []
        for group in map(members, self._groups):
            whole = self._sums[self._residuals.places(group)][:, :, inner]  # (s, s, r, r)
            blocks.append(whole.transpose(0, 2, 1, 3).reshape(len(group) * r, len(group) * r))
        return blocks


class _PairProducts:
    """Products of rows a and b of a matrix, for each a with the later ones that it is given."""

    def __init__(self, partners: dict[int, list[int]]) -> None:
        self._place: dict[tuple[int, int], int] = {}
        self._spans: list[tuple[int, int, int]] = []  # a, the first b, how many follow each other
        for a, others in partners.items():
            for b in others:
                if self._spans and self._spans[-1][0] == a and sum(self._spans[-1][1:]) == b:
                    self._spans[-1] = (a, self._spans[-1][1], self._spans[-1][2] + 1)
                else:
                    self._spans.append((a, b, 1))
                self._place[a, b] = len(self._place)
        self.count = len(self._place)
        self._out = np.empty((self.count, 0))

    def of(self, matrix: Floats) -> Floats:
        """Return the products of rows of (d, n), (count, n); the next call overwrites them."""
        n = matrix.shape[1]
        if self._out.shape[1] < n:
            self._out = np.empty((self.count, n))
        at, out = 0, self._out[:, :n]
        for a, b, size in self._spans:
            np.multiply(matrix[a], matrix[b : b + size], out=out[at : at + size])
            at += size
        return out

    def places(self, rows: list[int]) -> NDArray[np.int64]:
        """Return where the product of any two of the rows is, (s, s)."""
        return np.array([[self._place[min(a, b), max(a, b)] for b in rows] for a in rows])
