"""A saved fit comes back whole: `Fit.load` is the inverse of `Fit.save`, for every method."""

import dataclasses
import json

import numpy as np
import pytest

import ivvi
from helpers import assert_refused, run
from ivvi import SGDA, InputError, option_values
from ivvi._io.serialization import Packer, Unpacker
from ivvi.errors import FileError
from ivvi.estimators.registry import METHODS
from ivvi.fitting.saved_fit import as_fit

WORDS = [
    "exact",
    "least-squares",
    "liml",
    "fuller:4",
    "kclass:0.5",
    "gmm",
    "ujive",
    "ijive",
    "jive1",
    "ridge",
    "lasso",
    "adaptive-lasso",
    "shrunk",
    "sgda",
]


@pytest.fixture(scope="module")
def log() -> ivvi.Log:
    return ivvi.make_env("linear", dim=2).collect(episodes=30, horizon=20, seed=1)


def assert_same(one: ivvi.Fit, two: ivvi.Fit) -> None:
    """Two fits say the same, and hold the same numbers."""
    assert two.to_json() == one.to_json()
    assert two.summary(most_outputs=None) == one.summary(most_outputs=None)
    assert two.roles == one.roles
    assert two.counts == one.counts
    assert np.array_equal(two.estimate.influence, one.estimate.influence)
    for ours, theirs in zip(
        one.model.parts()[1].values(), two.model.parts()[1].values(), strict=True
    ):
        assert np.array_equal(ours, theirs)


def test_every_method_is_tried() -> None:
    assert {word.partition(":")[0] for word in WORDS} == set(METHODS) - {"smooth"}
    assert {word.partition(":")[0] for word in option_values.METHODS} == set(METHODS) - {"smooth"}


@pytest.mark.filterwarnings("ignore:k = 0.5 is far below one")
@pytest.mark.parametrize("word", WORDS)
def test_a_fit_of_any_method_comes_back(word: str, log: ivvi.Log, tmp_path) -> None:
    fit = ivvi.estimate(log, method=word, se="robust" if "jive" in word else "auto")
    fit.save(tmp_path / "model")
    loaded = ivvi.load_fit(tmp_path / "model")
    assert_same(fit, loaded)
    assert loaded.method == word
    assert f", {word}, " in repr(loaded)
    assert loaded.moments.n == fit.moments.n
    assert np.array_equal(loaded.moments.scatter, fit.moments.scatter)
    assert loaded.errors == fit.errors
    assert loaded.wald("next_x0: a0 = 0").value == fit.wald("next_x0: a0 = 0").value


@pytest.mark.parametrize("kind", ["unadjusted", "robust", "clustered", "cr2", "wild", "hac"])
def test_any_standard_errors_come_back(kind: str, log: ivvi.Log, tmp_path) -> None:
    fit = ivvi.estimate(log, se=ivvi.StandardErrors(kind, draws=99))
    fit.save(tmp_path / "model", episodes=True)
    assert_same(fit, ivvi.Fit.load(tmp_path / "model"))


def test_descent_ascent_in_linear_memory_comes_back(log: ivvi.Log, tmp_path) -> None:
    fit = ivvi.estimate(log, method=ivvi.SGDA(memory="linear"))
    fit.save(tmp_path / "model")
    loaded = ivvi.load_fit(tmp_path / "model")
    assert_same(fit, loaded)
    for one in (fit, loaded):
        with pytest.raises(InputError, match="linear memory"):
            _ = one.moments


def test_differenced_updated_and_summed_fits_come_back(log: ivvi.Log, tmp_path) -> None:
    fits = {
        "differenced": ivvi.estimate(log, difference=True),
        "sums": ivvi.estimate(ivvi.estimate(log).shard),
        "fourier": ivvi.estimate(log, "linear", "poly2"),
    }
    fits["sums"].save(tmp_path / "old")
    more = ivvi.make_env("linear", dim=2).collect(episodes=10, horizon=20, seed=2)
    fits["updated"] = ivvi.update(tmp_path / "old", more)
    assert fits["updated"].moments.n == 30 * 20 + 10 * 20
    for name, fit in fits.items():
        fit.save(tmp_path / name)
        assert_same(fit, ivvi.load_fit(tmp_path / name))


@pytest.mark.filterwarnings("ignore:Nickell bias")
@pytest.mark.parametrize(
    "how",
    [{"difference": True}, {"absorb": "episode"}, {"controls": "place", "learner": "lasso"}],
    ids=lambda how: next(iter(how)),
)
def test_a_fit_of_transformed_rows_answers_the_same_questions_once_it_is_loaded(
    how: dict[str, str], tmp_path
) -> None:
    """Its moments come back with it, but cannot be added to those of another log."""
    rng = np.random.default_rng(3)
    episode, step = np.repeat(np.arange(60), 12), np.tile(np.arange(12), 60)
    e, z = rng.normal(size=(2, 720))
    place = np.repeat(rng.normal(size=60), 12)
    a = z + e + rng.normal(size=720)
    y = 0.5 * a + e + place
    columns = {"episode": episode, "step": step, "a": a, "z0": z, "z1": z**2, "y": y}
    roles = {"action": "a", "instrument": "z*", "next_state": "y"}
    log = ivvi.read_logs(columns | {"place": place}, **roles)
    fit = ivvi.fit(log, episodes=False, **how)
    fit.save(tmp_path / "model")
    loaded = ivvi.load_fit(tmp_path / "model")
    assert_same(fit, loaded)
    assert loaded.moments.absorbed == fit.moments.absorbed
    sets = [ivvi.interval(one, se="unadjusted").to_json() for one in (fit, loaded)]
    assert sets[0] == sets[1]
    tested = [ivvi.diagnose(one, suspects=["z1"]).to_json() for one in (fit, loaded)]
    assert tested[0] == tested[1]
    with pytest.raises(InputError, match=r"has only (their moments|moments without these)"):
        _ = loaded.shard


@pytest.mark.filterwarnings("ignore:.*from the beginning again")
def test_updating_a_fit_is_updating_its_folder(log: ivvi.Log, tmp_path) -> None:
    fit = ivvi.estimate(log, method="fuller:4", episodes=True)
    fit.save(tmp_path / "model", episodes=True)
    more = ivvi.make_env("linear", dim=2).collect(episodes=10, horizon=20, seed=2)
    one, two = ivvi.update(fit, more), ivvi.update(tmp_path / "model", more)
    assert np.array_equal(one.W, two.W)
    assert one.method == two.method == "fuller:4"


def test_a_loaded_fit_is_valued_as_the_one_in_memory(log: ivvi.Log, tmp_path) -> None:
    """Differenced ones too, whose moments are those of the differences."""
    fit = ivvi.estimate(log, difference=True)
    fit.save(tmp_path / "model")
    settings = {
        "reward": "quadratic:weight=0.05",
        "horizon": 5,
        "draws": 40,
        "against": ("zero",),
    }
    action = [0.1] * len(fit.roles.action)
    one, two = (ivvi.value(action, source, **settings) for source in (fit, tmp_path / "model"))
    assert one.to_json() == two.to_json()


def test_what_was_not_saved_is_refused_with_the_reason(log: ivvi.Log, tmp_path) -> None:
    fit = ivvi.estimate(log)
    fit.save(tmp_path / "model", moments=False)
    loaded = ivvi.load_fit(tmp_path / "model")
    assert loaded.summary() == fit.summary()
    with pytest.raises(InputError, match="saved without its moments"):
        _ = loaded.moments
    fit.model.save(tmp_path / "bare")
    with pytest.raises(FileError, match="saved without its fit"):
        ivvi.load_fit(tmp_path / "bare")


def test_no_class_is_looked_up_by_a_name_in_the_file(log: ivvi.Log, tmp_path) -> None:
    """A forged type is refused by the type that the reader expects."""
    ivvi.estimate(log).save(tmp_path / "model")
    document = json.loads((tmp_path / "model" / "model.json").read_text())
    packer = Packer()
    counts = packer.pack(ivvi.estimate(log).counts)
    assert set(counts) == {f.name for f in dataclasses.fields(ivvi.estimate(log).counts)}
    counts["rows"] = {"array": "0"}
    with pytest.raises(TypeError, match="is not a int"):
        Unpacker({"0": np.zeros(3)}).unpack(type(ivvi.estimate(log).counts), counts)
    assert "fit" in document


@pytest.mark.parametrize("word", ["fuller:4", "kclass:0.5", "exact", "sgda"])
def test_a_stream_comes_back_with_its_method(word: str, log: ivvi.Log, tmp_path) -> None:
    stream = ivvi.Stream(method=word).partial_fit(log)
    stream.save(tmp_path / "stream.npz")
    assert ivvi.Stream.load(tmp_path / "stream.npz").method == stream.method


def test_a_saved_fit_is_diagnosed_by_its_folder(log: ivvi.Log, tmp_path) -> None:
    fit = ivvi.estimate(log)
    fit.save(tmp_path / "model")
    assert ivvi.diagnose(tmp_path / "model").to_json() == fit.diagnostics.to_json()
    done = run("diagnose", tmp_path / "model", "--json", "-")
    assert done.code == 0, done
    assert json.loads(done.out)["diagnostics"] == fit.to_json()["diagnostics"]
    refused = run("diagnose", tmp_path / "model", "--state", "x*")
    assert_refused(refused, "--state is for logs")


def test_a_saved_fit_gives_intervals_by_its_folder(log: ivvi.Log, tmp_path) -> None:
    fit = ivvi.estimate(log, episodes=True)
    fit.save(tmp_path / "model")
    own = ivvi.interval(fit, "x0", "a0")
    assert ivvi.interval(str(tmp_path / "model"), "x0", "a0").to_json() == own.to_json()
    options = ("--output", "x0", "--feature", "a0", "--json", "-")
    done = run("interval", tmp_path / "model", *options)
    assert done.code == 0, done
    assert json.loads(done.out) == own.to_json()


def test_sums_by_episode_are_saved_where_the_fit_holds_them(log: ivvi.Log, tmp_path) -> None:
    """A stream holds them, so that a loaded fit of it is updated with clustered errors."""
    roles = {"state": "x*", "action": "a*", "instrument": "z*", "next_state": "next_x*"}
    columns = {**roles, "episode": "episode", "step": "step"}
    stream = ivvi.Stream(**columns).partial_fit(log.table.table)
    stream.fit().save(tmp_path / "stream")
    more = ivvi.make_env("linear", dim=2).collect(episodes=10, horizon=20, seed=2)
    again = ivvi.update(tmp_path / "stream", ivvi.read_logs(more.table.table, **columns))
    assert again.to_json()["clusters"] == {"episode": 40}
    stream.fit().save(tmp_path / "totals", episodes=False)
    assert ivvi.load_fit(tmp_path / "totals").moments.episodes is None
    ivvi.estimate(log).save(tmp_path / "plain")
    assert ivvi.load_fit(tmp_path / "plain").moments.episodes is None


def test_a_choice_of_linear_features_is_the_same_before_and_after_saving(log, tmp_path) -> None:
    fit = ivvi.estimate(log, "auto")
    assert fit.choice.is_linear
    fit.save(tmp_path / "model")
    for name in ("gain", "spread"):
        one, two = (getattr(f.choice, name) for f in (fit, ivvi.load_fit(tmp_path / "model")))
        assert (type(one), one) == (type(two), two)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"method": SGDA(memory="linear")}, "with linear memory the moments are not computed"),
        ({"difference": True}, "a fit from differences has only their moments"),
        ({"absorb": "episode"}, "a fit with absorbed effects has only moments without these"),
        ({}, "saved without its moments"),
    ],
    ids=["linear memory", "differenced", "absorbed", "not saved"],
)
@pytest.mark.filterwarnings("ignore::ivvi.errors.IvviWarning")
def test_a_fit_without_moments_of_its_rows_gives_one_reason_in_every_verb(how, reason, tmp_path):
    log = ivvi.make_env("linear", dim=1).collect(episodes=30, horizon=10, seed=1)
    fit = ivvi.fit(log, **how)
    fit.save(tmp_path / "model", moments=bool(how))
    policy = ivvi.plan(fit, "quadratic:weight=0.05", (-1, 1), horizon=2, method="mpc")
    for source in (fit, ivvi.load_fit(tmp_path / "model")) if how else (tmp_path / "model",):
        for verb in (
            lambda: ivvi.update(source, log),  # noqa: B023
            lambda: ivvi.sensitivity(policy, source),  # noqa: B023
            lambda: as_fit(source).shard,  # noqa: B023
        ):
            with pytest.raises(InputError, match=reason):
                verb()
