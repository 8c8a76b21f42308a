"""Every system call that changes the disk fails in turn, or is the last one of its process.

In the manner of SQLite's crash tests: run a command once to count its calls; then for each of them
and each fault run it again on a fresh copy, and look at what the next command finds. A process
that has loaded the libraries forks for each run. What planning, valuing and the paper's jobs come
to is taken from a run before: computing changes no disk, and takes seconds. Needs a C compiler;
``python tests/crash/crashes.py`` prints the table.
"""

import atexit
import contextlib
import ctypes
import errno
import functools
import importlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from types import SimpleNamespace

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
FAULTS = {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO, "SIGKILL": 0}
COLUMNS = ("--state", "x*", "--action", "a*", "--instrument", "z*")
BOX = ("--reward", "quadratic:weight=1", "--action-low", "-1", "--action-high", "1")
SPECS = str(HERE.parent / "reproduction" / "specs")
RECORDS = ("reproduce", "linear", "--specs", SPECS, "--column", "best", "--jobs", "1")
COMMANDS = {
    "fit --force": ["fit", "new.parquet", *COLUMNS, "--out", "model", "--force"],
    "update": ["update", "model", "new.parquet"],
    "moments --force": ["moments", "new.parquet", *COLUMNS, "--out", "sums", "--force"],
    "plan --force": ["plan", "model", *BOX, "--horizon", "9", "--out", "policy", "--force"],
    "value --json": ["value", "policy", "--model", "model", "--json", "value.json", "--force"],
    "reproduce": [*RECORDS, "--seeds", "2", "--out", "records"],
}
OWN_CACHE = "CRASHES_CACHE"
"""Where the compiled programs are that whoever measures has already."""
TARGETS = {
    **{"fit": "model", "update": "model", "moments": "sums", "plan": "policy"},
    **{"value": "value.json", "reproduce": "records"},
}
"""What a verb writes here."""


def compiled(folder):
    """Compile the library that is preloaded; None where there is no compiler."""
    library = Path(folder) / "faults.so"
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    build = [compiler, "-shared", "-fPIC", "-O1", "-o", library, HERE / "faults.c", "-ldl"]
    return library if subprocess.run(build, check=False).returncode == 0 else None


def measure(commands, every=1):
    """Return the table in a process of its own: command, fault, points, old, new, between."""
    with tempfile.TemporaryDirectory() as folder:
        library = compiled(folder)
        if library is None:
            return None
        environment = os.environ | {
            **{"LD_PRELOAD": str(library), "OPENBLAS_NUM_THREADS": "1"},
            **{OWN_CACHE: os.environ.get("IVVI_CACHE", ""), "IVVI_CACHE": f"{folder}/cache"},
        }
        environment.pop("JAX_COMPILATION_CACHE_DIR", None)  # of who measures
        arguments = [sys.executable, __file__, "--inside", folder, str(every), *commands]
        done = subprocess.run(
            arguments, env=environment, capture_output=True, text=True, check=False, timeout=3600
        )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def in_child(work, fault=(0, 0)):
    """Fork and run `work` with a fault; return its exit code, its calls and what it said."""
    reader, writer = os.pipe()
    if not (child := os.fork()):
        library = ctypes.CDLL(None)
        silent = io.StringIO()
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(silent):
                library.faults_arm(ctypes.c_long(fault[0]), fault[1])
                try:
                    code = work()
                except SystemExit as stop:
                    code = stop.code
                atexit._run_exitfuncs()
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


def inside(folder, every, names):
    """Make the logs, then try each command at each of its points."""
    from helpers import make_rows, write_table
    from ivvi.cli.main import main

    start = folder / "start"
    for name, seed in (("old", 0), ("new", 1)):
        write_table(make_rows(seed=seed), start / f"{name}.parquet")
    os.chdir(start)
    code, _, said = in_child(lambda: prepare({COMMANDS[name][0] for name in names}))
    assert code == 0, said
    take_results_from(start)
    for name in names:
        for fault, code in FAULTS.items():
            print(json.dumps(tried(folder, name, (fault, code), every, main)), flush=True)


def prepare(verbs):
    """Make what the commands begin with, and what those that compute come to."""
    from helpers import run

    os.environ["IVVI_CACHE"] = os.environ[OWN_CACHE]

    def made(*words):
        result = run(*words)
        assert result.code == 0, result

    made("moments", "old.parquet", *COLUMNS, "--out", "sums")
    made("fit", "old.parquet", *COLUMNS, "--out", "model")
    if verbs & {"plan", "value"}:
        for horizon, out in ((5, "policy"), (9, "planned")):
            words = ("--horizon", horizon, "--method", "mpc", "--out", out)
            made("plan", "model", *BOX, *words)
    if "value" in verbs:
        for horizon, out in ((5, "value.json"), (9, "valued.json")):
            few = ("--draws", 20, "--against", "zero", "--horizon", horizon)
            made("value", "policy", "--model", "model", *few, "--json", out)
    if "reproduce" in verbs:
        made(*RECORDS, "--seeds", 1, "--out", "records")
        made(*RECORDS, "--seeds", 2, "--out", "all")
    return 0


def take_results_from(start):
    """Put results of a run before in the place of what only computes."""
    import ivvi.evaluation
    import ivvi.policy.plan
    from ivvi_reproduction import reproduce
    from ivvi_reproduction.jobs import Outcome
    from ivvi_reproduction.records import RecordFile

    def planned(*_, **__):
        return ivvi.load_policy(start / "planned")

    def valued(*_, **__):
        facts = json.loads((start / "valued.json").read_text())
        return SimpleNamespace(summary=lambda: "", to_json=lambda: facts)

    @functools.cache
    def records():
        return RecordFile.open(start / "all").done

    def recorded(job, options):
        return Outcome(records()[job]["result"], records()[job]["seconds"])

    ivvi.policy.plan.plan = planned
    ivvi.evaluation.value = valued
    reproduce.run_job = recorded


def tried(folder, name, fault, every, main):
    """Return how the points of a command end under one fault."""
    command = COMMANDS[name]
    target = Path(TARGETS[command[0]])

    def fresh():
        place = folder / "place"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(folder / "start", place)
        os.chdir(place)

    def counted():
        try:
            main(command)
        finally:
            (folder / "loaded").write_text("\n".join(sys.modules))

    fresh()
    old = state_of(target)
    in_child(counted)
    load((folder / "loaded").read_text().split())
    fresh()
    _, points, said = in_child(lambda: main(command), (1 << 40, 1))
    new = state_of(target)
    assert old != new, (name, said)
    row = {"command": name, "fault": fault[0], "calls": points, "points": 0}
    row |= {"old": 0, "new": 0, "between": 0, "wrong": []}
    for at in range(1, points + 1, every):
        fresh()
        code, _, said = in_child(lambda: main(command), (at, fault[1]))
        row["points"] += 1
        kind = kind_of(found(target), old, new)
        killed = code == -signal.SIGKILL
        told = killed or (code == 0 and kind == "new") or (code == 1 and is_told(said))
        left = cleared(target, lambda: main(command))
        whole = command[0] != "reproduce" or found(target) == new  # the next run goes on
        if kind is None or not told or left or not whole:
            row["wrong"].append([at, code, kind, said, left])
        else:
            row[kind] += 1
    return row


def is_told(said):
    """Whether the last line, after those of progress, is the one sentence that refuses."""
    sentences = [line.startswith("ivvi: ") for line in said.splitlines()]
    return sentences.count(True) == 1 and sentences[-1]


def load(modules):
    """Import what a command has imported, so that its forks need not."""
    with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in modules:
            with contextlib.suppress(Exception):
                importlib.import_module(name)


def state_of(target):
    """Return what the next command finds: the logs that a whole folder is of, or the records."""
    from ivvi._io.files import load_folder, read_json
    from ivvi._io.replacing import recover

    recover(target)
    if target.name == "records":
        from ivvi_reproduction.records import RecordFile

        return {
            job.name: json.dumps(r["result"]) for job, r in RecordFile.open(target).done.items()
        }
    if target.is_file():
        return json.dumps(read_json(target), sort_keys=True)
    (described,) = target.glob("*.json")
    document, _ = load_folder(target, described.stem)
    return json.dumps([document.get("fit", document).get("files"), document.get("horizon")])


def found(target):
    """Return the state of a target, or None if it is not whole."""
    try:
        return state_of(target)
    except (OSError, ValueError):
        return None


def kind_of(state, old, new):
    """Say which state it is; records may stand between: those there are, are those expected."""
    if state in (old, new):
        return "old" if state == old else "new"
    if isinstance(state, dict) and old.items() <= state.items() <= new.items():
        return "between"
    return None


def cleared(target, again):
    """Return what is left once the next writer has taken the target: of a reproduction, itself."""
    from ivvi._io.replacing import locked, remove_leftovers

    if target.name == "records":
        assert in_child(again)[0] == 0
    else:
        with locked(target.resolve()):
            remove_leftovers(target.resolve())
    return [str(path) for path in Path().rglob("*") if path.name.startswith(".")]


def table(rows):
    """Return the rows as text, and how many of all points were tried."""
    counts = ("points", "old", "between", "new")
    lines = [f"{'command':<18}{'fault':<10}" + "".join(f"{n:>9}" for n in (*counts, "wrong"))]
    lines += [
        f"{row['command']:<18}{row['fault']:<10}"
        + "".join(f"{n:>9}" for n in (*(row[c] for c in counts), len(row["wrong"])))
        for row in rows
    ]
    points, calls = (sum(row[word] for row in rows) for word in ("points", "calls"))
    return "\n".join([*lines, f"{points} of {calls} points ({100 * points / calls:.0f}%)"])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        inside(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
    else:
        rows = measure(sys.argv[1:] or list(COMMANDS))
        print("no C compiler" if rows is None else table(rows))
        for row in rows or ():
            for wrong in row["wrong"]:
                print(row["command"], row["fault"], *wrong)
