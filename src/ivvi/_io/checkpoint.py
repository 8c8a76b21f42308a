"""The state of a long computation in one file, for a run that may be killed at any moment.

After each piece of work, a computation offers its state, and the checkpoint writes it if the last
write was long enough ago. It writes to a temporary name first, so that the disk always holds a
complete checkpoint or none. A restarted run reads it and continues.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ivvi._io.files import Saved, checked_output, load_file, nest, remove_file, save_file, unnest
from ivvi.errors import FileError, InputError

KIND = "checkpoint"


class Checkpoint:
    """A file that holds the state of each stage of a computation.

    Parameters
    ----------
    path
        The file.
    every
        Seconds between two writes; 0 writes whenever a state is offered.

    Examples
    --------
    >>> import ivvi
    >>> checkpoint = ivvi.Checkpoint("fit.checkpoint")
    >>> fit = ivvi.fit("log.parquet", checkpoint=checkpoint)  # doctest: +SKIP
    >>> fit.save("model")  # doctest: +SKIP
    >>> checkpoint.remove()
    """

    def __init__(self, path: str | os.PathLike[str], every: float = 30.0) -> None:
        if not every >= 0:
            raise InputError(f"the checkpoint interval is {every:g} seconds; expected 0 or more")
        self.path, self.every = Path(path), every
        self._key: dict[str, Any] = {}
        self._stages: dict[str, Saved] = {}
        self._written = time.monotonic()

    def __repr__(self) -> str:
        return f"Checkpoint({str(self.path)!r}, every={self.every:g})"

    @property
    def exists(self) -> bool:
        """Whether an earlier run has left a state to continue from."""
        return self.path.exists()

    def open(self, key: Mapping[str, Any]) -> None:
        """Read the state of an earlier run; `key` holds the log and options that it must have."""
        checked_output(self.path, force=True)
        self._key = json.loads(json.dumps(key))
        self._stages = {}
        if not self.exists:
            return
        facts, arrays = load_file(self.path, KIND)
        for name, expected in self._key.items():
            if facts.get("key", {}).get(name) != expected:
                raise FileError(
                    f"{self.path} is the checkpoint of another run with different {name}; remove "
                    "it or give another file"
                )
        self._stages = {name: (of, unnest(name, arrays)) for name, of in facts["stages"].items()}

    def stage(self, name: str) -> Saved | None:
        """Return the state of a stage that an earlier run reached, or None."""
        return self._stages.get(name)

    def offer(self, name: str, state: Callable[[], Saved], *, now: bool = False) -> None:
        """Write the state of a stage, along with that of earlier ones, if it is time or `now`."""
        if not now and time.monotonic() - self._written < self.every:
            return
        self._stages[name] = state()
        arrays: dict[str, Any] = {}
        for stage, (_, values) in self._stages.items():
            arrays |= nest(stage, values)
        described = {stage: facts for stage, (facts, _) in self._stages.items()}
        save_file(self.path, KIND, {"key": self._key, "stages": described}, arrays)
        self._written = time.monotonic()

    def remove(self) -> None:
        """Remove the file; for when the result is saved."""
        remove_file(self.path)
