"""Algorithm 1, phase 1: stochastic descent in W, ascent in K.

    W <- W - step_W (K psi) phi^T
    K <- K + step_K (W phi - y - K psi) psi^T

averaged over a mini-batch of rows. The dual step is ascent on the objective; the paper's
listing prints the opposite sign, which diverges (docs/reproduction.md).

With the schedule ``auto`` the features are first brought to coordinates in which the
saddle point is well conditioned whatever their units: with B = L L^T and
L^-1 A = P S Q^T from a burn-in, psi~ = P^T L^-1 psi and phi~ = S^-1 Q^T phi have
E[psi~ psi~^T] = I and E[psi~ phi~^T] = I. The iterates start at the burn-in's closed form
and are averaged from the first step; by Polyak and Ruppert's argument the average has the
variance of the closed form on all rows.

Where the features are many, the moments (d x d) are not formed: the features are centred
and scaled one by one, the steps stay below the inverse of the largest eigenvalue, and the
result is judged by the moment conditions (`SGDA.solve_wide`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ivvi.checkpoint import Checkpoint
from ivvi.errors import DataError, InputError
from ivvi.estimators.conditions import Conditions
from ivvi.estimators.coordinates import Raw, Scaled, largest_eigenvalue, whiten
from ivvi.estimators.estimate import Estimate, Floats, with_weights
from ivvi.estimators.exact import Exact
from ivvi.estimators.passes import CHUNK, Descent, Plan, chosen_weights, piece_rows, pieces
from ivvi.estimators.rows import (
    Place,
    RowSource,
    Shuffled,
    Streamed,
    Survey,
    evaluate,
    survey,
    take_rows,
)
from ivvi.estimators.schedules import Decay, Schedule, parse_schedule
from ivvi.estimators.trace import Trace, judge, judge_conditions, log_points
from ivvi.layout import Layout
from ivvi.logs import Batch, Counts, Log
from ivvi.moments import Moments

BURN_IN = 0.1
"""Share of the rows from which the automatic schedule takes coordinates and a start."""
LEAST_BURN_IN, MOST_BURN_IN = 1000, 1 << 16
MOST_STEP, SAFETY, POWER, DELAY = 0.5, 0.2, 0.35, 50.0
"""The automatic steps: min(MOST_STEP, SAFETY batch / E|phi~|^2) / (1 + t / DELAY)^POWER."""
WIDE = 3000
"""Columns of (phi, psi, y) from which on the moments are not formed unless asked for."""
AVERAGES = ("auto", "last", "tail", "full")
ORDERS = ("auto", "shuffled", "stream", "iid")
MEMORIES = ("auto", "quadratic", "linear")


@dataclass(frozen=True)
class SGDA:
    """Stochastic gradient descent-ascent over the rows of a log, in mini-batches.

    Parameters
    ----------
    schedule
        A `Schedule`, its word (``paper-linear``, ``constant:0.05``, ``decay:0.1,0.5``), or
        ``auto``, which needs no tuning.
    batch
        Rows of a mini-batch; 1 for per-sample steps; ``episode`` for one step an episode,
        with the average 1/H over its rows.
    passes
        Passes over the rows.
    average
        ``last`` iterate, ``tail`` (second half) or ``full`` average; ``auto`` is full with
        the automatic schedule (tail in linear memory) and last with others, as the paper does.
    order
        ``shuffled``: a new random order each pass, all rows in memory; ``iid``: as many
        draws with replacement, from the average visitation distribution of the log;
        ``stream``: the log's own order, shuffled within chunks of rows, in bounded memory;
        ``auto`` is shuffled for tables in memory, else stream.
    start, start_K
        W_0 and K_0: a number for every entry, or an array (d_y, d_phi), (d_y, d_psi). Without
        them, zero; with the automatic schedule, W_0 is the burn-in's closed form.
    memory
        ``quadratic`` forms the moments, d x d, for coordinates, standard errors and a
        verdict; ``linear`` does not; ``auto`` is linear for thousands of features.
    seed
        Seed of the order of the rows.
    target
        Weights (d_y, d_phi) to which the recorded path measures its distance; the closed
        form when left out.
    flip_dual
        Take the dual step with the sign that Algorithm 1 prints; it diverges.
    """

    schedule: Schedule | str = "auto"
    batch: int | str = 32
    passes: int = 1
    average: str = "auto"
    order: str = "auto"
    start: float | Any = None
    start_K: float | Any = None
    memory: str = "auto"
    seed: int = 0
    target: Any = None
    flip_dual: bool = False

    def __post_init__(self) -> None:
        if self.batch != "episode" and (isinstance(self.batch, str) or self.batch < 1):
            raise InputError(f"batch {self.batch!r} must be at least 1, or the word episode")
        if self.passes < 1:
            raise InputError(f"passes {self.passes} must be at least 1")
        for name, known in (("average", AVERAGES), ("order", ORDERS), ("memory", MEMORIES)):
            if (word := getattr(self, name)) not in known:
                raise InputError(f"unknown {name} {word!r}; one of {', '.join(known)}")
        self._schedule()

    def _schedule(self) -> Schedule | None:
        """Return the schedule, None for the automatic one."""
        return parse_schedule(self.schedule) if isinstance(self.schedule, str) else self.schedule

    @property
    def name(self) -> str:
        """The word by which the command line knows it."""
        return "sgda"

    @property
    def rows_of_batch(self) -> int | None:
        """Rows of a mini-batch, None for whole episodes."""
        return None if isinstance(self.batch, str) else self.batch

    def is_linear(self, layout: Layout) -> bool:
        """Whether memory of order d is asked for, or advisable for these features."""
        return self.memory == "linear" or (self.memory == "auto" and layout.width > WIDE)

    def solve(
        self, moments: Moments, log: Log | None = None, checkpoint: Checkpoint | None = None
    ) -> Estimate:
        """Estimate W by passing over the rows of `log`; the moments judge the result."""
        if log is None:
            raise InputError("SGDA needs the rows of a log, not their moments alone")
        exact = Exact().solve(moments)
        rows = self._rows(log, moments.n)
        mean_weight = moments.weight / moments.n
        schedule = self._schedule()
        if schedule is None:
            plan = self._automatic(rows, moments.layout, mean_weight)
        else:
            plan = self._plain(moments.layout, schedule)
        descent = self._descent(plan, rows, moments.layout, mean_weight)
        state = descent.run(rows, checkpoint)
        W = plan.phi.weights(self._chosen(state, plan))
        path = [plan.phi.weights(w) for w in state.path[: state.reached]]
        target = exact.W if self.target is None else np.asarray(self.target, dtype=np.float64)
        trace = Trace.of(descent.points[: state.reached], path, moments, target)
        trace = judge(trace, W, exact.W, exact.se, moments)
        return replace(with_weights(moments, exact, W, plan.psi.weights(state.K)), trace=trace)

    def solve_wide(
        self,
        log: Log,
        layout: Layout,
        checkpoint: Checkpoint | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> tuple[Estimate, Counts]:
        """Estimate W with memory of order d; there are no standard errors (`bread` is empty).

        One pass counts the rows and takes a sample of them, from which come centres, scales
        and the largest stable step; the last one checks the moment conditions.
        """
        about = survey(log, self.seed, progress)
        rows = self._rows(log, about.n)
        plan, stable = self._diagonal(about, layout)
        descent = self._descent(plan, rows, layout, about.mean_weight, wide=True)
        state = descent.run(rows, checkpoint)
        W, K = plan.phi.weights(self._chosen(state, plan)), plan.psi.weights(state.K)
        found = _conditions(rows, layout, W, about.mean_weight)
        trace = Trace((max(state.t, 1),), (float("nan"),), (self._distance(W),))
        trace = judge_conditions(trace, W, found.gap, stable)
        nothing, null = np.empty((0, 0)), np.empty((0, W.shape[1]))
        spread = plan.phi.scale if isinstance(plan.phi, Scaled) else np.ones(W.shape[1])
        return (
            Estimate(layout, W, K, found.noise_cov, nothing, null, spread, about.n, trace),
            about.counts,
        )

    def _distance(self, W: Floats) -> float:
        return float("nan") if self.target is None else float(np.linalg.norm(W - self.target))

    def _rows(self, log: Log, n: int) -> RowSource:
        """Choose the order of the rows."""
        whole = self.batch == "episode"
        in_memory = self.order in ("shuffled", "iid")
        if in_memory or (self.order == "auto" and log.table.in_memory):
            return Shuffled(log, draws=self.order == "iid", whole=whole)
        return Streamed(log, n, whole=whole)

    def _descent(
        self,
        plan: Plan,
        rows: RowSource,
        layout: Layout,
        mean_weight: float,
        *,
        wide: bool = False,
    ) -> Descent:
        size = self.rows_of_batch
        if size is not None and rows.n < size:
            raise DataError(f"{rows.n} rows are fewer than one mini-batch of {size}")
        steps = self.passes * (rows.episodes if size is None else rows.n // size)
        return Descent(
            plan=plan,
            layout=layout,
            batch=size,
            passes=self.passes,
            seed=self.seed,
            steps=steps,
            points=[] if wide else log_points(steps),
            mean_weight=mean_weight,
            sign=-1.0 if self.flip_dual else 1.0,
            compiled=size is not None and not wide,
        )

    def _chosen(self, state: Any, plan: Plan) -> Floats:
        return chosen_weights(state, plan.average if self.average == "auto" else self.average)

    def _plain(self, layout: Layout, schedule: Schedule) -> Plan:
        """Raw features and the schedule as it is given."""
        W0, K0 = self._start(layout)
        return Plan(W0, K0, Raw(), Raw(), schedule, "last")

    def _start(self, layout: Layout) -> tuple[Floats, Floats]:
        """W_0 and K_0 in the features' own coordinates, zero where they are not given."""
        d_y = len(layout.outputs)
        shapes = ("start", (d_y, len(layout.phi_names))), ("start_K", (d_y, len(layout.psi_names)))
        found = []
        for name, shape in shapes:
            value = np.asarray(0.0 if getattr(self, name) is None else getattr(self, name), float)
            if value.shape not in ((), shape):
                raise InputError(f"{name} has shape {value.shape}; a number or {shape} is wanted")
            found.append(np.broadcast_to(value, shape).copy())
        return found[0], found[1]

    def _automatic(self, rows: RowSource, layout: Layout, mean_weight: float) -> Plan:
        """Coordinates, start and steps from a burn-in: a few rows, or the first of a stream.

        Its order is not that of the first pass: there the start would fit the first rows
        already and learn nothing from them.
        """
        need = max(int(BURN_IN * rows.n), LEAST_BURN_IN)
        need = max(min(need, MOST_BURN_IN), 20 * len(layout.psi_names))
        first, _ = next(rows.sweep(min(need, rows.n), self.seed, Place(self.passes)))
        return self.plan_of(first, layout, mean_weight)

    def plan_of(self, burn_in: Batch, layout: Layout, mean_weight: float = 1.0) -> Plan:
        """Return the automatic plan that goes with these rows."""
        Phi, Psi, Y = evaluate(layout, burn_in, mean_weight)
        phi, psi = whiten(Phi, Psi)
        W0, K0 = self._start(layout)
        W0, K0 = phi.inverse(W0), psi.inverse(K0)
        Phi, Psi = phi.of(Phi), psi.of(Psi)
        if self.start is None:
            fitted = Psi @ (Psi.T @ Phi / len(Y))
            W0 = np.asarray(np.linalg.lstsq(fitted, Y, rcond=None)[0].T, dtype=np.float64)
        step = min(MOST_STEP, SAFETY * self._size(burn_in) / float(np.mean(np.sum(Phi**2, axis=1))))
        return Plan(W0, K0, phi, psi, Decay(step, power=POWER, delay=DELAY), "full")

    def _size(self, burn_in: Batch) -> float:
        """Rows of a mini-batch, of whole episodes on average."""
        if self.rows_of_batch is not None:
            return self.rows_of_batch
        if burn_in.episode is None:
            return 1.0
        return len(burn_in) / len(np.unique(burn_in.episode))

    def _diagonal(self, about: Survey, layout: Layout) -> tuple[Plan, float]:
        """Centres, scales and steps from a sample of the rows; and the largest stable step."""
        Phi, Psi, Y = evaluate(layout, about.sample, about.mean_weight)
        schedule = self._schedule()
        if schedule is not None:
            stable = 1 / max(largest_eigenvalue(Phi), largest_eigenvalue(Psi))
            return self._plain(layout, schedule), stable
        phi = Scaled.of_rows(Phi, layout.constant)
        at = None if layout.constant is None else layout.psi_columns.index(layout.constant)
        psi = Scaled.of_rows(Psi, at)
        Phi, Psi = phi.of(Phi), psi.of(Psi)
        W0, K0 = self._start(layout)
        W0, K0 = phi.inverse(W0), psi.inverse(K0)
        if self.start is None and layout.constant is not None:
            W0[:, layout.constant] = Y.mean(axis=0)
        stable = 1 / max(largest_eigenvalue(Phi), largest_eigenvalue(Psi))
        noisy = SAFETY * self._size(about.sample) / float(np.mean(np.sum(Phi**2, axis=1)))
        step = min(MOST_STEP, MOST_STEP * stable, noisy)
        return Plan(W0, K0, phi, psi, Decay(step, power=POWER, delay=DELAY), "tail"), stable


def _conditions(rows: RowSource, layout: Layout, W: Floats, mean_weight: float) -> Conditions:
    """Check the moment conditions by one more pass."""
    found = Conditions.empty(len(layout.outputs), len(layout.psi_names))
    if np.isfinite(W).all():
        for chunk, _ in rows.sweep(CHUNK, 0, Place()):
            for part, _ in pieces(chunk, 1, piece_rows(layout)):
                found.add(W, *evaluate(layout, take_rows(chunk, part), mean_weight))
    return found
