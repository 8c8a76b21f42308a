"""Find the column whose groups set an instrument, in a log without sequences.

A policy of a county, a ward's protocol or the price of a day is the same for all rows of its group,
so the rows are not independent draws of it. In a log of episodes and steps `instrument_paths`
detects that; in a cross-section a column of the table shows it: no instrument varies within any of
its values, while it varies between them. With q the chance that two rows have the same instruments,
n rows and G values, n - G rows agree with the first of their group by chance with probability about
q^(n - G).

A column that merely recodes the instrument (an arm's name next to its dose) is not a group. Such a
column has one value for each level or rounded number, or whole numbers that increase with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ivvi._io.arrays import Floats, Ints
from ivvi.errors import InputError
from ivvi.logs.batch import Batch
from ivvi.logs.columns.category_encoding import is_text
from ivvi.logs.columns.patterns import Columns, match_columns
from ivvi.logs.instruments.unit_and_time_columns import FEWEST_UNITS, panel_columns
from ivvi.logs.schema import Roles
from ivvi.logs.tables.arrow import as_arrow, as_numpy, is_unnamed_index, missing, plain_type
from ivvi.logs.tables.table import BatchSource

LOOKED_AT, FIRST_LOOK = 1 << 16, 1 << 11
"""Rows that are searched, and the first rows, which rule out most columns."""
MOST_COLUMNS = 200
"""Columns of the table that are compared with the instruments."""
ENOUGH_VALUES = 20
"""Values of an absorbed column that are enough to cluster by."""
MOST_UNNAMED = 40
"""Columns without a part in the log within whose values rows are compared."""
FEWEST_GROUPS = 5
"""With fewer groups no note is given: they may merely recode the levels of an instrument."""
MOST_LEVELS = 10
"""Most values of an instrument that may have been drawn row by row, such as arms or doses."""
DIGITS, ROUNDING = 3, 1e-12
"""Digits of a number that a person chose, such as a dose, and its rounding error as a float."""
ROWS_PER_GROUP = 2
ENOUGH_COURTS = 10
"""Values of an absorbed column from which on it is clustered by in the place of its groups."""
NO_ACCIDENT = 1e-6
"""Chance, over all columns, that instruments drawn by row agree within groups."""
FEWEST_SHARED, AGREE = 1.2, 5.0
"""Rows per value of a column that tells persons, and standard errors by which they agree."""
ROWS_PER_VALUE, FILLED = 5, 0.4
"""Rows for each value of an instrument, and share of the points of a grid that rounding fills."""


def set_by(table: BatchSource, roles: Roles) -> tuple[str, ...]:
    """Return the columns to cluster by where the groups of one of them set the instruments.

    It is the coarsest such column, beside the episode if that reaches over several of its groups.
    None where a log has episodes and steps, or where no column tells.
    """
    if (roles.episode and roles.step) or roles.groups:
        return ()
    instruments, others = _sources(roles, roles.instrument), _candidates(table, roles)
    episode = (roles.episode,) if roles.episode else ()
    try:
        if not others or not _repeats(_head(table, instruments, instruments), instruments):
            return ()
        rows = _head(table, [*instruments, *others, *episode], instruments)
        columns = _groups(rows, roles, others)
        group = next((name for name in columns if _holds(table, name, instruments)), None)
    except InputError:  # a column that nobody asked for need not be readable
        return ()
    if group is None:
        return ()
    in_episodes = _count(rows, episode) if episode else 0
    reaches = in_episodes < _count(rows, [*episode, group]) and in_episodes < rows.num_rows
    return (*episode, group) if reaches else (group,)


def noted(roles: Roles, absorbed: Mapping[str, int] | None = None) -> str:
    """Return a note on clustering and its reason; `absorbed` columns come with their values."""
    if (first := roles.set_by[0]) in (absorbed or {}):
        most = absorbed is not None and absorbed[first] == max(absorbed.values())
        which = "with the most values" if most else "that is no time"
        return (
            f"errors are clustered by {first}, the absorbed column {which}; if rows "
            f"of one {first} are independent, ask for robust errors (se=, --se)"
        )
    group, several = roles.set_by[-1], len(roles.instrument) > 1
    never = "instruments never vary" if several else "instrument never varies"
    text = f"errors are clustered by {group}: the {never} within it"
    if roles.next_state and roles.episode is None:
        text += "; if its rows follow each other, name it as the episode (episode=, --episode)"
    return text


def set_by_absorbed(table: BatchSource, roles: Roles, absorb: Columns) -> tuple[str, ...]:
    """Return the columns to cluster by where fixed effects are absorbed and no episode is named.

    It is the absorbed column with most values, if they are enough and come several times each; one
    that has set the instruments stays beside it. Else those that `roles` have. A column of times
    gives way to one of units (`panel_columns`), of which `FEWEST_UNITS` are enough.
    """
    if roles.episode is not None or roles.groups:
        return roles.set_by
    names = match_columns(absorb, list(table.schema.names), "absorb")
    repeated = _repeated(table, names)
    panel = panel_columns(table, names)
    times = () if panel is None else panel.times
    units = [one for one in repeated if times and one[0] not in times and one[1] >= FEWEST_UNITS]
    repeated = units or [one for one in repeated if one[1] >= ENOUGH_VALUES]
    if not repeated:
        return roles.set_by
    column = max(repeated, key=lambda one: one[1])[0]
    return tuple(dict.fromkeys((column, *roles.set_by)))


def outer_groups(table: BatchSource, groups: Sequence[str], absorb: Columns) -> tuple[str, ...]:
    """Return for each group the absorbed column whose values hold it whole, or the group itself.

    Where every judge sits in one court, an effect of the court ties its judges together: what is
    left of the rows of one depends on those of the others. Courts of `ENOUGH_COURTS` on count.
    """
    names = match_columns(absorb, list(table.schema.names), "absorb")
    outer = list(groups)
    for at, group in enumerate(groups):
        for name in names:
            pairs = _all_pairs(table, [group, name]) if name != group else None
            if pairs is None or _count(pairs, [name]) < ENOUGH_COURTS:
                continue
            if _count(pairs, [group]) == len(pairs) > _count(pairs, [name]):
                outer[at] = name
    return tuple(outer)


def _all_pairs(table: BatchSource, columns: Sequence[str]) -> pa.Table:
    """Return the combinations of values in a whole table, once each, where none is missing."""
    met: pa.Table | None = None
    for block in table.batches(list(columns), (), LOOKED_AT):
        new = _pairs(pa.Table.from_batches([block]), columns)
        met = new if met is None else _pairs(pa.concat_tables([met, new]), columns)
    return pa.table({}) if met is None else met.drop_null()


def unnamed_columns(table: BatchSource, roles: Roles) -> list[str]:
    """Name the columns that may be groups and have no part in a log."""
    used = {*_sources(roles, roles.columns), *roles.columns, *roles.set_by, roles.dates}
    return [name for name in _candidates(table, roles) if name not in used][:MOST_UNNAMED]


def own_rows_left_in(table: BatchSource, roles: Roles) -> tuple[str, ...]:
    """Return a warning, if leave-one-out means hold other rows of the same person.

    Without episodes only the row itself is left out. An unnamed column whose values come several
    times and in one group each, with actions that are alike within them, tells such rows: the sum
    of the products of their actions, less the means of the groups, is then far from zero.
    """
    if roles.episode is not None or not roles.groups:
        return ()
    group = roles.groups[0]
    others = [name for name in _candidates(table, roles) if name not in roles.groups]
    actions = [name for name in roles.action if name in table.schema.names]
    try:
        rows = _head(table, [group, *others, *actions], [group, *actions]) if others else None
    except InputError:  # a column that nobody asked for need not be readable
        return ()
    if rows is None or not len(rows):
        return ()
    outer = _numbered(rows, group)
    for name in others:
        if rows[name].null_count:
            continue
        inner = _numbered(rows, name)
        count = int(inner.max()) + 1
        nested = count == _count(rows, [name, group]) > int(outer.max()) + 1
        if (
            nested
            and count <= rows.num_rows / FEWEST_SHARED
            and _alike(rows, actions, outer, inner)
        ):
            return (
                f"the mean for {group} leaves out only the row itself, but rows with the same "
                f"{name} have the same {group} and similar {' and '.join(actions)}, and these stay "
                f"in the mean: name {name} as the episode (episode=, --episode {name}), and the "
                "outcome as the next state (next_state=, --next-state) instead of a reward",
            )
    return ()


def _alike(rows: pa.Table, actions: Sequence[str], outer: Ints, inner: Ints) -> bool:
    """Return whether actions, less the means of outer groups, agree within inner ones."""
    sizes = np.bincount(inner)
    pairs = float(np.sum(sizes * (sizes - 1)))
    for name in actions:
        a = as_numpy(rows[name].combine_chunks()).astype(float)
        a = a - (np.bincount(outer, a) / np.maximum(np.bincount(outer), 1))[outer]
        within = float(np.sum(np.bincount(inner, a) ** 2) - a @ a)
        if within > AGREE * math.sqrt(2 * pairs) * float(np.mean(a**2)):
            return True
    return False


def _numbered(rows: pa.Table, name: str) -> Ints:
    """Number the values of a column, (n,)."""
    codes: Ints = np.asarray(as_numpy(rows[name].combine_chunks().dictionary_encode().indices))
    return codes.astype(np.int64)


def few_values(head: Batch, roles: Roles) -> str:
    """Return a note if an instrument has few values for one drawn by each row, else ''.

    Numbers with more than `MOST_LEVELS` values that come `ROWS_PER_VALUE` times each, and that lie
    on no grid, as rounded ones do.
    """
    coded = {name for c in roles.categories for name in c.names}
    for name, z in zip(roles.instrument, head.z.T, strict=True):
        values = np.unique(z)
        if name in coded or not MOST_LEVELS < len(values) <= len(z) / ROWS_PER_VALUE:
            continue
        if not _is_rounded(z):
            return (
                f"{name} takes only {len(values):,} values in {len(z):,} rows: if it was set by "
                "group (county, ward, day), name the column of the group (cluster=, --cluster)"
            )
    return ""


def _repeated(table: BatchSource, names: Sequence[str]) -> list[tuple[str, int]]:
    """Return the columns whose values come several times each, and how many values they have."""
    values: dict[str, pa.Array] = {}
    rows = 0
    for block in table.batches(list(names), (), LOOKED_AT):
        rows += block.num_rows
        for name in names:
            new = pc.unique(block.column(name))
            known = [values[name], new.cast(values[name].type)] if name in values else [new]
            values[name] = pc.unique(pa.chunked_array(known))
    counts = [(name, len(one) - one.null_count) for name, one in values.items()]
    return [(name, count) for name, count in counts if 0 < count <= rows / ROWS_PER_GROUP]


def _is_rounded(z: Floats) -> bool:
    """Return whether the values of the middle rows, or their exponents, fill a grid."""
    low, high = np.quantile(z, (0.1, 0.9))
    middle = np.unique(z[(z >= low) & (z <= high)])
    scaled = middle / max(np.abs(middle).max(initial=0.0), 1e-300)
    for values in (scaled, np.exp(np.clip(middle, -50, 50))):
        gaps = np.diff(values)
        if len(gaps) < 3:
            return True
        points = FILLED * (gaps.min() + values[-1] - values[0])  # unequal ones may scale to one
        if len(values) * gaps.min() >= points:
            return True
    return False


def _sources(roles: Roles, names: Sequence[str]) -> list[str]:
    """Return the columns of the table from which numeric ones were made, once each."""
    coded = {name: c.column for c in roles.categories for name in c.names}
    return list(dict.fromkeys(coded.get(name, name) for name in names))


def _candidates(table: BatchSource, roles: Roles) -> list[str]:
    """Name the columns that may be groups: text, whole numbers and dates that nothing made."""
    outcomes = roles.action + roles.instrument + roles.next_state + roles.terminal
    taken = {*_sources(roles, outcomes), *roles.keys, *roles.episode_parts}
    taken |= {name for c in roles.categories if not c.boolean for name in c.names}
    taken |= {roles.reward or "", roles.weight or ""}
    kinds = {field.name: plain_type(field.type) for field in table.schema}
    return [
        name
        for name, kind in kinds.items()
        if name not in taken
        and not is_unnamed_index(name)
        and (is_text(kind) or pa.types.is_integer(kind) or pa.types.is_temporal(kind))
    ][:MOST_COLUMNS]


def _head(table: BatchSource, columns: Sequence[str], needed: Sequence[str]) -> pa.Table:
    """Return the first rows in which no value of the needed columns is missing."""
    blocks: list[pa.RecordBatch] = []
    for block in table.batches(list(columns), (), LOOKED_AT):
        blocks.append(block)
        if sum(one.num_rows for one in blocks) >= LOOKED_AT:
            break
    whole = pa.Table.from_batches(blocks) if blocks else table.schema.empty_table().select(columns)
    return _complete(whole.slice(0, LOOKED_AT), needed)


def _shares(rows: pa.Table, instruments: Sequence[str]) -> Floats:
    """Return the share of the rows that has each value of the instruments."""
    counts = rows.group_by(list(instruments)).aggregate([([], "count_all")])["count_all"]
    shares: Floats = as_numpy(counts.combine_chunks()) / max(rows.num_rows, 1)
    return shares


def _repeats(rows: pa.Table, instruments: Sequence[str]) -> bool:
    """Return whether the instruments vary, and their values come several times each."""
    return bool(1 < _count(rows, instruments) <= rows.num_rows / ROWS_PER_GROUP)


def _groups(rows: pa.Table, roles: Roles, others: Sequence[str]) -> list[str]:
    """Name the columns within which no instrument of the first rows varies, the coarsest first."""
    instruments = _sources(roles, roles.instrument)
    shares = _shares(rows, instruments)
    unlike = -math.log(float(np.sum(shares**2)))
    groups_in: dict[str, int] = {}
    for name in others:
        if rows[name].null_count or _varies(rows.slice(0, FIRST_LOOK), name, instruments):
            continue
        pairs, groups = _pairs(rows, [name, *instruments]), _count(rows, [name])
        enough = FEWEST_GROUPS <= groups <= rows.num_rows / ROWS_PER_GROUP
        by_chance = (rows.num_rows - groups) * unlike < math.log(len(others) / NO_ACCIDENT)
        renamed = groups == len(shares) and _says_the_same(pairs)
        if len(pairs) == groups and enough and not by_chance and not renamed:
            groups_in[name] = groups
    return sorted(groups_in, key=lambda name: groups_in[name])


def _says_the_same(pairs: pa.Table) -> bool:
    """Return whether a column merely recodes the instrument: one value for each of its values."""
    kinds = [plain_type(field.type) for field in pairs.schema]
    if any(map(is_text, kinds[1:])):
        return True
    columns = pairs.sort_by(pairs.column_names[0]).columns[1:]
    values = [as_numpy(column.combine_chunks()).astype(float) for column in columns]
    if all(_is_short(z).all() if len(z) <= MOST_LEVELS else _is_rounded(z) for z in values):
        return True  # doses and arms, years and percentages
    grows = [(np.diff(z) > 0).all() or (np.diff(z) < 0).all() for z in values]
    return bool(pa.types.is_integer(kinds[0]) and any(grows))


def _is_short(values: Floats) -> np.ndarray:
    """Return which numbers have at most `DIGITS` digits that count."""
    short = np.array([float(f"{value:.{DIGITS}g}") for value in values])
    return np.asarray(np.abs(short - values) <= ROUNDING * np.abs(values))


def _holds(table: BatchSource, name: str, instruments: Sequence[str]) -> bool:
    """Return whether no instrument varies within a column's values in the whole table."""
    if table.num_rows is not None and table.num_rows <= LOOKED_AT:
        return True
    met: pa.Table | None = None
    for block in table.batches([name, *instruments], (), LOOKED_AT):
        rows = pa.Table.from_batches([block])
        if rows[name].null_count:
            return False
        new = _pairs(_complete(rows, instruments), [name, *instruments])
        met = new if met is None else _pairs(pa.concat_tables([met, new]), new.column_names)
        if len(met) > _count(met, [name]):
            return False
    return True


def _varies(rows: pa.Table, name: str, instruments: Sequence[str]) -> bool:
    return _count(rows, [name, *instruments]) > _count(rows, [name])


def _count(rows: pa.Table, columns: Sequence[str]) -> int:
    return int(_pairs(rows, columns).num_rows)


def _pairs(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return the combinations of values of some columns, once each."""
    return rows.group_by(list(columns)).aggregate([]).select(list(columns))


def _complete(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return the rows that have a value in all of some columns."""
    absent = [missing(rows[name].combine_chunks()) for name in columns] if len(rows) else []
    return rows.filter(as_arrow(~np.logical_or.reduce(absent))) if absent else rows
