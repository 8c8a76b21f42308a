"""Stable-Baselines3 inside the estimated world: its policy, and what it earns in the true one.

    python -m venv rivals
    rivals/bin/pip install . stable-baselines3
    rivals/bin/python benchmarks/stable_baselines.py --seconds 60

PPO trains for some processor seconds in ``model.as_env`` of two models of one confounded log: with
the instrument, and by least squares. What it learns is as good as the world in which it learns.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import time
import warnings
from typing import Any

import numpy as np

import ivvi
from ivvi.errors import IvviWarning

DIM, HORIZON = 2, 50
REWARD = "quadratic:weight=0.05"


def train(model: Any, seconds: float, seed: int) -> tuple[Any, int]:
    """Train PPO in the model until the time is up; return its policy and the steps taken."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_checker import check_env

    torch.set_num_threads(1)
    started = time.process_time()

    class Clock(BaseCallback):
        def _on_step(self) -> bool:
            return time.process_time() - started < seconds

    world = model.as_env(REWARD, (-1, 1), starts=[[10.0] * DIM], horizon=HORIZON)
    check_env(world, warn=False)
    learner = PPO("MlpPolicy", world, seed=seed, device="cpu", n_steps=1000, batch_size=100)
    learner.learn(10**9, callback=Clock())

    def act(x: Any) -> np.ndarray:
        chosen, _ = learner.predict(np.asarray(x), deterministic=True)
        return np.asarray(chosen, dtype=np.float64)

    return act, learner.num_timesteps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="processor time of each run")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    env = ivvi.make_env("linear", dim=DIM)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IvviWarning)
        fit = ivvi.estimate(env.collect(episodes=40, horizon=500, seed=asked.seed))
    policies: dict[str, Any] = {
        "mpc, instrument": ivvi.plan(fit.model, REWARD, (-1, 1), horizon=HORIZON)
    }
    for name, model in (("instrument", fit.model), ("least squares", fit.baseline_model)):
        policies[f"PPO, {name}"], steps = train(model, asked.seconds, asked.seed)
        print(f"PPO in the model {name}: {steps:,} steps")
    print(ivvi.evaluate(policies, env, against=("optimal", "zero"), horizon=HORIZON).summary())
    names = ("stable-baselines3", "torch", "gymnasium")
    print({name: importlib.metadata.version(name) for name in names})


if __name__ == "__main__":
    main()
