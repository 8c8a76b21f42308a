"""What a policy is worth, in numbers with intervals and in words."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ivvi._io.brief import Brief
from ivvi._io.plotting import (
    IV,
    MUTED,
    check_figure,
    draw_intervals,
    draw_survival,
    finished,
    make_axes,
)
from ivvi._io.result import Records, TableResult
from ivvi.diagnostics.verdict import Verdict
from ivvi.evaluation.brief import value_brief

INTERVALS = ("split", "percentile", "basic", "bias-corrected")
FEWEST, ENOUGH = 100, 0.05
"""Draws from which on the error of an interval's end is known, and the error that is small enough,
in widths of the interval."""
TURNS = 2.0
"""Errors of an interval's end from zero within which other draws may turn a verdict."""
SAID = {
    "doubtful": "DOUBTFUL INSTRUMENTS: the intervals below may be too short",
    "weak": "WEAK INSTRUMENTS: the numbers below may be far off, and their intervals too short",
    "not identified": "NOT IDENTIFIED: along free directions the numbers below rest on a guess",
}
"""What stands before the numbers, by the verdict on the instruments."""


@dataclass(frozen=True, eq=False)
class Amount:
    """A number estimated from the log.

    Attributes
    ----------
    estimate
        In the estimated world; less the optimism of a plan where it was planned again.
    draws
        In models that the log allows, (B,).
    level
        Of the interval.
    simulation_error
        Standard error of the estimate that is due to the number of simulated episodes; the
        draws hold it too.
    """

    estimate: float
    draws: np.ndarray
    level: float = 0.95
    simulation_error: float = 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """The interval that is reported: percentiles on either side of the estimate."""
        return self.interval_of("split")

    def interval_of(self, kind: str) -> tuple[float, float]:
        """Return an interval: ``split``, ``percentile``, ``basic`` or ``bias-corrected``.

        ``split`` cuts off the same share 1 - level, the furthest out, of the draws below the
        estimate and of those above it. As many draws are inside as in a percentile interval,
        which it is where the estimate is the median, and the estimate is always inside, however
        the value bends in W. ``percentile``: quantiles of the draws. ``basic``: those of
        2 estimate - draws. ``bias-corrected``: quantiles moved by the share of draws below the
        estimate (Efron's BC).
        """
        tails = np.array([0.5 - self.level / 2, 0.5 + self.level / 2])
        if kind == "split":
            low, high = self._sides
            return float(_quantile(low, 1 - self.level)), float(_quantile(high, self.level))
        if kind == "basic":
            high, low = 2 * self.estimate - _quantile(self.draws, tails)
            return float(low), float(high)
        if kind == "bias-corrected":
            from scipy.stats import norm

            below = (np.sum(self.draws < self.estimate) + 0.5) / (len(self.draws) + 1)
            tails = norm.cdf(2 * norm.ppf(below) + norm.ppf(tails))
        low, high = _quantile(self.draws, tails)
        return float(low), float(high)

    @property
    def _sides(self) -> tuple[np.ndarray, np.ndarray]:
        """The draws up to the estimate and from it on; the estimate where there are none."""
        below = self.draws[self.draws <= self.estimate]
        above = self.draws[self.draws >= self.estimate]
        alone = np.array([self.estimate])
        return below if len(below) else alone, above if len(above) else alone

    @property
    def interval_error(self) -> tuple[float, float]:
        """Standard errors of the interval's ends that are due to the number of draws.

        A quarter of the distance of the quantiles that are two binomial standard deviations away
        on either side (Woodruff, 1952): of one, fewer draws lie between, and chance says more.
        """
        errors, outside = [], 1 - self.level
        for side, share in zip(self._sides, (outside, self.level), strict=True):
            away = 2 * np.sqrt(outside * self.level / len(side))
            low, high = np.quantile(side, np.clip([share - away, share + away], 0.0, 1.0))
            errors.append(float(high - low) / 4)
        return errors[0], errors[1]

    @property
    def is_settled(self) -> bool:
        """Whether both ends are known to 5% of the interval's width, or there is no width.

        Of fewer than 100 draws the error of the ends is not known well enough to say so.
        """
        low, high = self.interval
        known = len(self.draws) >= FEWEST or not high > low
        return known and max(self.interval_error) <= ENOUGH * (high - low)

    @property
    def may_turn(self) -> bool:
        """Whether other draws could put an end of the interval on the other side of zero.

        So near is an end within two of its errors. Of fewer than 100 draws the error is not
        known well: the width over the root of their number stands for it, which is rather more.
        """
        low, high = self.interval
        least = (high - low) / len(self.draws) ** 0.5 if len(self.draws) < FEWEST else 0.0
        return any(
            abs(end) <= TURNS * max(error, least)
            for end, error in zip((low, high), self.interval_error, strict=True)
        )

    def with_more(self, other: Amount) -> Amount:
        """Return the same amount with the draws of both."""
        counts = len(self.draws), len(other.draws)
        estimate = float(np.average([self.estimate, other.estimate], weights=counts))
        return replace(self, estimate=estimate, draws=np.concatenate([self.draws, other.draws]))

    @property
    def se(self) -> float:
        """Half of the middle 68% of the draws: one standard error that tails do not move."""
        low, high = np.quantile(self.draws, [0.1587, 0.8413])
        return float(high - low) / 2

    @property
    def probability(self) -> float:
        """Share of the draws above zero."""
        return float(np.mean(self.draws > 0))

    def to_json(self) -> dict[str, Any]:
        """Describe with JSON values, without the draws."""
        numbers = {"estimate": self.estimate, "se": self.se, "interval": list(self.interval)}
        return {**numbers, "interval_error": list(self.interval_error)}


@dataclass(frozen=True, eq=False)
class Gap:
    """Why a log shows another return for its own policy than the estimated dynamics give it.

    Least-squares dynamics keep what actions and noise share, so that the fitted behaviour
    policy should earn there what the log shows. What is missing is misfit: of that policy's
    regression, or of the features. The rest of the gap is the confounder's help.

    Attributes
    ----------
    whole
        The return that the log shows less the value of the behaviour policy.
    help
        Its value in least-squares dynamics less that in the estimated ones; None where the
        estimate is least squares itself, or the moments are not known.
    misfit
        The return that the log shows less the value in least-squares dynamics; None where the
        moments are not known.
    """

    whole: Amount
    help: Amount | None
    misfit: float | None

    def lines(self) -> list[str]:
        """Return what there is to say about it."""
        if self.misfit is None:
            return ["  how much of it is misfit of that policy's regression is not known here"]
        if self.help is None:
            return ["  all of it is misfit: least squares takes nothing as confounded"]
        return [
            f"  of which confounding: {self.help.estimate:.5g} {_pair(self.help)}, which the same "
            "policy earns more in least-squares dynamics",
            f"  of which misfit of that policy's regression or of the features: {self.misfit:.5g}",
        ]

    def to_json(self) -> dict[str, Any]:
        """Describe with JSON values."""
        help_json = None if self.help is None else self.help.to_json()
        return {"gap": self.whole.to_json(), "confounder": help_json, "misfit": self.misfit}


@dataclass(frozen=True, eq=False, repr=False)
class Valuation(TableResult):
    """What a policy earns in the estimated dynamics, and how much more than others.

    Attributes
    ----------
    values
        V of the policy, and of each rival, by name.
    gains
        V of the policy minus that of each rival.
    verdict
        One word on the instruments; None where the model does not say.
    shown
        Mean return that the log itself shows for the behaviour policy, with the confounder's
        help; None where it cannot be had, with the reason in `notes`.
    gap
        What that is more than the value of the behaviour policy, and why; None without either.
    horizon, discount
        Steps of an episode, and the weight of a later one.
    starts
        What the values start from, in words.
    method, replanned
        How the draws were made, and whether each has a plan of its own.
    notes
        What else to know.
    survival
        Share of episodes that go on after 0, 1, ... steps under the policy and its first rival,
        with bands (`ivvi.evaluation.survival`); empty where no episode ends.
    incidence
        Share of episodes that have ended in each way after 0, 1, ... steps, by kind of end and
        policy, with bands; empty where there are not several kinds.
    """

    values: dict[str, Amount]
    gains: dict[str, Amount]
    verdict: Verdict | None
    shown: float | None
    horizon: int
    discount: float
    starts: str
    method: str
    replanned: bool = False
    notes: tuple[str, ...] = field(default_factory=tuple)
    gap: Gap | None = None
    survival: dict[str, Any] = field(default_factory=dict)
    incidence: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the policy that is valued."""
        return next(iter(self.values))

    @property
    def value(self) -> Amount:
        """V of the policy."""
        return self.values[self.name]

    @property
    def warning(self) -> str:
        """What is to be said before any number; empty for strong instruments."""
        if self.verdict is None:
            return "STRENGTH UNKNOWN: this model does not say how strong its instruments are"
        return SAID.get(self.verdict.word, "")

    @property
    def brief(self) -> Brief:
        """Is the instrument good enough, what did confounding do, what to do next."""
        return value_brief(self)

    def plot(self, path: str | os.PathLike[str] | None = None, *, force: bool = False) -> Any:
        """Draw the value of each policy, and the gains, with their intervals; `path` saves it."""
        check_figure(path, force=force)
        parts = {"value": self.values, f"gain of {self.name} over": self.gains}
        shown = {title: amounts for title, amounts in parts.items() if amounts}
        figure, axes = make_axes(1, len(shown) + bool(self.survival) + len(self.incidence))
        if self.survival:
            curves = {"share that goes on": self.survival}
            curves |= {f"share that ended: {kind}": of for kind, of in self.incidence.items()}
            for ax, (label, by_name) in zip(axes[0][len(shown) :], curves.items(), strict=True):
                draw_survival(ax, {n: c.to_json() for n, c in by_name.items()}, label)
        for ax, (title, amounts) in zip(axes[0], shown.items(), strict=False):
            rows = [(one.estimate, *one.interval) for one in amounts.values()]
            draw_intervals(ax, list(amounts), rows, IV)
            if title != "value":
                ax.axvline(0, color=MUTED, lw=0.8)
            ax.set_title(title, loc="left", fontsize=10)
        return finished(figure, path, force=force)

    def records(self) -> Records:
        """Return values and gains, one row per policy."""
        rows: Records = []
        for name, amount in self.values.items():
            low, high = amount.interval
            row = {"policy": name, "value": amount.estimate, "low": low, "high": high}
            if (gain := self.gains.get(name)) is not None:
                row |= dict(zip(("gain_low", "gain_high"), gain.interval, strict=True))
                row |= {"gain": gain.estimate, "probability": gain.probability}
            rows.append(row)
        return rows

    def summary(self) -> str:
        """Return three plain sentences, then a table of the values and gains."""
        draws, level = len(self.value.draws), f"{self.value.level:.0%} interval"
        plans = "; each draw has its own plan" if self.replanned else ""
        lines = [self.brief.text, ""]
        lines += [self.warning] if self.warning else []
        if self.verdict is not None:
            word = self.verdict.word.upper() or "none"
            lines.append(f"instruments: {word}, {self.verdict.rule}")
        lines += [
            f"value of {self.horizon:,} steps from {self.starts}, discount {self.discount:g}; "
            f"{draws:,} {self.method} draws{plans}",
            "",
            f"{'policy':<18}{'value':>12}  {level:<26}{'gain of ' + self.name:>18}  {level:<26}"
            "P(gain)",
        ]
        for name, amount in self.values.items():
            line = f"{name:<18}{amount.estimate:>12.5g}  {_pair(amount):<26}"
            if (gain := self.gains.get(name)) is not None:
                line += f"{gain.estimate:>18.5g}  {_pair(gain):<26}{gain.probability:.3f}"
            lines.append(line.rstrip())
        if self.gap is not None and self.shown is not None:
            whole, own = self.gap.whole, self.values["behaviour"].estimate
            lines.append(
                f"the log shows {self.shown:.5g} for its own policy, which earns {own:.5g} in the "
                f"estimated dynamics: a gap of {whole.estimate:.5g} {_pair(whole)}"
            )
            lines += self.gap.lines()
        if self.survival:
            shares = ", ".join(f"{name} {curve}" for name, curve in self.survival.items())
            lines.append(f"share of episodes that go on after {self.horizon:,} steps: {shares}")
        for kind, curves in self.incidence.items():
            shares = ", ".join(f"{name} {curve}" for name, curve in curves.items())
            lines.append(f"share of episodes that ended in the way {kind!r}: {shares}")
        return "\n".join([*lines, *(f"note: {text}" for text in self.notes)])

    def to_json(self) -> dict[str, Any]:
        """Describe with JSON values."""
        verdict = (
            {"verdict": None, "rule": None} if self.verdict is None else self.verdict.to_json()
        )
        return {
            **verdict,
            "warning": self.warning or None,
            "brief": self.brief.to_json(),
            "policy": self.name,
            "values": {name: amount.to_json() for name, amount in self.values.items()},
            "gains": {
                name: {**gain.to_json(), "probability": gain.probability}
                for name, gain in self.gains.items()
            },
            "shown_by_the_log": self.shown,
            "gap": None if self.gap is None else self.gap.to_json(),
            "survival": {name: curve.to_json() for name, curve in self.survival.items()},
            "incidence": {
                kind: {name: curve.to_json() for name, curve in curves.items()}
                for kind, curves in self.incidence.items()
            },
            "level": self.value.level,
            "horizon": self.horizon,
            "discount": self.discount,
            "starts": self.starts,
            "method": self.method,
            "replanned": self.replanned,
            "draws": len(self.value.draws),
            "simulation_error": self.value.simulation_error,
            "notes": list(self.notes),
        }

    def __repr__(self) -> str:
        v = self.value
        return f"Valuation({self.name} {v.estimate:.5g} {_pair(v)})"


def gains_of(values: dict[str, Amount]) -> dict[str, Amount]:
    """Return how much more the first of several earns than each of the others."""
    (_, own), *others = values.items()
    return {
        name: Amount(own.estimate - v.estimate, own.draws - v.draws, own.level)
        for name, v in others
    }


def _quantile(draws: np.ndarray, shares: Any) -> Any:
    """Return quantiles outside which a further draw lies with just the probability asked for.

    The k-th of B draws has the share k / (B + 1) of the law below it on average. The usual
    interpolation puts the ends of a 95% interval of 200 draws 94.1% apart.
    """
    return np.quantile(draws, shares, method="weibull")


def _pair(amount: Amount) -> str:
    low, high = amount.interval
    return f"[{low:.5g}, {high:.5g}]"
