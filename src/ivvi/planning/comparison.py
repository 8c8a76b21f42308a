"""The returns of plans and simple rivals in the model, side by side.

`Trials` runs rules in the model they were planned in, all under the same noise; `Comparison` is
the table of their returns.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

import jax
import numpy as np

from ivvi._io.arrays import Array
from ivvi._io.plotting import IV, LS, MUTED, check_figure, draw_intervals, finished, new_figure
from ivvi._io.result import Compact, Records, TableResult
from ivvi.dynamics.next_state_distribution import NoiseLaw
from ivvi.dynamics.rollout import Decision, run_episodes
from ivvi.errors import FileError
from ivvi.planning.problem import Problem, Rule, Template

CLEAR = 2.0
"""Standard errors beyond which a difference counts."""
TIGHT = 0.9
"""A bound is reported only if the plan earns at least this share of the possible gain."""
ROUNDING = 1e-9
"""A difference or a standard error below this share of the return is rounding."""
EPISODES, FEWEST, STEPS = 96, 24, 20_000
"""Episodes of a trial: fewer where the horizon is long."""


@dataclass(frozen=True)
class Entry:
    """One contender.

    Attributes
    ----------
    name
        Its name: ``mpc, 3 steps``, ``held 1``, ``nothing``.
    value, error
        Mean return in the model, discounted, and its standard error.
    behind, behind_error
        How much more the best one earns in the same episodes, and the standard error.
    simple
        Whether it is a rival that needs no plan.
    seconds
        Time that planning and the trial took.
    """

    name: str
    value: float
    error: float
    behind: float
    behind_error: float
    simple: bool
    seconds: float


@dataclass(frozen=True)
class Bound:
    """An upper bound on the mean return of any policy in the model.

    Attributes
    ----------
    value, error
        The bound on the mean return, and its standard error.
    gap, gap_error
        The bound minus the return of the chosen plan, compared in the same episodes.
    method
        The method that gave the bound.
    """

    value: float
    error: float
    gap: float
    gap_error: float
    method: str


@dataclass(frozen=True, repr=False)
class Comparison(TableResult):
    """Contenders, the best first.

    Attributes
    ----------
    entries
        The contenders, by value.
    chosen
        Name of the one that became the policy.
    episodes, horizon
        Size of the trial.
    skipped
        Names of planners that were not tried or failed, each with the reason.
    bound
        An upper bound on the return of any policy in this model; None where none is known.
    outside
        Sentences on where the chosen plan's episodes leave the log's range.
    """

    entries: tuple[Entry, ...]
    chosen: str
    episodes: int
    horizon: int
    skipped: tuple[tuple[str, str], ...] = ()
    bound: Bound | None = None
    outside: tuple[str, ...] = ()

    def records(self) -> Records:
        """Return the contenders, one row each, the best first."""
        names = ("name", "value", "error", "behind", "behind_error", "simple")
        return [{name: getattr(entry, name) for name in names} for entry in self.entries]

    def plot(self, path: str | os.PathLike[str] | None = None, *, force: bool = False) -> Any:
        """Plot each return, with two standard errors of the simulation; `path` saves it.

        The chosen one is blue. A dashed line is the upper bound for any policy in the model, where
        it is known. All face the same noise, so differences are more certain than the bars suggest
        (`behind_error`).
        """
        check_figure(path, force=force)
        figure = new_figure(6.5, 1.4 + 0.36 * len(self.entries))
        ax = figure.add_subplot()
        names = [f"{e.name} (no plan)" if e.simple else e.name for e in self.entries]
        ends = [
            (e.value, e.value - CLEAR * e.error, e.value + CLEAR * e.error) for e in self.entries
        ]
        colours = [IV if e.name == self.chosen else MUTED for e in self.entries]
        draw_intervals(ax, names, ends, colours)
        if self.bound is not None:
            ax.axvline(self.bound.value, color=LS, ls="--", lw=1.2)
            ax.set_title("dashed: the most that is possible", loc="right", fontsize=9)
        ax.set(xlabel=f"mean return in the model, {self.horizon:,} steps (bars: 2 standard errors)")
        ax.set_title(f"chosen: {self.chosen}", loc="left", fontsize=10)
        ax.spines[["top", "right"]].set_visible(False)
        return finished(figure, path, force=force)

    @classmethod
    def of(
        cls,
        returns: Mapping[str, np.ndarray],
        simple: Sequence[str],
        seconds: Mapping[str, float],
        chosen: str,
        horizon: int,
    ) -> Comparison:
        """Compare returns (n,) of the same episodes, by name."""
        means = {name: float(np.mean(values)) for name, values in returns.items()}
        best = max(means, key=lambda name: means[name])
        entries = []
        for name in sorted(returns, key=lambda name: -means[name]):
            gap = returns[best] - returns[name]
            scale = float(np.abs(returns[best]).max(initial=0.0))
            behind = float(gap.mean())
            entries.append(
                Entry(
                    name,
                    means[name],
                    standard_error(returns[name]),
                    0.0 if abs(behind) <= ROUNDING * scale else behind,
                    standard_error(gap, scale),
                    name in simple,
                    float(seconds.get(name, 0.0)),
                )
            )
        return cls(tuple(entries), chosen, len(returns[best]), horizon)

    @property
    def plan(self) -> Entry:
        """The chosen one."""
        return next(entry for entry in self.entries if entry.name == self.chosen)

    @property
    def rival(self) -> Entry | None:
        """The best rival that needs no plan; None if there is none."""
        return next((entry for entry in self.entries if entry.simple), None)

    @property
    def share(self) -> float | None:
        """The plan's guaranteed share of the possible gain over the best simple rival.

        None where no bound is known, where it is loose, or where no gain is possible.
        """
        if self.bound is None or self.rival is None:
            return None
        gap = max(0.0, self.bound.gap + CLEAR * self.bound.gap_error)
        gain = self.plan.value - self.rival.value
        if gain <= CLEAR * self.rival.behind_error:
            return None
        share = gain / (gain + gap)
        return share if share >= TIGHT else None

    @property
    def doubts(self) -> tuple[str, ...]:
        """Warnings where the plan leaves the log, and if a simple rival earns clearly more."""
        plan, rival = self.plan, self.rival
        if plan.simple and len(self.entries) > 1:
            simple = f"no plan earns more in the model than {plan.name}, so that is the policy"
            return (*self.outside, simple)
        if rival is None or plan.value >= rival.value:
            return self.outside
        lost = plan.behind - rival.behind
        if lost <= CLEAR * max(plan.behind_error, rival.behind_error):
            return self.outside
        return (
            *self.outside,
            f"the plan loses to a simple rival in the model: {plan.name} earns {plan.value:.4g}, "
            f"{rival.name} {rival.value:.4g}",
        )

    def with_bound(self, bound: Bound | None) -> Comparison:
        """Return the comparison with a bound."""
        return replace(self, bound=bound)

    @property
    def headline(self) -> str:
        """The chosen entry, its return, and the number of entries."""
        plan, count = self.plan, len(self.entries)
        return f"{plan.name} earns {plan.value:.5g} +- {plan.error:.2g}, one of {count} compared"

    def summary(self) -> str:
        """Return the comparison as a text table."""
        width = max(len(entry.name) for entry in self.entries)
        lines = [
            f"Mean return in the model ({self.episodes} episodes of {self.horizon} steps, "
            "the same noise for all;",
            "+- is the standard error of this simulation):",
        ]
        for entry in self.entries:
            mark = "*" if entry.name == self.chosen else " "
            behind = f"  behind by {entry.behind:.4g} +- {entry.behind_error:.2g}"
            remark = "" if entry.behind == 0 else behind
            earned = f"{entry.value:>10.5g} +- {entry.error:<8.2g}"
            lines.append(f"{mark} {entry.name:<{width}}  {earned}{remark}".rstrip())
        lines += [f"  {name}: not compared, {reason}" for name, reason in self.skipped]
        if self.share is not None:
            lines.append(
                f"The plan earns at least {100 * self.share:.3g}% of what can be gained over "
                f"{self.rival.name} in this model."  # type: ignore[union-attr]
            )
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Describe the comparison with JSON values."""
        return {**asdict(self), "share": self.share}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Comparison:
        """Rebuild a comparison from `to_json`."""
        try:
            bound = value["bound"]
            return cls(
                tuple(Entry(**entry) for entry in value["entries"]),
                str(value["chosen"]),
                int(value["episodes"]),
                int(value["horizon"]),
                tuple((str(name), str(reason)) for name, reason in value["skipped"]),
                None if bound is None else Bound(**bound),
                tuple(map(str, value["outside"])),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise FileError(f"the saved comparison cannot be read: {error}") from error


def standard_error(values: np.ndarray, scale: float | None = None) -> float:
    """Return the standard error of the mean of values (n,); 0 if it is rounding at that `scale`.

    The scale is by default that of the values.
    """
    error = float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0
    scale = float(np.abs(values).max(initial=0.0)) if scale is None else scale
    return 0.0 if error <= ROUNDING * scale else error


@dataclass(frozen=True, eq=False, repr=False)
class Trials(Compact):
    """Episodes in the model from the log's first states.

    Attributes
    ----------
    problem
        The planning problem.
    starts
        First states, (n, d_x).
    noise
        Standard normal draws of every episode and step, (n, H, d_x).
    """

    problem: Problem
    starts: np.ndarray
    noise: np.ndarray

    @classmethod
    def of(cls, problem: Problem, seed: int, episodes: int | None = None) -> Trials:
        """Draw first states of the log and the noise."""
        n = episodes or int(np.clip(STEPS // problem.horizon, FEWEST, EPISODES))
        rng = np.random.default_rng(seed)
        first = problem.starts
        starts = first[rng.integers(len(first), size=n)]
        return cls(problem, starts, rng.normal(size=(n, problem.horizon, starts.shape[1])))

    def returns(self, rule: Rule) -> np.ndarray:
        """Return a rule's discounted return in each episode, (n,)."""
        return self.paths(rule)[0]

    def paths(self, rule: Rule) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return returns (n,), states (H, n, d_x) and actions (H, n, d_a) of a rule."""
        with jax.enable_x64(True):
            decision = Decision.of(rule)
            run = _compiled(Template.of(self.problem, self.problem.horizon), decision)
            numbers, law = self.problem.numbers, self.problem.model.noise_law
            total, (x, a) = run(numbers, law, decision.numbers, self.starts, self.noise)
            return np.asarray(total), np.asarray(x), np.asarray(a)


@lru_cache(maxsize=64)
def _compiled(template: Template, decision: Decision) -> Callable[..., Any]:
    """Compile whole episodes; the numbers of a problem of one shape are arguments."""

    def run(numbers: Any, law: NoiseLaw, parameters: Any, starts: Array, noise: Array) -> Any:
        problem = template.example.with_numbers(numbers)
        _, total, (path, _) = run_episodes(
            lambda x, h, memory: decision.decide(parameters, x, h, memory),
            lambda x, a, h, memory: problem.step(x, a, noise[:, h], h, law),
            starts,
            decision.begin(len(starts)),
            problem.horizon,
            discount=problem.discount,
            keep=True,
        )
        return total, path

    return jax.jit(run)  # type: ignore[no-any-return]
