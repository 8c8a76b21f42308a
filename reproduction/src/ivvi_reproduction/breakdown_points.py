"""Breakdown points compared with brute force: logs with as much invalidity as these predict.

Run it with ``python -m ivvi_reproduction.breakdown_points``. In the linear world z0 gets a direct
effect delta on x0'. For a gain, delta is increased until the policy learned from such a log earns
no more than its rival, in the simulator; the breakdown point is then computed from that log alone.
For the recommended action, delta is increased until the plan of such a log has the other sign; the
breakdown point is computed from a log without any direct effect.

Both sides use one log, and brute force compares it with the truth: the sampling error of a log of n
rows moves their ratio by about 1 / (rho sqrt(n)), where rho is the correlation of z with the error.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ivvi._io.arrays import Array
from ivvi.dynamics.gym_env import one_of
from ivvi.dynamics.rollout import roll_out
from ivvi.errors import InputError, IvviWarning
from ivvi.fitting import Fit, estimate
from ivvi.policy.plan import plan
from ivvi.policy.policy import Policy
from ivvi.sensitivity_analysis import sensitivity
from ivvi.simulators import ConfoundedEnv, World, gaussian, linear_world
from ivvi.simulators.synthetic import LINEAR_Z
from ivvi_reproduction.study import Force, Json, Seed, check, measure_each, run_study, tell

REWARD = "quadratic:weight=0.05"
BOX = (-4, 4)
HORIZON, EPISODES, STEPS, RUNS = 20, 500, 500, 4096
TOLERANCE = 1e-3
"""Tolerance of the direct effect found by brute force, in standard deviations of the noise."""
STATE = 2.0
"""The value of every coordinate of the state in which the recommended action is compared."""
QUESTIONS = ("gain over zero", "gain over behaviour", "action")
CASES = tuple((q, d, s) for q in QUESTIONS for d in (1, 2) for s in ("I", "III"))


@dataclass(frozen=True, slots=True)
class BreakdownComparison:
    """One comparison: the direct effect of one standard deviation of z0 at the breakdown."""

    question: str
    dim: int
    setting: str
    brute_force: float
    breakdown: float
    share: float
    correlation: float

    @property
    def ratio(self) -> float:
        """The breakdown point divided by that of brute force."""
        return self.breakdown / self.brute_force

    @property
    def error(self) -> float:
        """The approximate standard error of the ratio, from the sampling error of one log."""
        return 1 / (self.correlation * math.sqrt(EPISODES * STEPS))


@dataclass(frozen=True, eq=False)
class Doubtful:
    """The linear world with a direct effect of z0 on x0', and the policies learned in it."""

    dim: int
    setting: str
    seed: int = 0

    def world(self, delta: float) -> World:
        """Return the world; delta is the direct effect of one unit of z0 on x0'."""
        push = np.zeros((self.dim, self.dim))
        push[0, 0] = delta
        usual = linear_world(self.dim, self.setting)
        return replace(usual, direct=lambda z: jnp.asarray(push) @ z, initial=one_of(self.starts))

    @property
    def starts(self) -> np.ndarray:
        """First states of all episodes, the same for everyone."""
        return 2 * np.random.default_rng(1).normal(size=(256, self.dim))

    def learn(self, delta: float) -> tuple[Fit, Policy]:
        """Fit a log of this world, and plan with the fit."""
        env = ConfoundedEnv(self.world(delta))
        fit = estimate(env.collect(EPISODES, STEPS, self.seed))
        return fit, plan(fit.model, REWARD, BOX, horizon=HORIZON, method="mpc", compare=False)

    def true_gain(self, rival: str, delta: float) -> float:
        """Return the gain of the policy of such a log over a rival, in the simulator.

        There z keeps its distribution. For the policy its direct effect is additional noise; for
        behaviour it comes with the action.
        """
        policy, world = self.learn(delta)[1], self.world(delta)
        noise = world.noise_cov.copy()
        noise[0, 0] += delta**2 * LINEAR_Z[self.setting]
        noisy = replace(world, noise=gaussian(noise))
        of_policy = self._mean_return(noisy, lambda x: policy(x))
        if rival == "behaviour":
            return of_policy - self._behaviours(world)
        return of_policy - self._mean_return(noisy, lambda x: np.zeros((len(x), self.dim)))

    def _mean_return(self, world: World, policy: Any) -> float:
        rollout = roll_out(world, policy, episodes=RUNS, horizon=HORIZON, seed=5)
        return float(rollout.returns.mean())

    def _behaviours(self, world: World) -> float:
        """Return the return of behaviour with an independent confounder, and z's direct effect."""

        def behaviour(key: Array, x: Array, z: Array, e: Array) -> Array:
            of_action, of_e = jax.random.split(key)
            return world.behaviour(of_action, x, z, world.confounder(of_e))

        unaided = replace(world, behaviour=behaviour)
        with jax.enable_x64(True):
            keys = jax.random.split(jax.random.key(5), RUNS)
            rewards = jax.jit(jax.vmap(lambda key: unaided.observe(key, HORIZON)[3]))(keys)
            return float(rewards.sum(axis=1).mean())

    def first_action(self, delta: float) -> float:
        """Return the first coordinate of the action that such a log recommends."""
        return float(self.learn(delta)[1](np.full(self.dim, STATE))[0])


def measure(question: str, dim: int, setting: str, seed: int = 0) -> BreakdownComparison:
    """Return the breakdown by brute force, and from one log."""
    case = Doubtful(dim, setting, seed)
    spread = np.sqrt(LINEAR_Z[setting])
    settings: dict[str, Any] = {"draws": 0, "seed": seed}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IvviWarning)
        if question != "action":  # the log understates the effect of the action
            rival = question.removeprefix("gain over ")
            delta = root(partial(case.true_gain, rival), 1.0 / spread)
            fit, policy = case.learn(delta)
            settings |= {"violations": ("+z0:x0",), "starts": case.starts, "against": (rival,)}
            result = sensitivity(policy, fit, **settings, episodes=1024)
        else:
            delta = root(case.first_action, 1.0 / spread)
            fit, policy = case.learn(0.0)
            settings |= {"violations": ("-z0:x0",), "states": np.full((1, dim), STATE)}
            result = sensitivity(policy, fit, **settings)
    size = result.breakdowns[-1].size
    if size is None:
        raise InputError(f"no breakdown of the {question} was found")
    brute, unit = abs(delta) * spread, (size.direct[0], size.share[0], size.correlation[0])
    return BreakdownComparison(question, dim, setting, float(brute), *unit)


def root(function: Callable[[float], float], end: float) -> float:
    """Return the first change of sign, towards `end`, of a function that is positive at 0."""
    from scipy.optimize import brentq

    cached = cache(lambda share: function(share * end))
    grid = [0.0, 0.125, 0.25, 0.5, 1.0]
    lost = next((i for i, share in enumerate(grid) if cached(share) <= 0), None)
    if lost is None or lost == 0:
        raise InputError("the conclusion does not change between 0 and the largest direct effect")
    return end * float(brentq(cached, grid[lost - 1], grid[lost], xtol=TOLERANCE))


def table(records: Iterable[BreakdownComparison]) -> str:
    """Return the comparisons as a text table."""
    lines = [
        f"{'what is lost':<21}{'k':>3} {'setting':<9}{'brute force':>12}{'breakdown':>11}"
        f"{'ratio':>8}{'+-':>7}{'share':>8}{'rho':>7}"
    ]
    for r in records:
        lines.append(
            f"{r.question:<21}{r.dim:>3} {r.setting:<9}{r.brute_force:>12.3f}{r.breakdown:>11.3f}"
            f"{r.ratio:>8.3f}{r.error:>7.3f}{r.share:>8.0%}{r.correlation:>7.2f}"
        )
    return "\n".join(lines)


def command(
    seed: Seed = 0,
    json: Json = None,
    force: Force = False,
) -> None:
    """Compare breakdown points with brute force."""
    check(json, force)
    records = measure_each("cases", CASES, lambda case: measure(*case, seed))
    tell(table(records), [asdict(r) | {"ratio": r.ratio} for r in records], json, force)


if __name__ == "__main__":
    run_study(command)
