"""Any sequence of commands that write, with damage, other people's locks and dead runs between.

A model of the folder (what each name holds: kind, rows, logs) is kept beside it; after each step
the names on the disk are those of the model, each whole, each with its number of rows.
"""

import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fuzz.promise import keeps_its_promise
from helpers import OPTIONS, left_by_the_dead, make_rows, write_table
from ivvi._io.files import load_folder

LOGS = {"one": 108, "two": 90, "three": 45}
"""Logs by name, with their transitions."""
NAMES = st.sampled_from(["p", "q"])
LOG = st.sampled_from(sorted(LOGS))


class Folders(RuleBasedStateMachine):
    """A folder in which commands write models and sums."""

    cases = 0

    def __init__(self):
        super().__init__()
        self.back = Path.cwd()
        self.folder = Path(tempfile.mkdtemp())
        os.chdir(self.folder)
        for i, (name, rows) in enumerate(LOGS.items()):
            write_table(make_rows(rows // 9, 10, seed=i), self.folder / f"{name}.parquet")
        self.held = {}
        self.harmed = set()

    def teardown(self):
        os.chdir(self.back)
        shutil.rmtree(self.folder)

    def tried(self, expected, *words):
        """Run a command, which must succeed or be refused as expected."""
        type(self).cases += 1
        result = keeps_its_promise(self.folder, *words)
        assert (result.code == 0) == expected, (words, result)
        return expected

    @rule(verb=st.sampled_from(["fit", "moments"]), log=LOG, name=NAMES, force=st.booleans())
    def write(self, verb, log, name, force):
        flags = ["--force"] if force else []
        if self.tried(
            force or name not in self.held,
            *(verb, f"{log}.parquet", *OPTIONS, "--out", name, *flags),
        ):
            self.held[name] = ("model" if verb == "fit" else "moments", {log})
            self.harmed.discard(name)

    @rule(log=LOG, name=NAMES)
    def update(self, log, name):
        kind, logs = self.held.get(name, (None, set()))
        sound = kind == "model" and name not in self.harmed and log not in logs
        if self.tried(sound, "update", name, f"{log}.parquet"):
            self.held[name] = (kind, logs | {log})

    @rule(force=st.booleans())
    def merge(self, force):
        (one, logs), (other, more) = (self.held.get(name, (None, set())) for name in "pq")
        sound = None not in (one, other) and not logs & more
        sound &= not self.harmed & {"p", "q"}
        sound &= force or "both" not in self.held
        flags = ["--force"] if force else []
        if self.tried(sound, "merge", "p", "q", "--out", "both", *flags):
            self.held["both"] = ("moments", logs | more)
            self.harmed.discard("both")

    @precondition(lambda self: self.held)
    @rule(data=st.data(), where=st.floats(0, 1, exclude_max=True))
    def damage(self, data, where):
        name = data.draw(st.sampled_from(sorted(self.held)))
        (file,) = (self.folder / name).glob("*.npz")
        content = bytearray(file.read_bytes())
        content[int(where * len(content))] ^= 255
        file.write_bytes(content)
        self.harmed ^= {name}  # the same byte twice is sound again, another one is not
        if self.is_sound(name) != (name not in self.harmed):
            self.harmed |= {name}

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def die(self, data):
        """Leave what a run that was killed leaves; the next one that reads the name clears up."""
        name = data.draw(st.sampled_from(sorted(self.held)))
        shutil.copytree(name, left_by_the_dead(name), dirs_exist_ok=True)
        (self.folder / f".{name}.ivvi-lock").touch()
        flags = (*OPTIONS, "--out", name, "--force")
        self.tried(True, "moments", "one.parquet", *flags)
        self.held[name] = ("moments", {"one"})
        self.harmed.discard(name)

    def is_sound(self, name):
        try:
            load_folder(self.folder / name, self.held[name][0])
        except ValueError:
            return False
        return True

    @invariant()
    def all_is_as_expected(self):
        found = {path.name for path in self.folder.iterdir()}
        assert found == {f"{name}.parquet" for name in LOGS} | set(self.held)
        for name in set(self.held) - self.harmed:
            kind, logs = self.held[name]
            facts, _ = load_folder(self.folder / name, kind)
            rows = facts.get("fit", facts)["moments"]["n"]
            assert rows == sum(LOGS[log] for log in logs), (name, kind, logs)


def test_any_sequence_of_commands_leaves_whole_folders(request, record_property):
    asked = request.config.getoption("--cases")
    fuzzing = request.config.getoption("--fuzz")
    runs = (
        -(-asked // 8)
        if asked
        else 400
        if fuzzing
        else 12
        if request.config.getoption("--all")
        else 2
    )
    Folders.cases = 0
    run_state_machine_as_test(
        Folders,
        settings=settings(
            max_examples=runs,
            stateful_step_count=10,
            deadline=None,
            database=None,
            derandomize=not fuzzing,
            suppress_health_check=list(HealthCheck),
        ),
    )
    record_property("cases", Folders.cases)
