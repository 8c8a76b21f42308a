"""What the first rows of a log make one doubt: codes of missing values, codes read as numbers.

Each doubt is a sentence that names the column, what was seen, and the remedy.
"""

from __future__ import annotations

from ivvi.logs.batch import Batch
from ivvi.logs.log import Log
from ivvi.logs.missing_codes import missing_codes

MOST = 3
"""Columns that are named for one kind of doubt."""


def data_doubts(log: Log, head: Batch) -> tuple[str, ...]:
    """Return the doubts that the first transitions of a log, `head`, raise."""
    if log.is_residual or not len(head):
        return ()
    codes = missing_codes(head, log.roles)
    return tuple(one.warning for one in codes[:MOST])
