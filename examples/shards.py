"""Two hospitals that may not share rows: they share moments, and the fit is exact."""

from __future__ import annotations

import numpy as np

import ivvi
from ivvi.layout import Layout


def main() -> None:
    env = ivvi.make_env("linear", dim=2, setting="II")
    logs = [env.collect(episodes=30, horizon=100, seed=seed) for seed in (1, 2)]
    layout = Layout.build(ivvi.linear(), ivvi.linear(), logs[0].roles)
    north, south = (ivvi.compute_moments(log, layout)[0] for log in logs)
    estimate = ivvi.Exact().solve(north + south)
    np.set_printoptions(precision=3, suppress=True)
    print("features     ", " ".join(f"{name:>6}" for name in layout.phi_names))
    for name, row, truth in zip(layout.outputs, estimate.W, env.world.W_star, strict=True):
        print(f"{name:<10} IV", row, "\n         truth", truth)


if __name__ == "__main__":
    main()
