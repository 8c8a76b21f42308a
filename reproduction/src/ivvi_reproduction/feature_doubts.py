"""How often a fit warns of its linear features, where they are right and where they are not.

Run it with ``python -m ivvi_reproduction.feature_doubts``. In every world a confounder u of one
step moves action and outcome, and z moves the action alone. A panel is

    x' = 0.6 x - 0.4 a + u + noise

with one thing changed, 100 episodes of 10 steps; a cross-section of 1,000 rows has y in place of
x'. Worlds whose linear features are right should raise a doubt in about one of 1,000 logs.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ivvi.errors import IvviWarning
from ivvi.fitting import estimate
from ivvi.logs import Log, read_logs
from ivvi.logs.log import Progress
from ivvi_reproduction.study import logs_command, no_bar, run_study

Rng = np.random.Generator
ROWS, EPISODES, STEPS = 1000, 100, 10


@dataclass(frozen=True, slots=True)
class DoubtCount:
    """The number of logs of a world whose fit warned of its features, and its usual warning."""

    world: str
    right: bool
    logs: int
    doubted: int
    sentence: str


@dataclass(frozen=True, slots=True)
class Panel:
    """What is changed in a panel.

    Attributes
    ----------
    level, lasting, delay
        Unit effects, what is left of the confounder a step later, the effect of the last action.
    z_lasts, z_of_unit, shock
        What is left of the instrument a step later, or one for each unit; a shock to all units.
    season, trend
        The size of a wave of seven steps, and of a straight line, that all units share.
    effect, varies
        The effect of the action, and how it changes with the state.
    reacts
        How the action follows the state.
    """

    episodes: int = EPISODES
    steps: int = STEPS
    level: float = 0.0
    lasting: float = 0.0
    delay: float = 0.0
    z_lasts: float = 0.0
    z_of_unit: bool = False
    shock: float = 0.0
    season: float = 0.0
    trend: float = 0.0
    effect: float = -0.4
    varies: float = 0.0
    reacts: float = 0.0

    def __call__(self, rng: Rng) -> Log:
        """Draw the panel."""
        x, level_of, u, z = rng.normal(size=(4, self.episodes))
        before, rows = np.zeros(self.episodes), []
        for t in range(self.steps):
            u, new_z = _next(u, self.lasting, rng), _next(z, self.z_lasts, rng)
            z = z if self.z_of_unit else new_z
            a = 0.8 * z + u + 0.5 * rng.normal(size=len(x)) + self.reacts * x
            rows.append(np.column_stack([np.arange(len(x)), np.full(len(x), t), x, a, z]))
            noise = 0.5 * rng.normal(size=len(x)) + self.shock * rng.normal()
            x = 0.6 * x + (self.effect - self.varies * x) * a + u + noise
            shared = self.season * np.cos(2 * np.pi * t / 7) + self.trend * t
            x, before = x + self.delay * before + self.level * level_of + shared, a
        table = dict(zip(("unit", "time", "x", "a", "z"), np.concatenate(rows).T, strict=True))
        return read_logs(table, state="x", action="a", instrument="z", episode="unit", step="time")


def _next(values: np.ndarray, left: float, rng: Rng) -> np.ndarray:
    """Return the values a step later, with the share `left` of them and a variance of one."""
    later: np.ndarray = left * values + np.sqrt(1 - left**2) * rng.normal(size=len(values))
    return later


def draw_rows(
    rng: Rng,
    *,
    tails: float = 0.0,
    skewed: bool = False,
    binary: bool = False,
    groups: int = 0,
    varies: float = 0.0,
    bends: float = 0.0,
    saturates: bool = False,
) -> Log:
    """Draw a cross-section."""
    x, z, u = rng.normal(size=(3, ROWS))
    if skewed:
        x, z = np.exp(x), np.exp(z)
    noise = rng.standard_t(tails, size=ROWS) if tails else rng.normal(size=ROWS)
    roles: dict[str, Any] = {"state": "x", "action": "a", "instrument": "z", "next_state": "y"}
    table: dict[str, np.ndarray] = {"x": x}
    if groups:
        table["group"] = rng.integers(0, groups, ROWS)
        z = rng.normal(size=groups)[table["group"]]
        noise = noise + rng.normal(size=groups)[table["group"]]
    a = z + u + 0.5 * x
    a = (a > 0).astype(float) if binary else a
    moved = np.maximum(a, 0.0) if saturates else a
    y = x + bends * x**2 - (0.5 + varies * x) * moved + u + noise
    return read_logs(table | {"a": a, "z": z, "y": y}, **roles)


RIGHT: dict[str, Callable[[Rng], Log]] = {
    "panel": Panel(),
    "panel, instrument lasts": Panel(z_lasts=0.8),
    "panel, instrument of the unit": Panel(z_of_unit=True),
    "panel, shocks that all share": Panel(shock=1.0),
    "panel, actions that react": Panel(effect=0.5, reacts=0.3),
    "panel, 3 long episodes": Panel(episodes=3, steps=400),
    "rows": draw_rows,
    "rows, heavy tails": lambda rng: draw_rows(rng, tails=2.5),
    "rows, skewed columns": lambda rng: draw_rows(rng, skewed=True),
    "rows, binary action": lambda rng: draw_rows(rng, binary=True),
    "rows, instrument of 8 groups": lambda rng: draw_rows(rng, groups=8),
    "rows, instrument of 40 groups": lambda rng: draw_rows(rng, groups=40),
}
WRONG: dict[str, Callable[[Rng], Log]] = {
    "panel, unit effects": Panel(level=1.0),
    "panel, unit effects, 400 episodes": Panel(level=1.0, episodes=400),
    "panel, unit effects, actions react": Panel(level=0.7, effect=0.5, reacts=0.3),
    "panel, lasting confounder": Panel(lasting=0.6),
    "panel, delayed effect": Panel(delay=-0.4, z_lasts=0.8),
    "panel, season of the step": Panel(season=0.7, steps=14),
    "panel, trend of the step": Panel(trend=1.0),
    "panel, effect that varies": Panel(varies=0.3),
    "rows, effect that varies": lambda rng: draw_rows(rng, varies=0.3),
    "rows, outcome that bends": lambda rng: draw_rows(rng, bends=0.3),
    "rows, dose that saturates": lambda rng: draw_rows(rng, saturates=True),
}
WORLDS = [(name, True) for name in RIGHT] + [(name, False) for name in WRONG]


def measure(
    world: tuple[str, bool], logs: int, seed: int = 0, bar: Progress = no_bar
) -> DoubtCount:
    """Fit logs of a world by the shortest call, and count those whose features are doubted."""
    name, right = world
    draw, doubts = (RIGHT if right else WRONG)[name], []
    for i in range(logs):
        log = draw(np.random.default_rng([seed, i]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", IvviWarning)  # these warnings are counted
            fit = estimate(log)
        doubts += list((fit.doubts + fit.plan_doubts)[:1])
        bar(1)
    causes = [re.split(r" \(p|: effects of", text)[0] for text in doubts]
    most = max(set(causes), key=causes.count, default="")
    return DoubtCount(name, right, logs, len(doubts), most)


def table(records: list[DoubtCount]) -> str:
    """Return the counts by world as a text table."""
    head = f"{'world':<37}{'features':<10}{'doubted':>9}   most often"
    lines = [
        f"{r.world:<37}{'right' if r.right else 'too few':<10}{r.doubted:>4} of {r.logs:<4}"
        f" {r.sentence}"
        for r in records
    ]
    return "\n".join([head, "-" * len(head), *lines])


command = logs_command(
    "Count how often a fit doubts its linear features, in worlds where they are right or not.",
    *(WORLDS, measure, table, 100),
    heading=True,
)

if __name__ == "__main__":
    run_study(command)
