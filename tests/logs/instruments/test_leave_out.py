"""Leave-one-out instruments beside controls: the own action does not come back."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ivvi

COLUMNS = {"state": "x", "action": "a", "instrument": "loo:judge", "next_state": "y"}
DUMMIES = "y ~ x + C(court) | a ~ loo(judge)"
pytestmark = pytest.mark.filterwarnings("ignore::ivvi.errors.IvviWarning")


def cases(rng, courts=40, judges=3, each=8, rotate=False):
    """Cases of judges in courts, judges of unequal size; one more a changes y by 0.5."""
    sizes = rng.integers(3, 2 * each - 2, size=courts * judges)
    judge = np.repeat(np.arange(courts * judges), sizes)
    n = len(judge)
    court = (judge // judges + rotate * rng.integers(0, 3, n)) % courts
    lean, own = rng.normal(size=courts * judges), rng.normal(size=courts)
    u, x, e, v = rng.normal(size=(4, n))
    a = lean[judge] + own[court] + u + e
    y = 0.5 * a + 2 * own[court] + x + u + v
    return {"x": x, "a": a, "y": y, "court": court, "judge": [f"J{j}" for j in judge]}


def instrument(rows):
    """The instrument of each row, in the order of y."""
    batch = ivvi.read_logs(rows, formula=DUMMIES).to_batch()
    return batch.z[np.argsort(batch.y[:, 0]), 0]


def own_weights(rows):
    """How much of its own action each row's instrument holds, once controls are taken out."""
    order = np.argsort(rows["y"])
    rows = {name: np.asarray(values)[order] for name, values in rows.items()}
    n, z = len(order), instrument(rows)
    W = np.column_stack([np.ones(n), rows["x"], rows["court"][:, None] == np.arange(1, 4)])
    M = np.eye(n) - W @ np.linalg.pinv(W)
    more = ({**rows, "a": rows["a"] + (np.arange(n) == i)} for i in range(n))
    return np.array([M[i] @ (instrument(moved) - z) for i, moved in enumerate(more)])


@pytest.mark.parametrize("rotate", [False, True])
def test_what_controls_leave_of_the_instrument_holds_no_own_action(rotate):
    rng = np.random.default_rng(4)
    weights = own_weights(cases(rng, courts=4, judges=2, each=4, rotate=rotate))
    assert abs(weights.sum()) < 1e-8  # without the adjustment -4.1 and -1.4
    assert abs(weights).max() < 0.03  # without it 0.14 and 0.09


def test_absorbed_effects_and_indicators_give_the_same_effect():
    rows = cases(np.random.default_rng(5), rotate=True)
    absorbed = ivvi.fit(ivvi.read_logs(rows, **COLUMNS), absorb="court")
    dummies = ivvi.fit(ivvi.read_logs(rows, formula=DUMMIES))
    middle = ivvi.fit(ivvi.read_logs(rows, formula="y ~ x | court | a ~ loo(judge)"))
    effects = [fit.to_frame().set_index("feature").coefficient["a"] for fit in (absorbed, dummies)]
    np.testing.assert_allclose(effects[0], effects[1], rtol=1e-8)
    np.testing.assert_allclose(absorbed.W, middle.W)


@pytest.mark.parametrize("rotate", [False, True])
def test_the_effect_within_courts_is_found_without_bias(rotate):
    errors = []
    for seed in range(20):
        log = ivvi.read_logs(cases(np.random.default_rng(seed), rotate=rotate), **COLUMNS)
        row = ivvi.fit(log, absorb="court").to_frame().set_index("feature").loc["a"]
        errors.append((row.coefficient - 0.5) / row.se)
    assert abs(np.mean(errors)) < 4 / np.sqrt(20)  # without the adjustment about -2


def test_effects_of_episodes_leave_the_instrument_as_it_is():
    rng = np.random.default_rng(6)
    rows = cases(rng)
    n = len(rows["a"])
    rows |= {"patient": np.arange(n) // 2, "t": np.arange(n) % 2}
    log = ivvi.read_logs(rows, **COLUMNS, episode="patient", step="t")
    named = COLUMNS | {"instrument": "a_by_judge"}
    plain = ivvi.read_logs(log.to_arrow(), **named, episode="patient", step="t")
    fits = [ivvi.fit(one, absorb="patient").W for one in (log, plain)]
    np.testing.assert_allclose(*fits)


def test_errors_are_clustered_by_the_absorbed_courts_that_hold_the_judges():
    log = ivvi.read_logs(cases(np.random.default_rng(7)), **COLUMNS)
    by = [name for name, _ in ivvi.fit(log, absorb="court").estimate.W_cov.clusters]
    assert by == ["court"]
    log = ivvi.read_logs(cases(np.random.default_rng(7), rotate=True), **COLUMNS)
    by = [name for name, _ in ivvi.fit(log, absorb="court").estimate.W_cov.clusters]
    assert by == ["judge"]


def test_a_file_is_read_as_the_table_in_memory_is(tmp_path):
    rows = cases(np.random.default_rng(8))
    pq.write_table(pa.table(rows), tmp_path / "cases.parquet")
    sources = rows, str(tmp_path / "cases.parquet")
    fits = [ivvi.fit(ivvi.read_logs(one, **COLUMNS), absorb="court").W for one in sources]
    np.testing.assert_allclose(*fits)
