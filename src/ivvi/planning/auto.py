"""The default planner: try every method that suits the problem; keep the one that earns most.

Which planner is best depends on the problem: a grid in up to four dimensions, a table of few
states, a quadratic program where the model is linear, a search where the set of actions is finite,
or values fitted on the states that a plan visits. All suitable methods are tried. Each plan is run
in the model from the log's first states, and so are rivals that need no plan: doing nothing, the
usual action, one constant action. All face the same noise. The best is kept; if several cannot be
distinguished, the one with the most exact method.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from ivvi._io.result import Compact
from ivvi.categories import raw_columns
from ivvi.errors import InputError
from ivvi.planning.best_action import is_searched
from ivvi.planning.comparison import CLEAR, Bound, Comparison, Trials, standard_error
from ivvi.planning.mpc.mpc import MPC
from ivvi.planning.problem import Planner, Problem, Rule
from ivvi.planning.riccati import is_quadratic
from ivvi.planning.simple_rules import HeldRule, UsualRule, held_actions
from ivvi.planning.upper_bounds import upper_bound
from ivvi.planning.value_iteration.category_grid import other_columns
from ivvi.planning.value_iteration.grid import POINTS, affordable_points
from ivvi.planning.value_iteration.plan_visited_states import VisitedValue
from ivvi.planning.value_iteration.value_iteration import ValueIteration, usual_value

BUDGET = 60.0
LONG, MOST_VARIABLES = 12, 120
"""A longer lookahead of quadratic programs, tried while they have at most this many variables."""
SETTLED = 0.99
"""No longer lookahead is tried once a plan earns this share of the possible gain."""
RESOLVED = 0.02
"""Two grids count as equal if they differ by at most this share of the gain over rivals."""
GROWING = (6, 12)
"""Longer lookaheads of Newton's method; each is tried if the one before was worth it."""


@dataclass(frozen=True)
class Auto:
    """Plan with every method that fits, and keep the one that earns most in the model.

    Parameters
    ----------
    budget
        Processor seconds after which no further method is tried.
    """

    budget: float = BUDGET

    def __post_init__(self) -> None:
        if not (np.isfinite(self.budget) and self.budget > 0):
            raise InputError(f"the budget is {self.budget:g} seconds; expected a number above 0")

    def solve(self, problem: Problem, *, seed: int = 0) -> Rule:
        """Return the rule that earns most."""
        return self.compare(problem, seed=seed)[0]

    def compare(self, problem: Problem, *, seed: int = 0) -> tuple[Rule, Comparison]:
        """Return the rule that earns most, and the table it was chosen from."""
        contest = PlannerComparison(problem, Trials.of(problem, seed))
        contest.enter_rivals(seed)
        ends = time.process_time() + self.budget
        for name, planner in _planners(problem, contest):
            if time.process_time() > ends:
                contest.skipped[name] = f"the budget of {self.budget:g} s was used up"
                continue
            contest.enter_planner(name, planner, seed)
        return contest.result()


@dataclass(eq=False, repr=False)
class PlannerComparison(Compact):
    """Rules and their returns in the same episodes; those entered first are preferred."""

    problem: Problem
    trials: Trials
    rules: dict[str, Rule] = field(default_factory=dict)
    returns: dict[str, np.ndarray] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    simple: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    bounds: dict[str, Bound | None] = field(default_factory=dict)
    paths: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)

    def enter(
        self, name: str, rule: Rule, *, simple: bool = False, returns: np.ndarray | None = None
    ) -> None:
        """Run a rule unless its `returns` are known; non-finite ones count as the worst."""
        begun = time.process_time()
        if returns is None:
            returns, x, a = self.trials.paths(rule)
            self.paths[name] = x, a
        worst = -(np.finfo(float).max ** 0.25)
        self.rules[name] = rule
        self.returns[name] = np.clip(np.nan_to_num(returns, nan=worst, neginf=worst), worst, None)
        self.seconds[name] = self.seconds.get(name, 0.0) + time.process_time() - begun
        if simple:
            self.simple.append(name)

    def enter_planner(self, name: str, planner: Planner, seed: int) -> None:
        """Plan and run the plan; list a planner that cannot be used with the reason."""
        begun = time.process_time()
        try:
            rule = planner.solve(self.problem, seed=seed)
        except InputError as error:
            self.skipped[name] = str(error)
            return
        self.seconds[name] = time.process_time() - begun
        self.enter(name, rule)

    def enter_rivals(self, seed: int) -> None:
        """Run the rivals that need no plan: nothing, the usual action, the best held action."""
        problem = self.problem
        nothing = np.zeros(problem.actions.dim)
        if problem.actions.contains(nothing):
            self.enter("nothing", HeldRule(nothing), simple=True)
        if len(problem.model.acted):
            self.enter("usual", UsualRule.of(problem), simple=True)
        held_rules = [HeldRule(action) for action in held_actions(problem, seed)]
        earned = [self.trials.returns(rule) for rule in held_rules]
        means = [float(np.nan_to_num(returns, nan=-np.inf).mean()) for returns in earned]
        first = int(np.argmax(means))
        best = held_rules[first]
        if best.action.any() or "nothing" not in self.rules:
            name = f"held {_words(problem, best.action)}"
            self.enter(name, best, simple=True, returns=earned[first])

    def mean(self, name: str) -> float:
        """Return the mean return of an entry."""
        return float(self.returns[name].mean())

    def best(self) -> str:
        """Return the name of the most exact entry among those not clearly behind the best.

        Where a coarse grid was tried, no method is more exact than another: the best is preferred.
        """
        leader = max(self.returns, key=self.mean)
        tied = [name for name in self.returns if self._is_tied(name, leader)]
        plans = [name for name in tied if name not in self.simple]
        if COARSE in self.rules:
            return max(plans, key=self.mean, default=leader)
        return min(plans, key=_preference, default=leader)

    def _is_tied(self, name: str, leader: str) -> bool:
        gap = self.returns[leader] - self.returns[name]
        return bool(gap.mean() <= CLEAR * standard_error(gap))

    def result(self) -> tuple[Rule, Comparison]:
        """Return the preferred rule and the table, with a bound where there is one."""
        chosen = self.best()
        if chosen not in self.bounds:
            self.bounds[chosen] = upper_bound(self.trials, self.rules[chosen], self.rules.get(GRID))
        return self.rules[chosen], self.compared(chosen).with_bound(self.bounds[chosen])

    @property
    def is_settled(self) -> bool:
        """Whether the best so far is known to earn nearly all of the possible gain."""
        share = self.result()[1].share
        return share is not None and share >= SETTLED

    def compared(self, chosen: str) -> Comparison:
        """Return the table of all entries, with the one that becomes the policy."""
        compared = Comparison.of(
            self.returns, self.simple, self.seconds, chosen, self.problem.horizon
        )
        paths = self.paths.get(chosen) or self.trials.paths(self.rules[chosen])[1:]
        abstains = getattr(self.rules[chosen], "abstain", None) is not None
        outside = self.problem.doubts_of(*paths, abstains=abstains)
        return replace(compared, skipped=tuple(self.skipped.items()), outside=outside)


GRID, TABLE, LEVELS, UNBOUNDED, VISITED = (
    "value iteration on a grid",
    "value iteration on a table",
    "value iteration on categories",
    "one step ahead of the value without bounds",
    "value iteration on visited states",
)
COARSE, FINER = "value iteration on a coarse grid", "value iteration on a finer grid"
EXACTNESS = (TABLE, LEVELS, GRID, "mpc", UNBOUNDED, VISITED)
AROUND = 3.0
"""Standard deviations of noise around visited states that a finer grid covers."""


def _preference(name: str) -> int:
    word = "mpc" if name.startswith("mpc") else name
    return EXACTNESS.index(word) if word in EXACTNESS else len(EXACTNESS)


def _planners(problem: Problem, contest: PlannerComparison) -> Iterator[tuple[str, Planner]]:
    """Yield the planners that fit, cheap and exact ones first; later ones use earlier results."""
    d, actions, quadratic = len(problem.model.state), problem.actions, is_quadratic(problem)
    in_box = not actions.discrete
    exact = {"tabular": TABLE, "categories": LEVELS, "grid": GRID}
    value = usual_value(problem)
    if value in exact and not (value == "grid" and quadratic and in_box):
        yield exact[value], ValueIteration(value=value)
    if value == "tabular" or (value == "categories" and not other_columns(problem)):
        return  # all states are listed: nothing is more exact
    if quadratic and not in_box:
        yield UNBOUNDED, ValueIteration(value="unbounded")
    if can_be_coarse(problem) and not (quadratic and in_box):
        yield COARSE, ValueIteration(value="grid")
        if COARSE in contest.rules:
            region = _visited(contest.trials, contest.rules[COARSE])
            yield FINER, ValueIteration(value="grid", region=region)
    first = MPC().steps(problem)
    yield f"mpc, {_steps(first)}", MPC()
    if quadratic and in_box:
        fits = LONG * actions.dim <= MOST_VARIABLES
        if fits and problem.horizon > LONG and not contest.is_settled:
            yield f"mpc, {LONG} steps", MPC(lookahead=LONG)
        return
    if d > 2 and (actions.is_finite or not is_resolved(contest)):
        yield from _where_grids_end(problem, contest, first)


def _where_grids_end(
    problem: Problem, contest: PlannerComparison, first: int
) -> Iterator[tuple[str, Planner]]:
    """Yield planners for too many states for a fine grid: long lookaheads, visited states."""
    if not problem.actions.is_finite:
        yield from _longer(contest, problem, first)
    visited = VisitedValue(first=contest.rules[contest.best()])
    if visited.serves(problem):
        yield VISITED, visited


def is_resolved(contest: PlannerComparison) -> bool:
    """Return whether a finer grid earns as much as the coarse one, and no lookahead earns more.

    Values that do not change on a finer grid are those of dynamic programming with the noise. Over
    a box, longer plans in the mean dynamics and fitted values then add little, and take longer.
    """
    if not {COARSE, FINER} <= contest.returns.keys() or contest.best() not in (COARSE, FINER):
        return False
    floor = max((contest.mean(name) for name in contest.simple), default=-np.inf)
    gained = contest.mean(contest.best()) - floor
    return abs(contest.mean(FINER) - contest.mean(COARSE)) <= RESOLVED * gained


def can_be_coarse(problem: Problem) -> bool:
    """Return whether a grid of three or four dimensions takes no more than some seconds."""
    d = len(problem.model.state)
    if d not in (3, 4) or problem.model.categories or is_searched(problem.actions):
        return False
    return affordable_points(problem) >= POINTS[d]


def _visited(trials: Trials, rule: Rule) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return lowest and highest states of a rule's episodes, with some noise around them."""
    _, x, _ = trials.paths(rule)
    low, high = x.min(axis=(0, 1)), x.max(axis=(0, 1))
    noise = AROUND * np.sqrt(np.diag(trials.problem.model.next_cov))
    margin = np.maximum(noise, 0.05 * (high - low))
    margin = np.where(margin > 0, margin, 0.5)
    return tuple(low - margin), tuple(high + margin)


def _longer(
    contest: PlannerComparison, problem: Problem, first: int
) -> Iterator[tuple[str, Planner]]:
    """Yield ever longer lookaheads of Newton's method while they earn more."""
    before = f"mpc, {_steps(first)}"
    for steps in GROWING:
        if before not in contest.returns or steps >= problem.horizon:
            return
        name = f"mpc, {_steps(steps)}"
        yield name, MPC(lookahead=steps)
        if name not in contest.returns:
            return
        gain = contest.returns[name] - contest.returns[before]
        if gain.mean() <= CLEAR * standard_error(gain):
            return
        before = name


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"


def _words(problem: Problem, action: np.ndarray) -> str:
    """Return an action as text: its numbers, or the levels of categories by name."""
    model = problem.model
    if raw_columns(model.action, model.coded) != model.action:
        levels = model.decode_actions(action[None])
        texts = {
            name: f"{v:.3g}" if isinstance(v, float) else str(v) for name, (v,) in levels.items()
        }
        return ", ".join(f"{name} = {text}" for name, text in texts.items())
    return ", ".join(f"{v:.3g}" for v in action[:4]) + (", .." if len(action) > 4 else "")
