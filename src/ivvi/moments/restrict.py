"""Moments of few features out of those of many, without another pass over the rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ivvi.features.design import Design
from ivvi.moments import Moments


def restrict(moments: Moments, design: Design) -> Moments:
    """Return the moments of a design all of whose blocks stand in that of `moments`."""
    at = columns_in(design, moments.design)
    scatter = moments.scatter[np.ix_(at, at)]
    groups = tuple(
        replace(one, sums=one.sums[:, at], origin=one.origin[at]) for one in moments.groups
    )
    mean = moments.mean[at]
    return Moments(
        design, moments.n, moments.weight, mean, scatter, groups=groups, paths=moments.paths
    )


def columns_in(small: Design, large: Design) -> list[int]:
    """Find the columns of one design's v in another's, block by block."""
    starts = {(block, where): start for block, where, start in large.pieces}
    columns: list[int] = []
    ends = [start for _, _, start in small.pieces[1:]] + [small.width - len(small.outputs)]
    for (block, where, start), end in zip(small.pieces, ends, strict=True):
        first = starts.get((block, where))
        if first is None and block.of == "state":  # phi and psi share what looks at the state
            first = starts.get((block, "action" if where == "instrument" else "instrument"))
        if first is None:
            raise ValueError(f"the block {block} is not part of the larger design")
        columns += range(first, first + end - start)
    return columns + list(large.y_columns)


def psi_positions(small: Design, large: Design) -> list[int]:
    """Positions, among the psi columns of `large`, of those of `small`."""
    at = columns_in(small, large)
    return [large.psi_columns.index(at[column]) for column in small.psi_columns]
