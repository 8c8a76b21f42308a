"""`ivvi report`: one HTML file of a model, or of a demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ivvi.commands.options import Force, Json
from ivvi.errors import FileError, InputError
from ivvi.terminal import check_json_target, emit_json, say


def report(
    folder: Annotated[
        Path, typer.Argument(help="A model that `ivvi fit` saved, or the folder of `ivvi demo`.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="The file. [default: MODEL.html, or report.html in the folder]"),
    ] = None,
    policy: Annotated[
        Path | None, typer.Option(help="A policy that was planned with the model, shown too.")
    ] = None,
    json: Json = None,
    force: Force = False,
) -> None:
    """Write a report: one HTML file that opens from disk, prints, and needs no network."""
    kind = _kind(folder)
    target = out or (folder.with_suffix(".html") if kind == "model" else folder / "report.html")
    from ivvi.reporting.write import check_page

    check_page(target, force=force)
    check_json_target(json, force=force, out=target)
    write = {"model": _of_model}[kind]
    write(folder, target, policy, force=force)
    say(f"report: {target}", quiet=json == "-")
    facts = {"report": str(target), "of": str(folder), "kind": kind}
    emit_json({**facts, "bytes": target.stat().st_size}, json, force=force)


def _kind(folder: Path) -> str:
    """Tell what a folder holds by the file that only this kind has."""
    if (folder / "model.json").is_file():
        return "model"
    if (folder / "policy.json").is_file():
        raise InputError(f"{folder} is a policy; name its model, and the policy with --policy")
    if not folder.is_dir():
        raise FileError(f"{folder} is not a folder that exists")
    raise FileError(f"{folder} holds nothing to report: a saved model is wanted")


def _of_model(folder: Path, target: Path, policy: Path | None, *, force: bool) -> None:
    from ivvi.reporting import report as write_report

    loaded: Any = None
    if policy is not None:
        from ivvi.policy import load_policy

        loaded = load_policy(policy)
    write_report(folder, target, policy=loaded, force=force)
