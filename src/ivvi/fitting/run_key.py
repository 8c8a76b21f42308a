"""Which run a checkpoint belongs to: the files, columns, features and options of a fit."""

from __future__ import annotations

import dataclasses
from typing import Any

from ivvi.errors import InputError
from ivvi.estimators import Method
from ivvi.estimators.registry import settings_of
from ivvi.features.design import Design
from ivvi.logs import Log


def run_key(log: Log, design: Design, method: Method, **options: bool) -> dict[str, Any]:
    """Describe a run with JSON values; a checkpoint of another run is refused by them.

    Files are told by path, size and time of change: reading them whole would cost as much
    as the work that a checkpoint saves.
    """
    if not log.table.files:
        raise InputError(f"a checkpoint needs a log in files; {log.label} has none")
    about = [(file.resolve(), file.stat()) for file in log.table.files]
    return {
        "files": [[str(path), stat.st_size, stat.st_mtime_ns] for path, stat in about],
        "columns": [dataclasses.asdict(log.roles), log.drop_missing],
        "features": [design.phi.to_json(), design.psi.to_json()],
        "options": [method.name, settings_of(method), options],
    }
