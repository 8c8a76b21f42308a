"""The part of a report that says what a policy is worth."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from ivvi._io.plotting import draw_survival
from ivvi.errors import InputError
from ivvi.reporting.cells import Cell, Picture, Shown
from ivvi.reporting.page import Badge, Figure, PageTable, Part, Section, Text
from ivvi.reporting.pictures import IV, LS, MUTED, draw

COMMAND = "ivvi value POLICY --model MODEL"


def value_section(value: Any) -> Section:
    """Show the values of a policy and of its rivals, with intervals.

    Parameters
    ----------
    value
        What `ivvi.value` returns, or what it is as JSON (`to_json`, ``ivvi value --json``).
    """
    facts = value.to_json() if hasattr(value, "to_json") else value
    try:
        return _section(facts)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InputError(
            f"expected the value of a policy as `ivvi value --json` writes it: {error!r}"
        ) from error


def _section(facts: Mapping[str, Any]) -> Section:
    name, level = facts["policy"], f"{facts['level']:.0%}"
    plans = "; each draw has its own plan" if facts["replanned"] else ""
    lead = (
        f"{facts['horizon']:,} steps from {facts['starts']}, discount {facts['discount']:g}; "
        f"{facts['draws']:,} {facts['method']} draws{plans}."
    )
    parts: list[Part] = []
    if facts["warning"]:
        word, _, text = facts["warning"].partition(": ")
        parts.append(Badge(word.capitalize(), text, "doubtful"))
    caption = f"Points: in the estimated world. Lines: {level} intervals."
    pictures = [_amounts("value", "value", facts["values"], name)]
    if facts["gains"]:
        pictures.append(_amounts("gain", f"gain of {name} over", facts["gains"], name))
    parts.append(Figure("Values side by side", tuple(pictures), caption, COMMAND))
    rows = tuple(_row(policy, facts) for policy in facts["values"])
    columns = ("policy", "value", "std.err.", level, f"gain of {name}", level, "P(gain)")
    parts.append(PageTable("Values and gains", columns, rows, command=COMMAND))
    if curves := facts.get("survival"):
        told = f"Bands: {level} intervals. After each step, in the estimated world."
        title = "Share of episodes that go on"
        parts.append(Figure(title, (_survival(curves, name),), told, COMMAND))
    for i, (kind, curves) in enumerate(facts.get("incidence", {}).items()):
        title = f"Share of episodes that ended: {kind}"
        parts.append(Figure(title, (_survival(curves, name, kind, f"-end{i}"),), told, COMMAND))
    notes = tuple(facts["notes"])
    if facts["shown_by_the_log"] is not None:
        notes += (f"The log shows {facts['shown_by_the_log']:.5g} for its own policy.",)
    if (gap := facts.get("gap")) is not None and gap["misfit"] is not None:
        low, high = gap["gap"]["interval"]
        notes += (
            f"That is {gap['gap']['estimate']:.5g} [{low:.5g}, {high:.5g}] more than it earns in "
            f"the estimated dynamics; {gap['misfit']:.5g} of it is misfit and no confounding.",
        )
    return Section("What the policy is worth", lead, (*parts, *((Text(notes),) if notes else ())))


def _row(policy: str, amount: Mapping[str, Any]) -> tuple[Cell, ...]:
    own, gain = amount["values"][policy], amount["gains"].get(policy)
    row = (policy, float(own["estimate"]), float(own["se"]), _interval(own))
    if gain is None:
        return (*row, None, None, None)
    return (*row, float(gain["estimate"]), _interval(gain), float(gain["probability"]))


def _interval(amount: Mapping[str, Any]) -> Shown:
    low, high = amount["interval"]
    return Shown(low, f"[{low:.4g}, {high:.4g}]")


def _survival(curves: Mapping[str, Any], policy: str, kind: str = "", part: str = "") -> Picture:
    """Draw the survival curves of the policy and its rivals, or those of a kind of end."""
    shown = {name: curves[name] for name in (policy, *(n for n in curves if n != policy))}
    ends = "; ".join(f"{name} {curve['estimate'][-1]:.3f}" for name, curve in shown.items())
    alt = f"Share of episodes that {f'ended ({kind})' if kind else 'go on'}, at the end: {ends}."
    label = f"share that ended: {kind}" if kind else "share that goes on"
    paint = partial(draw_survival, curves=shown, label=label)
    return draw(f"worth-survival{part}", alt, paint, height=260)


def _amounts(kind: str, title: str, amounts: Mapping[str, Any], policy: str) -> Picture:
    names = list(amounts)
    at = np.arange(len(names))[::-1]

    def paint(ax: Any) -> None:
        if kind == "gain":
            ax.axvline(0, color=MUTED, lw=0.8)
        for y, name in zip(at, names, strict=True):
            colour = IV if name == policy else LS if name == "least-squares" else MUTED
            ax.plot(amounts[name]["interval"], [y, y], color=colour, lw=2.2)
            ax.plot(amounts[name]["estimate"], y, "o", color=colour, ms=7, mew=0)
        ax.set_yticks(at, names)
        ax.set_ylim(-0.6, len(names) - 0.4)
        ax.tick_params(axis="y", length=0)
        ax.spines["left"].set_visible(False)
        ax.grid(visible=True, axis="x")

    alt = "; ".join(f"{name} {amounts[name]['estimate']:.4g}" for name in names)
    height = 70 + 30 * len(names)
    return draw(f"worth-{kind}", f"{title.capitalize()}: {alt}.", paint, title=title, height=height)
