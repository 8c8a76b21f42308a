"""Dots between thousands: is ``5.822`` a decimal or 5822? The other cells of the column decide.

Where dots part thousands, each is followed by three digits, numbers from 1000 on have one, and
smaller ones have none: 812 beside 5.822. Decimals look different. Written with three digits
throughout, each has a dot; written as short as possible, some have one or two digits after it; and
those below one begin with a zero.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

DOTTED = r"\s*[-+]?[1-9]\d{0,2}(\.\d{3})+\s*"
"""A number of 1000 or more with dots between thousands."""
BELOW = r"\s*[-+]?(0|[1-9]\d{0,2})\s*"
"""A whole number below 1000."""
CODES = {-1, -7, -8, -9, -77, -88, -99, -999, 9, 77, 88, 98, 99, 999} | {0}
"""Whole numbers that may stand among decimals too: usual codes of missing values, and nothing."""
LARGER, HUNDREDS = 2.0, 100
"""Times the largest number with a dot, read as a decimal, that a whole one exceeds by no chance,
and what it exceeds as well: means of three are whole now and then."""


def may_be_thousands(values: NDArray[np.float64]) -> bool:
    """Whether cells read as decimals may be thousands with dots, by a quick look."""
    values = np.abs(values[~np.isnan(values)])
    if not len(values) or values.max() >= 1000:
        return False
    whole = values == np.round(values)
    if whole.all() or not whole.any() or (~whole & (values < 1)).any():
        return False
    return bool(np.allclose(values * 1000, np.round(values * 1000), rtol=0, atol=1e-6))


def has_thousands(cells: Iterable[str]) -> bool:
    """Whether dots stand between thousands in cells of numbers.

    All with a dot have three digits after it and none is 0.xxx, all others are below 1000, and
    among these is one that is no code. It is beyond what decimals would be, or a number ends in
    .xx0: decimals whose zeros are kept all have a dot.
    """
    counts = Counter(cells)
    dotted = [text for text in counts if "." in text]
    below = [text for text in counts if "." not in text]
    if not dotted or not all(re.fullmatch(DOTTED, text) for text in dotted):
        return False
    if not all(re.fullmatch(BELOW, text) for text in below):
        return False
    if any(text.count(".") > 1 for text in dotted):
        return True
    whole = [text for text in below if int(text) not in CODES]
    if not whole or (len(whole) == 1 and counts[whole[0]] > 1):  # a code comes again
        return False
    largest = max(abs(int(text)) for text in whole)
    beyond = largest > max(HUNDREDS, LARGER * max(abs(float(text)) for text in dotted))
    return beyond or any(text.strip().endswith("0") for text in dotted)


def without_dots(text: str) -> str:
    """Return a number without the dots between its thousands."""
    return text.strip().replace(".", "")
