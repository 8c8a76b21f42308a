"""Turn the columns of a table into the numeric columns of x, a, z and y.

`encoded` makes indicators of categories, finds the columns that never change within an episode, and
says which columns of the state are predicted and which are carried along. Columns that need other
rows of the log (lags, steps from dates, leave-one-out means) are computed before, by
`ivvi.logs.columns.derived`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ivvi.categories import NO, YES, CodedColumn
from ivvi.errors import ColumnError, DataError
from ivvi.logs.columns.category_encoding import (
    check_no_numbers,
    find_categories,
    is_text,
    with_indicators,
)
from ivvi.logs.schema import Roles
from ivvi.logs.tables.arrow import as_numpy, check_keys, check_numeric, plain_type
from ivvi.logs.tables.numeric_text import check_no_text
from ivvi.logs.tables.table import BatchSource

LOOKED_AT = 1 << 16
"""Rows that are searched first for columns that never change within an episode."""
ENOUGH = 20
"""After so many rows that follow another of their episode, a column counts as never changing."""
MOST_ENDS = 10
"""Most kinds of end that a log may have."""
Expanded = Mapping[str, tuple[str, ...]]


def encoded(
    table: BatchSource,
    roles: Roles,
    categorical: Sequence[str] = (),
    lagged: Mapping[str, str] | None = None,
    followed: Sequence[str] = (),
    like: Roles | None = None,
) -> tuple[BatchSource, Roles]:
    """Return the table with the indicators of its categories, and the roles that name them.

    Parameters
    ----------
    roles
        The columns as the user names them.
    categorical
        Those that are categories though they hold numbers.
    lagged
        Columns of the state that are earlier values of others.
    followed
        Next states that were made of the states, in their order; facts that stay need none.
    like
        Roles of an earlier log, whose levels and whose carried columns are taken.
    """
    lagged = lagged or {}
    named = dict.fromkeys(roles.state + roles.action + roles.instrument + roles.next_state)
    shared = dict(zip(roles.next_state, roles.predicted, strict=False)) | dict(lagged)
    if like is None:
        categories = find_categories(table, list(named), categorical, shared)
    else:
        categories = like.categories
    _check_singles(table, roles)
    coded = {category.column for category in categories}
    amounts = [name for name in named if name not in coded]
    check_no_text(table, amounts)
    check_numeric(table.schema, amounts, table.label)
    check_keys(table.schema, roles.keys, table.label)
    table, terminal, ends = _with_ends(table, roles, like)
    expanded = {name: (name,) for name in named} | {c.column: c.names for c in categories}
    lags = set(_expand(list(lagged), expanded))
    if like is None:
        finds = roles.derived or bool(followed)
        carried = _carried(table, roles, lagged, expanded, finds=finds)
    else:
        carried = like.carried
    by_name = dict(carried)
    following = roles.next_state
    if followed:
        pairs = zip(following, roles.state, strict=False)
        following = tuple(n for n, source in pairs if not by_name.keys() & set(expanded[source]))
    state = tuple(n for n in _expand(roles.state, expanded) if n in by_name or n not in lags)
    ordered = [n for n in state if n not in by_name] + [n for n in state if n in by_name]
    made = replace(
        roles,
        state=tuple(ordered),
        action=_expand(roles.action, expanded),
        instrument=_expand(roles.instrument, expanded),
        next_state=_expand(following, expanded),
        carried=tuple((name, by_name[name]) for name in ordered if name in by_name),
        terminal=terminal,
        ends=ends,
        categories=categories,
    )
    return with_indicators(table, categories), made


def _expand(names: Sequence[str], expanded: Expanded) -> tuple[str, ...]:
    return tuple(made for name in names for made in expanded[name])


def _carried(
    table: BatchSource, roles: Roles, lagged: Mapping[str, str], expanded: Expanded, *, finds: bool
) -> tuple[tuple[str, str], ...]:
    """Return what each carried column takes on next; states that never change are found."""
    context = [name for name, _ in roles.carried]
    states = [n for n in roles.predicted if n not in lagged]
    changes = _changing(table, roles, [*states, *context])
    fixed = tuple(n for n in states if n in changes and not changes[n]) if finds else ()
    if len(fixed) == len(states):
        fixed = ()
    pairs: list[tuple[str, str]] = []
    still = set(fixed)  # whose lags say nothing more
    for name, source in lagged.items():
        if source in still:
            still.add(name)
        else:
            pairs += zip(expanded[name], expanded[source], strict=True)
    for name in (*fixed, *context):
        stays = not changes.get(name, False)
        pairs += [(made, made if stays else "") for made in expanded[name]]
    return tuple(pairs)


def _changing(table: BatchSource, roles: Roles, columns: Sequence[str]) -> dict[str, bool]:
    """Return which columns change within episodes; a missing value is not a change."""
    parts = list(roles.episode_parts) or [roles.episode or ""]
    return changing(table, parts, columns) if roles.episode and columns else {}


def changing(table: BatchSource, parts: Sequence[str], columns: Sequence[str]) -> dict[str, bool]:
    """Return which columns change within the episodes that the `parts` name, as far as known.

    Most columns change in the first rows already; those that do not are read to the end. Columns
    that are the same in all of the first rows, or of which too few rows stand beside another of
    their episode, are left out.
    """
    blocks: list[pa.RecordBatch] = []
    for block in table.batches(list(dict.fromkeys([*parts, *columns])), (), LOOKED_AT):
        blocks.append(block)
        if sum(one.num_rows for one in blocks) >= LOOKED_AT:
            break
    if not blocks:
        return {}
    episode = _episodes(blocks, parts)
    order = np.argsort(episode, kind="stable")
    if (np.diff(episode[order]) == 0).sum() < ENOUGH:
        return {}
    codes = {name: _numbered(blocks, name)[order] for name in columns}
    known = {n: _changes(episode[order], v) for n, v in codes.items() if len(set(v[v >= 0])) > 1}
    stays = [name for name, changes in known.items() if not changes]
    return known | dict.fromkeys(_changing_later(table, parts, stays), True)


def _changing_later(table: BatchSource, parts: Sequence[str], columns: Sequence[str]) -> set[str]:
    """Name the columns that change between two neighbours of an episode, anywhere in the table."""
    left, changed = list(columns), set[str]()
    before: list[pa.RecordBatch] = []
    names = list(dict.fromkeys([*parts, *columns]))
    for block in table.batches(names, (), LOOKED_AT) if columns else ():
        blocks = [*before, block]
        episode = _episodes(blocks, parts)
        changed |= {name for name in left if _changes(episode, _numbered(blocks, name))}
        left = [name for name in left if name not in changed]
        if not left:
            break
        before = [block.slice(block.num_rows - 1)]
    return changed


def _changes(episode: NDArray[np.int64], codes: NDArray[np.int64]) -> bool:
    """Return whether a value differs from the one before it in its episode, missing ones aside."""
    present = codes >= 0
    episode, codes = episode[present], codes[present]
    return bool(((np.diff(episode) == 0) & (np.diff(codes) != 0)).any())


def _episodes(blocks: Sequence[pa.RecordBatch], parts: Sequence[str]) -> NDArray[np.int64]:
    """Number the episodes of rows: one number for each combination of values."""
    episode = np.zeros(sum(block.num_rows for block in blocks), dtype=np.int64)
    for part in parts:
        numbers = _numbered(blocks, part) + 1
        episode = episode * (int(numbers.max(initial=0)) + 1) + numbers
    return episode


def _numbered(blocks: Sequence[pa.RecordBatch], name: str) -> NDArray[np.int64]:
    """Number the values of a column in order of appearance from 0; -1 where one is missing."""
    column = pa.concat_arrays([block.column(name) for block in blocks])
    encoded = column.dictionary_encode()
    codes = np.append(np.arange(len(encoded.dictionary)), -1)
    if pa.types.is_floating(encoded.dictionary.type):
        codes[:-1][np.isnan(as_numpy(encoded.dictionary))] = -1
    indices = as_numpy(encoded.indices)
    if encoded.indices.null_count:  # which came as NaN
        indices = np.where(np.isnan(indices), -1, indices).astype(np.int64)
    return np.asarray(codes[indices], dtype=np.int64)


def _check_singles(table: BatchSource, roles: Roles) -> None:
    """Refuse text where one number is needed."""
    for role, name in (("reward", roles.reward), ("weight", roles.weight)):
        if name is None:
            continue
        kind = plain_type(table.schema.field(name).type)
        if is_text(kind):
            block = next(iter(table.batches([name], (), LOOKED_AT)), None)
            words = [] if block is None else pc.unique(block.column(name)).drop_null().to_pylist()
            check_no_numbers(table, name, words)
            check_no_text(table, [name])
        if is_text(kind) or pa.types.is_temporal(kind):
            raise ColumnError(
                f"{role} column {name!r} of {table.label} holds {kind}; expected numbers"
            )


def _with_ends(
    table: BatchSource, roles: Roles, like: Roles | None
) -> tuple[BatchSource, tuple[str, ...], tuple[str, ...]]:
    """Return the table with each kind of end as 0 and 1, these columns, and the kinds' names."""
    columns: list[str] = []
    kinds: list[str] = []
    end_names: tuple[str, ...]
    for name in roles.terminal:
        if not is_text(table.schema.field(name).type):
            columns, kinds = [*columns, name], [*kinds, name]
            continue
        words = _end_words(table, name)
        named_before = like is not None and like.terminal == _of_kinds(name, like.ends).names
        if not named_before and all(word.lower() in YES + NO for word in words):
            category, end_names = _yes_or_no(table, name, words), (name,)
        else:
            end_names = _kinds(table, name, words) if like is None else like.ends
            category = _of_kinds(name, end_names)
            if len(roles.terminal) > 1:
                raise DataError(
                    f"terminal column {name!r} of {table.label} names kinds of end, but "
                    f"{len(roles.terminal)} terminal columns are given; expected only this one, "
                    "or columns of true and false"
                )
        table = with_indicators(table, (category,))
        columns, kinds = [*columns, *category.names], [*kinds, *end_names]
    return table, tuple(columns), tuple(kinds)


def _of_kinds(column: str, kinds: tuple[str, ...]) -> CodedColumn:
    """Return the column of text that names kinds of end, and nothing where an episode continues."""
    return CodedColumn(column, ("", *kinds), optional=True)


def _end_words(table: BatchSource, name: str) -> list[str]:
    """Return the nonempty values of a terminal column of text, sorted."""
    words: set[str] = set()
    for block in table.batches([name], (), 1 << 16):
        values = pc.unique(block.column(name)).to_pylist()
        words |= {word for word in values if word is not None and word.strip()}
        if len(words) > MOST_ENDS + len(YES + NO):
            break
    return sorted(words)


def _yes_or_no(table: BatchSource, name: str, words: list[str]) -> CodedColumn:
    """Return the column of a word for yes and one for no; refuse other numbers of words."""
    levels = sorted(words, key=lambda word: word.lower() in YES)
    if len(levels) != 2 or levels[0].lower() in YES or levels[1].lower() in NO:
        raise DataError(
            f"terminal column {name!r} of {table.label} holds {', '.join(levels) or 'nothing'}; "
            "expected two words, one for yes and one for no, or the name of each kind of end"
        )
    return CodedColumn(name, tuple(levels))


def _kinds(table: BatchSource, name: str, words: list[str]) -> tuple[str, ...]:
    """Return the kinds of end that a column of text names."""
    kinds = tuple(word for word in words if word.lower() not in NO)
    if strange := [word for word in kinds if word.lower() in YES]:
        other = next(word for word in kinds if word.lower() not in YES)
        raise DataError(
            f"terminal column {name!r} of {table.label} holds {other!r} and {strange[0]!r}; "
            "expected true and false, yes and no, or the name of each kind of end"
        )
    if len(kinds) > MOST_ENDS:
        raise DataError(
            f"terminal column {name!r} of {table.label} holds more than {MOST_ENDS} words, such "
            f"as {kinds[0]!r}; expected the names of a few kinds of end"
        )
    return kinds
