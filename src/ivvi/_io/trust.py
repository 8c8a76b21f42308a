"""The packages that a saved file may import from: none, unless the caller of `load` names them.

A model or a policy with a user's function in it names that function by ``module:name``. Importing
a module runs it, so a forged file could run anything. Whoever loads a file therefore names the
packages to trust (`trusting`); code that rebuilds objects from the file calls `check_trusted`
before it imports.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextvars import ContextVar

from ivvi.errors import TrustError

Trust = str | tuple[str, ...] | list[str]
"""Packages or modules, each including everything in it."""
_TRUSTED: ContextVar[tuple[str, ...]] = ContextVar("trusted", default=())


@contextlib.contextmanager
def trusting(path: str | os.PathLike[str], trust: Trust) -> Iterator[None]:
    """Trust these packages, and no others, while the file `path` is rebuilt."""
    token = _TRUSTED.set((trust,) if isinstance(trust, str) else tuple(trust))
    try:
        yield
    except TrustError as error:
        raise TrustError(f"{path} {error}") from error
    finally:
        _TRUSTED.reset(token)


def check_trusted(path: object, module: str | None = None) -> None:
    """Raise an error if the package of the function ``module:name`` is not trusted.

    `module` is the module that actually defines the function, if it is known.
    """
    named = str(path).partition(":")[0] if module is None else module
    if not any(f"{named}.".startswith(f"{trusted}.") for trusted in _TRUSTED.get()):
        package = named.partition(".")[0]
        raise TrustError(
            f"would import {str(path)!r}, which runs code from {named}; if you trust it, load it "
            f"with trust=({package!r},), or --trust {package}"
        )
