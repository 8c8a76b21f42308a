"""`Response`: how long an effect lasts, by local projections and by the fitted dynamics."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from ivvi._io.arrays import Floats
from ivvi._io.plotting import IV, MUTED, check_figure, finished, new_figure
from ivvi._io.result import Brief, Compact, Records, TableResult
from ivvi.diagnostics.statistic import Statistic
from ivvi.weak_iv.confidence_sets import Intervals, piece

LATER = {
    "held": "later actions held fixed",
    "follow": "later actions following the state as in the log",
}
REJECTED = 0.05


@dataclass(frozen=True, slots=True)
class RobustSet:
    """A set of one horizon's response that holds however weak the instrument, or why none."""

    intervals: Intervals = ()
    reason: str = ""

    @property
    def words(self) -> str:
        """The set as it is printed."""
        if self.reason:
            return "-"
        return " or ".join(piece(low, high) for low, high in self.intervals) or "empty"

    @property
    def ends(self) -> tuple[float, float]:
        """The lowest and the highest value; NaN where there is none."""
        if not self.intervals:
            return math.nan, math.nan
        return self.intervals[0][0], self.intervals[-1][1]

    def to_json(self) -> dict[str, Any]:
        """Describe the set with JSON values; null stands for an infinite end."""
        pairs = [[v if math.isfinite(v) else None for v in pair] for pair in self.intervals]
        return {"intervals": None if self.reason else pairs, "reason": self.reason or None}


@dataclass(frozen=True, slots=True, repr=False)
class Implied(Compact):
    """The response that the fitted dynamics imply, (H,) each: value, standard error, interval."""

    estimate: Floats
    se: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True, slots=True, repr=False)
class Response(TableResult):
    """The response of an output to one unit of an action; arrays are (H,), h = 0, ..., H - 1.

    Attributes
    ----------
    action, output, later
        What is moved, what it changes, and what later actions do: ``held`` or ``follow``.
    estimate, se
        Local projections: the output of row t + h on the action of row t, instrumented.
    low, high
        The interval of each horizon alone.
    lower, upper
        The band for all horizons at once.
    robust
        Anderson-Rubin sets, which hold however weak the instrument.
    rows
        Rows behind each horizon.
    implied
        What the fitted dynamics imply, or None.
    agreement
        The test that both are the same at all horizons after the first; None with a `reason`.
    level
        Probability of intervals and bands.
    errors, label
        The standard errors in words, and the source.
    notes
        What to know before believing it.
    push_lasts
        Whether the response is to a push that lasts, and not to one unit once: later actions
        follow, and the instrument predicts its own next values.
    """

    action: str
    output: str
    later: str
    estimate: Floats
    se: Floats
    low: Floats
    high: Floats
    lower: Floats
    upper: Floats
    robust: tuple[RobustSet, ...]
    rows: tuple[int, ...]
    implied: Implied | None
    agreement: Statistic | None
    reason: str
    level: float
    errors: str
    label: str
    notes: tuple[str, ...] = ()
    push_lasts: bool = False

    @property
    def horizon(self) -> int:
        """Number of horizons."""
        return len(self.estimate)

    @property
    def lasts(self) -> int | None:
        """The last h at which the band for all horizons leaves zero out; None if it never does."""
        sure = np.flatnonzero((self.lower > 0) | (self.upper < 0))
        return int(sure[-1]) if len(sure) else None

    @property
    def half_life(self) -> int | None:
        """The first h after the largest response at which less than half of it is left."""
        size = np.abs(self.estimate)
        peak = int(np.argmax(size))
        below = np.flatnonzero(size[peak:] < size[peak] / 2)
        return peak + int(below[0]) if len(below) else None

    @property
    def brief(self) -> Brief:
        """How long the effect lasts, whether the model agrees, and what to do next."""
        return Brief(
            (
                ("Response", self._lasting()),
                ("Model", self._agreeing()),
                ("Next", self._next()),
            )
        )

    @property
    def _moved(self) -> str:
        return "a lasting push of one unit" if self.push_lasts else "one unit"

    def _lasting(self) -> str:
        if self.lasts is None:
            return f"No effect of {self.action} on {self.output} is certain at any horizon."
        peak = int(np.argmax(np.abs(self.estimate)))
        change = f"One more {self.action}"
        if self.push_lasts:
            change = f"A lasting push of {self.action} (the log's later actions follow it)"
        text = (
            f"{change} changes {self.output} by {self.estimate[peak]:.3g} at h = {peak}, and is "
            f"certain to matter up to h = {self.lasts}"
        )
        if self.push_lasts:
            return f"{text}; this is not the response to one unit once."
        if self.half_life is not None:
            return f"{text}; less than half of it is left at h = {self.half_life}."
        return f"{text}; more than half of it is left at h = {self.horizon - 1}."

    def _agreeing(self) -> str:
        if self.agreement is None:
            return f"Not tested: {self.reason}."
        p = f"p = {self.agreement.p_value:.2g}"
        if self.agreement.p_value < REJECTED:
            return f"The fitted dynamics imply a different response ({p}): they are misspecified."
        return f"The fitted dynamics imply the same response ({p})."

    def _next(self) -> str:
        if self.agreement is not None and self.agreement.p_value < REJECTED:
            return (
                "More lags (lags=, --lags) or other features may be missing; `ivvi check` looks "
                "for what."
            )
        return "`ivvi plan` finds the best actions in the fitted dynamics."

    def records(self) -> Records:
        """Return one row per horizon."""
        rows: Records = []
        for h in range(self.horizon):
            row: dict[str, Any] = {"horizon": h}
            for name in ("estimate", "se", "low", "high", "lower", "upper"):
                row[name] = float(getattr(self, name)[h])
            row["robust_low"], row["robust_high"] = self.robust[h].ends
            if self.implied is not None:
                row["implied"] = float(self.implied.estimate[h])
                row["implied_se"] = float(self.implied.se[h])
            rows.append(row | {"rows": self.rows[h]})
        return rows

    def summary(self) -> str:
        """Return the responses by horizon, both ways, and the test of their agreement."""
        level = f"{100 * self.level:g}%"
        lines = [
            *(self.brief.text, ""),
            f"{self.label}: response of {self.output} to {self._moved} of {self.action}, "
            f"{LATER[self.later]}",
            f"{'h':>3} {'response':>9} {'std.err.':>9} {level + ' each':>20} "
            f"{level + ' all':>20} {'implied':>9} {'std.err.':>9}",
        ]
        for h in range(self.horizon):
            implied = f"{'-':>9} {'-':>9}"
            if self.implied is not None:
                implied = f"{self.implied.estimate[h]:>9.4g} {self.implied.se[h]:>9.3g}"
            lines.append(
                f"{h:>3} {self.estimate[h]:>9.4g} {self.se[h]:>9.3g} "
                f"{piece(self.low[h], self.high[h]):>20} "
                f"{piece(self.lower[h], self.upper[h]):>20} {implied}"
            )
        lines += ["", f"{level} Anderson-Rubin sets, which hold however weak the instrument"]
        lines += [f"{h:>3} {one.words}" for h, one in enumerate(self.robust)]
        lines.append("")
        if self.agreement is not None:
            test = self.agreement
            lines.append(
                f"agreement         {test.distribution} = {test.value:.4g}, "
                f"p = {test.p_value:.3g}; null: {test.null}"
            )
        else:
            lines.append(f"agreement         - ({self.reason})")
        whys = dict.fromkeys(one.reason for one in self.robust if one.reason)
        lines += [f"robust sets       {why}" for why in whys]
        lines.append(f"standard errors   {self.errors}")
        return "\n".join([*lines, *(f"note: {text}" for text in self.notes)])

    def to_json(self) -> dict[str, Any]:
        """Describe the responses with JSON values."""
        names = ("estimate", "se", "low", "high", "lower", "upper")
        implied = self.implied
        parts = ("estimate", "se", "low", "high")
        return {
            **{n: getattr(self, n) for n in ("action", "output", "later", "level", "horizon")},
            **{name: _numbers(getattr(self, name)) for name in names},
            "robust": [one.to_json() for one in self.robust],
            "rows": list(self.rows),
            "implied": implied and {name: _numbers(getattr(implied, name)) for name in parts},
            "agreement": self.agreement and self.agreement.to_json(),
            "reason": self.reason or None,
            "lasts": self.lasts,
            "push_lasts": self.push_lasts,
            "half_life": self.half_life,
            "errors": self.errors,
            "log": self.label,
            "notes": list(self.notes),
            "brief": self.brief.to_json(),
        }

    def plot(self, path: str | os.PathLike[str] | None = None, *, force: bool = False) -> Any:
        """Draw the response with both bands and the implied one; `path` saves it."""
        check_figure(path, force=force)
        figure = new_figure(6, 4)
        self.draw(figure.add_subplot())
        return finished(figure, path, force=force)

    def draw(self, axes: Any) -> None:
        """Draw the response into existing axes."""
        h, level = np.arange(self.horizon), f"{100 * self.level:g}%"
        axes.fill_between(h, self.lower, self.upper, color=IV, alpha=0.15, lw=0)
        axes.fill_between(h, self.low, self.high, color=IV, alpha=0.3, lw=0)
        axes.plot(h, self.estimate, "o-", color=IV, label=f"local projections, {level} bands")
        if self.implied is not None:
            axes.plot(h, self.implied.estimate, "s--", color="black", label="fitted dynamics")
        axes.axhline(0, color=MUTED, lw=0.8)
        axes.set(
            xlabel="h, steps after the first", ylabel=f"{self.output} per unit of {self.action}"
        )
        axes.set_xticks(h if len(h) <= 20 else h[:: len(h) // 10])
        axes.legend(frameon=False, fontsize="small")
        axes.spines[["top", "right"]].set_visible(False)


def _numbers(values: Floats) -> list[float | None]:
    return [float(v) if np.isfinite(v) else None for v in values]
