"""Saved files that were signed again with nonsense in them are refused in one sentence."""

import shutil

import numpy as np
import pytest

import ivvi
from helpers import ROLES, assert_refused, forge, make_rows, run, run_process, write_table


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Save a model and a policy."""
    folder = tmp_path_factory.mktemp("saved")
    log = write_table(make_rows(15, 20), folder / "log.parquet")
    fit = ivvi.estimate(ivvi.read_logs(log, **ROLES))
    fit.save(folder / "model")
    ivvi.plan(fit.model, "quadratic", (-1, 1), horizon=3, method="mpc", compare=False).save(
        folder / "policy"
    )
    return folder


MODELS = {
    "names": (lambda d: d.update(state=5), "not a complete model"),
    "blocks": (lambda d: d["phi"].update(blocks=7), "not a complete model"),
    "one block": (lambda d: d["phi"].update(blocks=[3]), "not a complete model"),
    "degree": (lambda d: d["phi"]["blocks"][1].update(degree="a"), "degree is 'a'"),
    "function": (lambda d: d["phi"]["blocks"][1].update(function="f"), "a function itself"),
    "counts": (lambda d: d["fit"].update(counts=3), "not a complete model"),
    "no rows": (lambda d: d["fit"]["moments"].update(n=None), "sums are of None rows"),
    "no clusters": (
        lambda d: d["fit"]["estimate"]["covariance"].update(clusters=[["episode", -5]]),
        "errors have no clusters",
    ),
    "negative rows": (lambda d: d["fit"]["moments"].update(n=-5), "sums are of -5 rows"),
    "weight": (lambda d: d["fit"]["moments"].update(weight="a"), "of weight 'a'"),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_with_nonsense_are_refused(name, saved, tmp_path):
    change, fact = MODELS[name]
    model = forge(shutil.copytree(saved / "model", tmp_path / "model"), change)
    log = saved / "log.parquet"
    assert_refused(run("update", model, log, "--again"), str(model), fact)


def test_a_folder_from_before_a_field_was_added_is_read_with_its_default(saved, tmp_path):
    model = shutil.copytree(saved / "model", tmp_path / "model")
    forge(model, lambda d: d.pop("reward_doubts"))
    assert ivvi.load_fit(model).model.reward_doubts == ()
    forge(model, lambda d: d.pop("state"))
    assert_refused(run("effect", model, "--action", "a0"), "not a complete model", "'state'")


def test_a_model_without_its_covariance_is_refused(saved, tmp_path):
    model = shutil.copytree(saved / "model", tmp_path / "model")
    with np.load(model / "model.npz") as stored:
        arrays = dict(stored)
    d_y, d_phi = arrays["W"].shape
    blocks = {k: v[:0] for k, v in arrays.items() if v.shape == (d_y, d_phi, d_phi)}
    np.savez(model / "model.npz", **arrays | blocks)
    forge(model, lambda _: None)
    assert_refused(run("effect", model, "--action", "a0"), "the covariance of W is (0, 5, 5)")


def test_a_reward_of_whole_numbers_beyond_64_bits_is_that_of_the_same_floats(saved, tmp_path):
    policy = shutil.copytree(saved / "policy", tmp_path / "policy")
    forge(policy, lambda d: d["reward"].update(target=[2**70]))
    acted = run("act", policy, "--state", "1,2")
    forge(policy, lambda d: d["reward"].update(target=[float(2**70)]))
    assert acted.code == 0
    assert acted.out == run("act", policy, "--state", "1,2").out


@pytest.mark.parametrize(
    ("value", "fact"),
    [(np.nan, "its weights are not finite numbers"), ("a", "W holds no numbers")],
)
def test_weights_that_are_no_numbers_are_refused(value, fact, saved, tmp_path):
    model = shutil.copytree(saved / "model", tmp_path / "model")
    with np.load(model / "model.npz") as stored:
        arrays = dict(stored)
    np.savez(model / "model.npz", **arrays | {"W": np.full(arrays["W"].shape, value)})
    forge(model, lambda _: None)
    with pytest.raises(ivvi.InputError, match=fact):
        ivvi.load_model(model)


@pytest.mark.parametrize("value", [1e308, "a"])
def test_arrays_with_absurd_numbers_or_text_are_refused(value, saved, tmp_path):
    model = shutil.copytree(saved / "model", tmp_path / "model")
    with np.load(model / "model.npz") as stored:
        arrays = dict(stored)
    covariance = next(n for n, array in arrays.items() if n[:4] == "fit." and array.ndim == 3)
    changed = {name: np.full(arrays[name].shape, value) for name in ("states", covariance)}
    for name, array in [*changed.items(), (covariance, arrays[covariance].ravel())]:
        np.savez(model / "model.npz", **arrays | {name: array})
        forge(model, lambda _: None)
        with pytest.raises(ivvi.InputError):
            ivvi.load_fit(model)


POLICIES = {
    "horizon": (lambda d: d.update(horizon="a"), "not a complete policy"),
    "continuous twice": (
        lambda d: d["actions"].update(continuous=[0] * len(d["actions"]["continuous"])),
        "the continuous coordinates are",
    ),
    "endless horizon": (lambda d: d.update(horizon=1e300), "its horizon is 1"),
    "negative horizon": (lambda d: d.update(horizon=-3), "its horizon is -3"),
    "discount": (lambda d: d.update(discount="x"), "not a complete policy"),
    "reward": (lambda d: d["reward"].update(weight="a"), "weight is 'a'"),
    "reward's kind": (lambda d: d["reward"].update(kind=[]), "the saved reward [] cannot be read"),
    "rule": (lambda d: d["rule"].update(kind="x"), "not a complete policy"),
    "actions": (lambda d: d.update(actions={}), "actions cannot be read"),
}


@pytest.mark.parametrize("name", POLICIES)
def test_policies_with_nonsense_are_refused(name, saved, tmp_path):
    change, fact = POLICIES[name]
    policy = forge(shutil.copytree(saved / "policy", tmp_path / "policy"), change)
    assert_refused(run("act", policy, "--state", "1,2"), str(policy), fact)


def test_json_of_endless_depth_is_refused(saved, tmp_path):
    model = shutil.copytree(saved / "model", tmp_path / "model")
    (model / "model.json").write_text("[" * 200_000 + "]" * 200_000)
    with pytest.raises(ivvi.InputError, match="cannot be read as JSON"):
        ivvi.load_model(model)


def test_bounds_that_overflow_are_refused(saved, tmp_path):
    box = ("--action-low", "-1e308", "--action-high", "1e308", "--out", tmp_path / "policy")
    result = run("plan", saved / "model", "--reward", "quadratic", *box)
    assert_refused(result, "a bound of the actions has absolute value 1e+308")


def test_a_closed_standard_output_is_no_fault(saved):
    options = ("--state", "x*", "--action", "a*", "--instrument", "z*")
    code = "import sys; sys.stdout = None"
    result = run_process("diagnose", saved / "log.parquet", *options, code=code)
    assert (result.code, "Traceback" in result.err) == (0, False), result
