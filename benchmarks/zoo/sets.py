"""Worlds with many things to choose from: subsets, catalogues, orders, machines."""

from __future__ import annotations

import numpy as np
from scipy.special import ndtr

import ivvi
from ivvi.features.feature_map import custom, linear
from ivvi.rewards import Quadratic
from zoo.world import World


def drawn(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


KEEP2 = np.array([[0.95, 0.1], [-0.1, 0.95]])
BUNDLE = np.round(1.2 * drawn(1, 2, 8), 2)
PRICES = np.linspace(0.1, 0.5, 8)


def bundle_mean(x, a):
    return x @ KEEP2.T + a @ BUNDLE.T + np.array([0.6, -0.4])


def bundle_reward(x, a, x_next, h):
    distance = (x**2).sum(axis=-1)
    return 3 / (1 + distance) - 0.02 * distance - (a @ PRICES)


SUBSETS8 = World(
    "subsets8",
    "any of 8 measures; a reward that is flat far away and peaked at the target",
    bundle_mean,
    (0.3, 0.3),
    lambda rng, n: rng.normal(scale=3, size=(n, 2)),
    bundle_reward,
    ivvi.Actions.binary(8),
    horizon=20,
    phi=linear(),
    grid=((-12, 12, 121), (-12, 12, 121)),
)

KEEP4 = np.eye(4) * 0.9 + np.diag([0.15] * 3, 1) - np.diag([0.1] * 3, -1)
PUSH16 = np.round(0.7 * drawn(2, 4, 16), 2)


def subsets16_mean(x, a):
    return x @ KEEP4.T + (a - 0.2) @ PUSH16.T


SUBSETS16 = World(
    "subsets16",
    "any of 16 measures on four states, quadratic costs",
    subsets16_mean,
    (0.3,) * 4,
    lambda rng, n: rng.normal(scale=3, size=(n, 4)),
    Quadratic((0.1,), (0.0,), (0.05,)),
    ivvi.Actions.binary(16),
    horizon=20,
    phi=linear(),
    solver="fitted",
)


def catalogue(name: str, items: int, width: int, seed: int) -> World:
    """Return a world in which one of many items, vectors of `width` numbers, moves four states."""
    push = np.round(drawn(seed, 4, width) / np.sqrt(width / 4), 2)
    rows = np.vstack([np.zeros(width), 1.5 * drawn(seed + 1, items - 1, width)]).round(3)

    def mean(x, a):
        return x @ KEEP4.T + a @ push.T + 0.3

    return World(
        name,
        f"one of {items:,} items of {width} numbers, four states, quadratic costs",
        mean,
        (0.4,) * 4,
        lambda rng, n: rng.normal(scale=4, size=(n, 4)),
        Quadratic((0.2,), (0.0,), (0.1,)),
        ivvi.Actions.finite(rows),
        horizon=20,
        phi=linear(),
        habit=lambda x: 0.0,
        wobble=1.0,
        solver="fitted",
    )


ITEMS300 = catalogue("items300", 300, 4, 10)
ITEMS3000 = catalogue("items3000", 3000, 6, 20)


def stock_mean(x, a):
    return x + a - 5.0


def stock_reward(x, a, x_next, h):
    left = x_next[..., 0]
    holding = 0.5 * (abs(left) + left) / 2
    missing = 4.0 * (abs(left) - left) / 2
    return -holding - missing - 8.0 * (a[..., 0] > 0) - 0.2 * a[..., 0]


INVENTORY = World(
    "inventory",
    "an order costs 8 however large: wait, then order much",
    stock_mean,
    (2.0,),
    lambda rng, n: rng.uniform(-5, 15, size=(n, 1)),
    stock_reward,
    ivvi.Actions.finite(np.arange(13)),
    horizon=50,
    phi=linear(),
    habit=lambda x: 8 - 0.6 * x,
    wobble=2.5,
    grid=((-120, 140, 2601),),
    uses_next=True,
)

WEAR = np.array([[0.7, 0.2, 0.1, 0.0], [0.0, 0.6, 0.3, 0.1], [0.0, 0.0, 0.6, 0.4], [0, 0, 0, 1.0]])
NEW = np.array([0.9, 0.1, 0.0, 0.0])
LOSS = np.array([0.3, 1.0, 4.0])  # of levels 1, 2, 3; level 0 loses nothing


def wear_chances(x, a):
    """Return the chances of the four levels, (n, 4)."""
    now = np.column_stack([1 - x.sum(axis=1), x])
    return (1 - a) * (now @ WEAR) + a * NEW


def wear_mean(x, a):
    return wear_chances(x, a)[:, 1:]


def wear_draw(x, a, e):
    """Hidden stress e wears the machine, and makes people replace it."""
    below = np.cumsum(wear_chances(x, a), axis=1)[:, :-1]
    level = (ndtr(e) > below).sum(axis=1)
    return np.eye(4)[level][:, 1:]


def wear_reward(x, a, x_next, h):
    return -(x @ LOSS) - 2.0 * a[..., 0]


def products(x, a):
    return x * a


MACHINE = World(
    "machine",
    "four levels of wear as indicators, replace or not",
    wear_mean,
    (0.0,) * 3,
    lambda rng, n: np.eye(4)[rng.integers(4, size=n)][:, 1:],
    wear_reward,
    ivvi.Actions.binary(1),
    horizon=40,
    phi=linear() + custom(products, ("x0*a", "x1*a", "x2*a")),
    draw=wear_draw,
    solver="levels",
)


def mixed_mean(x, a):
    flow, switch = a[:, 0], a[:, 1]
    heat = 0.9 * x[:, 0] + 0.6 * flow + 1.5 * switch - 0.3
    return np.stack([heat, 0.8 * x[:, 1] + 0.4 * flow - 1.2 * switch + 0.2 * x[:, 0]], axis=1)


MIXED = World(
    "mixed",
    "a valve in [-1, 1] and a switch, two states",
    mixed_mean,
    (0.3, 0.3),
    lambda rng, n: rng.normal(scale=3, size=(n, 2)),
    Quadratic((0.2, 0.3), (1.0, 0.0), (0.05, 0.2)),
    ivvi.Actions.product(ivvi.Actions.box(-1, 1), ivvi.Actions.binary(1)),
    horizon=30,
    phi=linear(),
    grid=((-16, 22, 191), (-18, 18, 181)),
    levels=21,
)

SETS = (SUBSETS8, SUBSETS16, ITEMS300, ITEMS3000, MACHINE, INVENTORY, MIXED)
