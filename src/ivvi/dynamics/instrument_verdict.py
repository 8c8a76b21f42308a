"""The verdict of a fit on its instruments, in the words that plans and values repeat."""

from __future__ import annotations

from dataclasses import dataclass

from ivvi._io.result import Compact


@dataclass(frozen=True, slots=True, repr=False)
class InstrumentVerdict(Compact):
    """One word on the instruments of a model, and a sentence for those who act on it.

    Attributes
    ----------
    word
        ``strong``, ``doubtful``, ``weak`` or ``not identified``; empty where nothing could be
        judged.
    sentence
        Why, and what it means.
    rule
        The figure that says so, and its thresholds.
    """

    word: str
    sentence: str
    rule: str
