"""After any failing or fatal system call the next command finds the old or the new state, whole."""

import subprocess
import sys

import pytest

from crash import updates
from crash.crashes import COMMANDS, FAULTS, measure, table


def assert_whole(commands, every):
    rows = measure(commands, every)
    if rows is None:
        pytest.skip("no C compiler")
    print(table(rows))
    assert [row["wrong"] for row in rows] == [[]] * len(rows)
    assert len(rows) == len(commands) * len(FAULTS)
    assert all(row["points"] > 0 for row in rows)


def test_moments_leaves_whole_files_where_some_call_fails():
    assert_whole(["moments --force"], every=25)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "command",
    [*sorted(set(COMMANDS) - {"reproduce"}), pytest.param("reproduce", marks=pytest.mark.slow)],
)
def test_every_command_that_writes_leaves_whole_files_where_some_call_fails(command):
    """Some, beginning with the first; ``python tests/crash/crashes.py`` tries all."""
    assert_whole([command], every=37 if command == "reproduce" else 15)


def test_updates_at_once_hold_every_row_once():
    """``python tests/crash/updates.py 100`` makes a hundred rounds."""
    command = [sys.executable, updates.__file__, "1", "4"]  # forks, before JAX has threads
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[1].split()[:4] == ["4", "1", "4", "1"]
