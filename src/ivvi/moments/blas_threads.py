"""How many threads BLAS may use."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cache
from typing import Any

SMALL_WIDTH = 512
"""Below this width a second BLAS thread costs more processor time than it saves."""


@contextlib.contextmanager
def few_threads(width: int) -> Iterator[None]:
    """Keep BLAS to one thread for narrow data."""
    if width > SMALL_WIDTH:
        yield
    else:
        with _threads().limit(limits=1, user_api="blas"):
            yield


@cache
def _threads() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
