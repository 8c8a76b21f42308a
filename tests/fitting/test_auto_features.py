"""Features that the data choose, and the effects that they show."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ivvi
from helpers import assert_refused, run
from ivvi import InputError
from ivvi.errors import IvviWarning

COLUMNS = ("--state", "severity", "--action", "dose", "--instrument", "push")

PLANNED = {"method": "value-iteration", "compare": False}


def varying(n=3000, seed=1, horizon=30):
    """The effect of the dose changes its sign with severity: 1.5 sin(1.5 x)."""
    rng = np.random.default_rng(seed)
    episodes = n // horizon
    x, rows = rng.normal(size=episodes), []
    for step in range(horizon):
        z, u = rng.normal(size=(2, episodes))
        a = np.clip(0.6 * z + 0.6 * u, -1, 1)
        y = 0.8 * x + 1.5 * np.sin(1.5 * x) * a + 0.4 * u + 0.3 * rng.normal(size=episodes)
        rows.append((np.arange(episodes), np.full(episodes, step), x, a, z, y))
        x = y
    columns = [np.array(part).T.ravel() for part in zip(*rows, strict=True)]
    names = ("episode", "step", "severity", "dose", "push", "next_severity")
    return pa.table(dict(zip(names, columns, strict=True)))


def opened(table, **columns):
    settings = {"state": "severity", "action": "dose", "instrument": "push"}
    return ivvi.read_logs(table, next_state="next_severity", **(settings | columns))


@pytest.fixture(scope="module")
def log():
    return opened(varying())


@pytest.fixture(scope="module")
def fit(log):
    return ivvi.estimate(log, phi="auto")


@pytest.fixture(scope="module")
def linear_log():
    return ivvi.make_env("linear", dim=1).collect(episodes=60, horizon=40, seed=3)


def test_auto_finds_an_effect_that_changes_with_the_state(fit):
    assert fit.choice.label == "severity bent, dose x severity"
    assert fit.choice.gain > 5 * fit.choice.spread
    x = np.linspace(-2, 2, 41)[:, None]
    one, zero = np.ones_like(x), np.zeros_like(x)
    effect = fit.model.mean(x, one) - fit.model.mean(x, zero)
    assert np.sqrt(np.mean((effect - 1.5 * np.sin(1.5 * x)) ** 2)) < 0.25
    assert "standard errors better than linear" in fit.summary()


def test_auto_is_the_linear_fit_bit_for_bit_where_linear_wins(linear_log):
    chosen, plain = ivvi.estimate(linear_log, phi="auto"), ivvi.estimate(linear_log)
    assert chosen.choice.is_linear
    assert np.array_equal(chosen.W, plain.W)
    assert np.array_equal(chosen.se, plain.se)
    assert chosen.choice.sentence in chosen.summary()


def test_a_chosen_model_is_saved_loaded_and_planned_with(fit, tmp_path):
    fit.save(tmp_path / "model")
    again = ivvi.load_fit(tmp_path / "model")
    assert again.choice == fit.choice
    x, a = np.array([[0.3], [1.0]]), np.array([[0.5], [-0.5]])
    assert np.array_equal(again.model.mean(x, a), fit.model.mean(x, a))
    actions = ivvi.Actions.finite([[-1.0], [0.0], [1.0]])
    plan = ivvi.plan(
        again.model, reward="quadratic:weight=1,target=0", actions=actions, horizon=5, **PLANNED
    )
    assert plan(np.array([1.0]))[0] == -1.0  # the dose raises severity there
    assert plan(np.array([-1.0]))[0] == -1.0  # and lowers what is negative: away from zero


def test_new_rows_keep_the_structure_and_lower_the_penalty(fit):
    with pytest.warns(IvviWarning, match="clustered by episode"):
        updated = ivvi.update(fit, opened(varying(1500, seed=9)))
    assert updated.choice == fit.choice
    assert updated.estimate.n == fit.estimate.n + 1500
    both = opened(pa.concat_tables([varying(), shifted(varying(1500, seed=9), 1000)]))
    phi, psi = fit.estimate.design.phi, fit.estimate.design.psi
    from ivvi.estimators.registry import restore_method

    whole = ivvi.estimate(both, phi, psi, method=restore_method("smooth", fit.settings))
    assert np.allclose(updated.W, whole.W, atol=1e-8)


def shifted(table, by):
    at = table.schema.get_field_index("episode")
    return table.set_column(at, "episode", pa.array(table["episode"].to_numpy() + by))


def test_effect_has_bands_that_hold_the_truth_and_counts_whom_it_helps(fit):
    effect = ivvi.effect(fit, "dose", "severity")
    truth = 1.5 * np.sin(1.5 * effect.x)
    error = np.abs(effect.estimate - truth) / effect.se
    assert np.mean(error < 4.5) > 0.97  # in standard errors, for any seed
    assert (effect.lower <= effect.low).all()
    assert (effect.high <= effect.upper).all()
    sample = fit.sample.x[:, 0]
    share = np.mean(np.sin(1.5 * sample) > 0)
    everyone = effect.groups[0]
    assert everyone.low - 0.03 <= share <= everyone.high + 0.03
    assert "features as given" in effect.summary()
    assert effect.to_frame().shape == (101, 7)


def test_effect_of_a_linear_fit_is_its_coefficient(linear_log):
    fit = ivvi.estimate(linear_log)
    effect = ivvi.effect(fit, "a0")
    assert np.allclose(effect.estimate, fit.W[0, 2])
    assert np.allclose(effect.se, fit.se[0, 2])
    assert "the same for every x0" in effect.caveat
    assert "--features auto" in effect.caveat


@pytest.mark.filterwarnings("ignore::ivvi.errors.IvviWarning")
def test_effects_and_tables_repeat_what_speaks_against_a_fit():
    rng = np.random.default_rng(0)
    x, z, u, e = rng.normal(size=(4, 2000))
    rows = {"x": x, "z": z, "a": z + u, "y": (0.5 + x) * (z + u) + u + e}
    roles = {"state": "x", "action": "a", "instrument": "z", "next_state": "y"}
    doubted = ivvi.fit(ivvi.read_logs(rows, **roles))
    effect = ivvi.effect(doubted, "a", "x")
    assert effect.to_json()["caveat"].startswith(doubted.doubts[0])
    sound = ivvi.fit(ivvi.read_logs(rows | {"y": z + 2 * u + e}, **roles))
    weak = ivvi.fit(ivvi.read_logs(rows | {"a": 0.01 * z + u}, **roles))
    made = ivvi.table({"one": doubted, "two": sound, "three": weak})
    assert [note.split(":")[0] for note in made.notes] == ["one", "three"]
    assert "the instruments are weak" in str(made)
    assert doubted.doubts[0] in str(made)


def test_effect_along_the_action_itself_is_its_slope(fit):
    effect = ivvi.effect(fit, "dose", "dose", output="severity", at={"severity": 1.0})
    middle = ivvi.effect(fit, "dose", "severity", span=(1.0, 1.1), points=2).estimate[0]
    assert np.allclose(effect.estimate, middle, atol=1e-6)  # the dose is not bent


def test_the_shell_fits_shows_and_draws(tmp_path):
    source, model = tmp_path / "log.parquet", tmp_path / "model"
    pq.write_table(varying(1500), source)
    options = (*COLUMNS, "--next-state", "next_severity", "--features", "auto")
    fitted = run("fit", source, *options, "--out", model)
    assert fitted.code == 0
    assert "chosen: severity bent, dose x severity" in fitted.out
    figure = tmp_path / "effect.svg"
    shown = run("effect", model, "--action", "dose", "--over", "severity", "--plot", figure)
    assert shown.code == 0
    assert "severity below" in shown.out
    assert figure.exists()
    for wrong in (("--over", "age"), ("--between", "1"), ("--at", "severity=high")):
        assert_refused(run("effect", model, "--action", "dose", *wrong))


def test_columns_with_few_values_are_not_bent_and_that_is_said():
    table = varying(1500)
    three = pa.array(np.sign(table["severity"].to_numpy().round()))
    fit = ivvi.estimate(
        opened(table.append_column("ward", three), state="severity,ward"), phi="auto"
    )
    assert any("ward stays linear" in note for note in fit.choice.notes)


@pytest.mark.parametrize(
    ("table", "columns", "fact"),
    [
        (varying(120, horizon=10), {}, "5 folds of 50 rows"),
        (varying(600, horizon=600), {}, "there is 1"),
        (varying(1500), {"state": (), "action": "binary"}, "nothing to make nonlinear"),
    ],
)
def test_logs_that_cannot_choose_are_refused_with_a_reason(table, columns, fact):
    table = table.append_column("binary", pa.array((table["dose"].to_numpy() > 0).astype(float)))
    with pytest.raises(InputError, match=fact):
        ivvi.estimate(opened(table, **columns), phi="auto")


def test_auto_is_refused_for_other_methods_and_in_other_verbs(log):
    with pytest.raises(InputError, match="not sgda"):
        ivvi.estimate(log, phi="auto", method=ivvi.SGDA(memory="linear"))
    with pytest.raises(InputError, match="remove the other"):
        ivvi.estimate(log, phi="auto", psi="linear")
    with pytest.raises(InputError, match="chosen by a fit"):
        ivvi.interval(log, "severity", "dose", phi="auto")


def test_columns_with_many_equal_values_are_bent_with_fewer_knots():
    """A third of the states is zero, as spending and lengths of stay are."""
    rng = np.random.default_rng(2)
    n = 3000
    x = np.maximum(rng.normal(size=n), 0.0) + 0.0
    x[x > 2] = 2.0
    z, e = rng.normal(size=(2, n))
    a = z + e + rng.normal(size=n)
    columns = {"x": x, "a": a, "z": z, "y": np.where(x > 1, 1.5, -1.5) * a + 2 * e}
    columns["episode"] = np.arange(n) // 10
    columns["step"] = np.arange(n) % 10
    log = ivvi.read_logs(columns, state="x", action="a", instrument="z", next_state="y")
    fit = ivvi.fit(log, "auto")
    assert fit.choice.label == "x bent, a x x"
    drawn = ivvi.effect(fit, "a", over="x")
    assert drawn.estimate[0] < -1 < 1 < drawn.estimate[-1]


def test_a_ridge_needs_no_rank_and_splines_need_states(tmp_path):
    source, model = tmp_path / "log.parquet", tmp_path / "model"
    pq.write_table(varying(900), source)
    outcome = ("--next-state", "next_severity", "--out", model)
    fourier = ("--features", "fourier:40")
    assert_refused(run("fit", source, *COLUMNS, *outcome, *fourier))
    fitted = run("fit", source, *COLUMNS, *outcome, *fourier, "--ridge", "auto")
    assert fitted.code == 0
    assert ivvi.load_fit(model).method == "ridge"
    assert_refused(run("fit", source, *COLUMNS, *outcome, "--ridge", "much", "--force"), "much")
    with pytest.raises(InputError, match="applies to states"):
        ivvi.estimate(opened(varying(900), state=()), phi="spline:4")


def test_effects_of_categories_are_asked_for_by_their_columns_and_levels():
    rng = np.random.default_rng(0)
    z, severity, hidden = rng.normal(size=(3, 800))
    ward = rng.choice(["A", "B", "C"], 800)
    drug = np.where(z + hidden > 0, "yes", "no")
    columns = {"severity": severity, "ward": ward, "drug": drug, "z": z}
    columns["after"] = (drug == "yes") * (1 + (ward == "C")) + hidden + rng.normal(size=800)
    roles = {"state": "severity,ward", "action": "drug", "instrument": "z", "reward": "after"}
    fit = ivvi.fit(ivvi.read_logs(columns, **roles), "linear:cross")
    in_a, in_c = (ivvi.effect(fit, "drug", "severity", at={"ward": w}) for w in ("A", "C"))
    assert in_a.action == "drug[yes]"
    place = fit.estimate.design.phi.names(fit.roles.state, fit.roles.action)
    extra = fit.W[0, place.index("ward[C]*drug[yes]")]
    assert np.allclose(in_c.estimate - in_a.estimate, extra)
    with pytest.raises(InputError, match=r"name the one to compare with 'A', such as 'ward"):
        ivvi.effect(fit, "drug", "ward")
    with pytest.raises(InputError, match=r"'ward' of at .* holds 'D', which is none of the levels"):
        ivvi.effect(fit, "drug", "severity", at={"ward": "D"})


def test_sums_of_chosen_features_are_merged_and_fitted_like_all_rows(log, fit, tmp_path):
    near, far = tmp_path / "near.parquet", tmp_path / "far.parquet"
    pq.write_table(varying(), near)
    pq.write_table(shifted(varying(1500, seed=9), 1000), far)
    columns = (*COLUMNS, "--next-state", "next_severity")
    made = run("moments", near, *columns, "--features", "auto", "--out", tmp_path / "one")
    assert made.code == 0
    assert "chosen: severity bent, dose x severity" in made.out
    assert run("moments", far, "--like", tmp_path / "one", "--out", tmp_path / "two").code == 0
    merged = ("merge", tmp_path / "one", tmp_path / "two", "--out", tmp_path / "both")
    assert run(*merged).code == 0
    fitted = run("fit", "--moments", tmp_path / "both", "--out", tmp_path / "model")
    assert fitted.code == 0
    again = ivvi.load_fit(tmp_path / "model")
    assert (again.method, again.choice) == ("smooth", fit.choice)
    updated = ivvi.update(fit, opened(varying(1500, seed=9)))
    assert np.allclose(again.W, updated.W, atol=1e-8)
    refused = run("moments", near, *columns, "--phi", "auto", "--psi", "linear", "--out", "no")
    assert_refused(refused, "together")


def test_a_stream_chooses_by_its_first_delivery_and_goes_on_after_a_pause(fit, tmp_path):
    columns = {"state": "severity", "action": "dose", "instrument": "push"}
    stream = ivvi.Stream("auto", next_state="next_severity", **columns)
    with pytest.raises(InputError, match="5 folds of 50 rows"):
        stream.partial_fit(varying(120, horizon=10))
    stream.partial_fit(varying())
    stream.save(tmp_path / "stream")
    stream = ivvi.Stream.load(tmp_path / "stream")
    with pytest.warns(IvviWarning, match="too many for a stream"):
        first = stream.fit()
    assert first.choice == fit.choice
    assert np.allclose(first.W, fit.W, atol=1e-8)
    stream.partial_fit(shifted(varying(1500, seed=9), 1000))
    assert stream.n == fit.estimate.n + 1500


def test_the_report_draws_the_effect_and_says_for_whom_it_helps(fit, linear_log, tmp_path):
    page = ivvi.report(fit, tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Effects that vary" in page
    assert "The effect of dose changes with severity" in page
    assert "Effect of dose on next_severity along severity" in page
    assert "For whom it helps" in page
    assert fit.choice.sentence.split(";")[0] in page
    plain = ivvi.report(ivvi.fit(linear_log), tmp_path / "plain.html").read_text(encoding="utf-8")
    assert "Effects that vary" not in plain


@pytest.mark.filterwarnings("ignore:.* far outside the states of the log")
@pytest.mark.usefixtures("few_episodes")
def test_a_chosen_model_is_valued_and_acted_with(fit, tmp_path):
    fit.save(tmp_path / "model")
    actions = ivvi.Actions.finite([[-1.0], [0.0], [1.0]])
    plan = ivvi.plan(
        fit, reward="quadratic:weight=1,target=0", actions=actions, horizon=4, **PLANNED
    )
    plan.save(tmp_path / "policy")
    again = ivvi.load_policy(tmp_path / "policy")
    states = np.array([[1.0], [-0.5], [40.0]])
    assert np.array_equal(again(states), plan(states))
    worth = ivvi.value(again, fit, horizon=4, draws=20, seed=0, against=("zero",))
    assert np.isfinite(worth.to_json()["values"]["policy"]["interval"]).all()
    far = fit.model.mean(np.array([[50.0], [60.0], [70.0]]), np.zeros((3, 1)))[:, 0]
    inside = fit.estimate.design.phi(np.array([[50.0], [60.0], [70.0]]), np.zeros((3, 1)))
    assert np.abs(np.diff(inside @ fit.W[0], n=2)).max() < 1e-6  # straight beyond the log
    assert np.isfinite(far).all()
