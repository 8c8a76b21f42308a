"""The moments of a log on a Dask cluster of real processes."""

import json
import os
import signal
import sys
import time

import numpy as np
import pyarrow as pa
import pytest

import ivvi
from helpers import OPTIONS, assert_refused, changed, make_rows, run, run_process, take, write_table
from ivvi import InputError, linear
from ivvi.errors import DataError
from ivvi.features.design import Design
from ivvi.logs.dask import LOCAL, connected
from ivvi.moments import compute_moments
from ivvi.moments.dask import compute_moments_on

pytestmark = pytest.mark.thorough

distributed = pytest.importorskip("distributed")


@pytest.fixture(scope="module")
def client():
    """Return a client of two worker processes on this machine."""
    with connected(2) as client:
        yield client


@pytest.fixture
def small_pieces(monkeypatch):
    """Cut logs into pieces of one row group, however small."""
    monkeypatch.setattr("ivvi.logs.dask.PIECE_ROWS", 1)


def both(log, client):
    """Return (moments, counts) by one process and by the cluster."""
    design = Design.build(linear(), linear(), log.roles)
    one = compute_moments(log, design, episodes=True)
    return one, compute_moments_on(client, log, design, episodes=True)


def assert_same(one, other):
    (moments, counts), (found, met) = one, other
    assert met == counts
    assert found.n == moments.n
    np.testing.assert_allclose(found.mean, moments.mean, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found.scatter, moments.scatter, rtol=1e-11, atol=1e-9)
    np.testing.assert_array_equal(found.episodes.number, moments.episodes.number)
    np.testing.assert_allclose(found.episodes.weight, moments.episodes.weight, rtol=1e-12)
    np.testing.assert_allclose(found.episodes.mean, moments.episodes.mean, atol=1e-12)
    np.testing.assert_allclose(found.episodes.scatter, moments.episodes.scatter, atol=1e-10)


@pytest.mark.parametrize("group", [3, 10, 64, 1000])
def test_next_states_cross_the_borders_of_row_groups(group, client, small_pieces, tmp_path):
    path = write_table(make_rows(12, 10), tmp_path / "log.parquet", row_group_size=group)
    assert_same(*both(ivvi.read_logs(path), client))


def with_gaps(columns):
    """Return a log with missing values at borders, and episodes and row groups without any rest."""
    holes = dict.fromkeys([0, 6, 7, 13, 14, 15, 27, 28, 119, *range(40, 60), *range(84, 91)], None)
    return changed(columns, x0=holes)


def without_actions(columns):
    """Return a log in which some rows, at borders and elsewhere, are next states alone."""
    return changed(columns, a0=dict.fromkeys([0, 6, 7, 13, 14, 20, 27, 60, 61, 119], None))


def with_jumps(columns):
    """Return a log in which some steps are left out."""
    return take(columns, [i for i in range(120) if i % 9])


def with_names(columns):
    return changed(columns, episode=[f"patient {i:03}" for i in columns["episode"]])


def with_weights(columns):
    return columns | {"w": np.arange(120) % 4.0}


def in_stores(columns):
    """Return a log whose episodes are combinations of two columns; 10 follows 9."""
    number = columns["episode"] + 36
    columns = {name: column for name, column in columns.items() if name != "episode"}
    return columns | {"store": number // 4, "brand": number % 4}


@pytest.mark.parametrize(
    ("change", "settings"),
    [
        (in_stores, {"episode": ("store", "brand")}),
        (in_stores, {"episode": ("store", "brand"), "where": "store == 9 or brand > 1"}),
        (dict, {"where": "step not in (3, 6)"}),
        (dict, {"where": "episode > 2 and episode != 5"}),
        (with_gaps, {"drop_missing": True}),
        (without_actions, {"drop_missing": True}),
        (with_jumps, {}),
        (with_names, {}),
        (with_weights, {"weight": "w"}),
        (dict, {"reward": "reward"}),
    ],
)
def test_logs_of_all_kinds_are_read_by_workers(change, settings, client, small_pieces, tmp_path):
    path = write_table(change(make_rows(12, 10)), tmp_path / "log.parquet", row_group_size=7)
    assert_same(*both(ivvi.read_logs(path, **settings), client))


@pytest.mark.parametrize("keys", [("episode", "step"), ("episode",), ()])
@pytest.mark.parametrize("shuffled", [False, True])
def test_logs_with_next_state_columns_are_read_by_workers_in_any_order(
    keys, shuffled, client, small_pieces, tmp_path
):
    columns = make_rows(12, 10)
    columns |= {f"next_x{i}": columns[f"x{i}"][::-1].copy() for i in range(2)}
    columns = {n: v for n, v in columns.items() if n in keys or n not in ("episode", "step")}
    if shuffled:
        columns = take(columns, np.random.default_rng(0).permutation(120))
    path = write_table(columns, tmp_path / "log.parquet", row_group_size=7)
    assert_same(*both(ivvi.read_logs(path), client))


def test_small_row_groups_of_each_file_are_joined_into_pieces(client, tmp_path, monkeypatch):
    monkeypatch.setattr("ivvi.logs.dask.PIECE_ROWS", 20)
    columns = make_rows(12, 10)
    for i, rows in enumerate((range(33), range(33, 71), range(71, 120))):
        write_table(take(columns, rows), tmp_path / f"part-{i}.parquet", row_group_size=6)
    log = ivvi.read_logs(tmp_path)
    assert [piece.num_rows for piece in log.table.pieces(20)] == [24, 9, 24, 14, 24, 24, 1]
    assert_same(*both(log, client))


def test_partition_columns_are_read_by_workers(client, small_pieces, tmp_path):
    columns = make_rows(12, 10)
    for i, rows in enumerate((range(33), range(33, 71), range(71, 120))):
        part = take(columns, rows)
        write_table(part, tmp_path / f"month={i}" / "part.parquet", row_group_size=6)
    assert_same(*both(ivvi.read_logs(tmp_path, state="x0,month"), client))


def test_a_fit_is_that_of_one_process_whatever_the_cluster(client, small_pieces, tmp_path):
    env = ivvi.make_env("linear", dim=5)
    env.collect(episodes=8, seed=1).to_parquet(tmp_path / "log.parquet")
    columns = ivvi.read_logs(tmp_path / "log.parquet").to_arrow()
    path = write_table(columns, tmp_path / "groups.parquet", row_group_size=777)
    one = ivvi.estimate(path)
    fits = [ivvi.estimate(path, client=cluster) for cluster in (client, client)]
    for fit in fits:
        np.testing.assert_allclose(fit.W, one.W, rtol=0, atol=1e-10)
        np.testing.assert_allclose(fit.se, one.se, rtol=1e-10)
        assert fit.counts == one.counts
    np.testing.assert_array_equal(fits[0].W, fits[1].W)  # whoever finishes first


def test_features_that_the_data_choose_are_fitted_by_workers(client, tmp_path):
    rng = np.random.default_rng(4)
    x, z, hidden = rng.normal(size=(3, 1200))
    a = z + hidden
    columns = {"episode": np.arange(1200) // 20, "step": np.arange(1200) % 20}
    columns |= {"x0": x, "a0": a, "z0": z, "next_x0": np.sin(2 * x) * a + hidden}
    path = write_table(columns, tmp_path / "log.parquet", row_group_size=400)
    one, fit = (ivvi.estimate(path, phi="auto", client=of) for of in (None, client))
    assert fit.choice == one.choice
    assert fit.method == "smooth"
    np.testing.assert_allclose(fit.W, one.W, rtol=0, atol=1e-9)


def leaves(value, name=""):
    """Return the numbers and words of nested JSON values by their path."""
    if isinstance(value, dict | list):
        inside = value.items() if isinstance(value, dict) else enumerate(value)
        return {k: v for key, part in inside for k, v in leaves(part, f"{name}/{key}").items()}
    return {name: value}


@pytest.mark.parametrize("se", ["robust", "clustered"])
@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("group", [8, 64])
def test_the_second_pass_is_that_of_one_process(
    group, shuffled, se, client, small_pieces, tmp_path, monkeypatch
):
    """Episodes of 10 steps that pieces cut anywhere; the rows of the pass are read by workers."""
    columns = make_rows(30, 10)
    if shuffled:
        columns |= {f"next_x{i}": columns[f"x{i}"][::-1].copy() for i in range(2)}
        columns = take(columns, np.random.default_rng(0).permutation(300))
    path = write_table(columns, tmp_path / "log.parquet", row_group_size=group)
    one = ivvi.estimate(path, psi="poly2", se=se)
    monkeypatch.setattr("ivvi.estimators.covariance.scores.sum_rows", None)
    monkeypatch.setattr("ivvi.moments.dask.KEPT_BYTES", 0)  # or no pass is needed
    fit = ivvi.estimate(path, psi="poly2", se=se, client=client)
    np.testing.assert_allclose(fit.se, one.se, rtol=1e-9)
    np.testing.assert_allclose(
        fit.estimate.covariance.joint, one.estimate.covariance.joint, rtol=1e-7, atol=1e-12
    )
    assert fit.estimate.covariance.clusters == one.estimate.covariance.clusters
    told, wanted = (leaves(f.diagnostics.to_json()) for f in (fit, one))
    assert told.keys() == wanted.keys()
    assert len(wanted) > 50
    for name, value in wanted.items():
        close = isinstance(value, float)
        assert told[name] == (pytest.approx(value, rel=1e-6, abs=1e-9) if close else value), name


@pytest.mark.parametrize("group", [8, 64])
@pytest.mark.parametrize("derived", [True, False])
@pytest.mark.parametrize(
    "se",
    [
        ivvi.StandardErrors("hac", bandwidth=4),
        ivvi.StandardErrors("clustered", cluster="doctor"),
        ivvi.StandardErrors("clustered", cluster="episode,doctor"),
        ivvi.StandardErrors("clustered", cluster="episode,doctor,ward"),
    ],
    ids=lambda se: se.cluster or se.kind,
)
def test_what_crosses_pieces_is_summed_by_workers_too(
    se, derived, group, client, small_pieces, tmp_path, monkeypatch
):
    """Lags over borders and gaps, clusters that come back, pieces of fewer rows than lags."""
    columns = make_rows(30, 10)
    if not derived:
        columns |= {f"next_x{i}": columns[f"x{i}"][::-1].copy() for i in range(2)}
    doctors = np.random.default_rng(0).integers(40, size=300)
    columns["doctor"] = np.array([f"doctor {i}" for i in doctors])
    columns["ward"] = doctors % 7 + np.arange(300) % 3
    columns = take(columns, np.setdiff1d(np.arange(300), [14, 15, 77]))
    path = write_table(columns, tmp_path / "log.parquet", row_group_size=group)
    one = ivvi.estimate(path, se=se)
    monkeypatch.setattr("ivvi.estimators.covariance.scores.sum_rows", None)
    monkeypatch.setattr("ivvi.moments.dask.KEPT_BYTES", 0)  # or no pass is needed
    fit = ivvi.estimate(path, se=se, client=client)
    np.testing.assert_allclose(fit.se, one.se, rtol=1e-9)
    assert fit.estimate.covariance.clusters == one.estimate.covariance.clusters


@pytest.mark.parametrize("kind", ["clustered", "cr2", "wild"])
def test_the_moments_of_clusters_are_kept_by_workers_too(kind, client, small_pieces, tmp_path):
    """A column whose clusters come back in other pieces, and no second pass over the rows."""
    columns = make_rows(30, 10)
    columns["ward"] = np.array([f"ward {i % 11}" for i in range(300)])
    path = write_table(columns, tmp_path / "log.parquet", row_group_size=64)
    errors = ivvi.StandardErrors(kind, "ward", draws=199)
    one, fit = (ivvi.estimate(path, se=errors, client=of) for of in (None, client))
    np.testing.assert_allclose(fit.se, one.se, rtol=1e-8)
    np.testing.assert_allclose(fit.estimate.freedoms, one.estimate.freedoms, rtol=1e-6)
    assert fit.to_json()["clusters"] == {"ward": 11}
    for name, test in one.inference.wild.items():
        np.testing.assert_allclose(fit.inference.wild[name].interval, test.interval, rtol=1e-6)


def test_a_worker_killed_in_mid_run_is_survived(small_pieces, tmp_path):
    path = write_table(make_rows(40, 25), tmp_path / "log.parquet", row_group_size=9)
    log = ivvi.read_logs(path)
    read = []
    with connected(2) as client:
        victim = next(iter(client.run(os.getpid).values()))

        def progress(rows):
            read.append(rows)
            if len(read) == 20:
                os.kill(victim, signal.SIGKILL)

        # one pass: that of the standard errors would count the rows again
        fit = ivvi.estimate(log, client=client, se="unadjusted", progress=progress)
    one = ivvi.estimate(log)
    assert sum(read) == 1000
    assert fit.counts == one.counts
    np.testing.assert_allclose(fit.W, one.W, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("columns", "settings", "words"),
    [
        (take(make_rows(), np.arange(60)[::-1]), {}, "not sorted by (episode, step)"),
        (changed(make_rows(), x1={14: None}), {}, "1 missing or infinite values in 1 of 60 rows"),
        (changed(make_rows(), z0=make_rows()["a1"]), {}, "equals the action column 'a1'"),
        (make_rows() | {"w": np.zeros(60)}, {"weight": "w"}, "'w' is zero in every row"),
        (changed(make_rows(), step={14: 3}), {}, "is not sorted by"),
        (make_rows(60, 1), {}, "none of the 60 rows has a next state"),
        (pa.table(make_rows()).slice(0, 0), {}, "has no rows"),
        (changed(make_rows(), x0=[None] * 60), {"drop_missing": True}, "all 60 rows have missing"),
    ],
)
def test_what_cannot_be_used_is_refused(columns, settings, words, client, small_pieces, tmp_path):
    path = write_table(columns, tmp_path / "log.parquet", row_group_size=7)
    log = ivvi.read_logs(path, **settings)
    with pytest.raises(DataError) as caught:
        compute_moments_on(client, log, Design.build(linear(), linear(), log.roles))
    assert words in str(caught.value)


def test_two_rows_of_one_step_are_found_across_a_border(client, small_pieces, tmp_path):
    columns = make_rows()
    columns |= {f"next_x{i}": columns[f"x{i}"] for i in range(2)}
    path = write_table(changed(columns, step={14: 3}), tmp_path / "log.parquet", row_group_size=7)
    with pytest.raises(DataError, match="episode 1 has step 3 twice"):
        ivvi.estimate(path, client=client)


def test_clusters_that_are_none_are_refused(tmp_path, monkeypatch):
    path = write_table(make_rows(), tmp_path / "log.parquet")
    with pytest.raises(InputError, match="0 workers were asked for; expected at least 1"):
        ivvi.estimate(path, client=0)
    with pytest.raises(InputError, match="checkpoints do not work with Dask"):
        ivvi.estimate(path, client=2, checkpoint=ivvi.Checkpoint(tmp_path / "state"))
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match=r"pip install 'ivvi\[dask\]'"):
        ivvi.estimate(path, client=2)


def test_only_parquet_is_shared(client, tmp_path):
    for log in (make_rows(), write_table(make_rows(), tmp_path / "log.csv")):
        with pytest.raises(InputError, match="only Parquet files can be shared"):
            ivvi.estimate(log, client=client)


def test_the_command_line_starts_and_stops_workers(tmp_path):
    path = write_table(make_rows(40, 25), tmp_path / "log.parquet", row_group_size=100)
    out = tmp_path / "model"
    many = run_process("fit", path, *OPTIONS, "--out", out, "--workers", 2, "--json", "-")
    assert (many.code, many.err) == (0, "")
    one = run("fit", path, *OPTIONS, "--out", tmp_path / "one", "--json", "-")
    W, wanted = (np.array(json.loads(result.out)["W"]) for result in (many, one))
    np.testing.assert_allclose(W, wanted, rtol=0, atol=1e-10)
    assert out.is_dir()


def test_a_scheduler_that_does_not_answer_is_one_sentence(tmp_path, monkeypatch):
    path = write_table(make_rows(), tmp_path / "log.parquet")
    away = ("--scheduler", "tcp://127.0.0.1:9")
    started = time.monotonic()
    result = run_process("fit", path, *OPTIONS, "--out", tmp_path / "model", *away)
    assert time.monotonic() - started < 30  # five seconds of patience, and starting Python
    assert_refused(result, "no Dask scheduler answers at tcp://127.0.0.1:9")
    assert not (tmp_path / "model").exists()
    monkeypatch.setattr("ivvi.logs.dask.PATIENCE", 0.2)
    assert_refused(run("diagnose", path, *OPTIONS, *away), "no Dask scheduler answers")


def test_a_scheduler_is_reached_by_its_address(client, tmp_path):
    path = write_table(make_rows(), tmp_path / "log.parquet", row_group_size=7)
    address = client.scheduler_info()["address"]
    done = run("diagnose", path, *OPTIONS, "--scheduler", address, "--json", "-")
    assert json.loads(done.out)["n"] == 54
    both = run("diagnose", path, *OPTIONS, "--scheduler", address, "--workers", 2)
    assert_refused(both, "--scheduler and --workers exclude each other")


def test_a_scheduler_without_workers_is_one_sentence(tmp_path):
    path = write_table(make_rows(), tmp_path / "log.parquet")
    with (
        distributed.LocalCluster(n_workers=0, processes=False, **LOCAL) as cluster,
        pytest.raises(InputError, match="has no workers"),
    ):
        ivvi.estimate(path, client=cluster.scheduler_address)


def test_dates_follow_each_other_in_the_order_of_the_calendar(client, small_pieces, tmp_path):
    """Episodes that begin later are met first; shocks that last are told by the order of dates."""
    columns = make_rows(12, 10)
    day = columns["step"] + 11 - columns["episode"]
    columns = {name: values for name, values in columns.items() if name != "step"}
    columns["day"] = np.datetime64("2024-03-01") + day.astype("timedelta64[D]")
    path = write_table(columns, tmp_path / "log.parquet", row_group_size=7)
    log = ivvi.read_logs(path, step="day").clustered(("day",))
    design = Design.build(linear(), linear(), log.roles)
    one, _ = compute_moments(log, design, groups=("day",))
    other, _ = compute_moments_on(client, log, design, groups=("day",))
    np.testing.assert_array_equal(one.groups[0].places, other.groups[0].places)
    assert one.groups[0].places[0] > 0
