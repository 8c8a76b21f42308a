"""No command may write over what it reads, whatever ``--force`` allows."""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ivvi.errors import FileError

OUTPUTS = ("out", "json", "report", "plot", "checkpoint")
"""Options that name what is written."""
SPOKEN = ("log", "ratings", "reward", "against")
"""Options that may name files in words; all other inputs are paths."""


def check_inputs_are_kept(verb: str, options: Mapping[str, Any]) -> None:
    """Refuse an output that is an input of the same command, or a file of one."""
    for output in OUTPUTS:
        target = options.get(output)
        if target is None or target == "-" or output == verb:
            continue
        for name, source in _inputs(options):
            in_place = verb == "update" and (name, output) == ("model", "out")
            if not in_place and _holds(source, Path(target)):
                raise FileError(
                    f"--{output} {target} is what the command reads, and would be replaced; choose "
                    "another name"
                )


def _inputs(options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the options that are read, and what they name."""
    for name, value in options.items():
        listed = value if isinstance(value, list | tuple) else [value]
        for one in listed:
            if name in OUTPUTS:
                continue
            if isinstance(one, Path):
                yield name, str(one)
            elif name in SPOKEN and isinstance(one, str):
                yield from ((name, part) for part in (one, *one.split(","), one.split(":")[0]))


def _holds(source: str, target: Path) -> bool:
    """Tell whether a file, a pattern of files or a folder is the target, or holds it."""
    with contextlib.suppress(OSError, ValueError):  # no path at all
        if not target.exists():
            return False
        if any(os.path.samefile(path, target) for path in [source] if os.path.exists(path)):
            return True
        if glob.has_magic(source):
            matches = glob.iglob(source, recursive=True)
            return any(os.path.samefile(path, target) for path in matches)
        folder, own = Path(source).resolve(), target.resolve()
        if folder.is_dir() and own.is_file() and own.is_relative_to(folder):
            saved = own.with_suffix(".npz").exists() and own.suffix in (".json", ".npz")
            return saved or own.suffix in (".parquet", ".pq")
    return False
