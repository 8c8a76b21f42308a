"""Numbers and tables that options name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ivvi.errors import ColumnError, DataError, InputError, nearest


def read_states(names: tuple[str, ...], one: str | None, table: Path | None, option: str) -> Any:
    """Return the states (n, d_x) that an option, or its plural with a table, names; None if none.

    Parameters
    ----------
    names
        Columns of the state.
    one, table
        What ``--state``, numbers of one state, and ``--states``, a table of many, were given.
    option
        The first of the two.
    """
    import numpy as np

    if one is not None and table is not None:
        raise InputError(f"give either {option} or {option}s")
    if table is not None:
        return read_columns(table, names)
    return None if one is None else np.atleast_1d(numbers(one, option))[None]


def numbers(text: str, option: str) -> Any:
    """Read ``1.5`` or ``1,2,3``."""
    import numpy as np

    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{option} {text!r} is not a number, or numbers with commas") from None
    return found[0] if len(found) == 1 else np.array(found)


def read_columns(path: Path, names: tuple[str, ...]) -> Any:
    """Read named numeric columns of a table, (rows, columns)."""
    import numpy as np

    from ivvi.logs.arrow import check_numeric
    from ivvi.logs.readers import open_table

    table = open_table(str(path))
    for name in names:
        if name not in table.schema.names:
            hint = nearest(name, table.schema.names)
            raise ColumnError(f"{path} has no column {name!r}{hint}")
    check_numeric(table.schema, names, str(path))
    parts = [
        np.column_stack([np.asarray(batch.column(name), dtype=np.float64) for name in names])
        for batch in table.batches(names, names, 1 << 16)
    ]
    if not parts or not sum(map(len, parts)):
        raise DataError(f"{path} has no rows")
    found = np.concatenate(parts)
    if not np.isfinite(found).all():
        row, column = np.argwhere(~np.isfinite(found))[0]
        raise DataError(
            f"{path} has no finite number in column {names[column]!r}, row {row} (from 0)"
        )
    return found
