"""What the diagnostics come to, in plain sentences."""

from __future__ import annotations

from ivvi._io.brief import Brief, instrument_sentence
from ivvi.diagnostics.result import Diagnostics
from ivvi.diagnostics.statistic import Statistic

LEVEL = 0.05
NEXT = {
    "strong": "`ivvi check` looks for signs that the instrument is invalid; `ivvi fit` estimates "
    "the effects.",
    "doubtful": "`ivvi fit`, and report its robust intervals instead of the usual ones.",
    "weak": "Look for a stronger instrument, or report the sets of `ivvi interval`: no estimate of "
    "this log is reliable.",
    "not identified": "Add an instrument for each action, or drop what the instruments do not "
    "move (listed below).",
}
NO_INTERVAL = "Look for a stronger instrument; `ivvi interval` searches for the set of one effect."


def diagnose_brief(d: Diagnostics) -> Brief:
    """Say if the instrument is good enough, if the log is confounded, and what to do next."""
    next_step = NEXT.get(d.verdict.word, "`ivvi fit` estimates the effects.")
    if (d.verdict.word, d.verdict.recommended) == ("doubtful", "none"):
        next_step = NO_INTERVAL
    if d.verdict.method:
        next_step = many_sentence(d.verdict.method)
    if (refuted := _refuted(d)) is not None and d.verdict.word in ("strong", "doubtful"):
        next_step = (
            f"The instruments contradict each other ({_p(refuted)}): at least one is invalid. "
            "Find out which with `ivvi diagnose --suspect` before you fit."
        )
    return Brief(
        (
            ("Instrument", instrument_sentence(d.verdict)),
            ("Confounding", confounding_sentence(d)),
            ("Next", next_step),
        )
    )


def many_sentence(method: str) -> str:
    """Say which estimator to take where the first stage is spread over many instruments."""
    return (
        f"The first stage is spread over many instruments: `ivvi fit --method {method} --se "
        "robust` is not biased by their number (nor is `--method liml --se bekker`, where all "
        "errors have one variance)."
    )


def confounding_sentence(d: Diagnostics) -> str:
    """Say whether least squares and the instrument disagree, by Wu and Hausman's test."""
    tests = d.by_output["robust_wu_hausman"] or d.by_output["wu_hausman"]
    if tests is None:
        return f"Not tested: {d.reasons.get('wu_hausman', 'there is nothing to compare')}."
    ranked = sorted(zip(d.outputs, tests, strict=True), key=lambda pair: pair[1].p_value)
    p_value = min(1.0, len(ranked) * ranked[0][1].p_value)  # as many chances to be wrong
    if p_value < LEVEL:
        named = [name for name, test in ranked if len(ranked) * test.p_value < LEVEL]
        shown = ", ".join(named[:3]) + (f" and {len(named) - 3} more" if len(named) > 3 else "")
        return (
            f"Yes: regression and the instrument disagree about {shown} ({_p(p_value)}), so "
            "regression would mislead."
        )
    sure = "" if d.verdict.word == "strong" else "; so weak an instrument could hide it"
    return f"None was found: regression and the instrument agree ({_p(p_value)}){sure}."


def _refuted(d: Diagnostics) -> float | None:
    """Return the p-value of the test of over-identification, where it rejects."""
    tests = d.by_output["hansen_j"] or d.by_output["sargan"] or ()
    values: list[Statistic] = list(tests)
    if not values:
        return None
    p_value = min(1.0, len(values) * min(test.p_value for test in values))
    return p_value if p_value < LEVEL else None


def _p(p_value: float) -> str:
    return "p < 0.0001" if p_value < 1e-4 else f"p = {p_value:.2g}"
