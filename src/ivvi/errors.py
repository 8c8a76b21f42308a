"""The types of errors and warnings.

All errors that a user's data, columns, files or settings can cause are an `InputError` with one
sentence that names the item, what was found and what was expected. The command line prints that
sentence and exits with code 2. Any other exception is a bug.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

LARGEST = 1e70
"""Largest size of a number: sums of fourth powers, which variances take, are still finite."""


class InputError(ValueError):
    """The input cannot be used; the message says which part and why."""


class ColumnError(InputError):
    """A column is missing, of the wrong type, or used for two things."""


class DataError(InputError):
    """The values themselves cannot be used: missing, duplicated, constant, empty."""


class MissingError(DataError):
    """Values are missing or infinite."""


class NoNextStateError(DataError):
    """No row of a log is followed by the next one of its episode."""


class LargeError(DataError):
    """Values are so large that their fourth powers overflow."""


class IdentificationError(DataError):
    """The instruments do not identify the dynamics (rank of A below d_phi)."""


class FileError(InputError):
    """A file cannot be read, is not what it claims to be, or must not be overwritten."""


class TrustError(InputError):
    """A saved file would import from a package that the caller does not trust."""


class IvviWarning(UserWarning):
    """Base of all warnings of this package."""


class PlanningWarning(IvviWarning):
    """A plan rests on a part of the model that should not be trusted."""


def check_seed(seed: int) -> None:
    """Raise an error for a seed that some generator of random numbers does not accept."""
    if not 0 <= seed < 2**63:
        raise InputError(f"the seed is {seed}; expected a number from 0 to 2^63 - 1")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x1'?"`` for the closest known name, or ''."""
    listed = list(known)
    same = [word for word in listed if word.strip().casefold() == name.strip().casefold()]
    match = same or difflib.get_close_matches(name, listed, n=1, cutoff=0.6)
    return f"; did you mean {match[0]!r}?" if match else ""


def hint(word: str, known: Iterable[str]) -> str:
    """Return the closest of the known words, as `nearest` does, or else all of them."""
    listed = list(known)
    return nearest(word, listed) or f"; choose from {', '.join(listed)}"
