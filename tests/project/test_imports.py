"""Importing costs nothing: heavy libraries are loaded where they are used."""

import ast
import importlib
import inspect
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ivvi
from helpers import OPTIONS, ROOT, make_rows, write_table

HEAVY = {"jax", "matplotlib", "pandas", "scipy", "pyarrow", "gymnasium", "numpy", "duckdb", "rich"}


def loaded_by(code, *arguments):
    """Return the top-level modules that a fresh process has loaded after `code`."""
    report = "import json, sys; print(json.dumps(sorted({m.split('.')[0] for m in sys.modules})))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


FIT = """
import contextlib, sys
from ivvi.cli.main import main
with contextlib.suppress(SystemExit):
    main(sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("code", "unwanted"),
    [
        ("import ivvi", HEAVY),
        ("import ivvi; dir(ivvi); ivvi.InputError", HEAVY),
        ("import ivvi.cli.main", HEAVY),
        ("import ivvi.logs", HEAVY - {"pyarrow", "numpy"}),
        ("import ivvi.fitting", HEAVY - {"pyarrow", "numpy", "scipy"}),
        ("import ivvi; ivvi.load_model", HEAVY - {"numpy"}),
    ],
)
def test_imports_load_nothing_heavy(code, unwanted):
    assert loaded_by(code) & unwanted == set()


@pytest.mark.parametrize("ending", ["parquet", pytest.param("csv", marks=pytest.mark.thorough)])
def test_a_small_fit_loads_nothing_heavy(ending, tmp_path):
    source = write_table(make_rows(), tmp_path / f"log.{ending}")
    loaded = loaded_by(FIT, "fit", source, *OPTIONS, "--out", tmp_path / "model")
    assert (tmp_path / "model").is_dir()
    assert loaded & (HEAVY - {"pyarrow", "numpy", "scipy"}) == set()


@pytest.mark.parametrize(
    "option",
    [
        ["--difference"],
        pytest.param(["--absorb", "episode"], marks=pytest.mark.thorough),
        pytest.param(["--drop-missing"], marks=pytest.mark.thorough),
        pytest.param(["--drop-missing", "--missing", "-9"], marks=pytest.mark.thorough),
    ],
    ids=lambda option: option[0],
)
def test_a_fit_of_transformed_rows_loads_no_pandas(option, tmp_path):
    rows = make_rows()
    rows["x1"][5] = np.nan if "--drop-missing" in option else rows["x1"][5]
    source = write_table(rows, tmp_path / "log.parquet")
    loaded = loaded_by(FIT, "fit", source, *OPTIONS, *option, "--out", tmp_path / "model")
    assert (tmp_path / "model").is_dir()
    assert loaded & {"pandas", "jax", "matplotlib"} == set()


@pytest.mark.parametrize("arguments", [["--help"], ["fit", "--help"], ["--version"]])
def test_help_loads_nothing_heavy(arguments):
    assert loaded_by(FIT, *arguments) & HEAVY == set()


@pytest.mark.parametrize("name", ivvi.__all__)
def test_public_names_resolve_to_documented_objects(name):
    thing = getattr(ivvi, name)
    assert inspect.getdoc(thing)
    home = thing.__name__ if inspect.ismodule(thing) else thing.__module__
    assert home.startswith("ivvi.")


def test_the_stub_lists_each_public_name_once():
    """Editors read the stub; what it lists is what is loaded, from where it says."""
    tree = ast.parse(Path(ivvi.__file__).with_suffix(".pyi").read_text())
    (listed,) = [ast.literal_eval(n.value) for n in tree.body if isinstance(n, ast.Assign)]
    assert sorted(listed) == sorted({*ivvi.__all__, "__version__"})
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            module = importlib.import_module(f"ivvi.{node.module}")
            for alias in node.names:
                assert getattr(module, alias.name) is getattr(ivvi, alias.name)


def test_dir_lists_the_public_names():
    assert set(ivvi.__all__) <= set(dir(ivvi))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nothing"):
        _ = ivvi.nothing


@pytest.mark.parametrize(
    ("module", "statement"),
    [
        ("dynamics/model.py", "import jax"),
        ("dynamics/model.py", "from ivvi.dynamics import gym_env"),
        ("estimators/sgda/loop.py", "from ivvi.estimators.sgda import jax_kernel"),
        pytest.param("_io/result.py", "import pandas", marks=pytest.mark.thorough),
        pytest.param("fitting/fit.py", "import ivvi.dynamics.rollout", marks=pytest.mark.thorough),
    ],
)
def test_a_heavy_import_below_fitting_breaks_a_contract(module, statement, tmp_path):
    """Wherever the statement stands, at the top or in a function, import-linter sees it."""
    shutil.copytree(ROOT / "src/ivvi", tmp_path / "ivvi")
    file = tmp_path / "ivvi" / module
    lead, rest = file.read_text().split("from __future__ import annotations\n", 1)
    file.write_text(f"{lead}from __future__ import annotations\n{statement}\n{rest}")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}/reproduction/src"}
    done = subprocess.run(
        [
            *("lint-imports", "--config", ROOT / ".importlinter", "--no-cache"),
            *("--contract", "light", "--contract", "kernel"),
        ],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "BROKEN" in done.stdout
    assert "jax" in done.stdout or "pandas" in done.stdout
