"""Choose features and the number of knots by cross-validation over episodes.

Each candidate is fitted without one fold of episodes, and judged on that fold by the loss of
`feature_selection`: what it explains of the linear model's errors, counting only the part that
states and instruments predict. With r0 = y - h0(x, a), h0 the linear model, and
delta(x, z) = E[h - h0 | x, z], that is

    mean of (r0 - delta)^2 - r0^2,

with state features as they are, and action features as predicted by the first stage of the other
folds. From small to large, a candidate must be better than the best before it by more than chance:
by Student's 97.5% quantile in standard errors over the folds.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ivvi._io.arrays import Floats
from ivvi._io.plotting import plot_explained
from ivvi._io.result import Records, TableResult, json_records
from ivvi.errors import DataError, InputError
from ivvi.estimators.cross_validation import fold_moments_of_log, others
from ivvi.estimators.two_stage_least_squares import Exact
from ivvi.features.design import Design, build_design
from ivvi.features.feature_map import linear
from ivvi.logs import Log
from ivvi.logs.log import Progress
from ivvi.moments import Moments
from ivvi.moments.compression import columns_in, restrict

SPLINES = (
    *("linear", "spline:3", "spline:4", "spline:6", "spline:8", "spline:12", "spline:16"),
    *("spline:3:vary", "spline:5:vary", "spline:8:vary"),
)
"""The default candidates of `choose_features`."""
ROUNDING = 1e-10


@dataclass(frozen=True, slots=True)
class Candidate:
    """One word: its features, and what it explains on episodes left out.

    `gain` is the share of the linear model's error variance that it explains (the sum over
    outputs; minus infinity where the instruments do not identify it), `better` its lead over the
    best before it and `spread` the standard error of that lead over the folds.
    """

    word: str
    d_phi: int
    d_psi: int
    gain: float
    better: float
    spread: float


@dataclass(frozen=True, slots=True, repr=False)
class SieveChoice(TableResult):
    """The word that was chosen, and how all candidates did."""

    word: str
    candidates: tuple[Candidate, ...]
    folds: int

    @property
    def headline(self) -> str:
        """What was chosen, of how many."""
        return f"{self.word}, of {len(self.candidates)} candidates by {self.folds} folds"

    def records(self) -> Records:
        """Return the candidates, one row each, from small to large."""
        return [asdict(candidate) for candidate in self.candidates]

    def plot(self, path: str | os.PathLike[str] | None = None, *, force: bool = False) -> Any:
        """Draw what each explains beyond the linear model, the chosen one blue; `path` saves it.

        Candidates that the instruments do not identify have no mark.
        """
        gains = {one.word: one.gain for one in self.candidates}
        return plot_explained(gains, self.word, self.folds, path, force=force)

    def to_json(self) -> dict[str, Any]:
        """Describe the choice with JSON values."""
        rows = json_records(self.records())
        return {"word": self.word, "folds": self.folds, "candidates": rows}

    def summary(self) -> str:
        """Return a table of the candidates."""
        lines = [f"{'features':<14}{'phi':>5}{'psi':>5}{'explains':>12}{'better by':>12}{'+-':>10}"]
        for c in self.candidates:
            mark = "  chosen" if c.word == self.word else ""
            lines.append(
                f"{c.word:<14}{c.d_phi:>5}{c.d_psi:>5}{c.gain:>12.3%}{c.better:>12.3%}"
                f"{c.spread:>10.2%}{mark}"
            )
        return "\n".join(lines)


def choose_features(
    log: Log,
    words: Sequence[str] = SPLINES,
    *,
    folds: int = 10,
    seed: int = 0,
    progress: Progress | None = None,
) -> SieveChoice:
    """Choose among feature words in one pass over the log.

    They are put in order of their size, phi's and then psi's, whatever order they come in. The
    word ``auto`` of a fit chooses among richer structures, with penalties.

    Examples
    --------
    >>> import ivvi
    >>> log = ivvi.make_env("linear", dim=1).collect(episodes=40, horizon=50, seed=1)
    >>> ivvi.choose_features(log, ["linear", "spline:4", "spline:8"]).word
    'linear'
    """
    if len(words) < 2 or len(set(words)) < len(words):
        raise InputError(
            f"the candidates are {', '.join(words) or 'empty'}; expected at least two different "
            "feature words"
        )
    if folds < 2:
        raise InputError(f"folds is {folds}; expected at least 2")
    built = {word: build_design(log, word, seed=seed) for word in words}
    words = sorted(words, key=lambda w: (len(built[w].phi_names), len(built[w].psi_names)))
    small, plain = [built[word] for word in words], Design.build(linear(), linear(), log.roles)
    large = [Design.build(linear() + d.phi, linear() + d.psi, log.roles) for d in small]
    sums = fold_moments_of_log(log.watched(progress), large, folds)
    used = [f for f in range(folds) if sums[0][f].n]
    if len(used) < 2:
        raise DataError("cross-validation over episodes needs at least 2 episodes; there is 1")
    losses = np.array(
        [
            word_losses([candidate[f] for f in used], design, plain)
            for candidate, design in zip(sums, small, strict=True)
        ]
    )
    if not np.isfinite(losses).all(axis=1).any():
        raise DataError("the instruments identify none of " + ", ".join(words))
    return _choose(words, small, losses)


def word_losses(parts: list[Moments], design: Design, plain: Design) -> Floats:
    """The loss on each fold in units of the linear model's error variance, (folds,).

    `parts` are moments of the design and of the linear one, `plain`, together; the loss is
    infinite where the weights are not identified.
    """
    return np.array([_loss(others(parts, f), part, design, plain) for f, part in enumerate(parts)])


def _loss(training: Moments, held_out: Moments, design: Design, plain: Design) -> float:
    full_design = training.design
    if training.n <= len(design.phi_names):
        return np.inf
    fits = [Exact().solve(restrict(training, one)) for one in (design, plain)]
    if not all(fit.identified for fit in fits):
        return np.inf
    h, h0 = (
        _placed(fit.W, one, full_design) for fit, one in zip(fits, (design, plain), strict=True)
    )  # weights of the columns of phi, (d_phi, d_y)
    phi, psi, y = (
        np.array(c)
        for c in (full_design.phi_columns, full_design.psi_columns, full_design.y_columns)
    )
    second, second_held = training.second, held_out.second
    delta = _first_stage(second, full_design) @ (h - h0)
    left = np.vstack([-h0, np.eye(len(y))])
    columns = np.concatenate([phi, y])
    r0 = second_held[np.ix_(psi, columns)] @ left
    loss = np.sum(delta * (second_held[np.ix_(psi, psi)] @ delta - 2 * r0), axis=0)
    variance = np.einsum("po,pq,qo->o", left, second[np.ix_(columns, columns)], left)
    return float(np.sum(loss / np.where(variance > 0, variance, 1.0)))


def _placed(W: Floats, design: Design, full_design: Design) -> Floats:
    """Put weights (d_y, d_phi) at their columns of the larger phi, (d, d_y)."""
    at, weights = columns_in(design, full_design), np.zeros((len(full_design.phi_columns), len(W)))
    places = [full_design.phi_columns.index(at[column]) for column in design.phi_columns]
    weights[places] = W.T
    return weights


def _first_stage(second: Floats, design: Design) -> Floats:
    """What psi predicts of phi, (d_psi, d_phi); what both have is known."""
    phi, psi = list(design.phi_columns), list(design.psi_columns)
    scale = np.sqrt(np.maximum(np.diag(second)[psi], ROUNDING))
    B = second[np.ix_(psi, psi)] / np.outer(scale, scale)
    A = second[np.ix_(psi, phi)] / scale[:, None]
    first: Floats = np.linalg.lstsq(B, A, rcond=ROUNDING)[0] / scale[:, None]
    for column in design.shared:
        first[:, phi.index(column)] = 0.0
        first[psi.index(column), phi.index(column)] = 1.0
    return first


def _choose(words: Sequence[str], designs: list[Design], losses: Floats) -> SieveChoice:
    """Take the last candidate that beats the best before it; losses (words, folds)."""
    from scipy.special import stdtrit

    folds = losses.shape[1]
    threshold = float(stdtrit(folds - 1, 0.975))
    candidates, best = [], -1
    for i, word in enumerate(words):
        lead = (losses[best] if best >= 0 else np.zeros(folds)) - losses[i]
        whole = bool(np.isfinite(losses[i]).all())
        spread = float(lead.std(ddof=1) / np.sqrt(folds)) if whole else np.inf
        if whole and (best < 0 or lead.mean() > threshold * spread):
            best = i
        sizes = len(designs[i].phi_names), len(designs[i].psi_names)
        gain, better = float(-losses[i].mean()), float(lead.mean())
        candidates.append(Candidate(word, *sizes, gain, better, spread))
    return SieveChoice(words[best], tuple(candidates), folds)
