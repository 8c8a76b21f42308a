"""Checkpoints: a run that is killed at any moment, and started again, ends with the same bits."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pytest

import ivvi
from helpers import OPTIONS, assert_refused, changed, make_rows, run, take, write_table
from ivvi import SGDA, Checkpoint, InputError, estimate, read_logs
from ivvi._io.files import load_file, remove_file, save_file
from ivvi.errors import FileError
from ivvi.estimators import Exact
from ivvi.logs import Position

pytestmark = pytest.mark.filterwarnings("ignore::ivvi.errors.IvviWarning")
SMALL_GROUPS = {"row_group_size": 170}  # episodes go on from one group to the next


class Killed(BaseException):
    """What a SIGKILL is to a process, in this one: nothing is cleaned up."""


class Reaper:
    """Kills at the n-th event: a batch, a chunk, or a moment before, in or after a writing."""

    def __init__(self, monkeypatch, when=None):
        self.when, self.events = when, 0
        original_replace, original_savez = os.replace, np.savez

        def savez(file, *args, **arrays):
            self.event()
            if self.events + 1 == self.when and hasattr(file, "write"):
                file.write(b"half a file")
            self.event()
            original_savez(file, *args, **arrays)

        def replace(*names):
            self.event()
            original_replace(*names)
            self.event()

        monkeypatch.setattr("ivvi._io.files.np.savez", savez)
        monkeypatch.setattr("ivvi._io.files.os.replace", replace)
        for name in ("ivvi.moments.moments.scatter_of", "ivvi.estimators.sgda.loop.evaluate"):
            self._count_calls(monkeypatch, name)

    def _count_calls(self, monkeypatch, name):
        module, _, function = name.rpartition(".")
        original = getattr(sys.modules[module], function)

        def counted(*args, **settings):
            self.event()
            return original(*args, **settings)

        monkeypatch.setattr(name, counted)

    def event(self):
        self.events += 1
        if self.events == self.when:
            raise Killed


@pytest.fixture
def reaper(monkeypatch):
    """Cut the work into small pieces, and return what kills it."""
    monkeypatch.setattr("ivvi.estimators.sgda.loop.CHUNK", 256)
    return Reaper(monkeypatch)


METHODS = {
    "exact": Exact(),
    "sgda": SGDA(passes=2),
    "sgda-shuffled": SGDA(order="shuffled", passes=2),
    "sgda-draws": SGDA(order="iid"),
    "sgda-episodes": SGDA(batch="episode", passes=2),
    "sgda-linear": SGDA(memory="linear", passes=2),
    "sgda-inner": SGDA("paper-nonlinear", batch=200, inner=20),
}


def weights(fit):
    """Everything that a run computes, as bytes."""
    e = fit.estimate
    return b"".join(v.tobytes() for v in (e.W, e.K, e.noise_cov, e.bread))


def survives(log, method, path, reaper, rng, kills):
    """Kill runs at random events and compare what they come to with the undisturbed run."""
    wanted = weights(estimate(log, method=method))
    reaper.events, reaper.when = 0, None
    assert weights(estimate(log, method=method, checkpoint=Checkpoint(path, 0))) == wanted
    remove_file(path)
    total = reaper.events
    done = 0
    while done < kills:
        reaper.events, reaper.when = 0, rng.randint(1, total)
        try:
            fit = estimate(log, method=method, checkpoint=Checkpoint(path, 0))
        except Killed:
            done += 1
            continue
        assert weights(fit) == wanted
        remove_file(path)
    reaper.when = None
    assert weights(estimate(log, method=method, checkpoint=Checkpoint(path, 0))) == wanted


@pytest.fixture
def log(tmp_path):
    return read_logs(write_table(make_rows(40, 50), tmp_path / "log.parquet", **SMALL_GROUPS))


@pytest.mark.parametrize("name", ["exact", "sgda", "sgda-episodes", "sgda-linear"])
def test_a_killed_run_ends_with_the_same_bits(name, log, tmp_path, reaper):
    survives(log, METHODS[name], tmp_path / "state", reaper, random.Random(1), kills=5)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_a_run_killed_two_hundred_times_ends_with_the_same_bits(method, log, tmp_path, reaper):
    survives(log, method, tmp_path / "state", reaper, random.Random(2), kills=200)


def test_every_row_is_read_once_after_a_kill(log, tmp_path, reaper, monkeypatch):
    """A run that goes on does not decode the row groups that are behind it."""
    seen = []
    original = ivvi.moments.Moments.of_batch.__func__

    def of_batch(cls, design, batch, **settings):
        seen.append(batch.y)
        return original(cls, design, batch, **settings)

    monkeypatch.setattr(ivvi.moments.Moments, "of_batch", classmethod(of_batch))
    monkeypatch.setattr(
        "ivvi.fitting.fit_warnings.predicts_worse", lambda *_: ""
    )  # of rows in memory
    path = tmp_path / "state"
    reaper.when = 20
    with pytest.raises(Killed):
        estimate(log, checkpoint=Checkpoint(path, 0))
    counted = Position.restore(*_stage(path)).counts.transitions
    before = sum(map(len, seen))
    assert 0 < counted <= before < log.num_rows
    seen.clear()
    fit = estimate(log, checkpoint=Checkpoint(path, 0))
    assert sum(map(len, seen)) == fit.counts.transitions - counted


def _stage(path):
    document, arrays = load_file(path, "checkpoint")
    lead = "moments.position."
    inner = {name[len(lead) :]: v for name, v in arrays.items() if name.startswith(lead)}
    return document["stages"]["moments"]["position"], inner


# Positions


SOURCES = {
    "parquet": (lambda rows: rows, "log.parquet"),
    "csv": (lambda rows: rows, "log.csv"),
    "arrow": (lambda rows: rows, "log.arrow"),
    "unordered": (
        lambda rows: take(rows, np.random.default_rng(0).permutation(600)),
        "log.parquet",
    ),
    "text episodes": (
        lambda rows: changed(rows, episode=pa.array([f"e{i:04d}" for i in rows["episode"]])),
        "log.parquet",
    ),
    "missing": (
        lambda rows: changed(rows, x0={i: None for i in (*range(95, 130), 200, 399, 400)}),
        "log.parquet",
    ),
}


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("next_state", [(), ("x1", "x0")])
def test_a_pass_goes_on_from_any_position(kind, next_state, tmp_path):
    change, name = SOURCES[kind]
    settings = {"row_group_size": 50} if name.endswith("parquet") else {}
    path = write_table(change(make_rows(12, 50)), tmp_path / name, **settings)
    log = read_logs(
        path, state="x*", action="a*", instrument="z*", next_state=next_state,
        drop_missing=kind == "missing",
    )  # fmt: skip
    walk = log.batches(size=37, episodes=True)
    batches, positions = [], []
    for batch in walk:
        batches.append(batch)
        positions.append(walk.position.saved())
    assert len(batches) > 3
    for i, saved in enumerate(positions):
        facts = json.loads(json.dumps(saved[0]))
        again = log.batches(size=37, episodes=True, start=Position.restore(facts, saved[1]))
        rest = list(again)
        assert len(rest) == len(batches) - i - 1
        for one, two in zip(rest, batches[i + 1 :], strict=True):
            for field in ("x", "a", "z", "y", "episode"):
                np.testing.assert_array_equal(getattr(one, field), getattr(two, field))
        assert again.counts == walk.counts


def test_sorting_again_gives_the_same_batches(tmp_path):
    """An unordered log is sorted on disk at each start; its batches must not move."""
    rows = take(make_rows(200, 100), np.random.default_rng(0).permutation(20_000))
    path = write_table(rows, tmp_path / "log.parquet")
    sizes = [[len(b) for b in read_logs(path).batches(size=1000)] for _ in range(3)]
    assert sizes[0] == sizes[1] == sizes[2]


# Refusals


def test_a_checkpoint_of_another_run_is_refused(log, tmp_path, reaper):
    path = tmp_path / "state"
    reaper.when = 20
    with pytest.raises(Killed):
        estimate(log, checkpoint=Checkpoint(path, 0))
    reaper.when = None
    kept = path.read_bytes()
    other = read_logs(write_table(make_rows(40, 50, seed=1), tmp_path / "other.parquet"))
    for source, settings, word in (
        (other, {}, "files"),
        (log, {"phi": "poly2"}, "features"),
        (log, {"method": "least-squares"}, "options"),
        (log, {"method": Exact(ridge=0.1)}, "options"),
        (read_logs(tmp_path / "log.parquet", reward="reward"), {}, "columns"),
    ):
        with pytest.raises(FileError, match=f"another run with different {word}"):
            estimate(source, checkpoint=Checkpoint(path, 0), **settings)
    assert path.read_bytes() == kept
    os.utime(tmp_path / "log.parquet", ns=(0, 0))
    with pytest.raises(FileError, match="with different files"):
        estimate(log, checkpoint=Checkpoint(path, 0))


def test_what_is_no_checkpoint_is_refused(log, tmp_path):
    path = tmp_path / "state"
    path.write_text("something else")
    with pytest.raises(FileError, match="not a checkpoint file of ivvi"):
        estimate(log, checkpoint=Checkpoint(path))
    save_file(path, "stream", {}, {})
    with pytest.raises(FileError, match="not a checkpoint file of ivvi"):
        estimate(log, checkpoint=Checkpoint(path))
    with pytest.raises(InputError, match="needs a log in files"):
        estimate(read_logs(make_rows()), checkpoint=Checkpoint(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_a_checkpoint_is_written_every_so_often(log, tmp_path, monkeypatch):
    """Not at each batch: once in `every` seconds, and at the end of a stage."""
    written = []
    monkeypatch.setattr("ivvi._io.checkpoint.save_file", lambda *a: written.append(clock[0]))
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    original = ivvi.moments.Moments.of_batch.__func__

    def of_batch(cls, *args, **settings):
        clock[0] += 1.0
        return original(cls, *args, **settings)

    monkeypatch.setattr(ivvi.moments.Moments, "of_batch", classmethod(of_batch))
    estimate(log, checkpoint=Checkpoint(tmp_path / "state", 3.5))
    assert written == [4.0, 8.0, 12.0, 12.0]


# The command line


def command(*arguments):
    start = "import sys; from ivvi.cli.main import main; main(sys.argv[1:])"
    return [sys.executable, "-c", start, *map(str, arguments)]


def facts_of(model):
    facts = json.loads((model / "model.json").read_text())["facts"]
    return {name: value for name, value in facts.items() if name not in ("seconds", "command")}


def kill_and_restart(arguments, state, rng, kills):
    """Start a command again and again, killing it while it works; returns the last code."""
    killed = 0
    while True:
        process = subprocess.Popen(command(*arguments), stdout=subprocess.DEVNULL)
        if killed < kills:
            before = state.stat().st_mtime_ns if state.exists() else 0
            while process.poll() is None:
                if state.exists() and state.stat().st_mtime_ns != before:
                    time.sleep(rng.uniform(0, 0.02))
                    process.send_signal(signal.SIGKILL)
                    break
                time.sleep(0.001)
        code = process.wait(timeout=120)
        if code != -signal.SIGKILL:
            return code, killed
        killed += 1


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["exact", "sgda"])
def test_the_program_survives_sigkill(method, tmp_path):
    source = write_table(make_rows(300, 100), tmp_path / "log.parquet", row_group_size=130)
    state = tmp_path / "state"
    options = (*OPTIONS, "--method", method)
    kept = ("--checkpoint", tmp_path / "kept")
    assert run("fit", source, *options, *kept, "--out", tmp_path / "whole").code == 0
    arguments = ("fit", source, *options, "--out", tmp_path / "model")
    arguments += ("--checkpoint", state, "--checkpoint-every", 0)
    kills = 2 if method == "exact" else 1
    code, killed = kill_and_restart(arguments, state, random.Random(0), kills)
    assert code == 0
    assert killed >= 1
    assert facts_of(tmp_path / "model") == facts_of(tmp_path / "whole")
    names = {"log.parquet", "whole", "model"}
    assert set(os.listdir(tmp_path)) == names  # the checkpoint is gone


@pytest.mark.slow
def test_the_program_survives_two_hundred_sigkills(tmp_path):
    source = write_table(make_rows(300, 100), tmp_path / "log.parquet", row_group_size=130)
    state, rng, killed = tmp_path / "state", random.Random(1), 0
    kept = ("--checkpoint", tmp_path / "kept")
    assert run("fit", source, *OPTIONS, *kept, "--out", tmp_path / "whole").code == 0
    arguments = ("fit", source, *OPTIONS, "--out", tmp_path / "model", "--force")
    arguments += ("--checkpoint", state, "--checkpoint-every", 0)
    while killed < 200:
        code, more = kill_and_restart(arguments, state, rng, kills=rng.randint(1, 4))
        assert code == 0
        assert facts_of(tmp_path / "model") == facts_of(tmp_path / "whole")
        assert not state.exists()
        killed += more


def test_the_program_refuses_another_checkpoint(tmp_path):
    source = write_table(make_rows(), tmp_path / "log.parquet")
    state = tmp_path / "state"
    save_file(state, "checkpoint", {"key": {"files": []}, "stages": {}}, {})
    arguments = ("fit", source, *OPTIONS, "--out", tmp_path / "model", "--checkpoint", state)
    assert_refused(run(*arguments), "state", "another run", "with different files")
    assert not (tmp_path / "model").exists()
    state.unlink()
    assert run(*arguments).code == 0
    assert not state.exists()
    assert_refused(run(*arguments), "exists already")
    missing = ("--checkpoint", tmp_path / "nowhere" / "state")
    assert_refused(run(*arguments[:-2], *missing, "--force"), "nowhere")


def test_a_run_that_goes_on_may_replace_what_it_wrote(tmp_path):
    """Killed after the model was saved and before the checkpoint was removed."""
    source = write_table(make_rows(), tmp_path / "log.parquet")
    state = tmp_path / "state"
    log = read_logs(source, state="x*", action="a*", instrument="z*")
    fit = estimate(log, method=Exact(), checkpoint=Checkpoint(state, 0))
    fit.save(tmp_path / "model")
    arguments = ("fit", source, *OPTIONS, "--out", tmp_path / "model", "--checkpoint", state)
    assert run(*arguments).code == 0
    assert not state.exists()
