"""SPEDE: planning in spectral features of the Gaussian transition (Ren et al. 2022).

    Q_h(x, a) = r(x, a) + discount w_h . E[features(x') | m],   m = W phi(x, a),

x' ~ N(m, Sigma). The features are waves at random frequencies and polynomials
(`spede.features`); w_h comes from a regression of V_h+1 on sampled states
(`spede.fitted_value_iteration`). What a user would have to tune (how wide the waves are, how many,
the penalty) is chosen by the Bellman residual on held-out states.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Hashable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from ivvi._io.arrays import Array
from ivvi._io.files import Saved
from ivvi._io.result import Compact
from ivvi.errors import InputError, PlanningWarning
from ivvi.planning.problem import Problem
from ivvi.planning.spede.features import Spectral
from ivvi.planning.spede.fitted_value_iteration import (
    BANDWIDTHS,
    COUNTS,
    RIDGES,
    Backward,
    Choice,
    HeldOutChoice,
    Regression,
    first_states,
    model_returns,
    reached_states,
)
from ivvi.planning.spede.greedy import Greedy, believed

STATES = 3000
PILOT = Choice(features=256, bandwidth=1.0, ridge=1e-4)
"""Default settings, good enough for a pilot plan that chooses better ones."""
GUIDE_RIDGE = 1e-4
ACT_STEPS = 8
ROWS = 16
"""Weights are padded to a multiple of this many rows, so that fewer shapes are compiled."""


@dataclass(frozen=True)
class SPEDE:
    """Fitted value iteration on spectral features of the mean W phi(x, a).

    Settings that are None are chosen from the model and the sampled states. A pilot plan with
    default settings gives values. Candidates, including several draws of the frequencies, are
    compared by how well they predict these values on held-out states.

    Parameters
    ----------
    features
        Number of waves.
    bandwidth
        Width of the kernel, in standard deviations of the sampled states.
    ridge
        Penalty on the weights of the waves.
    states
        Number of sampled states: states of the log, and states reached from them in the model.
    seeds
        Draws of the frequencies that are compared.
    starts
        Points of a box from which the best action is sought.

    Examples
    --------
    >>> import ivvi
    >>> log = ivvi.make_env("linear", dim=1).collect(episodes=20, horizon=100, seed=1)
    >>> model = ivvi.estimate(log).model
    >>> method = ivvi.SPEDE(features=32, states=200, bandwidth=1.0, ridge=1e-4, seeds=1)
    >>> policy = ivvi.plan(model, "quadratic:weight=0.05", (-1, 1), horizon=5, method=method)
    >>> policy([10.0]).tolist()
    [1.0]
    """

    features: int | None = None
    bandwidth: float | None = None
    ridge: float | None = None
    states: int | None = None
    seeds: int = 3
    starts: int = 4

    def __post_init__(self) -> None:
        for name, least in (("features", 1), ("states", 20), ("seeds", 1), ("starts", 1)):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | np.integer) and value >= least):
                raise InputError(
                    f"SPEDE was given {name}={value}; expected a whole number of at least {least}"
                )
        for name in ("bandwidth", "ridge"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise InputError(f"SPEDE was given {name}={value}; expected a number above 0")

    def solve(self, problem: Problem, *, seed: int = 0) -> SPEDERule:
        """Plan in three stages: a pilot plan, the choice of the features, the plan itself."""
        if problem.model.ends:
            raise InputError(
                "SPEDE cannot plan with a chance of ending; use the method auto or value-iteration"
            )
        rng = np.random.default_rng(seed)
        problem = believed(problem)
        greedy = Greedy(problem, self.starts, seed)
        backward = Backward(greedy)
        with jax.enable_x64(True):
            x = first_states(greedy, self.states or STATES, rng)
            usual = Spectral.draw(x, problem.model.next_cov, PILOT.features, PILOT.bandwidth, rng)
            pilot = backward.run(x, usual, PILOT.ridge)
            x = reached_states(backward, x, usual, pilot, rng)
            _, values = backward.act(x, usual, pilot.weights[-1], 0)
            contest = HeldOutChoice(
                x,
                values,
                problem.model.next_cov,
                backward.columns,
                COUNTS if self.features is None else (self.features,),
                BANDWIDTHS if self.bandwidth is None else (self.bandwidth,),
                RIDGES if self.ridge is None else (self.ridge,),
            )
            features, choice = contest.winner(self.seeds, rng)
            plan = backward.run(x, features, choice.ridge)
            if plan.diverged:
                warnings.warn(
                    f"the values grow without bound after {len(plan.weights)} backward steps; the "
                    "plan looks no further ahead",
                    PlanningWarning,
                    stacklevel=4,
                )
            regression = Regression.of(
                backward.columns(x, features), features.polynomials, GUIDE_RIDGE
            )
            guide = regression.fit(plan.actions)
            curve = model_returns(greedy, features, plan.weights[[0, *plan.improved]], guide)
        settings = {**asdict(choice), "residual": plan.residual}
        return SPEDERule(greedy, features, plan.weights, guide, curve, Choice(**settings))


@dataclass(frozen=True, eq=False, repr=False)
class SPEDERule(Compact):
    """Act greedily for the value of the remaining steps.

    Attributes
    ----------
    greedy
        Finds the best action.
    features, weights
        The value with t steps to go is weights[t] . features; the last of the rows (T, p)
        serves for more steps than that.
    guide
        A first guess at the action is features(x) guide, (p, d_a).
    curve
        Returns in the model of acting greedily after each iteration, in a few short episodes from
        states of the log; the first is greedy for the reward alone.
    choice
        The settings, and the held-out Bellman residual of the plan.
    """

    kind: ClassVar[str] = "spede"
    greedy: Greedy
    features: Spectral
    weights: np.ndarray
    guide: np.ndarray
    curve: np.ndarray
    choice: Choice

    @property
    def steps(self) -> int:
        """The horizon."""
        return self.greedy.problem.horizon

    def begin(self, n: int) -> tuple[()]:
        """Remember nothing."""
        return ()

    def act(self, x: Array, h: Array, memory: Any) -> tuple[Array, Any]:
        """Return the best actions (n, d_a) for states (n, d_x) at step h."""
        return self.decide(self.numbers, x, h, memory)

    @property
    def shape(self) -> Hashable:
        """All that the compiled `decide` depends on, except numbers."""
        return self.greedy.shape, self.greedy.problem.horizon

    @property
    def numbers(self) -> Any:
        """The model's numbers, the features, and the weights with the last row repeated."""
        repeated = np.arange(-(-len(self.weights) // ROWS) * ROWS)
        weights = self.weights[np.minimum(repeated, len(self.weights) - 1)]
        return self.greedy.numbers, self.features, weights, self.guide

    def decide(self, numbers: Any, x: Array, h: Array, memory: Any) -> tuple[Array, Any]:
        """Act with the numbers of any rule of the same `shape`."""
        model, features, weights, guide = numbers
        to_go = self.greedy.problem.horizon - 1 - h
        w = jnp.asarray(weights)[jnp.clip(to_go, 0, len(weights) - 1)]
        guess = features.of_states(x) @ guide
        greedy = self.greedy.with_numbers(model)
        return greedy.best(x, h, features, w, guess, ACT_STEPS)[0], memory

    def parts(self) -> Saved:
        """Return settings and arrays from which `from_parts` makes the rule again."""
        greedy = self.greedy
        settings = {"starts": greedy.starts, "seed": greedy.seed, "choice": asdict(self.choice)}
        arrays = {name: getattr(self, name) for name in ("weights", "guide", "curve")}
        return settings, {**arrays, **self.features.to_arrays()}

    @classmethod
    def from_parts(
        cls, problem: Problem, settings: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
    ) -> SPEDERule:
        """Make the rule again from `parts`."""
        seed, starts = int(settings["seed"]), int(settings["starts"])
        return cls(
            Greedy(believed(problem), starts, seed),
            Spectral.from_arrays(arrays),
            arrays["weights"],
            arrays["guide"],
            arrays["curve"],
            Choice(**settings["choice"]),
        )
