"""A folder of records, each written whole or not at all, so that a killed run can go on.

``run.json`` says what the records have in common, ``records/EXPERIMENT/NAME.json`` hold one
unit of work each: what was done, with which settings, versions and commit, how long it took
and what came out.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import os
import platform
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ivvi._io.files import read_json, write_json
from ivvi.errors import FileError
from ivvi.experiments.specs import COLUMNS
from ivvi.experiments.units import Unit
from ivvi.experiments.work import Options, Outcome
from ivvi.version import __version__

LIBRARIES = ("numpy", "scipy", "jax")
Record = dict[str, Any]


@dataclass(frozen=True)
class Records:
    """The records in a folder."""

    folder: Path

    @classmethod
    def begin(
        cls,
        folder: str | os.PathLike[str],
        experiments: Iterable[str],
        options: Options,
        *,
        columns: Sequence[str] = COLUMNS,
        data: str | None = None,
        force: bool = False,
    ) -> Records:
        """Open a folder for a run; one that holds a run with other settings is refused.

        `data` says which ratings the recommenders use. With `force`, records of the
        experiments and columns that differ are removed.
        """
        records = cls(Path(folder))
        known = _known_runs(records.folder)
        for name, column in itertools.product(experiments, columns):
            wanted = _settings(name, column, options, data)
            found = known.setdefault(name, {}).get(column, wanted)
            if found != wanted:
                if not force:
                    raise FileError(_complaint(records.folder, f"{name} ({column})", found, wanted))
                for record in (records.folder / "records" / name).glob(f"*-{column}-*.json"):
                    record.unlink()
            known[name][column] = wanted
        try:
            records.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = error.strerror or error
            raise FileError(f"{folder} cannot be made a folder: {reason}") from error
        for half in (records.folder / "records").glob("*/.*"):  # of a run that was killed
            half.unlink()
        write_json(records.folder / "run.json", {"experiments": known}, force=True)
        return records

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Records:
        """Open the folder of a run that has begun."""
        if not (Path(folder) / "run.json").is_file():
            raise FileError(f"{folder} holds no reproduction; `ivvi reproduce --out` makes one")
        if not _known_runs(Path(folder)):
            raise FileError(f"{folder}/run.json does not describe a reproduction")
        return cls(Path(folder))

    def path(self, unit: Unit) -> Path:
        """Return where a unit's record stands."""
        return self.folder / "records" / unit.experiment / f"{unit.name}.json"

    def __contains__(self, unit: Unit) -> bool:
        return self.path(unit).is_file()

    def write(self, unit: Unit, outcome: Outcome, *, options: Options) -> None:
        """Write a record, with what is needed to do the same again."""
        experiment = options.experiment(unit.experiment)
        record = {
            **unit.to_json(),
            "settings": asdict(experiment.columns[unit.column]),
            "quick": options.quick,
            "versions": versions(),
            "commit": commit(),
            "seconds": outcome.seconds,
            "result": outcome.result,
        }
        path = self.path(unit)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, record, force=True)

    def read(self, experiment: str) -> Iterator[Record]:
        """Read the records of an experiment, in order of their names."""
        for path in sorted((self.folder / "records" / experiment).glob("[!.]*.json")):
            record = read_json(path)
            if not {"variant", "setting", "column", "who", "seed", "result"} <= record.keys():
                raise FileError(f"{path} is not a record of `ivvi reproduce`")
            yield record

    @property
    def runs(self) -> dict[str, dict[str, Any]]:
        """Settings of each experiment and column that was begun."""
        return _known_runs(self.folder)


def versions() -> dict[str, str]:
    """Return the versions that numbers may depend on."""
    found = {name: importlib.metadata.version(name) for name in LIBRARIES}
    return {"ivvi": __version__, "python": platform.python_version(), **found}


@lru_cache(maxsize=1)
def commit() -> str | None:
    """Return the commit of the source, None outside of a repository."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None
    words = ["git", "-C", str(root), "rev-parse", "--short=12", "HEAD"]
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _settings(name: str, column: str, options: Options, data: str | None) -> dict[str, Any]:
    experiment = options.experiment(name)
    settings = {"quick": options.quick, "spec": experiment.digest(column)}
    return settings | ({"data": data} if experiment.needs_ratings else {})


def _known_runs(folder: Path) -> dict[str, dict[str, Any]]:
    if folder.exists() and not folder.is_dir():
        raise FileError(f"{folder} is a file; the name of a folder is wanted")
    if not (folder / "run.json").exists():
        if folder.is_dir() and any(folder.iterdir()):
            raise FileError(
                f"{folder} holds other things than a reproduction; a new name is wanted"
            )
        return {}
    found: dict[str, dict[str, Any]] = read_json(folder / "run.json").get("experiments", {})
    try:
        sound = all({"quick", "spec"} <= s.keys() for run in found.values() for s in run.values())
    except AttributeError:
        sound = False
    if not sound:
        raise FileError(f"{folder / 'run.json'} does not describe a reproduction")
    return found


def _complaint(folder: Path, name: str, found: Any, wanted: dict[str, Any]) -> str:
    differing = next(key for key in wanted if (found or {}).get(key) != wanted[key])
    was, now = (found or {}).get(differing), wanted[differing]
    return (
        f"{folder} holds records of {name} with {differing} {was!r}, not {now!r}; choose another "
        "--out, or pass --force to replace them"
    )
