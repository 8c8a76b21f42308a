"""The parts of a report that are about acting: a policy, and what it is worth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

import numpy as np

from ivvi.reporting.fit_pictures import policy_slices
from ivvi.reporting.fitted import Fitted
from ivvi.reporting.page import Cell, Figure, Part, Points, Section, Table


def policy_section(policy: Any, fit: Fitted) -> Section:
    """Say what was planned for, and draw what the policy does along each state."""
    problem = policy.problem
    parts: list[Part] = [
        Points(
            (
                ("reward", _words(problem.reward)),
                ("actions", _allowed(problem.actions)),
                ("horizon", f"{problem.horizon:,} steps, discount {problem.discount:g}"),
                ("planner", policy.rule.kind),
            )
        )
    ]
    states = problem.model.states if len(problem.model.states) else fit.model.states
    if states.size:
        parts.append(
            Figure(
                "What the policy does",
                policy_slices(policy, states),
                "Each action along each state, from its 5% to its 95% quantile in the log, the "
                "other states at their medians. Blue: the state that it answers most.",
                f"ivvi act POLICY --state {','.join(f'{v:g}' for v in np.median(states, axis=0))}",
            )
        )
    return Section("The policy", "Planned with the instrumented model.", tuple(parts))


def value_section(value: Any) -> Section:
    """Show what a policy is worth.

    Parameters
    ----------
    value
        Anything with `to_dict` or `to_json`: a mapping of names to numbers, pairs of numbers
        (intervals) or further mappings; or a sequence of mappings with the same keys, one a row.
    """
    found = value
    for name in ("to_dict", "to_json"):
        if hasattr(value, name):
            found = getattr(value, name)()
            break
    if isinstance(found, Mapping):
        columns: tuple[str, ...] = ("quantity", "value")
        rows = tuple(_flat(found))
    else:
        listed = [dict(row) for row in found]
        columns = tuple(listed[0]) if listed else ()
        rows = tuple(tuple(_cell(row.get(name)) for name in columns) for row in listed)
    table = Table("Value", columns, rows)
    return Section("What the policy is worth", "With the interval that the log allows.", (table,))


def _words(reward: Any) -> str:
    """Write a reward as its name and settings."""
    known = is_dataclass(reward) and not isinstance(reward, type)
    settings = asdict(reward) if known else {}
    said = [f"{name.replace('_', ' ')} {_cell(value)}" for name, value in settings.items()]
    return f"{type(reward).__name__.lower()}: {', '.join(said)}" if said else str(reward)


def _allowed(actions: Any) -> str:
    low, high = actions.low, actions.high
    if len(low) == actions.dim and np.ptp(low) == 0 == np.ptp(high):
        return f"each of {actions.dim} between {low[0]:g} and {high[0]:g}"
    return str(actions).removeprefix("Actions(").removesuffix(")")


def _flat(values: Mapping[str, Any], lead: str = "") -> Iterator[tuple[Cell, ...]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{lead}{name} ")
        else:
            yield f"{lead}{name}".replace("_", " "), _cell(value)


def _cell(value: Any) -> Cell:
    if isinstance(value, str | int | float | None):
        return value
    if isinstance(value, np.generic):
        return _cell(value.item())
    if isinstance(value, tuple) and len(value) == 1:
        return _cell(value[0])
    if isinstance(value, Sequence | np.ndarray):
        return "[" + ", ".join(f"{v:.4g}" if isinstance(v, float) else str(v) for v in value) + "]"
    return str(value)
