"""Effects that vary in many ways: error and wrong decisions of `auto` beside other words.

    python benchmarks/varying_effects.py [--rows 2000] [--seeds 3] [--first 7000] [--only NAME]

Panels x' = P x + (effect(x, c) a, 0, ..) + noise with the noise confounded with the action, of 20
steps an episode unless the design says otherwise. The error is the root mean square of the effect's
over the log's rows. The loss is what is lost by acting on the sign of the estimated effect: the sum
of |effect| where the sign is wrong, as a share of the sum of |effect|.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

import ivvi

warnings.simplefilter("ignore")
WORDS = ("least-squares", "linear", "spline:8", "auto")


@dataclass(frozen=True)
class Panel:
    """A design.

    Attributes
    ----------
    effect
        Of each action on the first state, given states (n, d) and context (n, 1): (n, d_a).
    states, actions, strength
        Counts, and the weight of the instrument in the action.
    context
        Draws a context of each episode; `levels` makes it a category.
    binary
        Whether action and instrument are 0 or 1.
    heavy
        Noise of Student's law with three degrees of freedom.
    episodes
        Their number, where they are few.
    uneven
        Whether episodes have lengths of one to hundreds.
    base
        Added to the first state's mean.
    """

    effect: Callable[[Any, Any], Any]
    states: int = 1
    actions: int = 1
    strength: float = 0.6
    context: Callable[[Any, int], Any] | None = None
    levels: bool = False
    binary: bool = False
    heavy: bool = False
    episodes: int = 0
    uneven: bool = False
    base: Callable[[Any], Any] | None = None

    def lengths(self, rng: Any, n: int) -> Any:
        """Steps of each episode."""
        if self.uneven:
            lengths: list[int] = []
            while sum(lengths) < n:
                lengths.append(int(min(1 + 4 * rng.pareto(1.0), n // 4)))
            return np.array(lengths)
        return np.full(self.episodes or n // 20, n // self.episodes if self.episodes else 20)

    def rows(self, n: int, seed: int) -> tuple[ivvi.Log, Any]:
        """A log, and the effect of each action in each of its rows."""
        rng = np.random.default_rng(seed)
        lengths = self.lengths(rng, n)
        count, steps, shape = len(lengths), int(lengths.max()), (len(lengths), self.actions)
        draw = (lambda s: rng.standard_t(3, s)) if self.heavy else (lambda s: rng.normal(size=s))
        x = 1.2 * rng.normal(size=(count, self.states))
        c = self.context(rng, count) if self.context else np.zeros((count, 0))
        P = 0.6 * np.eye(self.states) + 0.1 * np.eye(self.states, k=1)
        steps_taken: list[tuple[Any, ...]] = []
        for _ in range(steps):
            z = rng.integers(0, 2, shape) * 1.0 if self.binary else rng.normal(size=shape)
            u = draw(shape)
            push = self.strength * (2.5 * z - 1.25 if self.binary else z) + 0.6 * u
            a = (push > 0) * 1.0 if self.binary else np.clip(push, -2, 2)
            effect, y = self.effect(x, c), x @ P.T
            y[:, 0] += (effect * a).sum(axis=1) + 0.4 * u.sum(axis=1)
            y[:, 0] += self.base(x) if self.base else 0.0
            y += 0.4 * draw(x.shape)
            steps_taken.append((x, a, z, y, c, effect))
            x = np.clip(y, -6, 6)
        inside = np.arange(steps) < lengths[:, None]
        parts = [np.array(p).transpose(1, 0, 2)[inside] for p in zip(*steps_taken, strict=True)]
        *values, truth = parts
        return self._log(values, np.repeat(np.arange(count), lengths)), truth

    def _log(self, values: list[Any], episode: Any) -> ivvi.Log:
        named = zip(("x", "a", "z", "next_x", "c"), values, strict=True)
        columns = {f"{name}{j}": v[:, j] for name, v in named for j in range(v.shape[1])}
        if self.levels:
            columns["c0"] = np.array([f"ward {int(v)}" for v in columns["c0"]])
        roles = {"state": "x*", "action": "a*", "instrument": "z*", "next_state": "next_x*"}
        roles |= {"context": "c0"} if self.context else {}
        return ivvi.read_logs(pa.table(columns | {"episode": episode}), episode="episode", **roles)


def wave(x: Any, c: Any) -> Any:
    """An effect that changes its sign with the first state."""
    return 1.2 * np.sin(1.5 * x[:, [0]])


DESIGNS = {
    "sign changes in one of four states": Panel(lambda x, c: 1.2 * np.sin(1.5 * x[:, [2]]), 4),
    "sign changes in one of eight states": Panel(lambda x, c: np.tanh(2 * x[:, [3]]), 8),
    "a context column": Panel(lambda x, c: c, context=lambda r, m: r.uniform(-1, 1, (m, 1))),
    "a bent context column": Panel(
        lambda x, c: np.where(np.abs(c) < 0.5, 1.0, -0.6),
        context=lambda r, m: r.uniform(-1, 1, (m, 1)),
    ),
    "wards of four kinds": Panel(
        lambda x, c: np.array([-0.8, 0.2, 0.9, 0.3])[c.astype(int)],
        context=lambda r, m: r.integers(0, 4, (m, 1)) * 1.0,
        levels=True,
    ),
    "binary action and instrument": Panel(lambda x, c: np.tanh(1.5 * x[:, [0]]) + 0.2, binary=True),
    "one of two actions varies": Panel(
        lambda x, c: np.column_stack([0 * x[:, 0] + 0.5, 1.2 * np.sin(1.5 * x[:, 1])]), 2, 2
    ),
    "abrupt threshold": Panel(lambda x, c: np.where(x[:, [0]] > 0.5, 1.0, -0.8)),
    "heavy tails": Panel(wave, heavy=True),
    "six episodes": Panel(wave, episodes=6),
    "uneven episodes": Panel(wave, uneven=True),
    "product of two states": Panel(lambda x, c: np.clip(x[:, [0]] * x[:, [1]], -2, 2), 2),
    "weaker instrument": Panel(wave, strength=0.25),
    "bent base in another state": Panel(
        lambda x, c: 1.2 * np.tanh(2 * x[:, [1]]), 2, base=lambda x: np.sin(2 * x[:, 0])
    ),
}


def judged(fit: ivvi.Fit, log: ivvi.Log, truth: Any) -> tuple[float, float]:
    """Error of the effects at the log's rows, and what wrong signs lose."""
    batches = list(log.batches())
    x, a = (np.concatenate([getattr(b, name) for b in batches]) for name in ("x", "a"))
    phi, columns = fit.estimate.design.phi, []
    for j, action in enumerate(a.T):
        middle, half = action.mean(), action.std() / 2
        ends = (
            (0.0, 1.0) if set(np.unique(action)) <= {0.0, 1.0} else (middle - half, middle + half)
        )
        low, high = a.copy(), a.copy()
        low[:, j], high[:, j] = ends
        columns.append((phi(x, high) - phi(x, low)) @ fit.W[0] / (ends[1] - ends[0]))
    effects = np.column_stack(columns)
    wrong = np.sign(effects) != np.sign(truth)
    error = float(np.sqrt(np.mean((effects - truth) ** 2)))
    return error, float(np.sum(np.abs(truth) * wrong) / np.sum(np.abs(truth)))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=7000)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.seeds)
    print(f"{f'{options.rows:,} rows':<36}" + "".join(f"{word:>16}" for word in WORDS), flush=True)
    for name, design in DESIGNS.items():
        if options.only not in name:
            continue
        results: dict[str, list[tuple[float, float]]] = {word: [] for word in WORDS}
        labels, seconds = Counter[str](), 0.0
        for seed in seeds:
            log, truth = design.rows(options.rows, seed)
            for word in WORDS:
                started = time.process_time()
                plain = word == "least-squares"
                fit = ivvi.estimate(log, method=word) if plain else ivvi.estimate(log, phi=word)
                if fit.choice is not None:
                    labels[fit.choice.label] += 1
                    seconds += time.process_time() - started
                results[word].append(judged(fit, log, truth))
        means = (np.mean(result, axis=0) for result in results.values())
        cells = "".join(f"{error:>9.3f} {loss:>6.1%}" for error, loss in means)
        print(f"{name:<36}{cells}{seconds / len(seeds):>6.1f} s  {dict(labels)}", flush=True)


if __name__ == "__main__":
    main()
