"""`report`: the page of a fit or of a saved model, as a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ivvi._io.files import atomic_file, checked_output
from ivvi.errors import InputError
from ivvi.fitting import Fit, load_fit
from ivvi.reporting.fit_page import fit_page
from ivvi.reporting.fit_view import FitView
from ivvi.reporting.page import Page, render


def report(
    what: Any,
    path: str | os.PathLike[str],
    *,
    policy: Any = None,
    value: Any = None,
    force: bool = False,
) -> Path:
    """Write a report as one HTML file that needs no network.

    Parameters
    ----------
    what
        A fit (`ivvi.estimate`), or the folder of a saved model.
    path
        The file, such as ``report.html``.
    policy
        A policy planned with the fit (`ivvi.plan`), to be shown too.
    value
        What the policy is worth (`ivvi.value`).
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
    if isinstance(what, Fit):
        page = fit_page(FitView(what), policy, value)
    elif isinstance(what, str | os.PathLike):
        page = fit_page(FitView(load_fit(what), str(what)), policy, value)
    else:
        raise InputError(
            f"a report of {type(what).__name__} was asked for; pass a fit or the folder of a model"
        )
    return write_page(page, target, force=force)


def check_page(path: str | os.PathLike[str], *, force: bool) -> Path:
    """Refuse a page that cannot be written, before the work starts."""
    target = checked_output(path, force=force)
    if target.suffix not in (".html", ".htm"):
        raise InputError(f"the report {target} is not an .html file; a report is one HTML file")
    return target


def write_page(page: Page, path: Path, *, force: bool) -> Path:
    """Write a page, whole or not at all."""
    text = render(page)
    with atomic_file(path, force=force) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path
