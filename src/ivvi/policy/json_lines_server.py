"""Decisions one line at a time: JSON in, JSON out, for programs that ask repeatedly.

A line is an object with ``state``, values in the order of the log's columns or by their names, or
with ``states``, a list of them; ``step`` is the step of the episode (0 by default), and ``id`` is
returned unchanged. The answer has ``action`` or ``actions``. Where the log's actions are categories
it also has ``decision`` or ``decisions``, by column and level; where state or action is outside the
log, ``warnings``. A line that cannot be answered gets ``error``, one sentence. States are padded to
a few sizes, whose programs are compiled once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from ivvi.dynamics.model import Dynamics
from ivvi.errors import LARGEST, InputError
from ivvi.policy.policy import Policy

SIZES = (8, 128, 2048)
"""Numbers of states for which programs are compiled, the first before any line is read."""
LONGEST_LINE = 1 << 20
"""Most characters of a line; a longer one is refused without being parsed as JSON."""


def serve(policy: Policy, lines: Iterable[str], *, unseen: str | None = None) -> Iterator[str]:
    """Yield an answer to each line, also to invalid lines, but not to blank ones.

    Parameters
    ----------
    policy
        A policy that was planned or loaded.
    lines
        Lines of JSON, such as ``{"state": [0.5, 1.0], "step": 3, "id": 7}``.
    unseen
        Level that replaces levels the log does not have; without it they are errors.

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
    'a state has 1 values; expected 2 (x0, x1)'
    """
    _decide(policy, np.zeros((1, len(policy.problem.model.state))), 0)
    for line in lines:
        if line.strip():
            yield _answer(policy, line, unseen)


def _answer(policy: Policy, line: str, unseen: str | None) -> str:
    reply: dict[str, Any] = {}
    try:
        request = _parsed(line)
        if "id" in request:
            reply["id"] = request["id"]
        reply |= _decided(policy, request, unseen)
    except InputError as error:
        reply["error"] = " ".join(str(error).split())
    try:
        return json.dumps(reply, allow_nan=False)
    except (ValueError, RecursionError) as error:
        return json.dumps({"error": f"the answer cannot be written as JSON: {error}"})


def _parsed(line: str) -> dict[str, Any]:
    if len(line) > LONGEST_LINE:
        raise InputError(
            f"the line has {len(line):,} characters; expected at most {LONGEST_LINE:,}"
        )
    try:
        request = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InputError(f"the line is not JSON: {error}") from error
    if not isinstance(request, dict):
        raise InputError('the line is not a JSON object; expected {"state": [...]}')
    if unknown := sorted(set(request) - {"state", "states", "step", "id"}):
        raise InputError(f"unknown key {unknown[0]!r}; expected state or states, step, id")
    if ("state" in request) == ("states" in request):
        raise InputError("expected either state or states")
    return request


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is not a finite number")


def _decided(policy: Policy, request: dict[str, Any], unseen: str | None) -> dict[str, Any]:
    model, step = policy.problem.model, request.get("step", 0)
    horizon = policy.problem.horizon
    if type(step) is not int or not 0 <= step < horizon:
        raise InputError(f"the step is {step!r}; the plan has the steps 0 to {horizon - 1}")
    states = [request["state"]] if "state" in request else request["states"]
    if not isinstance(states, list) or not states:
        raise InputError("states is not a list of states")
    rows = [_values(values, model.raw_state) for values in states]
    x = _numbers(model, rows, unseen)
    actions = _decide(policy, x, step)
    reply: dict[str, Any] = {"actions": actions}
    if (columns := model.decode_actions(np.array(actions))).keys() != set(model.action):
        reply["decisions"] = [
            dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
        ]
    if "state" in request:
        reply = {word.removesuffix("s"): answers[0] for word, answers in reply.items()}
    doubts = policy.doubts(x, np.array(actions))
    return reply | ({"warnings": list(doubts)} if doubts else {})


def _values(values: Any, names: tuple[str, ...]) -> list[Any]:
    """Return the values of a state in the order of the log's columns."""
    if isinstance(values, dict):
        if set(values) != set(names):
            listed = ", ".join(map(str, values))
            raise InputError(f"a state has {listed or 'nothing'}; expected {', '.join(names)}")
        return [values[name] for name in names]
    if not isinstance(values, list):
        raise InputError("a state is a list of values, or an object with a value for each column")
    if len(values) != len(names):
        raise InputError(
            f"a state has {len(values)} values; expected {len(names)} ({', '.join(names)})"
        )
    return values


def _numbers(model: Dynamics, rows: list[list[Any]], unseen: str | None) -> np.ndarray:
    """Return states (n, d_x); categories are coded as the log's were."""
    names, coded = model.raw_state, {category.column for category in model.coded}
    for row in rows:
        for name, value in zip(names, row, strict=True):
            kinds = (int, float, str, bool) if name in coded else (int, float)
            if type(value) not in kinds or (type(value) is not str and not abs(value) <= LARGEST):
                expected = "a level" if name in coded else "a finite number"
                raise InputError(f"{name} of a state is {str(value)[:40]!r}; expected {expected}")
    if not coded:
        return np.array(rows, dtype=np.float64)
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    return model.encode_states(columns, "a state", unseen)


def _decide(policy: Policy, states: np.ndarray, step: int) -> list[list[float]]:
    """Return the actions, with states padded to one of the SIZES."""
    actions: list[list[float]] = []
    for first in range(0, len(states), SIZES[-1]):
        part = states[first : first + SIZES[-1]]
        size = next(size for size in SIZES if size >= len(part))
        padded = np.concatenate([part, np.repeat(part[:1], size - len(part), axis=0)])
        actions += policy.decide(padded, step)[: len(part)].tolist()
    return actions
