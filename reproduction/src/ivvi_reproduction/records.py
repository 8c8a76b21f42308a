"""The records of a reproduction: one Parquet file, and a file for each job while it runs.

``records.parquet`` has one row per job: the job, its settings, versions and commit, its duration
and its result. The metadata hold the settings of each experiment. A run writes each record to
``jobs/`` as soon as it is complete, and merges them into the Parquet file at the end. Every file is
written completely or not at all, so that a killed run can continue.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ivvi._io.files import atomic_file, read_json, write_json
from ivvi.errors import FileError
from ivvi.version import __version__
from ivvi_reproduction.jobs import KEYS, Job, Options, Outcome
from ivvi_reproduction.specs import COLUMNS

FILE, JOBS = "records.parquet", "jobs"
SETTINGS = b"ivvi.reproduction"
"""Key of the file's metadata with the settings of each experiment and column."""
LIBRARIES = ("numpy", "scipy", "jax")
PARTS = ("simulation", "estimation", "planning", "evaluation")
STRENGTH = ("mu_iv", "smallest", "smallest_nonzero")
_NUMBERS = pa.list_(pa.float64())
SCHEMA = pa.schema(
    [
        *((name, pa.int64() if name == "seed" else pa.string()) for name in KEYS),
        ("settings", pa.string()),  # JSON, as are versions
        ("quick", pa.bool_()),
        ("versions", pa.string()),
        ("commit", pa.string()),
        ("seconds", pa.struct([(part, pa.float64()) for part in PARTS])),
        (
            "result",
            pa.struct(
                [
                    ("strength", pa.struct([(name, pa.float64()) for name in STRENGTH])),
                    ("status", pa.string()),
                    ("steps", pa.int64()),
                    ("error_in_se", pa.float64()),
                    ("distance", pa.float64()),
                    ("from_authors", pa.float64()),
                    ("loss", pa.struct([("t", pa.list_(pa.int64())), ("distance", _NUMBERS)])),
                    ("returns", _NUMBERS),
                    ("rewards", _NUMBERS),
                    ("failure", pa.string()),
                    ("data", pa.string()),
                ]
            ),
        ),
    ]
)
SMALL: dict[str, Any] = {"compression": "zstd", "compression_level": 19}
JobRecord = dict[str, Any]
RunsByName = dict[str, dict[str, Any]]
"""Settings by experiment and column."""


@dataclass(frozen=True)
class RecordFile:
    """The records in a folder: settings of the experiments begun, and records by job."""

    folder: Path
    runs: RunsByName
    done: dict[Job, JobRecord]

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
    ) -> RecordFile:
        """Open a folder for a run; raise an error if it holds a run with other settings.

        `data` says which ratings the recommenders use. With `force`, records of the
        experiments and columns that differ are removed.
        """
        target = Path(folder)
        runs, done = _read_all(target)
        for name, column in itertools.product(experiments, columns):
            needed = _settings(name, column, options, data)
            present = runs.setdefault(name, {}).get(column, needed)
            if present != needed:
                if not force:
                    raise FileError(_complaint(target, f"{name} ({column})", present, needed))
                for job in [j for j in done if (j.experiment, j.column) == (name, column)]:
                    _job_file(target, job).unlink(missing_ok=True)
                    del done[job]
            runs[name][column] = needed
        try:
            target.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = error.strerror or error
            raise FileError(f"{folder} cannot be made a folder: {reason}") from error
        for half in target.glob(f".{FILE}.*"):  # of a run that was killed
            half.unlink()
        records = cls(target, runs, done)
        records._save()
        return records

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> RecordFile:
        """Open the folder of a run that has begun."""
        if not (Path(folder) / FILE).is_file():
            raise FileError(f"{folder} holds no reproduction; `ivvi reproduce --out` makes one")
        return cls(Path(folder), *_read_all(Path(folder)))

    def read(self, experiment: str) -> Iterator[JobRecord]:
        """Return the records of an experiment, in order of the names of their jobs."""
        for job in sorted(self.done, key=lambda job: job.name):
            if job.experiment == experiment:
                yield self.done[job]

    def write(self, job: Job, outcome: Outcome, *, options: Options) -> None:
        """Write the record of a job, with all that is needed to repeat it."""
        experiment = options.experiment(job.experiment)
        record = {
            **job.to_json(),
            "settings": asdict(experiment.columns[job.column]),
            "quick": options.quick,
            "versions": versions(),
            "commit": commit(),
            "seconds": outcome.seconds,
            "result": outcome.result,
        }
        path = _job_file(self.folder, job)
        path.parent.mkdir(exist_ok=True)
        write_json(path, record, force=True)

    def fold(self) -> None:
        """Move the records of single jobs into the Parquet file."""
        RecordFile(self.folder, *_read_all(self.folder))._save()

    def _save(self) -> None:
        """Write the Parquet file if it has changed, then remove the files of single jobs."""
        target = self.folder / FILE
        if not target.exists() or _read_file(self.folder) != (self.runs, self.done):
            with atomic_file(target, force=True) as temporary:
                table = _as_table(self.runs, self.done)
                pq.write_table(table, temporary, use_dictionary=False, **SMALL)
        shutil.rmtree(self.folder / JOBS, ignore_errors=True)


def _read_all(folder: Path) -> tuple[RunsByName, dict[Job, JobRecord]]:
    """Return the settings and the records of a folder, merged or not."""
    if folder.exists() and not folder.is_dir():
        raise FileError(f"{folder} is a file; --out expects a folder")
    if not (folder / FILE).exists():
        half = f".{FILE}."
        if folder.is_dir() and any(not path.name.startswith(half) for path in folder.iterdir()):
            raise FileError(f"{folder} holds other things than a reproduction; choose a new name")
        return {}, {}
    runs, done = _read_file(folder)
    for path in sorted((folder / JOBS).glob("[!.]*.json")):
        record = read_json(path)
        if not set(SCHEMA.names) <= record.keys():
            raise FileError(f"{path} is not a record of `ivvi reproduce`")
        done[Job.of(record)] = _known_parts(record)
    return runs, done


def _read_file(folder: Path) -> tuple[RunsByName, dict[Job, JobRecord]]:
    path = folder / FILE
    try:
        table = pq.read_table(path)
        runs: RunsByName = json.loads(table.schema.metadata[SETTINGS])
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise FileError(f"{path} does not hold the records of a reproduction") from error
    if not table.schema.equals(SCHEMA):
        raise FileError(f"{path} has other columns than the records of a reproduction")
    done: dict[Job, JobRecord] = {}
    for row in table.to_pylist():
        parsed = {name: json.loads(row[name]) for name in ("settings", "versions")}
        done[Job.of(row)] = _known_parts(row | parsed)
    return runs, done


def _known_parts(record: JobRecord) -> JobRecord:
    """Return a record without null entries in seconds and result, which other jobs fill."""
    parts = {
        name: {key: value for key, value in record[name].items() if value is not None}
        for name in ("seconds", "result")
    }
    return record | parts


def _as_table(runs: RunsByName, done: dict[Job, JobRecord]) -> Any:
    """Return one row per record, in order of experiments and names."""
    rows = []
    for job in sorted(done, key=lambda job: (job.experiment, job.name)):
        record = done[job]
        for name in ("seconds", "result"):
            fields = {field.name for field in SCHEMA.field(name).type}
            if unknown := record[name].keys() - fields:
                raise ValueError(f"the schema of records has no {name}.{min(unknown)}")
        texts = {name: json.dumps(record[name]) for name in ("settings", "versions")}
        rows.append(record | texts)
    metadata = {SETTINGS: json.dumps(runs)}
    return pa.Table.from_pylist(rows, schema=SCHEMA.with_metadata(metadata))


def _job_file(folder: Path, job: Job) -> Path:
    return folder / JOBS / f"{job.experiment}-{job.name}.json"


def _settings(name: str, column: str, options: Options, data: str | None) -> dict[str, Any]:
    experiment = options.experiment(name)
    settings = {"quick": options.quick, "spec": experiment.digest(column)}
    return settings | ({"data": data} if experiment.needs_ratings else {})


def _complaint(folder: Path, name: str, present: Any, needed: dict[str, Any]) -> str:
    differing = next(key for key in needed if (present or {}).get(key) != needed[key])
    was, now = (present or {}).get(differing), needed[differing]
    return (
        f"{folder} holds records of {name} with {differing} {was!r}, not {now!r}; choose another "
        "--out, or pass --force to replace them"
    )


def versions() -> dict[str, str]:
    """Return the versions that numbers may depend on."""
    libraries = {name: importlib.metadata.version(name) for name in LIBRARIES}
    return {"ivvi": __version__, "python": platform.python_version(), **libraries}


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
