"""Every system call that changes the disk fails in turn, or is the last one of its process.

In the manner of SQLite's crash tests: run a command once to count its calls; then for each of them
and each fault run it again on a fresh copy, and look at what the next command finds. Needs a C
compiler; ``python tests/crash/crashes.py`` prints the table.
"""

import contextlib
import ctypes
import errno
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
FAULTS = {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO, "SIGKILL": 0}
COLUMNS = ("--state", "x*", "--action", "a*", "--instrument", "z*")
COMMANDS = {
    "fit --force": ["fit", "new.parquet", *COLUMNS, "--out", "model", "--force"],
    "update": ["update", "model", "new.parquet"],
    "moments --force": ["moments", "new.parquet", *COLUMNS, "--out", "sums", "--force"],
    "plan --force": [
        *("plan", "model", "--reward", "quadratic:weight=1", "--action-low", "-1"),
        *("--action-high", "1", "--horizon", "9", "--out", "policy", "--force"),
    ],
}
WRITES = {"fit": "model", "update": "model", "plan": "policy"}


def compiled(folder):
    """Compile the library that is preloaded; None where there is no compiler."""
    library = Path(folder) / "faults.so"
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    build = [compiler, "-shared", "-fPIC", "-O1", "-o", library, HERE / "faults.c", "-ldl"]
    return library if subprocess.run(build, check=False).returncode == 0 else None


def measure(commands, every=1):
    """Return the table in a process of its own: command, fault, points, old, new."""
    with tempfile.TemporaryDirectory() as folder:
        library = compiled(folder)
        if library is None:
            return None
        environment = os.environ | {"LD_PRELOAD": str(library), "OPENBLAS_NUM_THREADS": "1"}
        arguments = [sys.executable, __file__, "--inside", folder, str(every), *commands]
        done = subprocess.run(
            arguments, env=environment, capture_output=True, text=True, check=False, timeout=900
        )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def in_child(work, fault=(0, 0)):
    """Fork and run `work` with a fault; return its exit code and the calls that it made."""
    reader, writer = os.pipe()
    if not (child := os.fork()):
        library = ctypes.CDLL(None)
        silent = io.StringIO()
        try:
            with contextlib.redirect_stdout(silent), contextlib.redirect_stderr(silent):
                library.faults_arm(ctypes.c_long(fault[0]), fault[1])
                code = work()
        except SystemExit as stop:
            code = stop.code
        except BaseException as error:
            code, silent = 99, io.StringIO(repr(error))
        calls = library.faults_count()
        library.faults_arm(ctypes.c_long(0), 0)
        os.write(writer, json.dumps([code, calls, silent.getvalue()[-400:]]).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        text = pipe.read()
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        return -os.WTERMSIG(status), 0, ""
    return json.loads(text)


def state_of(target):
    """Return what the next command finds: the logs that a whole folder is of."""
    from ivvi._io.files import load_folder
    from ivvi._io.replacing import recover

    recover(target)
    (described,) = target.glob("*.json")
    document, _ = load_folder(target, described.stem)
    return json.dumps([document.get("fit", document).get("files"), document.get("horizon")])


def inside(folder, every, names):
    """Make the logs, then try each command at each of its points."""
    import ivvi.planning.plan
    from helpers import make_rows, run, write_table
    from ivvi.cli.main import main

    start = folder / "start"
    for name, seed in (("old", 0), ("new", 1)):
        write_table(make_rows(seed=seed), start / f"{name}.parquet")
    os.chdir(start)

    def prepare():
        assert run("moments", "old.parquet", *COLUMNS, "--out", "sums").code == 0
        assert run("fit", "old.parquet", *COLUMNS, "--out", "model").code == 0
        plans = ((5, "policy"), (9, "planned")) if "plan --force" in names else ()
        for horizon, out in plans:
            done = run(
                "plan", "model", "--reward", "quadratic:weight=1", "--action-low", "-1",
                "--action-high", "1", "--horizon", horizon, "--method", "mpc", "--out", out,
            )  # fmt: skip
            assert done.code == 0, done
        return 0

    code, _, said = in_child(prepare)
    assert code == 0, said

    def planned(*_, **__):  # planning changes no disk; what it came to is written
        return ivvi.load_policy("planned")

    ivvi.planning.plan.plan = planned
    for name in names:
        command = COMMANDS[name]
        target = Path(WRITES.get(command[0], "sums"))
        for fault, code in FAULTS.items():
            print(json.dumps(tried(folder, name, command, target, (fault, code), every, main)))


def tried(folder, name, command, target, fault, every, main):
    """Return how the points of a command end under one fault."""

    def fresh():
        place = folder / "place"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(folder / "start", place)
        os.chdir(place)

    fresh()
    old = state_of(target)
    _, points, said = in_child(lambda: main(command), (1 << 40, 1))
    new = state_of(target)
    assert old != new, (name, said)
    row = {"command": name, "fault": fault[0], "points": 0, "old": 0, "new": 0, "wrong": []}
    for at in range(1, points + 1, every):
        fresh()
        code, _, said = in_child(lambda: main(command), (at, fault[1]))
        row["points"] += 1
        kind = {old: "old", new: "new"}.get(found(target))
        killed = code == -signal.SIGKILL
        told = killed or (code == 0 and kind == "new") or (code == 1 and said.count("\n") == 1)
        left = cleared(target)
        if kind is None or not told or left:
            row["wrong"].append([at, code, kind, said, left])
        else:
            row[kind] += 1
    return row


def found(target):
    """Return the state of a target, or None if it is not whole."""
    try:
        return state_of(target)
    except (OSError, ValueError):
        return None


def cleared(target):
    """Return what is left beside a target once the next writer has taken it."""
    from ivvi._io.replacing import locked, remove_leftovers

    with locked(target.resolve()):
        remove_leftovers(target.resolve())
    return [path.name for path in Path.cwd().iterdir() if path.name.startswith(".")]


def table(rows):
    """Return the rows as text."""
    lines = [f"{'command':<18}{'fault':<10}{'points':>8}{'old':>6}{'new':>6}{'wrong':>7}"]
    lines += [
        f"{r['command']:<18}{r['fault']:<10}{r['points']:>8}{r['old']:>6}{r['new']:>6}"
        f"{len(r['wrong']):>7}"
        for r in rows
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        inside(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
    else:
        rows = measure(sys.argv[1:] or list(COMMANDS))
        print("no C compiler" if rows is None else table(rows))
        for row in rows or ():
            for wrong in row["wrong"]:
                print(row["command"], row["fault"], *wrong)
