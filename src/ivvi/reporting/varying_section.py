"""How effects change with the state: curves with bands, and for whom an action helps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ivvi.errors import InputError
from ivvi.fitting.effect import Effect, effect
from ivvi.reporting.cells import Cell, Picture
from ivvi.reporting.fit_view import FitView
from ivvi.reporting.page import Figure, PageTable, Part, Points, Section
from ivvi.reporting.pictures import draw

MOST = 6
"""Curves that are drawn: those that move most, in standard errors."""
MOST_STATES = 12


def varying_effects(fit: FitView) -> list[Effect]:
    """Return the effects that change along a state, those that change most first."""
    own = fit.fit
    if own.sample is None or own.estimate.design.is_raw or not own.estimate.bread.size:
        return []
    found = []
    for action in own.roles.action:
        for state in own.roles.state[:MOST_STATES]:
            try:
                one = effect(own, action, state)
            except InputError:  # no output to ask about
                continue
            change = float(np.ptp(one.estimate))
            if change > 1e-9 * float(np.abs(one.estimate).max(initial=0.0)):
                found.append((change / max(float(one.se.mean()), 1e-300), one))
    return [one for _, one in sorted(found, key=lambda pair: -pair[0])]


def varying_section(fit: FitView) -> Section | None:
    """Draw effects along states, where the features let them vary."""
    found = varying_effects(fit)
    if not found:
        return None
    parts: list[Part] = []
    if (choice := fit.fit.choice) is not None:
        parts.append(Points((("features", choice.sentence),)))
    shown = found[:MOST]
    level = f"{100 * shown[0].level:g}%"
    parts.append(
        Figure(
            "The effect of an action along a state",
            tuple(_curve(number, one) for number, one in enumerate(shown)),
            f"Effect of one unit, other states at their medians. The narrow band holds each point "
            f"with {level}, the wide one the whole curve. {shown[0].caveat.capitalize()}.".replace(
                " .", ""
            ),
            fit.command,
        )
    )
    parts.append(
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
            tuple(row for one in shown for row in _rows(one)),
            "Share of the log's states with a positive effect. Its ends are the states whose band "
            "for all of them together lies above zero, and those whose band does not lie below it.",
            fit.command,
        )
    )
    lead = f"The effect of {shown[0].action} changes with {shown[0].over}."
    return Section("Effects that vary", lead, tuple(parts))


def _curve(number: int, one: Effect) -> Picture:
    low, high = float(one.estimate[0]), float(one.estimate[-1])
    alt = (
        f"Effect of {one.action} on {one.output} along {one.over}: {low:.3g} at {one.x[0]:.3g}, "
        f"{high:.3g} at {one.x[-1]:.3g}."
    )

    def paint(ax: Any) -> None:
        one.draw(ax)
        ax.set(ylabel="")

    return draw(f"varying-{number}", alt, paint, title=f"{one.action} on {one.output}")


def _rows(one: Effect) -> Iterator[tuple[Cell, ...]]:
    for group in one.groups:
        ends = (f"{100 * end:.1f}%" for end in (group.share, group.low, group.high))
        yield one.action, one.output, group.name, *ends, group.average, group.se
