"""Frozen dataclasses to JSON values and arrays, and back by their type hints.

`pack` turns a value into JSON and stores each array separately under a name; `unpack` rebuilds the
type that the reader expects. Classes are never looked up by a name from the file, so a file can
only give values for the types that this program expects.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ivvi._io.result import Compact

ARRAY, NUMBER = "array", "number"
"""Keys of the objects that stand for an array, and for a number that JSON cannot hold."""


class Packer:
    """Turns values into JSON; arrays in the values are collected in `arrays`.

    Parameters
    ----------
    shared
        Types whose values the reader already has; they are written as null.
    """

    def __init__(self, shared: tuple[type, ...] = ()) -> None:
        self.arrays: dict[str, np.ndarray] = {}
        self._shared = shared
        self._names: dict[int, str] = {}

    def pack(self, value: Any) -> Any:
        """Return JSON values for numbers, text, arrays, dataclasses, tuples and mappings."""
        if value is None or isinstance(value, self._shared):
            return None
        if isinstance(value, np.ndarray):
            return {ARRAY: self._put_aside(value)}
        if dataclasses.is_dataclass(value):
            fields = dataclasses.fields(value)
            return {f.name: self.pack(getattr(value, f.name)) for f in fields}
        if isinstance(value, Mapping):
            if all(isinstance(key, str) for key in value):
                return {key: self.pack(item) for key, item in value.items()}
            return [[self.pack(key), self.pack(item)] for key, item in value.items()]
        if isinstance(value, tuple | list):
            return [self.pack(item) for item in value]
        return _scalar(value)

    def _put_aside(self, array: np.ndarray) -> str:
        """Store an array under a number; the same array is stored only once."""
        if id(array) not in self._names:
            self._names[id(array)] = str(len(self.arrays))
            self.arrays[self._names[id(array)]] = array
        return self._names[id(array)]


@dataclasses.dataclass(frozen=True, repr=False)
class Unpacker(Compact):
    """Rebuilds values from the output of a `Packer`.

    Attributes
    ----------
    arrays
        The arrays by name.
    shared
        The values of the shared types.
    """

    arrays: Mapping[str, np.ndarray]
    shared: Mapping[type, Any] = dataclasses.field(default_factory=dict)

    def unpack(self, kind: Any, data: Any) -> Any:
        """Return a value of the type `kind`, or raise KeyError, TypeError or ValueError."""
        if isinstance(kind, type) and kind in self.shared:
            return self.shared[kind]
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if origin in (typing.Union, types.UnionType):
            return self._union(arguments, data)
        if kind is Any:
            return data
        if np.ndarray in (kind, origin):
            array = self.arrays[data[ARRAY]]
            if array.dtype.kind not in _kinds_of(arguments):
                raise TypeError(f"an array holds {array.dtype}; expected numbers or text")
            return array
        if dataclasses.is_dataclass(kind):
            return kind(**self._fields(kind, data))  # type: ignore[operator]
        if origin is tuple:
            return self._tuple(arguments, data)
        if origin is dict:
            key, item = arguments
            pairs = data.items() if isinstance(data, dict) else data
            return {self.unpack(key, k): self.unpack(item, v) for k, v in pairs}
        return _checked_scalar(kind, data)

    def _fields(self, kind: Any, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a dataclass; fields newer than the file get their default."""
        later = {f.name for f in dataclasses.fields(kind) if _has_default(f)} - set(data)
        hints = {name: hint for name, hint in field_types(kind).items() if name not in later}
        return {name: self.unpack(hint, data[name]) for name, hint in hints.items()}

    def _union(self, members: tuple[Any, ...], data: Any) -> Any:
        for member in members:
            if isinstance(member, type) and member in self.shared:
                return self.shared[member]
        return None if data is None else self.unpack(_member(members, data), data)

    def _tuple(self, arguments: tuple[Any, ...], data: list[Any]) -> tuple[Any, ...]:
        if not isinstance(data, list | tuple):
            raise TypeError(f"{data!r} is not a list")
        if arguments[-1:] == (Ellipsis,):
            return tuple(self.unpack(arguments[0], item) for item in data)
        return tuple(self.unpack(kind, item) for kind, item in zip(arguments, data, strict=True))


def _has_default(field: dataclasses.Field[Any]) -> bool:
    return not (field.default is field.default_factory is dataclasses.MISSING)


def _kinds_of(arguments: tuple[Any, ...]) -> str:
    """Return the kinds of numbers or text that an array of such a type hint may hold."""
    (scalar,) = typing.get_args(arguments[-1]) or (Any,) if arguments else (Any,)
    is_number = isinstance(scalar, type) and issubclass(scalar, np.number)
    return "fiu" if is_number else "fiubU"


def unpack_fields(kind: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return JSON values as the types of a dataclass's fields, or raise a TypeError."""
    hints, values = field_types(kind), {}
    for name, value in data.items():
        if name not in hints:
            raise TypeError(f"there is no {name!r}")
        try:
            values[name] = Unpacker({}).unpack(hints[name], value)
        except (LookupError, TypeError, ValueError, ArithmeticError) as error:
            raise TypeError(f"{name} is {value!r}") from error
    return values


def field_types(kind: Any) -> dict[str, Any]:
    """Return the types of a dataclass's fields by name, in order."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _scalar(value: Any) -> Any:
    """Return a number or text as a JSON value."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else {NUMBER: str(float(value))}
    if isinstance(value, str | Path):
        return str(value)
    raise TypeError(f"a {type(value).__name__} cannot be saved")


def _checked_scalar(kind: Any, data: Any) -> Any:
    """Return a number or text of the expected type."""
    if kind is float:
        if isinstance(data, dict):
            return float(data[NUMBER])
        if isinstance(data, int | float) and not isinstance(data, bool):
            return float(data)
    if type(data) is not kind:
        raise TypeError(f"{data!r} is not a {getattr(kind, '__name__', kind)}")
    return data


def _member(members: tuple[Any, ...], data: Any) -> Any:
    """Return the member of a union that JSON data belongs to: text, a sequence, or another."""
    types_allowed = [member for member in members if member is not type(None)]
    if len(types_allowed) == 1:
        return types_allowed[0]
    type_of_data = tuple if isinstance(data, list) else type(data)
    for member in types_allowed:
        if type_of_data in (member, typing.get_origin(member)):
            return member
    raise TypeError(f"{data!r} is none of {members}")
