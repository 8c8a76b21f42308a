"""The plain sentences with which a result opens; the statistics stand below them."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

WIDTH = 78
FIRST = 13
"""Width of the words ahead of the sentences."""


@dataclass(frozen=True, slots=True)
class Brief:
    """Three answers, each with a word ahead of it: the last one says what to do next.

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
        """Return the sentences by the word ahead of them, in lower case."""
        return {word.lower(): sentence for word, sentence in self.items}
