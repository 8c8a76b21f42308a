"""Rows (phi, psi, y) of a log for iterative methods, in chunks of one size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from ivvi.layout import Floats
from ivvi.logs import Batch, Log
from ivvi.moments import Moments

Chunk = tuple[Floats, Floats, Floats]
"""Phi (m, d_phi), Psi (m, d_psi), Y (m, d_y)."""


class RowSource(Protocol):
    """Rows that can be passed over again and again, in random order."""

    n: int
    d_psi: int

    def chunks(self, size: int, rng: np.random.Generator) -> Iterator[Chunk]:
        """Pass once over all rows, `size` at a time (fewer in the last chunk)."""
        ...


class Shuffled:
    """All rows in memory, each pass in a new order."""

    def __init__(self, log: Log, moments: Moments) -> None:
        self.n, self.d_psi = moments.n, len(moments.layout.psi_names)
        parts = [_evaluate(batch, moments) for batch in log.batches()]
        self._rows = tuple(np.concatenate(columns) for columns in zip(*parts, strict=True))

    def chunks(self, size: int, rng: np.random.Generator) -> Iterator[Chunk]:
        """Pass once over all rows in a new order."""
        order = rng.permutation(self.n)
        for start in range(0, self.n, size):
            chosen = order[start : start + size]
            Phi, Psi, Y = (part[chosen] for part in self._rows)
            yield Phi, Psi, Y


class Streamed:
    """Rows read from the log in its own order, shuffled within each chunk; memory is bounded."""

    def __init__(self, log: Log, moments: Moments) -> None:
        self.n, self.d_psi = moments.n, len(moments.layout.psi_names)
        self._log, self._moments = log, moments

    def chunks(self, size: int, rng: np.random.Generator) -> Iterator[Chunk]:
        """Pass once over the log."""
        kept: list[Chunk] = []
        have = 0
        for batch in self._log.batches():
            kept.append(_evaluate(batch, self._moments))
            have += len(kept[-1][-1])
            while have >= size:
                joined = [np.concatenate(columns) for columns in zip(*kept, strict=True)]
                order = rng.permutation(size)
                Phi, Psi, Y = (part[:size][order] for part in joined)
                yield Phi, Psi, Y
                kept, have = [(joined[0][size:], joined[1][size:], joined[2][size:])], have - size
        if have:
            order = rng.permutation(have)
            Phi, Psi, Y = (np.concatenate(c)[order] for c in zip(*kept, strict=True))
            yield Phi, Psi, Y


def _evaluate(batch: Batch, moments: Moments) -> Chunk:
    """Evaluate the features of a batch, multiplied by the roots of weights of mean one.

    Rows of weight zero are left out, as they are from `Moments.n`.
    """
    layout = moments.layout
    Phi, Psi, Y = layout.phi(batch.x, batch.a), layout.psi(batch.x, batch.z), batch.y
    if batch.weight is None:
        return Phi, Psi, Y
    used = batch.weight > 0
    root = np.sqrt(batch.weight[used] * (moments.n / moments.weight))[:, None]
    return Phi[used] * root, Psi[used] * root, Y[used] * root
