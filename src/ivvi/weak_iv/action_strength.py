"""How strong the instruments are for each action, by the features that contain it.

An action may enter several features: itself, its square, its products with states, splines or a
user's function. The instruments are as strong for it as for the feature that they explain least,
given all the others: the smallest of Sanderson and Windmeijer's conditional F.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ivvi._io.arrays import Floats
from ivvi.diagnostics.first_stage import FirstStage
from ivvi.diagnostics.statistic import Statistic
from ivvi.diagnostics.verdict import thresholds
from ivvi.errors import InputError
from ivvi.features.design import Design
from ivvi.features.feature_map import FeatureMap
from ivvi.logs import Batch
from ivvi.weak_iv.robust_effect_intervals import RobustIntervals

PROBES = 64
"""Rows at which features are looked at with one action changed."""


@dataclass(frozen=True, slots=True)
class ActionStrength:
    """The strength of the instruments for one action.

    Attributes
    ----------
    action, features
        Its name, and those of the endogenous features that contain it.
    weakest
        The feature that the instruments explain least.
    f
        Its conditional F, under the standard errors asked for.
    word
        ``strong``, ``doubtful`` or ``weak``; strong only where the robust intervals of its
        effects agree with Wald's.
    """

    action: str
    features: tuple[str, ...]
    weakest: str
    f: float
    word: str

    def to_json(self) -> dict[str, Any]:
        """Describe the strength with JSON values."""
        return {
            "features": list(self.features),
            "weakest_feature": self.weakest,
            "f": self.f,
            "verdict": self.word,
        }


def strength_by_action(
    stages: Sequence[FirstStage],
    robust: RobustIntervals,
    design: Design,
    actions: Sequence[str],
    contains: NDArray[np.bool_],
) -> tuple[ActionStrength, ...]:
    """Judge each action by its features; `contains` (d_a, d_phi) says which hold it."""
    strengths = []
    for action, holds in zip(actions, contains, strict=True):
        names = {name for name, one in zip(design.phi_names, holds, strict=True) if one}
        tests = {s.feature: t for s in stages if s.feature in names and (t := _test(s))}
        if not tests:
            continue
        weakest = min(tests, key=lambda name: tests[name].value)
        value, instruments = tests[weakest].value, tests[weakest].df[0]
        strong, weak, _ = thresholds(1, instruments)
        word = "strong" if value >= strong else "doubtful" if value >= weak else "weak"
        own = [interval for (_, name), interval in robust.intervals.items() if name in tests]
        if word == "strong" and not all(interval.agrees for interval in own):
            word = "doubtful"
        if not all(interval.bounded for interval in own):
            word = "weak"
        strengths.append(ActionStrength(action, tuple(tests), weakest, value, word))
    return tuple(strengths)


def holding(phi: FeatureMap, d_x: int, d_a: int, head: Batch | None) -> NDArray[np.bool_]:
    """Return which features change with which action, (d_a, d_phi).

    Each action is changed in turn to that of another row of `head`, or of random ones.
    """
    x, a = _probes(d_x, d_a, head)
    shifts = [max(shift, 1) for shift in (1, len(a) // 3, len(a) // 2)]
    x, a, order = np.tile(x, (3, 1)), np.tile(a, (3, 1)), np.arange(len(a))
    rolled = np.concatenate([np.roll(order, shift) for shift in shifts])
    before = _values(phi, x, a)
    features = np.zeros((d_a, before.shape[1]), dtype=bool)
    for j in range(d_a):
        other = a.copy()
        other[:, j] = a[rolled, j]
        after = _values(phi, x, other)
        features[j] = ~np.all((before == after) | (np.isnan(before) & np.isnan(after)), axis=0)
    return features


def _test(stage: FirstStage) -> Statistic | None:
    """Return the conditional F, robust where it was asked for, or the plain one."""
    return stage.robust_conditional_f or stage.conditional_f


def _probes(d_x: int, d_a: int, head: Batch | None) -> tuple[Floats, Floats]:
    if head is not None:
        at = np.unique(np.linspace(0, len(head) - 1, PROBES).astype(int))
        return np.array(head.x[at]), np.array(head.a[at])
    rng = np.random.default_rng(0)
    return rng.normal(size=(PROBES, d_x)), rng.normal(size=(PROBES, d_a))


def _values(phi: FeatureMap, x: Floats, a: Floats) -> Floats:
    with np.errstate(all="ignore"):
        values: Floats = np.asarray(phi(x, a), dtype=np.float64)
    if values.ndim != 2:
        raise InputError(
            f"phi returned an array of shape {values.shape}; expected rows of features"
        )
    return values
