"""Intervals of the actions' effects that are valid with a weak instrument, to compare with Wald's.

| endogenous features, instruments | interval |
|---|---|
| one and one | tF: Wald's, with a critical value that depends on the first stage's F |
| one and several | the conditional likelihood ratio's, Wald's where instruments are strong |
| several | Anderson-Rubin's, the other effects projected out |

Wald's interval is trusted where the two agree. An Anderson-Rubin set under robust or clustered
errors is the projection of a joint one, so it is wider. Wald's interval is therefore compared with
a smaller set, whose ends are where the same statistic is 3.84 above its minimum. These statistics
measure the variance under the null, about zero: t^2 from G clusters is t^2 / (1 + t^2 / G) of
theirs. The comparison allows for this.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ivvi._io.arrays import Floats
from ivvi._io.result import Compact, Records, TableResult
from ivvi.diagnostics.result import Diagnostics
from ivvi.diagnostics.tails_and_quantiles import chi2_quantile
from ivvi.diagnostics.verdict import Verdict
from ivvi.errors import DataError
from ivvi.estimators import Estimate
from ivvi.estimators.covariance.scores import Scored
from ivvi.moments import Moments
from ivvi.weak_iv.confidence_sets import (
    Intervals,
    anderson_rubin,
    conditional_likelihood_ratio,
    piece,
)
from ivvi.weak_iv.effect_scores import MOST_SETS, ActionEffects, EffectScores, action_effects
from ivvi.weak_iv.partialled_effect import PartialledEffect
from ivvi.weak_iv.robust_anderson_rubin import Profile, robust_anderson_rubin
from ivvi.weak_iv.robust_likelihood_ratio import robust_likelihood_ratio
from ivvi.weak_iv.tf_critical_values import ENOUGH_F, LEVEL, TWO_SIDED, tf_critical_value

WIDER, SHIFTED = 0.1, 0.1
"""Shares of Wald's width: how much wider a robust interval, and how far out an end of it, is
where the two agree."""
TF_WIDER = 0.05
"""The same of a tF interval, wider than Wald's by its nature: an F of 67."""
TOO_WEAK = (
    "the instruments are too weak to bound all effects together; `ivvi interval` computes the "
    "set of one effect"
)
UNBOUNDED = (
    "the set of all effects together is not bounded, though the instruments are strong; "
    "`ivvi interval` computes the set of one effect"
)
NO_ERROR = "its standard error is not a positive number"
NO_BIAS = 0.15
"""Standard errors by which an estimate may be off where Wald's interval is beyond doubt."""
BOUNDED = 2.0
"""How far above the critical value the rank test is where a set is surely bounded."""


@dataclass(frozen=True, slots=True)
class RobustInterval:
    """An interval for one effect that is valid however weak the instrument is.

    Attributes
    ----------
    intervals
        Disjoint closed intervals, ascending; ends may be infinite, none means empty.
    method
        ``tF``, ``clr`` or ``ar``.
    agrees
        Whether Wald's interval is about the same.
    level
        Probability of holding the truth.
    """

    intervals: Intervals
    method: str
    agrees: bool
    level: float = LEVEL

    @property
    def bounded(self) -> bool:
        """Whether all ends are finite."""
        return all(math.isfinite(end) for pair in self.intervals for end in pair)

    @property
    def ends(self) -> tuple[float, float]:
        """The lowest and the highest value; NaN where the set is empty."""
        if not self.intervals:
            return math.nan, math.nan
        return self.intervals[0][0], self.intervals[-1][1]

    @property
    def words(self) -> str:
        """The interval as it is printed."""
        if not self.intervals:
            return "empty: no value agrees with all the instruments"
        return " or ".join(piece(low, high) for low, high in self.intervals)

    def to_json(self) -> dict[str, Any]:
        """Describe the interval with JSON values; null stands for an infinite end."""
        pairs = [[v if math.isfinite(v) else None for v in pair] for pair in self.intervals]
        low, high = (v if math.isfinite(v) else None for v in self.ends)
        return {
            "low": low,
            "high": high,
            "intervals": pairs,
            "method": self.method,
            "level": self.level,
            "unbounded": not self.bounded,
            "empty": not self.intervals,
            "agrees": self.agrees,
        }


@dataclass(frozen=True, slots=True, repr=False)
class RobustIntervals(TableResult):
    """Robust intervals by output and endogenous feature, and why others have none."""

    intervals: dict[tuple[str, str], RobustInterval] = field(default_factory=dict)
    reasons: dict[tuple[str, str], str] = field(default_factory=dict)
    reason: str = ""

    def get(self, output: str, feature: str) -> RobustInterval | None:
        """Return the interval of one effect, if there is one."""
        return self.intervals.get((output, feature))

    @property
    def too_weak(self) -> bool:
        """Whether some intervals are missing because the instruments are weak."""
        return TOO_WEAK in self.reasons.values()

    @property
    def bounded(self) -> bool:
        """Whether all intervals are bounded."""
        return all(one.bounded for one in self.intervals.values())

    @property
    def headline(self) -> str:
        """How many there are, and how many of them agree with Wald's."""
        if not self.intervals:
            return f"none: {self.reason or 'no effect has one'}"
        agree = sum(one.agrees for one in self.intervals.values())
        return f"of {len(self.intervals)} effects; Wald's agree with {agree}"

    def summary(self) -> str:
        """Return one line per effect: its interval, or why there is none."""
        lines = [
            f"{feature} on {output}: {one.words} ({one.method}"
            + (")" if one.agrees else ", not Wald's)")
            for (output, feature), one in self.intervals.items()
        ]
        lines += [f"{feature} on {o}: none, {why}" for (o, feature), why in self.reasons.items()]
        title = "95% intervals that hold however weak the instrument"
        return "\n".join([title, *lines, *([self.reason] if self.reason else [])])

    def records(self) -> Records:
        """Return the intervals, one row per effect."""
        rows: Records = []
        for (output, feature), one in self.intervals.items():
            low, high = one.ends
            row = {"output": output, "feature": feature, "low": low, "high": high}
            rows.append(row | {"method": one.method, "level": one.level, "agrees": one.agrees})
        return rows

    def to_json(self) -> dict[str, Any]:
        """Describe them with JSON values, by output and feature."""
        document: dict[str, Any] = {}
        for (output, feature), one in self.intervals.items():
            document.setdefault(output, {})[feature] = one.to_json()
        for (output, feature), why in self.reasons.items():
            document.setdefault(output, {})[feature] = {"reason": why}
        return {
            "robust_interval": document or None,
            "robust_interval_reason": self.reason or None,
        }


def robust_intervals(
    moments: Moments,
    estimate: Estimate,
    diagnostics: Diagnostics,
    scored: Mapping[str, Scored],
    widths: Floats,
) -> RobustIntervals:
    """Compute the robust intervals of the first effects, under the errors of the estimate.

    `widths` (d_y, d_phi) are what Wald's intervals multiply standard errors by.
    """
    if diagnostics.cragg_donald is None:
        return RobustIntervals(reason=diagnostics.reasons["cragg_donald"])
    problems = action_effects(moments)
    make = _Maker(problems, estimate, estimate.se, diagnostics, scored, widths)
    intervals: dict[tuple[str, str], RobustInterval] = {}
    reasons: dict[tuple[str, str], str] = {}
    for i, output in enumerate(problems.labels):
        if output in estimate.exact:
            continue
        features = problems.parts.names[:MOST_SETS]
        for feature, one in zip(features, make.intervals(i, len(features)), strict=True):
            if isinstance(one, str):
                reasons[output, feature] = one
            else:
                intervals[output, feature] = one
    every = (len(moments.design.outputs) - len(estimate.exact)) * problems.m
    answered = len(intervals) + len(reasons)
    first = f"only {answered} of {every} effects have one; `ivvi interval` computes any other"
    return RobustIntervals(intervals, reasons, first if answered < every else "")


@dataclass(frozen=True, slots=True, repr=False)
class _Maker(Compact):
    """Chooses and computes the intervals of the effects on one output."""

    problems: ActionEffects
    estimate: Estimate
    se: Floats
    diagnostics: Diagnostics
    scored: Mapping[str, Scored]
    widths: Floats

    def intervals(self, i: int, count: int) -> list[RobustInterval | str]:
        """Return the intervals of the first endogenous features on output i, or why none."""
        if self.problems.m == 1 or self.estimate.W_cov.kind == "unadjusted":
            return [self._alone(i, j) for j in range(count)]
        usable = [j for j in range(count) if self._wald(i, j)[1] > 0]
        try:
            made = self._projected(i, usable)
        except np.linalg.LinAlgError:
            made = f"the equations of {self.problems.m} effects together are singular"
        answers = [made] * len(usable) if isinstance(made, str) else made
        by_effect = dict(zip(usable, answers, strict=True))
        return [by_effect.get(j, NO_ERROR) for j in range(count)]

    def _wald(self, i: int, j: int) -> tuple[float, float, float]:
        """Return an effect, its standard error, and the half-width of Wald's interval in these."""
        name = self.problems.parts.names[j]
        at = self.problems.outputs[i], self.estimate.design.phi_names.index(name)
        return float(self.estimate.W[at]), float(self.se[at]), float(self.widths[at])

    def _alone(self, i: int, j: int) -> RobustInterval | str:
        """Return the interval of one effect, whatever the others."""
        problems, (w, se, width) = self.problems, self._wald(i, j)
        if not se > 0:
            return NO_ERROR
        if problems.m * problems.parts.count == 1:
            return self._t_and_f(w, width * se)
        effect = problems.effect(i, j)
        try:
            if self.estimate.W_cov.kind == "unadjusted":
                return self._homoskedastic(effect, w, width * se)
            if isinstance(scores := self._scores(i), str):
                return scores
            return self._one_action(effect, scores, w, se, width)
        except DataError as error:
            return f"it cannot be computed: {error}"
        except np.linalg.LinAlgError:
            return f"the equations of {problems.m} effects together are singular"

    def _scores(self, i: int) -> EffectScores | str:
        """Return the sums of output i over rows or clusters, or why they cannot be used."""
        if "effects" not in self.scored:
            return "its sums were not computed: too many features, instruments or rows"
        scores, count = self.problems.scores(self.scored["effects"], i), self.problems.parts.count
        if scores.clusters <= count:
            return f"{scores.clusters} clusters are too few for {count} instruments"
        return scores

    def _t_and_f(self, w: float, half: float) -> RobustInterval | str:
        test = self.diagnostics.effective_f
        if test is None:
            return self.diagnostics.reasons["effective_f"]
        wider = tf_critical_value(test.value) / TWO_SIDED
        reach = wider * half
        return RobustInterval(((w - reach, w + reach),), "tF", wider <= 1 + TF_WIDER)

    def _homoskedastic(self, effect: PartialledEffect, w: float, half: float) -> RobustInterval:
        """Return the set under homoskedastic errors, in closed form."""
        just = effect.k == effect.nuisance + 1
        confidence_set = (anderson_rubin if just else conditional_likelihood_ratio)(effect, LEVEL)
        return self._compared(confidence_set.intervals, confidence_set.method, w, half)

    def _one_action(
        self, effect: PartialledEffect, scores: EffectScores, w: float, se: float, width: float
    ) -> RobustInterval:
        enough = scores.clusters > scores.sums.size
        make = robust_likelihood_ratio if enough else robust_anderson_rubin
        confidence_set = make(effect, scores, LEVEL, se=self.estimate.W_cov.kind)
        few = math.sqrt(max(1 - TWO_SIDED**2 / scores.clusters, 0.25))
        return self._compared(confidence_set.intervals, confidence_set.method, w, width * se / few)

    def _projected(self, i: int, effects: list[int]) -> list[RobustInterval | str] | str:
        """Return Anderson-Rubin intervals of some effects on output i, others projected out."""
        if isinstance(scores := self._scores(i), str):
            return scores
        count = self.problems.parts.count
        q = chi2_quantile(LEVEL, count)
        if scores.clusters < BOUNDED * q:
            few = f"{scores.clusters} clusters are too few to bound a set"
            return f"{few} with {count} instruments"
        test = self.diagnostics.kleibergen_paap
        if test is None or test.wald.value < BOUNDED * q:
            return TOO_WEAK
        if (profile := Profile.of(scores)) is None:
            return "the covariance of the moments is not positive definite"
        if profile.least > q:
            return [RobustInterval((), "ar", agrees=False) for _ in effects]
        sure, (size_y, *sizes) = self._beyond_doubt(), self.problems.sizes(i)
        units = size_y / np.array(sizes)[effects, None]
        wald = [self._wald(i, j) for j in effects]
        ends = units * profile.intervals(effects, np.full(len(effects), q))
        if sure:
            near = ends
        else:
            square = np.array([width**2 for _, _, width in wald])
            reach = square / (1 + square / scores.clusters)
            near = units * profile.intervals(effects, profile.least + reach)
        return [self._one_projected(*one, sure=sure) for one in zip(ends, near, wald, strict=True)]

    @staticmethod
    def _one_projected(
        ends: Floats, near: Floats, wald: tuple[float, float, float], *, sure: bool
    ) -> RobustInterval | str:
        """Return an interval, and whether it agrees with Wald's; it does where that is `sure`."""
        w, se, width = wald
        if np.isnan([*ends, *near]).any():
            return UNBOUNDED if sure else TOO_WEAK
        agrees = sure or _agree((float(near[0]), float(near[1])), w, width * se)
        return RobustInterval(((float(ends[0]), float(ends[1])),), "ar", agrees)

    def _compared(self, pieces: Intervals, method: str, w: float, half: float) -> RobustInterval:
        interval = RobustInterval(pieces, method, agrees=False)
        if len(pieces) != 1 or not interval.bounded:
            return interval
        return replace(interval, agrees=_agree(pieces[0], w, half) or self._beyond_doubt())

    def _beyond_doubt(self) -> bool:
        """Whether instruments are so strong that the intervals differ only by their weights.

        With q instruments and a concentration of q F, two-stage least squares is off by at most
        (q - m - 1) / (q F)^1/2 standard errors, and from 104.67 on its t needs no correction.
        """
        d, q, m = self.diagnostics, self.problems.parts.count, self.problems.m
        if m == 1 and d.effective_f is not None:
            concentration = q * d.effective_f.value
        elif d.kleibergen_paap is not None:
            concentration = d.kleibergen_paap.wald.value
        else:
            concentration = q * (d.cragg_donald or 0.0)
        biased = max(q - m - 1, 0) > NO_BIAS * math.sqrt(concentration)
        return concentration >= ENOUGH_F and not biased


EMPTY = "no value of an effect agrees with all the instruments"
"""Said of an empty set."""


def _agree(robust: tuple[float, float], w: float, half: float) -> bool:
    """Whether Wald's interval, w +- half, has room for the robust one, but for a little.

    A robust interval may be narrower: it weighs the instruments by their noise.
    """
    low, high = robust
    reach = half * (1 + 2 * SHIFTED)
    narrow = high - low <= 2 * half * (1 + WIDER)
    return bool(narrow and w - reach <= low and high <= w + reach)


def settled(verdict: Verdict, robust: RobustIntervals, *, bootstrapped: bool = False) -> Verdict:
    """Return the final verdict: strong only if Wald's intervals agree with the robust ones.

    An unbounded interval makes doubtful instruments weak, and strong ones doubtful: with a strong
    first stage it is the clusters that are few. Where Wald's are not to be trusted and no robust
    one was made, none is recommended; where they would be and all of them were `bootstrapped`
    too, the bootstrap's are.
    """
    if verdict.word in ("", "contradictory", "not identified"):
        return verdict
    usual = "wild" if bootstrapped else "wald"
    if not robust.intervals:
        why = _first(robust)
        rule = f"{verdict.rule}; no robust interval to compare with: {why}" if why else verdict.rule
        word = "doubtful" if verdict.word == "strong" and robust.too_weak else verdict.word
        return replace(
            verdict, word=word, rule=rule, recommended=usual if word == "strong" else "none"
        )
    methods = " and ".join(sorted({one.method for one in robust.intervals.values()}))
    apart = sum(not one.agrees for one in robust.intervals.values())
    sentence = f"the robust intervals ({methods}) agree with Wald's"
    word = verdict.word
    if apart and len(robust.intervals) == 1:
        sentence = f"the robust interval ({methods}) differs from Wald's"
    elif apart:
        counted = f"{apart} of {len(robust.intervals)}"
        sentence = f"{counted} robust intervals ({methods}) differ from Wald's"
    if apart:
        word = "doubtful" if word == "strong" else word
    if not robust.bounded:
        sentence = f"{sentence}, and some are unbounded"
        word = "doubtful" if verdict.word == "strong" else "weak"
    if word != "strong" and robust.reasons:
        sentence = f"{sentence}; {len(robust.reasons)} effects have none: {_first(robust)}"
    if verdict.word == "strong" and word != "strong":
        sentence = f"that is strong, but {sentence}"
    recommended = usual if word == "strong" else "robust"
    if any(not one.intervals for one in robust.intervals.values()):
        sentence = f"{sentence}; {EMPTY}"
        recommended = "none"
    return replace(verdict, word=word, rule=f"{verdict.rule}; {sentence}", recommended=recommended)


def _first(robust: RobustIntervals) -> str:
    """Return why there is no interval, or why one is missing."""
    return next(iter(robust.reasons.values()), robust.reason)
