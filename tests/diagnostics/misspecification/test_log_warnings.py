"""What the rows of a log warn of: outcomes taken for states, exact outputs, wild features."""

import numpy as np
import pytest

import ivvi
from ivvi import report
from ivvi.diagnostics.misspecification.outcome_timing import explained_in_own_row
from ivvi.errors import IvviWarning

STORES, WEEKS = 40, 60


def panel(seed, *, same_row, shared=False):
    """Return weekly prices, costs and sales of stores; sales follow the price of their own row."""
    rng = np.random.default_rng(seed)
    cost, demand = np.zeros((2, STORES, WEEKS))
    for t in range(1, WEEKS):
        cost[:, t] = 0.7 * cost[:, t - 1] + (rng.normal() if shared else rng.normal(size=STORES))
        demand[:, t] = 0.5 * demand[:, t - 1] + rng.normal(size=STORES) + 0.3 * rng.normal()
    price = 0.5 * cost + 0.5 * demand + 0.3 * rng.normal(size=cost.shape)
    sales = np.zeros_like(price)
    for t in range(1, WEEKS):
        now = t if same_row else t - 1
        sales[:, t] = 0.3 * sales[:, t - 1] - 3 * price[:, now] + demand[:, now]
    columns = {"sales": sales, "price": price, "cost": cost}
    rows = {name: values.ravel() for name, values in columns.items()}
    rows["store"] = np.repeat(np.arange(STORES), WEEKS)
    rows["week"] = np.tile(np.arange(WEEKS), STORES)
    return rows


def opened(rows, **others):
    keys = {"episode": "store", "step": "week", "action": "price", "instrument": "cost"}
    return ivvi.read_logs(rows, **keys | {"state": "sales"} | others)


@pytest.mark.parametrize("shared", [False, True])
def test_an_outcome_of_the_same_row_is_noticed(shared):
    with pytest.warns(IvviWarning, match="in its own row"):
        fit = ivvi.estimate(opened(panel(1, same_row=True, shared=shared)))
    (warned,) = (text for text in fit.warnings if "in its own row" in text)
    assert warned.startswith("cost explains")
    assert "--next-state" in warned
    assert "if it was assigned by sales, this is fine" in warned


def short_panel(seed, steps, *, late):
    """Return 200 stores; `late` rows hold the sales that follow the price of their own row."""
    rng = np.random.default_rng([seed, steps])
    sales, rows = rng.normal(size=200), []
    for week in range(steps):
        cost, demand = rng.normal(size=(2, 200))
        price = cost + demand
        after = 0.5 * sales - 0.5 * price + demand + 0.5 * rng.normal(size=200)
        rows.append((np.arange(200), np.full(200, week), after if late else sales, price, cost))
        sales = after
    names = ("store", "week", "sales", "price", "cost")
    return dict(
        zip(names, (np.array(one).T.ravel() for one in zip(*rows, strict=True)), strict=True)
    )


@pytest.mark.parametrize("steps", [4, 5, 6, 7, 9])
def test_an_outcome_of_the_same_row_is_noticed_whatever_the_number_of_steps(steps):
    """It explains a third of what the row before leaves: 14 standard errors of 400 rows."""
    for seed in range(4):
        for late in (True, False):
            log = opened(short_panel(seed, steps, late=late))
            explained = explained_in_own_row(log.head(episodes=True), log.roles)
            assert (explained is not None) == late


@pytest.mark.filterwarnings("ignore:the noise of sales lasts")  # as demand does
def test_what_the_warning_advises_silences_it():
    rows = panel(1, same_row=True)
    before = np.where(rows["week"] > 0, np.roll(rows["sales"], 1), 0.0)
    log = opened(rows | {"before": before}, state="before", next_state="sales")
    fit = ivvi.estimate(log)
    assert not [text for text in fit.warnings if "in its own row" in text]
    assert fit.W[0, 2] == pytest.approx(-3, abs=4 * fit.se[0, 2])


@pytest.mark.parametrize("shared", [False, True])
def test_aligned_rows_raise_no_alarm(shared):
    """Thirty logs at a level of 0.1%."""
    for seed in range(30):
        log = opened(panel(seed, same_row=False, shared=shared))
        assert explained_in_own_row(log.head(episodes=True), log.roles) is None


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["linear", "nonlinear", "recommender", "nicu", "sepsis"])
def test_worlds_raise_no_alarm(name):
    found = ivvi.make_env(name).collect(episodes=40, horizon=40, seed=3)
    table = found.to_arrow()
    table = table.drop([n for n in table.column_names if n.startswith("next_")])
    roles = found.roles
    log = ivvi.read_logs(
        table,
        state=list(roles.state),
        action=list(roles.action),
        instrument=list(roles.instrument),
        episode=roles.episode,
        step=roles.step,
    )
    assert log.roles.derived
    assert explained_in_own_row(log.head(episodes=True), log.roles) is None


# exact outputs


@pytest.fixture
def ward():
    rng = np.random.default_rng(2)
    episodes, steps = 50, 12
    n = episodes * steps
    z, e = rng.normal(size=(2, n))
    rows = {
        "x": np.concatenate([[0.0], 0.1 * e[:-1]]) + rng.normal(size=n),
        "age": np.repeat(rng.uniform(20, 80, size=episodes), steps),
        "hours": 37.7 + np.tile(np.arange(steps), episodes),
        "a": z + e,
        "z": z,
        "episode": np.repeat(np.arange(episodes), steps),
        "step": np.tile(np.arange(steps), episodes),
    }
    roles = {"state": ["x", "age", "hours"], "action": "a", "instrument": "z"}
    return ivvi.read_logs(rows, **roles, episode="episode", step="step")


def test_exact_outputs_have_no_errors(ward):
    """Age never changes within an episode and is no output at all; the clock is."""
    fit = ivvi.estimate(ward)
    assert fit.to_json()["exact_outputs"] == ["next_hours"]
    assert fit.to_json()["outputs"] == ["next_x", "next_hours"]
    assert fit.to_json()["phi"] == ["1", "x", "hours", "age", "a"]
    assert np.array_equal(fit.se[1:], np.zeros((1, 5)))
    np.testing.assert_allclose(fit.W[1], [1, 0, 1, 0, 0], atol=1e-9)
    assert (fit.W[1, [1, 3, 4]] == 0).all()
    text = fit.summary()
    assert "output next_hours = 1 + hours\n" in text
    assert "next_age" not in text
    assert not any(output == "next_hours" for output, _ in fit.robust_intervals.intervals)


def test_exact_outputs_are_no_headline(ward, tmp_path):
    fit = ivvi.estimate(ward)
    gap = (fit.baseline.W[0, 4] - fit.W[0, 4]) / fit.se[0, 4]
    page = report(fit, tmp_path / "report.html").read_text()
    assert "Exact functions of the features are left out: next_hours" in page
    if "largest gap" in page:
        assert f"{abs(gap):.0f} s.e." in page


# features


def smooth(n=3000):
    rng = np.random.default_rng(4)
    x, z, e = rng.normal(size=(n, 3)), rng.normal(size=n), rng.normal(size=n)
    a = z + e + 0.5 * rng.normal(size=n)
    y = np.sin(x[:, 0]) + 0.5 * x[:, 1] + np.tanh(a) + 0.5 * e
    rows = {"x": x, "a0": a, "z0": z, "y0": y}
    return ivvi.read_logs(rows, state="x*", action="a0", instrument="z0", next_state="y0")


@pytest.mark.filterwarnings("ignore::ivvi.errors.IvviWarning")
def test_fitted_values_out_of_range_are_told():
    wild = ivvi.estimate(smooth(1000), "fourier:100", allow_unidentified=True)
    assert any("outside its range" in text for text in wild.warnings)
    for word in ("linear", "spline:5"):
        assert not ivvi.estimate(smooth(), word).notes


def test_strong_confounding_is_no_fault_of_the_features():
    """Fitted values leave the range of an outcome in which the confounder cancelled the action."""
    rng = np.random.default_rng(5)
    z, e = rng.normal(size=(2, 3000))
    a = z + 3 * e + 0.5 * rng.normal(size=3000)
    log = ivvi.read_logs({"a0": a, "z0": z, "y0": 3 * e - a}, state=(), action="a0",
                         instrument="z0", next_state="y0")  # fmt: skip
    fit = ivvi.estimate(log)
    assert np.mean(np.abs(fit.W[0, 1] * a) > np.abs(3 * e - a).max()) > 0.01
    assert not fit.notes
