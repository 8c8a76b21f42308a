"""The part of a report that says whether the instruments are any good."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ivvi.diagnostics.result import many_sentence
from ivvi.reporting import fit_pictures as pictures
from ivvi.reporting.cells import Cell, p_value, sentence
from ivvi.reporting.fit_view import FitView
from ivvi.reporting.page import Badge, Figure, PageTable, Part, Section, Text

TONES = {"strong": "good", "doubtful": "doubtful", "weak": "bad", "not identified": "bad"}
ADVICE = {
    "wald": "Wald's intervals, low to high in the table of coefficients, can be reported.",
    "wild": "Report the intervals of the wild bootstrap in the table of coefficients.",
    "robust": "Report the robust intervals of the table of coefficients instead of Wald's.",
    "none": "Report no interval of the table of coefficients: Wald's cannot be trusted, and "
    "`ivvi interval` searches for the set of one effect.",
}
TESTS = {
    "hansen_j": "Hansen J",
    "sargan": "Sargan",
    "robust_wu_hausman": "robust Wu-Hausman",
    "wu_hausman": "Wu-Hausman",
}


def instrument_section(fit: FitView) -> Section:
    """Show whether the instruments move the actions, and what the tests say."""
    d = fit.facts["diagnostics"]
    parts: list[Part] = []
    if word := d.get("verdict"):
        parts.append(Badge(word.capitalize(), sentence(d["rule"]), TONES[word]))
        if advice := ADVICE.get(d.get("recommended")):
            parts.append(Text((advice,)))
        if method := d.get("recommended_method"):
            parts.append(Text((many_sentence(method),)))
    elif "rule" in d:
        parts.append(Text((sentence(d["rule"]),)))
    parts += [Badge("Note", sentence(text), "doubtful") for text in fit.facts["warnings"]]
    if drawn := pictures.first_stages(fit):
        parts.append(
            Figure(
                "Do the instruments move the actions?",
                drawn,
                "Each action against what the instruments predict of it, both after regression on "
                "the exogenous features. Grey: rows of the log. Blue: means of twelve bins of "
                "equal size with 95% intervals. The line is where prediction and action agree; "
                "the wider the blue points spread along it, the stronger the instrument.",
                fit.command,
            )
        )
    if stages := tuple(_stage_rows(d)):
        robust = any(stage["robust"] for stage in (d["first_stage"] or {}).values())
        kind = "robust " if robust else ""
        header = ("action", "partial F", "distribution", "partial R²", "robust F")
        parts.append(
            PageTable(
                "First stages", (*header, f"{kind}conditional F"), stages, command=fit.command
            )
        )
    if tests := tuple(_test_rows(d)):
        names = ("test", "output", "value", "distribution", "p", "null hypothesis")
        parts.append(PageTable("Specification tests", names, tests, command=fit.command))
    if not parts:
        reasons = d.get("reasons") or {"": "no diagnostics were computed"}
        parts.append(Text((sentence(next(iter(reasons.values()))),)))
    return Section("The instrument", "Is it any good, and does it matter?", tuple(parts))


def _stage_rows(d: dict[str, Any]) -> Iterator[tuple[Cell, ...]]:
    for name, stage in (d["first_stage"] or {}).items():
        robust = stage["robust"] or {}
        conditional = stage["robust_conditional" if robust else "conditional"] or {}
        share = stage["partial_r2"]
        yield (
            *(name, stage["value"], stage["distribution"], share),
            *(robust.get("value"), conditional.get("value")),
        )


def _test_rows(d: dict[str, Any]) -> Iterator[tuple[Cell, ...]]:
    for key, title in TESTS.items():
        tests = d.get(key)
        if tests is None:
            continue
        together = (d.get("joint") or {}).get(key)
        for output, test in [*tests.items(), *([("all", together)] if together else [])]:
            cells = (test["value"], test["distribution"], p_value(test["p_value"]))
            yield (title, output, *cells, test["null"])
    for key in ("cragg_donald_test", "kleibergen_paap"):
        if (test := d.get(key)) is not None:
            title = "Cragg-Donald" if key == "cragg_donald_test" else "Kleibergen-Paap rk"
            cells = (test["value"], test["distribution"], p_value(test["p_value"]))
            yield (title, "all", *cells, test["null"])
