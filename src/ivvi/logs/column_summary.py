"""A look at the columns of a log: mean, spread and range of each, and their histograms."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from ivvi._io.plotting import IV, check_figure, finished, make_axes
from ivvi.logs.batch import Batch
from ivvi.logs.schema import Roles

MOST_DRAWN = 12
"""Columns of which a histogram is drawn."""


def describe_columns(rows: Batch, roles: Roles) -> list[dict[str, Any]]:
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
        for name, role, values in _columns(rows, roles)
    ]


def plot_columns(
    rows: Batch, roles: Roles, path: str | os.PathLike[str] | None, *, force: bool
) -> Any:
    """Draw a histogram of each column."""
    check_figure(path, force=force)
    drawn = _columns(rows, roles)[:MOST_DRAWN]
    columns = min(4, len(drawn))
    figure, axes = make_axes(-(-len(drawn) // columns), columns)
    for ax, (name, role, values) in zip(axes.ravel(), drawn, strict=False):
        ax.hist(values, bins=24, color=IV, alpha=0.8)
        ax.set_title(f"{name} ({role})", loc="left", fontsize=9)
    for ax in axes.ravel()[len(drawn) :]:
        ax.set_visible(False)
    return finished(figure, path, force=force)


def _columns(rows: Batch, roles: Roles) -> list[tuple[str, str, np.ndarray]]:
    """Return name, role and values (n,) of each column."""
    groups = (
        ("state", roles.state, rows.x),
        ("action", roles.action, rows.a),
        ("instrument", roles.instrument, rows.z),
        ("output", roles.outputs, rows.y),
    )
    return [
        (name, role, values)
        for role, names, part in groups
        for name, values in zip(names, part.T, strict=True)
    ]
