"""Effects that vary and effects that bend: `features=auto` beside the words, on published designs.

    python benchmarks/nonlinear.py [--seeds 5] [--first 1000] [--coverage 0] [--switches 0]
        [--switch-dim 2] [--large 0]

Test errors are mean squares against the true function. `demand` is the design of Hartford et al.
(2017) on its grid of prices, times and types; `bent demand` adds 30 sin(p / 3). The zoo is the
low-dimensional one of Bennett et al. (2019), outputs in units of their standard deviation. In
`varying` the effect of the action is 1.5 sin(1.5 x); its error is that of the effect between the
2.5% and 97.5% quantiles of the state, and its coverage that of the 95% band for each point after
the features were chosen (`--coverage N` logs). With `--switches N` it counts how often a linear
world of `--switch-dim` states and as many actions is called bent. With `--large N` it writes a log
of N rows and fits it by `spline:8` and by `auto`, each in a process of its own, whose processor
time and memory it prints. `--seeds 0` leaves the tables of errors out.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import ivvi

warnings.simplefilter("ignore")
WORDS = ("linear", "poly3:cross", "spline:8", "auto")
EFFECT = np.array([[0.5, 0.1], [0.0, -0.4]])
"""Of each action (row) on each state in the linear world."""
ZOO: dict[str, Callable[[Any], Any]] = {
    "abs": np.abs,
    "sin": np.sin,
    "step": lambda a: np.where(a < 0, 1.0, 2.5),
    "linear": lambda a: a,
}


def opened(x: Any, a: Any, z: Any, y: Any, episode: Any = None) -> ivvi.Log:
    """Arrays (n, d) as a log of one-step episodes, or of the episodes that are given."""
    columns = {
        f"{name}{j}": v[:, j]
        for name, v in zip("xazy", (x, a, z, y), strict=True)
        for j in range(v.shape[1])
    }
    columns["episode"] = np.arange(len(y)) if episode is None else episode
    names = {
        role: [c for c in columns if c[0] == letter and c != "episode"]
        for role, letter in (
            ("state", "x"),
            ("action", "a"),
            ("instrument", "z"),
            ("next_state", "y"),
        )
    }
    return ivvi.read_logs(pa.table(columns), episode="episode", **names)


def time_curve(t: Any) -> Any:
    """Hartford's sensitivity to the time of year."""
    return 2 * ((t - 5) ** 4 / 600 + np.exp(-4 * (t - 5) ** 2) + t / 10 - 2)


def demand_mean(x: Any, a: Any, bent: bool) -> Any:
    """Expected sales at time and type x (n, 2) and price a (n, 1)."""
    price = a[:, 0]
    wave = 30 * np.sin(price / 3) if bent else 0.0
    return 100 + (10 + price) * x[:, 1] * time_curve(x[:, 0]) - 2 * price + wave


def demand(n: int, rho: float, seed: int, *, bent: bool = False) -> ivvi.Log:
    """A log of the demand design."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([rng.uniform(0, 10, n), rng.integers(1, 8, n).astype(float)])
    z, v = rng.normal(size=(2, n))
    a = (25 + (z + 3) * time_curve(x[:, 0]) + v)[:, None]
    noise = rng.normal(rho * v, (1 - rho**2) ** 0.5)
    return opened(x, a, z[:, None], (demand_mean(x, a, bent) + noise)[:, None])


def demand_error(fit: ivvi.Fit, *, bent: bool = False) -> float:
    """Mean square error on Hartford's grid."""
    axes = (np.linspace(10, 25, 20), np.linspace(0, 10, 20), np.arange(1.0, 8.0))
    price, when, kind = (part.ravel() for part in np.meshgrid(*axes, indexing="ij"))
    x, a = np.column_stack([when, kind]), price[:, None]
    predicted = fit.estimate.design.phi(x, a) @ fit.W.T
    return float(np.mean((predicted[:, 0] - demand_mean(x, a, bent)) ** 2))


def zoo_rows(n: int, name: str, seed: int) -> tuple[Any, Any, Any, Any]:
    """Action, instruments, truth and outcome of the zoo."""
    rng = np.random.default_rng(seed)
    z, e = rng.uniform(-3, 3, (n, 2)), rng.normal(size=n)
    a = z[:, 0] + e + 0.1 * rng.normal(size=n)
    truth = ZOO[name](a)
    return a, z, truth, truth + 2 * e + 0.1 * rng.normal(size=n)


def zoo_run(name: str, word: str, seed: int, n: int = 2000) -> float:
    """Mean square error on fresh actions."""
    unit = zoo_rows(100_000, name, 10**9)[3].std()
    a, z, _, y = zoo_rows(n, name, seed)
    fit = ivvi.estimate(opened(np.zeros((n, 0)), a[:, None], z, (y / unit)[:, None]), phi=word)
    a, _, truth, _ = zoo_rows(4000, name, 10**9 + 1)
    predicted = fit.estimate.design.phi(np.zeros((len(a), 0)), a[:, None]) @ fit.W.T
    return float(np.mean((predicted[:, 0] - truth / unit) ** 2))


def varying(n: int, seed: int, horizon: int = 50) -> ivvi.Log:
    """Rows of x' = .8 x + 1.5 sin(1.5 x) a + noise, the noise confounded with a."""
    rng = np.random.default_rng(seed)
    episodes = n // horizon
    x, rows = 2 * rng.normal(size=episodes), []
    for _ in range(horizon):
        z, u, e = rng.normal(size=(3, episodes))
        a = np.clip(0.6 * z + 0.6 * u, -1, 1)
        y = 0.8 * x + 1.5 * np.sin(1.5 * x) * a + 0.4 * u + 0.3 * e
        rows.append((x, a, z, y, np.arange(episodes)))
        x = y
    *parts, episode = (np.array(part).T.ravel() for part in zip(*rows, strict=True))
    return opened(*(part[:, None] for part in parts), episode)


def linear(
    n: int, seed: int, *, dim: int = 2, strength: float = 0.6, heavy: bool = False
) -> ivvi.Log:
    """One or two states and as many actions, linear in both."""
    rng = np.random.default_rng(seed)
    horizon, episodes = 20, n // 20
    rule = np.array([[0.3, 0.15], [-0.15, 0.3]])

    def draw() -> Any:
        shape = (episodes, dim)
        return rng.standard_t(3, shape) if heavy else rng.normal(size=shape)

    x, rows = rng.normal(size=(episodes, dim)), []
    for _ in range(horizon):
        z, u = draw(), draw()
        a = strength * z + 0.7 * u + x @ rule[:dim, :dim]
        y = 0.7 * x + a @ EFFECT[:dim, :dim] + 0.5 * u + 0.5 * draw()
        rows.append((x, a, z, y))
        x = y
    parts = (np.array(part).transpose(1, 0, 2).reshape(-1, dim) for part in zip(*rows, strict=True))
    return opened(*parts, np.repeat(np.arange(episodes), horizon))


def measured(run: Callable[[str, int], float], seeds: range) -> str:
    """Mean over seeds of a run by each word, and processor seconds of the last."""
    cells = []
    for word in WORDS:
        started, errors = time.process_time(), []
        for seed in seeds:
            try:
                errors.append(run(word, seed))
            except ivvi.InputError:
                errors.append(float("nan"))
        seconds = (time.process_time() - started) / len(seeds)
        cells.append(f"{np.mean(errors):>10.4g} {seconds:>5.2f}s")
    return "".join(cells)


def effect_error(word: str, n: int, seed: int) -> float:
    """Root mean square error of the effect."""
    curve = ivvi.effect(ivvi.estimate(varying(n, seed), phi=word), "a0", "x0")
    return float(np.sqrt(np.mean((curve.estimate - 1.5 * np.sin(1.5 * curve.x)) ** 2)))


def covered(n: int, seeds: range) -> float:
    """Share of points of the effect's curve inside their own 95% band, features chosen."""
    shares = []
    for seed in seeds:
        curve = ivvi.effect(ivvi.estimate(varying(n, seed), phi="auto"), "a0", "x0")
        truth = 1.5 * np.sin(1.5 * curve.x)
        shares.append(np.mean((curve.low <= truth) & (truth <= curve.high)))
    return float(np.mean(shares))


def tables(seeds: range) -> None:
    """Print test errors of every word, with processor seconds."""
    print(f"{'design':<22}" + "".join(f"{word:>17}" for word in WORDS), flush=True)
    for n in (1000, 5000):
        for rho in (0.1, 0.5, 0.9):
            row = measured(
                lambda w, s, n=n, r=rho: demand_error(ivvi.estimate(demand(n, r, s), phi=w)), seeds
            )
            print(f"demand {rho} {n:<11}" + row, flush=True)
        row = measured(
            lambda w, s, n=n: demand_error(
                ivvi.estimate(demand(n, 0.5, s, bent=True), phi=w), bent=True
            ),
            seeds,
        )
        print(f"bent demand {n:<10}" + row, flush=True)
    for name in ZOO:
        row = measured(lambda w, s, name=name: zoo_run(name, w, s), seeds)
        print(f"zoo {name:<18}" + row, flush=True)
    for n in (2000, 8000):
        row = measured(lambda w, s, n=n: effect_error(w, n, s), seeds)
        print(f"varying {n:<14}" + row, flush=True)


def switches(seeds: range, dim: int) -> None:
    """Print what linear worlds are called, and the mean error of effects of both fits there."""
    from varying_effects import judged

    worlds = {"strong": {}, "weak": {"strength": 0.08}, "heavy": {"heavy": True}}
    for name, settings in worlds.items():
        labels, errors = Counter[str](), []
        for seed in seeds:
            log = linear(2000, seed, dim=dim, **settings)
            chosen, plain = ivvi.estimate(log, phi="auto"), ivvi.estimate(log)
            labels[chosen.choice.label] += 1
            errors.append([judged(fit, log, EFFECT[:dim, 0])[0] for fit in (chosen, plain)])
        bent = len(seeds) - labels["linear"]
        auto, straight = np.mean(errors, axis=0)
        counts = f"{bent} of {len(seeds)} bent, error {auto:.4g} (linear {straight:.4g})"
        print(f"linear world k={dim}, {name}: {counts} {dict(labels)}", flush=True)


def large(rows: int, seed: int) -> None:
    """Print processor seconds and memory of fits to a log in a file."""
    names = ("--state", "x0", "--action", "a0", "--instrument", "z0", "--next-state", "y0")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.parquet"
        pq.write_table(varying(rows, seed).to_arrow(), path, row_group_size=100_000)
        for word in ("spline:8", "auto"):
            out = ("--features", word, "--episode", "episode", "--out", f"{folder}/{word}")
            command = (sys.executable, "-m", "ivvi", "fit", str(path), *names, *out)
            started = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            _, status, used = os.wait4(started.pid, 0)
            seconds = used.ru_utime + used.ru_stime
            print(
                f"{rows:,} rows, {word}: {seconds:.1f} processor seconds, "
                f"{used.ru_maxrss / 1024:.0f} MB, exit {os.waitstatus_to_exitcode(status)}",
                flush=True,
            )


def main() -> None:
    """Print what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (
        *(("seeds", 5), ("first", 1000), ("coverage", 0)),
        *(("switches", 0), ("switch-dim", 2), ("large", 0)),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    first = options.first
    if options.seeds:
        tables(range(first, first + options.seeds))
    for n in (2000, 8000) if options.coverage else ():
        share = covered(n, range(first, first + options.coverage))
        print(f"varying {n}: the 95% band of auto for each point covers {share:.1%}", flush=True)
    if options.switches:
        switches(range(first, first + options.switches), options.switch_dim)
    if options.large:
        large(options.large, first)


if __name__ == "__main__":
    main()
