"""Algorithm 1, phase 1: stochastic descent in W, ascent in K.

    W <- W - step_W (K psi) phi^T
    K <- K + step_K (W phi - y - K psi) psi^T

averaged over a mini-batch of rows. The dual step is ascent on the objective; the paper's
listing prints the opposite sign, which diverges (docs/reproduction.md). With `inner` steps there
are that many dual steps on the moments of a mini-batch before its primal step: this is what the
paper's authors ran, and what the schedules named after its experiments do.

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

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from ivvi._io.arrays import Floats
from ivvi._io.checkpoint import Checkpoint
from ivvi.errors import DataError, InputError
from ivvi.estimators.convergence import Conditions, Trace, judge, judge_conditions, log_points
from ivvi.estimators.estimate import Estimate, distance_in_se, with_weights
from ivvi.estimators.sgda.loop import CHUNK, Descent, chosen_weights, piece_rows, pieces
from ivvi.estimators.sgda.numpy_kernel import DualLoop, NumpyState
from ivvi.estimators.sgda.preconditioning import (
    Scaled,
    Setup,
    Start,
    automatic_setup,
    diagonal_setup,
    mean_length,
    plain_setup,
    stable_step,
)
from ivvi.estimators.sgda.sampler import (
    RowSource,
    Shuffled,
    Streamed,
    SweepPosition,
    evaluate,
    survey,
    take_rows,
)
from ivvi.estimators.sgda.schedules import PAPER, PaperRun, Schedule, parse_schedule
from ivvi.estimators.two_stage_least_squares import Exact
from ivvi.features.design import Design
from ivvi.logs import Batch, Counts, Log
from ivvi.moments import Moments

BURN_IN = 0.1
"""Share of the rows from which the automatic schedule takes coordinates and a start."""
LEAST_BURN_IN, MOST_BURN_IN = 1000, 1 << 16
BATCH = 32
"""Default number of rows in a mini-batch."""
WIDE = 3000
"""With at least this many columns of (phi, psi, y), moments are computed only on request."""
AVERAGES = ("auto", "last", "tail", "full")
ORDERS = ("auto", "shuffled", "stream", "iid", "logged")
MEMORIES = ("auto", "quadratic", "linear")


@dataclass(frozen=True)
class SGDA:
    """Stochastic gradient descent-ascent over the rows of a log, in mini-batches.

    Parameters
    ----------
    schedule
        A `Schedule`, its word (``constant:0.05``, ``decay:0.1,0.5``), or ``auto``, which needs
        no tuning. ``paper-linear``, ``paper-linear-20`` (k = 20), ``paper-nonlinear``,
        ``paper-movielens`` and ``paper-movielens-revised`` run an experiment as the paper's
        authors did: they bring `batch`, `inner`, `start` and the order ``logged`` with them,
        where these are not given.
    batch
        Rows of a mini-batch; 1 for per-sample steps; ``episode`` for one step per episode,
        with the average 1/H over its rows. 32 unless the schedule brings its own.
    passes
        Passes over the rows.
    average
        ``last`` iterate, ``tail`` (second half) or ``full`` average; ``auto`` is full with
        the automatic schedule (tail in linear memory) and last with others, as the paper does.
    order
        ``shuffled``: a new random order each pass, all rows in memory; ``iid``: as many
        draws with replacement, from the average visitation distribution of the log;
        ``stream``: the log's own order, shuffled within chunks of rows, in bounded memory;
        ``logged``: the log's own order, so that mini-batches are of consecutive rows;
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
    inner
        Dual steps on the moments of a mini-batch before its primal step; 0 for one of each from
        the same point, as Algorithm 1 prints them.
    restart
        Whether the dual schedule begins anew in every mini-batch, or goes on.
    keep_K
        Whether K goes on from the mini-batch before, or is zero again.
    """

    needs_rows: ClassVar[bool] = True
    has_robust_intervals: ClassVar[bool] = True
    one_solution: ClassVar[bool] = True
    uses_instruments: ClassVar[bool] = True

    schedule: Schedule | str = "auto"
    batch: int | str | None = None
    passes: int = 1
    average: str = "auto"
    order: str = "auto"
    start: float | Any = None
    start_K: float | Any = None
    memory: str = "auto"
    seed: int = 0
    target: Any = None
    flip_dual: bool = False
    inner: int | None = None
    restart: bool = True
    keep_K: bool = True

    def __post_init__(self) -> None:
        size = self.rows_of_batch
        if self.batch != "episode" and (size is None or size < 1):
            raise InputError(f"batch is {self.batch!r}; expected at least 1, or the word episode")
        if self.passes < 1:
            raise InputError(f"passes is {self.passes}; expected at least 1")
        for name, words in (("average", AVERAGES), ("order", ORDERS), ("memory", MEMORIES)):
            if (word := getattr(self, name)) not in words:
                raise InputError(f"unknown {name} {word!r}; choose from {', '.join(words)}")
        if isinstance(self.schedule, str):
            parse_schedule(self.schedule)
        if self.inner is not None and self.inner < 0:
            raise InputError(f"inner is {self.inner}; expected at least 0 dual steps")
        if self.dual_loop is None and not (self.restart and self.keep_K):
            raise InputError("restart and keep_K only apply to inner dual steps; inner is 0")
        if self.dual_loop is not None and self.memory == "linear":
            raise InputError("inner dual steps need moments, which linear memory does not allow")

    @property
    def paper_run(self) -> PaperRun | None:
        """Return what the schedule brings with it, None where it is not one of the paper's."""
        return PAPER.get(self.schedule) if isinstance(self.schedule, str) else None

    @property
    def dual_loop(self) -> DualLoop | None:
        """Return the dual steps of a mini-batch, None where there is one per primal step."""
        steps = self.paper_run.inner if self.inner is None and self.paper_run else self.inner
        return DualLoop(steps, self.restart, self.keep_K) if steps else None

    @property
    def given_schedule(self) -> Schedule | None:
        """Return the schedule, None for the automatic one."""
        return parse_schedule(self.schedule) if isinstance(self.schedule, str) else self.schedule

    @property
    def name(self) -> str:
        """The word by which the command line knows it."""
        return "sgda"

    @property
    def rows_of_batch(self) -> int | None:
        """Rows of a mini-batch, None for whole episodes."""
        if self.batch is None:
            return self.paper_run.batch if self.paper_run else BATCH
        return None if isinstance(self.batch, str) else self.batch

    @property
    def _start(self) -> Start:
        W0 = self.paper_run.start if self.start is None and self.paper_run else self.start
        return Start(W0, self.start_K)

    def is_linear(self, design: Design) -> bool:
        """Whether linear memory is requested, or advisable for these features."""
        wide = self.memory == "auto" and design.width > WIDE and self.dual_loop is None
        return self.memory == "linear" or wide

    def solve(
        self, moments: Moments, log: Log | None = None, checkpoint: Checkpoint | None = None
    ) -> Estimate:
        """Estimate W by passing over the rows of `log`; the moments judge the result."""
        if log is None:
            raise InputError("SGDA needs the rows of a log, not their moments alone")
        exact = Exact().solve(moments)
        rows = self._rows(log, moments.n)
        mean_weight = moments.weight / moments.n
        schedule, design = self.given_schedule, moments.design
        if schedule is not None:
            setup = plain_setup(design, self._start, schedule)
        else:
            burn_in = self._burn_in(rows, design)
            setup, _ = self.make_setup(burn_in, design, mean_weight, linear=False)
        descent = self._descent(setup, rows, design, mean_weight)
        state = descent.run(rows, checkpoint)
        path = [setup.phi.weights(w) for w in state.path[: state.reached]]
        return self.judged(state, setup, moments, exact, descent.points[: state.reached], path)

    def judged(
        self,
        state: NumpyState,
        setup: Setup,
        moments: Moments,
        exact: Estimate,
        points: Sequence[int],
        path: Sequence[Floats],
    ) -> Estimate:
        """Return the weights that were reached, with a verdict from the closed form.

        Where the instruments leave directions free, W has the smallest norm, as the closed form;
        the paper's runs keep there what they started with.
        """
        W = setup.phi.weights(self.chosen(state, setup))
        with np.errstate(over="ignore", invalid="ignore"):
            least = W - (W @ exact.null.T) @ exact.null
            error = distance_in_se(least, exact)
        W = least if self.paper_run is None else W
        target = exact.W if self.target is None else np.asarray(self.target, dtype=np.float64)
        trace = Trace.of(points, path, moments, target)
        trace = judge(trace, W, exact.W, error, moments)
        return replace(with_weights(moments, exact, W, setup.psi.weights(state.K)), trace=trace)

    def solve_wide(
        self,
        log: Log,
        design: Design,
        checkpoint: Checkpoint | None = None,
    ) -> tuple[Estimate, Counts]:
        """Estimate W with linear memory; there are no standard errors (`bread` is empty).

        One pass counts the rows and takes a sample of them, from which come centres, scales
        and the largest stable step; the last one checks the moment conditions.
        """
        about = survey(log, self.seed)
        rows = self._rows(log, about.n)
        setup, stable = self.make_setup(about.sample, design, about.mean_weight, linear=True)
        descent = self._descent(setup, rows, design, about.mean_weight, wide=True)
        state = descent.run(rows, checkpoint)
        W = setup.phi.weights(self.chosen(state, setup))
        conditions = _conditions(rows, design, W, about.mean_weight)
        return self.judged_by_conditions(state, setup, design, conditions, stable), about.counts

    def judged_by_conditions(
        self, state: NumpyState, setup: Setup, design: Design, conditions: Conditions, stable: float
    ) -> Estimate:
        """Return the weights that were reached, with a verdict from the moment conditions."""
        W, K = setup.phi.weights(self.chosen(state, setup)), setup.psi.weights(state.K)
        far = float("nan") if self.target is None else float(np.linalg.norm(W - self.target))
        trace = Trace((max(state.t, 1),), (float("nan"),), (far,))
        trace = judge_conditions(trace, W, conditions, stable)
        nothing, null = np.empty((0, 0)), np.empty((0, W.shape[1]))
        spread = setup.phi.scale if isinstance(setup.phi, Scaled) else np.ones(W.shape[1])
        return Estimate(
            design, W, K, conditions.noise_cov, nothing, null, spread, conditions.n, trace
        )

    def _rows(self, log: Log, n: int) -> RowSource:
        """Choose the order of the rows."""
        by_episode = self.batch == "episode"
        if self.order == "logged" or (self.order == "auto" and self.paper_run):
            return Streamed(log, n, by_episode=by_episode, as_logged=True)
        in_memory = self.order in ("shuffled", "iid")
        if in_memory or (self.order == "auto" and log.table.in_memory):
            return Shuffled(log, draws=self.order == "iid", by_episode=by_episode)
        return Streamed(log, n, by_episode=by_episode)

    def _descent(
        self,
        setup: Setup,
        rows: RowSource,
        design: Design,
        mean_weight: float,
        *,
        wide: bool = False,
    ) -> Descent:
        size = self.rows_of_batch
        if size is not None and rows.n < size:
            raise DataError(f"{rows.n} rows are fewer than one mini-batch of {size}")
        steps = self.passes * (rows.episodes if size is None else rows.n // size)
        return Descent(
            setup=setup,
            design=design,
            batch=size,
            passes=self.passes,
            seed=self.seed,
            steps=steps,
            points=[] if wide else log_points(steps),
            mean_weight=mean_weight,
            sign=-1.0 if self.flip_dual else 1.0,
            compiled=size is not None and not wide and self.dual_loop is None,
            dual=self.dual_loop,
        )

    def chosen(self, state: NumpyState, setup: Setup) -> Floats:
        """Return the iterate or the average of them that is asked for."""
        return chosen_weights(state, setup.average if self.average == "auto" else self.average)

    def make_setup(
        self, burn_in: Batch, design: Design, mean_weight: float, *, linear: bool
    ) -> tuple[Setup, float]:
        """Return coordinates, start and steps from a burn-in, and the largest stable step."""
        schedule = self.given_schedule
        rows = evaluate(design, burn_in, mean_weight)
        start = self._start
        if schedule is not None:
            setup = plain_setup(design, start, schedule)
            return setup, stable_step(*rows[:2]) if linear else float("nan")
        size = self.rows_of_batch or mean_length(burn_in)
        make = diagonal_setup if linear else automatic_setup
        return make(rows, design, start, size)

    def _burn_in(self, rows: RowSource, design: Design) -> Batch:
        """Return a few rows, or the first of a stream.

        Their order is not that of the first pass: there the start would fit the first rows
        already and learn nothing from them.
        """
        need = max(int(BURN_IN * rows.n), LEAST_BURN_IN)
        need = max(min(need, MOST_BURN_IN), 20 * len(design.psi_names))
        return next(rows.sweep(min(need, rows.n), self.seed, SweepPosition(self.passes)))[0]


def _conditions(rows: RowSource, design: Design, W: Floats, mean_weight: float) -> Conditions:
    """Check the moment conditions by one more pass."""
    conditions = Conditions.empty(len(design.outputs), len(design.psi_names))
    if np.isfinite(W).all():
        for chunk, _ in rows.sweep(CHUNK, 0, SweepPosition()):
            for part, _ in pieces(chunk, 1, piece_rows(design)):
                conditions.add(W, *evaluate(design, take_rows(chunk, part), mean_weight))
    return conditions
