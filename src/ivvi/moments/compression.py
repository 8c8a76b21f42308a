"""Smaller moments: a few equivalent rows, or the moments of fewer features.

Neither takes another pass over the rows; what is computed from moments is remembered with them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from ivvi._io.arrays import Floats
from ivvi.features.design import Design
from ivvi.moments.moments import Moments

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")


def remembered(
    function: Callable[Concatenate[Moments, Arguments], Returned],
) -> Callable[Concatenate[Moments, Arguments], Returned]:
    """Compute a function of moments (and of words) once, as long as the moments live."""
    results: WeakKeyDictionary[Moments, dict[Any, Returned]] = WeakKeyDictionary()

    @wraps(function)
    def once(moments: Moments, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Returned:
        own, key = results.setdefault(moments, {}), (args, tuple(kwargs.items()))
        if key not in own:
            own[key] = function(moments, *args, **kwargs)
        return own[key]

    return once


@remembered
def compress(moments: Moments) -> Floats:
    """Return at most p rows with root^T root = scatter / weight, (m, p).

    They are a data set that no least-squares method can tell from the centred rows of v,
    so that estimators may use QR and SVD, whose errors grow with the condition number of
    the data and not with its square. Columns are brought to one scale first, which makes
    the result independent of units.
    """
    covariance = moments.scatter / moments.weight
    spread = np.sqrt(np.diag(covariance))
    varies = np.flatnonzero(~is_constant(moments))
    scale = spread[varies]
    correlation = covariance[np.ix_(varies, varies)] / np.outer(scale, scale)
    try:
        factor: Floats = np.linalg.cholesky(correlation).T
    except np.linalg.LinAlgError:  # collinear columns
        values, vectors = np.linalg.eigh(correlation)
        keep = values > 0
        factor = np.sqrt(values[keep])[:, None] * vectors[:, keep].T
    root = np.zeros((len(factor), len(spread)))
    root[:, varies] = factor * scale
    return root


def is_constant(moments: Moments) -> NDArray[np.bool_]:
    """Return which columns of v never vary, up to rounding, (p,)."""
    spread = np.sqrt(np.diag(moments.scatter) / moments.weight)
    constant: NDArray[np.bool_] = spread <= 1e-12 * np.abs(moments.mean)
    return constant


def restrict(moments: Moments, design: Design) -> Moments:
    """Return the moments of a design, all of whose blocks the design of `moments` must have."""
    at = columns_in(design, moments.design)
    scatter = moments.scatter[np.ix_(at, at)]
    groups = tuple(
        replace(groups, sums=groups.sums[:, at], origin=groups.origin[at])
        for groups in moments.groups
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
