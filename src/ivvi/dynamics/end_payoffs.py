"""What the end of an episode pays: one amount for any end, or one for each kind.

A log may distinguish kinds of end, such as death and discharge. The chance of each is an output of
the model; a user's function may also say that a state ends the episode.
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
    """Return what ends pay, or refuse what does not fit the ends that there are.

    Parameters
    ----------
    reward
        A number, or an amount for each kind by name.
    kinds
        The kinds of end that the model knows.
    by_state
        Whether a function of the state may end an episode too.
    """
    if isinstance(reward, tuple):
        reward = dict(reward)
    if not isinstance(reward, Mapping):
        amount = _number(reward, "the reward at the end")
        if amount and not (by_state or kinds):
            raise InputError(
                f"a reward of {amount:g} at the end is given, but no episode of the model "
                "ends: fit with terminal (--terminal COLUMN)"
            )
        return amount
    if not kinds or by_state:
        why = "the ends given by `terminal` have no names" if by_state else "no episode ends"
        other = "" if by_state else ", or a fit with terminal (--terminal COLUMN)"
        raise InputError(
            f"rewards are given for the ends {', '.join(map(str, reward))}, but in this model "
            f"{why}; expected one number{other}"
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
    """Return what each kind of end pays, then what an end `by_state` pays; () for nothing.

    In the order of `all_ends`.
    """
    if not isinstance(reward, tuple):
        return (reward,) * (len(kinds) + by_state) if reward else ()
    paid = tuple(amount for _, amount in reward)
    return paid if any(paid) else ()


def all_ends(chances: Array | None, by_state: Array | None) -> Array:
    """Return the chances (..., E) of each kind, and of an end by the state where no kind did."""
    if chances is None:
        return by_state[..., None]  # type: ignore[index]
    if by_state is None:
        return chances
    xp = chances.__array_namespace__()
    rest = (1.0 - chances.sum(axis=-1)) * by_state
    chances = xp.broadcast_to(chances, (*rest.shape, chances.shape[-1]))
    return xp.concatenate([chances, rest[..., None]], axis=-1)


def end_reward_to_json(reward: EndReward) -> Any:
    """Describe with JSON values: a number, or one for each kind by name."""
    return dict(reward) if isinstance(reward, tuple) else reward


def in_words(reward: EndReward) -> str:
    """Say what ends pay; empty where they pay nothing."""
    if isinstance(reward, tuple):
        return ", ".join(f"{kind} {amount:+g}" for kind, amount in reward)
    return f"{reward:+g}" if reward else ""


def _number(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise InputError(f"{what} is {value!r}; expected a number")
    if not np.isfinite(value):
        raise InputError(f"{what} is {value}; expected a finite number")
    return float(value)
