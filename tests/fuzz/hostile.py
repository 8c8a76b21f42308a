"""Hostile words, tables and JSON values, and every verb with its options, as the app has them."""

import numpy as np
import pyarrow as pa
import typer
from hypothesis import strategies as st

from helpers import make_rows
from ivvi.cli.main import app
from ivvi.cli.reproduce import reproduction_app

NUMBERS = st.sampled_from(
    [0.0, -0.0, 1.0, -1.0, 0.5, 1e-320, 1e70, 1e155, 1e308, np.inf, -np.inf, np.nan, None]
)
COUNTS = ("1", "3")
WORDS = [
    *("", " ", ",", "x0", "x*", "*", "a0,a0", "-1", "0", *COUNTS, "1.5", "nan", "inf", "-inf"),
    *("1e308", "-1e308", "1e-320", "9" * 30, "9" * 400, "'", '"', "\\", "/", ".", "..", "\u202e"),
    *("log.parquet", "more.parquet", "model", "sums", "policy", "absent", "made.html", "made.csv"),
    *("linear", "poly2", "poly3:cross", "spline:3", "fourier:7", "auto", "fourier:999999999"),
    *("exact", "liml", "hac", "gmm", "ridge", "sgda", "mpc", "wild", "bootstrap", "zero"),
    *("robust", "clustered", "unadjusted", "x0 > 0", "x0 >", "episode", "z0", "reward", "w"),
    *("loo:episode", "loo:", "a0:1", "7d", "999999999999", "step", "x0,", "poly2:cross"),
    *("quadratic:weight=1", "quadratic:weight=1,weight=2", "learned", "os:system", "x0=1", "1,2"),
    *("x0 ~ 1", "x1 ~ x0 + [a0 ~ z0]", "~", "[", "{}", "behaviour", "usual", "html", "latex"),
]
HOSTILE = st.one_of(st.sampled_from(WORDS), st.text(max_size=12))

LEVELS = ("", "nan", "a,b", "a\nb", "\u202e\u00e9", "x" * 3000, None)
CHANGES = {
    "constant": lambda n: [1.0] * n,
    "huge": lambda n: [1e69] * n,
    "text": lambda n: ["a"] * n,
    "levels": lambda n: [LEVELS[i % 7] for i in range(n)],
    "names": lambda n: [f"p{i}" for i in range(n)],
    "yes": lambda n: [i % 2 == 0 for i in range(n)],
    "whole": lambda n: [2**62 + i for i in range(n)],
    "unsigned": lambda n: pa.array([2**63 + i for i in range(n)], pa.uint64()),
    "days": lambda n: pa.array(range(n)).cast(pa.timestamp("s")),
    "nothing": pa.nulls,
    "lists": lambda n: [[1.0]] * n,
}
"""What a whole column is replaced with."""
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(-1e300, 1e300),
    st.text(max_size=5), st.just([]), st.just({}), st.just([[1]]), st.just("os:system"),
)  # fmt: skip
"""What a value in a saved JSON document is replaced with."""

ARRAYS = st.sampled_from(["nan", "inf", "huge", "text", "flat", "empty", "longer", "negative"])
"""What happens to a saved array."""

LEFT_OUT = {"--help", "--verbose", "--scheduler", "--download"}
"""Options that show tracebacks on purpose, or ask the network."""
PROCESSES = {"--workers", "--jobs"}
"""Options that take seconds where they are given small numbers."""
SMALL = ("--episodes", "2", "--horizon", "2")
REWARD = ("--reward", "quadratic:weight=1")
BOX = ("--action-low", "-1", "--action-high", "1")
STARTS = {
    "demo": ("--out", "more.parquet"),
    "simulate": ("linear", "--dim", "1", *SMALL, "--out", "made.parquet"),
    "diagnose": ("LOG",),
    "check": ("LOG",),
    "fit": ("LOG", "--out", "made"),
    "effect": ("model", "--action", "a0"),
    "respond": ("LOG", "--horizon", "2"),
    "interval": ("LOG", "--output", "x0", "--feature", "a0"),
    "update": ("model", "LOG", "--out", "made"),
    "moments": ("LOG", "--out", "made"),
    "merge": ("sums", "other", "--out", "made"),
    "table": ("model", "model"),
    "plan": ("model", *REWARD, *BOX, "--horizon", "2", "--method", "mpc", "--out", "made"),
    "act": ("policy",),
    "evaluate": ("policy", "--env", "linear", "--dim", "2", *SMALL),
    "value": ("policy", "--model", "model", "--draws", "20", "--horizon", "2"),
    "sensitivity": (
        *("policy", "--model", "model", "--draws", "20", "--horizon", "2"),
        *("--episodes", "4", "--state", "1,2"),
    ),
    "reproduce": ("linear", "--out", "more.parquet"),
    "report": ("model", "--out", "made.html"),
    "doctor": (),
}
"""How a verb begins: LOG is the log of the case; the first and the last but three refuse."""
SLOW = {"doctor", "report", "sensitivity", "value", "plan", "evaluate"}
"""Verbs that take seconds where nothing is refused: drawn less often."""


def options_of(verb):
    """Return the options of a verb: those that take a word, and flags."""
    group = typer.main.get_command(app)
    command = group.commands[verb]
    if verb == "reproduce":
        command = typer.main.get_command(reproduction_app())
    options = [p for p in command.params if p.param_type_name == "option"]
    options = [p for p in options if p.opts[0] not in LEFT_OUT]
    if verb in ("demo", "reproduce"):  # these take a minute where they may write
        options = [p for p in options if p.opts[0] != "--out"]
    return (
        [p.opts[0] for p in options if not p.is_flag],
        [p.opts[0] for p in options if p.is_flag],
    )


@st.composite
def commands(draw):
    """Draw a verb, its words, and the table that it reads, if not the log that is there."""
    verb = draw(st.sampled_from(sorted(STARTS) + 2 * sorted(set(STARTS) - SLOW)))
    worded, flags = options_of(verb)
    words = list(STARTS[verb])
    for _ in range(draw(st.integers(0, 3))):
        option = draw(st.sampled_from(worded))
        hostile = HOSTILE.filter(lambda w: w not in COUNTS) if option in PROCESSES else HOSTILE
        words += [option, draw(hostile)]
    if flags and draw(st.booleans()):
        words.append(draw(st.sampled_from(flags)))
    return verb, words, draw(st.one_of(st.none(), tables()))


@st.composite
def tables(draw):
    """Draw a small log with hostile cells, types and columns."""
    rows = make_rows(draw(st.integers(1, 6)), draw(st.integers(1, 6)))
    columns = {name: list(values) for name, values in rows.items()}
    for _ in range(draw(st.integers(0, 4))):
        name = draw(st.sampled_from(sorted(columns)))
        column = [None if v is None else float(v) for v in columns[name]]
        column[draw(st.integers(0, len(column) - 1))] = draw(NUMBERS)
        columns[name] = column
    if draw(st.booleans()):
        name = draw(st.sampled_from(sorted(columns)))
        change = draw(st.sampled_from([*CHANGES, "gone"]))
        count = len(columns.pop(name))
        if change != "gone":
            columns[name] = CHANGES[change](count)
    return pa.table({name: pa.array(values) for name, values in columns.items()})


def replaced(array, change):
    """Return an array in which something is wrong."""
    if change in ("flat", "empty", "longer"):
        array = np.atleast_1d(array)
        return {"flat": array.ravel(), "empty": array[:0], "longer": np.repeat(array, 2, 0)}[change]
    if change == "text":
        return np.full(array.shape, "a")
    values = {"nan": np.nan, "inf": np.inf, "huge": 1e308, "negative": -1.0}
    return np.full(array.shape, values[change])


def leaves(document, path=()):
    """Yield the path of every value in a JSON document."""
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in items:
        yield (*path, key)
        if isinstance(value, dict | list) and len(path) < 6:
            yield from list(leaves(value, (*path, key)))[:40]
