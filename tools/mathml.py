r"""MkDocs hooks: formulas become MathML when the site is built, with no script in the page.

A page whose front matter says ``math: true`` may hold ``$inline$`` and ``$$displayed$$``
formulas; ``\tag{3}`` numbers a displayed one and makes it the target of ``#eq-3``.
"""

from __future__ import annotations

import re
from typing import Any

from latex2mathml.converter import convert

DISPLAYED = re.compile(r"\$\$(.+?)\$\$", re.S)
INLINE = re.compile(r"\$([^$\n]+?)\$")
TAG = re.compile(r"\\tag\{(\d+)\}")
CODE = re.compile(r"(```.*?```|`[^`\n]+`)", re.S)
_formulas: dict[str, str] = {}


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace every formula by a word, so that Markdown does not change it."""
    if not page.meta.get("math"):
        return markdown
    parts = CODE.split(markdown)
    parts[::2] = [INLINE.sub(_inline, DISPLAYED.sub(_displayed, part)) for part in parts[::2]]
    return "".join(parts)


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Replace the words by MathML."""
    if not page.meta.get("math"):
        return html
    return re.sub(r"<p>(formula-d-\d+-x)</p>|formula-[di]-\d+-x", _formula, html)


def _displayed(match: re.Match[str]) -> str:
    latex = match[1].strip()
    number = TAG.search(latex)
    formula = convert(TAG.sub("", latex), display="block")
    label = f"<span class='number'>({number[1]})</span>" if number else ""
    name = f" id='eq-{number[1]}'" if number else ""
    return f"\n\n{_keep('d', f'<div class=equation{name}>{formula}{label}</div>')}\n\n"


def _inline(match: re.Match[str]) -> str:
    return _keep("i", convert(match[1]))


def _keep(kind: str, html: str) -> str:
    word = f"formula-{kind}-{len(_formulas)}-x"
    _formulas[word] = html
    return word


def _formula(match: re.Match[str]) -> str:
    return _formulas[match[1] or match[0]]
