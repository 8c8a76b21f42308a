"""New rows for a saved model, without the old ones."""

import json
import signal
import subprocess
import sys
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers import OPTIONS, ROLES, assert_refused, make_rows, run, run_process, write_table
from ivvi import SGDA, InputError, Shard, estimate, load_fit, load_model, read_logs, update
from ivvi._io.replacing import locked
from ivvi.errors import DataError, IvviWarning
from ivvi.estimators import Exact


@pytest.fixture
def halves(tmp_path):
    """Write one log whole and in two files, cut between episodes."""
    rows = make_rows(40, 20, seed=5)
    cut = {name: values[:300] for name, values in rows.items()}
    rest = {name: values[300:] for name, values in rows.items()}
    return [
        write_table(part, tmp_path / f"{name}.parquet")
        for name, part in (("whole", rows), ("old", cut), ("new", rest))
    ]


def fit(source, out, *options):
    result = run("fit", source, *OPTIONS, *options, "--out", out)
    assert result.code == 0, result


METHODS = {
    "exact": (),
    "ridge": ("--ridge", 0.3, "--debiased"),
    "least-squares": ("--method", "least-squares", "--ridge", 0.1),
    "poly2": ("--features", "poly2"),
    "fuller": ("--method", "fuller:4", "--psi", "poly2"),
    "kclass": ("--method", "kclass:0.5"),
    "shrunk": ("--method", "shrunk"),
    "reward": ("--reward", "reward"),
}


@pytest.mark.parametrize("options", METHODS.values(), ids=METHODS)
def test_an_updated_model_is_the_fit_of_both_logs(halves, options, tmp_path):
    whole, old, new = halves
    fit(whole, tmp_path / "wanted", *options)
    fit(old, tmp_path / "model", *options)
    result = run("update", tmp_path / "model", new, "--json", tmp_path / "facts.json")
    assert result.code == 0, result
    assert "475 transitions added" in result.out
    wanted, updated = (load_model(tmp_path / name) for name in ("wanted", "model"))
    for name in ("W", "noise_cov", "bread"):
        one, two = getattr(wanted, name), getattr(updated, name)
        np.testing.assert_allclose(two, one, rtol=1e-10, atol=1e-12)
    facts = json.loads((tmp_path / "facts.json").read_text())
    assert (facts["n"], facts["episodes"], facts["added"]) == (760, 40, 475)
    assert facts["dropped"] == {"without next state": 40, "with missing values": 0}


@pytest.mark.parametrize("method", ["exact", "gmm", "adaptive-lasso"])
def test_a_model_that_keeps_episodes_stays_clustered_when_updated(halves, method, tmp_path):
    whole, old, new = halves
    options = ("--psi", "poly2", "--method", method, "--keep-episodes")
    fit(whole, tmp_path / "wanted", *options)
    fit(old, tmp_path / "model", *options)
    result = run("update", tmp_path / "model", new, "--json", "-")
    assert result.code == 0, result
    facts, wanted = json.loads(result.out), load_model(tmp_path / "wanted")
    assert (facts["se_kind"], facts["clusters"]) == ("clustered", {"episode": 40})
    np.testing.assert_allclose(facts["W"], wanted.W, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(load_model(tmp_path / "model").W_cov, wanted.W_cov, rtol=1e-8)
    assert len(load_fit(tmp_path / "model").shard.moments.episodes) == 40


def test_gmm_without_episodes_is_not_updated_into_another_estimator(halves, tmp_path):
    _, old, new = halves
    fit(old, tmp_path / "model", "--psi", "poly2", "--method", "gmm")
    assert_refused(run("update", tmp_path / "model", new), "gmm", "rows")


def test_an_updated_model_keeps_rows_and_first_states_of_both_logs(halves, tmp_path):
    whole, old, new = halves
    fit(whole, tmp_path / "wanted")
    fit(old, tmp_path / "model")
    assert run("update", tmp_path / "model", new).code == 0
    wanted, updated = (load_model(tmp_path / name) for name in ("wanted", "model"))
    for name in ("starts", "states", "acted", "instruments", "followed"):
        np.testing.assert_array_equal(getattr(updated, name), getattr(wanted, name))


def test_the_old_model_stays_when_another_name_is_given(halves, tmp_path):
    _, old, new = halves
    fit(old, tmp_path / "model")
    before = (tmp_path / "model" / "model.json").read_bytes()
    assert run("update", tmp_path / "model", new, "--out", tmp_path / "second").code == 0
    assert (tmp_path / "model" / "model.json").read_bytes() == before
    assert load_fit(tmp_path / "second").shard.moments.n == 760
    assert_refused(run("update", tmp_path / "model", new, "--out", tmp_path / "second"), "exists")
    assert run("update", tmp_path / "second", old, "--again").code == 0  # and again, in place
    shard = load_fit(tmp_path / "second").shard
    assert shard.moments.n == 760 + 285
    assert len(shard.files) == 2


def test_a_file_is_refused_the_second_time(halves, tmp_path):
    _, old, new = halves
    fit(old, tmp_path / "model")
    before = (tmp_path / "model" / "model.json").read_bytes()
    copy = tmp_path / "copy.parquet"
    copy.write_bytes(old.read_bytes())
    for source in (old, copy):
        assert_refused(run("update", tmp_path / "model", source), source.name, "--again")
    assert (tmp_path / "model" / "model.json").read_bytes() == before
    assert run("update", tmp_path / "model", new).code == 0
    assert_refused(run("update", tmp_path / "model", new), "new.parquet", "already")


def test_columns_and_features_must_match(halves, tmp_path):
    _, old, _ = halves
    fit(old, tmp_path / "model", "--reward", "reward")
    rows = make_rows(seed=9)
    other = write_table({n: v for n, v in rows.items() if n != "x1"}, tmp_path / "other.parquet")
    assert_refused(run("update", tmp_path / "model", other), "'x1'")
    log = read_logs(write_table(rows, tmp_path / "rows.parquet"), **ROLES)
    with pytest.raises(InputError, match="other outputs: 2 instead of 3"):
        update(tmp_path / "model", log)


def test_what_cannot_be_updated_is_refused(halves, tmp_path):
    _, old, new = halves
    fit(old, tmp_path / "bare", "--without-moments")
    assert_refused(run("update", tmp_path / "bare", new), "bare", "saved without its moments")
    assert_refused(run("update", tmp_path / "nothing", new), "nothing")
    (tmp_path / "folder").mkdir()
    assert_refused(run("update", tmp_path / "folder", new), "not a saved model")


LOST = pytest.mark.filterwarnings("ignore:the model's standard errors were clustered")


@LOST
def test_a_model_of_descent_becomes_the_closed_form(halves, tmp_path):
    whole, old, new = halves
    logs = [read_logs(source, **ROLES) for source in (whole, old)]
    estimate(logs[1], method=SGDA(batch=8)).save(tmp_path / "model")
    updated = update(tmp_path / "model", new)
    assert updated.method == "exact"
    np.testing.assert_allclose(updated.W, estimate(logs[0]).W, rtol=1e-10, atol=1e-12)
    light = estimate(logs[1], method=SGDA(batch=8, memory="linear"))
    light.save(tmp_path / "light")
    with pytest.raises(InputError, match="with linear memory the moments are not computed"):
        update(tmp_path / "light", new)


@LOST
def test_features_that_were_fitted_stay_as_they_are(halves, tmp_path):
    """Knots come from the first log; the second does not move them."""
    _, old, new = halves
    logs = [read_logs(source, **ROLES) for source in (old, new)]
    first = estimate(logs[0], "spline:4")
    first.save(tmp_path / "model")
    updated = update(tmp_path / "model", new)
    assert updated.estimate.design == first.estimate.design
    shard = first.shard + Shard.of(logs[1], first.estimate.design)
    np.testing.assert_array_equal(updated.W, Exact().solve(shard.moments).W)


@LOST
def test_tables_in_memory_have_no_hash(tmp_path):
    rows = make_rows(40, 20)
    estimate(read_logs(rows)).save(tmp_path / "model")
    updated = update(tmp_path / "model", rows, again=True)
    assert updated.moments.n == 2 * 760
    assert updated.shard.files == ()


@pytest.mark.parametrize("shuffled", [False, True])
def test_an_export_that_holds_the_old_rows_too_is_refused(halves, shuffled, tmp_path):
    whole, old, new = halves
    fit(old, tmp_path / "model")
    before = (tmp_path / "model" / "model.npz").read_bytes()
    if shuffled:
        table = pq.read_table(whole)
        table = table.take(np.random.default_rng(0).permutation(table.num_rows))
        pq.write_table(table, whole)
    result = run("update", tmp_path / "model", whole)
    assert_refused(result, "285 of the 285 rows that it keeps appear again", "--again")
    assert (tmp_path / "model" / "model.npz").read_bytes() == before
    assert run("update", tmp_path / "model", new).code == 0
    assert_refused(run("update", tmp_path / "model", whole), "repeats rows")
    assert run("update", tmp_path / "model", whole, "--again").code == 0


def test_rows_of_few_values_may_come_again():
    rng = np.random.default_rng(0)
    logs = []
    for _ in range(2):
        rows = {name: rng.integers(0, 3, 4000) * 1.0 for name in ("x0", "a0", "z0")}
        rows["a0"] = np.round(rows["z0"] + rng.integers(0, 2, 4000))
        rows |= {"episode": np.arange(4000) // 4, "step": np.arange(4000) % 4}
        logs.append(read_logs(rows))
    updated = update(estimate(logs[0], se="unadjusted"), logs[1])
    assert updated.moments.n == 6000


def test_missing_rows_are_dropped_when_asked(halves, tmp_path):
    _, old, _ = halves
    fit(old, tmp_path / "model")
    rows = make_rows(seed=2)
    rows["x0"][7] = np.nan
    bad = write_table(rows, tmp_path / "bad.parquet")
    assert_refused(run("update", tmp_path / "model", bad), "missing")
    assert run("update", tmp_path / "model", bad, "--drop-missing").code == 0
    assert load_fit(tmp_path / "model").shard.counts.missing == 1


def test_a_damaged_model_is_refused(halves, tmp_path):
    _, old, new = halves
    fit(old, tmp_path / "model")
    described = tmp_path / "model" / "model.json"
    described.write_text(described.read_text().replace('"n": 285', '"n": 286'))
    assert_refused(run("update", tmp_path / "model", new), "altered or damaged")


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("update", {"--out", "--again", "--drop-missing", "--allow-unidentified"}),
        ("moments", {"--out", "--state", "--instrument", "--features", "--like", "--by-episode"}),
        ("merge", {"--out"}),
        ("fit", {"--moments", "--checkpoint", "--checkpoint-every", "--memory", "--order"}),
    ],
)
def test_help_names_the_options(command, options):
    said = run(command, "--help")
    assert said.code == 0
    assert {option for option in options | {"--json", "--force"} if option not in said.out} == set()
    assert f"\n  {command} " in run("--help").out


@LOST
def test_a_file_that_is_gone_has_no_hash(halves, tmp_path):
    _, old, new = halves
    fit_ = estimate(read_logs(old, **ROLES))
    old.unlink()
    fit_.save(tmp_path / "model")
    assert load_fit(tmp_path / "model").shard.files == ()
    assert update(tmp_path / "model", new).moments.n == 760


def test_an_update_says_that_it_loses_the_clusters(halves, tmp_path):
    _, old, new = halves
    fit(old, tmp_path / "model")
    result = run("update", tmp_path / "model", new)
    assert result.code == 0
    assert (
        "standard errors were clustered by episode, but it keeps no moments by cluster"
        in result.err
    )
    assert_refused(
        run("update", tmp_path / "model", new, "--again", "--cluster", "ward"),
        "keeps no moments by ward",
    )


def test_clusters_of_a_column_go_on_when_updated(halves, tmp_path):
    """Rows of one ward in both logs are one cluster: the errors are those of all rows."""
    whole, old, new = (pq.read_table(path) for path in halves)
    paths = []
    for name, table in (("whole", whole), ("old", old), ("new", new)):
        ward = pa.array([f"ward {i % 15}" for i in table["episode"].to_pylist()])
        paths.append(tmp_path / f"{name}.parquet")
        pq.write_table(table.append_column("ward", ward), paths[-1])
    options = ("--cluster", "ward", "--keep-episodes")
    fit(paths[0], tmp_path / "wanted", *options)
    fit(paths[1], tmp_path / "model", *options)
    result = run("update", tmp_path / "model", paths[2], "--json", "-")
    facts, wanted = json.loads(result.out), load_model(tmp_path / "wanted")
    assert facts["clusters"] == {"ward": 15}
    np.testing.assert_allclose(load_model(tmp_path / "model").W_cov, wanted.W_cov, rtol=1e-8)


# Several updates at once

MAIN = "import sys; from ivvi.cli.main import main; main(sys.argv[1:])"


@pytest.mark.parametrize("locks", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_updates_at_once_lose_no_row(locks, tmp_path):
    """Each of three runs waits for those before it; without locks it is told to come again."""
    logs = [write_table(make_rows(seed=i), tmp_path / f"{i}.parquet") for i in range(4)]
    fit(logs[0], tmp_path / "model")
    start = "" if locks else "import ivvi._io.replacing as r; r.fcntl = None\n"
    commands = [
        [sys.executable, "-c", start + MAIN, "update", tmp_path / "model", log] for log in logs[1:]
    ]
    runs = [subprocess.Popen(c, stderr=subprocess.PIPE, text=True) for c in commands]
    told = [process.communicate(timeout=120)[1] for process in runs]
    added = [process.returncode == 0 for process in runs]
    for done, text in zip(added, told, strict=True):
        assert done or (not locks and "run this command again" in text), text
    assert any(added)
    assert all(added) or not locks
    updated = load_fit(tmp_path / "model")
    assert updated.moments.n == 54 * (1 + sum(added))
    assert len(updated.shard.files) == 1 + sum(added)


def test_an_update_of_a_model_that_is_held_is_refused_after_the_wait(halves, tmp_path):
    _, old, new = halves
    fit(old, tmp_path / "model")
    with locked(tmp_path / "model"):
        result = run_process("update", tmp_path / "model", new, "--wait", 0.1)
    assert result.code == 2
    waiting, refused = result.err.splitlines()
    assert waiting.startswith("ivvi: note: waiting for another run")
    assert "is being replaced by another run; waited 0.1 seconds" in refused
    assert load_fit(tmp_path / "model").moments.n == 285


@pytest.mark.parametrize(
    ("moment", "rows"), [("exchange = die", 285), ("shutil = SimpleNamespace(rmtree=die)", 760)]
)
def test_an_update_killed_at_the_exchange_leaves_a_whole_model(moment, rows, halves, tmp_path):
    _, old, new = halves
    fit(old, tmp_path / "model")
    code = f"""
import os, signal
from types import SimpleNamespace
import ivvi._io.replacing
def die(*_, **__): os.kill(os.getpid(), signal.SIGKILL)
ivvi._io.replacing.{moment}"""
    result = run_process("update", tmp_path / "model", new, code=code)
    assert result.code == -signal.SIGKILL, result
    assert load_fit(tmp_path / "model").moments.n == rows
    assert run("update", tmp_path / "model", new, "--again").code == 0
    assert not list(tmp_path.glob(".*"))


# What is left of the rows


def shifted_rows(episodes, shift, seed):
    rows = make_rows(episodes, 10, seed=seed)
    return rows | {"x0": rows["x0"] + shift}


@pytest.mark.filterwarnings("ignore:the mean of x0")  # which tells the rows apart
def test_small_updates_make_up_their_share_of_the_sample_and_no_more(tmp_path):
    """Of 20,000 rows 1,500 are new: the share has the standard error of a sample of that size."""
    model = estimate(read_logs(shifted_rows(2000, 0.0, 0), **ROLES), se="unadjusted")
    for i in range(3):
        model = update(model, shifted_rows(50, 1000.0, i + 1))
    share, m = 150 / 2150, len(model.sample.x)
    assert m > 1000
    for rows, n in ((model.sample.x, m), (model.sample.starts, len(model.sample.starts))):
        found = (rows[:, 0] > 500).mean()
        assert abs(found - share) < 4 * np.sqrt(share * (1 - share) / n)
    assert model.sample.x.shape == model.sample.y.shape
    np.testing.assert_array_equal(np.unique(model.sample.x, axis=0).shape, model.sample.x.shape)


def test_small_logs_are_kept_whole_by_updates(halves):
    whole, old, new = halves
    updated = update(estimate(read_logs(old, **ROLES), se="unadjusted"), new)
    wanted = read_logs(whole, **ROLES).sample()
    for name in ("x", "a", "z", "y", "starts"):
        np.testing.assert_array_equal(getattr(updated.sample, name), getattr(wanted, name))


def test_a_model_of_sums_keeps_no_rows_of_what_is_added(halves, tmp_path):
    _, old, new = halves
    assert run("moments", old, *OPTIONS, "--out", tmp_path / "sums").code == 0
    made = run("fit", "--moments", tmp_path / "sums", "--out", tmp_path / "model")
    assert made.code == 0, made
    result = run("update", tmp_path / "model", new)
    assert result.code == 0, result
    assert "a model fitted from sums keeps no rows" in result.out
    updated = load_fit(tmp_path / "model")
    assert updated.sample is None
    assert updated.moments.n == 760


def patients(first, last, count=40):
    rows = make_rows(count, 8, seed=3)
    chosen = (rows["step"] >= first) & (rows["step"] <= last)
    names = np.array([f"P{number}" for number in rows["episode"]])
    return {name: values[chosen] for name, values in (rows | {"episode": names}).items()}


def test_rows_that_go_on_are_asked_for_with_the_last_old_row(tmp_path):
    model = estimate(read_logs(patients(0, 5), **ROLES), episodes=True)
    remedy = r"with the last old row of each episode before them \(such as --where .step >= LAST"
    with pytest.raises(DataError, match=f"no episode has two consecutive rows.*{remedy}"):
        update(model, patients(6, 6))
    with pytest.warns(IvviWarning, match=f"40 episodes continue .* is lost: .*{remedy}"):
        update(model, patients(6, 7))
    with pytest.raises(DataError, match=f"appear again.*{remedy}"):
        update(model, patients(0, 7))
    everything = write_table(patients(0, 7), tmp_path / "all.parquet")
    with warnings.catch_warnings():
        warnings.simplefilter("error", IvviWarning)
        updated = update(model, everything, where="step >= 5")
    whole = estimate(read_logs(patients(0, 7), **ROLES))
    np.testing.assert_allclose(updated.W, whole.W, rtol=1e-8, atol=1e-10)


def test_a_model_without_ids_says_when_the_step_between_counts(tmp_path):
    old = write_table(patients(0, 4), tmp_path / "old.parquet")
    fit(old, tmp_path / "model")
    result = run(
        "update", tmp_path / "model", write_table(patients(5, 7), tmp_path / "new.parquet")
    )
    assert "counts only if the new log begins with its last old row" in result.out


def two_places(seed, *, instrument=0.0, outcome=0.0, effect=0.5, unit=1.0, n=800):
    """Return two tables of single decisions; the second has other levels, effects or units."""
    rng, parts = np.random.default_rng(seed), []
    for other in (0.0, 1.0):
        z, u = rng.normal(size=(2, n))
        z = z + other * instrument
        a = z + u
        y = (effect if other else 0.5) * a + u + other * outcome
        parts.append({"z": z, "a": a * (unit if other else 1.0), "y": y})
    return parts


PLACES = {
    "other levels": ({"instrument": 1.5, "outcome": 3.0}, "and 1.2.* in both together.*--context"),
    "another effect": (
        {"effect": -0.5},
        "-0.5.* in the table and .*the two do not describe the same world",
    ),
    "other units": ({"unit": 1000.0}, "mean of a is .*as if in other units: convert"),
}


@pytest.mark.parametrize("world", PLACES)
@pytest.mark.parametrize(
    "added", [update, lambda model, rows: model.shard + shard_like(model, rows)]
)
def test_parts_that_do_not_belong_together_are_told(world, added):
    settings, expected = PLACES[world]
    one, two = two_places(1, **settings)
    data = {"action": "a", "instrument": "z", "reward": "y"}
    model = estimate(read_logs(one, **data), se="unadjusted")
    with pytest.warns(IvviWarning, match=expected):
        added(model, two)


def shard_like(model, rows):
    log = read_logs(rows, action="a", instrument="z", reward="y")
    return Shard.of(log, model.estimate.design)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("outcome", [0.0, 2.0])
def test_parts_of_one_world_are_added_in_silence(seed, outcome):
    """Also where outcomes rise with the time and the instrument does not."""
    one, two = two_places(seed, outcome=outcome)
    model = estimate(read_logs(one, action="a", instrument="z", reward="y"), se="unadjusted")
    with warnings.catch_warnings():
        warnings.simplefilter("error", IvviWarning)
        update(model, two)


def test_rows_of_the_model_that_were_rounded_are_found_again(halves, tmp_path):
    _, old, new = halves
    fit(old, tmp_path / "model")
    for source, code in ((old, 2), (new, 0)):
        rows = {
            name: np.round(values, 6) if values.dtype.kind == "f" else values
            for name, values in pq.read_table(source).to_pandas().items()
        }
        written = write_table({n: np.asarray(v) for n, v in rows.items()}, tmp_path / "again.csv")
        result = run("update", tmp_path / "model", written)
        assert result.code == code, result
        assert ("repeats rows" in result.err) == (code == 2)


@LOST
def test_steps_of_named_episodes_that_the_model_has_are_refused():
    rows, other = make_rows(40, 20, seed=1), make_rows(40, 20, seed=2)
    names = [f"p{i}" for i in rows["episode"]]
    fitted = estimate(read_logs(rows | {"episode": names}), episodes=True)
    with pytest.raises(DataError, match="40 values of episode with a step that is already in"):
        update(fitted, other | {"episode": names})
    later = {"episode": names, "step": other["step"] + 19}
    assert update(fitted, other | later).moments.n == 2 * 760
    assert update(fitted, other | {"episode": names}, again=True).moments.n == 2 * 760


@pytest.mark.parametrize("convert", [lambda x: 10 * x, lambda x: x / 10, lambda x: 1.8 * x + 32])
def test_a_column_in_another_usual_unit_is_named_without_clusters(convert):
    rows, other = (make_rows(40, 20, d=1, seed=seed) for seed in (1, 2))
    rows["x0"], other["x0"] = rows["x0"] + 20, convert(other["x0"] + 20)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        update(estimate(read_logs(rows)), other)
    assert any("the mean of x0 is" in str(one.message) for one in said)
