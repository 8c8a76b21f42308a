"""Coverage of panels with lagged states: absorbed effects, half-panel jackknife, differences.

x' = 0.5 x - 0.5 a + alpha + e,   with alpha in states and actions, and e in the action too.
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np

import ivvi
from ivvi.errors import IvviWarning

TRUTH = {"x": 0.5, "a": -0.5}
WAYS = {
    "absorbed": {"absorb": "episode"},
    "half-panel": {"absorb": "episode", "half_panel": True},
    "differences": {"difference": True},
}


def make_panel(units: int, steps: int, seed: int) -> dict[str, np.ndarray]:
    """Simulate one panel."""
    rng = np.random.default_rng(seed)
    alpha = rng.normal(size=units)
    x = 2 * alpha + rng.normal(size=units)
    columns = {name: np.empty((units, steps + 1)) for name in ("episode", "step", "x", "a", "z")}
    for t in range(steps + 1):
        e, z = rng.normal(size=(2, units))
        a = 0.8 * z + 0.5 * e + rng.normal(size=units) + alpha
        for name, values in zip(columns, (np.arange(units), t, x, a, z), strict=True):
            columns[name][:, t] = values
        x = 0.5 * x - 0.5 * a + alpha + e
    rows = {name: values.ravel() for name, values in columns.items()}
    return rows | {"episode": rows["episode"].astype(int), "step": rows["step"].astype(int)}


def main() -> None:
    """Print bias, spread, mean standard error and coverage by number of steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--logs", type=int, default=30)
    parser.add_argument("--units", type=int, default=200)
    parser.add_argument("--steps", type=int, nargs="+", default=[5, 10, 50])
    options = parser.parse_args()
    warnings.simplefilter("ignore", IvviWarning)
    print("| steps | fit | slope | bias | spread | mean se | coverage of 95% |")
    print("|---:|---|---|---:|---:|---:|---:|")
    for steps in options.steps:
        found: dict[tuple[str, str], list[tuple[float, float, bool]]] = {}
        for seed in range(options.logs):
            rows = make_panel(options.units, steps, seed)
            log = ivvi.read_logs(rows, state="x", action="a", instrument="z")
            for way, settings in WAYS.items():
                for row in ivvi.estimate(log, **settings).records():
                    if (truth := TRUTH.get(row["feature"])) is not None:
                        held = row["low"] <= truth <= row["high"]
                        values = (row["coefficient"] - truth, row["se"], held)
                        found.setdefault((way, row["feature"]), []).append(values)
        for (way, name), values in found.items():
            gap, se, held = np.array(values, dtype=float).T
            print(
                f"| {steps} | {way} | {name} | {gap.mean():+.4f} | {gap.std():.4f} | "
                f"{se.mean():.4f} | {held.mean():.1%} |"
            )


if __name__ == "__main__":
    main()
