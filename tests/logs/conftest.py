"""What the tests of logs share."""

import numpy as np
import pytest


@pytest.fixture(scope="session")
def rows_of():
    """Return all transitions of a log as rows [x, a, z, y], sorted, and the pass's counts.

    With `numbered` each row starts with the number of its episode; weights come last.
    """

    def collect(log, *, size=1000, numbered=False):
        walk = log.batches(size=size, episodes=numbered)
        rows = []
        for batch in walk:
            parts = [batch.x, batch.a, batch.z, batch.y]
            parts = [batch.episode[:, None], *parts] if numbered else parts
            parts = parts if batch.weight is None else [*parts, batch.weight[:, None]]
            rows += np.hstack(parts).tolist()
        return sorted(rows), walk.counts

    return collect
