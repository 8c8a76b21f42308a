"""The plain sentences that open a result; the statistics follow below."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from typing import Protocol

WIDTH = 78
FIRST = 13
"""Width of the labels before the sentences."""
JUDGED = {
    "strong": "Good enough",
    "doubtful": "Doubtful",
    "weak": "Too weak",
    "not identified": "Not enough: it leaves effects undetermined",
}
"""What a word of the verdict means for somebody who wants to act."""
UNTRUSTED = ("weak", "not identified")
"""Verdicts on which nobody should act."""


class Judged(Protocol):
    """A verdict on the instruments."""

    @property
    def word(self) -> str:
        """``strong``, ``doubtful``, ``weak``, ``not identified`` or nothing."""
        ...

    @property
    def rule(self) -> str:
        """The figure that says so, and its thresholds."""
        ...


@dataclass(frozen=True, slots=True)
class Brief:
    """Three answers, each with a label; the last one says what to do next.

    Examples
    --------
    >>> print(Brief((("Instrument", "Good enough."), ("Next", "Fit."))).text)
    Instrument   Good enough.
    Next         Fit.
    """

    items: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        """The sentences, folded to the width of the tables."""
        return "\n".join(
            textwrap.fill(
                f"{word:<{FIRST}}{sentence}",
                WIDTH,
                subsequent_indent=" " * FIRST,
                break_on_hyphens=False,
                break_long_words=False,
            )
            for word, sentence in self.items
        )

    def to_json(self) -> dict[str, str]:
        """Return the sentences by label, in lower case."""
        return {word.lower(): sentence for word, sentence in self.items}


def instrument_sentence(verdict: Judged | None) -> str:
    """Say whether the instruments are good enough, and by which figure."""
    if verdict is None:
        return "Unknown: this model does not say how strong its instruments are."
    rule = re.sub(r" \([^()]*\)", "", verdict.rule)
    if not verdict.word:
        return f"Nothing to judge: {rule}."
    if verdict.word == "strong":
        rule = rule.partition(", below")[0]
    return f"{JUDGED.get(verdict.word, verdict.word)}: {rule}."
