"""Descent-ascent on rows as they come: a burn-in is gathered first, then every row is a step.

Rows wait until they fill a mini-batch (or an episode). They are used in the order in which they
arrive, so the result does not depend on how they are divided into deliveries.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np

from ivvi._io.files import nest, unnest
from ivvi.errors import DataError, InputError
from ivvi.estimators.convergence import Conditions
from ivvi.estimators.estimate import Estimate
from ivvi.estimators.sgda.loop import Descent, piece_rows, pieces
from ivvi.estimators.sgda.numpy_kernel import NumpyState
from ivvi.estimators.sgda.sampler import ROW_FIELDS, episode_edges, evaluate, take_rows
from ivvi.estimators.sgda.sgda import LEAST_BURN_IN, SGDA
from ivvi.estimators.two_stage_least_squares import Exact
from ivvi.features.design import Design
from ivvi.logs import Batch, concatenate
from ivvi.moments import Moments

WINDOW = 4096
"""Rows on which the moment conditions are checked, before they are used."""
LINEAR_BURN_IN, STEP_ROWS = 512, 1 << 16


class Online:
    """The state of descent-ascent between two deliveries of rows.

    Until the burn-in is whole there is no setup and no step has been taken.
    """

    def __init__(self, method: SGDA, design: Design) -> None:
        if method.passes > 1 or method.order != "auto" or method.average == "tail":
            raise InputError(
                "a stream allows one pass, in its own order: passes, order and the tail average "
                "do not apply"
            )
        self._method, self._layout = method, design
        self._linear = method.is_linear(design)
        self._waiting: Batch | None = None
        self._burn_in: Batch | None = None
        self._descent: Descent | None = None
        self._stable = 0.0
        self.state: NumpyState | None = None
        self._seen, self._checked = self._no_conditions(), self._no_conditions()

    def _no_conditions(self) -> Conditions:
        return Conditions.empty(len(self._layout.outputs), len(self._layout.psi_names))

    @property
    def _need(self) -> int:
        """Rows of the burn-in."""
        rows = (
            LINEAR_BURN_IN if self._linear else max(LEAST_BURN_IN, 20 * len(self._layout.psi_names))
        )
        return max(rows, self._method.rows_of_batch or 1)

    def add(self, rows: Batch) -> None:
        """Take the steps of these rows, and of those that waited for them."""
        if rows.weight is not None:
            rows = take_rows(rows, rows.weight > 0)
        if not len(rows):
            return
        rows = _in_row_order(rows)
        waiting = rows if self._waiting is None else concatenate([self._waiting, rows])
        if self._descent is None and len(waiting) < self._need:
            self._waiting = waiting
            return
        if self._descent is None:
            self._burn_in = take_rows(waiting, slice(0, min(len(waiting), self._need)))
            self._prepare(self._burn_in)
            self.state = self._ready.begin()[0]
        ready = self._whole(waiting)
        if ready:
            self._step(take_rows(waiting, slice(0, ready)))
        self._waiting = take_rows(waiting, slice(ready, len(waiting)))

    @property
    def _ready(self) -> Descent:
        if self._descent is None:
            need = self._need
            have = 0 if self._waiting is None else len(self._waiting)
            raise DataError(f"the stream has {have} rows; the first step needs {need}")
        return self._descent

    def _whole(self, rows: Batch) -> int:
        """Return how many of the rows make whole mini-batches; the last episode may go on."""
        size = self._method.rows_of_batch
        return len(rows) // size * size if size is not None else episode_edges(rows)[-2]

    def _prepare(self, burn_in: Batch) -> None:
        """Make the setup from the burn-in; the same rows give the same setup."""
        method, design = self._method, self._layout
        weight = 1.0 if burn_in.weight is None else float(burn_in.weight.mean())
        setup, self._stable = method.make_setup(burn_in, design, weight, linear=self._linear)
        if setup.average == "tail":  # a stream has no second half
            setup = replace(setup, average="full")
        self._descent = Descent(
            setup=setup,
            design=design,
            batch=method.rows_of_batch,
            passes=1,
            seed=method.seed,
            steps=0,
            points=(),
            mean_weight=weight,
            sign=-1.0 if method.flip_dual else 1.0,
            compiled=False,
            dual=method.dual_loop,
        )

    def _step(self, rows: Batch) -> None:
        """Check the moment conditions on rows that are still unseen, then take their steps."""
        descent = self._ready
        _, take = descent.begin()
        at_once = STEP_ROWS
        if self._linear:  # a first few steps, then rows that these have not seen
            at_once = max(LINEAR_BURN_IN, self._method.rows_of_batch or 0)
        for part, _ in pieces(rows, self._method.rows_of_batch, at_once):
            chunk = take_rows(rows, part)
            if self._linear:
                self._check(chunk, descent)
            self.state = descent.walk(self.state, take, chunk)

    def _check(self, chunk: Batch, descent: Descent) -> None:
        if self.state is None or not self.state.t:
            return
        W = descent.setup.phi.weights(self._method.chosen(self.state, descent.setup))
        for part, _ in pieces(chunk, 1, piece_rows(self._layout)):
            self._seen.add(W, *evaluate(self._layout, take_rows(chunk, part), descent.mean_weight))
        if self._seen.n >= WINDOW:
            self._checked, self._seen = self._seen, self._no_conditions()

    def estimate(self, moments: Moments | None) -> Estimate:
        """Return the weights reached so far, judged by moments or by the moment conditions."""
        descent = self._ready
        if self.state is None or not self.state.t:
            raise DataError("no mini-batch is complete yet; add more rows")
        if moments is None:
            sums = self._checked if self._checked.n else self._seen
            if not sums.n:
                raise DataError("no rows are left to check the first steps; add more rows")
            return self._method.judged_by_conditions(
                self.state, descent.setup, self._layout, sums, self._stable
            )
        W = descent.setup.phi.weights(self.state.W)
        exact = Exact().solve(moments)
        return self._method.judged(self.state, descent.setup, moments, exact, [self.state.t], [W])

    def copy(self) -> Online:
        """Return a copy of the state, to go back to if a delivery fails."""
        other = copy.copy(self)
        other.state, other._seen, other._checked = copy.deepcopy(
            (self.state, self._seen, self._checked)
        )
        return other

    def saved(self) -> dict[str, np.ndarray]:
        """Return the state as arrays."""
        arrays: dict[str, np.ndarray] = {}
        for name, rows in (("waiting", self._waiting), ("burn_in", self._burn_in)):
            if rows is not None:
                parts = {f: getattr(rows, f) for f in ROW_FIELDS}
                arrays |= nest(name, {f: v for f, v in parts.items() if v is not None})
        for name, values in (
            ("state", self.state),
            ("seen", self._seen),
            ("checked", self._checked),
        ):
            if values is not None:
                own_arrays = {f.name: np.array(getattr(values, f.name)) for f in fields(values)}
                arrays |= nest(name, own_arrays)
        return arrays

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Restore the state that `saved` returned."""
        self._waiting, self._burn_in = (_rows(unnest(n, arrays)) for n in ("waiting", "burn_in"))
        self._descent = None
        self.state = None
        if self._burn_in is not None:
            self._prepare(self._burn_in)
            self.state = NumpyState(**_numbers(unnest("state", arrays)))
        self._seen = Conditions(**_numbers(unnest("seen", arrays)))
        self._checked = Conditions(**_numbers(unnest("checked", arrays)))


def _in_row_order(rows: Batch) -> Batch:
    """Return the rows in memory as they will be when they have been saved and loaded."""
    values = {name: getattr(rows, name) for name in ROW_FIELDS}
    parts: dict[str, Any] = {
        name: None if value is None else np.ascontiguousarray(value)
        for name, value in values.items()
    }
    return Batch(**parts)


def _rows(parts: Mapping[str, Any]) -> Batch | None:
    return Batch(**parts) if parts else None


def _numbers(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    return {name: int(value) if value.ndim == 0 else value for name, value in arrays.items()}
