"""Error of W with and without a penalty, in the paper's linear experiment.

Run it with ``python benchmarks/penalised.py``; ``--seeds 5`` averages more logs.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import ivvi
from ivvi.estimators import Exact
from ivvi.estimators.penalised import Penalised

METHODS = {
    "closed form": Exact(),
    "ridge": Penalised("ridge"),
    "lasso": Penalised("lasso"),
    "adaptive lasso": Penalised("lasso", adaptive=True),
}


def measure(dim: int, setting: str, seeds: int) -> dict[str, np.ndarray]:
    env = ivvi.make_env("linear", dim=dim, setting=setting)
    truth = env.world.W_star
    zero = truth == 0
    errors: dict[str, list[list[float]]] = {name: [] for name in METHODS}
    for seed in range(seeds):
        moments = ivvi.estimate(env.collect(seed=seed), episodes=True).moments
        for name, method in METHODS.items():
            started = time.process_time()
            off = method.solve(moments).W - truth
            spent = time.process_time() - started
            parts = (off, off[zero], off[~zero])
            errors[name].append([*(float(np.linalg.norm(part)) for part in parts), spent])
    return {name: np.mean(rows, axis=0) for name, rows in errors.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--dims", type=int, nargs="+", default=[5, 10, 20])
    parser.add_argument("--settings", nargs="+", default=["I"])
    options = parser.parse_args()
    print(
        f"{'k':>3} {'setting':<8}{'method':<16}{'error':>8}{'':>7}{'zeros':>8}{'others':>8}{'s':>7}"
    )
    for setting in options.settings:
        for dim in options.dims:
            rows = measure(dim, setting, options.seeds)
            base = rows["closed form"][0]
            for name, (whole, zeros, rest, seconds) in rows.items():
                print(
                    f"{dim:>3} {setting:<8}{name:<16}{whole:>8.4f}{whole / base - 1:>+7.0%}"
                    f"{zeros:>8.4f}{rest:>8.4f}{seconds:>7.2f}"
                )


if __name__ == "__main__":
    main()
