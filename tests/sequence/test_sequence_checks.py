"""What only a sequence can show: each check against its definition, its size and its power."""

import json

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ivvi
import ivvi.logs.log
from helpers import OPTIONS, assert_refused, make_rows, run, write_table
from ivvi import ConfoundedEnv, InputError
from ivvi.features.design import build_design
from ivvi.logs import Batch
from ivvi.moments import compute_moments
from ivvi.sequence.exogeneity_and_stability import joint
from ivvi.sequence.row_pair_moments import Blocks, compute_sequence_moments
from ivvi.simulators import World, gaussian
from ivvi_reproduction.sequence_checks import draw

BALANCE, START = "balance on the past", "balance on the start"
PLACEBO, CUSUM = "placebo: z against realised x", "stability over time (CUSUM)"
SERIAL_Z, SERIAL_E = "serial dependence of z", "serial dependence of residuals"
STEPS, EPISODES = "stability over steps", "stability over episodes"
DAY, DAY_CUSUM = "stability over day", "stability over day (CUSUM)"
PSI, PHI = "richer psi (poly2)", "richer phi (poly2)"


def columns(seed, kind="rules kept", gaps=False, **settings):
    """Return the columns of a log that breaks one rule, with a fifth of the rows lost if asked."""
    named = draw(kind, seed, **settings)
    keep = np.random.default_rng(seed).uniform(size=len(named["x0"])) > (0.2 if gaps else -1)
    return {name: column[keep] for name, column in named.items()}


def checked(seed, kind="rules kept", level=0.01, **settings):
    return ivvi.check(ivvi.read_logs(columns(seed, kind, **settings)), level=level)


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("history", (BALANCE, SERIAL_Z)),
        ("lasting z", (SERIAL_Z,)),
        ("state", (PLACEBO,)),
        ("global, assigned", (START,)),
        ("lasting errors", (SERIAL_E,)),
        ("steps", (STEPS,)),
        ("episodes", (EPISODES, CUSUM)),
        ("middle", (CUSUM,)),
        ("bent", (PHI,)),
    ],
)
def test_each_violation_is_found(kind, names):
    checks = checked(7, kind, episodes=80, steps=40)
    failed = {check.name for check in checks.failed}
    assert set(names) <= failed, str(checks)
    if kind in ("lasting z", "state", "global, assigned", "middle"):
        assert failed == set(names), str(checks)  # nothing else is wrong with these
    for name in names:
        assert checks[name].advice in str(checks)


@pytest.mark.parametrize("name", ["linear", "nonlinear"])
def test_the_papers_simulators_pass(name, simulated):
    log = simulated(name, 1, episodes=60, horizon=500)
    checks = ivvi.check(log, "linear" if name == "linear" else "spline:8", level=1e-5)
    assert checks.failed == (), str(checks)
    assert checks.global_instruments == ()
    assert checks.effective_n == checks.n == 30_000


@pytest.mark.parametrize("scope", ["step", "episode"])
def test_worlds_that_break_a_rule_are_noticed(scope):
    """An instrument drawn from the past fails; one drawn once an episode is recognised."""
    world = World(
        name="custom",
        d_x=1,
        d_z=1,
        actions=gymnasium.spaces.Box(-np.inf, np.inf, (1,)),
        transition=lambda x, a: 0.5 * x - 0.5 * a,
        reward=lambda x, a: -jnp.sum(x**2),
        initial=gaussian(np.eye(1)),
        confounder=gaussian(np.eye(1)),
        instrument=lambda key, x, history: gaussian(np.eye(1))(key) + 0.5 * history,
        behaviour=lambda key, x, z, e: z + e + gaussian(np.eye(1))(key),
        remember=lambda history, x, z: x,  # the state before the last
        scope=scope,
    )
    checks = ivvi.check(ConfoundedEnv(world).collect(80, 40, seed=1))
    if scope == "step":
        assert BALANCE in {check.name for check in checks.failed}
        assert checks.global_instruments == ()
    else:
        assert checks.global_instruments == ("z0",)
        assert checks.effective_n == 80 < checks.n
        assert "80 draws of it, so cluster by episode" in str(checks)
        assert checks[SERIAL_Z].passed is None
        assert checks[START].passed


def lagged(batch):
    """Return rows with the step before, the step before them, and their episodes."""
    now = np.flatnonzero((np.diff(batch.episode) == 0) & (np.diff(batch.step) == 1)) + 1
    return now, now - 1, batch.episode[now]


def left(of, on):
    return of - on @ np.linalg.lstsq(on, of)[0]


def hotelling(scores):
    B, d = scores.shape
    mean, cov = scores.mean(axis=0), np.atleast_2d(np.cov(scores.T))
    return B * mean @ np.linalg.solve(cov, mean) * (B - d) / (d * (B - 1))


@pytest.mark.parametrize("gaps", [False, True])
def test_balance_placebo_and_serial_dependence_follow_their_definitions(gaps):
    log = ivvi.read_logs(columns(3, gaps=gaps))
    checks, batch = ivvi.check(log), log.to_batch(episodes=True)
    now, before, episode = lagged(batch)
    assert (len(now) < 40 * 24 * 0.75) == gaps
    one = np.ones((len(now), 1))
    x, a, z = batch.x, batch.a, batch.z
    e = batch.y - np.column_stack([np.ones(len(x)), x, a]) @ ivvi.estimate(log).W.T

    def sums(one, other):
        products = (one[:, :, None] * other[:, None, :]).reshape(len(one), -1)
        return np.array([products[episode == i].sum(axis=0) for i in range(40)])

    def scores(of, other, given):
        """The mean of the products' sums, the spread of those with the slopes of the others."""
        rest = np.empty_like(other)
        for i in range(40):
            slopes = np.linalg.lstsq(given[episode != i], other[episode != i])[0]
            rest[episode == i] = (other - given @ slopes)[episode == i]
        alone = sums(left(of, given), rest)
        return alone - alone.mean(axis=0) + sums(left(of, given), left(other, given)).mean(axis=0)

    given = np.hstack([one, x[now], z[before]])
    past = np.hstack([x[before], a[before], e[before]])
    past = past if gaps else past[:, :2]  # e before is x now less W phi before
    expected = hotelling(scores(z[now], past[:, :2], given))
    assert checks[BALANCE].test.statistic.df == (2, 38)
    assert checks[BALANCE].test.statistic.value == pytest.approx(expected, rel=1e-6)
    given = np.hstack([one, x[before], a[before], z[before]])
    expected = hotelling(scores(z[now], x[now], given))
    assert checks[PLACEBO].test.statistic.value == pytest.approx(expected, rel=1e-6)
    given = np.hstack([one, x[now]])
    expected = hotelling(scores(z[now], z[before], given))
    assert checks[SERIAL_Z].test.statistic.value == pytest.approx(expected, rel=1e-6)


def test_residual_dependence_and_stability_allow_for_the_estimation_of_w():
    log = ivvi.read_logs(columns(5))
    checks, batch = ivvi.check(log), log.to_batch(episodes=True)
    now, before, episode = lagged(batch)
    one = np.ones((len(batch), 1))
    Phi, Psi = np.hstack([one, batch.x, batch.a]), np.hstack([one, batch.x, batch.z])
    fitted = Psi @ np.linalg.lstsq(Psi, Phi)[0]
    e = (batch.y - Phi @ ivvi.estimate(log).W.T)[:, 0]
    influence = np.array([(fitted * e[:, None])[batch.episode == i].sum(axis=0) for i in range(40)])
    moved = influence @ np.linalg.inv(fitted.T @ Phi)  # of each episode on W
    slope = -(Phi[now] * e[before][:, None]).sum(axis=0)
    products = np.array([np.sum((e[now] * e[before])[episode == i]) for i in range(40)])
    expected = hotelling((products + moved @ slope)[:, None])
    assert checks[SERIAL_E].test.statistic.value == pytest.approx(expected, rel=1e-6)
    late = batch.step >= 12.5
    shift = (fitted * late[:, None]).T @ Phi
    part = np.array(
        [(fitted * (e * late)[:, None])[batch.episode == i].sum(axis=0) for i in range(40)]
    )
    expected = hotelling(part - moved @ shift.T)
    assert checks[STEPS].test.statistic.value == pytest.approx(expected, rel=1e-6)
    spread = np.sqrt(np.sum((influence - influence.mean(axis=0)) ** 2, axis=0))
    path = np.vstack([np.zeros(3), np.cumsum(influence, axis=0)]) / spread
    expected = np.ptp(path, axis=0).max() + 2 * 0.5826 / 40**0.5
    assert checks[CUSUM].test.statistic.value == pytest.approx(expected, rel=1e-6)


def test_batch_borders_do_not_matter(monkeypatch):
    log = ivvi.read_logs(columns(2, episodes=150, gaps=True))
    design = build_design(log, "poly2")
    _, counts = compute_moments(log, design)
    whole = compute_sequence_moments(log, design, counts)
    monkeypatch.setattr(ivvi.logs.log, "BATCH_BYTES", 1)  # 1024 rows at a time
    assert len(list(log.batches())) > 2
    parts = compute_sequence_moments(log, design, counts)
    assert parts.n_pairs == whole.n_pairs
    assert parts.still == whole.still
    monkeypatch.undo()
    for name in ("all_rows", "late", "first", "pairs"):
        one, other = getattr(whole, name).sum(axis=0), getattr(parts, name).sum(axis=0)
        assert one.shape == other.shape
    # the centre is that of the first batches, so compare what does not depend on it
    results = [ivvi.check(log, "poly2").to_json()["checks"]]
    monkeypatch.setattr(ivvi.logs.log, "BATCH_BYTES", 1)
    results.append(ivvi.check(log, "poly2").to_json()["checks"])
    for name, check in results[0].items():
        assert check.get("value") == pytest.approx(results[1][name].get("value"), rel=1e-6)


@given(st.integers(1, 5000), st.integers(1, 300), st.integers(2, 200))
def test_blocks_are_bounded_consecutive_and_complete(episodes, length, width):
    blocks = Blocks.plan(episodes, episodes * length, width)
    episode = np.repeat(np.arange(episodes), min(length, 3))
    place = np.tile(np.linspace(0, length - 1, min(length, 3)).astype(int), episodes)
    nothing = np.zeros((len(episode), 1))
    batch = Batch(nothing, nothing, nothing, nothing, episode=episode)
    number = blocks.number(batch, place)
    assert number.min() >= 0
    assert number.max() < blocks.count
    assert (np.diff(number) >= 0).all()
    assert blocks.count <= max(1024, 40 + 20)
    assert blocks.count * 7 * width**2 * 8 <= max(128 << 20, 60 * 7 * width**2 * 8)


def test_one_long_episode_is_cut_into_stretches():
    checks = checked(1, level=1e-5, episodes=1, steps=1000)
    assert checks.episodes == 1
    assert checks[EPISODES].reason == "there is one episode"
    assert checks.blocks == 40
    assert checks.failed == ()
    assert SERIAL_E in {c.name for c in checked(1, "lasting errors", episodes=1, steps=1000).failed}


def test_weights_of_two_count_as_two_rows():
    named = columns(4)
    twice = np.random.default_rng(0).integers(1, 3, 40)[named["episode"]]
    log = ivvi.read_logs(named | {"w": twice.astype(float)}, weight="w", **roles())
    weighted = ivvi.check(log)
    assert weighted.n == 1000
    unit = ivvi.check(ivvi.read_logs(named | {"w": np.ones(1000)}, weight="w", **roles()))
    plain = ivvi.check(ivvi.read_logs(named))
    for check in plain.checks:
        assert unit[check.name].test.p_value == pytest.approx(check.test.p_value, rel=1e-6)
    assert weighted[BALANCE].test.p_value != plain[BALANCE].test.p_value


def test_a_joint_check_names_the_contrast_that_fails():
    """Two scores that go together, and differ in their mean by much more than in their noise."""
    rng = np.random.default_rng(6)
    common, noise = rng.normal(size=100), 0.01 * rng.normal(size=100)
    scores = np.column_stack([common, common + noise + 0.02])
    said = finding(scores, ["z with x", "z with y"])
    assert "z with y less z with x" in said or "z with x less z with y" in said
    assert "alone, most for" in said
    apart = np.array([1.0, 0.0])
    alone = finding(rng.normal(size=(100, 2)) + apart, ["first", "second"])
    assert alone.startswith("most for first (t =")


def finding(scores, labels):
    """Say what a joint test of scores (blocks, d) finds."""
    return joint("balance", {"": scores}, {"": labels}, "none", "", 0.05).finding


def roles():
    return {"state": "x0", "action": "a0", "instrument": "z0", "next_state": "next_x0"}


def test_rows_without_order_are_asked_about_richer_features_alone(log_of, confounded):
    checks = ivvi.check(log_of(*confounded(0)))
    assert checks[BALANCE].passed is None
    assert checks[BALANCE].reason == "the log has no episode column, so its rows are not a sequence"
    asked = {check.name for check in checks.checks if check.test is not None}
    assert {name.split(" (")[0] for name in asked} == {"richer psi", "richer phi"}
    with pytest.raises(InputError, match="cannot be compared over day"):
        ivvi.check(log_of(*confounded(0)), time="day")
    few = {name: column[:5] for name, column in columns(0).items()}
    with pytest.raises(InputError, match="too few to compare"):
        ivvi.check(ivvi.read_logs(few))


def test_effects_that_vary_are_found_in_rows_without_order():
    """The effect is -1 + x: its product with z has a t of about 25 with 2,000 rows."""
    rng = np.random.default_rng(5)
    x, z, e = rng.normal(size=(3, 2000))
    a = z + e
    rows = {"x": x, "a": a, "z": z, "y": x - a + x * a + e}
    log = ivvi.read_logs(rows, state="x", action="a", instrument="z", reward="y")
    assert "richer phi (poly2:cross)" in {check.name for check in ivvi.check(log).failed}


def panel(seed, episodes=200, steps=8, *, effect=lambda x: -0.4, unit=0.0, last=0.0, still=False):
    """Return the columns of a panel: x' = 0.6 x + effect(x) a + u, u = a unit effect + an AR(1)."""
    rng = np.random.default_rng([seed, 11])
    x, of_unit, u, z = rng.normal(size=(4, episodes))
    rows = []
    for t in range(steps):
        u = last * u + (1 - last**2) ** 0.5 * rng.normal(size=episodes)
        z = z if still else rng.normal(size=episodes)
        a = 0.7 * z + u + unit * of_unit + 0.3 * rng.normal(size=episodes)
        rows.append((np.arange(episodes), np.full(episodes, t), x, a, z))
        x = 0.6 * x + effect(x) * a + u + unit * of_unit + 0.5 * rng.normal(size=episodes)
    names = ("episode", "step", "x0", "a0", "z0")
    return dict(zip(names, (np.array(c).T.ravel() for c in zip(*rows, strict=True)), strict=True))


@pytest.mark.parametrize("still", [False, True])
def test_a_unit_effect_is_found_and_the_advice_takes_it_out(still):
    """The residual's t on the earlier action is about 6."""
    checks = ivvi.check(ivvi.read_logs(panel(1, unit=1.0, still=still, episodes=400)))
    past = checks["residuals on the past"]
    assert past.passed is False
    assert "a unit effect" in past.advice
    assert ("--absorb episode --half-panel" in past.advice) != still  # these leave nothing of z
    assert "--lags" not in past.advice


def test_errors_that_fade_are_no_unit_effect():
    checks = ivvi.check(ivvi.read_logs(panel(1, last=0.8, steps=12)))
    for name in ("residuals on the past", SERIAL_E):
        assert checks[name].passed is False
        assert "--lags 1" in checks[name].advice
        assert "unit effect" not in checks[name].advice


def test_an_effect_that_varies_with_the_state_is_found_and_named():
    checks = ivvi.check(ivvi.read_logs(panel(2, effect=lambda x: -0.4 + 0.5 * np.tanh(x))))
    assert checks["effects that vary"].passed is False
    assert "poly2:cross" in checks["effects that vary"].advice
    again = ivvi.check(ivvi.read_logs(panel(2)), "poly2:cross")["effects that vary"]
    assert again.reason == "psi has the products of states and instruments already"


def test_new_conditions_follow_their_definitions():
    """E[h e] = 0 with residuals of W from the other episodes in the spread."""
    log = ivvi.read_logs(columns(5))
    checks, batch = ivvi.check(log), log.to_batch(episodes=True)
    now, before, _ = lagged(batch)
    one = np.ones((len(batch), 1))
    Phi, Psi = np.hstack([one, batch.x, batch.a]), np.hstack([one, batch.x, batch.z])
    fitted = Psi @ np.linalg.lstsq(Psi, Phi)[0]
    e = batch.y - Phi @ ivvi.estimate(log).W.T

    def of_episodes(rows, episode):
        return np.array([rows[episode == i].sum(axis=0) for i in range(40)])

    moved = of_episodes(fitted * e, batch.episode) @ np.linalg.inv(fitted.T @ Phi).T

    def statistic(h, at):
        episode = batch.episode[at]
        alone = of_episodes(h * e[at], episode)
        slopes = of_episodes(h[:, :, None] * Phi[at][:, None, :], episode)
        own = np.einsum("ikj,ij->ik", slopes, moved)
        return hotelling(alone - moved @ slopes.sum(axis=0).T + own - own.mean(axis=0))

    past = left(np.hstack([batch.x, batch.a])[before], Psi[now])
    value = checks["residuals on the past"].test.statistic.value
    assert value == pytest.approx(statistic(past, now), rel=1e-6)
    every = np.arange(len(batch))
    value = checks["effects that vary"].test.statistic.value
    assert value == pytest.approx(statistic(left(batch.x * batch.z, Psi), every), rel=1e-6)


def test_groups_that_share_a_path_are_compared_where_steps_are_too_few():
    """Regions share an instrument and shocks: 25 regions can be compared, 7 steps cannot."""
    rng = np.random.default_rng(0)
    compared = 0
    for _ in range(6):
        region = np.arange(200) % 25
        z, shock = rng.normal(size=(2, 25, 8))[:, region]
        u = rng.normal(size=(200, 8)) + shock
        x, rows = rng.normal(size=200), []
        for t in range(8):
            a = z[:, t] + u[:, t]
            rows.append((np.arange(200), np.full(200, t), x, a, z[:, t]))
            x = 0.6 * x - 0.4 * a + u[:, t]
        table = [np.array(column).T.ravel() for column in zip(*rows, strict=True)]
        named = dict(zip(("episode", "step", "x0", "a0", "z0"), table, strict=True))
        compared += ivvi.check(ivvi.read_logs(named)).blocks == 25
    assert compared == 6


def test_whole_numbers_that_may_be_codes_are_named():
    table = panel(3)
    ward = 1 + np.asarray(table["episode"]) % 5
    table["z0"] = table["z0"] + np.array([0.0, 2.0, -2.0, 1.0, -1.0])[ward - 1]
    log = ivvi.read_logs(table | {"ward": ward}, state="x0,ward", action="a0", instrument="z0")
    balance = ivvi.check(log)[BALANCE]
    assert balance.passed is False
    assert "ward has 5 whole-number values" in balance.advice
    assert "--categorical" in balance.advice


def test_questions_that_a_log_cannot_answer_say_why():
    named = columns(0)
    apart = ivvi.check(ivvi.read_logs(named | {"step": 2 * named["step"]}, **roles()))
    assert apart.global_instruments == ()
    for name in (BALANCE, PLACEBO, SERIAL_Z, SERIAL_E):
        assert apart[name].passed is None
        assert apart[name].reason == "no episode has two consecutive steps"
        assert apart[name].reason in str(apart)
    assert apart[STEPS].passed is not None
    stateless = ivvi.check(ivvi.read_logs(named, **(roles() | {"state": ()})))
    assert stateless[PLACEBO].reason == "the log has no state"
    assert stateless[BALANCE].passed is not None


def test_outputs_without_noise_are_left_out():
    """Rounding errors neither drift nor depend on each other; the noisy output stays as it is."""
    rows = columns(2) | {"known": 1.0 + columns(2)["x0"] + columns(2)["a0"]}
    one, both, none = (
        ivvi.check(ivvi.read_logs(rows, **(roles() | {"next_state": names})))
        for names in ("next_x0", "next_x0,known", "known")
    )
    for check in one.checks:
        assert both[check.name].test.statistic.value == pytest.approx(
            check.test.statistic.value, rel=1e-6
        )
    for name in (SERIAL_E, STEPS, "stability over episodes", "stability over time (CUSUM)"):
        assert none[name].reason == "nothing that could be compared varies"
    for name in ("richer psi (poly2)", "richer phi (poly2)"):
        assert none[name].reason.startswith("every output is fitted exactly")


def test_the_order_of_the_rows_in_the_file_does_not_matter():
    named = columns(6)
    order = np.random.default_rng(0).permutation(1000)
    shuffled = {name: column[order] for name, column in named.items()}
    one, other = (ivvi.check(ivvi.read_logs(rows)) for rows in (named, shuffled))
    for check in one.checks:
        assert other[check.name].test.p_value == pytest.approx(check.test.p_value, rel=1e-6)


def test_the_command_prints_every_check(tmp_path):
    source = write_table(make_rows(40, 12), tmp_path / "log.parquet")
    done = run("check", source, *OPTIONS)
    assert done.code == 0
    assert "balance on the past" in done.out
    described = json.loads(run("check", source, *OPTIONS, "--json", "-").out)
    assert described["episodes"] == 40
    assert described["effective_n"] == described["n"] == 40 * 11
    balance = described["checks"]["balance on the past"]
    assert balance["distribution"].startswith("F(")
    assert 0 <= balance["p_value"] <= 1
    assert_refused(run("check", source, *OPTIONS, "--level", "2"), "the level is 2")
    assert_refused(run("check", source, *OPTIONS, "--richer", "splines"), "unknown features")


@pytest.mark.parametrize("kind", ["calendar", "rules kept"])
def test_a_change_of_w_in_calendar_time_is_found_whatever_the_order(kind):
    checks = ivvi.check(ivvi.read_logs(columns(7, kind, episodes=80)), time="day")
    failed = {check.name for check in checks.failed}
    assert failed == ({DAY, DAY_CUSUM} if kind == "calendar" else set()), str(checks)
    if kind == "calendar":
        assert "a0 on next_x0 from" in checks[DAY].finding
        assert "add day as a state" in str(checks)


def test_calendar_checks_follow_their_definitions():
    log = ivvi.read_logs(columns(5))
    checks, batch = ivvi.check(log, time="day"), log.timed("day").to_batch(episodes=True)
    Phi = np.column_stack([np.ones(len(batch)), batch.x, batch.a])
    Psi = np.column_stack([np.ones(len(batch)), batch.x, batch.z])
    fitted = Psi @ np.linalg.lstsq(Psi, Phi)[0]
    e = (batch.y - Phi @ ivvi.estimate(log).W.T)[:, 0]

    def summed(rows):
        return np.array([rows[batch.episode == i].sum(axis=0) for i in range(40)])

    influence = summed(fitted * e[:, None])
    moved = influence @ np.linalg.inv(fitted.T @ Phi)
    cuts = np.quantile(batch.time, (0.25, 0.5, 0.75), method="higher")
    tests = []
    for cut in cuts:
        late = batch.time >= cut
        tests.append(
            hotelling(
                summed(fitted * (e * late)[:, None]) - moved @ ((fitted * late[:, None]).T @ Phi).T
            )
        )
    assert checks[DAY].test.compared == 3
    assert checks[DAY].test.statistic.value == pytest.approx(max(tests), rel=1e-6)
    order = np.argsort([batch.time[batch.episode == i].mean() for i in range(40)])
    spread = np.sqrt(np.sum((influence - influence.mean(axis=0)) ** 2, axis=0))
    path = np.vstack([np.zeros(3), np.cumsum(influence[order], axis=0)]) / spread
    expected = np.ptp(path, axis=0).max() + 2 * 0.5826 / 40**0.5
    assert checks[DAY_CUSUM].test.statistic.value == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("kind", ["timestamp[us]", "timestamp[ns, tz=UTC]", "date32", "int32"])
def test_dates_and_timestamps_are_times(kind, tmp_path):
    import pyarrow as pa

    named = columns(3, "calendar")
    days = named["day"].astype(np.int64)
    kinds = {
        "timestamp[us]": (pa.timestamp("us"), 86_400_000_000),
        "timestamp[ns, tz=UTC]": (pa.timestamp("ns", "UTC"), 86_400_000_000_000),
        "date32": (pa.date32(), 1),
        "int32": (pa.int32(), 1),
    }
    unit, size = kinds[kind]
    whole = pa.int32() if kind in ("date32", "int32") else pa.int64()
    dates = pa.array(days * size).cast(whole).cast(unit)
    dated = pa.table(
        {name: pa.array(v) for name, v in named.items() if name != "day"} | {"day": dates}
    )
    source = write_table(dated, tmp_path / "log.parquet")
    plain = ivvi.check(ivvi.read_logs(named), time="day")
    checks = ivvi.check(ivvi.read_logs(source), time="day")
    for name in (DAY, DAY_CUSUM):
        assert checks[name].test.p_value == pytest.approx(plain[name].test.p_value, rel=1e-9)
    written = "1970-" in checks[DAY].finding
    assert written == (kind != "int32")


def test_what_is_no_time_is_refused(tmp_path):
    named = columns(0) | {"name": np.repeat("a", 1000), "still": np.ones(1000)}
    log = ivvi.read_logs(named, **roles())
    with pytest.raises(InputError, match="time column 'dya' is not in the log; did you mean 'day'"):
        ivvi.check(log, time="dya")
    with pytest.raises(
        InputError, match=r"'name' of .* holds .*string; expected numbers, dates or timest"
    ):
        ivvi.check(log, time="name")
    with pytest.raises(InputError, match=r"'still' of .* is the same in every row"):
        ivvi.check(log, time="still")
    gap = named | {"day": np.where(np.arange(1000) == 7, np.nan, named["day"])}
    with pytest.raises(
        InputError, match="1 missing or infinite values in 1 of 1000 rows, the first"
    ):
        ivvi.check(ivvi.read_logs(gap, **roles()), time="day")
    together = ivvi.read_logs(named | {"day": named["step"] * 1.0}, **roles())
    checks = ivvi.check(together, time="day")
    assert checks[DAY].passed is not None
    assert checks[DAY_CUSUM].reason == "all episodes have the same mean day"


def test_the_cuts_of_a_long_log_are_near_its_quartiles():
    import pyarrow as pa

    from ivvi.logs import ArrowTable, Calendar

    days = np.random.default_rng(0).permutation(300_000)
    cuts = Calendar.of_table(ArrowTable(pa.table({"day": days})), "day").cuts
    error = 4 * (0.25 / 37_500) ** 0.5  # every eighth row is held; four standard errors
    np.testing.assert_allclose(np.array(cuts) / 300_000, [0.25, 0.5, 0.75], atol=error)


def test_the_command_takes_a_time(tmp_path):
    rows = make_rows(40, 12)
    source = write_table(rows, tmp_path / "log.parquet")
    done = run("check", source, *OPTIONS, "--time", "step")
    assert done.code == 0
    assert "stability over step (CUSUM)" in done.out
    assert_refused(run("check", source, *OPTIONS, "--time", "month"), "time column 'month' is not")


@pytest.mark.parametrize(("shared", "clusters"), [(True, "episode and step"), (False, "episode")])
def test_the_advice_on_a_lasting_instrument_names_the_clusters_of_a_fit(shared, clusters):
    rng = np.random.default_rng(4)
    episodes, steps = 30, 80
    z = rng.normal(size=(1 if shared else episodes, steps))
    for t in range(1, steps):
        z[:, t] += 0.8 * z[:, t - 1]
    z, e = np.broadcast_to(z, (episodes, steps)), rng.normal(size=(episodes, steps))
    a = z + e + rng.normal(size=e.shape)
    x = np.zeros((episodes, steps + 1))
    for t in range(steps):
        x[:, t + 1] = 0.5 * x[:, t] - 0.5 * a[:, t] + e[:, t]
    rows = {"x": x[:, :-1].ravel(), "a": a.ravel(), "z": z.ravel()}
    rows |= {"episode": np.repeat(np.arange(episodes), steps)}
    rows |= {"step": np.tile(np.arange(steps), episodes)}
    log = ivvi.read_logs(rows, state="x", action="a", instrument="z")
    assert f"cluster standard errors by {clusters}, as" in ivvi.check(log)[SERIAL_Z].advice


@pytest.mark.filterwarnings("ignore:.*exactly 4, its largest value")  # how this world bends
def test_the_advice_on_richer_features_can_be_followed_with_categories():
    """poly2 is refused where 0 and 1 are their own squares."""
    table = columns(0, "bent")
    wards = np.array(["A", "B"])[np.asarray(table["episode"]) % 2]
    roles = {"state": "x0,ward", "action": "a0", "instrument": "z0", "next_state": "next_x0"}
    log = ivvi.read_logs(table | {"ward": wards}, **roles)
    (check,) = [one for one in ivvi.check(log).checks if one.name == "richer phi (poly2)"]
    assert check.test.p_value < 0.01
    assert "phi='auto'" in check.advice
    with pytest.raises(InputError):
        ivvi.fit(log, "poly2")
    assert ivvi.fit(log, "auto").W.shape[0] == 1


@pytest.mark.filterwarnings("ignore:instruments by doctor are means over other episodes")
@pytest.mark.parametrize(("doctors", "blocks"), [(20, 20), (4, 80)])
def test_an_instrument_out_of_a_name_is_compared_by_that_name(doctors, blocks):
    """Unless the names are too few: then by episode."""
    rng = np.random.default_rng(2)
    episode, step = np.repeat(np.arange(80), 6), np.tile(np.arange(6), 80)
    doctor, e = np.arange(80)[episode] % doctors, rng.normal(size=480)
    a = (doctor % 3) + e + rng.normal(size=480)
    x = np.zeros(480)
    for i in range(480):
        x[i] = 0.5 * x[i - 1] + a[i - 1] + e[i - 1] if step[i] else rng.normal()
    names = [f"D{one}" for one in doctor]
    rows = {"episode": episode, "step": step, "x": x, "a": a, "doctor": names}
    log = ivvi.read_logs(rows, state="x", action="a", instrument="loo:doctor")
    checks = ivvi.check(log)
    assert checks.blocks == blocks
    assert checks.clusters == ("doctor" if doctors == 20 else None)
    assert "clustered by doctor" in str(ivvi.interval(log, "x", "a"))
