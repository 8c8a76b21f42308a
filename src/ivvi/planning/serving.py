"""Decisions one line at a time: JSON in, JSON out, for programs that ask again and again.

A line is an object with ``state``, numbers in the order of the columns or by their names, or with
``states``, a list of them; ``step`` is the step of the episode (0 unless given), ``id`` comes back
as it is. The answer has ``action`` or ``actions``; what cannot be answered has ``error``, one
sentence. States are padded to a few sizes, whose programs are compiled once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from ivvi.errors import InputError
from ivvi.planning.policy import Policy

SIZES = (8, 128, 2048)
"""Numbers of states that programs are compiled for; the first before the first line."""
LONGEST_LINE = 1 << 20
"""Letters of a line; a longer one is refused without being read as JSON."""


def serve(policy: Policy, lines: Iterable[str]) -> Iterator[str]:
    """Yield an answer to each line; bad lines are answered too, and blank ones are not.

    Parameters
    ----------
    policy
        A policy that was planned or loaded.
    lines
        Lines of JSON, such as ``{"state": [0.5, 1.0], "step": 3, "id": 7}``.

    Examples
    --------
    >>> import ivvi, json
    >>> env = ivvi.make_env("linear", dim=2)
    >>> fit = ivvi.estimate(env.collect(episodes=20, horizon=20))
    >>> policy = ivvi.plan(fit, env.reward, (-1, 1), horizon=5, method="mpc", compare=False)
    >>> answers = serve(policy, ['{"state": [10, 10], "id": "a"}', '{"state": [1]}'])
    >>> sorted(json.loads(next(answers)))
    ['action', 'id']
    >>> json.loads(next(answers))["error"]
    'a state has 1 numbers; expected 2 (x0, x1)'
    """
    _decide(policy, np.zeros((1, len(policy.problem.model.state))), 0)
    for line in lines:
        if line.strip():
            yield _answer(policy, line)


def _answer(policy: Policy, line: str) -> str:
    reply: dict[str, Any] = {}
    try:
        asked = _parsed(line)
        if "id" in asked:
            reply["id"] = asked["id"]
        reply |= _decided(policy, asked)
    except InputError as error:
        reply["error"] = " ".join(str(error).split())
    try:
        return json.dumps(reply, allow_nan=False)
    except (ValueError, RecursionError) as error:
        return json.dumps({"error": f"the answer cannot be written as JSON: {error}"})


def _parsed(line: str) -> dict[str, Any]:
    if len(line) > LONGEST_LINE:
        raise InputError(f"the line has {len(line):,} letters; expected at most {LONGEST_LINE:,}")
    try:
        asked = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InputError(f"the line is not JSON: {error}") from error
    if not isinstance(asked, dict):
        raise InputError('the line is not a JSON object; expected {"state": [...]}')
    if unknown := sorted(set(asked) - {"state", "states", "step", "id"}):
        raise InputError(f"{unknown[0]!r} is not known; expected state or states, step, id")
    if ("state" in asked) == ("states" in asked):
        raise InputError("expected either state or states")
    return asked


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is not a finite number")


def _decided(policy: Policy, asked: dict[str, Any]) -> dict[str, Any]:
    names, step = policy.problem.model.state, asked.get("step", 0)
    horizon = policy.problem.horizon
    if type(step) is not int or not 0 <= step < horizon:
        raise InputError(f"the step is {step!r}; the plan has the steps 0 to {horizon - 1}")
    if "state" in asked:
        return {"action": _decide(policy, np.array([_state(asked["state"], names)]), step)[0]}
    states = asked["states"]
    if not isinstance(states, list) or not states:
        raise InputError("states is not a list of states")
    return {"actions": _decide(policy, np.array([_state(s, names) for s in states]), step)}


def _state(values: Any, names: tuple[str, ...]) -> list[float]:
    """Return the numbers of a state, given in order or by name."""
    if isinstance(values, dict):
        if set(values) != set(names):
            listed = ", ".join(map(str, values))
            raise InputError(f"a state has {listed or 'nothing'}; expected {', '.join(names)}")
        values = [values[name] for name in names]
    if not isinstance(values, list):
        raise InputError("a state is a list of numbers, or an object with a number for each column")
    if len(values) != len(names):
        raise InputError(
            f"a state has {len(values)} numbers; expected {len(names)} ({', '.join(names)})"
        )
    for name, value in zip(names, values, strict=True):
        if type(value) not in (int, float) or not abs(value) < 1e300:
            raise InputError(f"{name} of a state is {str(value)[:40]!r}; expected a finite number")
    return [float(value) for value in values]


def _decide(policy: Policy, states: np.ndarray, step: int) -> list[list[float]]:
    """Return the actions; only programs of the sizes in SIZES are compiled."""
    actions: list[list[float]] = []
    for first in range(0, len(states), SIZES[-1]):
        part = states[first : first + SIZES[-1]]
        size = next(size for size in SIZES if size >= len(part))
        padded = np.concatenate([part, np.repeat(part[:1], size - len(part), axis=0)])
        actions += policy(padded, step)[: len(part)].tolist()
    return actions
