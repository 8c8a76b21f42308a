"""Returns of policies, their regret and its sources, with common random numbers."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from ivvi._io.plotting import check_figure, finished, new_figure
from ivvi._io.result import Records, TableResult
from ivvi.actions import Actions
from ivvi.dynamics.gym_env import ModelSimulator
from ivvi.dynamics.rollout import roll_out
from ivvi.errors import InputError, hint
from ivvi.fitting.inference_tables import NORMAL_95
from ivvi.planning import MPC, Planner
from ivvi.policy.plan import plan
from ivvi.policy.policy import Policy, check_steps
from ivvi.rewards import Learned, SeenReward
from ivvi.simulators import ConfoundedEnv
from ivvi.simulators.world import Behaviour

AGAINST = ("optimal", "zero", "random", "behaviour")
COLOURS = ("#222222", "#1b7f79", "#c8553d", "#5b6c8f", "#b08900", "#8e5ea2")
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Average:
    """A mean over episodes, its standard error and a 95% interval."""

    mean: float
    se: float

    @classmethod
    def of(cls, values: np.ndarray) -> Average:
        """Summarise one value per episode."""
        spread = float(values.std(ddof=1)) if len(values) > 1 else math.nan
        return cls(float(values.mean()), spread / math.sqrt(len(values)))

    @property
    def interval(self) -> tuple[float, float]:
        """Mean plus and minus 1.96 standard errors."""
        return self.mean - NORMAL_95 * self.se, self.mean + NORMAL_95 * self.se

    def to_json(self) -> dict[str, Any]:
        """Describe with JSON values; null for the error of a single episode."""
        has_error = math.isfinite(self.se)
        return {
            "mean": self.mean,
            "se": self.se if has_error else None,
            "interval": list(self.interval) if has_error else None,
        }

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.mean:.4g} [{low:.4g}, {high:.4g}]"


@dataclass(frozen=True, repr=False)
class Evaluation(TableResult):
    """Policies side by side in the same world with the same noise.

    Attributes
    ----------
    rewards
        Rewards of each policy by name, (episodes, horizon).
    reference
        The policy against which regret is measured.
    label
        The world.
    """

    rewards: dict[str, np.ndarray]
    reference: str
    label: str

    def value(self, name: str) -> Average:
        """The return of an episode."""
        return Average.of(self.rewards[name].sum(axis=1))

    def regret(self, name: str) -> Average:
        """The return of the reference minus that of the policy, episode by episode."""
        return Average.of((self.rewards[self.reference] - self.rewards[name]).sum(axis=1))

    def curve(self, name: str) -> np.ndarray:
        """Mean reward of each step with its 95% band, (horizon, 3): mean, low, high."""
        r = self.rewards[name]
        mean, half = r.mean(axis=0), NORMAL_95 * r.std(axis=0, ddof=1) / math.sqrt(len(r))
        return np.stack([mean, mean - half, mean + half], axis=1)

    def records(self) -> Records:
        """Return returns and regrets, one row per policy."""
        rows: Records = []
        for name in self.rewards:
            row: dict[str, Any] = {"policy": name}
            for label, average in (("return", self.value(name)), ("regret", self.regret(name))):
                low, high = average.interval
                row |= {label: average.mean, f"{label}_low": low, f"{label}_high": high}
            rows.append(row)
        return rows

    def summary(self) -> str:
        """Return a table: returns and regrets with 95% intervals."""
        episodes, horizon = next(iter(self.rewards.values())).shape
        width = max(18, *map(len, self.rewards))
        lines = [
            f"{self.label}: {episodes:,} episodes of {horizon:,} steps, the same noise for all",
            f"{'policy':<{width}}{'return':>14}  {'95% interval':<26}{'regret':>12}  95% interval",
        ]
        for name in self.rewards:
            v, r = self.value(name), self.regret(name)
            interval = "reference" if name == self.reference else _pair(r)
            regret = "" if name == self.reference else f"{r.mean:.5g}"
            lines.append(f"{name:<{width}}{v.mean:>14.5g}  {_pair(v):<26}{regret:>12}  {interval}")
        return "\n".join(lines)

    def plot(self, path: str | os.PathLike[str] | None = None, *, force: bool = False) -> Any:
        """Plot the mean reward of each step, one line per policy; `path` saves the figure."""
        check_figure(path, force=force)
        return finished(_draw_rewards(self), path, force=force)

    def to_json(self) -> dict[str, Any]:
        """Describe with JSON values."""
        episodes, horizon = next(iter(self.rewards.values())).shape
        return {
            "environment": self.label,
            "episodes": episodes,
            "horizon": horizon,
            "reference": self.reference,
            "policies": {
                name: {"return": self.value(name).to_json(), "regret": self.regret(name).to_json()}
                for name in self.rewards
            },
        }


def evaluate(
    policies: Any,
    env: ConfoundedEnv,
    *,
    against: tuple[str, ...] = ("optimal", "zero"),
    planner: Planner | str | None = None,
    episodes: int = 64,
    horizon: int | None = None,
    seed: int = 0,
) -> Evaluation:
    """Run policies in a simulator, unconfounded, and compare their returns.

    Parameters
    ----------
    policies
        A policy (or any function of states (n, d_x)), or several by name.
    env
        A simulator (`ivvi.make_env`).
    against
        Baselines: ``optimal`` (plans with the true dynamics; regret is measured against it),
        ``zero`` (does nothing), ``random``, ``behaviour`` (the log's own policy, once the
        confounder no longer helps it). Without ``optimal``, regret is measured against the first
        baseline, or against the first policy.
    planner
        Planner of ``optimal``; `MPC` by default.
    episodes, horizon, seed
        Episodes, their length (the world's by default) and the seed of their noise.
    """
    if not isinstance(env, ConfoundedEnv):
        swapped = " (the policies come first)" if isinstance(policies, ConfoundedEnv) else ""
        raise InputError(
            f"the simulator is of type {type(env).__name__}; expected one that ivvi.make_env "
            f"made{swapped}; to value a policy from a log, use ivvi.value"
        )
    policies_by_name = dict(policies) if isinstance(policies, Mapping) else {"policy": policies}
    for word in against:
        if word not in AGAINST:
            raise InputError(f"unknown baseline {word!r}{hint(word, AGAINST)}")
        if word in policies_by_name:
            raise InputError(
                f"a policy is called {word!r}, which is the name of a baseline; choose another name"
            )
    if not policies_by_name and not against:
        raise InputError("pass at least one policy")
    steps = env.world.horizon if horizon is None else horizon
    for name, policy in policies_by_name.items():
        if not (callable(policy) or hasattr(policy, "act")):
            raise InputError(f"the policy {name!r} is {policy!r}; expected a function of states")
        check_steps(policy, steps)
        _check_width(name, policy, env)
    everyone = {word: _baseline(word, env, planner, steps) for word in against} | policies_by_name
    logger.info("running %s for %d episodes of %d steps", ", ".join(everyone), episodes, steps)
    rewards = {
        name: env.rollout(policy, episodes=episodes, horizon=steps, seed=seed).rewards
        for name, policy in everyone.items()
    }
    reference = "optimal" if "optimal" in against else next(iter(everyone))
    return Evaluation(rewards, reference, f"{env.world.name} ({env.world.label})")


def optimal_policy(
    env: ConfoundedEnv, planner: Planner | str | None = None, horizon: int | None = None
) -> Policy:
    """Return a plan with the true dynamics of a simulator."""
    world = env.world
    steps = world.horizon if horizon is None else horizon
    actions = Actions.of_space(world.actions)
    starts = env.rollout(_constant(np.zeros(world.d_a)), episodes=64, horizon=8, keep=True).states
    visited = None if starts is None else starts.reshape(-1, world.d_x)
    return plan(
        world.true_model(),
        env.reward,
        actions,
        horizon=steps,
        method=planner or MPC(),
        compare=False,
        states=visited,
    )


@dataclass(frozen=True, repr=False)
class Decomposition(TableResult):
    """The sources of regret: a telescoping sum of returns, by simulation.

    With J the return in the world and J^ that in the model, under the same noise,

        J(pi*) - J(pi^) = [J(pi*) - J^(pi*)] + [J^(pi*) - J^(pi^)] + [J^(pi^) - J(pi^)]:

    model error along pi*; how much worse pi^ is in the model itself (at most 0 for a planner that
    is optimal there for this reward); and model error along pi^ (how much better the plan looked
    than it is).
    """

    along_optimal: Average
    planning: Average
    along_policy: Average
    regret: Average

    @property
    def _parts(self) -> dict[str, Average]:
        return {part.name: getattr(self, part.name) for part in fields(self)}

    @property
    def headline(self) -> str:
        """The regret."""
        return f"regret {self.regret}"

    def records(self) -> Records:
        """Return the parts and the regret that they add up to, one row each."""
        rows: Records = []
        for name, part in self._parts.items():
            low, high = part.interval
            rows.append({"part": name, "mean": part.mean, "se": part.se, "low": low, "high": high})
        return rows

    def summary(self) -> str:
        """Return the parts with 95% intervals, and the regret that they add up to."""
        words = {
            "along_optimal": "model error along the best policy",
            "planning": "planning error",
            "along_policy": "model error along the policy",
            "regret": "regret, their sum",
        }
        parts = self._parts.items()
        return "\n".join(f"{words[name]:<36}{p.mean:>12.5g}  {_pair(p)}" for name, p in parts)

    def to_json(self) -> dict[str, Any]:
        """Describe with JSON values."""
        return {name: part.to_json() for name, part in self._parts.items()}


def decompose(
    policy: Policy,
    env: ConfoundedEnv,
    *,
    planner: Planner | str | None = None,
    episodes: int = 64,
    horizon: int | None = None,
    seed: int = 0,
) -> Decomposition:
    """Split the regret of `policy` into model error and planning error.

    Returns in the model also use the world's reward, unless the policy's reward was learned with
    the model. So a policy planned for another reward has a large planning error.

    This is a telescoping sum of four returns. It is not the paper's decomposition lemma, which is
    about Bellman errors of the model's own values (`ivvi_reproduction.planning_error`).
    """
    steps = env.world.horizon if horizon is None else horizon
    best = optimal_policy(env, planner, steps)
    settings: dict[str, Any] = {"episodes": episodes, "horizon": steps, "seed": seed}
    _check_width("policy", policy, env)
    problem = policy.problem
    learned = isinstance(problem.reward, Learned | SeenReward)
    reward = problem.reward if learned else env.reward
    model = ModelSimulator(problem.model, reward, env.world.initial, problem.terminal)
    world_best, world_own = (env.rollout(p, **settings).returns for p in (best, policy))
    model_best, model_own = (roll_out(model, p, **settings).returns for p in (best, policy))
    return Decomposition(
        Average.of(world_best - model_best),
        Average.of(model_best - model_own),
        Average.of(model_own - world_own),
        Average.of(world_best - world_own),
    )


def _check_width(name: str, policy: Any, env: ConfoundedEnv) -> None:
    """Raise an error for a plan with other states or actions than the simulator's."""
    if not isinstance(policy, Policy):
        return
    model, world = policy.problem.model, env.world
    widths, expected = (len(model.state), len(model.action)), (world.d_x, world.d_a)
    if widths != expected:
        raise InputError(
            f"the policy {name!r} is for {widths[0]} states and {widths[1]} actions; the simulator "
            f"{world.name} has {expected[0]} and {expected[1]}"
        )


def _baseline(word: str, env: ConfoundedEnv, planner: Any, horizon: int) -> Any:
    if word == "optimal":
        return optimal_policy(env, planner, horizon)
    if word == "behaviour":
        return Behaviour(env.world)
    if word == "zero":
        return _constant(np.zeros(env.world.d_a))
    rng, actions = np.random.default_rng(0), Actions.of_space(env.world.actions)
    return lambda x: actions.sample(len(x), rng)


def _constant(action: np.ndarray) -> Any:
    return lambda x: np.broadcast_to(action, (len(x), len(action)))


def _draw_rewards(evaluation: Evaluation) -> Any:
    """Plot the mean reward of each step with its 95% band, one line per policy."""
    figure = new_figure(7.5, 4.2)
    axes = figure.subplots()
    for colour, name in zip(COLOURS * 9, evaluation.rewards, strict=False):
        mean, low, high = evaluation.curve(name).T
        axes.plot(mean, color=colour, lw=1.4, label=f"{name}  ({evaluation.value(name)})")
        axes.fill_between(range(len(mean)), low, high, color=colour, alpha=0.15, lw=0)
    axes.set(xlabel="step", ylabel="reward", title=evaluation.label)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, title="policy (return, 95% interval)")
    return figure


def _pair(amount: Average) -> str:
    low, high = amount.interval
    return f"[{low:.5g}, {high:.5g}]"
