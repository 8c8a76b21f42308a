"""Convert a user's states, a table or arrays, to the arrays of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ivvi.dynamics.model import Dynamics
from ivvi.errors import LARGEST, InputError
from ivvi.logs.tables.readers import open_table


def as_columns(table: Any) -> Mapping[str, list[Any]] | None:
    """Return the columns of a mapping, a data frame or an Arrow table by name; None otherwise."""
    if isinstance(table, Mapping):
        return {str(name): list(np.atleast_1d(values)) for name, values in table.items()}
    if hasattr(table, "columns") or hasattr(table, "__arrow_c_stream__"):
        table = open_table(table)
        names = list(table.schema.names)
        blocks = list(table.batches(names, (), 1 << 16))
        return {n: [v for block in blocks for v in block.column(n).to_pylist()] for n in names}
    return None


def state_rows(states: Any, model: Dynamics) -> np.ndarray:
    """Return a user's states as rows (n, d_x) of finite numbers, or raise an error.

    They may be a table with the columns of the log.
    """
    if (columns := as_columns(states)) is not None:
        return model.encode_states(columns)
    rows = np.atleast_2d(state_numbers(states, model))
    if rows.ndim != 2 or rows.shape[1] != len(model.state):
        raise InputError(
            f"states of shape {rows.shape} were given; expected rows of {len(model.state)} "
            f"finite numbers ({', '.join(model.state)})"
        )
    return rows


def state_numbers(states: Any, model: Dynamics) -> np.ndarray:
    """Return states as finite numbers of moderate size, in their own shape."""
    try:
        numbers = np.asarray(states, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        d, names = len(model.state), ", ".join(model.state)
        raise InputError(
            f"the states are not a table of numbers ({error}); expected (n, {d}) or ({d},) "
            f"({names})"
        ) from error
    if not np.isfinite(numbers).all():
        raise InputError("a state holds values that are not finite numbers")
    if (np.abs(numbers) > LARGEST).any():
        largest = float(np.abs(numbers).max())
        raise InputError(
            f"a state holds a number of absolute value {largest:g}; expected at most {LARGEST:g}"
        )
    return numbers
