"""Defaults of a schema, and new names: columns x0.., a0.., z0.., ``price:Price paid``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from ivvi.errors import ColumnError
from ivvi.logs.columns.patterns import Columns, match_columns
from ivvi.logs.schema import Schema

SETTINGS = ("lags", "lag_padding", "every", "date_format", "seen", "missing")
"""Fields of `Schema` that do not name columns."""
SINGLE = ("reward", "step", "weight")
"""Fields of a schema that name one column."""


def with_new_names(schema: Schema, available: Sequence[str]) -> tuple[Schema, dict[str, str]]:
    """Return a schema in which ``price:Price paid`` is ``price``, and the column of each new name.

    It is a range, and not a new name, where there is a column called price.
    """
    renamed: dict[str, str] = {}

    def plain(part: str) -> str:
        new, sign, old = (piece.strip() for piece in part.partition(":"))
        if not (new and sign and old in available) or part in available or new in available:
            return part
        if renamed.setdefault(new, old) != old:
            raise ColumnError(f"columns {renamed[new]!r} and {old!r} are both renamed to {new!r}")
        return new

    changed: dict[str, Any] = {}
    for field in fields(schema):
        value = getattr(schema, field.name)
        if not value or field.name in SETTINGS or value in available:
            continue
        if field.name in SINGLE:
            changed[field.name] = plain(value)
            continue
        parts = value.split(",") if isinstance(value, str) else value
        made = [part if part.strip().startswith("loo:") else plain(part) for part in parts]
        changed[field.name] = ",".join(made) if isinstance(value, str) else tuple(made)
    return replace(schema, **changed), renamed


def with_conventions(schema: Schema, available: Sequence[str], left_out: Sequence[bool]) -> Schema:
    """Use x0.., a0.. and z0.. for state, action and instrument where these are not named.

    Columns that the schema names in another role stay what they are. With the state, the next
    state is next_x0.. where these columns are all there and no other is named.
    """
    named: set[str] = set()
    for field in fields(schema):
        value = getattr(schema, field.name)
        if value and field.name not in (*SETTINGS, "categorical", "weight_kind"):
            own = without_made(value, available)
            named |= set(match_columns(own, available, field.name.replace("_", "-")))
    taken: dict[str, Any] = {}
    for role, letter, absent in zip(
        ("state", "action", "instrument"), "xaz", left_out, strict=True
    ):
        if absent:
            shaped = [name for name in available if re.fullmatch(rf"{letter}\d+", name)]
            taken[role] = [name for name in shaped if name not in named]
    following = [f"next_{name}" for name in taken.get("state", ())]
    if not schema.next_state and set(following) <= set(available) - named:
        taken["next_state"] = following
    return replace(schema, **taken)


def without_made(value: Columns, available: Sequence[str]) -> Columns:
    """Leave out words for columns that are made later: ``loo:doctor``, ``dt``."""
    if isinstance(value, str):
        value = [value] if value in available else [part.strip() for part in value.split(",")]
    made = [p for p in value if p == "dt" or (p.startswith("loo:") and "loo" not in available)]
    return [part for part in value if part and (part in available or part not in made)]
