"""What a sensitivity analysis comes to, in plain sentences."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ivvi._io.brief import Brief
from ivvi.evaluation.brief import RIVAL_WORDS

if TYPE_CHECKING:
    from ivvi.sensitivity_analysis.result import Breakdown, Sensitivity

STURDY, FRAGILE = 0.5, 0.1
"""Shares of what the instrument does through the actions: a gain is called sturdy that bears a
direct effect of at least the first, and fragile where the second is too much. A convention, since
no log can tell which direct effects are likely."""


def sensitivity_brief(found: Sensitivity) -> Brief:
    """Say how much invalidity the least certain gain bears, what that means, and what next."""
    gains = zip(found.breakdowns, found.bands, strict=False)  # those of actions follow
    gain, band = min(gains, key=lambda pair: _bears(pair[0]))
    share, rival = _bears(gain), RIVAL_WORDS.get(band.rival, band.rival)
    return Brief(
        (
            ("Gain", _certain(gain, share, rival)),
            ("Meaning", _meaning(gain, share)),
            ("Next", _next(share, rival)),
        )
    )


def _bears(gain: Breakdown) -> float:
    """Return the direct effect from which on the gain is not certain; infinite for none tried."""
    first = gain.size if gain.unsure is None else gain.unsure
    return math.inf if first is None else 0.0 if first.t == 0 else first.most_share


def _certain(gain: Breakdown, share: float, rival: str) -> str:
    if share == 0:
        return f"Not certain over {rival}, even with a valid instrument."
    if math.isinf(share):
        most = f"{100 * gain.most.most_share:.3g}% of what it does through the actions"
        return f"Sturdy: over {rival} it bears every direct effect that was tried, up to {most}."
    word = "Sturdy" if share >= STURDY else "Fragile" if share < FRAGILE else "Middling"
    end = "lost" if gain.unsure is None else "no longer certain"
    lost = ""
    if gain.unsure is not None and gain.size is not None:
        lost = f", and lost at {100 * gain.size.most_share:.3g}%"
    return (
        f"{word}: over {rival} it is {end} once a direct effect of the instrument is "
        f"{100 * share:.3g}% of what it does through the actions{lost}."
    )


def _meaning(gain: Breakdown, share: float) -> str:
    if share == 0:
        return "What the log leaves open is more than what an invalid instrument would change."
    size = gain.unsure or gain.size or gain.most
    return (
        f"It takes a correlation of {size.most_correlation:.2g} between the instrument and what "
        "was not recorded to do the same; a valid instrument has none."
    )


def _next(share: float, rival: str) -> str:
    if share == 0:
        return f"Collect more, or keep to {rival}."
    if share < FRAGILE:
        return "Do not act on it unless the instrument was randomised; look for a better one."
    return (
        "Ask somebody who knows the instrument whether so large a direct effect is possible. If it "
        "is not, try the policy."
    )
