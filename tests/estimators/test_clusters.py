"""What errors are clustered by: instruments that episodes share, and few or uneven clusters."""

import itertools
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ivvi
from helpers import OPTIONS, assert_refused, make_rows, run, write_table
from ivvi import StandardErrors
from ivvi.errors import InputError, IvviWarning
from ivvi.estimators.covariance.meat import Piece
from ivvi.estimators.covariance.scores import Scored
from ivvi.estimators.covariance.step_dependence import step_dependence
from ivvi.fitting.summary import half_widths
from ivvi.weak_iv.wild_bootstrap import WildBootstrap

DATA = Path("/work/shared/data/iv")
pytestmark = pytest.mark.filterwarnings(
    "ignore:[0-9]+ clusters by 'ward' count for", "ignore:weak instruments"
)
RIVAL = {"state": "x0", "action": "a0", "instrument": "z0"}


NEXT = RIVAL | {"next_state": "next_x0"}


def series(rng, length, lasting):
    """Normal shocks of variance one that last from one step to the next."""
    values = rng.normal(size=length)
    for t in range(1, length):
        values[t] = lasting * values[t - 1] + np.sqrt(1 - lasting**2) * values[t]
    return values


def panel(seed=0, weeks=40, stores=25, shared=True, shock=0.3):
    """A store-week panel x' = x / 2 - a / 2 + e whose stores share z and part of e in a week."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=weeks)
    z = np.tile(rng.normal(size=weeks), (stores, 1)) if shared else rng.normal(size=(stores, weeks))
    e = np.sqrt(shock) * common + np.sqrt(1 - shock) * rng.normal(size=(stores, weeks))
    a = np.zeros((stores, weeks))
    x = np.zeros((stores, weeks + 1))
    for t in range(weeks):
        a[:, t] = z[:, t] + 0.7 * e[:, t] + 0.3 * x[:, t] + rng.normal(size=stores)
        x[:, t + 1] = 0.5 * x[:, t] - 0.5 * a[:, t] + e[:, t]
    return {
        "episode": np.repeat(np.arange(stores), weeks),
        "step": np.tile(np.arange(weeks), stores),
        "x0": x[:, :-1].ravel(),
        "a0": a.ravel(),
        "z0": z.ravel().copy(),
    }


# instruments that episodes share


def test_a_shared_instrument_is_clustered_both_ways_and_all_follow():
    log = ivvi.read_logs(panel(), **RIVAL)
    fit = ivvi.estimate(log)
    both = ivvi.estimate(log, se=StandardErrors("clustered", "episode,step"))
    facts = fit.to_json()
    assert facts["clusters"] == {"episode": 25, "step": 39}
    alone, by_step = (
        ivvi.estimate(log, se=StandardErrors("clustered", column)) for column in ("episode", "step")
    )
    for other in (both, alone, by_step):  # what is shared only adds
        assert (fit.se >= other.se * (1 - 1e-10)).all()
    assert (fit.se <= 1.1 * both.se).all()
    assert "z0: alike in all episodes at a step (39 of them)" in fit.summary()
    one, two = (f.diagnostics.effective_f.value for f in (fit, both))
    assert one <= two * (1 + 1e-9)
    assert alone.diagnostics.effective_f.value > 2 * one
    for method in ("ar", "clr"):
        found = ivvi.interval(log, "x0", "a0", method=method)
        wanted = ivvi.interval(log, "x0", "a0", method=method, cluster="episode,step")
        of_fit = ivvi.interval(fit, "x0", "a0", method=method, log=log)
        assert found.clusters == ("episode", "step")
        (low, high), (least, most) = found.intervals[0], wanted.intervals[0]
        assert low <= least + 1e-8
        assert most <= high + 1e-8
        np.testing.assert_allclose(found.intervals, of_fit.intervals, rtol=1e-8)
    assert ivvi.check(log).clusters == "step"


def outcomes(rng, z, e, store, week):
    """Rows y = .3 x - a / 2 + e of a state that shocks do not move."""
    x, noise = rng.normal(size=(2, len(e)))
    a = z + 0.5 * x + 0.7 * e + noise
    columns = {"episode": store, "step": week, "row": np.arange(len(e))}
    return columns | {"x0": x, "a0": a, "z0": z, "next_x0": 0.3 * x - 0.5 * a + e}


def lasting(seed, weeks=60, stores=30, last=0.7):
    """Stores that open one after another and share z and a part of e, which last."""
    rng = np.random.default_rng(seed)
    store, week = np.divmod(np.arange(stores * weeks), weeks)
    store, week = (part[week >= (store * 7) % 15] for part in (store, week))
    z, common = (series(rng, weeks, last)[week] for _ in range(2))
    e = np.sqrt(0.3) * common + np.sqrt(0.7) * rng.normal(size=len(week))
    columns = outcomes(rng, z, e, store, week)
    return columns | {"date": np.datetime64("2024-01-01") + 7 * week.astype("timedelta64[D]")}


def test_what_lasts_from_step_to_step_counts_more():
    """What episodes share, by step less by row, counts (1 + r) / (1 - r) times."""
    log = ivvi.read_logs(lasting(1, weeks=150, last=0.8), **NEXT)
    fit = ivvi.estimate(log)
    factor = fit.errors.inflation
    assert 2 < factor < 10
    assert "it lasts from one step to the next" in fit.summary()
    episode, step, row = (
        ivvi.estimate(log, se=StandardErrors("clustered", column)).se ** 2
        for column in ("episode", "step", "row")
    )
    counted = episode + factor * (step - row)
    assert (fit.se**2 >= counted * (1 - 1e-8)).all()
    assert (fit.se**2 <= 1.2 * counted).all()
    found = ivvi.interval(log, "x0", "a0")
    both = ivvi.interval(log, "x0", "a0", cluster="episode,step")
    assert np.ptp(found.intervals) > 1.4 * np.ptp(both.intervals)


def test_what_lasts_is_kept_with_the_model_and_follows_dates(tmp_path):
    source = write_table(lasting(1, weeks=150, last=0.8), tmp_path / "log.parquet")
    by_week = ivvi.estimate(ivvi.read_logs(source, **NEXT))
    fit = ivvi.estimate(ivvi.read_logs(source, **NEXT | {"step": "date"}))
    assert fit.errors.inflation == pytest.approx(by_week.errors.inflation, rel=1e-9)
    assert fit.errors.inflation > 2
    fit.save(tmp_path / "model")
    assert ivvi.load_fit(tmp_path / "model").errors == fit.errors


@pytest.mark.parametrize("seed", range(5))
def test_weeks_of_their_own_hardly_count_more(seed):
    """Both the instrument and the shocks must last; by chance both do so a little."""
    assert ivvi.estimate(ivvi.read_logs(panel(seed), **RIVAL)).errors.inflation < 1.5


def test_effects_of_episodes_do_not_make_a_shared_instrument_surer():
    """Where all episodes share z, their constants move no slope, and its error must not shrink."""
    rng = np.random.default_rng(3)
    stores, weeks = 40, 30
    z, common, alpha = rng.normal(size=weeks), rng.normal(size=weeks), rng.normal(size=stores)
    u, noise = rng.normal(size=(2, stores, weeks))
    a = z + u + noise
    y = -0.5 * a + u + 0.5 * common
    store, week = np.divmod(np.arange(stores * weeks), weeks)
    columns = {"store": store, "week": week, "a": a.ravel(), "z": z[week]}
    roles = {"action": "a", "instrument": "z", "next_state": "y", "episode": "store"}
    plain, moved = (
        ivvi.estimate(ivvi.read_logs(columns | {"y": out.ravel()}, step="week", **roles))
        for out in (y, y + 4 * alpha[:, None])
    )
    assert moved.W[0, 1] == pytest.approx(plain.W[0, 1], rel=1e-6)
    assert moved.se[0, 1] > 0.98 * plain.se[0, 1]


def test_two_ways_by_default_add_what_is_shared_where_it_adds():
    rng = np.random.default_rng(0)
    one, two, both = (part @ part.T for part in rng.normal(size=(3, 4, 6)))
    pieces = (Piece((one,), 50), Piece((two,), 50), Piece((both,), 50, -1.0))
    scored = Scored(pieces, 1, 4, 100, 100.0, guarded=True, inflation=3.0)

    def positive(matrix):
        unit = np.sqrt(np.outer(np.diag(both), np.diag(both)))
        values, vectors = np.linalg.eigh(matrix / unit)
        return (vectors * values.clip(min=0)) @ vectors.T * unit

    wanted = (both + positive(one - both) + 3 * positive(two - both)) / 100
    np.testing.assert_allclose(scored.blocks()[0], wanted, rtol=1e-10)
    for least in (one, two):
        assert np.linalg.eigvalsh(100 * scored.blocks()[0] - least)[0] > -1e-9


def regional(seed, regions=10, stores=5, weeks=40):
    """Stores that share z and half of e in a week with those of their region alone."""
    rng = np.random.default_rng(seed)
    n = regions * stores * weeks
    store, week = np.divmod(np.arange(n), weeks)
    z, common = rng.normal(size=(2, regions, weeks))[:, store // stores, week]
    e = np.sqrt(0.5) * (common + rng.normal(size=n))
    return outcomes(rng, z, e, store, week)


def test_what_some_episodes_share_at_a_step_is_found_in_the_rows():
    """The products depend: Moulton's factor is 1 + 4 / 2 within a region."""
    log = ivvi.read_logs(regional(0, regions=8), **NEXT)
    fit = ivvi.estimate(log)
    assert list(fit.to_json()["clusters"]) == ["episode", "step"]
    assert "instrument times residual: alike in episodes at a step" in fit.summary()
    assert ivvi.interval(log).clusters == ("episode", "step")
    alone = ivvi.estimate(log, se=StandardErrors("clustered", "episode"))
    assert fit.se[0, 2] > 1.3 * alone.se[0, 2]
    assert step_dependence(fit.moments, "step").factor < 1.2  # sums alone do not tell


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["lasting", "regional"])
def test_shocks_that_last_or_are_of_a_region_are_covered(kind):
    """100 logs: within 4 standard errors of 92%; without, 78% and 77% were covered."""
    held = []
    for seed in range(100):
        columns = lasting(seed) if kind == "lasting" else regional(seed)
        fit = ivvi.estimate(ivvi.read_logs(columns, **NEXT))
        half = half_widths(fit.estimate)[0, 2] * fit.se[0, 2]
        held.append(abs(fit.W[0, 2] + 0.5) <= half)
    assert np.mean(held) > 0.92 - 4 * np.sqrt(0.92 * 0.08 / 100)


def staggered(seed=0, weeks=40, stores=25):
    """The panel with stores that open one after another, and weeks as dates."""
    columns = panel(seed, weeks, stores)
    there = columns["step"] >= (columns["episode"] * 7) % 15
    columns = {name: values[there] for name, values in columns.items()}
    monday = np.datetime64("2024-01-01", "D")
    return columns | {"date": monday + 7 * columns["step"].astype("timedelta64[D]")}


@pytest.mark.filterwarnings("ignore:Nickell")
def test_what_episodes_share_at_a_date_is_found_whenever_they_began(tmp_path):
    """Dates are numbered from each store's first; the weeks of the calendar are what is shared."""
    source = write_table(staggered(), tmp_path / "log.parquet", row_group_size=200)
    log = ivvi.read_logs(source, **RIVAL | {"step": "date"})
    by_week = ivvi.estimate(ivvi.read_logs(source, **RIVAL))
    fit = ivvi.estimate(log)
    assert list(fit.to_json()["clusters"]) == ["episode", "date"]
    np.testing.assert_allclose(fit.se, by_week.se, rtol=1e-9)
    np.testing.assert_allclose(fit.estimate.freedoms, by_week.estimate.freedoms, rtol=1e-6)
    assert ivvi.interval(log).clusters == ("episode", "date")
    assert ivvi.check(log).clusters == "date"
    absorbed = ivvi.estimate(log, absorb="episode")
    assert list(absorbed.to_json()["clusters"]) == ["episode", "date"]
    fit.save(tmp_path / "model")
    assert ivvi.load_fit(tmp_path / "model").roles.dates == "date"


def test_dependence_at_a_step_is_what_it_is_said_to_be():
    log = ivvi.read_logs(panel(3, weeks=400), **RIVAL)
    fit = ivvi.estimate(log)
    found = step_dependence(fit.moments, "step")
    assert found.rows == pytest.approx(25)
    assert found.instruments["z0"] == pytest.approx(1, abs=1e-6 + 0.03)
    assert found.residuals["next_x0"] == pytest.approx(0.3, abs=5 * 0.3 * np.sqrt(2 / 400))


@pytest.mark.parametrize("name", ["linear", "nonlinear", "sepsis"])
def test_instruments_of_their_own_are_clustered_by_episode(name):
    env = ivvi.make_env(name) if name == "sepsis" else ivvi.make_env(name, dim=1)
    log = env.collect(episodes=40, horizon=30, seed=5)
    assert list(ivvi.estimate(log, allow_unidentified=True).to_json()["clusters"]) == ["episode"]


def test_shared_shocks_alone_do_not_move_the_effect_of_an_instrument_of_its_own():
    """Without a shared z the products are independent; the state's slopes are not."""
    log = ivvi.read_logs(panel(1, shared=False, shock=0.0), **RIVAL)
    assert list(ivvi.estimate(log).to_json()["clusters"]) == ["episode"]
    log = ivvi.read_logs(panel(1, shared=False, shock=0.5), **RIVAL)
    assert list(ivvi.estimate(log).to_json()["clusters"]) == ["episode", "step"]


def test_few_steps_are_too_few_draws_of_a_shared_instrument():
    log = ivvi.read_logs(panel(2, weeks=6, stores=60), **RIVAL)
    with pytest.warns(IvviWarning, match="z0: alike in all episodes at a step, so 5 steps"):
        fit = ivvi.estimate(log)
    assert list(fit.to_json()["clusters"]) == ["episode"]
    assert any("5 steps are its draws" in text for text in fit.to_json()["warnings"])


def test_errors_by_episode_alone_say_what_they_miss():
    log = ivvi.read_logs(panel(), **RIVAL)
    with pytest.warns(IvviWarning, match="too small: cluster by episode,step"):
        ivvi.estimate(log, se="clustered")


def test_dask_and_checkpoints_decide_alike(tmp_path):
    path = write_table(panel(), tmp_path / "log.parquet")
    whole = ivvi.estimate(ivvi.read_logs(path, **RIVAL))
    checkpoint = ivvi.Checkpoint(tmp_path / "state", every=0)
    resumed = ivvi.estimate(ivvi.read_logs(path, **RIVAL), checkpoint=checkpoint)
    assert resumed.to_json()["clusters"] == whole.to_json()["clusters"]
    np.testing.assert_allclose(resumed.se, whole.se, rtol=1e-9)
    np.testing.assert_allclose(resumed.estimate.freedoms, whole.estimate.freedoms, rtol=1e-6)


@pytest.mark.parametrize("kept", [True, False])
def test_clusters_that_the_instrument_never_moved_do_not_count(kept, monkeypatch):
    """A programme in three of forty wards, errors independent: three clusters tell its effect."""
    if not kept:  # as where clusters are too many for their moments to be held
        monkeypatch.setattr("ivvi.moments.accumulate.FEW_BYTES", 0)
    rng = np.random.default_rng(0)
    ward, visit = np.repeat(np.arange(40), 10), np.tile(np.arange(10), 40)
    z = 1.0 * (ward < 3) * (kept is False or visit >= 5)
    e = rng.normal(size=400)
    a = 2 * z + 0.5 * e + rng.normal(size=400)
    columns = {"episode": ward, "step": visit, "a": a, "z": z, "y": a + e}
    log = ivvi.read_logs(columns, action="a", instrument="z", next_state="y")
    with pytest.warns(IvviWarning, match="40 clusters by 'episode' count for 3"):
        fit = ivvi.estimate(log)
    assert fit.estimate.freedoms[0, 1] < 3


@pytest.mark.parametrize("kind", ["cr2", "wild"])
def test_few_cluster_corrections_go_on_from_a_checkpoint(kind, tmp_path):
    """A cluster column in no order; the second run finds some of the first one's work done."""
    columns = panel(stores=30, weeks=40, shared=False)
    columns["ward"] = np.array([f"w{i}" for i in (7 * columns["episode"]) % 11])
    path = write_table(columns, tmp_path / "log.parquet", row_group_size=250)
    errors = ivvi.StandardErrors(kind, "ward", draws=199)
    whole = ivvi.estimate(ivvi.read_logs(path, **RIVAL), se=errors)
    checkpoint = ivvi.Checkpoint(tmp_path / "state", every=0)
    offer, left = checkpoint.offer, [2]

    def interrupted(name, state, *, now=False):
        offer(name, state, now=now)
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt

    checkpoint.offer = interrupted
    log = ivvi.read_logs(path, **RIVAL)
    with pytest.raises(KeyboardInterrupt):
        ivvi.estimate(log, se=errors, checkpoint=checkpoint)
    fit = ivvi.estimate(log, se=errors, checkpoint=ivvi.Checkpoint(tmp_path / "state"))
    np.testing.assert_allclose(fit.se, whole.se, rtol=1e-8)
    np.testing.assert_allclose(fit.estimate.freedoms, whole.estimate.freedoms, rtol=1e-6)
    assert fit.to_json()["clusters"] == {"ward": 11}
    if kind == "wild":
        one, two = (f.inference.wild["next_x0", "a0"].interval for f in (fit, whole))
        np.testing.assert_allclose(one, two, rtol=1e-6)


def between(columns, name, low, high):
    """Return the rows in which a column lies from `low` to below `high`."""
    there = (columns[name] >= low) & (columns[name] < high)
    return {key: values[there] for key, values in columns.items()}


def assert_both_ways(fit, rows_fit, second):
    """Errors without the rows leave the pairs in: as large as those with them, or a little more."""
    np.testing.assert_allclose(fit.W, rows_fit.W, rtol=1e-8)
    assert list(fit.to_json()["clusters"]) == ["episode", second]
    assert (fit.se >= rows_fit.se).all()
    assert (fit.se < 1.15 * rows_fit.se).all()
    np.testing.assert_allclose(fit.estimate.freedoms, rows_fit.estimate.freedoms, rtol=0.01)
    assert "rather too large than too small" in fit.errors.note
    assert ivvi.interval(fit).clusters == ("episode", second)


def test_a_stream_clusters_by_step_too_where_episodes_share_the_instrument(tmp_path):
    columns = panel()
    stream = ivvi.Stream(**RIVAL)
    for week in range(0, 40, 10):
        stream.partial_fit(between(columns, "step", week, week + 10))
    stream.save(tmp_path / "stream")
    whole = ivvi.estimate(ivvi.read_logs(columns, **RIVAL))
    for one in (stream, ivvi.Stream.load(tmp_path / "stream")):
        assert_both_ways(one.fit(), whole, "step")


@pytest.mark.parametrize("step", ["step", "date"])
@pytest.mark.parametrize("named", [True, False])
def test_an_update_keeps_both_ways_of_clustering(named, step, tmp_path):
    """Weeks come again in the new rows, whose stores are others."""
    columns, roles = staggered(stores=40), RIVAL | {"step": step}
    errors = ivvi.StandardErrors(cluster=("episode", step) if named else ())
    whole = ivvi.estimate(ivvi.read_logs(columns, **roles), se=errors)
    first, second = (
        ivvi.read_logs(between(columns, "episode", low, low + 20), **roles) for low in (0, 20)
    )
    ivvi.estimate(first, se=errors, episodes=True).save(tmp_path / "model", episodes=True)
    fit = ivvi.update(tmp_path / "model", second)
    assert_both_ways(fit, whole, step)


def test_sums_by_episode_know_what_episodes_share(tmp_path):
    """`ivvi moments --by-episode` here and there, `ivvi merge`, `ivvi fit --moments`."""
    columns = panel(stores=40)
    whole = ivvi.estimate(ivvi.read_logs(columns, **RIVAL))
    shards = []
    for low in (0, 20):
        source = write_table(
            between(columns, "episode", low, low + 20), tmp_path / f"{low}.parquet"
        )
        log = ivvi.read_logs(source, **RIVAL)
        shards.append(ivvi.Shard.of(log, whole.estimate.design, episodes=True))
    assert_both_ways(ivvi.estimate(shards[0] + shards[1]), whole, "step")


def test_differences_of_a_shared_instrument_are_clustered_both_ways():
    log = ivvi.read_logs(panel(weeks=60), **RIVAL)
    fit = ivvi.estimate(log, difference=True)
    assert list(fit.to_json()["clusters"]) == ["episode", "step"]


@pytest.mark.slow
@pytest.mark.parametrize("weeks", [30, 40])
def test_size_of_checks_with_a_shared_instrument(weeks):
    """800 logs, every test at 5%: within three binomial deviations of the band from 3% to 7%."""
    p_values: dict[str, list[float]] = {}
    for seed in range(800):
        for check in ivvi.check(ivvi.read_logs(panel(seed, weeks), **RIVAL)).checks:
            if check.test is not None:
                p_values.setdefault(check.name, []).append(check.test.p_value)
    low, high = (
        share - sign * 3 * np.sqrt(share * (1 - share) / 800)
        for share, sign in ((0.03, 1), (0.07, -1))
    )
    for name, found in p_values.items():
        assert low <= np.mean(np.array(found) < 0.05) <= high, name


# three ways


def three_way(rows, columns, debiased):
    """Return the covariance of two-stage least squares by its definition, (2, 2)."""
    n = len(rows["y"])
    X, Z = (np.column_stack([np.ones(n), rows[name]]) for name in ("a", "z"))
    bread = np.linalg.inv(Z.T @ X)
    scores = Z * (rows["y"] - X @ (bread @ (Z.T @ rows["y"])))[:, None]
    meat = np.zeros((2, 2))
    for size in (1, 2, 3):
        for ways in itertools.combinations(columns, size):
            keys = np.unique(
                np.column_stack([rows[name] for name in ways]), axis=0, return_inverse=True
            )[1]
            G = keys.max() + 1
            sums = np.column_stack([np.bincount(keys, weights=one) for one in scores.T])
            small = G / (G - 1) * (n - 1) / (n - 2) if debiased else 1.0
            meat += (-1) ** (size - 1) * small * sums.T @ sums
    return bread @ meat @ bread.T


@pytest.mark.parametrize("debiased", [True, False])
def test_three_ways_of_clustering_are_all_seven_sums(debiased):
    rng = np.random.default_rng(2)
    n = 900
    columns = {
        name: rng.integers(count, size=n) for name, count in zip("fgh", (30, 25, 40), strict=True)
    }
    effects = sum(rng.normal(size=50)[codes] for codes in columns.values())
    z = rng.normal(size=n) + effects
    a = z + effects + rng.normal(size=n)
    rows = {"a": a, "z": z, "y": 0.5 * a + effects + rng.normal(size=n), **columns}
    log = ivvi.read_logs(rows, state=(), action="a", instrument="z", next_state="y")
    errors = StandardErrors("clustered", "f,g,h", debiased=debiased)
    fit = ivvi.estimate(log, se=errors)
    np.testing.assert_allclose(
        fit.estimate.W_cov.blocks[0], three_way(rows, "fgh", debiased), rtol=1e-9
    )
    assert list(fit.to_json()["clusters"]) == ["f", "g", "h"]
    assert "clustered by f (30) and g (25) and h (40)" in fit.summary()
    again = ivvi.read_logs(
        rows | {"same": rows["g"]}, state=(), action="a", instrument="z", next_state="y"
    )
    both = ivvi.estimate(again, se=StandardErrors("clustered", "f,g", debiased=False))
    third = ivvi.estimate(again, se=StandardErrors("clustered", "f,g,same", debiased=False))
    np.testing.assert_allclose(third.se, both.se, rtol=1e-9)
    assert ivvi.interval(log, "y", "a", cluster="f,g,h").clusters == ("f", "g", "h")


# few and uneven clusters


def uneven(seed=0, sizes=(40, 9, 7, 5, 4, 12, 30, 6, 5, 8), d_z=2):
    rng = np.random.default_rng(seed)
    g = np.repeat(np.arange(len(sizes)), sizes)
    both = rng.normal(size=(1 + d_z, len(sizes)))[:, g]
    z = (0.5 * both[1:] + rng.normal(size=(d_z, len(g)))).T
    e = 0.6 * both[0] + rng.normal(size=len(g))
    x = rng.normal(size=len(g))
    a = z.sum(axis=1) + 0.5 * x + 0.7 * e + rng.normal(size=len(g))
    y = -0.5 * a + 0.3 * x + e
    columns = {"ward": g, "x0": x, "a0": a, "next_x0": y}
    return columns | {f"z{i}": z[:, i].copy() for i in range(d_z)}


def regression(columns):
    """Return the instrumented features, the residuals and the features, from the rows."""
    one = np.ones(len(columns["x0"]))
    z = [columns[name] for name in columns if name.startswith("z")]
    X = np.column_stack([one, columns["x0"], columns["a0"]])
    Z = np.column_stack([one, columns["x0"], *z])
    fitted = Z @ np.linalg.lstsq(Z, X)[0]
    w = np.linalg.lstsq(fitted, columns["next_x0"])[0]
    return fitted, columns["next_x0"] - X @ w, X, Z


def root(matrix, power):
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.maximum(values, 1e-8) ** power) @ vectors.T


def test_cr2_and_its_degrees_of_freedom_are_bell_and_mccaffreys():
    """From matrices of the rows themselves: residuals (I - H_gg)^-1/2 u, and E[V] by traces."""
    columns = uneven()
    fit = ivvi.estimate(ivvi.read_logs(columns), se=StandardErrors("cr2", "ward"))
    fitted, u, _, _ = regression(columns)
    g, n = columns["ward"], len(u)
    M = np.linalg.inv(fitted.T @ fitted)
    H = fitted @ M @ fitted.T
    rows = [np.flatnonzero(g == c) for c in range(10)]
    adjust = [root(np.eye(len(r)) - H[np.ix_(r, r)], -0.5) for r in rows]
    scores = np.array([fitted[r].T @ A @ u[r] for r, A in zip(rows, adjust, strict=True)])
    np.testing.assert_allclose(fit.se[0], np.sqrt(np.diag(M @ scores.T @ scores @ M)), rtol=1e-8)
    pairs = sum(len(r) ** 2 - len(r) for r in rows)
    rho = sum(u[r].sum() ** 2 - u[r] @ u[r] for r in rows) / pairs / (u @ u / n)
    omega = np.zeros((n, n))
    for r in rows:
        omega[np.ix_(r, r)] = np.clip(rho, 0, 1)
    np.fill_diagonal(omega, 1.0)
    left = np.eye(n) - H
    for j in range(3):
        G = np.array([left[:, r] @ A @ fitted[r] @ M[j] for r, A in zip(rows, adjust, strict=True)])
        K = G @ omega @ G.T
        assert fit.estimate.freedoms[0, j] == pytest.approx(
            np.trace(K) ** 2 / np.sum(K**2), rel=1e-6
        )
    assert "CR2" in fit.summary()
    assert fit.to_json()["cr2"]


def test_the_effective_number_of_clusters_falls_with_uneven_ones():
    even = ivvi.estimate(
        ivvi.read_logs(uneven(sizes=(12,) * 30)), se=StandardErrors(cluster="ward")
    )
    odd = ivvi.estimate(
        ivvi.read_logs(uneven(sizes=(160, *(7,) * 29))), se=StandardErrors(cluster="ward")
    )
    one, two = (fit.estimate.W_cov.effective[0, 2] for fit in (even, odd))
    assert two < one / 2 <= 15
    assert half_widths(odd.estimate)[0, 2] > half_widths(even.estimate)[0, 2] > 1.96
    assert "30 clusters by 'ward' count for" in odd.summary()
    assert np.array(odd.to_json()["effective_clusters"])[0, 2] == pytest.approx(two)


def test_conventions_of_others_stay_within_reach():
    """linearmodels': no correction, normal. Stata's: G (n - 1) / ((G - 1) (n - k)), t(G - 1)."""
    log = ivvi.read_logs(uneven())
    plain, stata, default = (
        ivvi.estimate(log, se=StandardErrors("clustered", "ward", debiased=d))
        for d in (False, True, None)
    )
    n, k = 126, 3
    np.testing.assert_allclose(stata.se, plain.se * np.sqrt(10 / 9 * (n - 1) / (n - k)), rtol=1e-12)
    np.testing.assert_array_equal(default.se, stata.se)
    assert plain.estimate.freedoms is None
    assert (stata.estimate.freedoms == 9).all()
    assert (default.estimate.freedoms < 9).all()


def brute_wild(columns, theta, weights):
    """The bootstrapped t statistics, row by row: an independent way."""
    _, _, X, Z = regression(columns)
    g, y, a = columns["ward"], columns["next_x0"], columns["a0"]
    P = Z @ np.linalg.pinv(Z)
    exogenous = X[:, :2]

    def t(y, a, value):
        X = np.column_stack([exogenous, a])
        hat = P @ X
        w = np.linalg.lstsq(hat, y)[0]
        bread = np.linalg.inv(hat.T @ hat)
        scores = hat * (y - X @ w)[:, None]
        sums = np.array([scores[g == c].sum(axis=0) for c in range(g.max() + 1)])
        return (w[2] - value) / np.sqrt((bread @ sums.T @ sums @ bread)[2, 2])

    u = y - theta * a
    g_hat = np.linalg.lstsq(exogenous, u)[0]
    u = u - exogenous @ g_hat
    first = np.linalg.lstsq(np.column_stack([Z, u]), a)[0][:-1]
    v = a - Z @ first
    drawn = []
    for row in weights:
        new = Z @ first + row[g] * v
        drawn.append(t(theta * new + exogenous @ g_hat + row[g] * u, new, theta))
    return t(y, a, theta), np.array(drawn)


@pytest.mark.parametrize("d_z", [1, 3])
def test_the_wild_bootstrap_from_moments_is_that_of_the_rows(d_z):
    columns = uneven(4, d_z=d_z)
    log = ivvi.read_logs(columns)
    fit = ivvi.estimate(log, se=StandardErrors("clustered", "ward"), episodes=True)
    wild = WildBootstrap(fit.moments, "next_x0", draws=200, seed=3)
    c = np.array([0.0, 0.0, 1.0])
    for theta in (0.0, -0.4):
        t, drawn = brute_wild(columns, theta, wild.weights)
        np.testing.assert_allclose(wild._restricted(c, theta)(wild.weights), drawn, rtol=1e-6)
        assert wild._statistic(c, theta)[0] == pytest.approx(t, rel=1e-8)
    found = wild.test(c)
    low, high = found.interval
    assert low < found.estimate < high
    assert wild.p_value(c, low - 0.05) < 0.05 < wild.p_value(c, low + 0.05)
    assert wild.p_value(c, high + 0.05) < 0.05 < wild.p_value(c, high - 0.05)


def test_wild_errors_of_a_fit_and_of_the_command(tmp_path):
    source = write_table(uneven(), tmp_path / "log.parquet")
    options = ("--cluster", "ward", "--se", "wild", "--draws", 999)
    done = run("fit", source, *options, "--out", tmp_path / "m", "--json", tmp_path / "f.json")
    assert done.code == 0, done
    assert "wild bootstrap: t = " in done.out
    found = json.loads((tmp_path / "f.json").read_text())["wild"]["next_x0"]["a0"]
    assert found["clusters"] == 10
    assert found["interval"][0] < found["estimate"] < found["interval"][1]
    with pytest.raises(InputError, match="of two-stage least squares"):
        ivvi.estimate(ivvi.read_logs(source), method="liml", se=StandardErrors("wild", "ward"))


# real data


@pytest.mark.skipif(not DATA.is_dir(), reason="the data are not here")
def test_nlsw88_is_statas():
    pandas = pytest.importorskip("pandas")
    names = ["wage", "tenure", "ttl_exp", "collgrad", "union", "industry"]
    frame = pandas.read_stata(DATA / "nlsw88.dta", convert_categoricals=False)[names].dropna()
    log = ivvi.read_logs(
        frame.astype(float),
        state="ttl_exp,collgrad",
        action="tenure",
        instrument="union",
        next_state="wage",
    )
    with pytest.warns(IvviWarning, match="12 clusters by 'industry' count for"):
        fit = ivvi.estimate(log, se=StandardErrors("wild", "industry", draws=99_999), episodes=True)
    found = fit.inference.wild["wage", "tenure"]
    assert found.t == pytest.approx(2.6040, abs=5e-5)
    assert found.p_value == pytest.approx(0.0444, abs=5e-5)  # all 4,096 signs: no chance in it
    # Stata's Anderson-Rubin p is of 999 signs drawn at random
    assert found.ar_p_value == pytest.approx(0.0370, abs=2 * np.sqrt(0.037 * 0.963 / 999))
    # its search for the ends stops as soon as p is within 2 / 4,096 of 5%; here it goes on
    names = fit.moments.design.phi_names
    wild = WildBootstrap(fit.moments, "wage", draws=99_999)
    for published, end in zip((0.1188, 2.21), found.interval, strict=True):
        p_value = wild.p_value(np.eye(len(names))[names.index("tenure")], published)
        assert p_value == pytest.approx(0.05, abs=2 / 4096)
        assert end == pytest.approx(published, rel=0.012)


@pytest.mark.skipif(not DATA.is_dir(), reason="the data are not here")
def test_rueda_is_ivdiags():
    log = ivvi.read_logs(
        DATA / "rueda.parquet",
        state="lpopulation,lpotencial",
        action="lm_pob_mesa",
        instrument="lz_pob_mesa_f",
        next_state="e_vote_buying",
    )
    found = ivvi.interval(log, "e_vote_buying", "lm_pob_mesa", cluster="muni_code")
    np.testing.assert_allclose(found.intervals, [[-1.263, -0.7046]], atol=5e-4)


# clusters of other verbs


def test_the_bootstrap_of_a_value_follows_the_fit(monkeypatch):
    rows = make_rows(40, 20)
    rows["ward"] = np.asarray(rows["episode"]) // 2
    log = ivvi.read_logs(rows, state="x*", action="a*", instrument="z*")
    fit = ivvi.estimate(log, se=StandardErrors(cluster="ward"), episodes=True)
    assert fit.moments.episodes.by == "ward"
    settings = {"reward": "quadratic:weight=1", "horizon": 5, "against": ("zero",)}
    policy = np.zeros(2)
    worth = ivvi.value(policy, fit, actions=(-1, 1), **settings)
    assert worth.method == "bootstrap"
    assert any("by ward, as those of the fit: clusters are resampled" in n for n in worth.notes)
    both = ivvi.estimate(log, se=StandardErrors(cluster="episode,step"), episodes=True)
    worth = ivvi.value(policy, both, actions=(-1, 1), **settings)
    assert worth.method == "asymptotic"
    assert any("episode and step" in note for note in worth.notes)
    with pytest.raises(InputError, match="clustered by episode and step, and a bootstrap"):
        ivvi.value(policy, both, actions=(-1, 1), method="bootstrap", **settings)
    again = ivvi.value(policy, both, actions=(-1, 1), cluster="ward", log=log, **settings)
    assert any("clustered by ward" in note for note in again.notes)
    with pytest.raises(InputError, match="clustered by ward need the rows"):
        ivvi.value(policy, both, actions=(-1, 1), cluster="ward", **settings)


COMMANDS = {
    "fit": ("--out", "model"),
    "diagnose": (),
    "check": (),
    "interval": ("--output", "x0", "--feature", "a0"),
}


@pytest.mark.parametrize("verb", COMMANDS)
def test_cluster_columns_that_cannot_be_used(verb, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = make_rows(20, 10)
    rows["one"] = np.zeros(200)
    rows["ward"] = np.arange(200) % 9
    table = pa.table(rows).append_column("holes", pa.array([None, *range(199)]))
    pq.write_table(table, "log.parquet")
    for column, fact in (
        ("wrad", "did you mean 'ward'"),
        ("one", "one value in all rows"),
        ("holes", "missing"),
        ("episode,ward,step,x0", "4 cluster columns are given"),
        ("ward,ward", "given twice"),
    ):
        done = run(verb, "log.parquet", *OPTIONS, *COMMANDS[verb], "--cluster", column)
        assert_refused(done, fact)
        assert not Path("model").exists()
    done = run(verb, "log.parquet", *OPTIONS, *COMMANDS[verb], "--cluster", "ward")
    assert done.code == 0, done


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        (("--cluster", "four"), "4 clusters by 'four' are too few for the wild bootstrap"),
        (("--cluster", "ward", "--draws", 10**12), "1,000,000,000,000 draws"),
        (("--cluster", "ward", "--draws", 0), "0 draws"),
        (("--cluster", "ward,episode"), "at most 1 is expected for wild"),
    ],
)
def test_wild_bootstraps_that_cannot_be_made(options, fact, tmp_path):
    rows = make_rows(20, 10)
    rows |= {"four": np.arange(200) % 4, "ward": np.arange(200) % 7}
    source, out = write_table(rows, tmp_path / "log.parquet"), tmp_path / "model"
    done = run("fit", source, *OPTIONS, "--se", "wild", *options, "--out", out)
    assert_refused(done, fact)
    assert not out.exists()
