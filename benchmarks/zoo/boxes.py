"""Worlds with a box of actions: oscillators, a pendulum, the paper's nonlinear world."""

from __future__ import annotations

import numpy as np

import ivvi
from ivvi.features.feature_map import custom, linear, polynomial
from ivvi.rewards import Quadratic
from zoo.world import World


def van_der_pol_mean(x, a):
    place, speed = x[:, 0], x[:, 1]
    force = 1.5 * (1 - place**2) * speed - place + 1.5 * a[:, 0]
    return np.stack([place + 0.1 * speed, speed + 0.1 * force], axis=1)


VAN_DER_POL = World(
    "van-der-pol",
    "an oscillator that will not rest, steps of 0.1",
    van_der_pol_mean,
    (0.05, 0.1),
    lambda rng, n: rng.uniform(-2, 2, size=(n, 2)),
    Quadratic((0.5, 0.02), (0.0,), (0.02,)),
    ivvi.Actions.box(-1, 1),
    horizon=60,
    phi=polynomial(3, cross=True),
    features="poly3:cross",
    habit=lambda x: 0.0,
    grid=((-3.4, 3.4, 171), (-5.6, 5.6, 161)),
    levels=31,
)


def pendulum_mean(x, a):
    angle, speed = x[:, 0], x[:, 1]
    faster = speed + 0.15 * (-5 * np.sin(angle) - 0.1 * speed + 2.5 * a[:, 0])
    return np.stack([angle + 0.15 * faster, faster], axis=1)


def sine(x, a):
    return x.__array_namespace__().sin(x[..., :1])


def pendulum_reward(x, a, x_next, h):
    height = x.__array_namespace__().cos(x[..., 0])
    return -(1 + height) - 0.02 * x[..., 1] ** 2 - 0.02 * a[..., 0] ** 2


PENDULUM = World(
    "pendulum",
    "swing up and hold, with a motor that is too weak to lift at once",
    pendulum_mean,
    (0.02, 0.1),
    lambda rng, n: rng.normal(scale=(0.3, 0.3), size=(n, 2)),
    pendulum_reward,
    ivvi.Actions.box(-1, 1),
    horizon=60,
    phi=linear() + custom(sine, ("sin(x0)",)),
    habit=lambda x: 0.4 * np.sign(x[:, 1:]),
    grid=((-7, 7, 281), (-8, 8, 161)),
    levels=21,
)


def bend(x, a):
    """ln(|x - 1| + 1) of each state."""
    xp = x.__array_namespace__()
    return xp.log(abs(x - 1) + 1)


def paper_mean(x, a):
    return np.log(np.abs(x - 1) + 1) - a / 2


def paper_world(k: int) -> World:
    """Return section 5.2 of the paper, setting I, with episodes of 100 steps."""
    return World(
        f"paper{k}",
        f"the paper's nonlinear world, k = {k}",
        paper_mean,
        (1.0,) * k,
        lambda rng, n: np.zeros((n, k)),
        Quadratic((0.05,)),
        ivvi.Actions.box(-1, 1, dim=k),
        horizon=100,
        phi=linear() + custom(bend, tuple(f"bend(x{i})" for i in range(k))),
        features="spline:16",
        habit=lambda x: 0.0,
        wobble=1.0,
        grid=((-12, 12, 1201),) * k,
        solver="grid" if k == 1 else "separable",
    )


UNSTABLE_P = np.array([[1.1, 0.3], [0.0, 1.05]])
UNSTABLE_Q = np.array([[0.0, 0.5], [1.0, 0.2]])


def unstable_mean(x, a):
    return x @ UNSTABLE_P.T + a @ UNSTABLE_Q.T


UNSTABLE = World(
    "unstable",
    "linear, explodes when left alone, a wide box",
    unstable_mean,
    (0.3, 0.3),
    lambda rng, n: rng.normal(scale=2, size=(n, 2)),
    Quadratic((0.2,), (0.0,), (0.1,)),
    ivvi.Actions.box(-25, 25, dim=2),
    horizon=60,
    phi=linear(),
    habit=lambda x: -0.8 * x @ np.array([[0.2, 0.9], [0.6, 0.3]]).T,
    solver="riccati",
)


def ridge_mean(x, a):
    return 0.9 * x + 0.2 * np.sin(x) + 0.7 * a


def ridge_features(x, a):
    """Sin x, and the two hills of the reward."""
    xp = x.__array_namespace__()
    hills = [xp.exp(-((x - 3.5) ** 2)), xp.exp(-((x + 3) ** 2) / 2)]
    return xp.concatenate([xp.sin(x), *hills], axis=-1)


def ridge_reward(x, a, x_next, h):
    features = ridge_features(x, a)
    return 3.0 * features[..., 1] + 1.0 * features[..., 2] - 0.1 * a[..., 0]


SPLINE = World(
    "spline",
    "a learned reward that still rises where the log ends, and falls beyond",
    ridge_mean,
    (0.3,),
    lambda rng, n: rng.normal(scale=1.0, size=(n, 1)),
    ridge_reward,
    ivvi.Actions.box(-1, 1),
    horizon=40,
    phi=linear() + custom(ridge_features, ("sin", "hill", "other hill")),
    features="spline:8",
    habit=lambda x: -0.5 * x,
    grid=((-12, 12, 1201),),
    learned=True,
)

BOXES = (VAN_DER_POL, PENDULUM, paper_world(1), paper_world(3), UNSTABLE, SPLINE)
