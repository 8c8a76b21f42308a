"""The paper, reproduced: run the remaining jobs, and read the results of all of them.

`reproduce` computes the missing records. `read_results` turns the records of a folder into the
paper's tables and figures, with our results next to them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ivvi.errors import InputError
from ivvi.simulators.catalogue import load_factors
from ivvi_reproduction.cell_statistics import CellStatistics
from ivvi_reproduction.figures import make_figures
from ivvi_reproduction.jobs import Options, list_jobs, run_job
from ivvi_reproduction.records import JobRecord, RecordFile
from ivvi_reproduction.results import ResultFigure, Results, ResultTable
from ivvi_reproduction.scheduler import JobQueue, dask_workers, local_workers, run_jobs
from ivvi_reproduction.specs import (
    COLUMNS,
    chosen_experiments,
    names,
    read_figure,
    read_table,
)
from ivvi_reproduction.tables import make_estimates_table, make_table


def reproduce(  # noqa: PLR0913
    out: str | os.PathLike[str],
    experiment: str = "all",
    *,
    options: Options | None = None,
    columns: Sequence[str] = COLUMNS,
    seeds: int = 5,
    jobs: int = 2,
    scheduler: str | None = None,
    force: bool = False,
    look: Callable[[JobQueue], None] | None = None,
) -> Results:
    """Compute the records of the paper's experiments that `out` does not hold yet.

    Parameters
    ----------
    out
        A folder; a run that was killed goes on from what it holds.
    experiment
        ``linear``, ``nonlinear``, ``movielens`` or ``all``.
    options
        How much is computed, and the ratings; the paper's amount by default, and a
        synthetic stand-in for MovieLens.
    columns
        ``paper`` (as the paper does), ``authors`` (their estimates, our planner), ``best`` (ours).
    seeds
        Logs of each cell; the paper has five.
    jobs
        Processes.
    scheduler
        Address of a Dask scheduler whose workers do the work instead.
    force
        Replace records that were made with other settings.
    look
        Called with the queue about twice a second.
    """
    options = options or Options()
    for name, value in (("seeds", seeds), ("jobs", jobs)):
        if value < 1:
            raise InputError(f"--{name} is {value}; expected at least 1")
    chosen = chosen_experiments(experiment, options.specs)
    needed = any(options.experiment(name).needs_ratings for name in chosen)
    data = load_factors(options.ratings).label if needed else None
    records = RecordFile.begin(out, chosen, options, columns=columns, data=data, force=force)
    left = [
        job
        for name in chosen
        for job in list_jobs(options.experiment(name), seeds)
        if job.column in columns and job not in records.done
    ]
    if left:
        count = min(jobs, len(left))
        with local_workers(count) if scheduler is None else dask_workers(scheduler) as workers:
            run = partial(run_job, options=options)
            run_jobs(left, workers, run, partial(records.write, options=options), look)
    records.fold()
    return read_results(out, options.specs)


def read_results(folder: str | os.PathLike[str], specs: str | None = None) -> Results:
    """Read the records of a folder as the paper's tables and figures, with ours beside."""
    records = RecordFile.open(folder)
    tables: list[ResultTable] = []
    figures: list[ResultFigure] = []
    everything: list[JobRecord] = []
    for name in [name for name in names("experiments", specs=specs) if name in records.runs]:
        options = Options(_is_quick(records, name), specs=specs)
        experiment, job_records = options.experiment(name), list(records.read(name))
        if not job_records:
            continue
        everything += job_records
        measures, command = CellStatistics(job_records), _command(name, records, job_records)
        tables += [
            make_table(read_table(table, specs), experiment, measures, command)
            for table in names("tables", name, specs)
        ]
        if (estimates := make_estimates_table(experiment, measures, command)) is not None:
            tables.append(estimates)
        for figure in names("figures", name, specs):
            figures += make_figures(read_figure(figure, specs), experiment, measures, command)
    title = "The paper's experiments, reproduced"
    return Results(title, tuple(tables), tuple(figures), _facts(records, everything))


def _command(name: str, records: RecordFile, job_records: list[JobRecord]) -> str:
    words = ["ivvi", "reproduce", name]
    words += ["--quick"] if _is_quick(records, name) else []
    words += ["--seeds", str(1 + max(int(record["seed"]) for record in job_records))]
    if (data := _data(records, name)) is not None and "synthetic" not in data:
        words += ["--ratings", "ml-1m"]
    return " ".join([*words, "--out", "DIR"])


def _facts(records: RecordFile, everything: list[JobRecord]) -> dict[str, Any]:
    """Return facts about the records behind the numbers."""
    hours = sum(sum(record["seconds"].values()) for record in everything) / 3600
    versions = {json_key(record["versions"]): record["versions"] for record in everything}
    return {
        "records": len(everything),
        "logs of a cell": _logs_of_a_cell(everything),
        "CPU hours": round(hours, 2),
        "commits": sorted({str(record["commit"]) for record in everything}),
        "versions": list(versions.values()),
        "quick": any(_is_quick(records, name) for name in records.runs),
        "ratings": next(filter(None, (_data(records, name) for name in records.runs)), None),
    }


def _logs_of_a_cell(everything: list[JobRecord]) -> str:
    """Return the number of logs in the cells of our own estimates: ``5``, or ``2 to 5``."""
    names = ("experiment", "variant", "column", "who", "setting")
    ours = [r for r in everything if r["who"] != "optimal" and r["column"] != "authors"]
    counts = Counter(tuple(record[name] for name in names) for record in ours)
    ends = {pick(counts.values(), default=0) for pick in (min, max)}
    return " to ".join(map(str, sorted(ends)))


def _is_quick(records: RecordFile, name: str) -> bool:
    return any(settings["quick"] for settings in records.runs[name].values())


def _data(records: RecordFile, name: str) -> str | None:
    """Return the ratings that an experiment used; None where it needs none."""
    return next((settings.get("data") for settings in records.runs[name].values()), None)


def json_key(value: dict[str, str]) -> str:
    """Return a key by which equal mappings are the same."""
    return ", ".join(f"{name} {value[name]}" for name in sorted(value))
