"""A few of very many rows, evenly spread over a pass of unknown length."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
MOST_ROWS = 2048


class Thinned:
    """Every s-th row of a stream; s doubles whenever more than `most` rows are held.

    The first row is always among them, and the choice depends on the rows' order alone.
    """

    def __init__(self, width: int, most: int = MOST_ROWS) -> None:
        self.most = most
        self._kept: Floats = np.empty((0, width))
        self._seen = 0
        self._stride = 1

    def add(self, rows: Floats) -> None:
        """Look at the next rows, (n, width)."""
        first = -self._seen % self._stride
        self._kept = np.vstack([self._kept, rows[first :: self._stride]])
        self._seen += len(rows)
        while len(self._kept) > self.most:
            self._kept = self._kept[::2]
            self._stride *= 2

    @property
    def rows(self) -> Floats:
        """What was kept, (at most `most`, width)."""
        return self._kept
