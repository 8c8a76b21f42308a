"""A linear fit says what it leaves out: effects that vary, bends, what lasts, changing noise."""

import warnings

import numpy as np
import pytest

import ivvi


def panel(seed=0, episodes=300, steps=10, step=None, lasting=0.0, shock=0.0, reacts=0.0):
    """Episodes of x' = step(x, a, rng) + u + lasting of each episode + a shock that all share.

    Actions follow the instrument, u and, as far as `reacts` says, x.
    """
    rng = np.random.default_rng(seed)
    step = step or (lambda x, a, rng: 0.6 * x - 0.4 * a + 0.5 * rng.normal(size=len(x)))
    x, own, parts = rng.normal(size=episodes), rng.normal(size=episodes), []
    for t in range(steps):
        z, u = rng.normal(size=(2, episodes))
        a = 0.8 * z + u + 0.5 * rng.normal(size=episodes) + reacts * x
        parts.append(np.column_stack([np.arange(episodes), np.full(episodes, t), x, a, z]))
        x = step(x, a, rng) + u + lasting * own + shock * rng.normal()
    rows = np.concatenate(parts)
    rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
    table = dict(zip(("episode", "step", "x", "a", "z"), rows.T, strict=True))
    return ivvi.read_logs(table, state="x", action="a", instrument="z")


def doubts(log, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ivvi.fit(log, **options).doubts


def varies(x, a, rng):
    return 0.6 * x - 0.5 * x * a + 0.5 * rng.normal(size=len(x))


def bends(x, a, rng):
    return 2 * np.tanh(2 * x) - 0.4 * a + 0.5 * rng.normal(size=len(x))


def saturates(x, a, rng):
    return 0.6 * x - np.maximum(a, 0.0) + 0.5 * rng.normal(size=len(x))


def steadies(x, a, rng):
    return 0.6 * x - 0.4 * a + np.exp(-a) * rng.normal(size=len(x))


@pytest.mark.parametrize(
    ("step", "sentence"),
    [
        (varies, "what a does to next_x changes with x"),
        (saturates, "next_x does not change in proportion to a"),
        (steadies, "a changes the spread of next_x"),
    ],
)
def test_what_a_linear_fit_leaves_out_is_named(step, sentence):
    assert sentence in doubts(panel(step=step, episodes=600))[-1]


def test_a_state_that_bends_is_named():
    rng = np.random.default_rng(0)
    x, z, u, e = rng.normal(size=(4, 4000))
    a = 0.8 * z + u + e
    table = {"x": x, "a": a, "z": z, "y": x**2 - 0.4 * a + u}
    log = ivvi.read_logs(table, state="x", action="a", instrument="z", next_state="y")
    assert "y does not change in proportion to x" in doubts(log)[0]
    assert doubts(log, phi="poly2") == ()


def test_a_level_of_each_episodes_own_is_named_with_its_remedies():
    log = panel(lasting=1.0)
    (sentence,) = doubts(log)
    assert "of the row before" in sentence
    assert "--difference" in sentence
    assert doubts(log, difference=True) == doubts(log, absorb="episode") == ()


def helps(x, a, rng):
    return 0.6 * x + 0.5 * a + 0.5 * rng.normal(size=len(x))


@pytest.mark.parametrize("steps", [6, 10, 25])
def test_a_level_shows_in_all_rows_before_where_the_last_one_tells_little(steps):
    """A thousand rows, in which the slope of the state is off by five standard errors."""
    logs = (panel(seed, 1000 // steps, steps, helps, lasting=0.7, reacts=0.3) for seed in range(10))
    told = [doubts(log) for log in logs]
    remedy = "this looks like a unit effect of each episode: fit with --difference"
    assert sum(remedy in "".join(one) for one in told) > 7


@pytest.mark.parametrize("lags", [0, 1])
def test_what_an_earlier_action_does_later_asks_for_one_more_lag_than_there_is(lags):
    rng = np.random.default_rng(0)
    x, before, rows = rng.normal(size=200), [np.zeros(200)] * 2, []
    for t in range(8):
        z, u = rng.normal(size=(2, 200))
        a = z + u
        rows.append(np.column_stack([np.arange(200), np.full(200, t), x, a, z]))
        x = 0.6 * x + 0.5 * a + 0.3 * before[lags] + u + rng.normal(size=200)
        before = [a, before[0]]
    table = dict(zip(("episode", "step", "x", "a", "z"), np.concatenate(rows).T, strict=True))
    (sentence,) = doubts(ivvi.read_logs(table, state="x", action="a", instrument="z", lags=lags))
    assert sentence.startswith(f"next_x depends on a{'_lag1' * lags} of the row before")
    assert f"fit with --lags {lags + 1} (lags={lags + 1})" in sentence


@pytest.mark.parametrize(("episodes", "steps"), [(25, 100), (150, 8), (400, 3)])
def test_sums_over_the_rows_before_raise_no_doubt_in_a_linear_world(episodes, steps):
    """At a level of one in a thousand, two alarms in 40 logs have a probability of 0.1%."""
    assert (
        sum(bool(doubts(panel(seed, episodes, steps, helps, reacts=0.3))) for seed in range(40)) < 2
    )


def test_a_category_that_changes_an_effect_asks_for_products():
    rng = np.random.default_rng(0)
    ward = rng.integers(0, 2, 4000)
    z, u = rng.normal(size=(2, 4000))
    a = z + u
    table = {"ward": np.array(["A", "B"])[ward], "a": a, "z": z, "y": (ward - 0.5) * a + u}
    log = ivvi.read_logs(table, state="ward", action="a", instrument="z", next_state="y")
    assert "--features linear:cross" in doubts(log)[0]
    assert doubts(log, phi="linear:cross") == ()


def test_a_confounder_that_lasts_shows_in_the_noise_of_the_row_before():
    rng = np.random.default_rng(0)
    x, u, rows = rng.normal(size=100), rng.normal(size=100), []
    for t in range(10):
        u, z = 0.6 * u + 0.8 * rng.normal(size=100), rng.normal(size=100)
        a = 0.8 * z + u + rng.normal(size=100)
        rows.append(np.column_stack([np.arange(100), np.full(100, t), x, a, z]))
        x = 0.6 * x - 0.4 * a + u + 0.5 * rng.normal(size=100)
    table = dict(zip(("episode", "step", "x", "a", "z"), np.concatenate(rows).T, strict=True))
    (sentence,) = doubts(ivvi.read_logs(table, state="x", action="a", instrument="z"))
    assert sentence.startswith("the noise of next_x lasts")


@pytest.mark.parametrize(
    ("formula", "missing"),
    [
        ("y ~ x | a ~ z", "x:a (with the instrument x:z)"),
        ("y ~ x + I(x**2) | a ~ z", "x:a (with the instrument x:z)"),
        ("y ~ x + x:a | a ~ z", None),
    ],
)
def test_a_formula_is_told_which_term_it_lacks(formula, missing):
    rng = np.random.default_rng(0)
    x, z, u = rng.normal(size=(3, 2000))
    a = z + u
    table = {"x": x, "a": a, "z": z, "y": x - 0.5 * x * a + u}
    if missing is None:
        formula = formula.replace("x + x:a | a ~ z", "x | a + x:a ~ z + x:z")
        assert doubts(table, formula=formula) == ()
    else:
        assert f"add {missing} to the formula" in doubts(table, formula=formula)[0]


def by_group(groups, seed=0, rows=1000):
    """Rows of a linear world whose instrument and noise are set by group."""
    rng = np.random.default_rng(seed)
    group = rng.integers(0, groups, rows)
    x, u, e = rng.normal(size=(3, rows))
    z, shared = rng.normal(size=(2, groups))
    a = z[group] + u
    table = {"x": x, "a": a, "z": z[group], "group": group}
    table["y"] = 0.5 * a + x + u + e + shared[group]
    roles = {"state": "x", "action": "a", "instrument": "z", "next_state": "y"}
    return ivvi.read_logs(table, **roles)


@pytest.mark.parametrize("groups", [8, 12, 40])
def test_groups_of_rows_are_not_taken_for_independent_rows(groups):
    """Rows of 8 groups that count as independent are doubted in half of the logs."""
    alarms = sum(bool(doubts(by_group(groups, seed), cluster="group")) for seed in range(20))
    assert alarms <= 1


def test_rows_that_stand_for_several_raise_no_doubt():
    rng = np.random.default_rng(1)
    x, z, u, e = rng.normal(size=(4, 800))
    table = {"x": x, "z": z, "a": z + u, "y": x + u + e, "w": rng.integers(1, 10, 800)}
    roles = {"state": "x", "action": "a", "instrument": "z", "next_state": "y"}
    log = ivvi.read_logs(table, **roles, weight="w", weight_kind="frequency")
    assert doubts(log) == ()


def test_few_long_episodes_are_judged_by_stretches_of_them():
    assert doubts(panel(episodes=4, steps=500)) == ()
    assert "changes with x" in doubts(panel(episodes=4, steps=900, step=varies))[-1]


@pytest.mark.parametrize("shock", [0.0, 1.0])
def test_a_linear_world_raises_no_doubt(shock):
    """At a level of one in a thousand, two alarms in 40 logs have a probability of 0.1%."""
    alarms = sum(bool(doubts(panel(seed, episodes=100, shock=shock))) for seed in range(40))
    assert alarms <= 1


def test_doubts_are_warned_of_saved_and_said_before_a_plan(tmp_path):
    with pytest.warns(ivvi.errors.IvviWarning, match="linear features are too simple"):
        fit = ivvi.fit(panel(step=varies))
    assert dict(fit.brief.items)["Next"].startswith("Do not plan with it yet: linear features")
    fit.save(tmp_path / "model")
    assert ivvi.load_fit(tmp_path / "model").doubts == fit.doubts


def two_doses(seed=0, together=0.9):
    """Two doses that interfere as far as `together` says."""
    rng = np.random.default_rng(seed)
    x, z1, z2, u, noise = rng.normal(size=(5, 4000))
    a, b = (1 + 0.5 * z + 0.3 * u for z in (z1, z2))
    y = 0.8 * x - 0.8 * a - 0.8 * b + together * a * b + 0.8 * u + noise
    table = {"x": x, "a": a, "b": b, "z1": z1, "z2": z2, "y": y}
    roles = {"state": "x", "action": ["a", "b"], "instrument": ["z1", "z2"], "next_state": "y"}
    return ivvi.read_logs(table, **roles)


def test_two_doses_that_interfere_are_named_and_the_remedy_estimates_their_product():
    (sentence,) = doubts(two_doses())
    assert "what a does to y changes with b" in sentence
    assert "--features poly2:cross" in sentence
    assert doubts(two_doses(together=0.0)) == ()
    frame = ivvi.fit(two_doses(), phi="poly2:cross").to_frame()
    product = frame.set_index("feature").loc["a*b"]
    assert abs(product["coefficient"] - 0.9) <= 4 * product["se"]


def test_an_effect_that_goes_up_and_down_with_the_state_is_named():
    def turns(x, a, rng):
        return 0.6 * x + 0.5 * a * np.cos(2 * x) + 0.5 * rng.normal(size=len(x))

    assert "changes with x, up and down" in doubts(panel(step=turns))[-1]
