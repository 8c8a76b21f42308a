"""Policies from one confounded log: ours, and those of d3rlpy, with the same processor time.

In an environment of its own, because d3rlpy pins its neighbours and brings torch:

    python -m venv rivals
    rivals/bin/pip install . d3rlpy
    rivals/bin/python benchmarks/rivals.py --seconds 60 --json rivals.json --plot rivals.png

Every learner gets the same rows (states, actions, rewards, next states); ours the instrument too.
The same is done with an honest log, in which nobody saw the shock: a learner that does well there
and badly here is misled by confounding, not by its settings. All policies then act in the same
unconfounded world, with the same noise; actions are clipped to the world's box.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import logging
import platform
import time
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np

import ivvi
from ivvi.errors import IvviWarning

DIM, SETTING, HORIZON, EPISODES = 5, "I", 200, 64
REWARD = "quadratic:weight=0.05"
WEIGHT = 0.05
RIVALS = ("BC", "CQL", "IQL", "TD3PlusBC")


def make_worlds() -> dict[str, ivvi.ConfoundedEnv]:
    """Return the paper's world, and the same one with a behaviour that sees another shock."""
    world = ivvi.make_env("linear", dim=DIM, setting=SETTING).world

    def honest(key: Any, x: Any, z: Any, e: Any) -> Any:
        ours, others = jax.random.split(key)
        return world.behaviour(ours, x, z, world.confounder(others))

    blind = dataclasses.replace(world, behaviour=honest)
    return {"confounded": ivvi.ConfoundedEnv(world), "honest": ivvi.ConfoundedEnv(blind)}


def plan_ours(log: ivvi.Log) -> dict[str, tuple[Any, float]]:
    """Estimate and plan, with the instrument and without; with the seconds that each took."""
    policies = {}
    for name, method in (("ivvi", "exact"), ("least squares + planner", "least-squares")):
        started = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", IvviWarning)
            model = ivvi.estimate(log, method=method).model
        policy = ivvi.plan(model, REWARD, (-1, 1), horizon=HORIZON)
        policy([0.0] * DIM)
        policies[name] = (policy, time.process_time() - started)
    return policies


def make_dataset(log: ivvi.Log, horizon: int) -> Any:
    """Return the log as d3rlpy wants it; the reward is that of the task, and known to all."""
    from d3rlpy.dataset import MDPDataset

    rows = log.to_batch()
    reward = -WEIGHT * (rows.x**2).sum(axis=1)
    ends = (np.arange(len(reward)) + 1) % horizon == 0
    return MDPDataset(
        rows.x.astype(np.float32),
        rows.a.astype(np.float32),
        reward.astype(np.float32)[:, None],
        np.zeros(len(reward)),
        ends.astype(float),
    )


def train_rival(name: str, dataset: Any, seconds: float, seed: int) -> tuple[Any, float, int]:
    """Train one algorithm of d3rlpy with its defaults for some processor seconds."""
    import d3rlpy

    d3rlpy.seed(seed)
    settings: dict[str, Any] = {
        "observation_scaler": d3rlpy.preprocessing.StandardObservationScaler(),
        "action_scaler": d3rlpy.preprocessing.MinMaxActionScaler(),
    }
    if name != "BC":
        settings["reward_scaler"] = d3rlpy.preprocessing.StandardRewardScaler()
    algo = getattr(d3rlpy.algos, f"{name}Config")(**settings).create(device="cpu:0")
    started, steps = 0.0, 0
    for _ in algo.fitter(
        dataset,
        n_steps=10**9,
        n_steps_per_epoch=100,
        show_progress=False,
        logger_adapter=d3rlpy.logging.NoopAdapterFactory(),
    ):
        if not steps:  # scalers and networks are ready: the clock starts
            started = time.process_time()
        steps += 100
        if time.process_time() - started > seconds:
            break
    return algo, time.process_time() - started, steps


def as_policy(algo: Any) -> Any:
    """Return a function of states whose actions lie in the box."""

    def act(x: Any) -> np.ndarray:
        chosen = algo.predict(np.asarray(x, dtype=np.float32))
        return np.clip(np.asarray(chosen, dtype=np.float64), -1.0, 1.0)

    return act


def compete(seconds: float, seed: int, rivals: tuple[str, ...]) -> dict[str, Any]:
    """Return, for each log, what every policy earns and how long it took to learn it."""
    import structlog
    import torch

    torch.set_num_threads(1)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    results: dict[str, Any] = {}
    for kind, env in make_worlds().items():
        log = env.collect(seed=seed)
        policies: dict[str, Any] = {}
        effort: dict[str, Any] = {}
        for name, (policy, spent) in plan_ours(log).items():
            policies[name], effort[name] = policy, {"seconds": spent, "steps": None}
        dataset = make_dataset(log, env.world.horizon)
        for name in rivals:
            algo, spent, steps = train_rival(name, dataset, seconds, seed)
            policies[name], effort[name] = as_policy(algo), {"seconds": spent, "steps": steps}
            print(f"{kind}: {name} trained for {spent:.0f} s, {steps:,} steps", flush=True)
        evaluation = ivvi.evaluate(
            policies, env, against=("optimal", "zero"), horizon=HORIZON, episodes=EPISODES
        )
        print(evaluation.summary(), flush=True)
        results[kind] = {"effort": effort, "evaluation": evaluation.to_json()}
    return results


def versions() -> dict[str, str]:
    names = ("ivvi", "d3rlpy", "torch", "jax", "numpy")
    known = {"python": platform.python_version()}
    for name in names:
        try:
            known[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            known[name] = ivvi.__version__ if name == "ivvi" else "missing"
    return known


def draw(results: dict[str, Any], target: Path) -> None:
    """Draw the cost of an episode for each policy and each log."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.6), layout="constrained")
    axes = figure.subplots(1, 2, sharex=True, sharey=True)
    worst = results["confounded"]["evaluation"]["policies"]
    names = sorted(worst, key=lambda name: worst[name]["return"]["mean"])
    for axis, (kind, result) in zip(axes, results.items(), strict=True):
        returns = [result["evaluation"]["policies"][name]["return"] for name in names]
        for name, value in zip(names, returns, strict=True):
            colour = "#1d4ed8" if name == "ivvi" else "#4b5563"
            axis.errorbar(-value["mean"], name, xerr=1.96 * value["se"], fmt="o", color=colour)
        axis.grid(axis="y", color="#e5e7eb")
        axis.set_title(f"{kind} log", fontsize=11)
        axis.set_xlabel("cost of an episode (less is better)")
        axis.set_xscale("log")
        axis.set_xticks([100, 200, 500, 1000], ["100", "200", "500", "1,000"])
        axis.minorticks_off()
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(target, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="processor time of each rival")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rivals", default=",".join(RIVALS))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    asked = parser.parse_args()
    rivals = tuple(filter(None, asked.rivals.split(",")))
    results = compete(asked.seconds, asked.seed, rivals)
    print(versions())
    for kind, result in results.items():
        for name, effort in result["effort"].items():
            print(f"{kind:12}{name:26}{effort['seconds']:8.1f} CPU s  {effort['steps'] or ''}")
    if asked.json:
        document = {"versions": versions(), "seconds": asked.seconds, **results}
        asked.json.write_text(json.dumps(document, indent=2))
    if asked.plot:
        draw(results, asked.plot)


if __name__ == "__main__":
    main()
