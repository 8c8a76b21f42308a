"""`ivvi report`: one HTML file of a model, a demo or a reproduction."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ivvi.cli.options import Force, Json, TrustOption, trusted
from ivvi.cli.terminal import check_json_target, emit_json, say
from ivvi.errors import FileError, InputError

if TYPE_CHECKING:  # imported where it is used
    from ivvi.reporting.page import Page


def report(
    folder: Annotated[
        Path,
        typer.Argument(
            help="A model that `ivvi fit` saved, or the folder of `ivvi demo` or `ivvi reproduce`."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="The file. [default: MODEL.html, or report.html in the folder]"),
    ] = None,
    policy: Annotated[
        Path | None, typer.Option(help="Also show this policy, which was planned with the model.")
    ] = None,
    value: Annotated[
        Path | None, typer.Option(help="Also show its value, as written by `ivvi value --json`.")
    ] = None,
    trust: TrustOption = "",
    json: Json = None,
    force: Force = False,
) -> None:
    """Write a report: one HTML file that opens from disk, prints, and needs no network."""
    kind = _kind(folder)
    target = out or (folder.with_suffix(".html") if kind == "model" else folder / "report.html")
    from ivvi.reporting.page import check_page, write_page

    check_page(target, force=force)
    check_json_target(json, force=force, out=target)
    if kind != "model" and (policy or value):
        raise InputError(f"--policy and --value are only for models; {folder} is a {kind}")
    if kind == "model":
        page = _of_model(folder, policy, value, trusted(trust))
    else:
        page = _of_demo(folder) if kind == "demo" else _of_reproduction(folder)
    write_page(page, target, force=force)
    say(f"report: {target}", quiet=json == "-")
    facts = {"report": str(target), "of": str(folder), "kind": kind}
    emit_json({**facts, "bytes": target.stat().st_size}, json, force=force)


def _kind(folder: Path) -> str:
    """Return the kind of a folder, by the file that only this kind has."""
    from ivvi.fitting.saved_fit import is_saved_fit

    if is_saved_fit(folder):
        return "model"
    if (folder / "demo.json").is_file():
        return "demo"
    if (folder / "records.parquet").is_file():
        return "reproduction"
    if (folder / "policy.json").is_file():
        raise InputError(f"{folder} is a policy; name its model, and the policy with --policy")
    if not folder.is_dir():
        raise FileError(f"{folder} is not an existing folder")
    raise FileError(
        f"{folder} holds nothing to report; expected a saved model, a demo or a reproduction"
    )


def _of_model(
    folder: Path, policy: Path | None, value: Path | None, trust: tuple[str, ...]
) -> Page:
    from ivvi._io.files import read_json
    from ivvi.fitting import load_fit
    from ivvi.policy.saved_policy import load_policy
    from ivvi.reporting.fit_page import fit_page
    from ivvi.reporting.fit_view import FitView

    fitted = FitView(load_fit(folder, trust=trust), str(folder))
    worth = None if value is None else read_json(value)
    return fit_page(fitted, None if policy is None else load_policy(policy, trust=trust), worth)


def _of_demo(folder: Path) -> Page:
    from ivvi.reporting.demo_page import load_demo

    return load_demo(folder)


def _of_reproduction(folder: Path) -> Page:
    from ivvi.cli.reproduce import import_reproduction

    page: Page = import_reproduction("report_page").read_page(folder)
    return page
