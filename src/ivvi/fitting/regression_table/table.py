"""Fits side by side, as a paper prints them: a column per fit, standard errors in brackets."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from ivvi._io.arrays import Floats
from ivvi._io.plotting import (
    IV,
    LS,
    MUTED,
    OTHERS,
    check_figure,
    draw_intervals,
    finished,
    make_axes,
)
from ivvi._io.result import Compact, Records, TableResult
from ivvi.diagnostics.verdict import MEANING
from ivvi.errors import InputError, nearest
from ivvi.estimators.registry import TITLES
from ivvi.fitting.fit import Fit
from ivvi.fitting.inference_tables import student_widths
from ivvi.fitting.regression_table.formats import FORMATS, Cells
from ivvi.fitting.regression_table.statistics import STATISTICS
from ivvi.fitting.saved_fit import as_fit
from ivvi.logs.columns.patterns import Columns, match_columns

LEVELS = (0.01, 0.05, 0.1)
"""P-values below which a coefficient gets three stars, two and one."""
COLOURS = (IV, LS, *OTHERS)
"""Of the columns in a picture."""
BESIDE = {"least-squares": "LS", "reduced-form": "reduced form"}


@dataclass(frozen=True, slots=True, repr=False)
class TableColumn(Compact):
    """One column: coefficients (d_y, d), standard errors and p-values of named features.

    `half` is half of each 95% interval.
    """

    fit: str
    title: str
    features: tuple[str, ...]
    W: Floats
    se: Floats
    p: Floats
    half: Floats
    statistics: dict[str, dict[str, str]]

    def at(self, output: int, feature: str) -> tuple[float, float, float] | None:
        """Return coefficient, standard error and p-value; None where it has no such feature."""
        if feature not in self.features:
            return None
        j = self.features.index(feature)
        return self.W[output, j], self.se[output, j], self.p[output, j]

    def interval(self, output: int, feature: str) -> tuple[float, float, float]:
        """Return a coefficient and its 95% interval."""
        j = self.features.index(feature)
        middle, half = float(self.W[output, j]), float(self.half[output, j])
        return middle, middle - half, middle + half


@dataclass(frozen=True, repr=False)
class Table(TableResult):
    """Fits side by side: `to_markdown`, `to_latex`, `to_html`, `to_csv`, `to_frame`.

    Attributes
    ----------
    columns
        One for each fit, and for what was asked for beside it.
    outputs, features
        The outputs, each a panel, and the rows of a panel.
    statistics
        Words of what stands below the coefficients.
    stars, digits
        Whether significance is starred, and digits after the point.
    notes
        What speaks against single fits, in sentences below the table.
    """

    columns: tuple[TableColumn, ...]
    outputs: tuple[str, ...]
    features: tuple[str, ...]
    statistics: tuple[str, ...]
    stars: bool = False
    digits: int = 3
    notes: tuple[str, ...] = ()

    def to(self, format: str = "markdown") -> str:
        """Return the table as ``markdown``, ``latex``, ``html`` or ``csv``."""
        if format not in FORMATS:
            hint = nearest(format, tuple(FORMATS)) or f"; expected {', '.join(FORMATS)}"
            raise InputError(f"unknown table format {format!r}{hint}")
        return FORMATS[format](self._grid())

    def to_markdown(self) -> str:
        """Return the table as Markdown, aligned so that it reads well as text."""
        return self.to("markdown")

    def to_latex(self) -> str:
        r"""Return the table as a LaTeX ``tabular``; it needs ``\usepackage{booktabs}``."""
        return self.to("latex")

    def to_html(self) -> str:
        """Return the table as HTML that brings its own style."""
        return self.to("html")

    def to_csv(self) -> str:
        """Return the table as CSV, one line per row of the table."""
        return self.to("csv")

    def summary(self) -> str:
        """Return the table as text."""
        return self.to_markdown()

    def _repr_html_(self) -> str:
        return self.to_html()

    def records(self) -> Records:
        """Return the coefficients, one row per output, feature and column of the table."""
        rows: Records = []
        for i, output in enumerate(self.outputs):
            for feature in self.features:
                for column in self.columns:
                    if (cell := column.at(i, feature)) is not None:
                        coefficient, se, p = map(float, cell)
                        row = {"output": output, "feature": feature, "fit": column.fit}
                        numbers = {"coefficient": coefficient, "se": se, "p_value": p}
                        rows.append(row | {"estimator": column.title} | numbers)
        return rows

    def plot(self, path: str | os.PathLike[str] | None = None, *, force: bool = False) -> Any:
        """Draw the coefficients with 95% intervals, a panel per output; `path` saves it.

        The constant is left out where there is anything else.
        """
        check_figure(path, force=force)
        features = [f for f in self.features if f != "1"] or list(self.features)
        colours = [COLOURS[c % len(COLOURS)] for c in range(len(self.columns))]
        figure, axes = make_axes(1, len(self.outputs))
        figure.set_figheight(1.8 + 0.12 * len(features) * (1 + len(self.columns)))
        for i, (ax, output) in enumerate(zip(axes[0], self.outputs, strict=True)):
            drawn = [
                (feature, column.interval(i, feature), colour)
                for feature in features
                for column, colour in zip(self.columns, colours, strict=True)
                if feature in column.features
            ]
            ax.axvline(0, color=MUTED, lw=0.8)
            draw_intervals(ax, *zip(*drawn, strict=True))
            ax.set_title(output, loc="left", fontsize=10)
            ax.set(xlabel="coefficient, 95% interval")
        for column, colour in zip(self.columns, colours, strict=True):
            axes[0, 0].plot([], [], "o-", color=colour, label=f"{column.fit}: {column.title}")
        figure.legend(
            loc="outside lower center", ncols=len(self.outputs), frameon=False, fontsize=8
        )
        return finished(figure, path, force=force)

    def to_json(self) -> dict[str, Any]:
        """Describe the table with JSON values, null for what is not identified."""
        rows = [
            {k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in row.items()}
            for row in self.records()
        ]
        below = [
            {"fit": column.fit, "estimator": column.title, **column.statistics}
            for column in self.columns
        ]
        return {"coefficients": rows, "statistics": below, "notes": list(self.notes)}

    def __repr__(self) -> str:
        fits = ", ".join(dict.fromkeys(column.fit for column in self.columns))
        return f"Table({fits}: {len(self.features)} features of {', '.join(self.outputs)})"

    def _grid(self) -> Cells:
        panels, below = [], [self._below(output) for output in self.outputs]
        common = [line for line in below[0] if all(line in other for other in below)]
        for i, output in enumerate(self.outputs):
            lines: list[tuple[str, list[str]]] = []
            for feature in self.features:
                cells = [column.at(i, feature) for column in self.columns]
                if any(cell is not None for cell in cells):
                    lines.append(("Constant" if feature == "1" else feature, self._points(cells)))
                    lines.append(("", [self._bracket(cell) for cell in cells]))
            panels.append((output, lines, [line for line in below[i] if line not in common]))
        heads = [[c.fit for c in self.columns], [c.title for c in self.columns]]
        notes = ["Standard errors in brackets."]
        if self.stars:
            stars = ", ".join(f"{'*' * (3 - i)} p < {p:g}" for i, p in enumerate(LEVELS))
            notes.append(f"{stars}.")
        notes += self.notes
        return Cells(heads, panels, common, " ".join(notes))

    def _below(self, output: str) -> list[tuple[str, list[str]]]:
        """Return the statistics of one output that any column has."""
        lines = [
            (STATISTICS[word][0], [c.statistics[word].get(output, "") for c in self.columns])
            for word in self.statistics
        ]
        return [line for line in lines if any(line[1])]

    def _points(self, estimates: Sequence[Any]) -> list[str]:
        return [
            "" if one is None else rounded(one[0], self.digits) + self._starred(one[2])
            for one in estimates
        ]

    def _starred(self, p: float) -> str:
        return "*" * sum(p < level for level in LEVELS) if self.stars else ""

    def _bracket(self, one: Any) -> str:
        if one is None:
            return ""
        return f"({rounded(one[1], self.digits)})" if np.isfinite(one[1]) else "(-)"


def table(
    fits: Any,
    *,
    names: Sequence[str] = (),
    outputs: Columns = (),
    features: Columns = (),
    beside: Columns = (),
    statistics: Columns = ("n", "episodes", "f", "j", "errors"),
    stars: bool = False,
    digits: int = 3,
) -> Table:
    """Print fits side by side, as a paper does.

    Parameters
    ----------
    fits
        Fits or folders of saved models; a mapping names them.
    names
        Names of the fits, in their order. By default (1), (2), ...
    outputs, features
        Outputs and features that are shown, by name or glob; by default all.
    beside
        ``least-squares`` and ``reduced-form``: columns beside each fit.
    statistics
        What stands below the coefficients: ``n``, ``episodes``, ``clusters``, ``f`` (of the
        first stage, robust where the errors are), ``j`` (p-value of the overidentification
        test), ``endogeneity`` (p-value of Wu and Hausman's test), ``r2``, ``verdict``,
        ``errors``.
    stars
        Star coefficients by their p-values: three below 0.01, two below 0.05, one below 0.1.
    digits
        Digits after the point.

    Examples
    --------
    >>> import ivvi
    >>> log = ivvi.make_env("linear", dim=1).collect(episodes=50, horizon=40, seed=1)
    >>> fits = {"2SLS": ivvi.estimate(log), "LIML": ivvi.estimate(log, method="liml")}
    >>> print(ivvi.table(fits, features="a0", statistics="n"))
    |       |      2SLS |    LIML |
    |:------|----------:|--------:|
    |       | IV (2SLS) |    LIML |
    | a0    |    -0.468 |  -0.468 |
    |       |   (0.068) | (0.068) |
    | n     |     2,000 |   2,000 |
    <BLANKLINE>
    Output next_x0. Standard errors in brackets.
    """
    if digits < 0 or digits > 12:
        raise InputError(f"digits is {digits}; expected 0 to 12")
    if isinstance(fits, Mapping):
        names, fits = [*fits], [*fits.values()]
    is_single = isinstance(fits, Fit | str | os.PathLike)
    loaded = [as_fit(fit) for fit in ([fits] if is_single else fits)]
    if not loaded:
        raise InputError("a table needs at least one fit")
    named = [str(name) for name in names] or [f"({i + 1})" for i in range(len(loaded))]
    if len(named) != len(loaded):
        raise InputError(f"{len(named)} names are given for {len(loaded)} fits")
    chosen_outputs = _common_outputs(loaded, outputs, named)
    words = _words(statistics, STATISTICS, "statistic")
    asked = _words(beside, BESIDE, "column beside a fit")
    columns = [
        column
        for name, fit in zip(named, loaded, strict=True)
        for column in _columns(name, fit, chosen_outputs, asked, words)
    ]
    rows = tuple(dict.fromkeys(f for column in columns for f in column.features))
    rows = (*(f for f in rows if f != "1"), *(f for f in rows if f == "1"))
    rows = match_columns(features, rows, "feature") if features else rows
    marked = ((name, _objection(fit)) for name, fit in zip(named, loaded, strict=True))
    notes = tuple(f"{name}: {text}." for name, text in marked if text)
    return Table(tuple(columns), chosen_outputs, rows, words, stars, digits, notes)


def _objection(fit: Fit) -> str:
    """Return what speaks against a fit, in its instruments or its rows, or '' if nothing does."""
    verdict = fit.verdict
    judged = verdict is not None and fit.uses_instruments
    if verdict is not None and judged and verdict.word in ("weak", "contradictory"):
        return MEANING[verdict.word]
    return fit.doubts[0] if fit.doubts else ""


def rounded(value: float, digits: int) -> str:
    """Return a number with `digits` after the point, or two that count where it is small."""
    if not np.isfinite(value):
        return "-"
    if value and abs(value) < 10.0 ** -(digits - 1):
        return f"{value:.2g}" if abs(value) >= 1e-4 else f"{value:.1e}"
    return f"{value:,.{digits}f}"


def _words(requested: Columns, allowed: Iterable[str], what: str) -> tuple[str, ...]:
    """Return the words that are asked for, all of them known."""
    words = requested.split(",") if isinstance(requested, str) else requested
    asked = tuple(dict.fromkeys(word.strip() for word in words if word.strip()))
    for word in asked:
        if word not in allowed:
            hint = nearest(word, tuple(allowed)) or f"; expected {', '.join(allowed)}"
            raise InputError(f"unknown {what} {word!r}{hint}")
    return asked


def _common_outputs(fits: Sequence[Fit], asked: Columns, names: Sequence[str]) -> tuple[str, ...]:
    """Return the outputs that are shown; all fits must have them."""
    first = fits[0].roles.outputs
    chosen = match_columns(asked, first, "output") if asked else first
    for name, fit in zip(names, fits, strict=True):
        own = fit.roles.outputs
        if not set(chosen) <= set(own) or (not asked and set(own) != set(first)):
            raise InputError(
                f"the fits of a table have different outputs: {names[0]} has {', '.join(first)}, "
                f"{name} has {', '.join(own)}; choose common ones with outputs (--output)"
            )
    return chosen


def _columns(
    name: str, fit: Fit, outputs: Sequence[str], beside: Sequence[str], words: Sequence[str]
) -> list[TableColumn]:
    """Return the column of a fit and those next to it."""
    at, estimate = [fit.roles.outputs.index(output) for output in outputs], fit.estimate
    freedoms = estimate.freedoms
    df = np.full(estimate.W.shape, np.inf) if freedoms is None else freedoms
    below = {word: STATISTICS[word][1](fit, outputs) for word in words}
    title = TITLES.get(fit.method, fit.method)

    def column(
        title: str,
        features: tuple[str, ...],
        estimated: tuple[Floats, Floats, Floats],
        below: dict[str, dict[str, str]],
    ) -> TableColumn:
        W, se, df = (part[at] for part in estimated)
        half = student_widths(df) * se
        return TableColumn(name, title, features, W, se, _two_sided(W, se, df), half, below)

    columns = [column(title, estimate.design.phi_names, (estimate.W, estimate.se, df), below)]
    only_n = {word: below[word] if word in ("n", "episodes", "clusters") else {} for word in words}
    for word in beside:
        if word == "least-squares" and fit.uses_instruments:
            estimated = fit.baseline.W, fit.baseline.se, df
            columns.append(column(BESIDE[word], estimate.design.phi_names, estimated, only_n))
        reduced = None if fit.inference is None else fit.inference.reduced_form
        if word == "reduced-form" and reduced is not None:
            estimated = reduced.W, reduced.se, np.full(reduced.W.shape, np.min(df))
            columns.append(column(BESIDE[word], reduced.names, estimated, only_n))
    return columns


def _two_sided(W: Floats, se: Floats, df: Floats) -> Floats:
    """Return the p-values of W = 0 by Student's t; an infinite df stands for the normal law."""
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.abs(W / se)
    return np.where(np.isinf(df), 2 * special.ndtr(-t), 2 * special.stdtr(df, -t))
