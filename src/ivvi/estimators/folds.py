"""Moments of each fold of episodes, for cross-validation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import add

import numpy as np

from ivvi.errors import DataError, InputError
from ivvi.features.design import Design
from ivvi.logs import Log
from ivvi.moments import EpisodeMoments, Moments, few_threads


def fold_moments(moments: Moments, log: Log | None, folds: int) -> list[Moments]:
    """Split the episodes into folds, from per-episode moments or by another pass over the log.

    Episode i belongs to fold i mod `folds`; no episode is divided.
    """
    if folds < 2:
        raise InputError(f"{folds} folds were asked for; expected at least 2")
    if moments.episodes is not None:
        numbers = moments.episodes.number
        parts = [_of_blocks(moments, np.flatnonzero(numbers % folds == f)) for f in range(folds)]
    elif log is not None:
        (parts,) = fold_moments_of_log(log, [moments.design], folds)
    else:
        raise InputError(
            "cross-validation over episodes needs the log, or moments kept with episodes=True"
        )
    nonempty = [part for part in parts if part.n]
    if len(nonempty) < 2:
        raise DataError("cross-validation over episodes needs at least 2 episodes; there is 1")
    return nonempty


def fold_moments_of_log(
    log: Log,
    designs: Sequence[Design],
    folds: int,
    progress: Callable[[int], None] | None = None,
) -> list[list[Moments]]:
    """Walk once over a log; returns the moments of each fold for each design."""
    moments = [[Moments.empty(design) for _ in range(folds)] for design in designs]
    with few_threads(max(design.width for design in designs)):
        for batch in log.batches(episodes=True, progress=progress):
            for f in range(folds):
                part = batch.taken(np.flatnonzero(batch.episode % folds == f))  # type: ignore[operator] # read so
                if not len(part):
                    continue
                for sums, design in zip(moments, designs, strict=True):
                    sums[f] = sums[f] + Moments.of_batch(design, part)
    return moments


def others(parts: Sequence[Moments], left_out: int) -> Moments:
    """Add the moments of all folds but one."""
    return reduce(add, (part for i, part in enumerate(parts) if i != left_out))


def _of_blocks(moments: Moments, chosen: np.ndarray) -> Moments:
    """Add the moments of some episodes; rows are counted by their weight."""
    blocks: EpisodeMoments | None = moments.episodes
    if blocks is None or not len(chosen):
        return Moments.empty(moments.design)
    weight, mean = blocks.weight[chosen], blocks.mean[chosen]
    total = float(weight.sum())
    centre = weight @ mean / total
    shift = (mean - centre) * np.sqrt(weight)[:, None]
    scatter = blocks.scatter[chosen].sum(axis=0) + shift.T @ shift
    n = round(total * moments.n / moments.weight)
    return Moments(moments.design, n, total, centre, scatter)
