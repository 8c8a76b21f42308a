"""The paper's experiments by one command: specs, records, resumption, tables, the page."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers import assert_refused, run
from ivvi import InputError
from ivvi.errors import FileError
from ivvi_reproduction.cell_statistics import CellStatistics, Spread
from ivvi_reproduction.docs_page import make_page
from ivvi_reproduction.jobs import Job, Options, Outcome, list_jobs
from ivvi_reproduction.records import RecordFile
from ivvi_reproduction.reproduce import read_results, reproduce
from ivvi_reproduction.results import as_json, as_text, cell_text
from ivvi_reproduction.scheduler import JobQueue, duration, progress_table
from ivvi_reproduction.specs import (
    chosen_experiments,
    names,
    read_experiment,
    read_figure,
    read_table,
)

pytestmark = pytest.mark.thorough

SPECS = str(Path(__file__).parent / "specs")
SMALL = Options(specs=SPECS)
JOBS = 11


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the folder of a small run that nothing interrupted."""
    out = tmp_path_factory.mktemp("whole") / "out"
    reproduce(out, "linear", options=SMALL, seeds=1, jobs=1)
    return out


def results_of(folder):
    """Return what came out of each job: all of a record but times."""
    done = RecordFile.open(folder).done
    return {job.name: {**record, "seconds": None} for job, record in done.items()}


def only_one_file(folder):
    """Say whether the records are in one file, with nothing left of single jobs."""
    return {path.name for path in folder.iterdir()} - {"report.html"} == {"records.parquet"}


# specs


def test_every_cell_of_the_paper_has_a_number():
    cells = 0
    for name in chosen_experiments("all"):
        experiment = read_experiment(name)
        assert [read_table(t).measure for t in names("tables", name)] == [
            "strength",
            "seconds",
            "regret",
        ]
        for table in names("tables", name):
            numbers = read_table(table).numbers
            rows = [row for row in numbers if row != "Baseline"]
            assert tuple(rows) == experiment.settings
            assert {len(row) for row in numbers.values()} == {len(experiment.variants)}
        cells += len(experiment.settings) * len(experiment.variants)
        for figure in names("figures", name):
            assert set(read_figure(figure).settings) <= set(experiment.settings)
    assert cells == 18 + 18 + 6


def test_jobs_cover_every_cell_in_all_columns():
    experiment = read_experiment("linear")
    jobs = list(list_jobs(experiment, 5))
    assert len(set(jobs)) == len(jobs) == 2 * 3 * (1 + 5 + 6 * 5) + 3 * (1 + 1 + 3)
    assert {job.setting for job in jobs if job.who == "ivvi"} == set(experiment.settings)
    assert len({job.name for job in jobs}) == len(jobs)


def test_quick_differs_from_the_paper_and_is_known_by_its_digest():
    full, quick = read_experiment("linear"), read_experiment("linear", quick=True)
    assert quick.episodes < full.episodes
    assert quick.digest("paper") != full.digest("paper") != full.digest("best")
    assert quick.columns == full.columns


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("liner", "did you mean 'linear'"),
        ("wages", "choose from all, linear, nonlinear, movielens"),
    ],
)
def test_an_unknown_experiment_is_refused(word, said):
    with pytest.raises(InputError, match=said):
        chosen_experiments(word)


# the run


def test_a_run_fills_tables_and_figures(whole):
    assert len(results_of(whole)) == JOBS
    results = read_results(whole, SPECS)
    assert [table.name for table in results.tables] == [
        "linear-strength",
        "linear-seconds",
        "linear-regret",
        "linear-estimates",
    ]
    regret = results.tables[2]
    rows = [dict(zip(regret.columns, row, strict=True)) for row in regret.rows]
    assert [row["setting"] for row in rows] == ["Baseline", "I", "IV"]
    by_setting = {row["setting"]: row for row in rows}
    assert by_setting["Baseline"]["best"] > by_setting["I"]["best"]
    assert by_setting["I"]["descent"] in ("stalls", "converges")
    as_paper = by_setting["I"]["as the paper"]
    assert by_setting["I"]["as / paper"] == pytest.approx(as_paper / 10, rel=1e-2)
    assert by_setting["I"]["their estimate"] is not None
    assert by_setting["IV"]["their estimate"] is None  # none was released
    baseline, estimates = (
        dict(zip(results.tables[3].columns, r, strict=True)) for r in results.tables[3].rows
    )
    assert (baseline["setting"], baseline["descent"]) == ("Baseline", "closed form")
    truth = np.array([0.0, 0.5, -0.5])
    far = np.linalg.norm(truth - [0.0, 0.5, -0.3])
    assert estimates["theirs to W*"] == pytest.approx(far, rel=1e-3)
    regressed = np.linalg.norm(truth - [0.0, 0.4, 0.1])
    assert baseline["theirs to W*"] == pytest.approx(regressed, rel=1e-3)
    assert abs(baseline["ours to W*"] - regressed) <= baseline["ours to theirs"] + 1e-3
    assert baseline["closed form to W*"] is None
    assert abs(estimates["ours to W*"] - far) <= estimates["ours to theirs"] + 1e-3
    assert estimates["ours / theirs"] == pytest.approx(estimates["ours to W*"] / far, rel=1e-3)
    assert {figure.name for figure in results.figures} == {
        "linear-both-loss-k1",
        "linear-both-reward-k1",
        "linear-both-reward-k1-baseline",
        "linear-both-best-k1",
    }
    assert all(figure.curves and figure.alt for figure in results.figures)
    loss = next(figure for figure in results.figures if "loss" in figure.name)
    walked = {curve.label for curve in loss.curves if not curve.level_for}
    levels = {curve.level_for for curve in loss.curves}
    assert levels - {""} == walked - {"least squares"}  # each with its closed form
    assert "least squares" in walked
    assert results.facts["records"] == JOBS
    assert results.facts["logs of a cell"] == "1"
    assert "ivvi reproduce linear --seeds 1" in regret.command


def test_regret_is_that_of_the_rollouts(whole):
    """The regret of the table against returns that are computed here."""
    from ivvi import estimate, make_env, plan
    from ivvi.simulators.evaluate import optimal_policy
    from ivvi_reproduction.jobs import EVALUATION_SEED

    env = make_env("linear", dim=1, setting="I")
    settings = {"episodes": 4, "horizon": 40, "seed": EVALUATION_SEED}
    best = env.rollout(optimal_policy(env, horizon=40), **settings).returns
    model = estimate(env.collect(10, 40, seed=0)).model
    own = env.rollout(
        plan(model, env.reward, (-1, 1), horizon=40, method="mpc"), **settings
    ).returns
    regrets = CellStatistics(RecordFile.open(whole).read("linear")).regrets(
        ("k1", "best", "ivvi", "I")
    )
    assert regrets == pytest.approx([np.mean(best - own)], abs=1e-6)


def test_a_second_run_does_nothing(whole):
    before = (whole / "records.parquet").stat().st_mtime_ns
    reproduce(whole, "linear", options=SMALL, seeds=1, jobs=1)
    assert (whole / "records.parquet").stat().st_mtime_ns == before
    assert only_one_file(whole)


def test_a_run_that_is_stopped_goes_on_to_the_same_records(whole, tmp_path):
    class StopError(Exception):
        pass

    out, counts = tmp_path / "out", []
    for done in (1, 2, 2):

        def stop(queue, done=done):
            if queue.done >= done:
                raise StopError

        with pytest.raises(StopError):
            reproduce(out, "linear", options=SMALL, seeds=1, jobs=1, look=stop)
        counts.append(len(results_of(out)))
        # what a killed process leaves of a file that it was writing is not taken for one
        (out / "jobs" / ".linear-k1-I-best-ivvi-0.json.tmp").write_text("{")
        (out / ".records.parquet.tmp").write_text("PAR1")
    assert counts == [1, 3, 5]
    reproduce(out, "linear", options=SMALL, seeds=1, jobs=1)
    assert results_of(out) == results_of(whole)
    assert only_one_file(out)


def test_a_run_that_is_killed_while_it_folds_loses_nothing_and_counts_nothing_twice(
    whole, tmp_path
):
    """The Parquet file is there, and so are still the files of the jobs that are in it."""
    out = tmp_path / "out"
    shutil.copytree(whole, out)
    records = RecordFile.open(out)
    for job, record in list(records.done.items())[:3]:
        outcome = Outcome(record["result"], record["seconds"])
        records.write(job, outcome, options=SMALL)
    assert len(list((out / "jobs").iterdir())) == 3
    assert read_results(out, SPECS).facts["records"] == JOBS
    records.fold()
    assert results_of(out) == results_of(whole)
    assert only_one_file(out)


def test_force_replaces_records_of_other_settings_even_those_of_single_jobs(whole, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(whole, out)
    records = RecordFile.open(out)
    job = Job("linear", "k1", "best", "I", "ivvi", 0)
    records.write(job, Outcome({"returns": [0.0]}), options=SMALL)
    quick = Options(quick=True, specs=SPECS)
    begun = RecordFile.begin(out, ["linear"], quick, columns=["best"], force=True)
    assert {job.column for job in begun.done} == {"paper", "authors"}
    assert begun.runs["linear"]["best"]["quick"]
    assert only_one_file(out)
    assert RecordFile.open(out).done == begun.done


def test_a_result_that_the_schema_does_not_know_is_not_dropped_in_silence(whole, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(whole, out)
    records = RecordFile.open(out)
    records.write(next(iter(records.done)), Outcome({"rollouts": 1.0}), options=SMALL)
    with pytest.raises(ValueError, match=r"no result\.rollouts"):
        records.fold()


def test_dask_gives_the_same_records(whole, tmp_path):
    distributed = pytest.importorskip("distributed")
    from ivvi.logs.dask import LOCAL

    out = tmp_path / "out"
    with distributed.LocalCluster(n_workers=1, processes=False, **LOCAL) as cluster:
        address = cluster.scheduler_address
        reproduce(out, "linear", options=SMALL, seeds=1, scheduler=address)
    assert results_of(out) == results_of(whole)


def start(out, *words):
    command = [sys.executable, "-m", "ivvi.cli.main", "reproduce", "linear", "--specs", SPECS]
    return subprocess.Popen(
        [*command, "--seeds", "1", "--jobs", "2", "--out", str(out), *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@pytest.mark.slow
def test_killed_twenty_times_the_run_ends_with_the_same_records(whole, tmp_path):
    out, rng = tmp_path / "out", random.Random(0)
    for _ in range(20):
        process = start(out)
        time.sleep(rng.uniform(1, 20))
        process.send_signal(signal.SIGKILL)
        process.wait()
    process = start(out)
    assert process.wait(timeout=300) == 0
    assert results_of(out) == results_of(whole)


@pytest.mark.slow
def test_the_processes_of_a_killed_run_end(tmp_path):
    process = start(tmp_path / "out")
    time.sleep(10)
    children = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True, check=True
    ).stdout.split()
    assert children
    process.kill()
    process.wait()
    time.sleep(2)
    assert not [pid for pid in children if os.path.exists(f"/proc/{pid}")]


def test_a_run_that_is_complete_ends_with_its_report(whole):
    """Nothing is computed again; what the records say is printed and written as a page."""
    before = (whole / "records.parquet").stat().st_mtime_ns
    result = run("reproduce", "linear", "--specs", SPECS, "--seeds", 1, "--out", whole)
    assert result.code == 0, result
    assert "report.html" in result.out
    assert "The paper&#39;s experiments, reproduced" in (whole / "report.html").read_text()
    assert (whole / "records.parquet").stat().st_mtime_ns == before


# refusals


def refused(out, *words):
    return run("reproduce", "linear", "--specs", SPECS, "--jobs", 1, "--out", out, *words)


def test_records_of_other_settings_are_not_mixed(whole, tmp_path):
    assert_refused(
        refused(whole, "--quick"), "linear (paper) with quick False, not True", "--force"
    )
    results = results_of(whole)
    assert len(results) == JOBS
    (tmp_path / "notes.txt").write_text("mine")
    assert_refused(refused(tmp_path), "other things than a reproduction")
    assert_refused(refused(tmp_path / "notes.txt"), "is a file")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--seeds", 0), "--seeds is 0"),
        (("--jobs", 0), "--jobs is 0"),
        (("--column", "mine"), "unknown column 'mine'"),
        (("--specs", "nowhere"), "holds no experiments"),
        (("--scheduler", "tcp://127.0.0.1:1"), "no Dask scheduler answers"),
        (("--ratings", "nowhere"), "nowhere"),
    ],
)
def test_bad_words_are_refused(tmp_path, words, said):
    specs = () if words[0] in ("--specs", "--ratings") else ("--specs", SPECS)
    which = "movielens" if words[0] == "--ratings" else "all"
    assert_refused(run("reproduce", which, *specs, "--out", tmp_path / "out", *words), said)


def test_a_folder_without_records_and_a_damaged_record_are_refused(whole, tmp_path):
    with pytest.raises(FileError, match="holds no reproduction"):
        read_results(tmp_path)
    file = tmp_path / "records.parquet"
    file.write_text("PAR1")
    with pytest.raises(FileError, match="does not hold the records"):
        read_results(tmp_path)
    pq.write_table(pa.table({"seed": [1]}), file)
    with pytest.raises(FileError, match="does not hold the records"):
        read_results(tmp_path)
    shutil.copy(whole / "records.parquet", file)
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/a.json").write_text("{")
    with pytest.raises(FileError, match=r"a\.json cannot be read as JSON"):
        read_results(tmp_path, SPECS)
    (tmp_path / "jobs/a.json").write_text("{}")
    with pytest.raises(FileError, match="is not a record"):
        read_results(tmp_path, SPECS)


def test_without_the_package_a_sentence_says_how_to_install_it(whole, monkeypatch):
    monkeypatch.setitem(sys.modules, "ivvi_reproduction", None)
    for words in (("reproduce", "linear"), ("reproduce", "--help"), ("report", whole)):
        assert_refused(
            run(*words, *(("--force",) if words[0] == "report" else ())),
            "pip install ./reproduction",
        )


# what is shown


def test_a_lane_keeps_to_its_group_and_another_takes_the_longest():
    jobs = [
        Job("e", v, "best", "I", "ivvi", seed, cost)
        for v, cost in (("a", 1), ("b", 5))
        for seed in range(2)
    ]
    queue = JobQueue(list(jobs), 2)
    first = queue.take(0, None)
    second = queue.take(1, None)
    assert (first.variant, second.variant) == ("b", "a")
    assert queue.finish(0) == first
    assert queue.take(0, first.group) == jobs[3]
    queue.finish(1)
    assert queue.total == 4
    assert queue.done == 2
    assert queue.seconds_left > 0
    assert len(progress_table(queue).rows) == 2


def test_durations_are_written_for_people():
    assert [duration(s) for s in (42, 200, 7300)] == ["42 s", "3 min", "2 h 2 min"]


def test_diverged_logs_are_told(whole):
    def record(seed, status, returns):
        result = {"status": status, "returns": returns}
        at = {"variant": "k1", "column": "paper", "setting": "I", "seed": seed}
        return {**at, "who": "ivvi", "result": result, "seconds": {}}

    best = {"variant": "k1", "column": "paper", "setting": "I", "seed": 0, "who": "optimal"}
    best |= {"result": {"returns": [3.0, 5.0]}, "seconds": {}}
    measures = CellStatistics([record(1, "diverged", None), record(0, "stalled", [1.0, 1.0]), best])
    key = ("k1", "paper", "ivvi", "I")
    assert measures.regrets(key) == [3.0]
    assert measures.descent(key) == "stalls (1), diverges (1)"
    assert Spread.of([]) is None
    assert Spread.of([1.0, 3.0]).half == pytest.approx(12.706 * 2**0.5 / 2**0.5, rel=1e-3)


def test_text_and_json_tell_the_same_results(whole):
    results = read_results(whole, SPECS)
    assert "Regret (Table 0)" in as_text(results)
    assert [cell_text(cell) for cell in (None, 12345.6, 0.12345, "stalls", 3)] == [
        "",
        "12,346",
        "0.1235",
        "stalls",
        "3",
    ]
    assert len(json.dumps(as_json(results), allow_nan=False)) > 1000


def test_the_page_is_made_from_the_records(whole, tmp_path):
    results = read_results(whole, SPECS)
    page = make_page(results, '{{ regrets("linear") }} {{ figure("linear-both", "Said.") }}')
    assert "| k = 1, I | 10 ± 1 |" in page
    assert "**" in page  # the paper's 10 is far off
    assert page.endswith("](images/linear-both.png)\n\n*Said.*")
    strengths = make_page(results, '{{ by_variant("linear-strength", "paper", "ours") }}')
    assert [line.count("|") for line in strengths.splitlines()] == [3] * 4
    assert strengths.splitlines()[0] == "| setting | k = 1 |"
    for word in ('regrets("other")', 'by_variant("other")', 'figure("other", "")'):
        assert make_page(results, f"{{{{ {word} }}}}") == "*Not run yet.*"
    (tmp_path / "study.txt").write_text("a line\n")
    said = '{{ printed("study") }} {{ printed("other") }}'
    assert make_page(results, said, tmp_path) == "```text\na line\n``` *Not run yet.*"
