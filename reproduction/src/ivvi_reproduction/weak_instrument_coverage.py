"""How often intervals contain the truth when the instrument is weak.

Run it with ``python -m ivvi_reproduction.weak_instrument_coverage``. In each design many logs are
drawn and each interval is asked whether it holds the true effect of the action, -0.5:

* *independent*: x' = x / 2 - a / 2 + e, the dynamics of the paper's linear experiment with
  one action and three instruments, confounded (a moves with e);
* *dependent*: the same, but outcome and instruments share parts within an episode, so
  that only errors clustered by episode are right.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from ivvi.diagnostics import first_stage
from ivvi.estimators import Exact
from ivvi.features.design import Design
from ivvi.features.feature_map import linear
from ivvi.fitting.inference_tables import NORMAL_95
from ivvi.logs import Batch, Roles
from ivvi.logs.log import Progress
from ivvi.moments import Moments
from ivvi.weak_iv.confidence_sets import anderson_rubin, conditional_likelihood_ratio
from ivvi.weak_iv.effect_scores import EffectScores
from ivvi.weak_iv.partialled_effect import PartialledEffect
from ivvi.weak_iv.robust_anderson_rubin import robust_anderson_rubin
from ivvi.weak_iv.robust_likelihood_ratio import p_value
from ivvi_reproduction.study import (
    binomial_deviation,
    coverage_cell,
    coverage_table,
    logs_command,
    no_bar,
    run_study,
)

EFFECT = -0.5
LEVEL = 0.95
EPISODES, STEPS, INSTRUMENTS = 50, 20, 3
INTERVALS = ("Wald", "AR", "CLR", "Wald clustered", "AR clustered", "CLR clustered")


@dataclass(frozen=True, slots=True)
class WeakInstrumentDesign:
    """How the logs are drawn: strength of the instruments, dependence within episodes."""

    name: str
    strength: float
    dependent: bool = False


DESIGNS = (
    WeakInstrumentDesign("strong", 0.5),
    WeakInstrumentDesign("weak", 0.1),
    WeakInstrumentDesign("very weak", 0.02),
    WeakInstrumentDesign("irrelevant", 0.0),
    WeakInstrumentDesign("strong, dependent", 0.5, dependent=True),
    WeakInstrumentDesign("very weak, dependent", 0.02, dependent=True),
)


@dataclass(frozen=True, slots=True)
class WeakInstrumentCoverage:
    """Coverage of each interval over the logs of a design.

    `first_stage` is the mean partial F, `unbounded` the share of unbounded sets.
    """

    design: WeakInstrumentDesign
    logs: int
    first_stage: float
    coverage: dict[str, float] = field(default_factory=dict)
    unbounded: dict[str, float] = field(default_factory=dict)

    @property
    def deviation(self) -> float:
        """One binomial standard deviation of a coverage of 95%."""
        return binomial_deviation(self.logs)


def draw(design: WeakInstrumentDesign, rng: np.random.Generator) -> Moments:
    """Draw one log and return its moments, by episode too."""
    shape = (STEPS, EPISODES)
    z, e = rng.normal(size=(*shape, INSTRUMENTS)), rng.normal(size=shape)
    noise, x0 = rng.normal(size=shape), rng.normal(size=shape)
    if design.dependent:
        z = (z + rng.normal(size=(1, EPISODES, INSTRUMENTS))) / math.sqrt(2)
        e = (e + rng.normal(size=(1, EPISODES))) / math.sqrt(2)
    a = design.strength * z.sum(axis=2) + 0.9 * e + 0.4 * noise
    x, y = np.empty(shape), np.empty(shape)
    state = x0[0]
    for t in range(STEPS):
        x[t] = x0[t] if design.dependent else state
        y[t] = state = 0.5 * x[t] + EFFECT * a[t] + e[t]
    episode = np.broadcast_to(np.arange(EPISODES), shape)
    flat = [np.reshape(part, (STEPS * EPISODES, -1)) for part in (x, a, z, y)]
    batch = Batch(flat[0], flat[1], flat[2], flat[3], episode=episode.ravel())
    return Moments.of_batch(_layout(), batch, episodes=True)


def measure(
    design: WeakInstrumentDesign, logs: int, seed: int = 0, bar: Progress = no_bar
) -> WeakInstrumentCoverage:
    """Draw the logs of a design and count the intervals that hold the truth."""
    rng = np.random.default_rng([seed, DESIGNS.index(design)])
    strength, hits, unbounded = 0.0, np.zeros(len(INTERVALS)), np.zeros(len(INTERVALS))
    for _ in range(logs):
        moments = draw(design, rng)
        strength += first_stage(moments)[0].partial_f.value / logs
        intervals = list(_intervals(moments))
        hits += [holds for holds, _ in intervals]
        unbounded += [open_ended for _, open_ended in intervals]
        bar(1)
    return WeakInstrumentCoverage(
        design,
        logs,
        strength,
        dict(zip(INTERVALS, (hits / logs).tolist(), strict=True)),
        dict(zip(INTERVALS, (unbounded / logs).tolist(), strict=True)),
    )


def _intervals(moments: Moments) -> Iterator[tuple[bool, bool]]:
    """Yield, for each of INTERVALS, whether it holds the truth and whether it is unbounded."""
    effect = PartialledEffect.of(moments, "next_x", "a")
    scores = EffectScores.of_episodes(moments, effect)
    fit = Exact().solve(moments)
    at = moments.design.phi_names.index("a")
    yield abs(fit.W[0, at] - EFFECT) <= NORMAL_95 * fit.se[0, at], False
    for confidence_set in (anderson_rubin(effect), conditional_likelihood_ratio(effect)):
        yield EFFECT in confidence_set, confidence_set.kind in ("unbounded", "everything")
    theta, se = _clustered_wald(scores)
    yield abs(theta * effect.unit - EFFECT) <= NORMAL_95 * se * effect.unit, False
    clustered = robust_anderson_rubin(effect, scores, se="clustered")
    yield EFFECT in clustered, clustered.kind in ("unbounded", "everything")
    truth, infinity = np.array([1.0, -EFFECT / effect.unit]), np.array([0.0, 1.0])
    accepts, everywhere = (p_value(scores, b) >= 1 - LEVEL for b in (truth, infinity))
    yield accepts, everywhere  # the ends of the set are not needed


def _clustered_wald(scores: EffectScores) -> tuple[float, float]:
    """Two-stage estimate and its clustered standard error; the instruments are orthonormal."""
    y, x = scores.sums.T
    theta = float(x @ y / (x @ x))
    variance = x @ scores.variance(np.array([1.0, -theta])) @ x / (x @ x) ** 2
    return theta, math.sqrt(variance)


def _layout() -> Design:
    instruments = tuple(f"z{i}" for i in range(INSTRUMENTS))
    roles = Roles(("x",), ("a",), instruments, ("next_x",), None, None, None, None)
    return Design.build(linear(), linear(), roles)


def table(records: Sequence[WeakInstrumentCoverage]) -> str:
    """Return the coverages side by side; * marks those beyond three deviations of 95%."""
    head = f"{'instrument':<22}{'F':>7}" + "".join(f"{name:>16}" for name in INTERVALS)
    lines = []
    for r in records:
        cells = "".join(coverage_cell(r.coverage[name], r.logs, 16) for name in INTERVALS)
        lines.append(f"{r.design.name:<22}{r.first_stage:>7.1f}{cells}")
        if any(r.unbounded.values()):
            shares = (
                f"{r.unbounded[name]:>15.0%} " if r.unbounded[name] else " " * 16
                for name in INTERVALS
            )
            lines.append(f"{'  of them unbounded':<29}{''.join(shares)}")
    return coverage_table(head, lines, records[0].logs, f"{EPISODES} episodes of {STEPS} steps")


command = logs_command(
    "Measure how often intervals hold the truth with weak instruments.",
    DESIGNS,
    measure,
    table,
    1000,
)

if __name__ == "__main__":
    run_study(command)
