"""Model predictive control: plan a few steps ahead, take the first action, plan again.

The plan maximises, in the mean dynamics x_l+1 = W phi(x_l, a_l),

    sum_{l=0}^{L-1} discount^l r(x_l, a_l, x_l+1) + discount^L V(x_L)

over L actions. V is the value as if every action were allowed, which linear models with a
quadratic reward have in closed form (`riccati`). For other models it is one more step with the last
action held, so that every action has a consequence that counts. Steps beyond the horizon do not
count. How the problem is solved depends on its kind (`MPC`). H, J and f are those of `lookahead`,
with g = J x + f.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from ivvi._io.arrays import Array
from ivvi._io.files import Saved
from ivvi._io.memory import check_memory
from ivvi._io.result import Compact
from ivvi.errors import InputError, check_seed
from ivvi.planning.mpc.beam_search import best_choice, is_held, usual_depth
from ivvi.planning.mpc.boltzmann import along_function, along_quadratic, soft_mean
from ivvi.planning.mpc.box_qp import BoxQP
from ivvi.planning.mpc.lookahead import Lookahead, quadratic_form
from ivvi.planning.newton import maximise
from ivvi.planning.problem import Problem
from ivvi.planning.riccati import is_quadratic, value_tail

QUADRATIC, SMOOTH = 3, 2
"""Default lookaheads: of a quadratic program and of Newton's method."""
TAIL = 24
"""Most steps after the plan whose value is computed; for more, this number is used."""


@dataclass(frozen=True)
class MPC:
    """Receding horizon on the mean dynamics.

    - Linear dynamics, quadratic or linear reward, a box: an exact quadratic program; with
      choices besides the box, one for every choice, held to the end of the lookahead.
    - Other dynamics and rewards over a box: projected Newton steps from several starts.
    - A finite set: a beam search over sequences, which lists them all where they are few
      (`ivvi.planning.mpc.beam_search`); large products such as {0, 1}^16 are held and searched by
      changing coordinates.
    - A box and choices: Newton steps for every choice, held to the end of the lookahead.

    Parameters
    ----------
    lookahead
        Actions planned ahead; by default 3 for quadratic programs, 2 for Newton's method,
        and for finite sets 10 to 2, fewer the larger they are; never beyond the horizon.
    starts
        Starting points of Newton's method.
    temperature
        In units of the reward. Above zero, the action is the mean of a soft plan over a box:
        if actions hardly matter in the model, it is close to the middle of the box
        (`ivvi.planning.mpc.boltzmann`).
    """

    lookahead: int | None = None
    starts: int = 2
    temperature: float = 0.0

    def __post_init__(self) -> None:
        if self.lookahead is not None and self.lookahead < 1:
            raise InputError(f"lookahead is {self.lookahead}; expected at least 1")
        if self.starts < 1:
            raise InputError(f"starts is {self.starts}; expected at least 1")
        if not 0 <= self.temperature < np.inf:
            raise InputError(f"temperature is {self.temperature}; expected a number of at least 0")

    def solve(self, problem: Problem, *, seed: int = 0) -> MPCRule:
        """Return the rule; nearly all its work is done when it acts."""
        if self.temperature and len(problem.actions.discrete):
            raise InputError(
                "a temperature is only for actions in a box: the mean of a soft policy is not one "
                f"of {problem.actions}"
            )
        rule = MPCRule(problem, self.steps(problem), self.starts, seed, self.temperature)
        _ = rule.numbers  # computed now, not inside a loop that JAX traces
        return rule

    def steps(self, problem: Problem) -> int:
        """Return how many actions are planned ahead."""
        smooth = QUADRATIC if is_quadratic(problem) else SMOOTH
        usual = usual_depth(problem.actions) if problem.actions.is_finite else smooth
        return min(self.lookahead or usual, problem.horizon)


@dataclass(frozen=True, eq=False, repr=False)
class MPCRule(Compact):
    """Plan `lookahead` actions from each state and take the first."""

    kind: ClassVar[str] = "mpc"
    problem: Problem
    lookahead: int
    starts: int
    seed: int
    temperature: float = 0.0

    def __post_init__(self) -> None:
        width = self.lookahead * self.problem.actions.dim
        programs = min(self.problem.horizon, self.lookahead + TAIL) * 3.0 * width**2
        needed = programs if self._is_program else float(self.starts * width)
        check_memory(8 * needed, f"a plan {self.lookahead:,} steps ahead")

    @classmethod
    def from_parts(
        cls, problem: Problem, settings: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
    ) -> MPCRule:
        """Make the rule again from `parts`."""
        seed = int(settings["seed"])
        check_seed(seed)
        counts = {k: int(settings[k]) for k in ("lookahead", "starts")}
        planner = MPC(**counts, temperature=float(settings.get("temperature", 0.0)))
        steps = planner.steps(problem)
        return cls(problem, steps, planner.starts, seed, planner.temperature)

    def parts(self) -> Saved:
        """Return the settings; everything else comes from the problem."""
        settings = {"lookahead": self.lookahead, "starts": self.starts, "seed": self.seed}
        return settings | ({"temperature": self.temperature} if self.temperature else {}), {}

    def begin(self, n: int) -> Array:
        """Return plans in the middle of the box to start from, (n, L, d_c)."""
        actions = self.problem.actions
        middle = (actions.low + actions.high) / 2
        return jnp.broadcast_to(jnp.asarray(middle), (n, self.lookahead, len(middle)))

    def act(self, x: Array, h: Array, memory: Array) -> tuple[Array, Array]:
        """Plan from x (n, d_x); return the first actions, and the shifted plans as memory."""
        return self.decide(self.numbers, x, h, memory)

    @cached_property
    def shape(self) -> Hashable:
        """All that the compiled `decide` depends on, except the numbers of the model."""
        settings = self.problem.horizon, self.lookahead, self.starts, self.seed
        return (self.problem.shape, self._is_program, self.temperature, *settings)

    @cached_property
    def numbers(self) -> Any:
        """The model's numbers: quadratic programs and their H, J, f; else W, noise, knots.

        There is a program for each number of steps to the horizon, up to L + `TAIL`.
        """
        problem, actions, L = self.problem, self.problem.actions, self.lookahead
        tail = value_tail(problem, self._tail_steps) if self._tail_steps else None
        if not self._is_program:
            return problem.numbers, tail
        low, high = (np.tile(side, L) for side in (actions.low, actions.high))
        boxes = self._places(actions.continuous)
        programs = []
        for remaining in range(1, min(problem.horizon, L + TAIL) + 1):
            at = max(0, remaining - L)
            after = (0.0, 0.0) if tail is None else (tail[0][at], tail[1][at])
            H, J, f = quadratic_form(problem, L, remaining, after)
            programs.append((BoxQP.of(H[np.ix_(boxes, boxes)], low, high), H, J, f))
        return _stacked(programs)

    def decide(self, numbers: Any, x: Array, h: Array, memory: Array) -> tuple[Array, Array]:
        """Act with the numbers of any rule of the same `shape`."""
        actions, horizon = self.problem.actions, self.problem.horizon
        if self._is_program:
            remaining = jnp.where(h < horizon, horizon - h, horizon)
            at = jnp.clip(remaining, 1, len(numbers[-1])) - 1
            program = jax.tree_util.tree_map(lambda part: jnp.asarray(part)[at], numbers)
            if self.temperature:
                boxes, choices = self._soft(along_quadratic(*self._form(program, x)), memory)
            else:
                boxes, choices = self._programs(program, x, memory)
        else:
            of_model, tail = numbers
            ahead = Lookahead(self.problem.with_numbers(of_model), self.lookahead, tail)
            if actions.is_finite:
                boxes, choices = memory, best_choice(ahead, x, h)
            elif self.temperature:
                shape = (-1, *memory.shape[1:])
                value = along_function(lambda x, u: ahead(x, u.reshape(shape), h), x)
                boxes, choices = self._soft(value, memory)
            else:
                boxes, choices = self._newton(ahead, x, h, memory)
        shifted = jnp.concatenate([boxes[:, 1:], boxes[:, -1:]], axis=1)
        return actions.join(boxes[:, 0], choices), shifted

    @property
    def _is_program(self) -> bool:
        """Whether the plan is the solution of a quadratic program."""
        return is_quadratic(self.problem) and not self.problem.actions.is_finite

    @property
    def _tail_steps(self) -> int:
        """Steps after the plan whose value is used: 0 where there is no closed form."""
        problem = self.problem
        if not is_quadratic(problem) or (problem.actions.is_finite and is_held(problem.actions)):
            return 0
        return max(0, min(problem.horizon - self.lookahead, TAIL))

    def _places(self, coordinates: Sequence[int]) -> list[int]:
        """Return the places of these coordinates of the action in a flat plan, step by step."""
        width = self.problem.actions.dim
        return [step * width + at for step in range(self.lookahead) for at in coordinates]

    def _form(self, numbers: Any, x: Array) -> tuple[Array, Array]:
        """Return H (D, D) and g (n, D) of minus the lookahead, u^T H u / 2 + g . u."""
        _, H, J, f = numbers
        return H, x @ J.T + f

    def _soft(self, along: Any, memory: Array) -> tuple[Array, Array]:
        """Return the means of the soft plans."""
        actions, n = self.problem.actions, len(memory)
        low, high = (np.tile(side, self.lookahead) for side in (actions.low, actions.high))
        means = soft_mean(along, memory.reshape(n, -1), low, high, self.temperature)
        return means.reshape(memory.shape), jnp.zeros((n, 0))

    def _programs(self, numbers: Any, x: Array, memory: Array) -> tuple[Array, Array]:
        """Solve the program of every choice, held for the whole plan; return the best."""
        program, H, J, f = numbers
        actions, n = self.problem.actions, len(x)
        in_box, in_sets = (self._places(part) for part in (actions.continuous, actions.discrete))
        plans = jnp.tile(jnp.asarray(actions.choices), (1, self.lookahead))  # (m, L d_d)
        slope, m = x @ J.T + f, len(plans)
        g = slope[:, in_box] + (plans @ H[np.ix_(in_sets, in_box)])[:, None]  # (m, n, L d_c)
        start = jnp.broadcast_to(memory.reshape(n, -1), g.shape)
        flat = program(g.reshape(m * n, -1), start.reshape(m * n, -1)).reshape(g.shape)
        cost = jnp.sum((flat @ program.H / 2 + g) * flat, axis=-1) + plans @ slope[:, in_sets].T
        cost = cost + jnp.sum((plans @ H[np.ix_(in_sets, in_sets)] / 2) * plans, axis=-1)[:, None]
        best = jnp.argmin(cost, axis=0)
        return flat[best, jnp.arange(n)].reshape(memory.shape), jnp.asarray(actions.choices)[best]

    def _newton(self, ahead: Lookahead, x: Array, h: Array, memory: Array) -> tuple[Array, Array]:
        """Maximise over the box for every choice, from every start; return the best."""
        actions, n = self.problem.actions, len(x)
        m, s = len(actions.choices), self.starts
        rng = np.random.default_rng(self.seed)
        drawn = rng.uniform(actions.low, actions.high, (s - 1, self.lookahead, len(actions.low)))
        plans = jnp.concatenate(
            [memory[None], jnp.broadcast_to(jnp.asarray(drawn)[:, None], (s - 1, *memory.shape))]
        )
        choices = jnp.asarray(actions.choices)
        # one row for each (start, choice, state)
        rows = jnp.broadcast_to(plans[:, None], (s, m, *memory.shape))
        rows = rows.reshape(s * m * n, *memory.shape[1:])
        choice_rows = jnp.broadcast_to(choices[None, :, None], (s, m, n, choices.shape[1]))
        choice_rows = choice_rows.reshape(s * m * n, choices.shape[1])
        states = jnp.broadcast_to(x, (s, m, *x.shape)).reshape(s * m * n, x.shape[1])

        def taken(plans: Array) -> Array:
            return actions.join(plans, jnp.repeat(choice_rows[:, None], plans.shape[1], axis=1))

        solutions, reached = maximise(
            lambda plans: ahead(states, taken(plans), h),
            rows,
            actions.low,
            actions.high,
            residuals=(lambda plans: ahead.residuals(states, taken(plans), h))
            if ahead.has_residuals
            else None,
        )
        best = jnp.argmax(reached.reshape(s * m, n), axis=0)
        pick = best * n + jnp.arange(n)
        return solutions[pick], choice_rows[pick]


def _stacked(programs: Sequence[Any]) -> Any:
    """Stack programs of one shape along a leading axis."""
    xp = programs[-1][1].__array_namespace__()  # that of JAX where weights are traced
    return jax.tree_util.tree_map(
        lambda *parts: xp.stack([xp.asarray(p) for p in parts]), *programs
    )
