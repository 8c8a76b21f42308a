"""Input that must be refused: how to make it, and which facts the sentence must name."""

import gzip
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from helpers import ROLES, changed, make_rows, take, write_table
from ivvi import InputError, estimate, read_logs
from ivvi.errors import ColumnError, DataError, FileError, IdentificationError

COLUMNS = make_rows()
SHUFFLED = np.random.default_rng(4).permutation(60)
FLAGS = {"drop_missing", "allow_unidentified"}


@dataclass
class Case:
    """Input that must be refused.

    `make` writes it into a folder and returns what to open; `roles` and `settings` are
    arguments of `read_logs` and of `estimate`, and options of the command line.
    """

    make: Callable
    error: type[InputError]
    facts: tuple[str, ...]
    roles: dict = field(default_factory=dict)
    settings: dict = field(default_factory=dict)

    def fit(self, folder):
        log = read_logs(self.make(folder), **ROLES | self.roles)
        settings = dict(self.settings)
        features = settings.pop("features", "linear")
        return estimate(log, features, **settings)

    def options(self):
        options = []
        for name, value in (ROLES | self.roles | self.settings).items():
            option = f"--{name.replace('_', '-')}"
            options += [option] if name in FLAGS and value else [option, value]
        return options


def table(ending="parquet", order=None, **cells):
    """Return a maker of the small log with some cells changed."""
    columns = changed(COLUMNS, **cells)
    columns = columns if order is None else take(columns, order)
    return lambda folder: write_table(columns, folder / f"log.{ending}")


def text(name, content):
    def make(folder):
        folder.joinpath(name).write_bytes(content)
        return folder / name

    return make


def truncated(name, ending):
    """Return a maker of the beginning of a file."""

    def make(folder):
        whole = write_table(COLUMNS, folder / f"whole{ending}").read_bytes()
        return text(name + ending, whole[: len(whole) // 2])(folder)

    return make


def two_files(ending="parquet", **other):
    """Return a maker of two files, the second with other columns (None leaves one out)."""

    def make(folder):
        second = {k: v for k, v in (COLUMNS | other).items() if v is not None}
        write_table(COLUMNS, folder / "logs" / f"one.{ending}")
        write_table(second, folder / "logs" / f"two.{ending}")
        return folder / "logs" if ending == "parquet" else folder / "logs" / f"*.{ending}"

    return make


def empty_folder(folder):
    (folder / "logs").mkdir()
    (folder / "logs" / "notes.txt").write_text("no data here")
    return folder / "logs"


def repeated(row, order=None, ending="parquet"):
    """Return a maker of the log with one row twice, and next states y0, y1."""
    twice = [*range(row + 1), row, *range(row + 1, 60)]
    columns = COLUMNS | {"y0": COLUMNS["x0"] + 1, "y1": COLUMNS["x1"] + 1}
    columns = take(columns, twice if order is None else np.random.default_rng(5).permutation(twice))
    return lambda folder: write_table(columns, folder / f"log.{ending}")


def as_text(name, row, word):
    values = [str(v) for v in COLUMNS[name].tolist()]
    values[row] = word
    return {name: values}


CSV = b"episode,step,x0,x1,a0,a1,z0,z1\n"
ONLY = "columns: episode, step, x0, x1, a0, a1, z0, z1, reward"

COLUMN_CASES = {
    "misspelt episode": Case(
        table(), ColumnError, ("'epsode'", "did you mean 'episode'?"), {"episode": "epsode"}
    ),
    "misspelt reward": Case(
        table(), ColumnError, ("'rewards'", "did you mean 'reward'?"), {"reward": "rewards"}
    ),
    "misspelt state": Case(
        table(speed=COLUMNS["x0"]), ColumnError, ("'sped'", "'speed'?"), {"state": "sped"}
    ),
    "missing state": Case(table(), ColumnError, ("state column 'q'", ONLY), {"state": "x0,q"}),
    "missing in CSV": Case(table("csv"), ColumnError, ("'q'", ONLY), {"instrument": "q"}),
    "nothing matches": Case(table(), ColumnError, ("action pattern 'u*'",), {"action": "u*"}),
    "two roles": Case(
        table(), ColumnError, ("'a1'", "both as action and as instrument"), {"instrument": "z0,a1"}
    ),
    "given twice": Case(table(), ColumnError, ("'x1'", "twice as state"), {"state": "x*,x1"}),
    "backwards": Case(table(), ColumnError, ("'x1:x0'", "backwards"), {"state": "x1:x0"}),
    "a comma of states": Case(
        table(), ColumnError, ("state is ' , ', which names no column",), {"state": " , "}
    ),
    "no action": Case(table(), ColumnError, ("no action column", "columns"), {"action": ""}),
    "header twice": Case(
        text("log.csv", b"episode,step,x0,x0,a0,z0\n0,0,1,2,3,4\n"),
        ColumnError,
        ("the log has 2 columns named 'x0'",),
        {"state": "x0"},
    ),
    "no step": Case(table(), ColumnError, ("step column 't'", "columns: episode"), {"step": "t"}),
    "text in CSV": Case(
        table("csv", **as_text("a1", 13, "fast")),
        ColumnError,
        ("column 'a1' of", "log.csv holds text: 'fast' in data row 13 (from 0)"),
    ),
    "text in unordered CSV": Case(
        table("csv", SHUFFLED[::-1], **as_text("z0", int(SHUFFLED[3]), "fast")),
        ColumnError,
        ("column 'z0' of", "holds text: 'fast' in data row 56 (from 0)"),
    ),
    "text after NA in CSV": Case(
        text("log.csv", CSV + b"0,0,NA,1,1,1,1,1\n0,1,2,,1,1,1,1\n0,2,?,2,2,2,2,2\n"),
        ColumnError,
        ("column 'x0'", "'?' in data row 2 (from 0)"),
    ),
    "text in Parquet": Case(
        table(**as_text("x1", 13, "fast")),
        ColumnError,
        ("column 'x1' of", "log.parquet holds text: 'fast' in data row 13 (from 0)"),
    ),
    "text as step": Case(
        table(**as_text("step", 13, "fast")), DataError, ("'step' of", "'fast' in data row 13")
    ),
    "dates as numbers": Case(
        table(z0=np.datetime64("2024-01-01") + np.arange(60)), ColumnError, ("'z0'", "date32")
    ),
}

DATA_CASES = {
    "no rows": Case(
        lambda folder: write_table(take(COLUMNS, []), folder / "log.parquet"),
        DataError,
        ("log.parquet has no rows",),
    ),
    "no rows in CSV": Case(text("log.csv", CSV), DataError, ("log.csv has no rows",)),
    "one-row episodes": Case(
        table(episode=np.arange(60)),
        DataError,
        ("none of the 60 rows has a next state", "every episode is one row long"),
    ),
    "steps far apart": Case(
        table(step=3 * np.arange(60)), DataError, ("none of the 60 rows", "not consecutive")
    ),
    "1e155": Case(
        table(x1={17: 1e155}), DataError, ("1e+155 in column 'x1', row 17 (from 0)", "1e+70")
    ),
    "several too large": Case(
        table("csv", order=SHUFFLED, a0={3: -1e80}, z1={5: 1e300, 6: 1e300}),
        DataError,
        ("(3 in all)",),
    ),
    "too large beside a missing value": Case(
        table(x1={17: None, 20: -1e200}),
        DataError,
        ("-1e+200 in column 'x1', row 20",),
        {"drop_missing": True},
    ),
    "a feature too large": Case(
        table(x0={17: 1e60}),
        DataError,
        ("the feature 'x0^2' reaches 1e+120",),
        {},
        {"features": "poly2"},
    ),
    "NaN": Case(
        table(x1={17: math.nan, 18: math.nan}, z0={17: math.nan}),
        DataError,
        ("3 missing or infinite values in 2 of 60 rows", "column 'x1', row 17 (from 0)"),
    ),
    "null": Case(
        table(a0={59: None}), DataError, ("1 missing", "1 of 60", "column 'a0', row 59 (from 0)")
    ),
    "infinite": Case(
        table(reward={0: math.inf, 30: -math.inf}),
        DataError,
        ("2 missing or infinite values in 2 of 60", "column 'reward', row 0 (from 0)"),
        {"reward": "reward"},
    ),
    "NaN in unordered file": Case(
        table(order=SHUFFLED, x0={int(SHUFFLED[21]): math.nan}),
        DataError,
        ("1 missing or infinite values in 1 of 60", "column 'x0', row 21 (from 0)"),
    ),
    "empty cells in CSV": Case(
        table("csv", z1={5: None, 7: None}), DataError, ("2 missing", "column 'z1', row 5 (from 0)")
    ),
    "NaN step": Case(
        table(step={5: math.nan}), DataError, ("1 missing", "column 'step', row 5 (from 0)")
    ),
    "no episode": Case(
        table(episode={5: None}), DataError, ("1 missing", "column 'episode', row 5 (from 0)")
    ),
    "everything missing": Case(
        table(x0=np.full(60, np.nan)), DataError, ("all 60 rows",), {"drop_missing": True}
    ),
    "duplicate in order": Case(repeated(47), DataError, ("episode 4 has step 7 twice",)),
    "duplicate out of order": Case(repeated(47, "any"), DataError, ("episode 4 has step 7 twice",)),
    "duplicate in order, next state": Case(
        repeated(47), DataError, ("episode 4 has step 7 twice",), {"next_state": "y*"}
    ),
    "duplicate out of order, next state": Case(
        repeated(47, "any", "csv"), DataError, ("episode 4 has step 7 twice",), {"next_state": "y*"}
    ),
    "negative weight": Case(
        table(w=np.r_[-2, np.ones(59)]), DataError, ("'w' holds -2",), {"weight": "w"}
    ),
    "no weight": Case(
        table(w=np.zeros(60)), DataError, ("weight column 'w' is zero",), {"weight": "w"}
    ),
    "instrument is a state": Case(
        table(z1=COLUMNS["x0"]), DataError, ("'z1' equals the state column 'x0' in every row",)
    ),
    "instrument is an action": Case(
        table("csv", z0=COLUMNS["a1"]), DataError, ("'z0' equals the action column 'a1' in",)
    ),
}
IDENTIFICATION_CASES = {
    "constant instrument": Case(
        table(z0=np.full(60, 2.5)),
        IdentificationError,
        ("rank of A is 4 where 5 is needed", "z0 is 2.5 in every row", "--allow-unidentified"),
    ),
    "collinear instruments": Case(
        table(z1=-2 * COLUMNS["z0"]),
        IdentificationError,
        ("rank of A is 4 where 5 is needed", "the instruments are collinear", "effect of [a"),
    ),
    "too few instruments": Case(
        table(),
        IdentificationError,
        ("rank of A is 4 where 5 is needed", "1 instrument for 2 actions"),
        {"instrument": "z1"},
    ),
    "action never taken": Case(
        table(a0=np.zeros(60)),
        IdentificationError,
        ("a0 is 0 in every row", "effect of [a0] is not identified"),
    ),
    "repeated action": Case(
        table(a1=COLUMNS["a0"] / 3),
        IdentificationError,
        ("features are collinear", "[a0 - 3 a1] is 0"),
    ),
}

FILE_CASES = {
    "no such file": Case(lambda folder: folder / "log.parquet", FileError, ("does not exist",)),
    "two lines in a name": Case(
        lambda folder: folder / "no\nlog.parquet", FileError, ("log.parquet does not exist",)
    ),
    "no such glob": Case(lambda folder: folder / "*.parquet", FileError, ("no file matches",)),
    "truncated Parquet": Case(
        truncated("log", ".parquet"), FileError, ("log.parquet cannot be read as Parquet",)
    ),
    "not Parquet": Case(
        text("log.parquet", b"episode,step\n" * 50), FileError, ("cannot be read as Parquet",)
    ),
    "empty file": Case(text("log.parquet", b""), FileError, ("cannot be read as Parquet",)),
    "no Parquet in folder": Case(empty_folder, FileError, ("holds no Parquet file",)),
    "column missing in one file": Case(
        two_files(a1=None), FileError, ("two.parquet lacks column 'a1'", "one.parquet")
    ),
    "column more in one file": Case(
        two_files(q=COLUMNS["x0"]), FileError, ("two.parquet has another column, 'q'",)
    ),
    "other type in one file": Case(
        two_files(x0=[str(v) for v in COLUMNS["x0"]]),
        FileError,
        ("column 'x0' is string in", "two.parquet but double in"),
    ),
    "column missing in one CSV": Case(two_files("csv", z0=None), FileError, ("lacks column 'z0'",)),
    "other episodes in one CSV": Case(
        two_files("csv", episode=["one"] * 60), DataError, ("'one' has step 0 twice",)
    ),
    "other type in one Arrow file": Case(
        two_files("arrow", a0=["1"] * 60), FileError, ("'a0' is string in", "but double in")
    ),
    "ragged CSV": Case(
        text("log.csv", CSV + b"0,0,1,2\n"), FileError, ("has 4 cells in the row", "0,0,1,2")
    ),
    "empty CSV": Case(text("log.csv", b""), FileError, ("is empty",)),
    "not gzip": Case(
        text("log.csv.gz", CSV * 9), FileError, ("is not compressed, but its name says .gz",)
    ),
    "truncated gzip": Case(
        text("log.csv.gz", gzip.compress(CSV + np.random.default_rng(0).bytes(999))[:400]),
        FileError,
        ("cannot be read as CSV",),
    ),
    "truncated Arrow": Case(
        truncated("log", ".arrow"), FileError, ("log.arrow cannot be read as Arrow",)
    ),
    "not Arrow": Case(text("log.feather", b"no"), FileError, ("cannot be read as Arrow",)),
    "unknown ending": Case(text("log.zip", b"no"), FileError, ("log.zip", "unpack it")),
    "spreadsheet": Case(text("log.xlsx", b"no"), FileError, ("log.xlsx", "sheet as CSV")),
}

SETTING_CASES = {
    "unknown method": Case(
        table(), InputError, ("unknown method 'exat'", "exact"), settings={"method": "exat"}
    ),
    "unknown features": Case(
        table(), InputError, ("'linera'", "'linear'?"), settings={"features": "linera"}
    ),
    "features nobody knows": Case(
        table(),
        InputError,
        ("'trees'", "linear, linear:cross, poly2"),
        settings={"features": "trees"},
    ),
    "features without number": Case(
        table(), InputError, ("'spline'", "spline:5"), settings={"features": "spline"}
    ),
    "features with a bad number": Case(
        table(), InputError, ("'fourier:1'", "at least 2"), settings={"features": "fourier:1"}
    ),
    "polynomial of degree zero": Case(
        table(), InputError, ("degree of the polynomial is 0",), settings={"features": "poly0"}
    ),
}

CASES = COLUMN_CASES | DATA_CASES | IDENTIFICATION_CASES | FILE_CASES | SETTING_CASES
