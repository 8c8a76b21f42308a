"""How fast each planner plans and decides, compilation apart.

    python benchmarks/planning.py

The first table runs whole episodes of the linear simulator, k = 20, 64 episodes of 1,000 steps,
with the default policy. The second counts decisions per second of each planner on 4,096 states.
Times are processor seconds; the machine's own speed is told by a matrix product beside them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import ivvi

REWARD = "quadratic:weight=0.05"
STATES = 4096


def cpu(work: Callable[[], Any]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def model_of(name: str, dim: int, word: str) -> tuple[Any, Any]:
    env = ivvi.make_env(name, dim=dim)
    return env, ivvi.estimate(env.collect(seed=0), word).model


def episodes() -> None:
    env, model = model_of("linear", 20, "linear")
    policy = ivvi.plan(model, REWARD, (-1, 1), horizon=1000)
    work = lambda: env.rollout(policy, episodes=64, horizon=1000, seed=0)  # noqa: E731
    first, second = cpu(work), cpu(work)
    print("linear k = 20, 64 episodes x 1,000 steps, default policy")
    print(f"  with compilation   {first:8.2f} CPU s")
    print(f"  after compilation  {second:8.2f} CPU s   ({64_000 / second:,.0f} decisions a second)")


def decisions() -> None:
    cases = [
        ("linear", 5, "linear", "mpc (quadratic program)", ivvi.MPC()),
        ("linear", 20, "linear", "mpc (quadratic program)", ivvi.MPC()),
        ("nonlinear", 1, "spline:16", "mpc (Newton)", ivvi.MPC()),
        ("nonlinear", 3, "poly2", "mpc (Newton)", ivvi.MPC()),
        ("nonlinear", 1, "poly2", "value-iteration (grid)", ivvi.ValueIteration()),
        ("nonlinear", 1, "poly2", "spede", ivvi.SPEDE()),
    ]
    print(f"\n{'case':<32}{'planner':<26}{'planning':>10}{'compile':>10}{'decisions/s':>14}")
    for name, dim, word, label, planner in cases:
        decide(name, dim, word, label, planner)


def decide(name: str, dim: int, word: str, label: str, planner: Any) -> None:
    env, model = model_of(name, dim, word)
    started = time.process_time()
    policy = ivvi.plan(model, REWARD, (-1, 1), horizon=env.world.horizon, method=planner)
    planning = time.process_time() - started
    x = np.resize(model.states, (STATES, len(model.state)))
    first, second = cpu(lambda: policy(x)), cpu(lambda: policy(x))
    case, rate = f"{name} k = {dim}, {word}", STATES / second
    print(f"{case:<32}{label:<26}{planning:>9.1f}s{first - second:>9.1f}s{rate:>14,.0f}")


def limit() -> None:
    A = np.random.default_rng(0).normal(size=(2000, 2000))
    took = cpu(lambda: A @ A)
    print(f"\na 2,000 x 2,000 matrix product here: {took:.2f} CPU s")


if __name__ == "__main__":
    episodes()
    decisions()
    limit()
