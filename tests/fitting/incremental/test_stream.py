"""Rows that come one delivery after another: moments and descent-ascent."""

import itertools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers import ROLES, changed, make_rows, take, write_table
from ivvi import SGDA, InputError, Stream, estimate, read_logs
from ivvi.errors import ColumnError, DataError, FileError, IvviWarning
from ivvi.estimators import Exact, LeastSquares
from ivvi.estimators.sgda.schedules import ConstantSteps
from ivvi.logs import Batch

EPISODES, HORIZON = 60, 50
ROWS = EPISODES * HORIZON


@pytest.fixture(scope="module")
def rows():
    return make_rows(EPISODES, HORIZON, seed=3)


def part(rows, start, stop):
    return take(rows, np.arange(start, stop))


def pieces(rows, *cuts):
    edges = (0, *cuts, ROWS)
    return [part(rows, i, j) for i, j in itertools.pairwise(edges)]


def assert_same_fit(one, two, **tolerance):
    for name in ("W", "K", "se"):
        np.testing.assert_allclose(getattr(one, name), getattr(two, name), **tolerance)
    assert one.counts == two.counts


CUTS = {"even": (500, 1000), "inside episodes": (1, 2, 517, 518, 1999), "one by one": range(1, 60)}


@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("method", [Exact(), Exact(ridge=0.1), LeastSquares()])
def test_deliveries_are_one_log(rows, cuts, method):
    """Episodes go on from one delivery to the next: no transition is lost between them."""
    stream = Stream(method=method, **ROLES).partial_fit(iter(pieces(rows, *cuts)))
    whole = estimate(read_logs(rows, **ROLES), method=method)
    assert_same_fit(stream.fit(), whole, rtol=1e-9, atol=1e-11)
    assert stream.n == whole.counts.transitions
    assert stream.shard.moments.n == stream.n


def test_every_kind_of_delivery_is_taken(rows, tmp_path):
    pandas = pytest.importorskip("pandas")
    polars = pytest.importorskip("polars")
    table = pa.table(rows)
    path = write_table(part(rows, 1500, 2000), tmp_path / "rows.parquet", row_group_size=70)
    stream = Stream(**ROLES)
    stream.partial_fit(part(rows, 0, 500))
    stream.partial_fit(table.slice(500, 300)).partial_fit(table.slice(800, 200).to_batches()[0])
    stream.partial_fit(pandas.DataFrame(part(table.to_pydict(), 1000, 1250)))
    stream.partial_fit(polars.DataFrame(part(rows, 1250, 1500)))
    stream.partial_fit(path)
    stream.partial_fit(read_logs(part(rows, 2000, 2500), **ROLES))
    stream.partial_fit(table.slice(i, 100) for i in range(2500, ROWS, 100))
    assert_same_fit(stream.fit(), estimate(read_logs(rows, **ROLES)), rtol=1e-9, atol=1e-11)


def test_row_groups_of_a_file_are_deliveries(rows, tmp_path):
    path = write_table(rows, tmp_path / "rows.parquet", row_group_size=130)
    stream = Stream(**ROLES)
    with pq.ParquetFile(path) as file:
        stream.partial_fit(file.read_row_group(i) for i in range(file.num_row_groups))
    assert_same_fit(stream.fit(), estimate(read_logs(path, **ROLES)), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_stream_takes_batches_of_transitions(confounded, weighted, log_of):
    x, a, z, y = confounded(0, n=400)
    weight = np.random.default_rng(1).uniform(size=400) if weighted else None
    stream = Stream()
    for i in range(0, 400, 90):
        s = slice(i, i + 90)
        stream.partial_fit(Batch(x[s], a[s], z[s], y[s], None if weight is None else weight[s]))
    fit, whole = stream.fit(), estimate(log_of(x, a, z, y, weight))
    np.testing.assert_allclose(fit.W, whole.W, rtol=1e-10)
    assert fit.counts == whole.counts
    assert fit.roles.outputs == ("next_x0", "next_x1")


@pytest.mark.filterwarnings("ignore:stalled")
def test_equal_weights_are_no_weights(confounded):
    x, a, z, y = confounded(0, n=3000)
    plain, weighted = (
        Stream(method=SGDA("decay:0.05")).partial_fit(Batch(x, a, z, y, weight)).fit().W
        for weight in (None, np.full(3000, 7.0))
    )
    np.testing.assert_allclose(weighted, plain, rtol=1e-9)


@pytest.mark.parametrize(
    "method",
    [
        Exact(),
        SGDA(),
        pytest.param(SGDA(batch="episode"), marks=pytest.mark.thorough),
        pytest.param(SGDA(memory="linear"), marks=pytest.mark.thorough),
        pytest.param(SGDA("decay:0.05", batch=1), marks=pytest.mark.thorough),
    ],
    ids=["exact", "sgda", "episodes", "linear", "decay"],
)
@pytest.mark.filterwarnings("ignore:stalled", "ignore:weak instruments")
@pytest.mark.parametrize("features", ["linear", "fourier:20"])
def test_a_saved_stream_goes_on_with_the_same_bits(rows, method, features, tmp_path):
    parts = pieces(rows, 517, 700, 1933, 2000)
    one = Stream(features, method=method, **ROLES)
    two = Stream(features, method=method, **ROLES)
    for i, delivery in enumerate(parts):
        one.partial_fit(delivery)
        two.partial_fit(delivery)
        two.save(tmp_path / "state")
        two = Stream.load(tmp_path / "state")
        assert two.n == one.n
        assert i < 2 or np.array_equal(one.fit().W, two.fit().W)
    assert one.fit().estimate.noise_cov.tobytes() == two.fit().estimate.noise_cov.tobytes()
    assert one.counts == two.counts


@pytest.mark.parametrize("batch", [1, 32, "episode"])
def test_how_the_rows_of_descent_are_delivered_changes_nothing(rows, batch):
    fits = [
        Stream(method=SGDA(batch=batch), **ROLES).partial_fit(iter(pieces(rows, *cuts))).fit()
        for cuts in ((), (517, 700, 1933), range(50, ROWS, 50))
    ]
    for fit in fits[1:]:
        np.testing.assert_allclose(fit.W, fits[0].W, rtol=1e-9, atol=1e-12)
        assert fit.estimate.trace.t == fits[0].estimate.trace.t


def deliveries(confounded, seed, n=10_000, size=1700):
    parts = confounded(seed, n)
    return (Batch(*(part[i : i + size] for part in parts)) for i in range(0, n, size))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_descent_on_a_stream_reaches_the_closed_form(seed, confounded):
    fit = Stream(method="sgda").partial_fit(deliveries(confounded, seed)).fit()
    assert fit.method == "sgda"
    assert fit.estimate.trace.status == "converged"
    assert fit.estimate.trace.error <= 1.0
    assert fit.settings["schedule"] == "auto"


def test_a_stream_in_linear_memory_is_judged_on_rows_it_has_not_used(confounded):
    stream = Stream(method=SGDA(memory="linear")).partial_fit(deliveries(confounded, 0, 40_000))
    fit = stream.fit()
    assert fit.estimate.trace.measure == "moment conditions"
    assert fit.estimate.trace.status == "converged"
    assert np.isnan(fit.se).all()
    assert fit.to_json()["n"] == stream.n
    with pytest.raises(InputError, match="keeps no moments"):
        _ = stream.shard


def test_a_folder_that_grows_is_followed_file_by_file(rows, tmp_path):
    folder, stream = tmp_path / "days", Stream(**ROLES)
    folder.mkdir()
    assert stream.follow(folder) == []
    first, second, third = pieces(rows, 500, 1500)
    one = write_table(first, folder / "1.parquet")
    assert stream.follow(folder) == [one]
    assert stream.follow(folder) == []
    two = write_table(second, folder / "2.parquet")
    write_table(second, folder / ".half.parquet")
    (folder / "notes.txt").write_text("no log")
    assert stream.follow(folder) == [two]
    stream.save(tmp_path / "state")
    stream = Stream.load(tmp_path / "state")
    write_table(first, folder / "again.parquet")  # the same content under another name
    three = write_table(third, folder / "3.parquet")
    assert stream.follow(folder) == [three]
    assert len(stream.files) == 3
    assert_same_fit(stream.fit(), estimate(read_logs(rows, **ROLES)), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("method", ["exact", "sgda"])
def test_a_delivery_that_fails_leaves_no_trace(rows, method, tmp_path):
    bad = part(rows, 1500, 3000)
    path = write_table(changed(bad, x0={1400: None}), tmp_path / "bad.parquet", row_group_size=100)
    one, two = (Stream(method=method, **ROLES).partial_fit(part(rows, 0, 1500)) for _ in range(2))
    with pytest.raises(DataError, match="missing"):
        one.partial_fit(path)
    for stream in (one, two):
        stream.partial_fit(bad)
    np.testing.assert_array_equal(one.fit().W, two.fit().W)
    assert one.counts == two.counts


def test_what_cannot_be_streamed_is_refused(rows, tmp_path):
    stream = Stream(**ROLES)
    with pytest.raises(DataError, match="the stream is empty"):
        stream.fit()
    stream.partial_fit(part(rows, 0, 1))
    with pytest.raises(DataError, match="no complete transition yet"):
        stream.fit()
    stream.partial_fit(part(rows, 1, 500))
    with pytest.raises(ColumnError, match="'x1' is not in the log"):
        stream.partial_fit({name: v for name, v in rows.items() if name != "x1"})
    with pytest.raises(InputError, match="other outputs"):
        stream.partial_fit(read_logs(rows, **ROLES, reward="reward"))
    with pytest.raises(DataError, match="the first step needs 1000"):
        Stream(method="sgda", **ROLES).partial_fit(part(rows, 0, 500)).fit()
    few = Stream(method=SGDA(memory="linear"), **ROLES).partial_fit(part(rows, 0, 530))
    with pytest.raises(DataError, match="no rows are left to check"):
        few.fit()
    for method in (SGDA(passes=2), SGDA(order="shuffled"), SGDA(average="tail")):
        with pytest.raises(InputError, match="allows one pass"):
            Stream(method=method, **ROLES).partial_fit(rows)
    (tmp_path / "state").write_text("nothing")
    with pytest.raises(FileError, match="not a stream file of ivvi"):
        Stream.load(tmp_path / "state")
    by_object = Stream(method=SGDA(ConstantSteps(0.1, 0.1)), **ROLES).partial_fit(rows)
    with pytest.raises(InputError, match="schedule is given as a word"):
        by_object.save(tmp_path / "state")


def test_an_instrument_that_copies_the_action_is_noticed(rows):
    stream = Stream(**ROLES)
    for delivery in pieces(changed(rows, z0=rows["a0"]), 500):
        stream.partial_fit(delivery)
    with pytest.raises(DataError, match="'z0' equals the action column 'a0'"):
        stream.fit()


def test_a_stream_says_where_it_cannot_keep_its_episodes(rows, monkeypatch):
    """Errors are clustered while episodes are kept; beyond that, the verb itself says so."""
    stream = Stream(**ROLES).partial_fit(rows)
    assert stream.fit().to_json()["clusters"] == {"episode": 60}
    monkeypatch.setattr("ivvi.fitting.incremental.stream_state.MOST_BYTES", 1000)
    small = Stream(**ROLES).partial_fit(rows)
    with pytest.warns(IvviWarning, match="60 episodes are too many for a stream"):
        fit = small.fit()
    assert fit.to_json()["se_kind"] == "unadjusted"


def days(rows, length, horizon=HORIZON):
    """Cut a log into deliveries of `length` steps of every episode."""
    step = np.asarray(rows["step"])
    cuts = range(0, horizon, length)
    return [take(rows, np.flatnonzero((step >= t) & (step < t + length))) for t in cuts]


@pytest.mark.parametrize("length", [1, 5, 7])
@pytest.mark.parametrize("derived", [True, False], ids=["next rows", "next columns"])
def test_a_delivery_may_hold_one_day_of_every_patient(rows, length, derived, tmp_path):
    """Each patient's last row waits for the next day: no transition is lost, no episode new."""
    columns = ROLES if derived else ROLES | {"next_state": "next_x*"}
    if not derived:
        rows = {name: np.asarray(values) for name, values in rows.items()}
        rows |= {f"next_x{i}": np.roll(rows[f"x{i}"], -1) for i in range(2)}
        rows = take(rows, np.flatnonzero(rows["step"] < HORIZON - 1))
    stream = Stream(**columns)
    for i, delivery in enumerate(days(rows, length)):
        if i == 1:
            order = np.random.default_rng(i).permutation(len(delivery["step"]))
            delivery = write_table(take(delivery, order), tmp_path / f"{i}.parquet")
        stream.partial_fit(delivery)
        if i == 3:
            stream.save(tmp_path / "state")
            stream = Stream.load(tmp_path / "state")
    whole = estimate(read_logs(rows, **columns))
    assert stream.counts.episodes == EPISODES
    assert stream.counts.transitions == EPISODES * (HORIZON - 1)
    assert_same_fit(stream.fit(), whole, rtol=1e-9, atol=1e-11)


def test_patients_who_go_on_may_miss_a_value(rows):
    """A missing day is a gap in the patient's rows, wherever deliveries are cut."""
    for column, row in (("a0", 4), ("x1", 5), ("x1", 59), ("z0", 110)):
        rows = changed(rows, **{column: {row: None}})
    stream = Stream(**ROLES, drop_missing=True).partial_fit(iter(days(rows, 5)))
    whole = estimate(read_logs(rows, **ROLES, drop_missing=True))
    assert_same_fit(stream.fit(), whole, rtol=1e-9, atol=1e-11)
    with pytest.raises(DataError, match="row 4"):
        Stream(**ROLES).partial_fit(iter(days(rows, 5)))


def test_episodes_that_begin_anew_are_new_ones():
    """Deliveries that each count episodes and steps from zero hold different episodes."""
    stream = Stream(**ROLES)
    for seed in range(3):
        stream.partial_fit(make_rows(6, 10, seed=seed))
    assert stream.counts.episodes == 18
    assert stream.counts.transitions == 3 * 54


def test_the_last_rows_of_too_many_episodes_are_given_up_with_a_warning(rows, monkeypatch):
    monkeypatch.setattr("ivvi.fitting.incremental.open_episodes.MOST_BYTES", 2000)
    with pytest.warns(IvviWarning, match="those of the 15 oldest are dropped"):
        Stream(**ROLES).partial_fit(iter(days(rows, 5)[:2]))


def test_a_stream_is_shown_in_one_line(rows):
    stream = Stream(method="2sls", **ROLES)
    assert repr(stream) == "Stream(exact, n=0)"
    assert repr(stream.partial_fit(rows)) == f"Stream(exact, n={stream.n:,})"
    assert stream.n > 0
