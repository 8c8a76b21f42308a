"""Are the next states that a table holds neither copies of its states nor in another unit?"""

from __future__ import annotations

import numpy as np

from ivvi._io.arrays import Floats
from ivvi.diagnostics.misspecification.mixed_units import CONVERSIONS
from ivvi.errors import DataError
from ivvi.logs import Batch, Roles

FEWEST = 20
"""Rows from which on equal columns are no chance."""
TENTH, HUNDREDTH = 10.0, 100.0
"""Least factors between two units that a step does not bring about: where the means lie apart too,
and where they are near zero."""
APART, NEAR, NEAR_SPREAD = 3.0, 1.0, 0.7
"""Standard deviations between the means of state and next state, and, after the conversion, the
most between these and between the logarithms of their spreads."""
SAME_SPREAD = 0.35
"""The same for temperatures, whose scales lie so close that incomes which triple look converted."""
ALIKE = 0.5
"""Least correlation of a state with its next value: other columns are other outcomes."""


def next_state_doubts(head: Batch, roles: Roles) -> list[str]:
    """Return a warning for each next state in another unit; refuse next states that are copies."""
    if roles.derived or not roles.next_state or len(head) < FEWEST:
        return []
    coded = {name for category in roles.categories for name in category.names}
    names = [(i, j) for j, i in enumerate(map(roles.state.index, roles.predicted))]
    amounts = [(i, j) for i, j in names if j < len(roles.next_state)]
    same = [i for i, j in amounts if np.array_equal(head.x[:, i], head.y[:, j])]
    if same and len(same) == len(amounts) and roles.reward is None and np.ptp(head.x[:, same]) > 0:
        raise DataError(
            f"the next state {roles.next_state[0]!r} equals the state {roles.state[same[0]]!r} in "
            "every row, so nothing is learned of what the action does; expected the state after "
            "the action: name another column (next_state=, --next-state), or episode and step, "
            "from which next states are found"
        )
    texts = []
    for i, j in amounts:
        words = "" if roles.state[i] in coded else _other_unit(head.x[:, i], head.y[:, j])
        if words:
            state, following = roles.state[i], roles.next_state[j]
            texts.append(
                f"{following} seems to be in another unit than {state}: {words}; convert one of "
                "them in the table, since a plan takes the one for the other"
            )
    return texts


def _other_unit(x: Floats, y: Floats) -> str:
    """Return a warning if a next state is its state in another unit, else ''."""
    sd, sd_y, mean, mean_y = float(x.std()), float(y.std()), float(x.mean()), float(y.mean())
    if not (sd > 0 and sd_y > 0):
        return ""
    far = abs(mean_y - mean) > APART * sd
    if not far and abs(np.log(sd_y / sd)) < np.log(HUNDREDTH) - NEAR_SPREAD:
        return ""
    for factor, shift, _ in CONVERSIONS:
        most = SAME_SPREAD if shift else NEAR_SPREAD
        for scale, constant in ((factor, shift), (1 / factor, -shift / factor)):
            apart = abs(mean_y - scale * mean - constant) / sd_y
            near = apart < NEAR and abs(np.log(sd_y / (scale * sd))) < most
            if near and ((far and (factor >= TENTH or shift)) or factor >= HUNDREDTH):
                same = float(np.corrcoef(x, y)[0, 1]) >= ALIKE and len(np.unique(x)) >= FEWEST
                return f"its mean is {mean_y:.4g} beside {mean:.4g}" if same else ""
    return ""
