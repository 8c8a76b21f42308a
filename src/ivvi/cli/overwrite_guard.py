"""No command may overwrite its own inputs, even with ``--force``."""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ivvi.errors import FileError

OUTPUTS = ("out", "json", "report", "plot", "checkpoint")
"""Options that name outputs."""
SPOKEN = ("log", "ratings", "reward", "against")
"""Options that may name files in words; all other inputs are paths."""


def check_inputs_are_kept(verb: str, options: Mapping[str, Any]) -> None:
    """Raise an error for an output that is an input of the same command, or a file of one."""
    for output in OUTPUTS:
        target = options.get(output)
        if target is None or target == "-" or output == verb:
            continue
        for name, source in _inputs(options):
            in_place = verb == "update" and (name, output) == ("model", "out")
            if not in_place and _holds(source, Path(target)):
                raise FileError(
                    f"--{output} {target} is an input of this command and would be replaced; "
                    "choose another name"
                )


def _inputs(options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the options that name inputs, and the names."""
    for name, value in options.items():
        listed = value if isinstance(value, list | tuple) else [value]
        for item in listed:
            if name in OUTPUTS:
                continue
            if isinstance(item, Path):
                yield name, str(item)
            elif name in SPOKEN and isinstance(item, str):
                yield from ((name, part) for part in (item, *item.split(","), item.split(":")[0]))


def _holds(source: str, target: Path) -> bool:
    """Return whether a file, a pattern of files or a folder is the target or contains it."""
    with contextlib.suppress(OSError, ValueError):  # not a path
        if not target.exists():
            return False
        if any(os.path.samefile(path, target) for path in [source] if os.path.exists(path)):
            return True
        if glob.has_magic(source):
            matches = glob.iglob(source, recursive=True)
            return any(os.path.samefile(path, target) for path in matches)
        folder, file = Path(source).resolve(), target.resolve()
        if folder.is_dir() and file.is_file() and file.is_relative_to(folder):
            saved = file.with_suffix(".npz").exists() and file.suffix in (".json", ".npz")
            return saved or file.suffix in (".parquet", ".pq")
    return False
