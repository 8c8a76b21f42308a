"""The parts of a report that show effects: coefficients, and how they change with the state."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ivvi.errors import InputError
from ivvi.fitting.effects.effect import Effect, effect
from ivvi.reporting import fit_pictures as pictures
from ivvi.reporting.fit_pictures import KEY
from ivvi.reporting.fit_view import FitView
from ivvi.reporting.inline_svg import draw
from ivvi.reporting.page import (
    Cell,
    Figure,
    PageTable,
    Picture,
    Points,
    Section,
    SectionPart,
    listed,
)
from ivvi.weak_iv.confidence_sets import piece

MOST_CURVES = 6
"""Most curves that are plotted: those that change most, in standard errors."""
MOST_STATES = 12
MOST_ROWS = 400
"""Most rows of a table; of more, those in which the two estimates differ most."""


def effect_section(fit: FitView) -> Section:
    """Return the coefficients next to those of least squares."""
    is_partial = len(fit.outputs) > pictures.MOST or len(fit.phi) - 1 > pictures.ROWS
    selection = " Where there are many, those in which the two differ most." if is_partial else ""
    figure = Figure(
        "Effect on each output",
        pictures.coefficients(fit),
        f"Coefficients of one step, with 95% intervals.{selection}",
        fit.command,
        tuple(KEY[kind] for kind in fit.estimates),
    )
    lead = "Coefficients of the next state on state and action."
    if fit.compared and fit.endogenous:
        turned, settled = sign_changes(fit)
        lead = (
            f"The instrument settles the sign of {settled} effects of actions; least squares gives "
            f"{turned or 'none'} of them the other sign."
            if settled
            else "The instrument does not settle the sign of any effect of an action."
        )
    return Section("What moves what", lead, (figure, _coefficient_table(fit)))


def sign_changes(fit: FitView) -> tuple[int, int]:
    """Return how many signs least squares flips, and how many the instrument settles."""
    (W, se), (W_ls, _) = fit.estimates["iv"], fit.estimates["ls"]
    inside = fit.endogenous
    sure = np.abs(W[:, inside]) > fit.widths[:, inside] * se[:, inside]
    if fit.facts.get("recommended") in ("robust", "none"):
        sure = np.array([[_tells_sign(fit, o, fit.phi[j]) for j in inside] for o in fit.outputs])
    return int(np.sum(sure & (W[:, inside] * W_ls[:, inside] < 0))), int(sure.sum())


def varying_effects(fit: FitView) -> list[Effect]:
    """Return the effects that change along a state, largest change first."""
    fitted = fit.fit
    if fitted.sample is None or fitted.estimate.design.is_raw or not fitted.estimate.bread.size:
        return []
    ranked = []
    for action in fitted.roles.action:
        for state in fitted.roles.state[:MOST_STATES]:
            try:
                state_effect = effect(fitted, action, state)
            except InputError:  # no output to ask about
                continue
            change = float(np.ptp(state_effect.estimate))
            if change > 1e-9 * float(np.abs(state_effect.estimate).max(initial=0.0)):
                ranked.append((change / max(float(state_effect.se.mean()), 1e-300), state_effect))
    return [state_effect for _, state_effect in sorted(ranked, key=lambda pair: -pair[0])]


def varying_section(fit: FitView) -> Section | None:
    """Return plots of effects along states; None where the features do not let them vary."""
    varying = varying_effects(fit)
    if not varying:
        return None
    section_parts: list[SectionPart] = []
    if (choice := fit.fit.choice) is not None:
        section_parts.append(Points((("features", choice.sentence),)))
    drawn = varying[:MOST_CURVES]
    level = f"{100 * drawn[0].level:g}%"
    section_parts.append(
        Figure(
            "The effect of an action along a state",
            tuple(_curve(number, state_effect) for number, state_effect in enumerate(drawn)),
            "Effect of one unit, other states at their medians. The narrow band covers each point "
            f"with {level}, the wide one the whole curve. "
            f"{drawn[0].caveat.capitalize()}.".replace(" .", ""),
            fit.command,
        )
    )
    section_parts.append(
        PageTable(
            "For whom it helps",
            (
                "action",
                "output",
                "states of the log",
                "positive in",
                "low",
                "high",
                "average",
                "s.e.",
            ),
            tuple(row for state_effect in drawn for row in _rows(state_effect)),
            "Share of the log's states with a positive effect. The low end counts the states whose "
            "band for all states together lies above zero; the high end counts all states except "
            "those whose band lies below zero.",
            fit.command,
        )
    )
    lead = f"The effect of {drawn[0].action} changes with {drawn[0].over}."
    return Section("Effects that vary", lead, tuple(section_parts))


def _curve(number: int, state_effect: Effect) -> Picture:
    low, high = float(state_effect.estimate[0]), float(state_effect.estimate[-1])
    alt = (
        f"Effect of {state_effect.action} on {state_effect.output} along {state_effect.over}: "
        f"{low:.3g} at {state_effect.x[0]:.3g}, {high:.3g} at {state_effect.x[-1]:.3g}."
    )

    def paint(ax: Any) -> None:
        state_effect.draw(ax)
        ax.set(ylabel="")

    return draw(
        f"varying-{number}", alt, paint, title=f"{state_effect.action} on {state_effect.output}"
    )


def _rows(state_effect: Effect) -> Iterator[tuple[Cell, ...]]:
    for group in state_effect.groups:
        ends = (f"{100 * end:.1f}%" for end in (group.share, group.low, group.high))
        yield state_effect.action, state_effect.output, group.name, *ends, group.average, group.se


def _coefficient_table(fit: FitView) -> PageTable:
    kind = next(iter(fit.estimates))
    (W, se), rows = fit.estimates[kind], []
    half = fit.widths * se
    inside = set(fit.endogenous)
    order = sorted(range(len(fit.phi)), key=lambda j: (j not in inside, j))
    exact = [name for i, name in enumerate(fit.outputs) if i not in fit.noisy]
    bootstrapped = bool(fit.facts.get("wild"))
    for i, output in enumerate(fit.outputs):
        if output in exact:
            continue
        for j in order:
            feature = fit.phi[j]
            w, s, h = float(W[i, j]), float(se[i, j]), float(half[i, j])
            label = "Constant" if feature == "1" else feature
            row: tuple[Cell, ...] = (output, label, w, s, w - h, w + h)
            row = (*row, _robust_words(fit.robust(output, feature)))
            if bootstrapped:
                row = (*row, _wild_words(fit.wild(output, feature)))
            if fit.compared:
                row = (*row, float(fit.estimates["ls"][0][i, j]), float(fit.gap[i, j]))
            rows.append(row)
    names: tuple[str, ...] = ("output", "feature", "estimate", "std.err.", "low", "high", "robust")
    caption = (
        f"{len(rows):,} coefficients. Low and high are Wald's 95% interval; robust is the "
        "interval of an action's effect that is valid however weak the instrument is."
    )
    if bootstrapped:
        names = (*names, "wild bootstrap")
    if exact:
        caption += f" Exact functions of the features are left out: {listed(exact)}."
    if fit.compared:
        names = (*names, "least squares", "gap in s.e.")
        caption += " The gap is how far least squares lies from the instrument."
    if len(rows) > MOST_ROWS:
        rows.sort(key=_dispute)
        caption += f" The {MOST_ROWS} largest gaps are shown; ivvi fit --json holds them all."
    return PageTable("Coefficients", names, tuple(rows[:MOST_ROWS]), caption, fit.command)


def _robust_words(robust: dict[str, Any] | None) -> str | None:
    """Return the weak-instrument robust interval of an effect as text, with its method."""
    if robust is None:
        return None
    if robust["empty"]:
        return f"empty ({robust['method']})"
    pieces = (
        piece(-math.inf if low is None else low, math.inf if high is None else high)
        for low, high in robust["intervals"]
    )
    return f"{' or '.join(pieces)} ({robust['method']})"


def _wild_words(test: dict[str, Any] | None) -> str | None:
    """Return the interval of a bootstrapped test as text; null is an end that was not found."""
    if test is None:
        return None
    low, high = test["interval"]
    return piece(-math.inf if low is None else low, math.inf if high is None else high)


def _dispute(row: tuple[Cell, ...]) -> float:
    """Return a sort key: the largest gap first, rows without one last."""
    gap = row[-1]
    return -abs(gap) if isinstance(gap, float) and gap == gap else 0.0  # NaN != NaN


def _tells_sign(fit: FitView, output: str, feature: str) -> bool:
    """Return whether the robust interval of an effect excludes zero."""
    robust = fit.robust(output, feature)
    if robust is None or robust["empty"] or robust["low"] is None or robust["high"] is None:
        return False
    return bool(robust["low"] > 0 or robust["high"] < 0)
