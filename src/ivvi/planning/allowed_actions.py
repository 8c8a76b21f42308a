"""The actions allowed in a model: a user's bounds or rows, and the levels of categories."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np

from ivvi.actions import Actions, make_actions
from ivvi.categories import encode_rows, raw_columns
from ivvi.dynamics.model import Dynamics
from ivvi.dynamics.next_state_distribution import Category as CategoryLevels
from ivvi.dynamics.range_warnings import unseen_together
from ivvi.dynamics.state_encoding import as_columns
from ivvi.errors import InputError, PlanningWarning


def allowed_actions(model: Dynamics, given: Any) -> Actions:
    """Return the actions that a user allows.

    Unless rows are listed, every level of a category is allowed, and a pair (low, high) bounds the
    other columns. Rows may be a table with the columns of the log.
    """
    if isinstance(given, Actions):
        return make_actions(given, model.action)
    if (listed := as_columns(given)) is not None:
        names = raw_columns(model.action, model.coded)
        if missing := [name for name in names if name not in listed]:
            raise InputError(f"the set of actions has no column {missing[0]!r}")
        place = "the set of actions"
        return Actions.finite(encode_rows(listed, model.action, model.coded, place))
    coded = {c.names[0]: c for c in model.coded if c.names and c.names[0] in model.action}
    coded_names = {name for category in coded.values() for name in category.names}
    numbers = [name for name in model.action if name not in coded_names]
    bounds = isinstance(given, tuple) and len(given) == 2
    if not coded or not (given is None or bounds):
        if given is None:
            raise InputError(
                "no allowed actions are given; expected (low, high) or rows for "
                f"{', '.join(numbers)}"
            )
        return make_actions(given, model.action)
    if (given is None) == bool(numbers):
        text = f"bounds of {', '.join(numbers)}" if numbers else "none: the levels are the actions"
        raise InputError(f"the actions are {given!r}; expected {text}")
    box = Actions.box(*given, dim=len(numbers)) if bounds else None
    parts: list[Actions] = []
    for name in model.action:
        if name in coded:
            parts.append(
                Actions.finite(CategoryLevels(tuple(range(len(coded[name].names)))).levels)
            )
        elif name in numbers and box is not None:
            at = numbers.index(name)
            parts.append(Actions.box(box.low[at], box.high[at], dim=1))
    return only_seen(model, Actions.product(*parts))


def only_seen(model: Dynamics, actions: Actions) -> Actions:
    """Return actions without combinations of choices that the log never has; warn about them."""
    unseen = unseen_together(model)
    if not (unseen and actions.discrete and actions.is_listed):
        return actions
    rows = np.full((actions.count, len(model.action)), np.nan)
    rows[:, list(actions.discrete)] = actions.choices
    occurs = ~np.any([combination.of(rows) for combination in unseen], axis=0)
    if occurs.all() or not occurs.any():
        return actions
    others = "" if len(unseen) == 1 else f" (nor {len(unseen) - 1} more combinations likewise)"
    text = (
        f"{unseen[0].sentence}{others}: the joint effect is not known, so the plan leaves this "
        "combination out; to allow it, list the allowed rows in --action-set (actions=)"
    )
    warnings.warn(text, PlanningWarning, stacklevel=4)
    return replace(actions, rows=actions.choices[occurs], levels=())


def exclusive_actions(model: Dynamics) -> tuple[tuple[int, ...], ...]:
    """Return columns of the action, two or more, that are the indicators of one category."""
    places = {name: i for i, name in enumerate(model.action)}
    named = (c.names for c in model.coded if len(c.names) > 1 and c.names[0] in places)
    return tuple(tuple(places[name] for name in names) for names in named)
