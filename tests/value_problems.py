"""Dynamics and rewards that several tests of value iteration plan with."""

SIMULATED = "quadratic:weight=0.05"


def nonlinear_mean(x, a):
    """Be the true transition of the nonlinear simulator."""
    xp = a.__array_namespace__()
    return xp.log(xp.abs(x - 1) + 1) - a / 2


def next_reward(x, a, x_next):
    return -(x_next[..., 0] ** 2) - 0.1 * a[..., 0] ** 2 + 0.3 * x[..., 0] * x_next[..., 0]


def walk_mean(x, a):
    """Walk on 0..5 and stay at the ends."""
    return a.__array_namespace__().clip(x + a, 0.0, 5.0)
