"""How often the checks of a sequence reject, where the assumptions hold and where one fails.

Run it with ``python -m ivvi_reproduction.sequence_checks``. All logs have x' = x / 2 - a / 2 + e,
one action and one instrument; each kind but the first three breaks one rule. Episodes begin on days
that have nothing to do with their order in the log.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import typer

from ivvi._io.arrays import Floats
from ivvi.errors import InputError
from ivvi.logs import Log, read_logs
from ivvi.sequence.check import check as check_log
from ivvi_reproduction.study import Force, Json, Seed, check, measure_each, run_study, tell

LEVEL = 0.05
SOUND = ("rules kept", "global", "shared")
"""Kinds that keep the rules."""
KINDS = {
    "rules kept": "nothing is wrong",
    "global": "nothing is wrong; one draw of z per episode",
    "shared": "nothing is wrong; all episodes share z and half of the shocks of a step",
    "history": "z follows the last action",
    "state": "z follows the state",
    "lasting z": "z follows its own last value",
    "global, assigned": "one draw of z per episode, by the first state",
    "lasting errors": "e follows its own last value",
    "steps": "the effect of a vanishes in later steps",
    "episodes": "the effect of a vanishes in later episodes",
    "middle": "the effect of a vanishes in the middle episodes",
    "calendar": "the effect of a vanishes after a day; the episodes are in no order",
    "bent": "the dynamics have a square of x",
}


@dataclass(frozen=True, slots=True)
class CheckRejections:
    """Share of logs on which each check rejects at 5%."""

    kind: str
    logs: int
    rejected: dict[str, float]


def draw(kind: str, seed: int, episodes: int = 40, steps: int = 25) -> dict[str, Floats]:
    """Return the columns of a log that breaks one rule."""
    if kind not in KINDS:
        raise InputError(f"unknown kind {kind!r}; {', '.join(KINDS)} are known")
    rng = np.random.default_rng(seed)
    x, once = rng.normal(size=(2, episodes))
    late = np.arange(episodes) >= episodes / 2
    middle = np.abs(np.arange(episodes) - episodes / 2) < episodes / 4
    begins = 10.0 * np.random.default_rng([seed, 1]).permutation(episodes)
    z_before, e_before, a_before = np.zeros((3, episodes))
    rows = []
    for t in range(steps):
        e = rng.normal(size=episodes) + 0.5 * e_before * (kind == "lasting errors")
        z = rng.normal(size=episodes)
        z += {"history": 0.4 * a_before, "lasting z": 0.5 * z_before, "state": 0.4 * x}.get(kind, 0)
        if kind.startswith("global"):
            z = once + x * (kind == "global, assigned") if t == 0 else z_before
        if kind == "shared":
            z, e = np.full(episodes, rng.normal()), (e + rng.normal()) / np.sqrt(2)
        a = z + e + rng.normal(size=episodes)
        day = begins + t
        has_no_effect = {
            "steps": t >= steps / 2,
            "episodes": late,
            "middle": middle,
            "calendar": day >= 5 * episodes,
        }.get(kind, False)
        y = 0.5 * x - 0.5 * np.where(has_no_effect, 0.0, a) + e
        y = np.clip(y + 0.3 * x**2, -4, 4) if kind == "bent" else y
        rows.append((np.full(episodes, t), day, x, a, z, y))
        x, z_before, e_before, a_before = y, z, e, a
    step, day, *values = (np.array(part).T.ravel() for part in zip(*rows, strict=True))
    named = {"episode": np.repeat(np.arange(episodes), steps), "step": step, "day": day}
    return named | dict(zip(("x0", "a0", "z0", "next_x0"), values, strict=True))


def draw_log(kind: str, seed: int, episodes: int = 40, steps: int = 25) -> Log:
    """Return the columns of `draw` as a log."""
    return read_logs(draw(kind, seed, episodes, steps))


def measure(kind: str, logs: int, seed: int = 0) -> CheckRejections:
    """Draw logs of a kind and count the rejections of each check."""
    counts: dict[str, int] = {}
    for i in range(logs):
        for result in check_log(draw_log(kind, seed + i), time="day").checks:
            rejected = result.test is not None and result.test.p_value < LEVEL
            counts[result.name] = counts.get(result.name, 0) + int(rejected)
    return CheckRejections(kind, logs, {name: count / logs for name, count in counts.items()})


def table(records: Iterable[CheckRejections]) -> str:
    """Return, for each kind of log, the checks and their rejection rates as text."""
    lines = []
    for r in records:
        lines.append(f"{r.kind}: {KINDS[r.kind]} ({r.logs} logs)")
        lines += [f"    {name:<34}{share:>7.1%}" for name, share in r.rejected.items()]
    return "\n".join(lines)


def command(
    logs: Annotated[int, typer.Option(help="Logs in which the assumptions hold.")] = 1000,
    only: Annotated[str, typer.Option(help="Only the kind of this name.")] = "",
    broken: Annotated[int, typer.Option(help="Logs of each kind in which one fails.")] = 100,
    seed: Seed = 0,
    json: Json = None,
    force: Force = False,
) -> None:
    """Measure size and power of the checks of a sequence."""
    check(json, force, logs=logs, broken=broken)
    if only and only not in KINDS:
        raise InputError(f"unknown kind {only!r}; {', '.join(KINDS)} are known")
    counts = {kind: logs if kind in SOUND else broken for kind in KINDS}
    records = measure_each(
        "kinds", [only] if only else list(KINDS), lambda kind: measure(kind, counts[kind], seed)
    )
    tell(table(records), records, json, force)


if __name__ == "__main__":
    run_study(command)
