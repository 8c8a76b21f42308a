"""Sums over runs of rows, such as the steps of an episode, that stand together."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
LONG_RUN = 24
"""Rows of a run from which one matrix product each beats sums of all products."""


def run_starts(codes: Ints) -> Ints:
    """Return where each run of equal codes begins, (runs,)."""
    starts: Ints = np.flatnonzero(np.append(True, codes[1:] != codes[:-1])[: len(codes)])
    return starts


def run_products(E: Floats, Z: Floats, starts: Ints) -> Floats:
    """Sum e_i z_i^T over runs of rows that begin at `starts`, (runs, d_e, d_z).

    The rows are columns here: E (d_e, n), Z (d_z, n).
    """
    n, sums = E.shape[1], np.empty((len(starts), len(E), len(Z)))
    if n < LONG_RUN * len(starts):
        for i, e in enumerate(E):
            sums[:, i] = np.add.reduceat(e * Z, starts, axis=1).T
        return sums
    stops = np.append(starts, n)[1:]
    for out, start, stop in zip(sums, starts.tolist(), stops.tolist(), strict=True):
        np.matmul(E[:, start:stop], Z[:, start:stop].T, out=out)
    return sums
