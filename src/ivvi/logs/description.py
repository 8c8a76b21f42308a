"""What the columns of a log look like: a table and small histograms."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from ivvi._io.plotting import IV, check_figure, finished, make_axes

if TYPE_CHECKING:
    from ivvi.logs.log import Log

MOST = 12
"""Columns that are drawn."""


def columns_of(log: Log) -> list[tuple[str, str, np.ndarray]]:
    """Return name, role and values (n,) of each column in the first transitions of a log."""
    batch, roles = log.head(), log.roles
    groups = (
        ("state", roles.state, batch.x),
        ("action", roles.action, batch.a),
        ("instrument", roles.instrument, batch.z),
        ("output", roles.outputs, batch.y),
    )
    return [
        (name, role, values)
        for role, names, rows in groups
        for name, values in zip(names, rows.T, strict=True)
    ]


def describe(log: Log) -> list[dict[str, Any]]:
    """Return one row per column: role, mean, spread and range."""
    return [
        {
            "column": name,
            "role": role,
            "mean": float(values.mean()),
            "std.dev.": float(values.std()),
            "lowest": float(values.min()),
            "highest": float(values.max()),
        }
        for name, role, values in columns_of(log)
    ]


def plot_log(log: Log, path: str | os.PathLike[str] | None, *, force: bool) -> Any:
    """Draw a histogram of each column."""
    check_figure(path, force=force)
    shown = columns_of(log)[:MOST]
    columns = min(4, len(shown))
    figure, axes = make_axes(-(-len(shown) // columns), columns)
    for ax, (name, role, values) in zip(axes.ravel(), shown, strict=False):
        ax.hist(values, bins=24, color=IV, alpha=0.8)
        ax.set_title(f"{name} ({role})", loc="left", fontsize=9)
    for ax in axes.ravel()[len(shown) :]:
        ax.set_visible(False)
    return finished(figure, path, force=force)
