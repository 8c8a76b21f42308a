"""Regret of SPEDE with the exact fit in the paper's two synthetic experiments.

    python benchmarks/spede.py linear 5 --logs 5 --seeds 1

prints a line for each log and planner seed: the regret against MPC in the true model, in
the same noise, beside that of MPC in the estimated model; what was chosen; CPU seconds.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import ivvi


def bent(x, u):
    """Be the transition of the nonlinear experiment."""
    xp = u.__array_namespace__()
    return xp.log(xp.abs(x - 1) + 1) - u / 2


def true_model(env, model):
    """Return the truth as a model, for the return that is attainable."""
    if env.world.W_star is not None:
        phi, W = ivvi.linear(), env.world.W_star
    else:
        phi, W = ivvi.custom(bent, model.state), np.eye(env.world.d_x)
    names = (model.state, model.action, model.outputs)
    bread = np.zeros((W.shape[1],) * 2)
    return ivvi.Dynamics(phi, W, model.noise_cov, bread, *names)


def main() -> None:
    """Run the logs and seeds asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=["linear", "nonlinear"])
    parser.add_argument("dim", type=int)
    parser.add_argument("--logs", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="seed of the first log")
    parser.add_argument("--noise", type=int, default=1000, help="seed of the evaluation")
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    env = ivvi.make_env(options.name, dim=options.dim)
    task = {"reward": "quadratic:weight=0.05", "actions": (-1, 1), "horizon": env.world.horizon}

    def earned(policy):
        return env.rollout(policy, episodes=64, seed=options.noise).returns.mean()

    method = ivvi.SPEDE()
    best = None
    print("log seed   regret      mpc  features  width  ridge  residual  plan s  act s")
    for log in range(options.first, options.first + options.logs):
        features = "linear" if options.name == "linear" else "poly2"
        model = ivvi.estimate(env.collect(seed=log), features).model
        if best is None:
            best = earned(ivvi.plan(true_model(env, model), **task, method="mpc"))
        usual = best - earned(ivvi.plan(model, **task, method="mpc"))
        for seed in range(options.seeds):
            began = time.process_time()
            policy = ivvi.plan(model, **task, method=method, seed=seed)
            planned = time.process_time()
            lost, acted = best - earned(policy), time.process_time()
            c = policy.rule.choice
            print(
                f"{log:3} {seed:4} {lost:8.3f} {usual:8.3f} {c.features:9} {c.bandwidth:6g} "
                f"{c.ridge:6.0e} {c.residual:9.4f} {planned - began:7.1f} {acted - planned:6.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
