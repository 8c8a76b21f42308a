"""Do the rows of a file stand in the opposite order of their steps, as where steps count down?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ivvi.logs.tables.arrow import Numbers, as_arrow, as_numpy, missing, plain_type
from ivvi.logs.tables.table import BatchSource

LOOKED_AT = 1 << 16
"""Rows that are looked at."""
NEARLY_ALL, FEWEST = 0.95, 5
"""Share of the episodes of three rows or more, and how many, whose steps all fall."""


def reversed_steps(table: BatchSource, episode: Sequence[str], step: str | None) -> tuple[str, ...]:
    """Return a warning, if numbered steps fall from row to row in nearly all episodes.

    Dates say themselves which is later.
    """
    names = table.schema.names
    if step is None or not episode or any(names.count(one) != 1 for one in (*episode, step)):
        return ()
    kind = plain_type(table.schema.field(step).type)
    if step in episode or not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return ()
    block = next(iter(table.batches([*episode, step], (), LOOKED_AT)), None)
    if block is None or any(pa.types.is_nested(column.type) for column in block.columns):
        return ()
    known = ~np.logical_or.reduce([missing(column) for column in block.columns])
    block = block.filter(as_arrow(known))
    if not block.num_rows:
        return ()
    number = np.zeros(block.num_rows, np.int64)
    for part in episode:
        codes = Numbers().of(block.column(part))
        number = number * (int(codes.max(initial=0)) + 1) + codes
    order = np.argsort(number, kind="stable")
    number, steps = number[order], as_numpy(block.column(step)).astype(float)[order]
    same = number[1:] == number[:-1]
    numbers = np.unique(number, return_inverse=True)[1][1:][same]
    pairs, falls = np.bincount(numbers), np.bincount(numbers, np.diff(steps)[same] < 0)
    long = pairs >= 2
    if long.sum() < FEWEST or (falls == pairs)[long].mean() < NEARLY_ALL:
        return ()
    return (
        f"the rows stand in the opposite order of {step} in {(falls == pairs)[long].mean():.0%} of "
        f"episodes: if {step} counts down, time runs backwards in the fit; number the steps from "
        "the first to the last, or ignore this if the table begins with the latest row",
    )
