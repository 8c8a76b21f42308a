"""Results of a sensitivity analysis: breakdown points and bands, in numbers, words and a plot."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from ivvi._io.arrays import Floats
from ivvi._io.plotting import check_figure, finished, make_axes
from ivvi._io.result import Brief, Compact, Records, TableResult
from ivvi.errors import InputError
from ivvi.evaluation.valuation import RIVAL_WORDS
from ivvi.sensitivity_analysis.adjusted_covariance import VarianceCurve
from ivvi.sensitivity_analysis.violations import Size

MOST_EFFECTS = 6
"""Effects that a summary shows; `to_json` has them all."""
STURDY, FRAGILE = 0.5, 0.1
"""Shares of the instrument's effect through the actions. A gain is called sturdy if it survives a
direct effect of at least the first, and fragile if the second is too much. This is a convention,
since no log can tell which direct effects are likely."""


@dataclass(frozen=True, repr=False)
class Breakdown(Compact):
    """How much invalidity it takes to overturn a conclusion.

    Attributes
    ----------
    question
        The conclusion, such as ``gain over zero``.
    violation
        The direction of the invalidity.
    size
        The smallest that overturns the conclusion; None if none up to `most` does.
    unsure
        The smallest for which the interval also contains the opposite; None if none does.
    most
        The largest size that was tried.
    has_interval
        Whether there is an interval, so that `unsure` has a meaning.
    """

    question: str
    violation: str
    size: Size | None
    unsure: Size | None
    most: Size
    has_interval: bool = False

    def to_json(self) -> dict[str, Any]:
        """Describe with JSON values."""
        sizes = {"breakdown": self.size, "unsure": self.unsure, "most": self.most}
        named = {name: None if s is None else s.to_json() for name, s in sizes.items()}
        return {"question": self.question, "violation": self.violation, **named}


@dataclass(frozen=True, eq=False, repr=False)
class Band(Compact):
    """The gain over a rival for each size of a violation, arrays (points,).

    Attributes
    ----------
    rival, violation
        The rival, and the direction of the violation.
    t
        Sizes, from -T to T; from 0 where the sign of the violation is given.
    share, correlation
        The same in a reader's units, with the sign of t: the share of the output that z moves
        most, and the largest correlation of any.
    gain, se
        Gain, and its standard error: from the covariance of W (NaN where it was not requested)
        and from the simulation.
    simulation_error
        Standard error of the gain that is due to the number of simulated episodes.
    critical
        Standard errors on each side of an interval.
    """

    rival: str
    violation: str
    t: Floats
    share: Floats
    correlation: Floats
    gain: Floats
    se: Floats
    simulation_error: Floats
    critical: float

    @property
    def lower(self) -> Floats:
        """Lower ends of the intervals at each size."""
        return self.gain - self.critical * self.se

    @property
    def upper(self) -> Floats:
        """Upper ends of the intervals at each size."""
        return self.gain + self.critical * self.se

    def union(self, t: float) -> tuple[float, float]:
        """Return the interval of the gain if the violation is at most `t` in size, of either sign.

        The union of the intervals at every allowed size (Conley, Hansen and Rossi, 2012); it covers
        with at least the probability of each. Sizes beyond the band's last raise an error.
        """
        if abs(t) > self.t[-1] * (1 + 1e-9):
            raise InputError(
                f"the size is {abs(t):g}; the band was computed up to {self.t[-1]:g} (most=)"
            )
        ends = np.clip([-abs(t), abs(t)], self.t[0], self.t[-1])
        inside = (self.t > ends[0]) & (self.t < ends[1])
        low = np.r_[np.interp(ends, self.t, self.lower), self.lower[inside]]
        high = np.r_[np.interp(ends, self.t, self.upper), self.upper[inside]]
        return float(low.min()), float(high.max())

    def to_json(self) -> dict[str, Any]:
        """Describe with JSON values; null for what was not computed."""
        names = ("t", "share", "correlation", "gain", "se", "simulation_error")
        arrays = {
            name: [v if math.isfinite(v) else None for v in getattr(self, name).tolist()]
            for name in names
        }
        return {"rival": self.rival, "violation": self.violation, **arrays}


@dataclass(frozen=True, repr=False)
class EffectBand(Compact):
    """One coefficient of W under a violation: estimate - t slope, in closed form.

    Attributes
    ----------
    output, feature, violation
        The coefficient, and the direction of the violation.
    estimate, slope
        The coefficient at t = 0, and how much a size of 1 lowers it.
    variance
        Its variance at every size.
    critical
        Standard errors on each side of an interval.
    signs
        Whether both signs of t are considered, or only the positive one.
    tipping
        The size, of an allowed sign, that explains the whole estimate; None if none up to the
        largest does.
    """

    output: str
    feature: str
    violation: str
    estimate: float
    slope: float
    variance: VarianceCurve
    critical: float
    signs: tuple[float, ...]
    tipping: Size | None

    @property
    def se(self) -> float:
        """Standard error at t = 0."""
        return self.variance.se(0.0)

    def interval(self, t: float) -> tuple[float, float]:
        """Return the interval at size `t`, after removing the violation's effect on outputs."""
        middle, half = self.estimate - t * self.slope, self.critical * self.variance.se(t)
        return middle - half, middle + half

    def union(self, t: float) -> tuple[float, float]:
        """Return the interval if the violation is at most `t` in size, of the allowed signs.

        The union of `interval(s)` over all such s (Conley, Hansen and Rossi, 2012). The
        standard error, the root of a positive quadratic, is convex in s, so that the lower
        end is concave, the upper convex, and both are furthest out at an end of the range.
        """
        ends = {0.0, *(sign * abs(t) for sign in self.signs)}
        low, high = zip(*(self.interval(s) for s in ends), strict=True)
        return min(low), max(high)

    def to_json(self) -> dict[str, Any]:
        """Describe with JSON values."""
        words = {"output": self.output, "feature": self.feature, "violation": self.violation}
        se = self.se if math.isfinite(self.se) else None
        numbers = {"estimate": self.estimate, "se": se, "slope": self.slope}
        variance = [self.variance.v0, self.variance.v1, self.variance.v2]
        finite_variance = variance if all(map(math.isfinite, variance)) else None
        tipping = None if self.tipping is None else self.tipping.to_json()
        return {**words, **numbers, "variance": finite_variance, "tipping": tipping}


@dataclass(frozen=True, eq=False, repr=False)
class Sensitivity(TableResult):
    """How far the instrument may be invalid before conclusions change.

    Attributes
    ----------
    breakdowns
        Gains and recommended actions, for each violation.
    bands
        Gains by size of the violation.
    effects
        Coefficients of the actions by size of the violation.
    level
        Probability of the intervals.
    notes
        Notes on the effects' standard errors.
    """

    breakdowns: tuple[Breakdown, ...]
    bands: tuple[Band, ...]
    effects: tuple[EffectBand, ...]
    level: float
    notes: tuple[str, ...] = ()

    def records(self) -> Records:
        """Return the breakdown points, one row per conclusion and violation."""
        return [
            {
                "conclusion": b.question,
                "violation": b.violation,
                "lost_from": None if b.size is None else b.size.main_share,
                "unsure_from": None if b.unsure is None else b.unsure.main_share,
                "searched_to": b.most.main_share,
            }
            for b in self.breakdowns
        ]

    @property
    def brief(self) -> Brief:
        """How invalid the instrument may be, what that means, and what to do next."""
        return sensitivity_brief(self)

    def summary(self) -> str:
        """Return three plain sentences, then the breakdown points."""
        sure = f"unsure ({100 * self.level:g}%) from"
        rows = [("what is lost", "by invalidity of", "lost from", sure)]
        for b in self.breakdowns:
            unsure = _words(b.unsure, b.most) if b.has_interval else ""
            rows.append((b.question, b.violation, _words(b.size, b.most), unsure))
        significant = [e for e in self.effects if abs(e.estimate) > e.critical * e.se]
        clearest = sorted(significant, key=lambda e: -abs(e.estimate) / e.se if e.se else -math.inf)
        for e in clearest[:MOST_EFFECTS]:
            effect = f"effect of {e.feature} on {e.output}"
            size = "not in sight" if e.tipping is None else _words(e.tipping, e.tipping)
            rows.append((effect, e.violation, size, ""))
        widths = [2 + max(w, *(len(row[i]) for row in rows)) for i, w in enumerate((32, 16, 24))]
        lines = [self.brief.text, "", "How invalid may the instrument be?"]
        for *texts, last in rows:
            padded = (f"{text:<{width}}" for text, width in zip(texts, widths, strict=True))
            lines.append(("".join(padded) + last).rstrip())
        lines.append(
            "direct: a direct effect of z, relative to what z does through the actions; rho: a "
            "correlation of z with the confounder"
        )
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Describe with JSON values."""
        return {
            "level": self.level,
            "brief": self.brief.to_json(),
            "breakdowns": [b.to_json() for b in self.breakdowns],
            "bands": [b.to_json() for b in self.bands],
            "effects": [e.to_json() for e in self.effects],
            "notes": list(self.notes),
        }

    def plot(self, path: str | os.PathLike[str] | None = None, *, force: bool = False) -> Any:
        """Plot the gains with their bands and breakdown points; `path` saves the figure."""
        check_figure(path, force=force)
        figure, axes = make_axes(1, len(self.bands))
        for ax, band in zip(axes[0], self.bands, strict=True):
            x = 100 * band.share
            ax.axhline(0, color="0.4", lw=0.8)
            ax.axvline(0, color="0.8", lw=0.8)
            ax.fill_between(x, band.lower, band.upper, color="#1d6fb8", alpha=0.2, lw=0)
            ax.plot(x, band.gain, color="#1d6fb8", lw=1.6)
            for b in self.breakdowns:
                matches = b.violation == band.violation and b.question == f"gain over {band.rival}"
                if matches and b.size is not None:
                    ax.axvline(
                        100 * np.sign(b.size.t) * b.size.main_share,
                        color="#c1121f",
                        lw=1.2,
                        ls="--",
                    )
            ax.set_title(f"{band.violation}, over {band.rival}", loc="left", fontsize=9)
            ax.set(xlabel="direct effect, % of the indirect", ylabel="gain")
        return finished(figure, path, force=force)


def sensitivity_brief(result: Sensitivity) -> Brief:
    """Return how large a violation the least certain gain survives, its meaning, and what next."""
    gains = zip(result.breakdowns, result.bands, strict=False)  # those of actions follow
    gain, band = min(gains, key=lambda pair: abs(_bears(pair[0]).t))
    size, rival = _bears(gain), RIVAL_WORDS.get(band.rival, band.rival)
    if size.t == 0:
        certain = f"The gain over {rival} is not certain, even with a valid instrument."
        meaning = "The log's own uncertainty matters more than an invalid instrument would."
        next_step = f"Collect more data, or keep to {rival}."
    else:
        certain, meaning, next_step = _certain(gain, rival), _meaning(size), _next(size)
    return Brief((("Gain", certain), ("Meaning", meaning), ("Next", next_step)))


def _words(size: Size | None, most: Size) -> str:
    """Return a size in both units, or a text that it is beyond the largest tried."""
    beyond = "" if size is not None else "> "
    limit = most if size is None else size
    return f"{beyond}direct {100 * limit.main_share:.3g}%, rho {limit.most_correlation:.2g}"


def _bears(gain: Breakdown) -> Size:
    """Return the size from which on the gain is not certain; the largest tried if none."""
    return gain.unsure or gain.size or gain.most


def _certain(gain: Breakdown, rival: str) -> str:
    size = _bears(gain)
    word = "Middling"
    if size.main_share >= STURDY:
        word = "Sturdy"
    elif size.main_share < FRAGILE and size is not gain.most:
        word = "Fragile"
    on = f" to {size.main}" if len(size.outputs) > 1 else ""
    share = f"{100 * size.main_share:.3g}% of what it does through the actions{on}"
    if size is gain.most:
        tried = f"every direct effect that was tried, up to {share}"
        return f"{word}: the gain over {rival} survives {tried}."
    end = "disappears" if gain.unsure is None else "is no longer certain"
    lost = ""
    if gain.unsure is not None and gain.size is not None:
        lost = f", and disappears at {100 * gain.size.main_share:.3g}%"
    return (
        f"{word}: the gain over {rival} {end} once a direct effect of the instrument is "
        f"{share}{lost}."
    )


def _meaning(size: Size) -> str:
    return (
        f"A correlation of {size.most_correlation:.2g} between the instrument and the hidden "
        "confounder would have the same effect; with a valid instrument there is no such "
        "correlation."
    )


def _next(size: Size) -> str:
    if size.main_share < FRAGILE:
        return "Do not act on it unless the instrument was randomised; look for a better one."
    return (
        "Ask somebody who knows the instrument whether so large a direct effect is possible. If it "
        "is not, try the policy."
    )
