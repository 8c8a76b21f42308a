"""Running descent-ascent over the rows: chunks, pieces, kernels and checkpoints."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np

from ivvi._io.arrays import Floats
from ivvi._io.checkpoint import Checkpoint
from ivvi._io.files import Saved, nest, unnest
from ivvi.estimators.sgda import numpy_kernel
from ivvi.estimators.sgda.preconditioning import Setup
from ivvi.estimators.sgda.sampler import (
    RowSource,
    SweepPosition,
    episode_edges,
    evaluate,
    take_rows,
)
from ivvi.features.design import Design
from ivvi.logs import Batch

CHUNK = 1 << 14
"""Rows that are read at once, and within which a stream is shuffled."""
PIECE_BYTES = 16 << 20
"""Size of the features that are in memory at once."""
STAGE = "descent"


@dataclass(frozen=True, slots=True)
class Descent:
    """All passes over the rows.

    Attributes
    ----------
    setup, design
        Start, coordinates, steps; features.
    batch
        Rows of a mini-batch, or None for whole episodes.
    passes, seed
        How often to go over the rows, and the seed of their order.
    steps, points
        Number of steps in all, and those at which W is recorded.
    mean_weight
        Mean of the row weights.
    sign
        Of the dual step.
    compiled
        Whether the steps are compiled (JAX) or plain NumPy.
    dual
        The dual steps of a mini-batch, where they are not one beside each primal step.
    """

    setup: Setup
    design: Design
    batch: int | None
    passes: int
    seed: int
    steps: int
    points: Sequence[int]
    mean_weight: float
    sign: float
    compiled: bool
    dual: numpy_kernel.DualLoop | None = None

    def run(self, rows: RowSource, checkpoint: Checkpoint | None = None) -> numpy_kernel.NumpyState:
        """Take all steps, and resume where an earlier run was interrupted."""
        size = CHUNK if self.batch is None else max(self.batch, CHUNK // self.batch * self.batch)
        with _double_precision(self.compiled):
            state, take = self.begin()
            state, place = self._resume(state, checkpoint)
            for sweep in range(place.sweep, self.passes):
                start = place if sweep == place.sweep else SweepPosition(sweep)
                for chunk, after in rows.sweep(size, self.seed, start):
                    state = self.walk(state, take, chunk)
                    if not np.isfinite(np.asarray(state.W)).all():
                        return _as_numpy(state)  # there is no way back from infinity
                    if checkpoint is not None:
                        checkpoint.offer(STAGE, partial(_saved, state, after))
            if checkpoint is not None:
                checkpoint.offer(
                    STAGE, partial(_saved, state, SweepPosition(self.passes)), now=True
                )
            return _as_numpy(state)

    def begin(self) -> tuple[Any, Callable[..., Any]]:
        """Return the first state and the function that takes steps."""
        setup, n_points = self.setup, len(self.points)
        settings: dict[str, Any] = {
            "schedule": setup.schedule,
            "sign": self.sign,
            "tail": self.steps // 2,
        }
        d_psi = setup.K0.shape[1]
        if not self.compiled:
            state = numpy_kernel.NumpyState.begin(setup.W0, d_psi, n_points)
            state.K += setup.K0

            def take(state: Any, Phi: Floats, Psi: Floats, Y: Floats, edges: list[int]) -> Any:
                return numpy_kernel.advance(
                    state, Phi, Psi, Y, edges, points=self.points, dual=self.dual, **settings
                )

            return state, take
        jnp, jax_kernel = _by_name("jax.numpy"), _by_name("ivvi.estimators.sgda.jax_kernel")
        begun = jax_kernel.JaxState.begin(setup.W0, d_psi, n_points)
        begun = replace(begun, K=jnp.asarray(setup.K0))
        points = jnp.asarray(self.points)

        def take_compiled(state: Any, Phi: Floats, Psi: Floats, Y: Floats, edges: list[int]) -> Any:
            parts = (block.reshape(len(edges) - 1, edges[1], -1) for block in (Phi, Psi, Y))
            return jax_kernel.advance(state, *parts, points=points, **settings)

        return begun, take_compiled

    def _resume(self, state: Any, checkpoint: Checkpoint | None) -> tuple[Any, SweepPosition]:
        """Return the state and the place to resume from."""
        saved = checkpoint.stage(STAGE) if checkpoint is not None else None
        if saved is None:
            return state, SweepPosition()
        facts, arrays = saved
        values: dict[str, Any] = dict(unnest("state", arrays))
        if self.compiled:
            jnp = _by_name("jax.numpy")
            values = {name: jnp.asarray(value) for name, value in values.items()}
        else:
            values = {n: int(v) if v.ndim == 0 else v for n, v in values.items()}
        return replace(state, **values), SweepPosition.restore(facts, unnest("position", arrays))

    def walk(self, state: Any, take: Callable[..., Any], chunk: Batch) -> Any:
        """Take the steps of one chunk, a piece at a time."""
        setup = self.setup
        for part, edges in pieces(chunk, self.batch, piece_rows(self.design)):
            Phi, Psi, Y = evaluate(self.design, take_rows(chunk, part), self.mean_weight)
            state = take(state, setup.phi.of(Phi), setup.psi.of(Psi), Y, edges)
        return state


def piece_rows(design: Design) -> int:
    """Return how many rows have features that fit in a piece."""
    return max(1, PIECE_BYTES // (8 * (len(design.phi_names) + len(design.psi_names))))


def pieces(chunk: Batch, batch: int | None, most: int) -> Iterator[tuple[slice, list[int]]]:
    """Cut a chunk into slices of about `most` rows, each with the edges of its mini-batches."""
    if batch is None:
        edges = np.array(episode_edges(chunk))
    else:
        edges = np.arange(0, len(chunk) // batch * batch + 1, batch)
    i = 0
    while i < len(edges) - 1:
        j = max(i + 1, int(np.searchsorted(edges, edges[i] + most, side="right")) - 1)
        yield slice(int(edges[i]), int(edges[j])), (edges[i : j + 1] - edges[i]).tolist()
        i = j


def chosen_weights(state: numpy_kernel.NumpyState, average: str) -> Floats:
    """Return the last iterate, or the average of the second half or of all of them."""
    if average == "last":
        return state.W
    if average == "tail":
        return state.tail_sum / max(state.tail_count, 1)
    return state.full_sum / max(state.t, 1)


def _saved(state: Any, place: SweepPosition) -> Saved:
    facts, rows = place.saved()
    arrays = {f.name: np.array(getattr(state, f.name)) for f in fields(state)}
    return facts, {**nest("state", arrays), **nest("position", rows)}


def _as_numpy(state: Any) -> numpy_kernel.NumpyState:
    arrays = {f.name: np.asarray(getattr(state, f.name)) for f in fields(numpy_kernel.NumpyState)}
    values: dict[str, Any] = {n: int(v) if v.ndim == 0 else v for n, v in arrays.items()}
    return numpy_kernel.NumpyState(**values)


def _double_precision(compiled: bool) -> contextlib.AbstractContextManager[Any]:
    if not compiled:
        return contextlib.nullcontext()
    return _by_name("jax").enable_x64(True)  # type: ignore[no-any-return]


def _by_name(module: str) -> Any:
    """Import what only the compiled kernel needs; by name, so that no statement brings JAX."""
    return importlib.import_module(module)
