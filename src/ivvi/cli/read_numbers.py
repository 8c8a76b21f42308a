"""Numbers and tables that options name."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from ivvi.errors import LARGEST, ColumnError, DataError, InputError, hint, nearest


def read_states(
    model: Any, text: str | None, table: Path | None, option: str, unseen: str | None = None
) -> Any:
    """Return the states (n, d_x) of an option, or of its plural with a table; None if not given.

    Parameters
    ----------
    model
        The dynamics, which know the columns of the log.
    text, table
        The value of ``--state``, one state as text, and of ``--states``, a table of many.
    option
        The name of the first option.
    unseen
        Level that replaces levels the log does not have.
    """
    if text is not None and table is not None:
        raise InputError(f"give either {option} or {option}s")
    if table is not None:
        if model.raw_state == model.state:
            return read_columns(table, model.state)
        return model.encode_states(read_rows(table, model.raw_state), str(table), unseen)
    return (
        None if text is None else model.encode_states(_one_row(model, text, option), option, unseen)
    )


def _one_row(model: Any, text: str, option: str) -> dict[str, list[Any]]:
    """Return the columns of ``38.5,ICU`` or ``ward=ICU,temperature=38.5``."""
    names, parts = model.raw_state, [part.strip() for part in text.split(",")]
    if all("=" in part for part in parts):
        named = [part.partition("=") for part in parts]
        for name, _, _ in named:
            if name.strip() not in names:
                raise InputError(
                    f"{option} {text!r} names {name.strip()!r}, which is no state"
                    f"{hint(name.strip(), names)}"
                )
        return {name.strip(): [value.strip()] for name, _, value in named}
    if len(parts) != len(names):
        raise InputError(
            f"{option} {text!r} has {len(parts)} values; expected {len(names)}: {', '.join(names)}"
        )
    return {name: [value] for name, value in zip(names, parts, strict=True)}


def named_values(text: str | None) -> dict[str, str] | None:
    """Return the values of ``--instrument cost=6,season=winter``; None if it is not given."""
    if text is None:
        return None
    parts = [part.partition("=") for part in text.split(",")]
    if bad := [name for name, equals, value in parts if not (equals and value.strip())]:
        raise InputError(f"--instrument {text!r}: {bad[0]!r} has no value; expected cost=6")
    return {name.strip(): value.strip() for name, _, value in parts}


def end_rewards(text: str) -> float | dict[str, float]:
    """Return the value of ``--reward-at-end -1`` or ``died=-1,discharged=1``."""
    parts = [part.rpartition("=") for part in text.split(",")]
    rewards: dict[str, float] = {}
    for name, _, value in parts:
        with contextlib.suppress(ValueError):
            rewards[name.strip()] = float(value)
    if len(rewards) != len(parts) or ("" in rewards and len(parts) > 1):
        raise InputError(
            f"--reward-at-end {text!r}: expected a number, or one for each kind of end, such as "
            "died=-1,discharged=1"
        )
    return rewards.get("", rewards)


def read_rows(path: Path, names: tuple[str, ...]) -> dict[str, list[Any]]:
    """Return named columns of a table, unchanged."""
    table = _opened(path, names)
    blocks = list(table.batches(names, (), 1 << 16))
    columns = {n: [v for block in blocks for v in block.column(n).to_pylist()] for n in names}
    if not any(columns.values()):
        raise DataError(f"{path} has no rows")
    return columns


def _opened(path: Path, names: tuple[str, ...]) -> Any:
    """Return a table after checking that it has each of these columns exactly once."""
    from ivvi.logs.tables.csv_files import CsvTable
    from ivvi.logs.tables.readers import open_table

    table = open_table(str(path))
    known = table.schema.names
    for name in names:
        if name not in known:
            raise ColumnError(f"{path} has no column {name!r}{nearest(name, known)}")
        if (times := known.count(name)) > 1:
            raise ColumnError(f"{path} has {times} columns named {name!r}; expected one")
    return table.with_empty_lines() if isinstance(table, CsvTable) else table


def numbers(text: str, option: str) -> Any:
    """Return the numbers of ``1.5`` or ``1,2,3``."""
    import numpy as np

    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{option} {text!r} is not a number, or numbers with commas") from None
    return values[0] if len(values) == 1 else np.array(values)


def read_columns(path: Path, names: tuple[str, ...]) -> Any:
    """Return named numeric columns of a table, (rows, columns)."""
    import numpy as np

    from ivvi.logs.tables.arrow import check_numeric
    from ivvi.logs.tables.numeric_text import check_no_text

    table = _opened(path, names)
    check_no_text(table, names)
    check_numeric(table.schema, names, str(path))
    parts = [
        np.column_stack([np.asarray(batch.column(name), dtype=np.float64) for name in names])
        for batch in table.batches(names, names, 1 << 16)
    ]
    if not parts or not sum(map(len, parts)):
        raise DataError(f"{path} has no rows")
    values = np.concatenate(parts)
    if (bad := ~(np.abs(values) <= LARGEST)).any():
        row, column = np.argwhere(bad)[0]
        kind = f"number below {LARGEST:g}" if np.isfinite(values[row, column]) else "finite number"
        raise DataError(f"{path} has no {kind} in column {names[column]!r}, row {row} (from 0)")
    return values
