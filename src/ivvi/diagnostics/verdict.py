"""One word on the instruments, and the rule behind it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Any

from ivvi._io.result import Compact
from ivvi.diagnostics.rank_tests import BIASES, EffectiveF
from ivvi.diagnostics.stock_yogo import bias_values, size_values
from ivvi.diagnostics.strength import Strength

STRONG_F, WEAK_F = 10.0, 5.0
"""Staiger and Stock's rule of thumb, and half of it, where no critical value is tabulated."""
MANY, ENOUGH_FOR_JACKKNIFE = 10, 4.14
"""From this many instruments on two-stage least squares is biased; and Mikusheva and Sun's (2022)
critical value
of the jackknifed first stage, above which a jackknife's intervals hold."""
MEANING = {
    "strong": "the instruments are strong: estimates and Wald's intervals can be trusted",
    "doubtful": "the instruments are doubtful: report the robust intervals instead of Wald's",
    "weak": "the instruments are weak: estimates and standard errors are unreliable",
    "contradictory": "the instruments contradict each other: no interval of the estimate can be "
    "trusted",
    "not identified": "the instruments do not identify the dynamics",
}
"""What each verdict means for those who report or act on the estimate."""
JUDGED = {
    "strong": "Good enough",
    "doubtful": "Doubtful",
    "weak": "Too weak",
    "contradictory": "Contradictory",
    "not identified": "Not enough: it leaves effects undetermined",
}
"""What each verdict means for a reader who wants to act on it."""
UNTRUSTED = {
    "weak": "an instrument that is too weak",
    "contradictory": "instruments that contradict each other",
    "not identified": "an instrument that leaves effects undetermined",
}
"""Verdicts that nobody should act on, and what the answer then rests on."""
NO_INTERVAL = "the instruments are doubtful: trust no interval of the estimate"
"""What doubtful means where there is no robust interval."""


@dataclass(frozen=True, slots=True, repr=False)
class Verdict(Compact):
    """``strong``, ``doubtful``, ``weak``, ``contradictory`` or ``not identified``, and why.

    `word` is empty where there is nothing to judge by, and the rule says why: nothing is
    endogenous, or an action is an exact function of the instruments. `recommended` is the interval
    of an action's effect to report: ``wald``, ``wild`` (instead, if the wild bootstrap was
    requested), ``robust``, or ``none`` if Wald's cannot be trusted and there is no other. `method`
    is the estimator to prefer where the first stage is spread over many weak instruments:
    ``ujive``, or ``ijive`` after effects were absorbed.
    """

    word: str
    rule: str
    recommended: str = "wald"
    method: str = ""

    @property
    def sentence(self) -> str:
        """What the verdict means for those who report or act on the estimate, and the rule."""
        meaning = MEANING.get(self.word, "nothing was judged")
        if (self.word, self.recommended) == ("doubtful", "none"):
            meaning = NO_INTERVAL
        plain = re.sub(r" \([^()]*\)", "", self.rule)  # without where the values come from
        return f"{meaning} ({plain})"

    def to_json(self) -> dict[str, Any]:
        """Describe the verdict with JSON values."""
        return {
            "verdict": self.word or None,
            "rule": self.rule,
            "recommended": self.recommended if self.word else None,
            "recommended_method": self.method,
        }


def judge(
    strength: Strength,
    effective: EffectiveF | None,
    name: str,
    f: float | None,
    endogenous: int,
    instruments: int,
    missing: str = "",
    jackknife: str = "ujive",
) -> Verdict:
    """Judge by the best available statistic; `missing` says why there is none.

    One endogenous feature: the effective F, against its critical values for a bias of 10%
    (strong) and 30% (doubtful) of the worst case. Several: the rank test's F (`name` says
    which), against Stock and Yogo's for a bias of 10% and 30% of least squares', for a size
    of 10% and 25% where no bias is tabulated, else against 10 and 5. Where the first stage is
    spread over many instruments, a `jackknife` is recommended.
    """
    if not strength.identified:
        return Verdict("not identified", f"the rank of A is {strength.rank} of {strength.d_phi}")
    if effective is not None:
        at = dict(zip(BIASES, effective.critical, strict=True))
        source = "Montiel Olea and Pflueger's critical values for a bias of 10% and 30%"
        verdict = _compare("the effective F", effective.value, at[0.10], at[0.30], source)
        if verdict.word == "strong" or not spread_over_many(effective, instruments):
            return verdict
        return replace(verdict, method=jackknife)
    if f is None:
        return Verdict("", missing)
    return _compare(name, f, *thresholds(endogenous, instruments))


def contradicted(verdict: Verdict, p_value: float) -> Verdict:
    """Return the verdict on instruments that the test of over-identification rejects."""
    reason = (
        f"over-identification is rejected with {p_words(p_value)}, so at least one is invalid, or "
        "the effect differs between those whom they affect"
    )
    return replace(
        verdict, word="contradictory", rule=f"{reason}; {verdict.rule}", recommended="none"
    )


def p_words(p_value: float) -> str:
    """Return a p-value as it stands in a sentence."""
    return "p < 0.0001" if p_value < 1e-4 else f"p = {p_value:.2g}"


def spread_over_many(effective: EffectiveF, instruments: int) -> bool:
    """Return whether many instruments are weak one by one and strong enough together.

    (F - 1) (K / 2)^1/2 is about the jackknifed first stage of Mikusheva and Sun (2022): the sum of
    squared first-stage coefficients, less what noise adds, in standard errors.
    """
    together = (effective.value - 1) * math.sqrt(effective.dimension / 2)
    return instruments >= MANY and together > ENOUGH_FOR_JACKKNIFE


def thresholds(endogenous: int, instruments: int) -> tuple[float, float, str]:
    """Return the F from which instruments are strong or doubtful, and the source of the rule."""
    bias, size = bias_values(endogenous, instruments), size_values(endogenous, instruments)
    if bias is not None:
        source = "Stock and Yogo's critical values for a bias of 10% and 30%"
        return bias[0.10], bias[0.30], source
    if size is not None:
        source = "Stock and Yogo's critical values for a size of 10% and 25%"
        return size[0.10], size[0.25], source
    return STRONG_F, WEAK_F, "the usual rule of thumb"


def _compare(name: str, value: float, strong: float, weak: float, source: str) -> Verdict:
    word = "strong" if value >= strong else "doubtful" if value >= weak else "weak"
    rule = f"{strong:.4g} and above counts as strong, below {weak:.4g} as weak ({source})"
    text = f"{value:.4g}" if value < 1000 else f"{value:,.0f}"
    return Verdict(word, f"{name} is {text}; {rule}")


def instrument_sentence(verdict: Verdict | None) -> str:
    """Say whether the instruments are good enough, and by which figure."""
    if verdict is None:
        return "Unknown: this model does not say how strong its instruments are."
    rule = re.sub(r" \([^()]*\)", "", verdict.rule)
    if not verdict.word:
        return f"Nothing to judge: {rule}."
    if verdict.word == "strong":
        rule = rule.partition(", below")[0]
    return f"{JUDGED.get(verdict.word, verdict.word)}: {rule}."
