"""What the features cost in plans: regret of `auto` beside other words and least squares.

    python benchmarks/nonlinear_regret.py [--seeds 4] [--first 5000] [--dims 3,5]

With one state, plans and what they earn are exact up to a grid of states, actions and noise: no
plan is better because its planner is. `varying` is x' = .8 x + 1.5 sin(1.5 x) a + e with noise of
standard deviation .5, `nonlinear` the paper's second experiment in setting I; actions are in
[-1, 1], the reward is -x^2 / 20, and there are 500 steps from x = 0 on. With more states than one
(`--dims`) plans are `mpc`'s, and what they earn is simulated under the same noise.
"""

from __future__ import annotations

import argparse
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from nonlinear import varying

import ivvi

warnings.simplefilter("ignore")
WORDS = ("least-squares", "linear", "spline:8", "auto")
Mean = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class World:
    """One state, one action in [-1, 1]: the mean of x', the noise's spread, reward -weight x^2."""

    mean: Mean
    spread: float
    weight: float
    horizon: int
    span: float

    @property
    def states(self) -> Any:
        """The grid of states."""
        return np.linspace(-self.span, self.span, 301)

    def next_states(self, mean: Mean) -> tuple[Any, Any]:
        """Places of x' on the grid by state, action, noise (s, a, q); shares of noise (q,)."""
        actions = np.linspace(-1, 1, 31)
        nodes, shares = np.polynomial.hermite_e.hermegauss(9)
        x, a = np.meshgrid(self.states, actions, indexing="ij")
        middle = mean(x.ravel()[:, None], a.ravel()[:, None]).reshape(x.shape)
        reached = np.clip(middle[..., None] + self.spread * nodes, -self.span, self.span)
        place = (reached + self.span) / (2 * self.span) * (len(self.states) - 1)
        return place, shares / shares.sum()

    def choices(self, mean: Mean) -> Any:
        """The best action of each state at each step in the world of this mean, (h, s)."""
        return self._backward(mean, None)[1]

    def earned(self, choices: Any) -> float:
        """What these actions earn from x = 0 in the true world."""
        value = self._backward(self.mean, choices)[0]
        return float(np.interp(0.0, self.states, value))

    def _backward(self, mean: Mean, choices: Any) -> tuple[Any, Any]:
        place, shares = self.next_states(mean)
        below = np.minimum(place.astype(int), len(self.states) - 2)
        above = place - below
        reward = -self.weight * self.states**2
        value, policy, rows = reward.copy(), [], np.arange(len(reward))
        for step in reversed(range(self.horizon)):
            later = (value[below] * (1 - above) + value[below + 1] * above) @ shares
            best = later.argmax(axis=1) if choices is None else choices[step]
            policy.append(best)
            value = reward + later[rows, best]
        return value, np.array(policy[::-1])


def paper_mean(x: Any, a: Any) -> Any:
    """The paper's nonlinear dynamics."""
    return np.log(np.abs(x - 1) + 1) - a / 2


VARYING = World(lambda x, a: 0.8 * x + 1.5 * np.sin(1.5 * x) * a, 0.5, 0.05, 500, 5.0)
PAPER = World(paper_mean, 1.0, 0.05, 500, 6.0)


def fitted(log: ivvi.Log, word: str) -> ivvi.Fit:
    """Fit by a word; least squares is linear without the instrument."""
    if word == "least-squares":
        return ivvi.estimate(log, method="least-squares")
    return ivvi.estimate(log, phi=word)


def one_state(world: World, log_of: Callable[[int], ivvi.Log], seeds: range) -> str:
    """Mean regret of each word, and what auto chose."""
    best = world.earned(world.choices(world.mean))
    cells, labels = [], Counter[str]()
    for word in WORDS:
        lost = []
        for seed in seeds:
            fit = fitted(log_of(seed), word)
            if fit.choice is not None:
                labels[fit.choice.label] += 1
            model = fit.model
            mean = lambda x, a, model=model: np.asarray(model.mean(x, a))[:, 0]  # noqa: E731
            lost.append(best - world.earned(world.choices(mean)))
        cells.append(f"{np.mean(lost):>15.3g}")
    return "".join(cells) + f"   {dict(labels)}"


def many_states(dim: int, rows: int, seeds: range) -> str:
    """Mean regret in the paper's nonlinear world of several states."""
    env, lost = ivvi.make_env("nonlinear", dim=dim), []
    for seed in seeds:
        log = env.collect(episodes=rows // 100, horizon=100, seed=seed)
        plans = {
            word: ivvi.plan(
                fitted(log, word).model,
                "quadratic:weight=0.05",
                (-1, 1),
                horizon=500,
                method="mpc",
            )
            for word in WORDS
        }
        earned = ivvi.evaluate(plans, env, episodes=32, horizon=500, seed=seed)
        lost.append([earned.regret(word).mean for word in WORDS])
    return "".join(f"{value:>15.3g}" for value in np.mean(lost, axis=0))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--first", type=int, default=5000)
    parser.add_argument("--dims", default="")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.seeds)
    print(f"{'regret':<22}" + "".join(f"{word:>15}" for word in WORDS), flush=True)
    for n in (2000, 8000):
        row = one_state(VARYING, lambda seed, n=n: varying(n, seed), seeds)
        print(f"varying {n:<14}" + row, flush=True)
    env = ivvi.make_env("nonlinear", dim=1)
    for n in (2000, 8000):
        row = one_state(
            PAPER, lambda s, n=n: env.collect(episodes=n // 100, horizon=100, seed=s), seeds
        )
        print(f"nonlinear k=1 {n:<8}" + row, flush=True)
    for dim in (int(word) for word in options.dims.split(",") if word):
        for n in (4000, 8000, 16000):
            print(f"nonlinear k={dim} {n:<8}" + many_states(dim, n, seeds), flush=True)


if __name__ == "__main__":
    main()
