"""Warnings about the rows of a log: late states, codes, gaps in the steps, copies, cut-off values.

Each is a sentence that names the column, what was found, and the remedy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ivvi._io.arrays import Bools, Floats, Ints
from ivvi.categories import levels_alike, levels_unknown
from ivvi.diagnostics.misspecification.category_codes import category_codes
from ivvi.diagnostics.misspecification.filled_values import filled_values
from ivvi.diagnostics.misspecification.filtered_rows import filtered_rows
from ivvi.diagnostics.misspecification.lost_rows import lost_rows
from ivvi.diagnostics.misspecification.mixed_units import mixed_units
from ivvi.diagnostics.misspecification.next_state_units import next_state_doubts
from ivvi.diagnostics.misspecification.own_action_in_instrument import own_means
from ivvi.diagnostics.misspecification.states_seen_after_action import leaks
from ivvi.errors import InputError
from ivvi.logs import Batch, Counts, Log, Roles
from ivvi.logs.columns.missing_codes import missing_codes
from ivvi.logs.columns.times import as_dates
from ivvi.logs.evenly_spaced_rows import spread
from ivvi.logs.tables.arrow import is_unnamed_index

MOST = 3
"""Most columns that one kind of warning names."""
MOST_ROWS = 8192
"""Most rows that are looked at."""
MOST_COLUMNS = 200
"""Most columns of a table by which copies are told from other rows."""
MANY_GAPS = 0.05
"""Share of the rows with a later one in their episode whose next step is not the next number."""
MANY_COPIES = 0.01
"""Share of rows that are copies of another."""
FEWEST_COPIED = 3
"""Rows that must have copies: a few amounts may be usual, such as a benefit that is the same for
all."""
CONTINUOUS = 0.9
"""Values per distinct row that some column must have for copies not to be chance."""
MOSTLY = 0.5
"""Share of the values of a column that come again which only equal rows hold."""
FEW_CELLS, SHUFFLES, BY_CHANCE = 30, 40, 0.05
"""Rows that are a small table of counts, shuffles of the columns of others, and the share of these
in which no two rows are alike from which on that is no sign of a table of counts."""
PILED, RARE = 0.05, 0.2
"""Share of rows at one end of an outcome, and how often, next to it, any other value may occur."""
FEWEST_OTHERS = 20
"""Other values that an outcome must have."""
WHOLE = (1.0, 100.0)
"""The largest share, and the largest percentage."""
ROUNDING = 1e-9
"""Difference of sums of the same numbers in another order."""


def data_warnings(
    log: Log, head: Batch, rows: Batch, counts: Counts, *, linear: bool
) -> tuple[str, ...]:
    """Return warnings about the transitions of a log, from its `head`, some rows and its counts."""
    if log.is_residual or not len(head):
        return ()
    units, own = mixed_units(head, log.roles), own_means(head, log.roles)
    head = rows
    missing = missing_codes(head, log.roles)
    is_made = getattr(log.table, "copies_are_meant", False)  # such as differences, which may be 0
    known = {one.column for one in missing}
    filled = [] if is_made else filled_values(head, log.roles, known)
    codes = category_codes(head, log.roles) if linear else []
    late = leaks(head, log.roles)
    named = [one.warning for doubts in (late, missing, codes) for one in doubts[:MOST]]
    texts = (
        own,
        *named,
        *units,
        *next_state_doubts(head, log.roles),
        *filled[:MOST],
        *levels_alike(log.roles.categories),
        *levels_unknown(log.roles.categories),
        lost_in_gaps(log, counts),
        lost_rows(log),
        filtered_rows(log),
        copied_rows(head, log),
        counted_rows(head, log.roles),
    )
    return tuple(text for text in texts if text)


def lost_in_gaps(log: Log, counts: Counts) -> str:
    """Return a warning if many rows have no next state because step numbers leave gaps, else ''."""
    roles = log.roles
    made = roles.where or dict(roles.asked).get("every") or dict(roles.asked).get("lags")
    lost = counts.gaps - counts.missing
    if made or lost <= MANY_GAPS * (lost + counts.transitions):
        return ""
    steps = _first_steps(log)
    examples = ", ".join(f"{step:.15g}" for step in steps[:6])
    remedy = "--context dt (context='dt'), which adds the time to the next row to the model"
    if (word := as_dates(steps)) is not None:
        remedy = f"--date-format {word} (date_format={word!r}), if these are dates"
    return (
        f"{lost:,} of {counts.rows:,} rows are dropped only because {roles.step} does not increase "
        f"by one to the next row of the same {roles.episode} (values such as {examples}); if the "
        f"next row holds the next state anyway, use {remedy}"
    )


def copied_rows(head: Batch, log: Log) -> str:
    """Return a warning if rows of a cross-section are copies of others, else ''.

    They are none if a column of the table that has no part in the log, such as an id, differs.
    Those who bought nothing are alike by themselves: only rows count that hold a value which no
    other rows do.
    """
    roles = log.roles
    if roles.episode is not None or roles.frequency:
        return ""
    columns = [column for part in (head.x, head.a, head.z, head.y) for column in part.T]
    factors, keys = np.random.default_rng(0).normal(size=len(columns)), np.zeros(len(head))
    for factor, column in zip(factors.tolist(), columns, strict=True):
        keys += factor * column
    copies = int(np.count_nonzero(np.diff(np.sort(keys)) == 0))
    if copies <= max(2, MANY_COPIES * len(head)):
        return ""
    rows = np.column_stack(columns)
    _, first, group = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    group = group.ravel()
    apart = np.ones(len(rows), dtype=bool)
    if head.clusters:  # copies within a cluster are counted once already
        apart[:] = False
        apart[np.unique(np.column_stack([group, *head.clusters]), axis=0, return_index=True)[1]] = 1
    telling = _hold_a_value_alone(rows, group)
    more = (np.bincount(group[apart]) - 1)[telling]
    copies, copied = int(more.sum()), int(np.count_nonzero(more))
    if copied < FEWEST_COPIED or copies <= MANY_COPIES * len(rows):
        return ""
    most = max(len(np.unique(column)) for column in rows[first].T)
    if most < CONTINUOUS * len(first) or not _are_copies(log, len(rows)):
        return ""
    return (
        f"{copies:,} of {len(rows):,} rows are exact copies of another row: standard "
        "errors count each as a new observation and are too small; remove the copies, or cluster "
        "by the column that identifies what was observed twice (cluster=, --cluster)"
    )


def _hold_a_value_alone(rows: Floats, group: Ints) -> Bools:
    """Return which groups of equal rows (n, d) hold a value of a column that no other does.

    Most values of the column that come again must do so in equal rows: cents meet by chance.
    """
    size, first = np.bincount(group), np.unique(group, return_index=True)[1]
    alone = np.zeros(len(size), dtype=bool)
    for column in rows.T:
        _, value, count = np.unique(column, return_inverse=True, return_counts=True)
        again, groups = count > 1, np.bincount(value[first])
        if np.count_nonzero(again & (groups == 1)) >= MOSTLY * np.count_nonzero(again):
            alone |= count[value[first]] == size
    return alone


def counted_rows(head: Batch, roles: Roles) -> str:
    """Return a warning if weights seem to count the people of each row, else ''.

    They are whole numbers, every combination of values comes once, and every column has few. In a
    survey no two people need be alike either: then they are not if its columns are shuffled.
    """
    if roles.episode is not None or roles.weight is None or roles.frequency or head.weight is None:
        return ""
    n, total = len(head), float(head.weight.sum())
    if (head.weight != np.round(head.weight)).any() or total <= 2 * n:
        return ""
    rows = np.column_stack([head.x, head.a, head.z, head.y])
    if 2 * max(len(np.unique(column)) for column in rows.T) > n:
        return ""
    if len(np.unique(rows, axis=0)) < n or (n > FEW_CELLS and _differ_by_chance(rows)):
        return ""
    return (
        f"{roles.weight} holds whole numbers, {total:,.0f} in all, and no two of {n:,} rows are "
        f"alike: if {roles.weight} counts the people of each row, say so (weight_kind='frequency', "
        "--weight-kind frequency), or the instruments look weaker than they are"
    )


def _differ_by_chance(rows: Floats) -> bool:
    """Return whether no two rows (n, d) are alike in some shuffles of the columns either."""
    rng = np.random.default_rng(0)
    codes = [np.unique(column, return_inverse=True)[1] for column in rows.T]
    numbers = [rng.normal(size=code.max() + 1)[code] for code in codes]
    differ = 0
    for _ in range(SHUFFLES):
        keys = np.sort(np.sum([rng.permutation(one) for one in numbers], axis=0))
        differ += bool((np.diff(keys) > ROUNDING).all())
    return differ > BY_CHANCE * SHUFFLES


def _are_copies(log: Log, rows: int) -> bool:
    """Return whether many of some rows are the same in the other columns of the table too.

    A column without a name, which numbers the rows of the file it was read from, says nothing.
    """
    names = [
        field.name
        for field in log.table.schema
        if not pa.types.is_nested(field.type) and not is_unnamed_index(field.name)
    ]
    names = [name for name in names if name and not name.startswith("Unnamed: ")][:MOST_COLUMNS]
    try:
        block = next(iter(log.shortened(rows).table.batches(names, (), 2 * rows)), None)
    except InputError:  # a column that nobody asked for need not be readable
        return True
    if block is None:
        return True
    different = pa.Table.from_batches([block]).group_by(names).aggregate([]).num_rows
    return bool(block.num_rows - different > max(2, MANY_COPIES * block.num_rows))


def cut_off(head: Batch, outputs: Sequence[str]) -> str:
    """Return a warning if an outcome piles up at one end, as if values were cut off there, else ''.

    Zeros below all others are ordinary: nothing was bought, nobody worked. So are shares of 1, or
    100%, above all others: nobody can attend more than all lessons.
    """
    if not len(head):
        return ""
    y = spread(head, MOST_ROWS).y
    for end, word in ((y.max(axis=0), "largest"), (y.min(axis=0), "smallest")):
        shares = (y == end).mean(axis=0)
        for j in np.flatnonzero((shares >= PILED) & (shares < 1)).tolist():
            value, share = float(end[j]), float(shares[j])
            others, counts = np.unique(y[y[:, j] != value, j], return_counts=True)
            often = counts.max() > RARE * share * len(y)
            natural = value == 0 if word == "smallest" else value in WHOLE and others[0] >= 0
            if len(others) < FEWEST_OTHERS or often or natural:
                continue
            return (
                f"{share:.0%} of {outputs[j]} are exactly {value:.6g}, its {word} value: if values "
                "beyond it were cut off there (a top code, a limit of detection), effects on "
                f"{outputs[j]} are understated; use the values before the cut, or report them as "
                "effects on the recorded value"
            )
    return ""


def _first_steps(log: Log) -> np.ndarray:
    """Return the steps of an episode with a gap, in order."""
    keys = log.roles.keys
    block = next(iter(log.ordered_table.batches(list(keys), (), 1 << 12)))
    episode, step = (block.column(key).to_pylist() for key in keys)
    by_episode: dict[object, list[float]] = {}
    for one, at in zip(episode, step, strict=True):
        by_episode.setdefault(one, []).append(float(at))
    steps = [np.array(one) for one in by_episode.values()]
    return next((one for one in steps if (np.diff(one) != 1).any()), steps[0])
