"""The report of a fit: the log, the instrument, the effects, what is left, what was assumed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ivvi._io.brief import Brief
from ivvi.reporting import fit_pictures as pictures
from ivvi.reporting.cells import Cell, listed
from ivvi.reporting.fit_view import FitView
from ivvi.reporting.instrument_section import instrument_section
from ivvi.reporting.page import Figure, Page, PageTable, Part, Points, Section
from ivvi.reporting.pictures import sparkline
from ivvi.reporting.policy_section import policy_section
from ivvi.reporting.value_section import value_section
from ivvi.reporting.varying_section import varying_section
from ivvi.weak_iv.confidence_sets import piece

KEY = {"iv": ("iv", "with the instrument, 95% interval"), "ls": ("ls", "least squares")}
MOST_ROWS = 400
"""Rows of a table; of more, those on which the two estimates differ most."""


def fit_page(fit: FitView, policy: Any = None, value: Any = None) -> Page:
    """Put together the report of a fit, of a policy planned with it, and of its value."""
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
    beside = ", beside least squares" if fit.compared else ""
    word = "instrument" if len(fit.columns_of("instrument")) == 1 else "instruments"
    return Page(
        title="What the actions do",
        lead=f"{facts['log']}: effects of {listed(fit.columns_of('action'))} on "
        f"{listed(facts['outputs'])}, estimated with {listed(fit.columns_of('instrument'))} "
        f"as {word}{beside}.",
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
    """Say in a few figures what a reader in a hurry wants."""
    facts = fit.facts
    yield f"{facts['n']:,}", f"transitions in {facts['episodes']:,} episodes"
    if word := facts["diagnostics"].get("verdict"):
        yield word, "instruments"
    if fit.compared and (known := sign_changes(fit)[1]):
        yield (
            f"{sign_changes(fit)[0]} of {known}",
            ("effects of actions have another sign by least squares"),
        )
        widest = np.nanmax(np.abs(fit.gap[:, fit.endogenous]), initial=0.0)
        yield f"{widest:.0f} s.e.", "largest gap between the two estimates of an effect"


def sign_changes(fit: FitView) -> tuple[int, int]:
    """Count the effects whose sign the instrument tells, and those that least squares turns."""
    (W, se), (W_ls, _) = fit.estimates["iv"], fit.estimates["ls"]
    inside = fit.endogenous
    sure = np.abs(W[:, inside]) > fit.widths[:, inside] * se[:, inside]
    if fit.facts.get("recommended") in ("robust", "none"):
        sure = np.array([[_tells_sign(fit, o, fit.phi[j]) for j in inside] for o in fit.outputs])
    return int(np.sum(sure & (W[:, inside] * W_ls[:, inside] < 0))), int(sure.sum())


def _tells_sign(fit: FitView, output: str, feature: str) -> bool:
    """Whether the robust interval of an effect leaves zero out."""
    robust = fit.robust(output, feature)
    if robust is None or robust["empty"] or robust["low"] is None or robust["high"] is None:
        return False
    return bool(robust["low"] > 0 or robust["high"] < 0)


def brief_section(brief: Brief, value: Any = None) -> Section:
    """Answer first: is the instrument good enough, what did confounding do, what next."""
    items = dict(brief.items)
    facts = value.to_json() if hasattr(value, "to_json") else value
    if isinstance(facts, dict) and (next_step := (facts.get("brief") or {}).get("next")):
        items["Next"] = next_step  # what is known of the policy is known later
    points = tuple((word.lower(), sentence) for word, sentence in items.items())
    return Section("In short", "Three answers; the evidence is below.", (Points(points),))


def log_section(fit: FitView) -> Section:
    """Describe the rows and the columns."""
    facts, columns = fit.facts, fit.facts["columns"]
    dropped = [f"{n:,} {why}" for why, n in facts["dropped"].items() if n]
    keys = [name for role in ("episode", "step", "weight") for name in fit.columns_of(role)]
    parts: list[Part] = [
        Points(
            (
                ("transitions", f"{facts['n']:,}, in {facts['episodes']:,} episodes"),
                ("dropped rows", ", ".join(dropped) or "none"),
                ("keys and weights", listed(keys) if keys else "none: every row stands alone"),
            )
        )
    ]
    if fit.sample is not None:
        caption = f"Of {len(fit.sample):,} rows, spread over the first ones of the log."
        caption += " Row weights do not count here." if columns["weight"] else ""
        parts.append(
            PageTable(
                "Columns",
                ("column", "role", "mean", "std.dev.", "5%", "median", "95%", "distribution"),
                tuple(_column_rows(fit)),
                caption,
                fit.command,
            )
        )
    return Section("The log", f"{facts['log']}, as it was read.", tuple(parts))


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


def effect_section(fit: FitView) -> Section:
    """Show the coefficients, least squares beside them."""
    many = len(fit.outputs) > pictures.MOST or len(fit.phi) - 1 > pictures.ROWS
    some = " Where there are many, those in which the two differ most." if many else ""
    figure = Figure(
        "Effect on each output",
        pictures.coefficients(fit),
        f"Coefficients of one step, with 95% intervals.{some}",
        fit.command,
        tuple(KEY[kind] for kind in fit.estimates),
    )
    lead = "Coefficients of the next state on state and action."
    if fit.compared and fit.endogenous:
        turned, known = sign_changes(fit)
        lead = (
            f"The instrument settles the sign of {known} effects of actions; least squares gives "
            f"{turned or 'none'} of them the other sign."
            if known
            else "The instrument does not settle the sign of any effect of an action."
        )
    return Section("What moves what", lead, (figure, _coefficient_table(fit)))


def _coefficient_table(fit: FitView) -> PageTable:
    own = next(iter(fit.estimates))
    (W, se), rows = fit.estimates[own], []
    half = fit.widths * se
    inside = set(fit.endogenous)
    order = sorted(range(len(fit.phi)), key=lambda j: (j not in inside, j))
    exact = [name for i, name in enumerate(fit.outputs) if i not in fit.noisy]
    bootstrapped = bool(fit.facts.get("wild"))
    for i, output in enumerate(fit.outputs):
        if output in exact:
            continue
        for j in order:
            feature = fit.phi[j]
            w, s, h = float(W[i, j]), float(se[i, j]), float(half[i, j])
            shown = "Constant" if feature == "1" else feature
            row: tuple[Cell, ...] = (output, shown, w, s, w - h, w + h)
            row = (*row, robust_words(fit.robust(output, feature)))
            if bootstrapped:
                row = (*row, wild_words(fit.wild(output, feature)))
            if fit.compared:
                row = (*row, float(fit.estimates["ls"][0][i, j]), float(fit.gap[i, j]))
            rows.append(row)
    names: tuple[str, ...] = ("output", "feature", "estimate", "std.err.", "low", "high", "robust")
    caption = (
        f"{len(rows):,} coefficients. Low and high are Wald's 95% interval; robust is the one of "
        "an action's effect that holds however weak the instrument."
    )
    if bootstrapped:
        names = (*names, "wild bootstrap")
    if exact:
        caption += f" Exact functions of the features are left out: {listed(exact)}."
    if fit.compared:
        names = (*names, "least squares", "gap in s.e.")
        caption += " The gap is how far least squares lies from the instrument."
    if len(rows) > MOST_ROWS:
        rows.sort(key=_dispute)
        caption += f" The {MOST_ROWS} largest gaps are shown; ivvi fit --json holds them all."
    return PageTable("Coefficients", names, tuple(rows[:MOST_ROWS]), caption, fit.command)


def robust_words(robust: dict[str, Any] | None) -> str | None:
    """Write an interval that a weak instrument cannot spoil, with its method."""
    if robust is None:
        return None
    if robust["empty"]:
        return f"empty ({robust['method']})"
    pieces = (
        piece(-math.inf if low is None else low, math.inf if high is None else high)
        for low, high in robust["intervals"]
    )
    return f"{' or '.join(pieces)} ({robust['method']})"


def wild_words(test: dict[str, Any] | None) -> str | None:
    """Write the interval of a bootstrapped test; null stands for an end that was not found."""
    if test is None:
        return None
    low, high = test["interval"]
    return piece(-math.inf if low is None else low, math.inf if high is None else high)


def _dispute(row: tuple[Cell, ...]) -> float:
    """Put the largest gap first, and what has none last."""
    gap = row[-1]
    return -abs(gap) if isinstance(gap, float) and gap == gap else 0.0  # NaN is not itself


def residual_section(fit: FitView) -> Section:
    """Show what the models leave, against the instruments and against fitted values."""
    parts: list[Part] = []
    if drawn := pictures.residuals(fit):
        parts.append(
            Figure(
                "Residuals against the part of an action that the instruments move",
                drawn,
                "Means of twelve bins of equal size with 95% intervals. That part of the action is "
                "free of confounding, so what the right effect leaves is flat along it; a slope is "
                "the error of the effect. For each output, the action in dispute.",
                fit.command,
                tuple(KEY[kind] for kind in fit.estimates),
            )
        )
    parts.append(
        Figure(
            "Residuals against fitted values",
            pictures.spreads(fit),
            f"{pictures.POINTS} rows or fewer. A curve would ask for richer features; a funnel "
            "for standard errors that allow for it, as the default ones do.",
            fit.command,
        )
    )
    return Section("What is left", "Residuals show what the model missed.", tuple(parts))


def assumption_section(fit: FitView) -> Section:
    """Say what the data cannot check, and what the estimate rests on."""
    facts = fit.facts
    z, a = listed(fit.columns_of("instrument")), listed(fit.columns_of("action"))
    is_one = len(fit.columns_of("instrument")) == 1
    are, touch = ("is", "touches") if is_one else ("are", "touch")
    d = facts["diagnostics"]
    over = d.get("hansen_j") or d.get("sargan")
    checked = "Not testable here: there are no more instruments than features they serve."
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
                        f"{z} {are} independent of what moves outcomes unseen.",
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
