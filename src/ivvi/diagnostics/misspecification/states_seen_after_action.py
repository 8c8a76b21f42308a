"""States recorded after the action: columns that almost equal another state of the next row.

Such a column was written after the action of its row. It absorbs the action's effect, and makes the
fit look too good. It is normal that a state predicts its own next value exactly (an age, a day). It
is also normal that states predict each other, such as the columns of a season or a column with an
earlier value.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from ivvi._io.arrays import Floats
from ivvi.logs import Batch, Roles

EXACT = 0.999
"""Share of an output that a state alone explains, from which on it is almost the same."""
FEWEST = 20
"""Rows per state without which states may explain an output by chance."""
EARLIER = re.compile(
    r"lag|prev|prior|before|earlier|yesterday"
    r"|(?:^|[^a-z])(?:last|old|past|ago|l\d*|t-1|tm1)(?:$|[^a-z])",
    re.IGNORECASE,
)
"""Names of columns that hold earlier values of others."""


@dataclass(frozen=True, slots=True)
class Leak:
    """A state that explains the next value of another one, and the share that it explains."""

    state: str
    output: str
    share: float

    @property
    def warning(self) -> str:
        """What to know, and what to do."""
        how = "equals" if self.share > 1 - 1e-9 else "predicts"
        return (
            f"{self.state} {how} {self.output} almost exactly (R2 = {self.share:.4f}): is it known "
            "before the action? If it was written afterwards, it hides what the action does: leave "
            "it out of the state, or say --seen after (seen='after') if all states were"
        )


def leaks(head: Batch, roles: Roles) -> list[Leak]:
    """Return the states that seem to have been written after the action of their row."""
    x, names = head.x, roles.state
    following = len(roles.outputs) - len(roles.terminal) - (roles.reward is not None)
    predicted = roles.predicted[: max(0, following)]  # none in a cross-section
    if not predicted or len(head) < FEWEST * (len(names) + 1) or len(names) < 2:
        return []
    y = head.y[:, : len(predicted)]
    alone = _correlations(x, y) ** 2
    own = np.array([alone[names.index(name), j] for j, name in enumerate(predicted)])
    coded = {name for category in roles.categories for name in category.names}
    clocks: set[str] | None = None
    late: list[Leak] = []
    for i, j in np.argwhere(alone > EXACT).tolist():
        state, name = names[i], predicted[j]
        if state == name or own[j] > EXACT or {state, name} & coded or EARLIER.search(name):
            continue
        clocks = _clocks(x, y, predicted) if clocks is None else clocks
        if state not in clocks:
            late.append(Leak(state, roles.outputs[j], float(alone[i, j])))
    return late


def _correlations(x: Floats, y: Floats) -> Floats:
    """Return the correlation of each column of x with each of y, 0 where one does not vary."""
    centred, norms = [], []
    for values in (x, y):
        rest = values - values.mean(axis=0)
        norm = np.sqrt(np.einsum("ij,ij->j", rest, rest))
        constant = norm <= 1e-12 * np.sqrt(np.einsum("ij,ij->j", values, values))
        centred.append(rest)
        norms.append(np.where(constant, np.inf, norm))
    correlations: Floats = (centred[0].T @ centred[1]) / np.outer(*norms)
    return correlations


def _clocks(x: Floats, y: Floats, predicted: tuple[str, ...]) -> set[str]:
    """Name the states whose own next value all states together explain almost exactly."""
    centred = y - y.mean(axis=0)
    beside = x - x.mean(axis=0)
    rest = centred - beside @ np.linalg.lstsq(beside, centred, rcond=None)[0]
    share = (rest**2).sum(axis=0) < (1 - EXACT) * (centred**2).sum(axis=0)
    return {name for name, exact in zip(predicted, share.tolist(), strict=True) if exact}
