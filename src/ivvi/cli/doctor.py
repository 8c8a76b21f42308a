"""`ivvi doctor`: is this installation sound?"""

from __future__ import annotations

import typer

from ivvi.cli.options import Force, Json
from ivvi.cli.terminal import check_json_target, emit_json, say


def doctor(json: Json = None, force: Force = False) -> None:
    """Show versions and optional parts, and check in seconds that the package works here."""
    from ivvi.cli.doctor_checks import examine

    check_json_target(json, force=force)
    report = examine()
    say(str(report), quiet=json == "-")
    emit_json(report.to_json(), json, force=force)
    if not report.sound:
        raise typer.Exit(1)
