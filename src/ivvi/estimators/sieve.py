"""How many knots, which degree: the size of a sieve chosen by the data.

Each candidate is fitted without one fold of episodes, and on that fold the residual is
projected on the psi of the richest candidate: |P+ (y - W phi)|^2, summed over outputs in
units of their noise. A candidate that is too small leaves something that the instruments
predict; one that is too large adds noise of its own. Of those that are no worse than the
best by more than a standard error of the difference, the smallest is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ivvi.errors import DataError, InputError
from ivvi.estimators.estimate import Floats, Rows
from ivvi.estimators.folds import fold_moments_of_log, others
from ivvi.estimators.least_squares import Exact
from ivvi.estimators.whitening import orthonormal
from ivvi.features.design import Design, build_design
from ivvi.logs import Log
from ivvi.moments import Moments
from ivvi.moments.restrict import psi_positions, restrict

SPLINES = ("linear", "spline:3", "spline:4", "spline:6", "spline:8", "spline:12", "spline:16")
"""The grid of `choose_features` unless asked otherwise."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One size: its features, and its error on episodes left out.

    `error` is in units of the noise; `worse` is the mean difference from the best and
    `spread` the standard error of that difference over folds.
    """

    word: str
    d_phi: int
    d_psi: int
    error: float
    worse: float
    spread: float


@dataclass(frozen=True, slots=True)
class SieveChoice:
    """The word that was chosen, and how all candidates did."""

    word: str
    candidates: tuple[Candidate, ...]
    folds: int

    def to_json(self) -> dict[str, Any]:
        """Describe the choice with JSON values."""
        names = ("word", "d_phi", "d_psi", "error", "worse", "spread")
        rows = [{n: _finite(getattr(c, n)) for n in names} for c in self.candidates]
        return {"word": self.word, "folds": self.folds, "candidates": rows}

    def __str__(self) -> str:
        lines = [f"{'features':<14}{'phi':>5}{'psi':>5}{'error':>12}{'worse by':>12}{'+-':>10}"]
        for c in self.candidates:
            mark = "  chosen" if c.word == self.word else ""
            lines.append(
                f"{c.word:<14}{c.d_phi:>5}{c.d_psi:>5}{c.error:>12.4g}{c.worse:>12.3g}"
                f"{c.spread:>10.2g}{mark}"
            )
        return "\n".join(lines)


def choose_features(
    log: Log,
    words: Sequence[str] = SPLINES,
    *,
    folds: int = 5,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> SieveChoice:
    """Choose among feature words in one pass over the log.

    They are put in order of their size, phi's and then psi's, whatever order they come in.

    Examples
    --------
    >>> import ivvi
    >>> log = ivvi.make_env("linear", dim=1).collect(episodes=40, horizon=50, seed=1)
    >>> ivvi.choose_features(log, ["linear", "spline:4", "spline:8"]).word
    'linear'
    """
    if len(words) < 2 or len(set(words)) < len(words):
        raise InputError(f"{', '.join(words) or 'no'} features to choose from; two or more differ")
    if folds < 2:
        raise InputError(f"{folds} folds were asked for; expected at least 2")
    built = {word: build_design(log, word, seed=seed) for word in words}
    words = sorted(words, key=lambda w: (len(built[w].phi_names), len(built[w].psi_names)))
    small = [built[word] for word in words]
    rich = max(small, key=lambda design: len(design.psi_names)).psi
    large = [Design.build(one.phi, one.psi + rich, log.roles) for one in small]
    sums = fold_moments_of_log(log, large, folds, progress)
    used = [f for f in range(folds) if sums[0][f].n]
    if len(used) < 2:
        raise DataError("cross-validation over episodes needs at least 2 episodes; there is 1")
    parts = [[candidate[f] for f in used] for candidate in sums]
    errors = np.array(
        [
            _errors(folds_of, design, Design.build(design.phi, rich, log.roles))
            for folds_of, design in zip(parts, small, strict=True)
        ]
    )
    if not np.isfinite(errors).any():
        raise DataError("the instruments identify none of " + ", ".join(words))
    return _choose(words, small, errors / _noise(parts, small, errors))


def _errors(parts: list[Moments], design: Design, target: Design) -> Floats:
    """|P+ (y - W phi)|^2 on each fold, (folds, d_y); infinite where W is not identified."""
    inside = psi_positions(target, parts[0].design)
    errors = np.full((len(parts), len(design.outputs)), np.inf)
    for f, part in enumerate(parts):
        training = restrict(others(parts, f), design)
        if training.n <= len(design.phi_names):
            continue
        fit = Exact().solve(training)
        if not fit.identified:
            continue
        rows = Rows.of(part, centred=False)
        basis = orthonormal(rows.Psi[:, inside])
        errors[f] = np.sum((basis.T @ (rows.Y - rows.Phi @ fit.W.T)) ** 2, axis=0)
    return errors


def _noise(parts: list[list[Moments]], designs: list[Design], errors: Floats) -> Floats:
    """Noise variance of each output under the largest candidate that is identified, (d_y,)."""
    last = max(i for i in range(len(designs)) if np.isfinite(errors[i]).all())
    whole = parts[last][0]
    for part in parts[last][1:]:
        whole = whole + part
    variance: Floats = np.diag(Exact().solve(restrict(whole, designs[last])).noise_cov).copy()
    variance[variance == 0] = 1.0
    return variance


def _choose(words: Sequence[str], designs: list[Design], errors: Floats) -> SieveChoice:
    """Take the smallest candidate within a standard error of the best; errors (m, folds, d_y)."""
    totals = errors.sum(axis=2)
    folds = totals.shape[1]
    best = int(np.argmin(totals.mean(axis=1)))
    candidates, chosen = [], None
    for i, word in enumerate(words):
        whole = bool(np.isfinite(totals[i]).all())
        difference = totals[i] - totals[best] if whole else np.full(folds, np.inf)
        spread = float(difference.std(ddof=1) / np.sqrt(folds)) if whole else np.inf
        worse = float(difference.mean())
        if chosen is None and whole and worse <= spread:
            chosen = word
        names = designs[i].phi_names, designs[i].psi_names
        error = float(totals[i].mean())
        candidates.append(Candidate(word, len(names[0]), len(names[1]), error, worse, spread))
    return SieveChoice(chosen or words[best], tuple(candidates), folds)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not np.isfinite(value) else value
