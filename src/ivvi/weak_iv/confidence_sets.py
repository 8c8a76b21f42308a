"""Confidence sets that are valid however weak the instrument: Anderson-Rubin and CLR.

A Wald interval is wrong when the instrument is weak, and does not show it. These sets contain the
truth with the stated probability whatever the strength; with a weak instrument they are wide,
unbounded, in two pieces or the whole line, and say so. Both are level sets of one quadratic ratio
(`PartialledEffect` has the matrices),

    ar(theta) = min_gamma  b' P b / b' M b,    b = (1, -theta, -gamma),

and have a closed form: P - q M is reduced to (y, x) by its Schur complement, and a
quadratic inequality in theta is left.
"""

from __future__ import annotations

import math
import os
import textwrap
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from ivvi._io.arrays import Floats
from ivvi._io.plotting import IV, MUTED, check_figure, finished, new_figure
from ivvi._io.result import Records, TableResult
from ivvi.diagnostics.tails_and_quantiles import (
    check_level,
    chi2_tails,
    f_quantile,
)
from ivvi.errors import DataError
from ivvi.estimators.estimate import RANK_TOLERANCE
from ivvi.weak_iv.partialled_effect import PartialledEffect
from ivvi.weak_iv.root_and_minimum import find_root

Intervals = tuple[tuple[float, float], ...]
LINE: Intervals = ((-math.inf, math.inf),)
NODES = 256
TOUCHING = 1e-13
"""Rounding error of a discriminant, relative to its terms."""
TITLES = {"ar": "Anderson-Rubin", "clr": "conditional likelihood ratio"}


@dataclass(frozen=True, slots=True, repr=False)
class ConfidenceSet(TableResult):
    """The values of an effect that a test does not reject.

    Attributes
    ----------
    label
        The effect in words.
    intervals
        Disjoint closed intervals, ascending; ends may be infinite, none means empty.
    level
        Probability with which the set contains the truth.
    method, se
        ``ar`` or ``clr``; ``unadjusted``, ``robust`` or ``clustered``.
    distribution
        Of the test at the truth; empty where the instruments allow none.
    clusters, note
        The columns that rows are clustered by, and how they were chosen.
    """

    label: str
    intervals: Intervals
    level: float
    method: str
    se: str = "unadjusted"
    distribution: str = ""
    clusters: tuple[str, ...] = ()
    note: str = ""

    def __contains__(self, value: float) -> bool:
        return any(low <= value <= high for low, high in self.intervals)

    @property
    def kind(self) -> str:
        """``bounded``, ``disjoint``, ``unbounded``, ``everything`` or ``empty``."""
        if not self.intervals:
            return "empty"
        if self.intervals == LINE:
            return "everything"
        if not all(math.isfinite(end) for pair in self.intervals for end in pair):
            return "unbounded"
        return "bounded" if len(self.intervals) == 1 else "disjoint"

    @property
    def verdict(self) -> str:
        """The meaning of the set's shape, in words."""
        low = self.intervals[0][0] if self.intervals else 0.0
        two_sided = len(self.intervals) > 1 and math.isinf(low)
        return {
            "bounded": "bounded",
            "disjoint": f"in {len(self.intervals)} pieces, with values between them rejected",
            "unbounded": "unbounded: effects of any size are possible"
            + (", all but those between the two rays" if two_sided else ", on one side")
            + "; the instrument is weak for it",
            "everything": "the whole line: the instruments are not informative about it",
            "empty": "empty: no value agrees with all the instruments; "
            "one of them is invalid, or the features do not fit",
        }[self.kind]

    def summary(self) -> str:
        """Return the set in words, with its null and law."""
        pieces = " or ".join(piece(low, high) for low, high in self.intervals)
        by = f" by {' and '.join(self.clusters)}" if self.clusters else ""
        head = (
            f"{100 * self.level:g}% {TITLES[self.method]} set ({self.se}{by}) of the {self.label}"
        )
        if self.kind in ("empty", "everything"):
            words = self.verdict
        else:
            words = pieces if self.kind == "bounded" else f"{pieces} ({self.verdict})"
        law = f"{self.distribution}, p >= {1 - self.level:.4g}" if self.distribution else "no test"
        note = f"\n  {self.note}" if self.note else ""
        return f"{head}: {words}\n  null: {self.null}; {law}{note}"

    def records(self) -> Records:
        """Return the intervals, one row each, ascending; none where the set is empty."""
        about = {"effect": self.label, "level": self.level, "method": self.method, "se": self.se}
        return [{**about, "low": low, "high": high} for low, high in self.intervals]

    def plot(self, path: str | os.PathLike[str] | None = None, *, force: bool = False) -> Any:
        """Draw the set on a line with zero; arrows go on without end; `path` saves it."""
        check_figure(path, force=force)
        ends = [end for pair in self.intervals for end in pair if math.isfinite(end)]
        room = 0.25 * (max([0.0, *ends]) - min([0.0, *ends])) or 1.0
        left, right = min([0.0, *ends]) - room, max([0.0, *ends]) + room
        figure = new_figure(6.5, 1.9)
        ax = figure.add_subplot()
        for low, high in self.intervals:
            ax.plot(
                [max(low, left), min(high, right)], [0, 0], color=IV, lw=4, solid_capstyle="butt"
            )
            for end, mark in ((low, "<"), (high, ">")):
                at = min(max(end, left), right)
                ax.plot(at, 0, "|" if math.isfinite(end) else mark, color=IV, ms=12, mew=2)
        ax.axvline(0, color=MUTED, lw=0.8)
        ax.set_xlim(left - 0.1 * room, right + 0.1 * room)
        ax.set_yticks([])
        ax.set(xlabel=self.label)
        head = f"{100 * self.level:g}% {TITLES[self.method]} set ({self.se})"
        ax.set_title(textwrap.fill(f"{head}: {self.verdict}", 85), loc="left", fontsize=9)
        ax.spines[["top", "right", "left"]].set_visible(False)
        return finished(figure, path, force=force)

    @property
    def null(self) -> str:
        """The hypothesis that is tested for each value."""
        return f"the {self.label} is the value"

    def to_json(self) -> dict[str, Any]:
        """Describe the set with JSON values; null stands for an infinite end."""
        ends = [[v if math.isfinite(v) else None for v in pair] for pair in self.intervals]
        return {
            "effect": self.label,
            "intervals": ends,
            "kind": self.kind,
            "verdict": self.verdict,
            "level": self.level,
            "method": self.method,
            "se": self.se,
            "clusters": list(self.clusters) or None,
            "se_note": self.note or None,
            "null": self.null,
            "distribution": self.distribution or None,
        }


def anderson_rubin(effect: PartialledEffect, level: float = 0.95) -> ConfidenceSet:
    """Anderson and Rubin's set under homoskedastic errors, in closed form.

    With k instruments and m other endogenous directions, profiled out at their LIML value,
    (n - rank psi) / (k - m) ar(theta) is compared with F(k - m, n - rank psi): exact for
    normal errors and m = 0, else asymptotically never too small (Guggenberger, Kleibergen,
    Mavroeidis and Chen, 2012).
    """
    check_level(level)
    over = effect.k - effect.nuisance
    if over < 1 or not effect.moves:
        return ConfidenceSet(effect.label, LINE, level, "ar")
    quantile = f_quantile(level, over, effect.freedom)
    pieces = level_set(effect, quantile * over / effect.freedom)
    law = f"F({over}, {effect.freedom})"
    return ConfidenceSet(effect.label, pieces, level, "ar", distribution=law)


def conditional_likelihood_ratio(effect: PartialledEffect, level: float = 0.95) -> ConfidenceSet:
    """Moreira's (2003) set under homoskedastic errors.

    LR(theta) = f (ar(theta) - l0), with l0 <= l1 the two smallest eigenvalues of M^-1 P and
    f = n - rank psi, is compared with its law given s = f (l0 + l1 - ar(theta)). Both
    depend on theta through ar alone and the p-value falls with it (Mikusheva, 2010), so
    that the set is {ar(theta) <= q} with q the solution of p = 1 - level. Other
    endogenous directions are profiled out (Kleibergen, 2021). Never empty.
    """
    check_level(level)
    over, f = effect.k - effect.nuisance, effect.freedom
    if over < 1 or not effect.moves:
        return ConfidenceSet(effect.label, LINE, level, "clr")
    check_likelihood(effect)
    if over == 1:  # just identified: LR is AR
        return replace(anderson_rubin(effect, level), method="clr")
    l0, l1 = smallest_roots(effect)

    def p_value(ar: float) -> float:
        return conditional_tail(f * (ar - l0), f * (l0 + l1 - ar), over)

    pieces = LINE
    if p_value(l1) < 1 - level:
        pieces = level_set(effect, find_root(lambda ar: p_value(ar) - (1 - level), l0, l1))
    return ConfidenceSet(effect.label, pieces, level, "clr", distribution=conditional_law(over))


def conditional_law(k: int, p: int = 1) -> str:
    """Name the law of `conditional_tail`."""
    return f"chi2({p})" if k == p else f"LR({k}, {p}) given the strength"


def conditional_tail(statistic: float, s: float, k: int, p: int = 1) -> float:
    """P(LR > statistic | s) with k instruments and p parameters, exact by quadrature.

    Given s, LR = (Qp + Qk-p - s + sqrt((Qp + Qk-p + s)^2 - 4 s Qk-p)) / 2 for independent
    chi-squared Qp and Qk-p. On the angle t of (sqrt Qk-p, sqrt Qp) the tail is the mean of
    P(chi2(k) > (LR + s) / (1 + s sin(t)^2 / LR)) with density proportional to
    sin(t)^(p - 1) cos(t)^(k - p - 1) (Andrews, Moreira and Stock, 2007, for p = 1).
    """
    if statistic <= 0:
        return 1.0
    if k == p:
        return float(chi2_tails(np.array([statistic]), k)[0])
    t, weights = _nodes()
    density = weights * np.sin(t) ** (p - 1) * np.cos(t) ** (k - p - 1)
    bound = (statistic + s) * statistic / (statistic + s * np.sin(t) ** 2)
    return float(density @ chi2_tails(bound, k) / density.sum())


@cache
def _nodes() -> tuple[Floats, Floats]:
    """Gauss-Legendre nodes and weights on [0, pi / 2]."""
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    return np.pi / 4 * (nodes + 1), weights


def check_likelihood(effect: PartialledEffect) -> None:
    """Refuse an effect whose errors have no variance in some direction."""
    if effect.unexplained[1, 1] <= RANK_TOLERANCE**2:
        raise DataError(
            f"the {effect.label} has no likelihood ratio, because it includes an exogenous "
            "feature; ask for ar"
        )
    if np.linalg.eigvalsh(effect.unexplained)[0] <= RANK_TOLERANCE**2:
        raise DataError(
            f"the {effect.label} has no likelihood ratio: the output is an exact function of the "
            "features, or an action is one of the instruments"
        )


def smallest_roots(effect: PartialledEffect) -> tuple[float, float]:
    """Return the two smallest eigenvalues of M^-1 P."""
    factor = np.linalg.cholesky(effect.unexplained)
    half = np.linalg.solve(factor, np.linalg.solve(factor, effect.explained).T)
    roots = np.maximum(np.linalg.eigvalsh((half + half.T) / 2), 0.0)
    return float(roots[0]), float(roots[1])


def level_set(effect: PartialledEffect, q: float) -> Intervals:
    """Return {theta: ar(theta) <= q}."""
    pencil = effect.explained - q * effect.unexplained
    inner = pencil[2:, 2:]
    if len(inner):
        if np.linalg.eigvalsh(inner)[0] <= 0:
            return LINE
        pencil = pencil[:2, :2] - pencil[:2, 2:] @ np.linalg.solve(inner, pencil[2:, :2])
    return tuple((low * effect.unit, high * effect.unit) for low, high in _quadratic(pencil))


def _quadratic(pencil: Floats) -> Intervals:
    """Solve R_yy - 2 R_yx theta + R_xx theta^2 <= 0; one point when the fit is perfect."""
    c, b, a = float(pencil[0, 0]), float(pencil[0, 1]), float(pencil[1, 1])
    inside = b * b - a * c
    if a > 0 and abs(inside) <= TOUCHING * (b * b + a * a):
        return ((b / a, b / a),)
    if inside <= 0:
        return LINE if a < 0 or (a == 0 and c <= 0) else ()
    far = b + math.copysign(math.sqrt(inside), b)  # the root without cancellation
    if a == 0:
        return ((c / far, math.inf),) if b > 0 else ((-math.inf, c / far),)
    low, high = sorted((far / a, c / far))
    return ((low, high),) if a > 0 else ((-math.inf, low), (high, math.inf))


def piece(low: float, high: float, digits: int = 4) -> str:
    """Write one interval."""
    left = f"[{low:.{digits}g}" if math.isfinite(low) else "(-inf"
    right = f"{high:.{digits}g}]" if math.isfinite(high) else "inf)"
    return f"{left}, {right}"
