"""Worlds of patients: one or two yes-or-no treatments that cost something."""

from __future__ import annotations

import numpy as np

import ivvi
from ivvi.features.blocks import Constant, Power
from ivvi.features.feature_map import FeatureMap, linear
from zoo.world import World

CUBIC = FeatureMap((Constant(), *(Power(d, "state") for d in (1, 2, 3)), Power(1, "input")))
"""[1, x, x^2, x^3, a]."""


def threshold_mean(x, a):
    return 0.8 * x + 1.5 - 3.0 * a


def threshold_reward(x, a, x_next, h):
    return -0.05 * x[..., 0] ** 2 - 2.0 * a[..., 0]


THRESHOLD = World(
    "threshold",
    "one state, a treatment with a large effect: optimal above a threshold",
    threshold_mean,
    (0.5,),
    lambda rng, n: rng.uniform(0, 10, size=(n, 1)),
    threshold_reward,
    ivvi.Actions.binary(1),
    horizon=30,
    phi=linear(),
    habit=lambda x: 0.1 * x - 0.1,
    grid=((-12, 14, 2001),),
)


def delayed_mean(x, a):
    severity, drug = x[:, 0], x[:, 1]
    return np.stack([0.97 * severity + 0.6 - 0.9 * drug, 0.7 * drug + a[:, 0]], axis=1)


def delayed_reward(x, a, x_next, h):
    return -0.1 * x[..., 0] ** 2 - 0.3 * a[..., 0]


DELAYED = World(
    "delayed",
    "severity and the drug in the blood: what is given works later",
    delayed_mean,
    (0.4, 0.05),
    lambda rng, n: np.stack([rng.uniform(0, 8, n), rng.uniform(0, 1, n)], axis=1),
    delayed_reward,
    ivvi.Actions.binary(1),
    horizon=40,
    phi=linear(),
    habit=lambda x: 0.1 * x[:, :1],
    grid=((-45, 25, 361), (-0.5, 3.9, 89)),
)


def bistable_mean(x, a):
    return x + 0.4 * (x - x**3) - 0.7 * a + 0.15


def bistable_reward(x, a, x_next, h):
    return -0.5 * (x[..., 0] + 1) ** 2 - 0.5 * a[..., 0]


BISTABLE = World(
    "bistable",
    "two basins: some treatments carry a patient over to the good one",
    bistable_mean,
    (0.25,),
    lambda rng, n: rng.uniform(-0.2, 1.3, size=(n, 1)),
    bistable_reward,
    ivvi.Actions.binary(1),
    horizon=40,
    phi=CUBIC,
    habit=lambda x: 0.4,
    grid=((-2.3, 2.3, 1001),),
)


def survival_mean(x, a):
    return 0.95 * x - 0.15 + 0.8 * a


def survival_reward(x, a, x_next, h):
    return 1.0 - 0.45 * a[..., 0]


def died(x):
    return x[..., 0] < 0.0


SURVIVAL = World(
    "survival",
    "health below zero is death; treatment is a burden",
    survival_mean,
    (0.8,),
    lambda rng, n: rng.uniform(0.5, 4, size=(n, 1)),
    survival_reward,
    ivvi.Actions.binary(1),
    horizon=60,
    discount=0.97,
    terminal=died,
    phi=linear(),
    habit=lambda x: 0.9 - 0.2 * x,
    grid=((-8, 22, 3001),),
)


def dosing_mean(x, a):
    pressure, kidney = x[:, 0], x[:, 1]
    first, second = a[:, 0], a[:, 1]
    return np.stack(
        [0.9 * pressure + 1.0 - 1.8 * first - 1.0 * second, 0.8 * kidney + 0.9 * first], axis=1
    )


def dosing_reward(x, a, x_next, h):
    harm = 0.2 * x[..., 0] ** 2 + 0.3 * x[..., 1] ** 2
    return -harm - 0.4 * a[..., 0] - 1.2 * a[..., 1]


DOSING = World(
    "dosing",
    "two treatments: the cheap one harms the kidneys, the other is dear",
    dosing_mean,
    (0.6, 0.3),
    lambda rng, n: np.stack([rng.uniform(0, 8, n), rng.uniform(0, 2, n)], axis=1),
    dosing_reward,
    ivvi.Actions.binary(2),
    horizon=30,
    phi=linear(),
    grid=((-24, 20, 221), (-3, 8, 111)),
)

TREATMENTS = (THRESHOLD, DELAYED, BISTABLE, SURVIVAL, DOSING)
