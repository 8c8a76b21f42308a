"""What a sensitivity analysis comes to, in plain sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ivvi._io.brief import Brief
from ivvi.evaluation.brief import RIVAL_WORDS

if TYPE_CHECKING:
    from ivvi.sensitivity_analysis.result import Breakdown, Sensitivity
    from ivvi.sensitivity_analysis.violations import Size

STURDY, FRAGILE = 0.5, 0.1
"""Shares of what the instrument does through the actions: a gain is called sturdy that bears a
direct effect of at least the first, and fragile where the second is too much. A convention, since
no log can tell which direct effects are likely."""


def sensitivity_brief(found: Sensitivity) -> Brief:
    """Say how much invalidity the least certain gain bears, what that means, and what next."""
    gains = zip(found.breakdowns, found.bands, strict=False)  # those of actions follow
    gain, band = min(gains, key=lambda pair: abs(_bears(pair[0]).t))
    size, rival = _bears(gain), RIVAL_WORDS.get(band.rival, band.rival)
    if size.t == 0:
        certain = f"Not certain over {rival}, even with a valid instrument."
        meaning = "What the log leaves open is more than what an invalid instrument would change."
        next_step = f"Collect more, or keep to {rival}."
    else:
        certain, meaning, next_step = _certain(gain, rival), _meaning(size), _next(size)
    return Brief((("Gain", certain), ("Meaning", meaning), ("Next", next_step)))


def _bears(gain: Breakdown) -> Size:
    """Return from which size on the gain is not certain; the largest tried where it always is."""
    return gain.unsure or gain.size or gain.most


def _certain(gain: Breakdown, rival: str) -> str:
    size = _bears(gain)
    word = "Middling"
    if size.main_share >= STURDY:
        word = "Sturdy"
    elif size.main_share < FRAGILE and size is not gain.most:
        word = "Fragile"
    on = f" to {size.main}" if len(size.outputs) > 1 else ""
    share = f"{100 * size.main_share:.3g}% of what it does through the actions{on}"
    if size is gain.most:
        tried = f"every direct effect that was tried, up to {share}"
        return f"{word}: the gain over {rival} survives {tried}."
    end = "disappears" if gain.unsure is None else "is no longer certain"
    lost = ""
    if gain.unsure is not None and gain.size is not None:
        lost = f", and disappears at {100 * gain.size.main_share:.3g}%"
    return (
        f"{word}: the gain over {rival} {end} once a direct effect of the instrument is "
        f"{share}{lost}."
    )


def _meaning(size: Size) -> str:
    return (
        f"A correlation of {size.most_correlation:.2g} between the instrument and what was not "
        "recorded would have the same effect; with a valid instrument there is no such "
        "correlation."
    )


def _next(size: Size) -> str:
    if size.main_share < FRAGILE:
        return "Do not act on it unless the instrument was randomised; look for a better one."
    return (
        "Ask somebody who knows the instrument whether so large a direct effect is possible. If it "
        "is not, try the policy."
    )
