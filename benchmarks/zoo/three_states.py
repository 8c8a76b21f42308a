"""Worlds of three states: values that jump, and episodes that end."""

from __future__ import annotations

import numpy as np

import ivvi
from ivvi.features.feature_map import linear
from zoo.world import World


def jumps_mean(x, a):
    severity, drug, toxin = x.T
    return np.stack(
        [0.95 * severity + 0.5 - 0.8 * drug, 0.6 * drug + a[:, 0], 0.85 * toxin + 0.4 * drug],
        axis=1,
    )


def jumps_reward(x, a, x_next, h):
    """Being ill and being poisoned cost a fixed sum each, however ill and however poisoned."""
    return -4.0 * (x[..., 0] > 3) - 3.0 * (x[..., 2] > 2.2) - 0.4 * a[..., 0]


JUMPS = World(
    "jumps",
    "severity, the drug in the blood, a toxin that it leaves; costs are steps",
    jumps_mean,
    (0.4, 0.05, 0.15),
    lambda rng, n: np.stack([rng.uniform(0, high, n) for high in (6, 1, 2)], axis=1),
    jumps_reward,
    ivvi.Actions.binary(1),
    horizon=40,
    phi=linear(),
    habit=lambda x: 0.1 * x[:, :1],
    grid=((-8, 14, 111), (-0.4, 3.0, 35), (-1, 8, 61)),
)


def frailty_mean(x, a):
    health, drug, frailty = x.T
    return np.stack(
        [
            0.95 * health - 0.25 + 0.7 * drug - 0.15 * frailty,
            0.5 * drug + a[:, 0],
            0.97 * frailty + 0.12 * drug,
        ],
        axis=1,
    )


def frailty_reward(x, a, x_next, h):
    return 1.0 - 0.45 * a[..., 0]


def died(x):
    return x[..., 0] < 0.0


FRAILTY = World(
    "frailty",
    "health below zero is death; the drug works later and leaves one frail",
    frailty_mean,
    (0.6, 0.05, 0.1),
    lambda rng, n: np.stack(
        [rng.uniform(1, 4, n), rng.uniform(0, 0.5, n), rng.uniform(0, 1.5, n)], axis=1
    ),
    frailty_reward,
    ivvi.Actions.binary(1),
    horizon=60,
    discount=0.97,
    terminal=died,
    phi=linear(),
    habit=lambda x: 0.9 - 0.2 * x[:, :1],
    grid=((-4, 18, 221), (-0.3, 2.4, 28), (-1.0, 6, 43)),
)

THREE_STATES = (JUMPS, FRAILTY)
