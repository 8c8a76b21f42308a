"""Any verb with any option on hostile tables, and saved files that were damaged or forged.

Whatever comes in, a command ends with code 0, 1 or 2, says one sentence when it refuses, shows no
traceback and no warning of NumPy, and leaves no new name unless it succeeds. ``./run test --fuzz``
looks for an hour; ``--all`` for a fixed number of cases.
"""

import contextlib
import json
import os
import shutil
import time
import warnings

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from helpers import OPTIONS, forge, make_rows, run, write_table

HOUR = 3600.0
CODES = {0, 1, 2}
NUMBERS = st.sampled_from(
    [0.0, -0.0, 1.0, -1.0, 0.5, 1e-320, 1e70, 1e155, 1e308, np.inf, -np.inf, np.nan, None]
)
HOSTILE = st.one_of(
    st.sampled_from(
        [
            *("", " ", ",", "x0", "x*", "*", "a0,a0", "-1", "0", "1", "3", "1.5", "nan", "inf"),
            *("1e308", "9" * 30, "'", '"', "\\", "/", ".", "..", "log.parquet", "model", "\u202e"),
            *("linear", "poly2", "poly3:cross", "spline:3", "fourier:7", "exact", "liml", "hac"),
            *("robust", "clustered", "unadjusted", "x0 > 0", "x0 >", "episode", "z0", "reward"),
            *("loo:episode", "loo:", "a0:1", "7d", "999999999999", "step", "x0,", "poly2:cross"),
        ]
    ),
    st.text(max_size=12),
)
LOG_OPTIONS = (
    *("--state", "--action", "--instrument", "--next-state", "--reward", "--episode", "--step"),
    *("--weight", "--where", "--features", "--phi", "--psi"),
    *("--context", "--categorical", "--lags", "--terminal", "--every"),
)
VERBS = {
    "fit": (
        *(*LOG_OPTIONS, "--cluster", "--method", "--se", "--bandwidth", "--ridge", "--draws"),
        *("--absorb", "--seed", "--workers"),
    ),
    "diagnose": (*LOG_OPTIONS, "--cluster", "--absorb", "--se", "--suspect"),
    "check": (*LOG_OPTIONS, "--cluster", "--time", "--level", "--richer"),
    "interval": (*LOG_OPTIONS, "--cluster", "--absorb", "--level", "--method"),
    "moments": LOG_OPTIONS,
    "effect": ("--action", "--output", "--over", "--at", "--between", "--level"),
    "table": ("--output", "--feature", "--beside", "--statistics", "--names", "--digits"),
    "update": ("--where", "--cluster", "--wait"),
    "act": ("--state", "--states", "--step", "--trust"),
    "merge": ("--trust",),
}


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


def budget(request, cases):
    """Return how many cases to try, and until when."""
    if request.config.getoption("--fuzz"):
        return 1_000_000, time.monotonic() + HOUR / 3
    return cases * (8 if request.config.getoption("--all") else 1), float("inf")


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """Make a log, sums, a model and a policy."""
    folder = tmp_path_factory.mktemp("start")
    log = write_table(make_rows(12, 10), folder / "log.parquet")
    write_table(make_rows(12, 10, seed=1), folder / "more.parquet")
    assert run("moments", log, *OPTIONS, "--out", folder / "sums").code == 0
    assert run("fit", log, *OPTIONS, "--out", folder / "model").code == 0
    bounds = ("--action-low", "-1", "--action-high", "1", "--horizon", "3", "--method", "mpc")
    reward = ("--reward", "quadratic:weight=1")
    assert run("plan", folder / "model", *reward, *bounds, "--out", folder / "policy").code == 0
    return folder


def promised(place, *arguments):
    """Run a command in `place` and check the whole promise."""
    before = {path.name for path in place.iterdir()}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        result = run(*arguments)
    assert result.code in CODES, (arguments, result)
    assert "Traceback" not in result.err, (arguments, result)
    if result.code:
        refused = result.err.splitlines()[-1:]
        assert [line[:6] for line in refused] == ["ivvi: "], (arguments, result)
    numpy = [str(one.message) for one in said if issubclass(one.category, RuntimeWarning)]
    assert numpy == [], arguments
    after = {path.name for path in place.iterdir()}
    new = after - before
    assert not any(name.startswith(".") for name in new), (arguments, new)
    assert result.code == 0 or not new, (arguments, new)
    return result


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


class TimeOver(KeyboardInterrupt):
    """The time is over: the one exception that Hypothesis passes on as it is."""


def each(strategy, cases, until, work):
    """Try `work` on values of a strategy: so many cases, or until the time is over."""

    @settings(
        max_examples=cases,
        deadline=None,
        database=None,
        derandomize=until == float("inf"),
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def tried(value):
        if time.monotonic() > until:
            raise TimeOver
        work(value)

    with contextlib.suppress(TimeOver):
        tried()


@pytest.fixture
def place(start, tmp_path, monkeypatch):
    """Give a fresh copy of the files, and a way to get another one."""

    def fresh():
        folder = tmp_path / "place"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(start, folder)
        os.chdir(folder)
        return folder

    monkeypatch.chdir(tmp_path)
    return fresh


def test_any_verb_with_any_option_on_any_table(place, request):
    verbs = st.sampled_from(sorted(VERBS))
    chosen = verbs.flatmap(
        lambda verb: st.tuples(
            st.just(verb),
            st.lists(st.tuples(st.sampled_from(VERBS[verb]), HOSTILE), max_size=3),
            st.one_of(st.none(), tables()),
            st.booleans(),
        )
    )

    def work(case):
        verb, options, table, dropping = case
        folder = place()
        log = "log.parquet"
        if table is not None:
            log = write_table(table, folder / "hostile.parquet").name
        sources = {
            **{"update": ("model", log), "act": ("policy",), "merge": ("sums", "sums")},
            **{"effect": ("model", "--action", "a0"), "table": ("model", "model")},
            "interval": (log, "--output", "x0", "--feature", "a0"),
        }
        words = [verb, *sources.get(verb, (log,))]
        words += ["--out", "made"] if verb in ("fit", "moments", "update", "merge") else []
        words += ["--drop-missing"] if dropping and "--where" in VERBS[verb] else []
        promised(folder, *words, *(word for pair in options for word in pair))

    each(chosen, *budget(request, 15), work)


def says_the_same(one, other):
    """Whether two texts are the same JSON document."""
    try:
        return json.loads(one) == json.loads(other)
    except ValueError:
        return False


def test_saved_files_with_damaged_bytes(place, request):
    """A damaged file is refused; nothing that is read from it is believed."""
    damage = st.tuples(
        st.sampled_from(["model/model.json", "model/model.npz", "sums/moments.npz"]),
        st.sampled_from(["flip", "cut", "add"]),
        st.floats(0, 1, exclude_max=True),
        st.integers(1, 255),
    )

    def work(case):
        name, kind, where, bits = case
        folder = place()
        whole = (folder / name).read_bytes()
        content = bytearray(whole)
        at = int(where * len(content))
        if kind == "flip":
            content[at] ^= bits
        elif kind == "cut":
            del content[at:]
        else:
            content[at:at] = bytes([bits])
        (folder / name).write_bytes(content)
        if name.endswith(".json") and says_the_same(whole, bytes(content)):
            return  # a space became a tab
        source = name.partition("/")[0]
        if source == "model":
            result = promised(folder, "update", "model", "more.parquet", "--out", "made")
        else:
            result = promised(folder, "merge", "sums", "sums", "--out", "made")
        assert result.code == 2, (case, result)

    each(damage, *budget(request, 15), work)


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(-1e300, 1e300),
    st.text(max_size=5), st.just([]), st.just({}), st.just([[1]]), st.just("os:system"),
)  # fmt: skip


def leaves(document, path=()):
    """Yield the path of every value in a JSON document."""
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in items:
        yield (*path, key)
        if isinstance(value, dict | list) and len(path) < 6:
            yield from list(leaves(value, (*path, key)))[:40]


def test_saved_files_that_were_forged_and_signed_again(place, start, request):
    """One sentence, or a result; never a traceback, and nothing is imported."""
    sources = ("model", "sums", "policy")
    documents = {n: json.loads(next((start / n).glob("*.json")).read_text()) for n in sources}
    paths = {name: sorted(leaves(documents[name]), key=str) for name in sources}
    forgery = st.sampled_from(sources).flatmap(
        lambda name: st.tuples(st.just(name), st.sampled_from(paths[name]), VALUES)
    )

    def work(case):
        name, path, value = case
        folder = place()

        def change(document):
            inner = document
            for key in path[:-1]:
                inner = inner[key]
            if path != ("checksum",):
                inner[path[-1]] = value

        forge(folder / name, change)
        if name == "model":
            promised(folder, "update", "model", "more.parquet", "--out", "made")
        elif name == "sums":
            promised(folder, "fit", "--moments", "sums", "--out", "made")
        else:
            promised(folder, "act", "policy", "--state", "1")

    each(forgery, *budget(request, 15), work)


@example(["{"])
@settings(deadline=None)
@given(st.lists(st.text(max_size=30), max_size=5))
def test_any_line_of_act_is_answered(served, lines):
    from ivvi.planning.serving import serve

    answers = list(serve(served, lines))
    assert len(answers) == sum(bool(line.strip()) for line in lines)
    assert all("\n" not in answer and json.loads(answer) for answer in answers)


@pytest.fixture(scope="module")
def served(start):
    from ivvi import load_policy

    return load_policy(start / "policy")
