"""Saved files import nothing but what their reader trusts."""

import shutil
import sys

import numpy as np
import pytest

import helpers
import ivvi
from helpers import ROLES, assert_refused, forge, make_rows, run, write_table
from ivvi._io.trust import check_trusted, trusting
from ivvi.errors import FileError, TrustError
from ivvi.features.custom_block import import_function
from ivvi.features.design import build_design
from ivvi.fitting import load_moments

EVIL = "import pathlib\npathlib.Path(__file__).with_name('ran').touch()\ndef f(*a): return a[0]\n"


@pytest.fixture
def evil(tmp_path, monkeypatch):
    """Put a module on the path that leaves a trace when it is imported."""
    (tmp_path / "evilmod.py").write_text(EVIL)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "evilmod", raising=False)
    import_function.cache_clear()
    return tmp_path / "ran"


def with_evil_features(document):
    block = {"kind": "Custom", "path": "evilmod:f", "columns": ["c"], "of": "both"}

    def replace(value):
        if isinstance(value, dict):
            if isinstance(value.get("blocks"), list):
                value["blocks"] = [block]
            for item in value.values():
                replace(item)

    replace(document)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Save a model, its moments and a policy."""
    folder = tmp_path_factory.mktemp("made")
    log = ivvi.read_logs(write_table(make_rows(15, 20), folder / "log.parquet"), **ROLES)
    fit = ivvi.estimate(log)
    fit.save(folder / "model")
    ivvi.Shard.of(log, build_design(log, "linear")).save(folder / "sums")
    policy = ivvi.plan(
        fit.model, "quadratic", (-1, 1), horizon=3, method="mpc", caution=0.5, compare=False
    )
    policy.save(folder / "policy")
    return folder


@pytest.fixture
def saved(made, tmp_path):
    """Give each test a copy of its own."""
    return shutil.copytree(made, tmp_path, dirs_exist_ok=True)


LOADS = {
    "load_model": ("model", ivvi.load_model),
    "load_fit": ("model", ivvi.load_fit),
    "load_moments of a model": ("model", load_moments),
    "load_moments": ("sums", load_moments),
    "load_policy": ("policy", ivvi.load_policy),
}


@pytest.mark.parametrize("name", LOADS)
def test_forged_features_run_nothing(name, saved, evil):
    folder, load = LOADS[name]
    forge(saved / folder, with_evil_features)
    for trust in ((), "evil", "evilmod.inner", ("numpy", "")):
        with pytest.raises(TrustError, match=f"{folder} would import 'evilmod:f'.*--trust evilmod"):
            load(saved / folder, trust=trust)
    assert not evil.exists()
    with pytest.raises(FileError):  # trusted, it is imported; the columns are still not its own
        load(saved / folder, trust="evilmod")
    assert evil.exists()


FORGERIES = {
    "reward": lambda d: d.update(reward={"kind": "function", "path": "evilmod:f", "arguments": 2}),
    "end": lambda d: d.update(terminal="evilmod:f"),
    "fallback": lambda d: d["rule"].update(fallback={"kind": "policy", "path": "evilmod:f"}),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_forged_policies_run_nothing(name, saved, evil):
    forge(saved / "policy", FORGERIES[name])
    with pytest.raises(TrustError, match="policy would import 'evilmod:f'"):
        ivvi.load_policy(saved / "policy")
    assert not evil.exists()
    result = run("act", saved / "policy", "--state", "1,2")
    assert_refused(
        result, "would import 'evilmod:f', which runs code from evilmod", "--trust evilmod"
    )
    assert not evil.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan", "model", "--reward", "quadratic", "--action-low", -1, "--action-high", 1),
        ("update", "model", "log.parquet"),
        ("value", "policy", "--model", "model"),
        ("sensitivity", "policy", "--model", "model"),
        ("act", "policy", "--state", "1,2", "--model", "model"),
        ("report", "model"),
        ("merge", "sums"),
        ("fit", "--moments", "sums"),
        ("moments", "log.parquet", "--like", "sums"),
    ],
)
def test_no_verb_imports_what_is_not_trusted(arguments, saved, evil, monkeypatch):
    monkeypatch.chdir(saved)
    for folder in ("model", "sums"):
        forge(saved / folder, with_evil_features)
    out = ("--out", "new") if arguments[0] in ("plan", "merge", "fit", "moments") else ()
    for trust in ((), ("--trust", "numpy, helpers")):
        assert_refused(run(*arguments, *out, *trust), "would import 'evilmod:f'")
    assert not evil.exists()


@pytest.mark.parametrize("path", ["helpers:os.system", "helpers:subprocess.run", "helpers:run"])
def test_what_a_trusted_module_imported_is_not_trusted_with_it(path, saved):
    """`helpers` imports os and subprocess; `run` is its own."""
    forge(saved / "policy", lambda d: d.update(terminal=path))
    if path == "helpers:run":
        loaded = ivvi.load_policy(saved / "policy", trust="helpers")
        assert loaded.problem.terminal.function is helpers.run
    else:
        with pytest.raises(TrustError, match=f"would import '{path}', which runs code from "):
            ivvi.load_policy(saved / "policy", trust="helpers")


@pytest.mark.parametrize("path", [None, 3, ["a"], {"b": 1}])
def test_paths_that_are_none_are_refused(path, saved):
    forge(saved / "policy", lambda d: d.update(reward={"kind": "function", "path": path}))
    with pytest.raises(FileError, match="not an import path"):
        ivvi.load_policy(saved / "policy")


def test_a_reward_is_used_again_by_who_trusts_it(saved):
    problem = ("--action-low", -1, "--action-high", 1, "--horizon", 3, "--method", "mpc")
    out = (*problem, "--out", saved / "mine")
    planned = run("plan", saved / "model", "--reward", "helpers:user_reward", *out)
    assert planned.code == 0, planned
    act = ("act", saved / "mine", "--state", "1,2")
    assert_refused(run(*act), "would import 'helpers:user_reward'")
    result = run(*act, "--trust", "helpers")
    assert result.code == 0, result
    assert np.isfinite([float(v) for v in result.out.splitlines()[1].split(",")]).all()


def test_a_package_stands_for_all_that_is_in_it():
    with trusting("file", ("mine", "other.part")):
        for path in ("mine:f", "mine.deep.er:f", "other.part:f"):
            check_trusted(path)
        for path in ("minerva:f", "other:f", "other.partial:f", ":f", ""):
            with pytest.raises(TrustError):
                check_trusted(path)
        with pytest.raises(TrustError), trusting("inner", ()):  # what is loaded on the way
            check_trusted("mine:f")
    with pytest.raises(TrustError):
        check_trusted("mine:f")
