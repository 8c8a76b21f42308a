"""White's sum by pairs: the sum of e_a e_b w_c w_d over rows, for residuals squared together.

Entry (a c, b d) of the sum of (e (x) w)(e (x) w)^T is the same whichever way a and b, or c and d,
stand. So the products e_a e_b, a <= b, times the products w_c w_d, c <= d, make all of it with
half the work, and groups of residuals that overlap share what they have in common.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ivvi.features.design import Floats

Group = slice | list[int]
"""Which of the residuals are squared together."""


def members(group: Group) -> list[int]:
    """Return the residuals of a group."""
    return list(range(group.start or 0, group.stop)) if isinstance(group, slice) else group


def worth_pairing(groups: Sequence[Group], rank: int) -> bool:
    """Whether it pays to form the pairs of `rank` coordinates for these pairs of residuals.

    Timed for 1 to 40 residuals and 1 to 100 coordinates.
    """
    return 2 * sum(len(members(group)) ** 2 for group in groups) > rank


class PairSums:
    """Adds rows to the sums of all pairs that the groups need."""

    def __init__(self, groups: Sequence[Group], rank: int) -> None:
        together: dict[int, set[int]] = {}
        for one in map(members, groups):
            for a in one:
                together.setdefault(a, set()).update(b for b in one if b >= a)
        self._groups, self._rank = groups, rank
        self._residuals = _Products({a: sorted(others) for a, others in sorted(together.items())})
        self._coordinates = _Products({c: list(range(c, rank)) for c in range(rank)})
        self._sums = np.zeros((self._residuals.count, self._coordinates.count))

    def add(self, E: Floats, white: Floats) -> None:
        """Add rows, E (d_e, n) and white (r, n)."""
        self._sums += self._residuals.of(E) @ self._coordinates.of(white).T

    def squares(self) -> list[Floats]:
        """Return the sum of (e (x) w)(e (x) w)^T of each group, (s r, s r)."""
        r, inner = self._rank, self._coordinates.places(list(range(self._rank)))
        blocks = []
        for one in map(members, self._groups):
            whole = self._sums[self._residuals.places(one)][:, :, inner]  # (s, s, r, r)
            blocks.append(whole.transpose(0, 2, 1, 3).reshape(len(one) * r, len(one) * r))
        return blocks


class _Products:
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

    def of(self, V: Floats) -> Floats:
        """Return the products of rows of V (d, n), (count, n); the next call overwrites them."""
        n = V.shape[1]
        if self._out.shape[1] < n:
            self._out = np.empty((self.count, n))
        at, out = 0, self._out[:, :n]
        for a, b, size in self._spans:
            np.multiply(V[a], V[b : b + size], out=out[at : at + size])
            at += size
        return out

    def places(self, rows: list[int]) -> NDArray[np.int64]:
        """Return where the product of any two of the rows is, (s, s)."""
        return np.array([[self._place[min(a, b), max(a, b)] for b in rows] for a in rows])
