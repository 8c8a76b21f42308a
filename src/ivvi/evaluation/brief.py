"""What a valuation comes to, in plain sentences."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ivvi._io.brief import UNTRUSTED, Brief, instrument_sentence

if TYPE_CHECKING:
    from ivvi.evaluation.valuation import Amount, Valuation

RIVAL_WORDS = {"behaviour": "what is done today", "zero": "doing nothing"}


def value_brief(worth: Valuation) -> Brief:
    """Say if the instrument is good enough, what confounding did, and what to do next."""
    return Brief(
        (
            ("Instrument", instrument_sentence(worth.verdict)),
            ("Confounding", _confounding(worth)),
            ("Next", _next(worth)),
        )
    )


def _confounding(worth: Valuation) -> str:
    """Say what believing regression would cost, or what the confounder gave the log's policy."""
    if (gain := worth.gains.get("least-squares")) is not None:
        low, high = gain.interval
        if low <= 0 <= high:
            return (
                "The log cannot tell whether a plan based on regression would earn less (the "
                f"difference is {_rounded(gain)})."
            )
        word = "less" if low > 0 else "more"
        by = _rounded(gain, sign=1 if low > 0 else -1)
        return f"A plan based on regression of the same log earns {word}, by {by}."
    if worth.gap is not None and worth.gap.help is not None:
        return (
            f"It helped the log's own policy by {_rounded(worth.gap.help)}, which no other "
            "policy will get."
        )
    return "Not compared: the rival least-squares (against=, --against) shows what it costs."


def _next(worth: Valuation) -> str:
    """Say what to do, by the gain over what is done today (or over the first rival)."""
    if not worth.gains:
        return "Compare it with what is done today: the rival behaviour (against=, --against)."
    name = "behaviour" if "behaviour" in worth.gains else next(iter(worth.gains))
    rival, gain = RIVAL_WORDS.get(name, name), worth.gains[name]
    low, high = gain.interval
    more = f"It earns {_rounded(gain)} more than {rival}"
    if worth.verdict is None or worth.verdict.word in UNTRUSTED:
        return f"Do not act on this: {more[0].lower()}{more[1:]}, but the instrument is too weak."
    if low > 0:
        step = f"{more}: ask `ivvi sensitivity` how invalid the instrument may be, then try it."
    elif high < 0:
        step = f"Keep to {rival}: the policy earns {_rounded(gain, sign=-1)} less."
    else:
        step = f"{more}: the log cannot tell them apart. Collect more, or keep to {rival}."
    return step + _few_draws(gain)


def _few_draws(gain: Amount) -> str:
    """Say where more draws of the same log could say otherwise."""
    if not gain.may_turn:
        return ""
    draws = len(gain.draws)
    return (
        f" But {draws:,} draws are few for this verdict, and others could turn it: ask for more, "
        f"such as {10 * draws:,} (draws=, --draws)."
    )


def _rounded(amount: Amount, sign: int = 1) -> str:
    """Write an amount and its interval with as many digits as the interval's width deserves."""
    low, high = sorted(sign * end for end in amount.interval)
    width = high - low
    places = min(max(2 - math.floor(math.log10(width)), 0), 9) if 0 < width < math.inf else 4
    estimate, low_end, high_end = (
        f"{value:,.{places}f}" for value in (sign * amount.estimate, low, high)
    )
    return f"{estimate} [{low_end}, {high_end}]"
