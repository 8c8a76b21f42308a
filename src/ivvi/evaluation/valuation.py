"""What a policy is worth, in numbers with intervals and in words."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from typing import Any

from ivvi._io.plotting import (
    IV,
    MUTED,
    check_figure,
    draw_intervals,
    draw_survival,
    finished,
    make_axes,
)
from ivvi._io.result import (
    Brief,
    Records,
    TableResult,
    as_sentence,
)
from ivvi.diagnostics.verdict import UNTRUSTED, Verdict, instrument_sentence
from ivvi.evaluation.interval_estimate import IntervalEstimate, interval_text
from ivvi.evaluation.observed_return import Gap

WARNINGS = {
    "doubtful": "DOUBTFUL INSTRUMENTS: the intervals below may be too short",
    "weak": "WEAK INSTRUMENTS: the numbers below may be far off, and their intervals too short",
    "contradictory": "CONTRADICTORY INSTRUMENTS: the numbers below may be far off",
    "not identified": "NOT IDENTIFIED: in unidentified directions the numbers below rest on a "
    "guess",
}
"""The warning above the numbers, by the verdict on the instruments."""
LARGE_MISFIT = 1 / 3
"""A gain is not to be acted on if misfit is larger than this share of it."""
MISFIT_REMEDY = "fit with --features auto (phi='auto'), or keep to what is done today"
"""Advice where the model does not reproduce the log's own return."""
RIVAL_WORDS = {"behaviour": "what is done today", "zero": "doing nothing"}
"""Plain words for rivals in the sentences of a summary."""


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
        The verdict on the instruments; None where the model does not have one.
    shown
        Mean return that the log itself shows for the behaviour policy, with the confounder's
        help; None where it is not available, with the reason in `notes`.
    gap
        By how much `shown` exceeds the value of the behaviour policy, and why; None where one of
        the two is not known.
    horizon, discount
        Steps of an episode, and the weight of each step relative to the one before.
    starts
        The states from which the values start, in words.
    method, replanned
        How the draws were made, and whether each has a plan of its own.
    notes
        Notes on how the intervals were made and what they assume.
    warnings
        Where the policy's episodes leave what the log shows (`ivvi.dynamics.range_warnings`).
    survival
        Share of episodes that go on after 0, 1, ... steps under the policy and its first rival,
        with bands (`ivvi.evaluation.survival`); empty where no episode ends.
    incidence
        Share of episodes that have ended after 0, 1, ... steps, by kind of end and
        policy, with bands; empty where there are not several kinds.
    """

    values: dict[str, IntervalEstimate]
    gains: dict[str, IntervalEstimate]
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
    warnings: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name of the policy that is valued."""
        return next(iter(self.values))

    @property
    def value(self) -> IntervalEstimate:
        """V of the policy."""
        return self.values[self.name]

    @property
    def warning(self) -> str:
        """A warning to print before any number; empty for strong instruments."""
        if self.verdict is None:
            return "STRENGTH UNKNOWN: this model does not say how strong its instruments are"
        return WARNINGS.get(self.verdict.word, "")

    @property
    def brief(self) -> Brief:
        """Whether the instrument is good enough, what confounding did, and what to do next."""
        return _value_brief(self)

    def plot(self, path: str | os.PathLike[str] | None = None, *, force: bool = False) -> Any:
        """Plot the value of each policy, and the gains, with their intervals; `path` saves it."""
        check_figure(path, force=force)
        parts = {"value": self.values, f"gain of {self.name} over": self.gains}
        panels = {title: amounts for title, amounts in parts.items() if amounts}
        figure, axes = make_axes(1, len(panels) + bool(self.survival) + len(self.incidence))
        if self.survival:
            curves = {"share that goes on": self.survival}
            curves |= {f"share that ended: {kind}": of for kind, of in self.incidence.items()}
            for ax, (label, by_name) in zip(axes[0][len(panels) :], curves.items(), strict=True):
                draw_survival(ax, {n: c.to_json() for n, c in by_name.items()}, label)
        for ax, (title, amounts) in zip(axes[0], panels.items(), strict=False):
            rows = [(amount.estimate, *amount.interval) for amount in amounts.values()]
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
        lines += [*(f"warning: {text}" for text in self.warnings)]
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
            line = f"{name:<18}{amount.estimate:>12.5g}  {interval_text(amount):<26}"
            if (gain := self.gains.get(name)) is not None:
                line += f"{gain.estimate:>18.5g}  {interval_text(gain):<26}{gain.probability:.3f}"
            lines.append(line.rstrip())
        if self.gap is not None and self.shown is not None:
            whole, earned = self.gap.whole, self.values["behaviour"].estimate
            lines.append(
                f"the log shows {self.shown:.5g} for its own policy, which earns {earned:.5g} in "
                f"the estimated dynamics: a gap of {whole.estimate:.5g} {interval_text(whole)}"
            )
            lines += self.gap.lines()
        if self.survival:
            shares = ", ".join(f"{name} {curve}" for name, curve in self.survival.items())
            lines.append(f"share of episodes that go on after {self.horizon:,} steps: {shares}")
        for kind, curves in self.incidence.items():
            shares = ", ".join(f"{name} {curve}" for name, curve in curves.items())
            lines.append(f"share of episodes that ended with {kind!r}: {shares}")
        return "\n".join([*lines, *(f"note: {text}" for text in self.notes)])

    def to_json(self) -> dict[str, Any]:
        """Describe with JSON values."""
        verdict = (
            {"verdict": None, "rule": None} if self.verdict is None else self.verdict.to_json()
        )
        return {
            **verdict,
            "warning": self.warning or None,
            "warnings": list(self.warnings),
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
        return f"Valuation({self.name} {v.estimate:.5g} {interval_text(v)})"


def _value_brief(worth: Valuation) -> Brief:
    """Return sentences: is the instrument good enough, what did confounding do, what is next."""
    return Brief(
        (
            ("Instrument", instrument_sentence(worth.verdict)),
            ("Confounding", _confounding(worth)),
            ("Next", _next(worth)),
        )
    )


def _confounding(worth: Valuation) -> str:
    """Return the cost of a regression plan, or the confounder's help for the log's policy."""
    if (gain := worth.gains.get("least-squares")) is not None:
        low, high = gain.interval
        if low == high == gain.estimate == 0:
            return (
                "A plan based on regression of the same log earns the same: both choose the same "
                "actions."
            )
        if low <= 0 <= high:
            return (
                "The log cannot tell whether a plan based on regression would earn less (the "
                f"difference is {_rounded(gain)})."
            )
        word = "less" if low > 0 else "more"
        by = _rounded(gain, sign=1 if low > 0 else -1)
        return f"A plan based on regression of the same log earns {word}, by {by}."
    if worth.gap is not None and worth.gap.help is not None:
        low, high = worth.gap.help.interval
        if low <= 0 <= high:
            return (
                "The log cannot tell whether it helped the log's own policy (the difference is "
                f"{_rounded(worth.gap.help)})."
            )
        if worth.gap.is_misfit:
            return (
                "Not known: in regression's model the log's own policy should earn what the log "
                f"shows, but it is off by {worth.gap.clear_misfit:,.4g} (misfit). So the "
                "difference between the two models is not the effect of the confounder."
            )
        if high < 0:
            return f"It cost the log's own policy {_rounded(worth.gap.help, sign=-1)}."
        return (
            f"It helped the log's own policy by {_rounded(worth.gap.help)}, which no other "
            "policy would get."
        )
    return "Not compared: add the rival least-squares (against=, --against) to see what it costs."


def _next(worth: Valuation) -> str:
    """Return what to do, by the gain over what is done today (or over the first rival)."""
    weak = worth.verdict is not None and worth.verdict.word in UNTRUSTED
    if worth.warnings and not weak:
        return f"Do not act on this yet. {as_sentence(worth.warnings[0])}"
    if not worth.gains:
        return "Compare it with what is done today: the rival behaviour (against=, --against)."
    name = "behaviour" if "behaviour" in worth.gains else next(iter(worth.gains))
    rival, gain = RIVAL_WORDS.get(name, name), worth.gains[name]
    low, high = gain.interval
    if _is_zero(gain):
        if len(worth.gains) > 1 and all(_is_zero(other) for other in worth.gains.values()):
            return "All policies earn the same: the reward does not depend on what is done."
        return f"It does the same as {rival}: nothing is gained, and nothing is lost."
    more = f"It earns {_rounded(gain)} more than {rival}"
    word = "weak" if worth.verdict is None else worth.verdict.word
    if word in UNTRUSTED:
        reason = f"but that rests on {UNTRUSTED[word]}."
        return f"Do not act on this: {more[0].lower()}{more[1:]}, {reason}"
    missed = 0.0 if worth.gap is None else worth.gap.clear_misfit
    if low > 0 and missed > LARGE_MISFIT * gain.estimate:
        than = "more than that" if missed > gain.estimate else "much of that"
        return (
            f"Do not act on this yet: {more[0].lower()}{more[1:]} in the model, but the model is "
            f"off by {than}, {missed:,.4g}, for the log's own policy (misfit); {MISFIT_REMEDY}."
        )
    if low > 0:
        step = f"{more}: ask `ivvi sensitivity` how invalid the instrument may be, then try it."
    elif high < 0:
        step = f"Keep to {rival}: the policy earns {_rounded(gain, sign=-1)} less."
    else:
        step = f"{more}: the log cannot tell them apart. Collect more data, or keep to {rival}."
    return step + _few_draws(gain)


def _is_zero(gain: IntervalEstimate) -> bool:
    """Return whether a gain is zero in every draw."""
    return bool(gain.estimate == 0 and (gain.draws == 0).all())


def _few_draws(gain: IntervalEstimate) -> str:
    """Return a sentence if more draws of the same log could change the verdict, else ''."""
    if not gain.may_turn:
        return ""
    draws = len(gain.draws)
    return (
        f" But with only {draws:,} draws this verdict could be due to chance: ask for more, "
        f"such as {10 * draws:,} (draws=, --draws)."
    )


def _rounded(amount: IntervalEstimate, sign: int = 1) -> str:
    """Return an amount and its interval as text, rounded by the width of the interval."""
    low, high = sorted(sign * end for end in amount.interval)
    width = high - low
    places = min(max(2 - math.floor(math.log10(width)), 0), 9) if 0 < width < math.inf else 4
    estimate, low_end, high_end = (
        f"{value:,.{places}f}" for value in (sign * amount.estimate, low, high)
    )
    return f"{estimate} [{low_end}, {high_end}]"
