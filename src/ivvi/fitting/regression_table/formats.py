"""A grid of text as Markdown, LaTeX, HTML or CSV."""

from __future__ import annotations

import csv
import html
import io
import itertools
import re
import textwrap
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

Line = tuple[str, list[str]]
"""The name of a row, and its cells."""

LATEX = {
    "\\": r"\textbackslash{}",
    **{sign: "\\" + sign for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"$<$",
    ">": r"$>$",
    **{"\u2212": "$-$", "\u00d7": r"$\times$", "\u00b1": r"$\pm$"},
    **{"\u2264": r"$\leq$", "\u2265": r"$\geq$", "\u20ac": r"\texteuro{}"},
}
"""Characters that LaTeX treats specially, or that its fonts have only in math mode."""
LATIN_CAPITALS = {"alpha": "A", "beta": "B", "epsilon": "E", "zeta": "Z", "eta": "H", "iota": "I"}
LATIN_CAPITALS |= {"kappa": "K", "mu": "M", "nu": "N", "omicron": "O", "rho": "P"}
LATIN_CAPITALS |= {"tau": "T", "chi": "X"}
"""Capital Greek letters that LaTeX typesets as Latin ones."""
NOTE_WIDTH = (34, 12)
"""Characters per line of the note below a table, and how many each column adds."""


@dataclass(frozen=True, slots=True)
class Cells:
    """Cells of a table, as text.

    Attributes
    ----------
    heads
        The names of the columns, and what each is.
    panels
        For each output its name, its coefficients, and the statistics below them.
    foot
        The statistics that all outputs share.
    note
        What is said below the table.
    """

    heads: list[list[str]]
    panels: list[tuple[str, list[Line], list[Line]]]
    foot: list[Line]
    note: str

    @property
    def only_output(self) -> str:
        """The name of the output if there is only one, else ''."""
        return self.panels[0][0] if len(self.panels) == 1 else ""

    @property
    def full_note(self) -> str:
        """The note, which begins with the name of the output if there is only one."""
        return f"Output {self.only_output}. {self.note}" if self.only_output else self.note

    def lines(self) -> list[Line]:
        """Return all rows but the first head, one after another."""
        width = len(self.heads[0])
        lines: list[Line] = [("", self.heads[1])]
        for output, coefficients, statistics in self.panels:
            heading: list[Line] = [(f"output {output}", [""] * width)]
            title = [] if self.only_output else heading
            lines += [*title, *coefficients, *statistics]
        return lines + self.foot


def markdown(grid: Cells) -> str:
    """Return a Markdown table whose columns are aligned."""
    rows = [("", grid.heads[0]), *grid.lines()]
    text = [[name, *cells] for name, cells in rows]
    text = [[cell.replace("|", "\\|") for cell in line] for line in text]
    widths = [max(5, *(len(line[i]) for line in text)) for i in range(len(text[0]))]
    rule = [":" + "-" * (widths[0] + 1), *("-" * (w + 1) + ":" for w in widths[1:])]
    lines = [
        "| "
        + " | ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        )
        + " |"
        for line in text
    ]
    return "\n".join([lines[0], "|" + "|".join(rule) + "|", *lines[1:], "", grid.full_note])


def latex(grid: Cells) -> str:
    """Return a LaTeX ``tabular`` with the rules of booktabs."""
    width = len(grid.heads[0])
    lines = [r"% \usepackage{booktabs}", rf"\begin{{tabular}}{{l{'c' * width}}}", r"\toprule"]
    lines += [*_latex_spans(grid.heads[0]), *(_latex_row("", head) for head in grid.heads[1:])]
    for output, coefficients, statistics in grid.panels:
        lines.append(r"\midrule")
        if not grid.only_output:
            title = rf"\emph{{Output {_latex_text(output)}}}"
            lines += [rf"\multicolumn{{{width + 1}}}{{l}}{{{title}}} \\", r"\addlinespace"]
        lines += [_latex_row(*line) for line in coefficients]
        lines += [r"\addlinespace"] if statistics else []
        lines += [_latex_row(*line) for line in statistics]
    lines += [r"\midrule"] if grid.foot else []
    lines += [_latex_row(*line) for line in grid.foot]
    lines.append(r"\bottomrule")
    for note in textwrap.wrap(grid.full_note, NOTE_WIDTH[0] + NOTE_WIDTH[1] * width):
        cell = rf"\footnotesize {_latex_text(note)}"
        lines.append(rf"\multicolumn{{{width + 1}}}{{l}}{{{cell}}} \\")
    return "\n".join([*lines, r"\end{tabular}"])


def _latex_spans(heads: list[str]) -> list[str]:
    """Return a row of heads; those that stand side by side more than once are written once."""
    cells, rules, at = [""], [], 2
    for head, same in itertools.groupby(heads):
        count = len(list(same))
        text = _latex_text(head)
        cells.append(text if count == 1 else rf"\multicolumn{{{count}}}{{c}}{{{text}}}")
        rules += [rf"\cmidrule(lr){{{at}-{at + count - 1}}}"] if count > 1 else []
        at += count
    return [" & ".join(cells) + r" \\", *rules]


def _latex_row(name: str, cells: list[str]) -> str:
    first = _latex_text(name)
    guarded = "{}" + first if first.startswith("[") else first  # else an option of the row before
    return " & ".join([guarded, *map(_latex_text, cells)]) + r" \\"


def _latex_text(text: str) -> str:
    escaped = "".join(LATEX.get(sign) or _latex_letter(sign) for sign in text)
    escaped = re.sub(r"\*+", lambda stars: f"$^{{{stars[0]}}}$", escaped)
    escaped = re.sub(r"\\textasciicircum{}(\d+)", r"$^{\1}$", escaped)
    negative = escaped.startswith("-") and escaped[1:2].isdigit()
    return f"$-${escaped[1:]}" if negative else escaped


def _latex_letter(sign: str) -> str:
    """Return a letter as it is; a Greek one as a symbol of formulas."""
    kind, _, name = unicodedata.name(sign, "").lower().rpartition(" letter ")
    name = name.replace("lamda", "lambda").removeprefix("final ")
    if kind not in ("greek small", "greek capital") or not name.isalpha():
        return sign
    if kind == "greek capital":
        return LATIN_CAPITALS.get(name, f"$\\{name.capitalize()}$")
    return "o" if name == "omicron" else f"$\\{name}$"


STYLE = """
.ivvi-table{border-collapse:collapse;font-variant-numeric:tabular-nums;
border-top:2px solid;border-bottom:2px solid;margin:.5em 0}
.ivvi-table th,.ivvi-table td{padding:.15em .9em;text-align:right;border:0;background:none}
.ivvi-table th:first-child,.ivvi-table td:first-child{text-align:left}
.ivvi-table thead tr:last-child th{border-bottom:1px solid;font-weight:normal}
.ivvi-table .panel td{font-style:italic;text-align:left;padding-top:.7em}
.ivvi-table .below td{border-top:1px solid}
.ivvi-table tfoot td{text-align:left;font-size:85%;border-top:1px solid}
""".replace("\n", "")


def html_page(grid: Cells) -> str:
    """Return an HTML table with its own style."""
    width = len(grid.heads[0]) + 1
    heads = "".join(_html_row("", head, "th") for head in grid.heads)
    body = ""
    for output, coefficients, statistics in grid.panels:
        if not grid.only_output:
            body += (
                f'<tr class="panel"><td colspan="{width}">output {html.escape(output)}</td></tr>'
            )
        body += "".join(_html_row(*line) for line in coefficients)
        body += "".join(_html_row(*line) for line in statistics)
    for i, line in enumerate(grid.foot):
        body += _html_row(*line, kind=' class="below"' if i == 0 else "")
    foot = f'<tr><td colspan="{width}">{html.escape(grid.full_note)}</td></tr>'
    return (
        f'<style>{STYLE}</style><table class="ivvi-table"><thead>{heads}</thead>'
        f"<tbody>{body}</tbody><tfoot>{foot}</tfoot></table>"
    )


def _html_row(name: str, cells: list[str], tag: str = "td", kind: str = "") -> str:
    inside = "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in (name, *cells))
    return f"<tr{kind}>{inside}</tr>"


def csv_text(grid: Cells) -> str:
    """Return the table as CSV; the output is a column where there are several."""
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    for head in grid.heads:
        writer.writerow(["output", "", *head])
    for output, coefficients, statistics in grid.panels:
        for name, cells in [*coefficients, *statistics]:
            writer.writerow([output, name, *cells])
    for name, cells in grid.foot:
        writer.writerow([grid.only_output, name, *cells])
    return target.getvalue().rstrip("\n")


FORMATS: dict[str, Callable[[Cells], str]] = {
    "markdown": markdown,
    "latex": latex,
    "html": html_page,
    "csv": csv_text,
}
"""How a grid is written, by the word of the format."""
