"""Payments for the end of an episode: one amount for any end, or one for each kind.

A log may distinguish kinds of end, such as death and discharge. The chance of each is an output of
the model. A user's function of the state may also end the episode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ivvi._io.arrays import Array
from ivvi.errors import InputError, hint

EndReward = float | tuple[tuple[str, float], ...]
"""One amount for any end, or (kind, amount) for each kind."""


def end_reward(reward: Any, kinds: Sequence[str], *, by_state: bool) -> EndReward:
    """Return the payments for ends; raise an error if they do not fit the model's ends.

    Parameters
    ----------
    reward
        A number, or an amount for each kind by name.
    kinds
        The kinds of end in the model.
    by_state
        Whether a function of the state may end an episode too.
    """
    if isinstance(reward, tuple):
        reward = dict(reward)
    if not isinstance(reward, Mapping):
        amount = _number(reward, "the reward at the end")
        if amount and not (by_state or kinds):
            raise InputError(
                f"reward_at_end is {amount:g}, but no episode in the model ends: fit with terminal "
                "(--terminal COLUMN)"
            )
        return amount
    if not kinds or by_state:
        reason = "the ends given by `terminal` have no names" if by_state else "no episode ends"
        other = "" if by_state else ", or a fit with terminal (--terminal COLUMN)"
        raise InputError(
            f"rewards are given for the ends {', '.join(map(str, reward))}, but in this model "
            f"{reason}; expected one number{other}"
        )
    for kind in reward:
        if kind not in kinds:
            raise InputError(
                f"a reward is given for the end {kind!r}, but the log has no such end"
                f"{hint(str(kind), kinds)}"
            )
    if missing := [kind for kind in kinds if kind not in reward]:
        raise InputError(
            f"the reward of the end {missing[0]!r} is not given; expected one for each of "
            f"{', '.join(kinds)}, with 0 for an end that pays nothing"
        )
    return tuple((kind, _number(reward[kind], f"the reward of the end {kind!r}")) for kind in kinds)


def amounts(reward: EndReward, kinds: Sequence[str], *, by_state: bool) -> tuple[float, ...]:
    """Return the payment for each kind of end, then for an end `by_state`; () if all are zero.

    In the order of `all_ends`.
    """
    if not isinstance(reward, tuple):
        return (reward,) * (len(kinds) + by_state) if reward else ()
    paid = tuple(amount for _, amount in reward)
    return paid if any(paid) else ()


def all_ends(chances: Array | None, by_state: Array | None) -> Array:
    """Return the chances (..., E) of each kind of end, then of an end by the state alone."""
    if chances is None:
        return by_state[..., None]  # type: ignore[index]
    if by_state is None:
        return chances
    xp = chances.__array_namespace__()
    rest = (1.0 - chances.sum(axis=-1)) * by_state
    chances = xp.broadcast_to(chances, (*rest.shape, chances.shape[-1]))
    return xp.concatenate([chances, rest[..., None]], axis=-1)


def end_reward_to_json(reward: EndReward) -> Any:
    """Return the payments as JSON: a number, or one for each kind by name."""
    return dict(reward) if isinstance(reward, tuple) else reward


def in_words(reward: EndReward) -> str:
    """Return the payments in words; '' where they are zero."""
    if isinstance(reward, tuple):
        return ", ".join(f"{kind} {amount:+g}" for kind, amount in reward)
    return f"{reward:+g}" if reward else ""


def _number(value: Any, label: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise InputError(f"{label} is {value!r}; expected a number")
    if not np.isfinite(value):
        raise InputError(f"{label} is {value}; expected a finite number")
    return float(value)
