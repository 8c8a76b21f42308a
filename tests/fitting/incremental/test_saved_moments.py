"""Sums instead of rows: moments as files, merged and fitted."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ivvi
from helpers import OPTIONS, ROLES, assert_refused, changed, make_rows, run, write_table
from ivvi import InputError, Shard, estimate, load_model, read_logs
from ivvi.errors import FileError
from ivvi.estimators import Exact
from ivvi.features.design import build_design
from ivvi.moments import Moments


@pytest.fixture
def shards(tmp_path):
    """Write three logs and their moments."""
    paths = []
    for i in range(3):
        log = write_table(make_rows(15 + i, 20, seed=i), tmp_path / f"log{i}.parquet")
        result = run("moments", log, *OPTIONS, "--out", tmp_path / f"m{i}")
        assert (result.code, result.err) == (0, ""), result
        assert f"sums of {(15 + i) * 19} transitions" in result.out
        paths.append(tmp_path / f"m{i}")
    return paths


def joined_rows(seeds):
    parts = [make_rows(15 + i, 20, seed=i) for i in seeds]
    for i, part in enumerate(parts):
        part["episode"] = part["episode"] + 100 * i
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


@pytest.mark.parametrize("method", ["exact", "least-squares"])
def test_the_fit_of_merged_sums_is_that_of_all_rows(shards, method, tmp_path):
    merged = tmp_path / "merged"
    result = run("merge", *shards, "--out", merged, "--json", "-")
    assert result.code == 0, result
    facts = json.loads(result.out)
    assert (facts["n"], facts["episodes"]) == (48 * 19, 48)
    assert len(set(facts["files"])) == 3
    options = ("--moments", merged, "--method", method, "--json", "-")
    result = run("fit", *options, "--out", tmp_path / "model")
    assert result.code == 0, result
    printed = json.loads(result.out)
    rows = read_logs(joined_rows(range(3)), **ROLES)
    whole = estimate(rows, method=method, se="unadjusted")
    np.testing.assert_allclose(printed["W"], whole.W, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(printed["se"], whole.se, rtol=1e-10)
    assert "unadjusted" in printed["se_note"]  # sums hold no rows to cluster
    assert printed["n"] == whole.moments.n
    assert printed["dropped"] == whole.dropped
    np.testing.assert_array_equal(load_model(tmp_path / "model").W, printed["W"])
    assert run("update", tmp_path / "model", tmp_path / "log0.parquet").code == 2  # seen


@pytest.mark.parametrize("method", ["exact", "gmm", "lasso"])
@pytest.mark.parametrize("se", ["auto", "clustered"])
def test_sums_by_episode_give_the_clustered_errors_of_the_rows(method, se, tmp_path):
    paths = []
    for i in range(2):
        log = write_table(make_rows(15 + i, 20, seed=i), tmp_path / f"log{i}.parquet")
        paths.append(tmp_path / f"m{i}")
        options = ("--psi", "poly2", "--by-episode", "--out", paths[-1])
        assert run("moments", log, *OPTIONS, *options).code == 0
    assert run("merge", *paths, "--out", tmp_path / "both").code == 0
    options = ("--moments", tmp_path / "both", "--method", method, "--se", se, "--json", "-")
    result = run("fit", *options, "--out", tmp_path / "model")
    assert result.code == 0, result
    printed = json.loads(result.out)
    whole = estimate(read_logs(joined_rows(range(2)), **ROLES), psi="poly2", method=method)
    np.testing.assert_allclose(printed["W"], whole.W, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(printed["se"], whole.se, rtol=1e-9)
    wanted = whole.to_json()
    assert (printed["se_kind"], printed["clusters"]) == (wanted["se_kind"], wanted["clusters"])
    hansen = (facts["diagnostics"]["hansen_j"]["next_x0"]["value"] for facts in (printed, wanted))
    assert next(hansen) == pytest.approx(next(hansen), rel=1e-9)


def test_gmm_of_sums_that_hold_no_episodes_is_refused(shards, tmp_path):
    fit = ("fit", "--moments", shards[0], "--method", "gmm", "--out", tmp_path / "model")
    assert_refused(run(*fit), "gmm", "rows")
    assert_refused(run(*fit, "--se", "clustered"), "clustered", "not kept by cluster")
    assert_refused(run(*fit, "--se", "hac"), "hac", "rows")
    assert run(*fit, "--se", "unadjusted").code == 0  # which is the closed form


def test_the_same_shard_twice_is_refused(shards, tmp_path):
    out = ("--out", tmp_path / "merged")
    assert_refused(run("merge", shards[0], shards[0], *out), "the same file", "twice")
    assert run("merge", shards[0], shards[1], *out).code == 0
    again = ("--out", tmp_path / "again")
    assert_refused(run("merge", tmp_path / "merged", shards[1], *again), "log1.parquet")
    assert not (tmp_path / "again").exists()


def test_sums_of_other_columns_or_features_are_refused(shards, tmp_path):
    source = tmp_path / "log0.parquet"
    others = {
        "reward": (("--reward", "reward"), "other outputs"),
        "poly": (("--features", "poly2"), "other features phi"),
        "psi": (("--psi", "poly2"), "other features psi"),
    }
    for name, (options, words) in others.items():
        assert run("moments", source, *OPTIONS, *options, "--out", tmp_path / name).code == 0
        merged = run("merge", shards[1], tmp_path / name, "--out", tmp_path / "merged")
        assert_refused(merged, words)


@pytest.mark.parametrize("features", ["spline:4", "fourier:10"])
def test_features_with_knots_are_taken_from_one_place(shards, features, tmp_path):
    logs = [tmp_path / f"log{i}.parquet" for i in range(2)]
    options = (*OPTIONS, "--features", features)
    for i, log in enumerate(logs):
        assert run("moments", log, *options, "--out", tmp_path / f"own{i}").code == 0
    merged = ("--out", tmp_path / "merged")
    assert_refused(run("merge", tmp_path / "own0", tmp_path / "own1", *merged), "--like")
    like = ("--like", tmp_path / "own0", "--out", tmp_path / "like")
    assert run("moments", logs[1], *like).code == 0
    assert run("merge", tmp_path / "own0", tmp_path / "like", *merged).code == 0
    design = Shard.load(tmp_path / "own0").moments.design
    both = sum(Shard.of(read_logs(log, **ROLES), design) for log in logs)
    loaded = Shard.load(tmp_path / "merged")
    np.testing.assert_allclose(loaded.moments.scatter, both.moments.scatter, rtol=1e-12, atol=1e-9)


def test_few_rows_are_refused_and_not_many_are_warned_about(tmp_path):
    few = write_table(make_rows(1, 8), tmp_path / "few.parquet")  # 7 transitions, 9 columns
    result = run("moments", few, *OPTIONS, "--out", tmp_path / "m")
    assert_refused(result, "7 rows", "9 columns", "could be recovered")
    assert not (tmp_path / "m").exists()
    some = write_table(make_rows(2, 20), tmp_path / "some.parquet")
    result = run("moments", some, *OPTIONS, "--out", tmp_path / "m")
    assert result.code == 0
    assert "few" in result.err
    enough = write_table(make_rows(6, 20), tmp_path / "enough.parquet")
    by_episode = ("--by-episode", "--out", tmp_path / "e")
    assert "episode" in run("moments", enough, *OPTIONS, *by_episode).err


def test_why_few_rows_are_refused():
    """The mean and scatter of one row are the row; of two, both of them."""
    log = read_logs(make_rows(1, 3), **ROLES)  # two transitions
    moments = Shard.of(log, build_design(log, "linear")).moments
    V = moments.design.rows(log.to_batch())
    values, vectors = np.linalg.eigh(moments.scatter[1:, 1:])
    half = vectors[:, -1] * np.sqrt(values[-1] / 2)
    found = np.sort(moments.mean[1:] + np.outer([1, -1], half), axis=0)
    np.testing.assert_allclose(found, np.sort(V, axis=0), atol=1e-9)


def test_more_rows_than_columns_are_not_determined_by_their_sums(confounded, moments_of):
    """Other rows, none of them an original, have the same sums to the last digits."""
    x, a, z, y = confounded(0, n=60)
    V = np.hstack([x, a, z, y])
    centred = V - V.mean(axis=0)
    rng = np.random.default_rng(1)
    ones = np.ones((60, 1)) / np.sqrt(60)
    basis = np.linalg.qr(np.hstack([ones, rng.normal(size=(60, 59))]))[0][:, 1:]
    turn = np.linalg.qr(rng.normal(size=(59, 59)))[0]
    other = V.mean(axis=0) + basis @ turn @ basis.T @ centred
    split = np.split(other, np.cumsum([x.shape[1], a.shape[1], z.shape[1]]), axis=1)
    one, two = moments_of(x, a, z, y), moments_of(*split)
    np.testing.assert_allclose(one.mean, two.mean, atol=1e-12)
    np.testing.assert_allclose(one.scatter, two.scatter, atol=1e-9)
    assert np.abs(V[:, None] - other[None]).max(axis=2).min() > 1e-3


def test_episodes_of_different_shards_are_renumbered(tmp_path):
    for i in range(2):
        log = write_table(make_rows(15, 20, seed=i), tmp_path / f"log{i}.parquet")
        assert run("moments", log, *OPTIONS, "--by-episode", "--out", tmp_path / f"m{i}").code == 0
    assert run("merge", tmp_path / "m0", tmp_path / "m1", "--out", tmp_path / "m").code == 0
    moments = Shard.load(tmp_path / "m").moments
    assert sorted(moments.episodes.number.tolist()) == list(range(30))
    np.testing.assert_allclose(moments.episodes.weight, 19)
    weights = moments.episodes.weight[:, None]
    np.testing.assert_allclose((weights * moments.episodes.mean).sum(0) / 570, moments.mean)


@given(cuts=st.lists(st.integers(1, 39), unique=True, max_size=4).map(sorted))
def test_any_split_adds_up(cuts):
    rows = make_rows(40, 6, seed=8)
    log = read_logs(rows, **ROLES)
    design = build_design(log, "poly2")
    edges = [0, *cuts, 40]
    parts = [
        {name: values[6 * i : 6 * j] for name, values in rows.items()}
        for i, j in itertools.pairwise(edges)
    ]
    total = sum(Shard.of(read_logs(part, **ROLES), design) for part in parts)
    whole = Shard.of(log, design)
    assert total.counts == whole.counts
    np.testing.assert_allclose(
        Exact().solve(total.moments).W, Exact().solve(whole.moments).W, rtol=1e-9, atol=1e-11
    )


def test_a_saved_shard_is_itself_again(tmp_path):
    log = read_logs(write_table(make_rows(15, 20), tmp_path / "log.csv"), **ROLES)
    shard = Shard.of(log, build_design(log, "spline:4"), episodes=True)
    shard.save(tmp_path / "m")
    loaded = Shard.load(tmp_path / "m")
    for name in ("counts", "roles", "files", "label"):
        assert getattr(loaded, name) == getattr(shard, name)
    assert loaded.moments.design == shard.moments.design
    for name in ("mean", "scatter"):
        np.testing.assert_array_equal(getattr(loaded.moments, name), getattr(shard.moments, name))
    np.testing.assert_array_equal(loaded.moments.episodes.scatter, shard.moments.episodes.scatter)


@pytest.mark.parametrize("verb", ["fit", "diagnose", "check", "interval", "moments", "update"])
def test_no_verb_computes_with_numbers_that_overflow(verb, shards, tmp_path):
    rows = changed(make_rows(15, 20), x1={17: 1e155})
    log = write_table(rows, tmp_path / "large.parquet")
    options = list(OPTIONS)
    if verb == "update":
        fitted = ("fit", tmp_path / "log0.parquet", *OPTIONS, "--out", tmp_path / "model")
        assert run(*fitted).code == 0
        log, options = tmp_path / "model", [log]
    if verb in ("fit", "moments"):
        options += ["--out", tmp_path / "out"]
    if verb == "interval":
        options += ["--output", "x0", "--feature", "a0"]
    before = sorted(tmp_path.rglob("*"))
    assert_refused(run(verb, log, *options), "1e+155 in column 'x1', row 17 (from 0)")
    assert sorted(tmp_path.rglob("*")) == before


POISONS = {
    "NaN": ("scatter", np.nan, "sums of 'x1' are not finite"),
    "infinite": ("mean", np.inf, "sums of 'x1' are not finite"),
    "large": ("scatter", 1e305, "sums of 'x1' are not finite numbers, or too large"),
}


@pytest.mark.parametrize("name", POISONS)
def test_merge_names_the_shard_whose_sums_are_invalid(name, shards, tmp_path):
    array, value, fact = POISONS[name]
    poisoned = Shard.load(shards[1])
    getattr(poisoned.moments, array)[2, ...] = value  # as an older or a hostile writer would
    poisoned.save(shards[1], force=True)
    result = run("merge", *shards, "--out", tmp_path / "merged")
    assert_refused(result, f"{shards[1]} is invalid", fact)
    assert not (tmp_path / "merged").exists()


def test_sums_of_episodes_and_weights_are_looked_at_too(tmp_path):
    log = read_logs(make_rows(15, 20), **ROLES)
    shard = Shard.of(log, build_design(log, "linear"), episodes=True)
    facts, arrays = shard.saved()
    with pytest.raises(FileError, match="weights are not finite"):
        Shard.restore({**facts, "moments": {"n": 285, "weight": -1.0}}, arrays)
    arrays["episodes.mean"][3, 1] = np.nan
    with pytest.raises(FileError, match="sums of 'x0' are not finite"):
        Shard.restore(facts, arrays)


def test_what_is_no_shard_is_refused(shards, tmp_path):
    with pytest.raises(FileError, match="not a saved moments"):
        Shard.load(tmp_path)
    with pytest.raises(TypeError):
        _ = 1 + Shard.load(shards[0])
    with pytest.raises(InputError, match="rows of a log"):
        estimate(Shard.load(shards[0]), method="sgda")
    with pytest.raises(FileError, match=r"expected \d+ columns"):
        Moments.restore(
            Shard.load(shards[0]).moments.design,
            {"n": 1, "weight": 1.0},
            {"mean": np.zeros(3), "scatter": np.zeros((3, 3))},
        )
    out = ("--out", tmp_path / "model")
    log = tmp_path / "log0.parquet"
    assert_refused(run("fit", *out), "neither a log nor --moments is given")
    both = run("fit", log, "--moments", shards[0], *out)
    assert_refused(both, "both a log and --moments are given")
    state = ("--checkpoint", tmp_path / "state")
    assert_refused(
        run("fit", "--moments", shards[0], *out, *state), "--checkpoint is only for logs"
    )


def test_sums_of_a_weighted_and_an_unweighted_site_do_not_merge(tmp_path):
    rows = make_rows(15, 20, seed=1)
    rows["w"] = np.linspace(1, 2, 300)
    log = write_table(rows, tmp_path / "log.parquet")
    other = write_table(make_rows(15, 20, seed=2), tmp_path / "other.parquet")
    assert run("moments", log, *OPTIONS, "--weight", "w", "--out", tmp_path / "north").code == 0
    assert run("moments", other, *OPTIONS, "--out", tmp_path / "south").code == 0
    for sites in (("north", "south"), ("south", "north")):
        result = run("merge", *(tmp_path / site for site in sites), "--out", tmp_path / "both")
        assert_refused(result, "weighted by 'w'", "log.parquet", "other.parquet")
    assert not (tmp_path / "both").exists()


@pytest.mark.parametrize("first", [0, 1])
def test_merging_says_that_it_loses_the_sums_by_episode(first, tmp_path):
    for i, options in enumerate((("--by-episode",), ())):
        log = write_table(make_rows(15, 20, seed=i), tmp_path / f"{i}.parquet")
        assert run("moments", log, *OPTIONS, *options, "--out", tmp_path / f"m{i}").code == 0
    result = run(
        "merge", tmp_path / f"m{first}", tmp_path / f"m{1 - first}", "--out", tmp_path / "m"
    )
    assert result.code == 0
    assert result.err.count("\n") == 1
    assert "0.parquet by episode" in result.err
    assert "1.parquet by nothing" in result.err
    assert Shard.load(tmp_path / "m").moments.episodes is None


@pytest.mark.parametrize(
    "options", [("--features", "linear"), ("--state", "x*"), ("--psi", "poly2")]
)
def test_options_that_like_would_ignore_are_refused(options, shards, tmp_path):
    like = ("--like", shards[0], "--out", tmp_path / "like")
    assert_refused(run("moments", tmp_path / "log1.parquet", *options, *like), options[0], "--like")
    moments = ("--moments", shards[0], "--out", tmp_path / "model")
    assert_refused(run("fit", *options, *moments), options[0], "is only for logs")


def test_merging_says_that_the_sites_have_chosen_their_rows_differently(tmp_path):
    for i, options in enumerate((("--where", "x0 > 0"), ())):
        log = write_table(make_rows(15, 20, seed=i), tmp_path / f"{i}.parquet")
        assert run("moments", log, *OPTIONS, *options, "--out", tmp_path / f"m{i}").code == 0
    result = run("merge", tmp_path / "m0", tmp_path / "m1", "--out", tmp_path / "m")
    assert result.code == 0
    assert "different --where" in result.err
    assert "0.parquet where x0 > 0 has 'x0 > 0'" in result.err


def ward_rows(levels, first, seed=0):
    rows = make_rows(15, 8, seed=seed)
    ward = np.array(list(levels))[np.arange(len(rows["episode"])) // 8 % len(levels)]
    return rows | {"ward": ward, "episode": rows["episode"] + first}


@pytest.mark.parametrize(
    ("levels", "again"),
    [
        ("BC", "both again with ivvi moments --like the sums of a table that has all of A, B, C"),
        ("ABC", "log0.parquet again with ivvi moments --like the sums of /"),
        ("A", "take theirs: ivvi moments --like"),
    ],
)
def test_sums_whose_categories_have_other_levels_are_not_added(levels, again, tmp_path):
    context = (*OPTIONS, "--context", "ward")
    logs = [
        write_table(ward_rows(each, 100 * i), tmp_path / f"log{i}.parquet")
        for i, each in enumerate(("AC", levels))
    ]
    results = [
        run("moments", log, *context, "--out", tmp_path / f"m{i}") for i, log in enumerate(logs)
    ]
    merge = ("merge", tmp_path / "m0", tmp_path / "m1", "--out", tmp_path / "all")
    results += [run(*merge)] if len(levels) > 1 else []
    assert results[-1].code == 2
    assert again in results[-1].err
    whole = write_table(ward_rows("ABC", 0, 5), tmp_path / "whole.parquet")
    assert run("moments", whole, *context, "--out", tmp_path / "whole").code == 0
    for i, log in enumerate(logs):
        like = ("--like", tmp_path / "whole", "--force")
        assert run("moments", log, *like, "--out", tmp_path / f"m{i}").code == 0
    assert run(*merge).code == 0
    data = {"context": "ward", **ROLES}
    model = estimate(read_logs(ward_rows("AC", 0), **data))
    with pytest.raises(InputError, match=r"reference B.*; give the file or table itself"):
        ivvi.update(model, read_logs(ward_rows("BC", 100), **data))
