"""Make rewards from a word, a function, a reward, or a saved file.

`parse_reward` reads the words of the command line.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from ivvi._io.serialization import unpack_fields
from ivvi.errors import FileError, InputError, hint, nearest
from ivvi.features.custom_block import import_saved
from ivvi.rewards.builtin import Learned, Linear, PerColumn, Quadratic, RatingReward, Reward
from ivvi.rewards.next_state_rewards import SeenReward, seen_reward
from ivvi.rewards.user_functions import Function

StateNames = tuple[str, ...]
WORDS = ("quadratic", "linear", "learned")
OF_ACTIONS = ("action_weight", "action")
"""Settings with one number per action; the others have one per state."""
HIDDEN = ("model", "function", "context", "instrument", "nodes", "shares")
"""Fields that a reward takes from its model and that are not saved with it."""


KINDS: dict[Any, Any] = {
    c.kind: c for c in (Quadratic, Linear, RatingReward, Learned, SeenReward, Function)
}


def is_reward(value: Any) -> bool:
    """Return whether a value is a reward of this package, not just any function."""
    return isinstance(value, tuple(KINDS.values()))


def make_reward(reward: Any, model: Any, instrument: Mapping[str, Any] | None = None) -> Reward:
    """Return a reward for a word, a function, or a reward that is one already.

    For a learned reward without a model, functions of the next state are tried first. `instrument`
    is the value of the instrument for a function that asks for it.
    """
    if isinstance(reward, str):
        reward = _parse_for(reward, model)
    if isinstance(reward, Learned):
        if not model.has_reward:
            raise InputError(
                "the reward 'learned' needs a model that was fitted with a reward column"
            )
        seen = seen_reward(model) if reward.model is None else None
        reward = Learned(model) if seen is None else seen
    if isinstance(reward, Quadratic | Linear):
        reward = _of_predicted(reward, model)
        _check_widths(reward, tuple(model.state), tuple(model.action))
    if not callable(reward):
        raise InputError(f"the reward is {reward!r}; expected a word or a function of (x, a)")
    result: Reward = reward if is_reward(reward) else Function.of(reward)
    if isinstance(result, Function):
        return result.in_model(model, instrument)
    if instrument is not None:
        raise InputError("an instrument is given, but only a reward that is a function can use it")
    return result


def _parse_for(word: str, model: Any) -> Reward:
    """Return the reward of a word; the model's own learned reward is ``learned``."""
    if model.has_reward and word == model.outputs[-1]:
        raise InputError(
            f"{word!r} is the reward that the model learned from the log; ask for it as 'learned'"
        )
    if word in model.outputs:
        raise InputError(
            f"{word!r} is part of the predicted next state; to plan for an outcome of one "
            f"decision, fit it as the reward (reward={word!r}, --reward {word}), without a next "
            "state, and ask for 'learned'"
        )
    return parse_reward(word, tuple(model.state), tuple(model.action))


def parse_reward(word: str, state: StateNames = (), action: StateNames = ()) -> Reward:
    """Return the reward of a word such as ``quadratic:weight=0.05,target=0``,
    ``linear:state=1;2,action=0``, ``learned`` or ``module:function``. Several numbers are separated
    by semicolons, in the order of the columns `state` and `action`, or each after the name of its
    column; the other columns then have 0.

    Examples
    --------
    >>> parse_reward("quadratic:weight=0.05,target=1;2")
    Quadratic(weight=(0.05,), target=(1.0, 2.0), action_weight=(0.0,))
    >>> parse_reward("linear:state=glucose:-1,action=-0.5", ("age", "glucose"), ("dose",))
    Linear(state=(0.0, -1.0), action=(-0.5,), constant=0.0)
    """  # noqa: D205
    kind, _, rest = word.partition(":")
    if kind == "learned" and not rest:
        return Learned()
    if kind not in ("quadratic", "linear"):
        if rest and "=" not in rest:
            return Function.of(word)
        suggestion = nearest(kind, WORDS) or (
            "; expected quadratic:.., linear:.., learned or module:function (for a column of the "
            "log, `ivvi fit --reward COLUMN`, then the reward learned)"
        )
        raise InputError(f"unknown reward {word!r}{suggestion}")
    settings: dict[str, Any] = {}
    names = [f.name for f in dataclasses.fields(KINDS[kind])]
    for part in filter(None, rest.split(",")):
        name, _, values = part.partition("=")
        if name not in names:
            raise InputError(f"the reward {kind} has no setting {name!r}{hint(name, names)}")
        if name in settings:
            raise InputError(f"{name} is given twice in the reward {word!r}; expected it once")
        if name == "constant" and (";" in values or ":" in values):
            raise InputError(f"{part} in the reward {word!r}; expected one number")
        columns = action if name in OF_ACTIONS else state
        numbers = _read_numbers(values, columns, f"{part} in the reward {word!r}")
        settings[name] = numbers[0] if name == "constant" else numbers
    return KINDS[kind](**settings)  # type: ignore[no-any-return]


def _read_numbers(values: str, columns: StateNames, label: str) -> PerColumn:
    """Return the numbers of ``0.05``, ``1;0`` or ``glucose:1``; columns without a number have 0."""
    pairs = [part.rpartition(":") for part in values.split(";")]
    named = [column.strip() for column, colon, _ in pairs if colon]
    try:
        numbers = tuple(float(number) for _, _, number in pairs)
    except ValueError as error:
        raise InputError(
            f"{label} is not a number, or numbers separated by semicolons, in the order of the "
            "columns or by name (glucose:1;age:0)"
        ) from error
    if not all(map(math.isfinite, numbers)):
        raise InputError(f"{label} is not a finite number")
    if not named:
        return numbers
    if len(set(named)) < len(numbers):
        raise InputError(f"{label}: expected a column before each number, and each column once")
    if unknown := [name for name in named if name not in columns]:
        raise InputError(f"{label} names {unknown[0]!r}{hint(unknown[0], columns)}")
    by_name = dict(zip(named, numbers, strict=True))
    return tuple(by_name.get(column, 0.0) for column in columns)


def reward_to_json(reward: Any) -> dict[str, Any]:
    """Return a reward as JSON values; a user's function by its import path."""
    if isinstance(reward, Function):
        reward.check_importable()
    fields = {f.name: getattr(reward, f.name) for f in dataclasses.fields(reward)}
    return {"kind": reward.kind, **{k: v for k, v in fields.items() if k not in HIDDEN}}


def reward_from_json(value: Mapping[str, Any], model: Any) -> Reward:
    """Rebuild a reward from `reward_to_json`."""
    settings = {k: v for k, v in value.items() if k != "kind"}
    if unsaved := set(HIDDEN) & set(settings):
        raise FileError(f"the saved reward must not contain {min(unsaved)}")
    if value.get("kind") == Function.kind:
        import_saved(settings.get("path"))
    try:
        kind = KINDS[value.get("kind")]
        if kind is Learned:
            return make_reward(Learned(model), model)
        return make_reward(kind(**unpack_fields(kind, settings)), model)
    except (KeyError, TypeError) as error:
        raise FileError(
            f"the saved reward {value.get('kind')!r} cannot be read: {error}"
        ) from error


def _of_predicted(reward: Quadratic | Linear, model: Any) -> Quadratic | Linear:
    """Return the reward with zeros for carried states (context, lags), which users leave out.

    A patient's age is in the state so that dynamics may depend on it; one weight for every state
    is not meant to punish old age.
    """
    carried = {name for name, _ in getattr(model, "carried", ())}
    if not carried:
        return reward
    predicted = [name for name in model.state if name not in carried]
    wider: dict[str, PerColumn] = {}
    for name in ("weight", "target") if isinstance(reward, Quadratic) else ("state",):
        numbers = getattr(reward, name)
        if len(numbers) in (1, len(predicted)):
            numbers = numbers * len(predicted) if len(numbers) == 1 else numbers
            by_column = dict(zip(predicted, numbers, strict=True))
            wider[name] = tuple(by_column.get(column, 0.0) for column in model.state)
    return dataclasses.replace(reward, **wider)  # type: ignore[arg-type]  # of its own fields


def _check_widths(
    reward: Quadratic | Linear, state: tuple[str, ...], action: tuple[str, ...]
) -> None:
    for f in dataclasses.fields(reward):
        numbers = getattr(reward, f.name)
        columns = action if f.name in OF_ACTIONS else state
        if isinstance(numbers, tuple) and len(numbers) not in (1, len(columns)):
            raise InputError(
                f"{f.name} of the reward {reward.kind} has {len(numbers)} numbers; "
                f"expected one or {len(columns)} ({', '.join(columns)})"
            )
