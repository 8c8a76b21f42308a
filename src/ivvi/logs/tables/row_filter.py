"""Filters of rows, such as ``age >= 18 and ward != 'ICU'``.

The text is parsed by Python and never run: only comparisons of columns with numbers, text and
other columns, ``in`` with a list, and, or, not and parentheses are allowed, and Arrow computes
them batch by batch. A name that is not a Python name goes in backticks: `` `Price paid` > 3 ``.
A comparison with a missing value is neither true nor false, as in SQL: such a row is removed.
"""

from __future__ import annotations

import ast
import functools
import re
import warnings
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ivvi.errors import ColumnError, InputError, nearest
from ivvi.logs.tables.arrow import first_line, plain_type

ORDER: dict[type[ast.cmpop], Any] = {
    ast.Eq: pc.equal,
    ast.NotEq: pc.not_equal,
    ast.Lt: pc.less,
    ast.LtE: pc.less_equal,
    ast.Gt: pc.greater,
    ast.GtE: pc.greater_equal,
}
QUOTED = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|`([^`]+)`""")
EXPECTED = "expected comparisons such as \"age >= 18 and ward != 'ICU'\""


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Tells which rows of a table to keep.

    Attributes
    ----------
    text
        The filter as it was written.
    tree
        The same, parsed and checked against the columns of a table.
    columns, numeric
        Columns that it looks at, and those of them that are numbers.
    """

    text: str
    tree: ast.expr
    columns: tuple[str, ...]
    numeric: tuple[str, ...]

    @classmethod
    def of(cls, text: str, schema: pa.Schema, label: str) -> RowFilter:
        """Parse a filter for tables of this schema, or refuse it."""
        parser = _Parser(text, schema, label)
        tree = parser.parsed()
        names = tuple(dict.fromkeys(n.id for n in ast.walk(tree) if isinstance(n, ast.Name)))
        kinds = {name: plain_type(schema.field(name).type) for name in names}
        numeric = tuple(n for n in names if _kind(kinds[n]) == "numbers" and kinds[n] != pa.bool_())
        row_filter = cls(text, tree, names, numeric)
        empty = [pa.nulls(0, kind) for kind in kinds.values()]
        try:
            row_filter.keeps(pa.RecordBatch.from_arrays(empty, list(kinds)))
        except (pa.ArrowException, RecursionError) as error:
            raise ColumnError(
                f"the filter {text!r} does not fit the columns of {label}: {first_line(error)}"
            ) from error
        return row_filter

    def keeps(self, rows: pa.RecordBatch) -> pa.BooleanArray:
        """Return which rows are kept, (n,); null counts as no."""
        return _truth(self.tree, rows)


class _Parser:
    """Parses a filter and checks each part of it; positions count characters from 1."""

    def __init__(self, text: str, schema: pa.Schema, label: str) -> None:
        self.text, self.schema, self.label = text, schema, label
        self.aliases: dict[str, str] = {}
        flat = re.sub(r"\s", " ", text)
        self.source = QUOTED.sub(self._alias, flat)  # of the same length
        self.indent = len(flat) - len(flat.lstrip())

    def _alias(self, match: re.Match[str]) -> str:
        """Put a Python name in the place of one in backticks."""
        if match[1] is None:
            return match[0]
        name = f"_{len(self.aliases)}".ljust(len(match[0]), "_")
        self.aliases[name] = match[1]
        return name

    def parsed(self) -> ast.expr:
        try:
            with warnings.catch_warnings():  # of strange escapes in texts
                warnings.simplefilter("ignore", SyntaxWarning)
                tree = ast.parse(self.source[self.indent :], mode="eval").body
            for node in ast.walk(tree):
                if isinstance(node, ast.Name):
                    node.id = self.aliases.get(node.id, node.id)
            self._condition(tree)
        except InputError:
            raise
        except SyntaxError as error:
            at_end = not error.offset or (error.lineno or 1) > 1
            place = len(self.text) + 1 if at_end else self.indent + int(error.offset or 1)
            raise self._error(place) from None
        except (ValueError, RecursionError, MemoryError):
            raise self._error(1) from None
        return tree

    def _error(self, place: int) -> InputError:
        where = f"at character {place}" if place <= len(self.text) else "at its end"
        return InputError(f"the filter {self.text!r} does not parse {where}; {EXPECTED}")

    def _place(self, node: ast.expr) -> int:
        line = self.source[self.indent :].encode()
        return self.indent + len(line[: node.col_offset].decode()) + 1

    def _condition(self, node: ast.expr) -> None:
        """Check what must be true or false."""
        if isinstance(node, ast.BoolOp):
            for value in node.values:
                self._condition(value)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            self._condition(node.operand)
        elif isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
            for left, op, right in zip(operands, node.ops, operands[1:], strict=False):
                self._comparison(left, op, right)
        elif not (isinstance(node, ast.Name) and self._type(node) == pa.bool_()):
            raise self._error(self._place(node))

    def _comparison(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> None:
        if isinstance(op, ast.In | ast.NotIn) and isinstance(right, ast.List | ast.Tuple | ast.Set):
            if not isinstance(left, ast.Name) or not right.elts:
                raise self._error(self._place(left if right.elts else right))
            for one in right.elts:
                self._constant(one)
                self._comparison(left, ast.Eq(), one)
            return
        if type(op) not in ORDER:
            raise self._error(self._place(right))
        sides = [node if isinstance(node, ast.Name) else None for node in (left, right)]
        if sides == [None, None]:
            raise self._error(self._place(left))
        kinds = [
            _kind(self._type(node)) if isinstance(node, ast.Name) else self._constant(node)
            for node in (left, right)
        ]
        dated = "times" in kinds and "text" in kinds and None in sides
        if kinds[0] != kinds[1] and "nothing" not in kinds and not dated:
            name = next(node.id for node in sides if node is not None)
            raise ColumnError(
                f"the filter {self.text!r} compares {kinds[0]} with {kinds[1]} at character "
                f"{self._place(left)}; column {name!r} of {self.label} holds {self._type(name)}"
            )

    def _type(self, column: ast.Name | str) -> pa.DataType:
        name = column if isinstance(column, str) else column.id
        if name not in self.schema.names:
            hint = nearest(name, self.schema.names)
            raise ColumnError(
                f"the filter {self.text!r} names {name!r}, which is not a column of "
                f"{self.label}{hint}"
            )
        kind: pa.DataType = plain_type(self.schema.field(name).type)
        return kind

    def _constant(self, node: ast.expr) -> str:
        try:
            return "text" if isinstance(_value(node), str) else "numbers"
        except (TypeError, OverflowError):
            raise self._error(self._place(node)) from None


def _kind(kind: pa.DataType) -> str:
    """Return the kind of values that a type can be compared with."""
    is_a = pa.types
    if is_a.is_null(kind):
        return "nothing"
    if is_a.is_string(kind) or is_a.is_large_string(kind):
        return "text"
    if is_a.is_date(kind) or is_a.is_timestamp(kind):
        return "times"
    numeric = (is_a.is_integer, is_a.is_floating, is_a.is_decimal, is_a.is_boolean)
    return "numbers" if any(test(kind) for test in numeric) else str(kind)


def _value(node: ast.expr) -> float | str:
    """Return a number or a text that stands in a filter."""
    sign = 1
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        sign = -1 if isinstance(node.op, ast.USub) else 1
        node = node.operand
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            raise TypeError
    value = node.value if isinstance(node, ast.Constant) else None
    if isinstance(value, str):
        return value
    if not isinstance(value, int | float):
        raise TypeError
    return sign * (int(value) if abs(value) < 2**63 and value == int(value) else float(value))


def _truth(node: Any, rows: pa.RecordBatch) -> pa.BooleanArray:
    """Evaluate a condition that the parser has checked, (n,)."""
    if isinstance(node, ast.BoolOp):
        joins = pc.and_kleene if isinstance(node.op, ast.And) else pc.or_kleene
        return functools.reduce(joins, [_truth(value, rows) for value in node.values])
    if isinstance(node, ast.UnaryOp):
        return pc.invert(_truth(node.operand, rows))
    if isinstance(node, ast.Name):
        return rows.column(node.id)
    operands = [node.left, *node.comparators]
    pairs = zip(operands, node.ops, operands[1:], strict=False)
    return functools.reduce(pc.and_kleene, [_compared(*pair, rows) for pair in pairs])


def _compared(left: Any, op: ast.cmpop, right: Any, rows: pa.RecordBatch) -> Any:
    if isinstance(op, ast.In | ast.NotIn):
        equal = [_compared(left, ast.Eq(), one, rows) for one in right.elts]
        among = functools.reduce(pc.or_kleene, equal)
        return among if isinstance(op, ast.In) else pc.invert(among)
    sides = [_column(node, rows) if isinstance(node, ast.Name) else None for node in (left, right)]
    kind = next(side.type for side in sides if side is not None)
    if any(side is not None and pa.types.is_null(side.type) for side in sides):
        return pa.nulls(rows.num_rows, pa.bool_())
    values = [
        _scalar(_value(node), kind) if side is None else side
        for node, side in zip((left, right), sides, strict=True)
    ]
    return ORDER[type(op)](*values)


def _column(node: ast.Name, rows: pa.RecordBatch) -> pa.Array:
    """Return a column to be compared; NaN is a missing value."""
    column = rows.column(node.id)
    if pa.types.is_boolean(column.type):
        return column.cast(pa.uint8())
    if pa.types.is_decimal(column.type):
        return column.cast(pa.float64())
    if pa.types.is_uint64(column.type):
        try:
            return column.cast(pa.int64())
        except pa.ArrowInvalid:  # beyond 2^63, where only floating numbers compare with all others
            return column.cast(pa.float64(), safe=False)
    if pa.types.is_floating(column.type):
        return pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
    return column


def _scalar(value: float | str, kind: pa.DataType) -> pa.Scalar:
    """Return what a column of this type is compared with; text may be a date."""
    return pa.scalar(value).cast(kind) if isinstance(value, str) else pa.scalar(value)
