"""Methods by their words, descent-ascent among them."""

from __future__ import annotations

from typing import Any

from ivvi.estimators import Method, parse_method
from ivvi.estimators.sgda import SGDA


def make_method(word: str, **settings: Any) -> Method:
    """Return the method of a word, such as ``exact``, ``sgda`` or ``fuller:4``."""
    return SGDA(**settings) if word == "sgda" else parse_method(word, **settings)
