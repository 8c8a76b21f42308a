"""The parts of a report that show a policy: its actions and its value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import partial
from typing import Any

import numpy as np

from ivvi._io.plotting import IV, LS, MUTED, draw_survival
from ivvi.dynamics.end_payoffs import in_words
from ivvi.errors import InputError
from ivvi.policy.curves import policy_curves
from ivvi.reporting.fit_pictures import policy_slices
from ivvi.reporting.fit_view import FitView
from ivvi.reporting.inline_svg import draw
from ivvi.reporting.page import (
    Badge,
    Cell,
    Figure,
    FormattedNumber,
    PageTable,
    Picture,
    Points,
    Section,
    SectionPart,
    Text,
)
from ivvi.rewards import Function, is_reward, reward_to_json

LOOKED_AT = 256
"""Number of the log's states in which the first and the last step are compared."""
COMMAND = "ivvi value POLICY --model MODEL"


def policy_section(policy: Any, fit: FitView) -> Section:
    """Return the section on the planning problem, with plots of the actions along each state."""
    problem = policy.problem
    paid = in_words(problem.reward_at_end)
    at_end = (("when an episode ends", paid),) if paid else ()
    section_parts: list[SectionPart] = [
        Points(
            (
                ("reward", _words(problem.reward)),
                ("actions", _allowed(problem.actions)),
                ("horizon", f"{problem.horizon:,} steps, discount {problem.discount:g}"),
                ("planner", policy.rule.kind),
                *at_end,
            )
        )
    ]
    states = problem.model.states if len(problem.model.states) else fit.model.states
    curves = policy_curves(problem.model, policy.decide, states) if states.size else []
    if moving := [curve for curve in curves if not curve.is_flat]:
        section_parts.append(
            Figure(
                "What the policy does",
                policy_slices(moving),
                "Each action along the states that it depends on most. A state runs from its 5% to "
                "its 95% quantile in the log while the others stay at their medians.",
                f"ivvi act POLICY --state {','.join(f'{v:g}' for v in np.median(states, axis=0))}",
            )
        )
    if flat := {curve.action: curve.limits[0] for curve in curves if curve.is_flat}:
        decisions = ", ".join(_decision(name, value, fit) for name, value in flat.items())
        section_parts.append(
            Text(
                (
                    f"The same along every state, from its 5% to its 95% quantile in the log while "
                    f"the others stay at their medians: {decisions}.",
                )
            )
        )
    if states.size and _changes_near_the_end(policy, states):
        section_parts.append(
            Text(
                (
                    f"All of this is at the first of {problem.horizon:,} steps. Near the last one "
                    "the policy acts differently, since there is less left to gain: "
                    "`ivvi act POLICY --step H` asks for step H.",
                )
            )
        )
    return Section("The policy", "Planned with the instrumented model.", tuple(section_parts))


def value_section(value: Any) -> Section:
    """Show the values of a policy and of its rivals, with intervals.

    Parameters
    ----------
    value
        The result of `ivvi.value`, or its JSON (`to_json`, ``ivvi value --json``).
    """
    facts = value.to_json() if hasattr(value, "to_json") else value
    try:
        return _section(facts)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InputError(
            f"expected the value of a policy as `ivvi value --json` writes it: {error!r}"
        ) from error


def _changes_near_the_end(policy: Any, states: np.ndarray) -> bool:
    """Return whether actions at the last step differ from the first step's in the log's states."""
    last, sampled = policy.problem.horizon - 1, states[:LOOKED_AT]
    return last > 0 and not np.allclose(policy(sampled), policy(sampled, step=last), atol=1e-6)


def _decision(action: str, value: float, fit: FitView) -> str:
    """Return an action with its value as text, an indicator by its level."""
    for coded in fit.fit.roles.categories:
        if action in coded.names and not coded.boolean:
            level = coded.levels[1 + coded.names.index(action)]
            return f"{coded.column} = {level}" if value else f"{coded.column} is not {level}"
    return f"{action} = {value:.4g}"


def _words(reward: Any) -> str:
    """Return a reward as text: its name and settings, or a function's path and named arguments."""
    if isinstance(reward, Function):
        asked = f", asks for {' and '.join(reward.asks)}" if reward.asks else ""
        return f"{reward.path}{asked}"
    known = is_reward(reward) and is_dataclass(reward)
    settings = {k: v for k, v in reward_to_json(reward).items() if k != "kind"} if known else {}
    words = [f"{name.replace('_', ' ')} {_setting(value)}" for name, value in settings.items()]
    return f"{reward.kind}: {', '.join(words)}" if words else reward.kind if known else str(reward)


def _allowed(actions: Any) -> str:
    low, high = actions.low, actions.high
    if len(low) == actions.dim and np.ptp(low) == 0 == np.ptp(high):
        return f"each of {actions.dim} between {low[0]:g} and {high[0]:g}"
    return str(actions).removeprefix("Actions(").removesuffix(")")


def _setting(value: Any) -> str:
    """Return a setting as text, a tuple of one number as that number."""
    values = value if isinstance(value, tuple) else (value,)
    return ", ".join(f"{v:g}" if isinstance(v, float) else str(v) for v in values)


def _section(facts: Mapping[str, Any]) -> Section:
    name, level = facts["policy"], f"{facts['level']:.0%}"
    plans = "; each draw has its own plan" if facts["replanned"] else ""
    lead = (
        f"{facts['horizon']:,} steps from {facts['starts']}, discount {facts['discount']:g}; "
        f"{facts['draws']:,} {facts['method']} draws{plans}."
    )
    section_parts: list[SectionPart] = []
    if facts["warning"]:
        word, _, text = facts["warning"].partition(": ")
        section_parts.append(Badge(word.capitalize(), text, "doubtful"))
    caption = f"Points: in the estimated world. Lines: {level} intervals."
    pictures = [_amounts("value", "value", facts["values"], name)]
    if facts["gains"]:
        pictures.append(_amounts("gain", f"gain of {name} over", facts["gains"], name))
    section_parts.append(Figure("Values side by side", tuple(pictures), caption, COMMAND))
    rows = tuple(_row(policy, facts) for policy in facts["values"])
    columns = ("policy", "value", "std.err.", level, f"gain of {name}", level, "P(gain)")
    section_parts.append(PageTable("Values and gains", columns, rows, command=COMMAND))
    if curves := facts.get("survival"):
        caption_of_bands = f"Bands: {level} intervals. After each step, in the estimated world."
        title = "Share of episodes that go on"
        section_parts.append(Figure(title, (_survival(curves, name),), caption_of_bands, COMMAND))
    for i, (kind, curves) in enumerate(facts.get("incidence", {}).items()):
        title = f"Share of episodes that ended: {kind}"
        section_parts.append(
            Figure(title, (_survival(curves, name, kind, f"-end{i}"),), caption_of_bands, COMMAND)
        )
    notes = tuple(facts["notes"])
    if facts["shown_by_the_log"] is not None:
        notes += (f"The log shows {facts['shown_by_the_log']:.5g} for its own policy.",)
    if (gap := facts.get("gap")) is not None and gap["misfit"] is not None:
        low, high = gap["gap"]["interval"]
        notes += (
            f"That is {gap['gap']['estimate']:.5g} [{low:.5g}, {high:.5g}] more than it earns in "
            f"the estimated dynamics; {gap['misfit']:.5g} of it is misfit, not confounding.",
        )
    return Section(
        "What the policy is worth", lead, (*section_parts, *((Text(notes),) if notes else ()))
    )


def _row(policy: str, amount: Mapping[str, Any]) -> tuple[Cell, ...]:
    value, gain = amount["values"][policy], amount["gains"].get(policy)
    row = (policy, float(value["estimate"]), float(value["se"]), _interval(value))
    if gain is None:
        return (*row, None, None, None)
    return (*row, float(gain["estimate"]), _interval(gain), float(gain["probability"]))


def _interval(amount: Mapping[str, Any]) -> FormattedNumber:
    low, high = amount["interval"]
    return FormattedNumber(low, f"[{low:.4g}, {high:.4g}]")


def _survival(curves: Mapping[str, Any], policy: str, kind: str = "", part: str = "") -> Picture:
    """Plot the survival curves of the policy and its rivals, or those of a kind of end."""
    ordered = {name: curves[name] for name in (policy, *(n for n in curves if n != policy))}
    ends = "; ".join(f"{name} {curve['estimate'][-1]:.3f}" for name, curve in ordered.items())
    alt = f"Share of episodes that {f'ended ({kind})' if kind else 'go on'}, at the end: {ends}."
    label = f"share that ended: {kind}" if kind else "share that goes on"
    paint = partial(draw_survival, curves=ordered, label=label)
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
