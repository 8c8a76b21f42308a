"""The report of a fit: the log, the instrument, the effects, what is left, what was assumed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ivvi.reporting import fit_pictures as pictures
from ivvi.reporting.fitted import Fitted
from ivvi.reporting.page import (
    Cell,
    Figure,
    Page,
    Part,
    Points,
    Section,
    Table,
    Text,
    Verdict,
    p_value,
)
from ivvi.reporting.pictures import sparkline
from ivvi.reporting.policy_section import policy_section
from ivvi.reporting.value_section import value_section

KEY = {"iv": ("iv", "with the instrument, 95% interval"), "ls": ("ls", "least squares")}
TONES = {"strong": "good", "doubtful": "doubtful", "weak": "bad", "not identified": "bad"}
MOST_ROWS = 400
"""Rows of a table; of more, those on which the two estimates differ most."""
TESTS = {
    "hansen_j": "Hansen J",
    "sargan": "Sargan",
    "robust_wu_hausman": "robust Wu-Hausman",
    "wu_hausman": "Wu-Hausman",
}


def fit_page(fit: Fitted, policy: Any = None, value: Any = None) -> Page:
    """Put together the report of a fit, of a policy planned with it, and of its value."""
    facts = fit.facts
    sections = [log_section(fit), instrument_section(fit), effect_section(fit)]
    sections += [residual_section(fit)] if fit.residuals else []
    sections += [policy_section(policy, fit)] if policy is not None else []
    sections += [value_section(value)] if value is not None else []
    sections.append(assumption_section(fit))
    beside = ", beside least squares" if fit.compared else ""
    return Page(
        title="What the actions do",
        lead=f"{facts['log']}: effects of {_listed(facts['columns']['action'])} on "
        f"{_listed(facts['outputs'])}, estimated with {_listed(facts['columns']['instrument'])} "
        f"as instruments{beside}.",
        sections=tuple(sections),
        numbers=tuple(_numbers(fit)),
        facts={
            "log": facts["log"],
            "method": facts["method"],
            "standard errors": facts["se_kind"] or "none",
            "seconds": f"{facts['seconds']:.2f}",
            **({"model": fit.place} if fit.place else {}),
        },
    )


def _numbers(fit: Fitted) -> Iterator[tuple[str, str]]:
    """Say in a few figures what a reader in a hurry wants."""
    facts = fit.facts
    yield f"{facts['n']:,}", f"transitions in {facts['episodes']:,} episodes"
    if word := facts["diagnostics"].get("verdict"):
        yield word, "instruments"
    if fit.compared and fit.endogenous:
        turned, known = sign_changes(fit)
        yield f"{turned} of {known}", "effects of actions have another sign by least squares"
        widest = np.nanmax(np.abs(fit.gap[:, fit.endogenous]), initial=0.0)
        yield f"{widest:.0f} s.e.", "largest gap between the two estimates of an effect"


def sign_changes(fit: Fitted) -> tuple[int, int]:
    """Count the effects whose sign the instrument tells, and those that least squares turns."""
    (W, se), (W_ls, _) = fit.estimates["iv"], fit.estimates["ls"]
    inside = fit.endogenous
    sure = np.abs(W[:, inside]) > pictures.NORMAL_95 * se[:, inside]
    return int(np.sum(sure & (W[:, inside] * W_ls[:, inside] < 0))), int(sure.sum())


def log_section(fit: Fitted) -> Section:
    """Describe the rows and the columns."""
    facts, columns = fit.facts, fit.facts["columns"]
    dropped = [f"{n:,} {why}" for why, n in facts["dropped"].items() if n]
    keys = [columns[name] for name in ("episode", "step", "weight") if columns[name]]
    parts: list[Part] = [
        Points(
            (
                ("transitions", f"{facts['n']:,}, in {facts['episodes']:,} episodes"),
                ("dropped rows", ", ".join(dropped) or "none"),
                ("keys and weights", _listed(keys) if keys else "none: every row stands alone"),
            )
        )
    ]
    if fit.sample is not None:
        caption = f"Of {len(fit.sample):,} rows, spread over the first ones of the log."
        parts.append(
            Table(
                "Columns",
                ("column", "role", "mean", "std.dev.", "5%", "median", "95%", "distribution"),
                tuple(_column_rows(fit)),
                caption,
                _command(fit),
            )
        )
    return Section("The log", f"{facts['log']}, as it was read.", tuple(parts))


def _column_rows(fit: Fitted) -> Iterator[tuple[Cell, ...]]:
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


def instrument_section(fit: Fitted) -> Section:
    """Show whether the instruments move the actions, and what the tests say."""
    d = fit.facts["diagnostics"]
    parts: list[Part] = []
    if word := d.get("verdict"):
        parts.append(Verdict(word.capitalize(), _sentence(d["rule"]), TONES[word]))
    elif "rule" in d:
        parts.append(Text((_sentence(d["rule"]),)))
    parts += [Verdict("Note", _sentence(text), "doubtful") for text in fit.facts["warnings"]]
    if drawn := pictures.first_stages(fit):
        parts.append(
            Figure(
                "Do the instruments move the actions?",
                drawn,
                "Each action against what the instruments predict of it, both after regression on "
                "the exogenous features. Grey: rows of the log. Blue: means of twelve bins of "
                "equal size with 95% intervals. The line is where prediction and action agree; "
                "the wider the blue points spread along it, the stronger the instrument.",
                _command(fit),
            )
        )
    if stages := tuple(_stage_rows(d)):
        names = ("action", "partial F", "distribution", "partial R²", "robust F", "conditional F")
        parts.append(Table("First stages", names, stages, command=_command(fit)))
    if tests := tuple(_test_rows(d)):
        names = ("test", "output", "value", "distribution", "p", "null hypothesis")
        parts.append(Table("Specification tests", names, tests, command=_command(fit)))
    if not parts:
        reasons = d.get("reasons") or {"": "no diagnostics were computed"}
        parts.append(Text((_sentence(next(iter(reasons.values()))),)))
    return Section("The instrument", "Is it any good, and does it matter?", tuple(parts))


def _stage_rows(d: dict[str, Any]) -> Iterator[tuple[Cell, ...]]:
    for name, stage in (d["first_stage"] or {}).items():
        robust, conditional = stage["robust"] or {}, stage["conditional"] or {}
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
            shown = (test["value"], test["distribution"], p_value(test["p_value"]))
            yield (title, output, *shown, test["null"])
    for key in ("cragg_donald_test", "kleibergen_paap"):
        if (test := d.get(key)) is not None:
            title = "Cragg-Donald" if key == "cragg_donald_test" else "Kleibergen-Paap rk"
            shown = (test["value"], test["distribution"], p_value(test["p_value"]))
            yield (title, "all", *shown, test["null"])


def effect_section(fit: Fitted) -> Section:
    """Show the coefficients, least squares beside them."""
    many = len(fit.outputs) > pictures.MOST or len(fit.phi) - 1 > pictures.ROWS
    some = " Where there are many, those in which the two differ most." if many else ""
    figure = Figure(
        "Effect on each output",
        pictures.coefficients(fit),
        f"Coefficients of one step, with 95% intervals.{some}",
        _command(fit),
        tuple(KEY[kind] for kind in fit.estimates),
    )
    lead = "Coefficients of the next state on state and action."
    if fit.compared and fit.endogenous:
        turned, known = sign_changes(fit)
        lead = (
            f"Of {known} effects of actions whose sign the instrument tells, least squares gives "
            f"{turned or 'none'} the other sign."
        )
    return Section("What moves what", lead, (figure, _coefficient_table(fit)))


def _coefficient_table(fit: Fitted) -> Table:
    own = next(iter(fit.estimates))
    (W, se), rows = fit.estimates[own], []
    half = pictures.NORMAL_95 * se
    inside = set(fit.endogenous)
    order = sorted(range(len(fit.phi)), key=lambda j: (j not in inside, j))
    for i, output in enumerate(fit.outputs):
        for j in order:
            feature = fit.phi[j]
            w, s, h = float(W[i, j]), float(se[i, j]), float(half[i, j])
            row: tuple[Cell, ...] = (output, feature, w, s, w - h, w + h)
            if fit.compared:
                row = (*row, float(fit.estimates["ls"][0][i, j]), float(fit.gap[i, j]))
            rows.append(row)
    names: tuple[str, ...] = ("output", "feature", "estimate", "std.err.", "low", "high")
    caption = f"{len(rows):,} coefficients."
    if fit.compared:
        names = (*names, "least squares", "gap in s.e.")
        caption += " The gap is how far least squares lies from the instrument."
    if len(rows) > MOST_ROWS:
        rows.sort(key=_dispute)
        caption += f" The {MOST_ROWS} largest gaps are shown; ivvi fit --json holds them all."
    return Table("Coefficients", names, tuple(rows[:MOST_ROWS]), caption, _command(fit))


def _dispute(row: tuple[Cell, ...]) -> float:
    """Put the largest gap first, and what has none last."""
    gap = row[-1]
    return -abs(gap) if isinstance(gap, float) and gap == gap else 0.0  # NaN is not itself


def residual_section(fit: Fitted) -> Section:
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
                _command(fit),
                tuple(KEY[kind] for kind in fit.estimates),
            )
        )
    parts.append(
        Figure(
            "Residuals against fitted values",
            pictures.spreads(fit),
            f"{pictures.POINTS} rows or fewer. A curve would ask for richer features; a funnel "
            "for standard errors that allow for it, as the default ones do.",
            _command(fit),
        )
    )
    return Section("What is left", "Residuals tell what the model missed.", tuple(parts))


def assumption_section(fit: Fitted) -> Section:
    """Say what the data cannot check, and what the estimate rests on."""
    facts, columns = fit.facts, fit.facts["columns"]
    z, a = _listed(columns["instrument"]), _listed(columns["action"])
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
                    ("independence", f"{z} are independent of what moves outcomes unseen."),
                    ("exclusion", f"{z} touch the outputs only through {a}. {checked}"),
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


def _command(fit: Fitted) -> str:
    """Return what to type to see the numbers again."""
    return fit.facts["command"] or "fit.summary(most_outputs=None)"


def _listed(names: list[str], most: int = 6) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
