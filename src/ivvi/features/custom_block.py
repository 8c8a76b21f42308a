"""Features that are a user's function."""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from ivvi._io.arrays import Array
from ivvi._io.trust import check_trusted
from ivvi.errors import FileError, InputError
from ivvi.features.blocks import Plain


@dataclass(frozen=True, slots=True)
class Custom(Plain):
    """A user's function of rows; once saved, it is found again by its path ``module:name``."""

    path: str
    columns: tuple[str, ...]
    of: str = "both"
    function: Callable[..., Any] | None = None

    @classmethod
    def of_function(cls, function: Callable[..., Any], columns: Sequence[str]) -> Custom:
        """Wrap a function; one that cannot be imported works, but cannot be saved."""
        path, imported = import_path(function)
        return cls(path, tuple(columns), function=None if imported else function)

    def check_importable(self) -> None:
        """Refuse to be saved if the function could not be found again."""
        if self.function is not None:
            raise InputError(
                f"the features {', '.join(self.columns)} cannot be saved: their function "
                f"{self.path!r} cannot be imported; define it at the top of a module"
            )

    def __call__(self, x: Array, u: Array) -> Array:
        """Call the function on rows (n, d_x) and (n, d_u)."""
        lead = np.broadcast_shapes(x.shape[:-1], u.shape[:-1])
        n, width = math.prod(lead), len(self.columns)
        rows = []
        for part in (x, u):
            xp, d = part.__array_namespace__(), part.shape[-1]
            rows.append(xp.broadcast_to(part, (*lead, d)).reshape(n, d))
        values = (self.function or import_function(self.path))(*rows)
        if values.shape != (n, width):
            raise InputError(
                f"{self.path} returned shape {values.shape} for {n} rows; expected "
                f"{(n, width)} ({', '.join(self.columns)})"
            )
        return values.reshape(*lead, width)

    def names(self, state: Sequence[str], inputs: Sequence[str]) -> tuple[str, ...]:
        """Return the names that the user gave."""
        return self.columns


def import_path(function: Callable[..., Any]) -> tuple[str, bool]:
    """Return ``module:name`` of a function, and whether it is found there again.

    A lambda is not, nor what is defined inside a function or in a script.
    """
    path = f"{function.__module__}:{getattr(function, '__qualname__', type(function).__name__)}"
    try:
        return path, import_function(path) is function and not path.startswith("__main__:")
    except FileError:
        return path, False


def import_saved(path: Any) -> Callable[..., Any]:
    """Find the function ``module:name`` that a file names, if its reader trusts the module.

    What a trusted module has imported from elsewhere is not trusted with it.
    """
    if not isinstance(path, str):
        raise FileError(f"{path!r} is not an import path; expected module:function")
    check_trusted(path)
    function = import_function(path)
    check_trusted(path, str(getattr(function, "__module__", "")))
    return function


@cache
def import_function(path: str) -> Callable[..., Any]:
    """Find the function ``module:name``."""
    imported = import_object(path, "function")
    if not callable(imported):
        raise FileError(f"{path!r} is not a function")
    function: Callable[..., Any] = imported
    return function


def import_object(path: str, what: str = "object") -> Any:
    """Find the object that the user calls ``module:name``; paths in files need `import_saved`."""
    module, _, name = path.partition(":")
    try:
        imported: Any = _import_module(module)
        for part in name.split("."):
            imported = getattr(imported, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise FileError(f"the {what} {path!r} cannot be imported: {error}") from error
    return imported


def _import_module(name: str) -> Any:
    """Import a module, from the current folder if it is nowhere else.

    An installed command, unlike a script, does not look there by itself.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        folder = os.getcwd()
        if error.name != name.partition(".")[0] or folder in sys.path:
            raise
        sys.path.append(folder)
        importlib.invalidate_caches()
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            sys.path.remove(folder)
            raise
