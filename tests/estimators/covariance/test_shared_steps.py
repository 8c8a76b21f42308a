"""Instruments that all episodes, or those of a region, share at a step."""

import numpy as np
import pytest

import ivvi
from helpers import write_table
from ivvi import StandardErrors
from ivvi.errors import IvviWarning
from ivvi.estimators.covariance.meat import Piece
from ivvi.estimators.covariance.scores import Scored
from ivvi.estimators.covariance.step_dependence import step_dependence
from ivvi.fitting.inference_tables import half_widths

pytestmark = pytest.mark.filterwarnings(
    "ignore:[0-9]+ clusters by 'ward' count as", "ignore:weak instruments"
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
    assert "z0: similar in all episodes at a step (39 of them)" in fit.summary()
    one, two = (f.diagnostics.effective_f.value for f in (fit, both))
    assert one <= two * (1 + 1e-9)
    assert alone.diagnostics.effective_f.value > 2 * one
    for method in ("ar", "clr"):
        confidence_set = ivvi.interval(log, "x0", "a0", method=method)
        wanted = ivvi.interval(log, "x0", "a0", method=method, cluster="episode,step")
        of_fit = ivvi.interval(fit, "x0", "a0", method=method, log=log)
        assert confidence_set.clusters == ("episode", "step")
        (low, high), (least, most) = confidence_set.intervals[0], wanted.intervals[0]
        assert low <= least + 1e-8
        assert most <= high + 1e-8
        np.testing.assert_allclose(confidence_set.intervals, of_fit.intervals, rtol=1e-8)
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


@pytest.mark.filterwarnings("ignore:.*follows a trend, a season or lasting shocks of")
def test_what_lasts_from_step_to_step_counts_more():
    """What episodes share, by step less by row, counts (1 + r) / (1 - r) times."""
    log = ivvi.read_logs(lasting(1, weeks=150, last=0.8), **NEXT)
    fit = ivvi.estimate(log)
    factor = fit.errors.inflation
    assert 2 < factor < 10
    assert "it persists from one step to the next" in fit.summary()
    episode, step, row = (
        ivvi.estimate(log, se=StandardErrors("clustered", column)).se ** 2
        for column in ("episode", "step", "row")
    )
    counted = episode + factor * (step - row)
    assert (fit.se**2 >= counted * (1 - 1e-8)).all()
    assert (fit.se**2 <= 1.2 * counted).all()
    confidence_set = ivvi.interval(log, "x0", "a0")
    both = ivvi.interval(log, "x0", "a0", cluster="episode,step")
    assert np.ptp(confidence_set.intervals) > 1.4 * np.ptp(both.intervals)


@pytest.mark.filterwarnings("ignore:.*follows a trend, a season or lasting shocks of")
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
    assert "instrument times residual: similar across episodes at a step" in fit.summary()
    assert ivvi.interval(log).clusters == ("episode", "step")
    alone = ivvi.estimate(log, se=StandardErrors("clustered", "episode"))
    assert fit.se[0, 2] > 1.3 * alone.se[0, 2]
    assert step_dependence(fit.moments, "step").factor < 1.2  # sums alone do not tell


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*follows a trend, a season or lasting shocks of")
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
    dependence = step_dependence(fit.moments, "step")
    assert dependence.rows == pytest.approx(25)
    assert dependence.instruments["z0"] == pytest.approx(1, abs=1e-6 + 0.03)
    assert dependence.residuals["next_x0"] == pytest.approx(0.3, abs=5 * 0.3 * np.sqrt(2 / 400))


@pytest.mark.filterwarnings("ignore:linear features are too simple")
@pytest.mark.parametrize(
    "name", ["linear", "nonlinear", pytest.param("sepsis", marks=pytest.mark.thorough)]
)
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
    with pytest.warns(IvviWarning, match="z0: similar in all episodes at a step, so only 5 steps"):
        fit = ivvi.estimate(log)
    assert list(fit.to_json()["clusters"]) == ["episode"]
    assert any("only 5 steps are independent" in text for text in fit.to_json()["warnings"])


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
    assert "the overlap of the two clusterings is counted twice" in fit.errors.note
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
def test_checks_keep_their_size_with_a_shared_instrument(weeks):
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


def test_errors_by_two_columns_of_a_saved_fit_say_what_is_left_out_without_rows(tmp_path):
    log = ivvi.read_logs(panel(), **RIVAL)
    fit = ivvi.estimate(log, episodes=True)
    fit.save(tmp_path / "fit")
    loaded = ivvi.load_fit(tmp_path / "fit")
    assert len(loaded.errors.clusters) == 2
    note = loaded.errors.without_rows("episode").note
    assert "is counted twice" in note
    assert "may make errors too small" in note
