"""Few, uneven and several clusters, and what others print."""

import itertools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ivvi
from helpers import OPTIONS, ROLES, assert_refused, make_rows, run, write_table
from ivvi import InputError, StandardErrors
from ivvi.errors import IvviWarning
from ivvi.fitting.inference_tables import half_widths
from uneven_clusters import uneven

DATA = Path(__file__).parents[4] / "shared" / "data" / "iv"
pytestmark = pytest.mark.filterwarnings(
    "ignore:[0-9]+ clusters by 'ward' count as", "ignore:weak instruments"
)


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
    with pytest.warns(IvviWarning, match="40 clusters by 'episode' count as 3"):
        fit = ivvi.estimate(log)
    assert fit.estimate.freedoms[0, 1] < 3


@pytest.mark.parametrize("kind", ["cr2", "wild"])
def test_few_cluster_corrections_go_on_from_a_checkpoint(kind, tmp_path):
    """A cluster column in no order; the second run finds some of the first one's work done."""
    columns = make_rows(30, 40, d=1)
    columns["ward"] = np.array([f"w{i}" for i in (7 * columns["episode"]) % 11])
    path = write_table(columns, tmp_path / "log.parquet", row_group_size=250)
    errors = ivvi.StandardErrors(kind, "ward", draws=199)
    whole = ivvi.estimate(ivvi.read_logs(path, **ROLES), se=errors)
    checkpoint = ivvi.Checkpoint(tmp_path / "state", every=0)
    offer, left = checkpoint.offer, [2]

    def interrupted(name, state, *, now=False):
        offer(name, state, now=now)
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt

    checkpoint.offer = interrupted
    log = ivvi.read_logs(path, **ROLES)
    with pytest.raises(KeyboardInterrupt):
        ivvi.estimate(log, se=errors, checkpoint=checkpoint)
    fit = ivvi.estimate(log, se=errors, checkpoint=ivvi.Checkpoint(tmp_path / "state"))
    np.testing.assert_allclose(fit.se, whole.se, rtol=1e-8)
    np.testing.assert_allclose(fit.estimate.freedoms, whole.estimate.freedoms, rtol=1e-6)
    assert fit.to_json()["clusters"] == {"ward": 11}
    if kind == "wild":
        one, two = (f.inference.wild["next_x0", "a0"].interval for f in (fit, whole))
        np.testing.assert_allclose(one, two, rtol=1e-6)


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
    assert "30 clusters by 'ward' count as" in odd.summary()
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


# real data


@pytest.mark.skipif(not DATA.is_dir(), reason="the data are not here")
def test_errors_of_rueda_are_those_of_ivdiag():
    log = ivvi.read_logs(
        DATA / "rueda.parquet",
        state="lpopulation,lpotencial",
        action="lm_pob_mesa",
        instrument="lz_pob_mesa_f",
        next_state="e_vote_buying",
    )
    confidence_set = ivvi.interval(log, "e_vote_buying", "lm_pob_mesa", cluster="muni_code")
    np.testing.assert_allclose(confidence_set.intervals, [[-1.263, -0.7046]], atol=5e-4)


# clusters of other verbs


@pytest.mark.usefixtures("few_episodes")
def test_the_bootstrap_of_a_value_follows_the_fit(monkeypatch):
    rows = make_rows(40, 20)
    rows["ward"] = np.asarray(rows["episode"]) // 2
    log = ivvi.read_logs(rows, state="x*", action="a*", instrument="z*")
    fit = ivvi.estimate(log, se=StandardErrors(cluster="ward"), episodes=True)
    assert fit.moments.episodes.by == "ward"
    settings = {"reward": "quadratic:weight=1", "horizon": 5, "against": ("zero",), "draws": 20}
    policy = np.zeros(2)
    worth = ivvi.value(policy, fit, actions=(-1, 1), **settings)
    assert worth.method == "bootstrap"
    assert any("by ward, as the fit is: clusters are resampled" in n for n in worth.notes)
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
def test_cluster_columns_that_cannot_be_used_are_refused(verb, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = make_rows(20, 10)
    rows["one"] = np.zeros(200)
    rows["ward"] = np.arange(200) % 50
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
