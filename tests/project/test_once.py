"""Work that is needed in several places is done once: folders read, weights solved, rules run."""

import ast
import builtins
import importlib
import io
import shutil
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import ivvi
from helpers import succeed
from ivvi.cli.terminal import emit_json
from ivvi.evaluation.value_estimator import ValueEstimator
from ivvi.fitting import fit as fit_module
from ivvi.option_values import METHODS
from ivvi.planning.comparison import Trials

REWARD = "quadratic:weight=0.05"
estimate_module = importlib.import_module("ivvi.estimators.estimate")
strength_module = importlib.import_module("ivvi.diagnostics.strength")


def counted(monkeypatch, owner, name, key):
    """Count the calls of a function by a key of its arguments."""
    calls, whole = Counter(), getattr(owner, name)

    def call(*args, **kwargs):
        calls[key(*args)] += 1
        return whole(*args, **kwargs)

    monkeypatch.setattr(owner, name, call)
    return calls


def files_read(monkeypatch):
    """Count how often each saved file is opened to be read, by folder and name."""
    calls, whole = Counter(), io.open

    def call(file, mode="r", *args, **kwargs):
        if isinstance(file, str | Path) and "r" in mode and str(file).endswith((".json", ".npz")):
            calls[f"{Path(file).parent.name}/{Path(file).name}"] += 1
        return whole(file, mode, *args, **kwargs)

    for module in (io, builtins):  # pathlib calls the one, other code the other
        monkeypatch.setattr(module, "open", call)
    return calls


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a log, a fit of it with absorbed effects, one without, and a policy."""
    place = tmp_path_factory.mktemp("once")
    log = ivvi.make_env("linear", dim=1).collect(episodes=30, horizon=10, seed=1)
    log.table.table.to_pandas().to_parquet(place / "log.parquet")
    roles = {"state": "x0", "action": "a0", "instrument": "z0", "next_state": "next_x0"}
    log = ivvi.read_logs(place / "log.parquet", **roles)
    fit = ivvi.fit(log, episodes=True)
    fit.save(place / "model", episodes=True)
    with pytest.warns(ivvi.errors.IvviWarning, match="Nickell bias of x0"):
        ivvi.fit(log, absorb="episode").save(place / "units")
    ivvi.plan(fit, REWARD, (-1, 1), horizon=2, method="mpc").save(place / "policy")
    return place


def test_a_folder_with_dynamics_alone_is_planned_in(folder, tmp_path):
    """And gives the policy of the fit that they are from."""
    ivvi.load_fit(folder / "model").model.save(tmp_path / "dynamics")
    options = ["--reward", REWARD, "--action-low", -1, "--action-high", 1, "--horizon", 2]
    policies = []
    for name, source in (("one", folder / "model"), ("two", tmp_path / "dynamics")):
        succeed("plan", source, *options, "--method", "mpc", "--out", tmp_path / name)
        policies.append(ivvi.load_policy(tmp_path / name))
    states = [[-3.0], [0.5], [4.0]]
    assert policies[0](states).tolist() == policies[1](states).tolist()


@pytest.mark.parametrize("verb", ["plan", "plan --unit", "update", "value", "diagnose", "interval"])
def test_a_command_reads_each_saved_folder_once(verb, folder, monkeypatch, tmp_path):
    """A model that is updated in its place is asked, when it is replaced, if it is still the same.

    That is one more look at its JSON.
    """
    reads = files_read(monkeypatch)
    plan = ["--reward", REWARD, "--action-low", -1, "--action-high", 1, "--horizon", 2]
    plan += ["--method", "mpc", "--out", tmp_path / "out"]
    model, log = shutil.copytree(folder / "model", tmp_path / "model"), folder / "log.parquet"
    arguments = {
        "plan": ["plan", model, *plan],
        "diagnose": ["diagnose", model],
        "interval": ["interval", model],
        "plan --unit": ["plan", folder / "units", *plan, "--unit", "episode=3"],
        "update": ["update", model, log, "--again"],
        "value": ["value", folder / "policy", "--model", model, "--draws", 20, "--against", "zero"],
    }[verb]
    succeed(*arguments)
    if verb == "update":
        reads["model/model.json"] -= 1
    assert reads
    assert set(reads.values()) == {1}, reads


def test_a_value_by_the_clusters_of_the_fit_reads_the_model_once(folder, monkeypatch):
    reads = files_read(monkeypatch)
    roles = {"state": "x0", "action": "a0", "instrument": "z0", "next_state": "next_x0"}
    log = ivvi.read_logs(folder / "log.parquet", **roles)
    policy = ivvi.load_policy(folder / "policy")
    settings = {"cluster": "episode", "log": log, "draws": 20, "against": ()}
    with pytest.warns(ivvi.errors.IvviWarning, match="draws are few"):
        ivvi.value(policy, folder / "model", **settings)
    assert reads["model/model.json"] == reads["model/model.npz"] == 1


@pytest.mark.filterwarnings("ignore:k = 0.5 is far below one")
@pytest.mark.parametrize("method", METHODS)
def test_a_fit_solves_the_same_equations_once(method, monkeypatch):
    calls, whole = Counter(), estimate_module.solve_rows
    moments_seen = []  # moments, so that no two have the same address

    def solve_rows(moments, rows, basis, *rest, **settings):
        moments_seen.append(moments)
        calls[id(moments), basis.tobytes(), settings.get("ridge", 0.0)] += 1
        return whole(moments, rows, basis, *rest, **settings)

    for name, module in sys.modules.items():
        if name.startswith("ivvi.") and getattr(module, "solve_rows", None) is whole:
            monkeypatch.setattr(module, "solve_rows", solve_rows)
    judged = counted(monkeypatch, strength_module, "describe_direction", lambda *args: len(args))
    log = ivvi.make_env("linear", dim=1).collect(episodes=30, horizon=10, seed=2)
    ivvi.fit(log, method=method, se="robust" if "jive" in method else "auto")
    assert set(calls.values()) == {1}
    assert judged.total() == 1


def test_a_fit_makes_its_model_and_its_sentences_once(folder, monkeypatch):
    fit = ivvi.load_fit(folder / "model")
    assert fit.model is fit.model
    briefs = counted(monkeypatch, fit_module, "fit_brief", id)
    fit.summary()
    fit.to_json()
    fit.save(folder / "copy", force=True)
    assert briefs.total() == 1


@pytest.mark.filterwarnings("ignore:.* draws are few:ivvi.errors.IvviWarning")
def test_more_draws_do_not_simulate_the_estimated_world_again(folder, monkeypatch):
    module = importlib.import_module("ivvi.evaluation.value_policy")
    monkeypatch.setattr(module, "FIRST_DRAWS", 20)
    monkeypatch.setattr(module, "MOST_DRAWS", 80)
    fit, policy = ivvi.load_fit(folder / "model"), ivvi.load_policy(folder / "policy")
    runs = counted(monkeypatch, ValueEstimator, "in_estimate", lambda self, *_: self.stage)
    worth = ivvi.value(policy, fit, against=("zero",))
    assert len(worth.value.draws) == 80
    assert runs == {0: 2}


def test_rules_that_are_compared_run_once_each(folder, monkeypatch):
    kept = []

    def key(trials, rule):
        kept.append(rule)
        return id(rule)

    runs = counted(monkeypatch, Trials, "returns", key)
    policy = ivvi.plan(ivvi.load_fit(folder / "model"), REWARD, (-1, 1), horizon=2)
    assert any(entry.name.startswith("held") for entry in policy.comparison.entries)
    assert set(runs.values()) == {1}


def test_json_that_nobody_asked_for_is_not_made(tmp_path):
    class Refuses:
        def to_json(self):
            raise AssertionError("made for nothing")

    emit_json(Refuses(), None, force=False)
    with pytest.raises(AssertionError, match="made for nothing"):
        emit_json(Refuses(), "-", force=False)


def test_one_place_decides_clusters():
    """No other module makes errors, changes their clusters, or asks which are usual."""
    deciding = {"standard_errors.py", "standard_errors_for_log.py", "schema.py"}
    root = Path(ivvi.__file__).parent
    others = [
        f"{path.relative_to(root)}:{node.lineno}"
        for path in root.rglob("*.py")
        if path.name not in deciding
        for node in ast.walk(ast.parse(path.read_text()))
        if _decides_clusters(node)
    ]
    assert not others


def _decides_clusters(node):
    if isinstance(node, ast.Attribute):
        return node.attr == "usual_clusters"
    if not isinstance(node, ast.Call):
        return False
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    first = ast.unparse(node.args[0]) if node.args else ""
    changed = {keyword.arg for keyword in node.keywords} & {"clusters", "kind"}
    return name == "Resolved" or (name == "replace" and "errors" in first and bool(changed))


@pytest.mark.filterwarnings("ignore:.* draws are few:ivvi.errors.IvviWarning")
def test_single_decisions_are_made_once_for_equal_states(folder, monkeypatch):
    """And are worth what a function of states is worth, which is called for every one of them."""
    module = importlib.import_module("ivvi.evaluation.many_model_rollout")
    decided, whole = [], module._compiled_first
    monkeypatch.setattr(
        module,
        "_compiled_first",
        lambda actor: lambda numbers, x: decided.append(len(x)) or whole(actor)(numbers, x),
    )
    fit = ivvi.load_fit(folder / "model")
    policy = ivvi.plan(fit, REWARD, (-1, 1), horizon=1, method="mpc")
    settings = {"reward": REWARD, "horizon": 1, "draws": 20, "against": ()}
    one = ivvi.value(policy, fit, **settings)
    other = ivvi.value(lambda x: np.asarray(policy(x)), fit, **settings)
    assert max(decided) <= fit.counts.episodes
    np.testing.assert_allclose(one.value.draws, other.value.draws, rtol=1e-12)
