"""`report`: a fit as one page: the log, the instrument, effects, residuals and assumptions."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ivvi._io.result import Brief
from ivvi.diagnostics.result import many_sentence
from ivvi.fitting import Fit
from ivvi.fitting.saved_fit import as_fit
from ivvi.policy.saved_policy import as_policy
from ivvi.reporting import fit_pictures as pictures
from ivvi.reporting.effect_sections import effect_section, sign_changes, varying_section
from ivvi.reporting.fit_pictures import KEY
from ivvi.reporting.fit_view import FitView
from ivvi.reporting.inline_svg import sparkline
from ivvi.reporting.page import (
    Badge,
    Cell,
    Figure,
    Page,
    PageTable,
    Points,
    Section,
    SectionPart,
    Text,
    check_page,
    listed,
    p_value,
    sentence,
    write_page,
)
from ivvi.reporting.policy_sections import policy_section, value_section

TONES = {"strong": "good", "doubtful": "doubtful"}  # all others are bad
ADVICE = {
    "wald": "Wald's intervals, low to high in the table of coefficients, can be reported.",
    "wild": "Report the intervals of the wild bootstrap in the table of coefficients.",
    "robust": "Report the robust intervals in the table of coefficients instead of Wald's.",
    "none": "Report no interval from the table of coefficients: Wald's cannot be trusted, and "
    "`ivvi interval` computes the set of one effect.",
}
TESTS = {
    "hansen_j": "Hansen J",
    "sargan": "Sargan",
    "robust_wu_hausman": "robust Wu-Hausman",
    "wu_hausman": "Wu-Hausman",
}


def report(
    fit: Fit | str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    policy: Any = None,
    value: Any = None,
    force: bool = False,
) -> Path:
    """Write a report as one HTML file that needs no network.

    Parameters
    ----------
    fit
        A fit (`ivvi.estimate`), or the folder of a saved model.
    path
        The file, such as ``report.html``.
    policy
        A policy planned with the fit (`ivvi.plan`) or its folder, to be shown too.
    value
        The value of the policy (`ivvi.value`).
    force
        Replace a file that exists.

    Examples
    --------
    >>> import ivvi, pathlib, tempfile
    >>> log = ivvi.make_env("linear", dim=2).collect(episodes=20, horizon=50, seed=1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = ivvi.report(ivvi.estimate(log), f"{folder}/report.html")
    ...     page.read_text().startswith("<!doctype html>")
    True
    """
    target = check_page(path, force=force)
    label = (str(fit),) if isinstance(fit, str | os.PathLike) else ()
    page = fit_page(FitView(as_fit(fit), *label), as_policy(policy), value)
    return write_page(page, target, force=force)


def fit_page(fit: FitView, policy: Any = None, value: Any = None) -> Page:
    """Return the report of a fit, of a policy planned with it, and of the policy's value."""
    facts = fit.facts
    sections = [
        brief_section(fit.fit.brief, value),
        log_section(fit),
        instrument_section(fit),
        effect_section(fit),
    ]
    varying = varying_section(fit)
    sections += [varying] if varying is not None else []
    sections += [residual_section(fit)] if fit.residuals else []
    sections += [policy_section(policy, fit)] if policy is not None else []
    sections += [value_section(value)] if value is not None else []
    sections.append(assumption_section(fit))
    compared = ", beside least squares" if fit.compared else ""
    word = "instrument" if len(fit.columns_of("instrument")) == 1 else "instruments"
    return Page(
        title="What the actions do",
        lead=f"{facts['log']}: effects of {listed(fit.columns_of('action'))} on "
        f"{listed(facts['outputs'])}, estimated with {listed(fit.columns_of('instrument'))} "
        f"as {word}{compared}.",
        sections=tuple(sections),
        numbers=tuple(_numbers(fit)),
        facts={
            "log": facts["log"],
            "method": facts["method"],
            "standard errors": facts["se_kind"] or "none",
            "seconds": f"{facts['seconds']:.2f}",
            **({"command": facts["command"]} if facts["command"] else {}),
            **({"model": fit.place} if fit.place else {}),
        },
    )


def _numbers(fit: FitView) -> Iterator[tuple[str, str]]:
    """Yield the key figures at the top of the page, each with its meaning."""
    facts = fit.facts
    yield f"{facts['n']:,}", f"transitions in {facts['episodes']:,} episodes"
    if word := facts["diagnostics"].get("verdict"):
        yield word, "instruments"
    turned, settled = sign_changes(fit) if fit.compared else (0, 0)
    if settled:
        yield f"{turned} of {settled}", "effects of actions have another sign by least squares"
        widest = np.nanmax(np.abs(fit.gap[:, fit.endogenous]), initial=0.0)
        yield f"{widest:.0f} s.e.", "largest gap between the two estimates of an effect"


def brief_section(brief: Brief, value: Any = None) -> Section:
    """Return the first section: the instrument, what confounding did, and what to do next."""
    items = dict(brief.items)
    facts = value.to_json() if hasattr(value, "to_json") else value
    if isinstance(facts, dict) and (next_step := (facts.get("brief") or {}).get("next")):
        items["Next"] = next_step  # the value's advice replaces the plan's
    points = tuple((word.lower(), sentence) for word, sentence in items.items())
    return Section("In short", "Three answers; the evidence is below.", (Points(points),))


def log_section(fit: FitView) -> Section:
    """Return the section on the rows and the columns."""
    facts, columns = fit.facts, fit.facts["columns"]
    dropped = [f"{n:,} {reason}" for reason, n in facts["dropped"].items() if n]
    keys = [name for role in ("episode", "step", "weight") for name in fit.columns_of(role)]
    section_parts: list[SectionPart] = [
        Points(
            (
                ("transitions", f"{facts['n']:,}, in {facts['episodes']:,} episodes"),
                ("dropped rows", ", ".join(dropped) or "none"),
                ("keys and weights", listed(keys) if keys else "none: each row is its own cluster"),
            )
        )
    ]
    if fit.sample is not None:
        caption = f"Of {len(fit.sample):,} rows, spread over the first ones of the log."
        caption += " Row weights do not count here." if columns["weight"] else ""
        section_parts.append(
            PageTable(
                "Columns",
                ("column", "role", "mean", "std.dev.", "5%", "median", "95%", "distribution"),
                tuple(_column_rows(fit)),
                caption,
                fit.command,
            )
        )
    return Section("The log", f"{facts['log']}, as it was read.", tuple(section_parts))


def _column_rows(fit: FitView) -> Iterator[tuple[Cell, ...]]:
    rows, columns = fit.sample, fit.facts["columns"]
    if rows is None:
        return
    groups = (
        ("state", columns["state"], rows.x),
        ("action", columns["action"], rows.a),
        ("instrument", columns["instrument"], rows.z),
        ("output", fit.outputs, rows.y),
    )
    for role, names, values in groups:
        for name, v in zip(names, values.T, strict=True):
            low, middle, high = (float(q) for q in np.quantile(v, (0.05, 0.5, 0.95)))
            yield name, role, float(v.mean()), float(v.std()), low, middle, high, sparkline(v)


def instrument_section(fit: FitView) -> Section:
    """Return the section on how the instruments move the actions, and on the tests."""
    d = fit.facts["diagnostics"]
    section_parts: list[SectionPart] = []
    if word := d.get("verdict"):
        section_parts.append(Badge(word.capitalize(), sentence(d["rule"]), TONES.get(word, "bad")))
        if advice := ADVICE.get(d.get("recommended")):
            section_parts.append(Text((advice,)))
        if method := d.get("recommended_method"):
            section_parts.append(Text((many_sentence(method),)))
    elif "rule" in d:
        section_parts.append(Text((sentence(d["rule"]),)))
    section_parts += [Badge("Note", sentence(text), "doubtful") for text in fit.facts["warnings"]]
    if drawn := pictures.first_stages(fit):
        section_parts.append(
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
        section_parts.append(
            PageTable(
                "First stages", (*header, f"{kind}conditional F"), stages, command=fit.command
            )
        )
    if tests := tuple(_test_rows(d)):
        names = ("test", "output", "value", "distribution", "p", "null hypothesis")
        section_parts.append(PageTable("Specification tests", names, tests, command=fit.command))
    if not section_parts:
        reasons = d.get("reasons") or {"": "no diagnostics were computed"}
        section_parts.append(Text((sentence(next(iter(reasons.values()))),)))
    return Section(
        "The instrument", "Is the instrument strong, and does it matter?", tuple(section_parts)
    )


def residual_section(fit: FitView) -> Section:
    """Return the section on residuals, against the instruments and against fitted values."""
    section_parts: list[SectionPart] = []
    if drawn := pictures.residuals(fit):
        section_parts.append(
            Figure(
                "Residuals against the part of an action that the instruments move",
                drawn,
                "Means of twelve bins of equal size with 95% intervals. That part of the action is "
                "free of confounding, so what the right effect leaves is flat along it; a slope is "
                "the error of the effect. For each output, the action on which the two estimates "
                "differ.",
                fit.command,
                tuple(KEY[kind] for kind in fit.estimates),
            )
        )
    section_parts.append(
        Figure(
            "Residuals against fitted values",
            pictures.spreads(fit),
            f"{pictures.POINTS} rows or fewer. A curve would ask for richer features; a funnel "
            "for standard errors that allow for it, as the default ones do.",
            fit.command,
        )
    )
    return Section("What is left", "Residuals show what the model missed.", tuple(section_parts))


def assumption_section(fit: FitView) -> Section:
    """Return the section on the assumptions, with the tests of those that can be tested."""
    facts = fit.facts
    z, a = listed(fit.columns_of("instrument")), listed(fit.columns_of("action"))
    is_one = len(fit.columns_of("instrument")) == 1
    are, touch = ("is", "touches") if is_one else ("are", "touch")
    d = facts["diagnostics"]
    over = d.get("hansen_j") or d.get("sargan")
    checked = "Not testable here: there are no more instruments than endogenous features."
    if over:
        smallest = min(test["p_value"] for test in over.values())
        checked = f"The test of over-identification can refute it: smallest p {smallest:.3g}."
    free = d.get("unidentified") or []
    identified = "The instruments move every direction of the features."
    return Section(
        "What was assumed",
        "The numbers above are effects of actions if these hold.",
        (
            Points(
                (
                    (
                        "independence",
                        f"{z} {are} independent of the unobserved causes of the outcomes.",
                    ),
                    (
                        "exclusion",
                        f"{z} {touch} the outputs only through {a}. {checked}",
                    ),
                    ("relevance", f"Not identified: {'; '.join(free)}." if free else identified),
                    ("form", f"Outputs are linear in {len(fit.phi)} features, plus noise."),
                    ("noise", f"Standard errors: {_errors(facts)}."),
                    ("one world", "One set of coefficients holds over the whole log."),
                )
            ),
        ),
    )


def _errors(facts: dict[str, Any]) -> str:
    clusters = facts.get("clusters") or {}
    by = " and ".join(f"{name} ({count:,})" for name, count in clusters.items())
    return (facts["se_kind"] or "none were computed") + (f" by {by}" if by else "")


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
