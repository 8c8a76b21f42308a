"""How far a pass over a log has come, as values that can be saved and resumed from.

A position lies between two record batches. It holds the counts so far, the last row (its
next state is still to come), the numbers given to episodes, and what the checks have seen.
A pass that resumes from a position yields exactly the same batches.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ivvi._io.files import Saved
from ivvi.logs.tables.arrow import skip_rows
from ivvi.logs.tables.parquet_files import ParquetTable
from ivvi.logs.tables.table import BatchSource


@dataclass(slots=True)
class Counts:
    """Counts of what one pass over a log has read so far.

    Before it, rows may be left out: `untimed` without a time, `early` without the rows before
    them that lags (or states seen after the action) need, `alone` without another episode of
    their group. `gaps` are those of the rows without a next state that are followed by a row of
    their episode, but not by the next step.
    """

    rows: int = 0
    transitions: int = 0
    episodes: int = 0
    without_next: int = 0
    missing: int = 0
    ended: int = 0
    untimed: int = 0
    early: int = 0
    alone: int = 0
    gaps: int = dataclasses.field(default=0, compare=False)  # fewer where a log comes in parts

    def __add__(self, other: Counts) -> Counts:
        """Count both."""
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return Counts(*(one + two for one, two in pairs))


@dataclass(frozen=True, slots=True)
class Position:
    """The state of a pass between two record batches.

    Attributes
    ----------
    counts
        What has been met; `counts.rows` is where reading goes on.
    carry
        The last usable row, or None before the first.
    numbers
        Episodes in the order of their numbers, where they had to be looked up.
    alike
        Pairs (instrument, other column) that have been equal in every row.
    weight
        Sum of the weights.
    clusters
        Values of each cluster column in the order of their numbers.
    """

    counts: Counts
    carry: pa.RecordBatch | None
    numbers: tuple[Any, ...]
    alike: tuple[tuple[int, int], ...]
    weight: float
    clusters: tuple[tuple[Any, ...], ...] = ()

    def saved(self) -> Saved:
        """Return the position as JSON values and arrays."""
        facts = {
            "counts": dataclasses.asdict(self.counts),
            "alike": [list(pair) for pair in self.alike],
            "weight": self.weight,
        }
        arrays = {}
        if self.carry is not None:
            arrays["carry"] = pack_rows(self.carry)
        if self.numbers:
            arrays["numbers"] = pack_rows(
                pa.record_batch({"episode": pa.array(list(self.numbers))})
            )
        facts["clusters"] = len(self.clusters)
        for i, values in enumerate(self.clusters):
            column = pa.record_batch({"cluster": pa.array(list(values))})
            arrays[f"cluster{i}"] = pack_rows(column)
        return facts, arrays

    @classmethod
    def restore(cls, facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Position:
        """Rebuild a position from what `saved` returned."""
        numbers = arrays.get("numbers")
        columns = (arrays[f"cluster{i}"] for i in range(facts.get("clusters", 0)))
        return cls(
            Counts(**facts["counts"]),
            unpack_rows(arrays["carry"]) if "carry" in arrays else None,
            () if numbers is None else tuple(unpack_rows(numbers).column(0).to_pylist()),
            tuple((j, i) for j, i in facts["alike"]),
            facts["weight"],
            tuple(tuple(unpack_rows(column).column(0).to_pylist()) for column in columns),
        )


def batches_from(
    table: BatchSource, columns: Sequence[str], numeric: Sequence[str], size: int, start: int
) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of a table from row `start` on."""
    if isinstance(table, ParquetTable):
        yield from table.batches(columns, numeric, size, start)
    else:
        yield from skip_rows(table.batches(columns, numeric, size), start)


def pack_rows(rows: pa.RecordBatch) -> np.ndarray:
    """Return rows as bytes, (n,)."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return np.frombuffer(sink.getvalue(), np.uint8)


def unpack_rows(stored: np.ndarray) -> pa.RecordBatch:
    """Return the rows that `pack_rows` was given."""
    with pa.ipc.open_stream(pa.py_buffer(stored.tobytes())) as reader:
        return reader.read_next_batch()
