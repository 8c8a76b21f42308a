"""How long an effect lasts: local projections with the instrument beside powers of W."""

import json

import numpy as np
import pytest

import ivvi
from helpers import assert_refused, run, write_table

M = np.array([[0.6, 0.2], [-0.1, 0.7]])
N = np.array([-0.5, 0.3])
K = np.array([0.4, -0.3])


def panel(seed, episodes=60, steps=20, *, clip=False, memory=0.0, lag=0.0):
    """x' = M x + lag x_before + N a + e, where a leans on x, z and the hidden e."""
    rng = np.random.default_rng(seed)
    x, before, z, rows = rng.normal(size=(episodes, 2)), np.zeros((episodes, 2)), 0.0, []
    for t in range(steps):
        z = memory * z + rng.normal(size=episodes)
        e = rng.normal(size=(episodes, 2))
        a = x @ K + z + 0.7 * e[:, 0] + 0.3 * rng.normal(size=episodes)
        a = np.clip(a, -1, 1) if clip else a
        rows.append((np.arange(episodes), np.full(episodes, t), x[:, 0], x[:, 1], a, z))
        x, before = x @ M.T + lag * before + a[:, None] * N + e, x
    names = ("episode", "step", "x0", "x1", "a0", "z0")
    columns = (np.array(part).T.ravel() for part in zip(*rows, strict=True))
    return dict(zip(names, columns, strict=True))


def truth(horizon, *, follow):
    moved, response = N, []
    for _ in range(horizon):
        response.append(moved[0])
        moved = (M + np.outer(N, K) * follow) @ moved
    return np.array(response)


def shared(seed=3, episodes=30, steps=40):
    """Rows whose instrument and shocks are of the step, and last; regions and wards of episodes."""
    rng = np.random.default_rng(seed)
    x, common, z, rows = rng.normal(size=episodes), 0.0, 0.0, []
    for t in range(steps):
        z, common = 0.8 * z + rng.normal(), 0.8 * common + rng.normal()
        u, own = rng.normal(size=episodes), z + 0.3 * rng.normal(size=episodes)
        who = np.arange(episodes)
        rows.append((who, np.full(episodes, t), x, own + u, own, who % 10, who % 7))
        x = 0.5 * x - 0.5 * (own + u) + u + common + rng.normal(size=episodes)
    names = ("episode", "step", "x0", "a0", "z0", "region", "ward")
    columns = (np.array(part).T.ravel() for part in zip(*rows, strict=True))
    return dict(zip(names, columns, strict=True))


ERRORS = [
    {},
    {"se": "robust"},
    {"se": "clustered"},
    {"se": ivvi.StandardErrors("hac", bandwidth=5)},
    {"se": ivvi.StandardErrors("robust", debiased=True)},
    {"se": ivvi.StandardErrors(debiased=False)},
    {"cluster": "region"},
    {"cluster": "episode,step"},
    {"cluster": "region,ward,step"},
]


@pytest.mark.filterwarnings("ignore:z0. similar in all episodes")
@pytest.mark.parametrize("asked", ERRORS, ids=str)
def test_the_first_response_has_the_standard_error_of_the_fit(asked):
    """At h = 0 it is the fit's own coefficient, whatever the errors are."""
    log = ivvi.read_logs(shared(), state="x0", action="a0", instrument="z0")
    fit, response = ivvi.fit(log, **asked), ivvi.respond(log, "a0", horizon=3, **asked)
    at = fit.estimate.design.phi_names.index("a0")
    assert response.estimate[0] == pytest.approx(fit.W[0, at], rel=1e-9)
    assert response.se[0] == pytest.approx(fit.se[0, at], rel=1e-9)
    if not asked:
        assert fit.errors.clusters == ("episode", "step")
        assert fit.errors.inflation > 1.2


def test_clusters_are_taken_from_either_argument_and_must_agree():
    log = ivvi.read_logs(shared(), state="x0", action="a0", instrument="z0")
    errors = ivvi.StandardErrors("clustered")
    named = ivvi.StandardErrors("clustered", cluster="ward")
    for verb in (ivvi.fit, lambda log, **asked: ivvi.respond(log, "a0", horizon=2, **asked)):
        both = verb(log, se=errors, cluster="region")
        assert np.array_equal(both.se, verb(log, cluster="region").se)
        with pytest.raises(ivvi.InputError, match="given twice, in se and in cluster"):
            verb(log, se=named, cluster="region")
    assert ivvi.interval(log, se=errors, cluster="region").clusters == ("region",)
    one, two = ivvi.diagnose(log, cluster="region"), ivvi.diagnose(log)
    assert one.to_json() == ivvi.fit(log, cluster="region").diagnostics.to_json() != two.to_json()
    with pytest.raises(ivvi.InputError, match="a fit has its own"):
        ivvi.diagnose(ivvi.fit(log), cluster="region")


CASES = [
    ("held", True),
    pytest.param("held", False, marks=pytest.mark.thorough),
    ("follow", False),
]


@pytest.mark.parametrize(("later", "clip"), CASES)
def test_responses_are_powers_of_the_dynamics(later, clip):
    """Held, whatever rule the actions follow; following, with the rule's slopes in the power."""
    response = ivvi.respond(panel(1, 200, clip=clip), "a0", "x0", 6, later=later)
    known = truth(6, follow=later == "follow")
    assert np.all(np.abs(response.estimate - known) < 3 * response.se)
    assert np.all(np.abs(response.implied.estimate - known) < 3 * response.implied.se)
    assert np.all((response.lower <= response.low) & (response.high <= response.upper))
    assert response.agreement.p_value > 0.01
    assert all(
        low <= k <= high
        for one, k in zip(response.robust, known, strict=True)
        for low, high in one.intervals
    )


def test_the_first_horizon_is_the_fit_itself():
    data = panel(2)
    fit, response = ivvi.fit(data), ivvi.respond(data, "a0", "x1", 3)
    assert np.isclose(response.estimate[0], fit.W[1, 3], rtol=1e-12)
    assert np.isclose(response.se[0], fit.se[1, 3], rtol=1e-9)
    assert np.isclose(response.implied.se[0], fit.se[1, 3], rtol=1e-9)
    low, high = (
        fit.to_frame().set_index(["output", "feature"]).loc[("next_x1", "a0")][["low", "high"]]
    )
    # degrees of freedom are rounded in tables of a fit
    assert np.allclose([response.low[0], response.high[0]], [low, high], rtol=1e-4)
    robust = ivvi.interval(data, "x1", "a0")
    assert np.allclose(response.robust[0].intervals, robust.intervals)


@pytest.mark.parametrize("later", ["held", "follow"])
def test_each_horizon_is_two_stage_least_squares_of_leads(later):
    """The same regressions on a table of leads made by hand, with its clustered errors."""
    data, h = panel(3, 40, 12), 2
    wide = {name: values.reshape(40, 12) for name, values in data.items()}
    rows = slice(0, 12 - h - 1)
    steps = range(h + 1 if later == "held" else 1)

    def ahead(name, j):
        return wide[name][:, j : j + 12 - h - 1].ravel()

    table = {name: wide[name][:, rows].ravel() for name in ("episode", "step", "x0", "x1")}
    table |= {f"a{j}": ahead("a0", j) for j in steps} | {f"z{j}": ahead("z0", j) for j in steps}
    table["y"] = ahead("x0", h + 1)
    fit = ivvi.fit(ivvi.read_logs(table, state="x0,x1", next_state="y"), se="clustered")
    response = ivvi.respond(data, "a0", "x0", h + 1, later=later)
    at = fit.estimate.design.phi_names.index("a0")
    assert np.isclose(response.estimate[h], fit.W[0, at], rtol=1e-10)
    assert np.isclose(response.se[h], fit.se[0, at], rtol=1e-9)
    assert response.rows[h] == fit.estimate.n


def test_the_standard_error_of_the_implied_response_is_that_of_the_delta_method():
    data = panel(4)
    fit = ivvi.fit(data, se=ivvi.StandardErrors(joint=True))
    response = ivvi.respond(data, "a0", "x0", 4)

    def implied(W):
        return W[0, 1:3] @ W[:, 1:3] @ W[:, 1:3] @ W[:, 3]

    W, gradient = fit.W, np.zeros(fit.W.size)
    for i in range(W.size):
        step = np.zeros(W.size)
        step[i] = 1e-6
        moved = step.reshape(W.shape)
        gradient[i] = (implied(W + moved) - implied(W - moved)) / 2e-6
    assert np.isclose(response.implied.estimate[3], implied(W))
    variance = gradient @ fit.estimate.W_cov.joint @ gradient
    assert np.isclose(response.implied.se[3] ** 2, variance, rtol=1e-5)


def test_a_missing_lag_is_found_and_lags_repair_it():
    data = panel(5, 150, lag=-0.4)
    assert ivvi.respond(data, "a0", "x0", 5).agreement.p_value < 1e-4
    log = ivvi.read_logs(data, lags=1)
    assert ivvi.respond(log, "a0", "x0", 5).agreement.p_value > 0.01


def test_an_instrument_with_memory_is_told_where_later_actions_follow():
    data = panel(6, 100, memory=0.6)
    follow = ivvi.respond(data, "a0", horizon=3, later="follow")
    assert any("predicts its next value" in note for note in follow.notes)
    assert follow.agreement is None
    assert follow.push_lasts
    headline, *_ = follow.summary().splitlines()
    assert "A lasting push of a0 (the log's later actions follow it)" in headline
    anew = ivvi.respond(panel(6, 100), "a0", horizon=3, later="follow")
    assert anew.summary().startswith("Response     One more a0 changes")
    assert not anew.push_lasts
    held = ivvi.respond(data, "a0", horizon=5)
    assert not held.notes
    assert np.all(np.abs(held.estimate - truth(5, follow=False)) < 3 * held.se)


def test_rows_that_are_not_consecutive_are_not_ahead_of_each_other():
    data = panel(7, 80, 12)
    log = ivvi.read_logs(data, where="step != 5")
    response = ivvi.respond(log, "a0", horizon=4)
    # transitions of steps 0..4, and of 6..11 less one; each horizon loses one of both
    assert response.rows == (80 * 10, 80 * 8, 80 * 6, 80 * 4)


def test_small_batches_and_shuffled_rows_change_nothing(monkeypatch):
    data = panel(8, 30, 10)
    first = ivvi.respond(data, "a0", horizon=4)
    monkeypatch.setattr("ivvi.logs.log.batch_rows", lambda roles: 7)
    order = np.random.default_rng(0).permutation(300)
    second = ivvi.respond({name: v[order] for name, v in data.items()}, "a0", horizon=4)
    assert np.allclose(first.estimate, second.estimate)
    assert np.allclose(first.se, second.se)
    assert np.isclose(first.agreement.value, second.agreement.value)


def test_one_long_series_has_errors_that_reach_over_the_horizons():
    response = ivvi.respond(panel(9, 1, 1500), "a0", horizon=5)
    assert "HAC along episodes" in response.errors
    assert int(response.errors.split(", ")[1].split()[0]) >= 5
    assert np.all(np.abs(response.estimate - truth(5, follow=False)) < 3.5 * response.se)
    assert response.agreement.df == (4,)


def test_two_way_clusters_are_those_of_the_fit():
    data = panel(10, 30, 10)
    both = ivvi.StandardErrors("clustered", "episode,step")
    response, fit = ivvi.respond(data, "a0", "x0", 3, se=both), ivvi.fit(data, se=both)
    assert np.isclose(response.se[0], fit.se[0, 3], rtol=1e-9)


def test_weights_of_rows_count():
    """Weights of zero drop rows; others are those of the fit."""
    data = panel(15, 50, 12)
    weight = np.random.default_rng(0).integers(0, 3, 600).astype(float)
    log = ivvi.read_logs(data | {"w": weight}, weight="w")
    response, fit = ivvi.respond(log, "a0", "x0", 3), ivvi.fit(log)
    assert np.isclose(response.estimate[0], fit.W[0, 3])
    assert np.isclose(response.se[0], fit.se[0, 3], rtol=1e-9)
    assert np.isclose(response.implied.se[0], fit.se[0, 3], rtol=1e-9)


def test_weak_instruments_are_told_and_robust_sets_are_unbounded():
    data = panel(16, 60, 8)
    data["z0"] = np.random.default_rng(1).normal(size=480)
    response = ivvi.respond(data, "a0", horizon=3)
    assert any("weak at h = 0, 1, 2" in note for note in response.notes)
    assert not np.isfinite(response.robust[2].ends).all()
    json.dumps(response.to_json(), allow_nan=False)


def test_a_response_is_told_like_every_result(tmp_path):
    response = ivvi.respond(panel(11), "a0", "x0", 4)
    json.dumps(response.to_json(), allow_nan=False)
    assert "certain to matter up to h" in response.brief.to_json()["response"]
    assert list(response.to_frame()["horizon"]) == [0, 1, 2, 3]
    assert "<table>" in response._repr_html_()
    assert "\n" not in repr(response)
    response.plot(tmp_path / "response.svg")
    assert (tmp_path / "response.svg").exists()


def test_the_shell_shows_draws_and_refuses(tmp_path):
    data = panel(12, 30, 6)
    write_table(data, tmp_path / "log.parquet")
    columns = ("--state", "x0,x1", "--action", "a0", "--instrument", "z0")
    options = (tmp_path / "log.parquet", *columns, "--output", "x0")
    out, figure = tmp_path / "out.json", tmp_path / "figure.png"
    shown = run("respond", *options, "--horizon", "3", "--json", out, "--plot", figure)
    assert shown.code == 0
    assert "later actions held fixed" in shown.out
    assert json.loads(out.read_text())["horizon"] == 3
    assert figure.exists()
    assert_refused(run("respond", *options, "--horizon", "6"), "horizon is 6", "at most 5")
    assert_refused(run("respond", *options, "--horizon", "0"), "horizon is 0")
    assert_refused(run("respond", *options[:-1], "age"), "no output 'age'")
    assert_refused(run("respond", *options, "--of", "dose"), "no action 'dose'")
    assert_refused(run("respond", *options, "--later", "free"), "held")
    assert_refused(run("respond", *options, "--se", "wild"), "overlap")
    write_table(
        {n: v for n, v in data.items() if n != "episode"} | {"y": data["x0"]},
        tmp_path / "flat.parquet",
    )
    flat = (tmp_path / "flat.parquet", *columns, "--next-state", "y")
    assert_refused(run("respond", *flat), "no episode column")


def test_an_instrument_that_never_changes_is_refused_unless_later_actions_follow():
    data = panel(13, 100, 8)
    data["z0"] = np.repeat(np.random.default_rng(0).normal(size=100), 8)
    data["a0"] = data["a0"] + data["z0"]
    with pytest.raises(ivvi.InputError, match="do not change from step to step"):
        ivvi.respond(data, "a0", horizon=3)
    assert len(ivvi.respond(data, "a0", horizon=3, later="follow").estimate) == 3


def test_columns_that_are_not_the_next_states_have_projections_and_no_powers():
    data = panel(14)
    data["y"] = data["x0"] + data["a0"]
    response = ivvi.respond(ivvi.read_logs(data, next_state="y"), "a0", horizon=3)
    assert response.implied is None
    assert response.agreement is None
    assert "powers" in response.reason
    assert np.isfinite(response.estimate).all()


@pytest.mark.slow
@pytest.mark.parametrize(("later", "clip"), [("held", True), ("follow", False)])
def test_the_agreement_test_keeps_its_size(later, clip):
    """500 small logs: 3 to 7% rejected at 5%; responses equal to powers of W but for chance."""
    known, rejected, far, gaps = truth(5, follow=later == "follow"), 0, 0, []
    for seed in range(500):
        response = ivvi.respond(panel(100 + seed, 60, 20, clip=clip), "a0", "x0", 5, later=later)
        rejected += response.agreement.p_value < 0.05
        far += np.sum(np.abs(response.estimate - known) > 3 * response.se)
        gaps.append(response.estimate - response.implied.estimate)
    assert 15 <= rejected <= 35
    assert far <= 2500 * 0.0027 * 3
    mean, spread = np.mean(gaps, axis=0)[1:], np.std(gaps, axis=0)[1:]
    assert np.all(np.abs(mean) < 3 * spread / np.sqrt(500))


@pytest.mark.parametrize("later", ["held", "follow"])
def test_by_default_the_horizon_is_as_long_as_the_episodes_allow(later):
    short = ivvi.respond(panel(3, 100, 6), "a0", later=later)
    assert short.horizon == 5
    assert any(note.startswith("the responses end at h = 4") for note in short.notes)
    assert ivvi.respond(panel(3, 60, 20), "a0", later=later).horizon == 8
    with pytest.raises(ivvi.InputError, match="expected a horizon of at most 5"):
        ivvi.respond(panel(3, 100, 6), "a0", horizon=8, later=later)
