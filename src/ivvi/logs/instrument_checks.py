"""Notice an instrument that is only a copy of a state or an action."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from ivvi.errors import DataError
from ivvi.logs.batch import Batch
from ivvi.logs.schema import Roles


class CopyWatch:
    """Notices an instrument column that equals a state or action column in every row.

    Such a column would not fail by itself: an instrument equal to the action turns the
    estimate into confounded least squares without a word. Each pair is compared until
    the first row that differs, which is almost always in the first batch.
    """

    def __init__(self, roles: Roles, alike: Sequence[tuple[int, int]] | None = None) -> None:
        self._roles = roles
        self._others = roles.state + roles.action
        pairs = itertools.product(range(len(roles.instrument)), range(len(self._others)))
        self._alike = list(pairs if alike is None else alike)

    @property
    def alike(self) -> tuple[tuple[int, int], ...]:
        """Pairs (instrument, other column) that have been equal so far."""
        return tuple(self._alike)

    def look(self, batch: Batch) -> None:
        """Compare the pairs that have been equal so far."""
        if not self._alike:
            return
        d_x = batch.x.shape[1]
        columns = [batch.x[:, i] for i in range(d_x)]
        columns += [batch.a[:, i] for i in range(batch.a.shape[1])]
        self._alike = [
            (j, i)
            for j, i in self._alike
            if batch.z[0, j] == columns[i][0] and np.array_equal(batch.z[:, j], columns[i])
        ]

    def check(self) -> None:
        """Refuse what stayed equal over the whole pass."""
        if self._alike:
            j, i = self._alike[0]
            role = "state" if i < len(self._roles.state) else "action"
            raise DataError(
                f"instrument column {self._roles.instrument[j]!r} equals the {role} column "
                f"{self._others[i]!r} in every row; an instrument must be a variable of its own"
            )
