"""Every result has the same display methods: summary, frame, JSON, notebook; `repr` is one line."""

import dataclasses
import json
import sys

import numpy as np
import pytest

import ivvi

REWARD = "quadratic:weight=0.05"


@pytest.fixture(scope="module")
def log():
    return ivvi.make_env("linear", dim=1).collect(episodes=40, horizon=20, seed=1)


@pytest.fixture(scope="module")
def fit(log):
    return ivvi.fit(log, episodes=True)


@pytest.fixture(scope="module")
def results(log, fit):
    policy = ivvi.plan(fit, REWARD, (-1, 1), horizon=2)
    with pytest.warns(ivvi.errors.IvviWarning, match="Nickell bias of x0"):
        absorbed = ivvi.fit(log, absorb="episode")
    return {
        "fit": fit,
        "estimate": fit.estimate,
        "diagnostics": ivvi.diagnose(fit),
        "checks": ivvi.check(log),
        "interval": ivvi.interval(fit, "next_x0", "a0", log=log),
        "curve": ivvi.curve(fit, "a0", "next_x0"),
        "comparison": policy.comparison,
        "value": ivvi.value(policy, fit, draws=20, against=("zero",)),
        "stability": ivvi.stability(policy, fit, states=[[1.0]], draws=10),
        "sensitivity": ivvi.sensitivity(policy, fit, against=("zero",), draws=0, episodes=16),
        "evaluation": ivvi.evaluate(policy, ivvi.make_env("linear", dim=1), episodes=8, horizon=5),
        "decomposition": ivvi.simulators.decompose(
            policy, ivvi.make_env("linear", dim=1), episodes=8
        ),
        "policy": policy,
        "choice": ivvi.choose_features(log, ["linear", "spline:3"]),
        "response": ivvi.respond(log, "a0", horizon=2),
        "effect": ivvi.effect(fit, "a0"),
        "table": ivvi.table(fit),
        "dynamics": fit.model,
        "shard": fit.shard,
        "robust": fit.robust_intervals,
        "fixed effects": absorbed.effects[0],
        "trace": ivvi.fit(log, method="sgda").estimate.trace,
        "structures": ivvi.fit(log, "auto").choice,
        "statistic": fit.wald("a0 = 0"),
        "rollout": fit.model.as_env(REWARD, (-1, 1), horizon=2).rollout(policy, episodes=3),
        "one value": ivvi.value([0.5], fit, reward=REWARD, draws=20, against=()).value,
    }


NAMES = (
    *("fit", "diagnostics", "checks", "interval", "curve", "comparison", "value", "stability"),
    *("sensitivity", "evaluation", "decomposition", "policy", "choice", "response", "effect"),
    *("table", "dynamics", "shard", "robust", "fixed effects", "trace", "structures", "statistic"),
    *("rollout", "one value", "estimate"),
)
NO_TABLE = ("statistic", "one value")


@pytest.mark.parametrize("name", NAMES)
def test_a_result_has_a_summary_json_and_a_page_for_notebooks(name, results):
    result = results[name]
    assert len(result.summary()) > 40
    assert str(result) == result.summary()
    json.dumps(result.to_json(), allow_nan=False)
    page = result._repr_html_()
    assert page.endswith(("</pre>", "</pre></details>", "</table>"))
    assert page.count("<table") == page.count("</table>")
    assert "\n" not in repr(result)
    assert len(repr(result)) < 200
    assert "array(" not in repr(result)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in NO_TABLE])
def test_a_table_becomes_a_frame(name, results):
    frame = results[name].to_frame()
    assert len(frame) == len(results[name].records()) > 0
    assert not frame.columns.duplicated().any()


def test_the_frame_of_a_fit_holds_its_coefficients(fit):
    frame = fit.to_frame().set_index(["output", "feature"])
    row = frame.loc[("next_x0", "a0")]
    assert row["coefficient"] == fit.W[0, 2]
    assert row["se"] == fit.se[0, 2]
    assert row["low"] < row["coefficient"] < row["high"]
    assert row["least_squares"] == fit.baseline.W[0, 2]
    half = (row["high"] - row["low"]) / 2 / row["se"]
    assert 1.95 < half < 2.1  # Student's, of about 39 degrees of freedom
    assert row["robust_low"] < row["coefficient"] < row["robust_high"]
    numbers = frame.drop(columns=["robust_low", "robust_high"])  # of the actions alone
    assert np.isfinite(numbers.to_numpy(dtype=float)).all()


LONG = ("Roles", "Resolved", "Check")
"""Descriptions of columns, errors and checks: words without arrays, and all of them matter."""


def held_by(thing):
    """Yield what public names of an object hold, and the first of what those hold."""
    if not type(thing).__module__.startswith("ivvi."):
        return
    names = {name for name in dir(type(thing)) if not name.startswith("_")} | set(vars(type(thing)))
    if dataclasses.is_dataclass(thing):
        names |= {field.name for field in dataclasses.fields(thing)}
    for name in sorted(name for name in names if not name.startswith("_")):
        try:
            value = getattr(thing, name)
        except ivvi.InputError:  # there is none, and the error says why
            continue
        if isinstance(value, dict):
            value = list(value.values())
        values = value[:1] if isinstance(value, tuple | list) else [value]
        for one in values:
            if type(one).__module__.startswith("ivvi.") and type(one).__name__ not in LONG:
                yield f"{type(thing).__name__}.{name}", one


@pytest.fixture(scope="module")
def others(log, fit):
    env = ivvi.make_env("linear", dim=1)
    settings = {"horizon": 2, "compare": False}
    states = np.linspace(-1, 1, 50)[:, None]
    planned = {
        "spede": ivvi.plan(fit, REWARD, (-1, 1), method="spede", **settings),
        "values": ivvi.plan(fit, REWARD, (-1, 1), method="value-iteration", **settings),
        "cautious": ivvi.plan(fit, REWARD, (-1, 1), method="mpc", caution=0.9, states=states),
    }
    worlds = {"env": env, "model env": fit.model.as_env(REWARD, (-1, 1)), "world": env.world}
    return planned | worlds | {"differences": ivvi.fit(log, difference=True)}


def test_neither_results_nor_what_they_hold_print_arrays_or_addresses(results, others):
    """Every public result, and whatever a public name of it holds: nothing floods a notebook."""
    reached = {**results, **others}
    for name, thing in list(reached.items()):
        reached |= {f"{name}: {at}": held for at, held in held_by(thing)}
    floods = {
        name: shown
        for name, shown in ((name, repr(thing)) for name, thing in reached.items())
        if len(shown) >= 300 or any(bad in shown for bad in ("\n", "array(", " at 0x"))
    }
    assert len(reached) > 80
    assert not floods


def test_a_short_repr_is_a_whole_sentence_or_ends_at_a_word(results):
    for name in ("diagnostics", "checks", "sensitivity", "response"):
        result = results[name]
        said = repr(result).removeprefix(f"<{type(result).__name__}: ").removesuffix(">")
        label, sentence = result.brief.items[0]
        whole = {sentence, f"{label}: {sentence}"}
        assert said in whole or any(
            one.startswith(said.removesuffix(" ...") + " ") for one in whole
        )


def test_a_frame_without_pandas_is_refused_with_what_to_do(fit, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ivvi.InputError, match=r"pip install pandas.*records\(\).*to_json\(\)"):
        fit.to_frame()


def test_a_policy_that_was_not_compared_says_that_it_has_no_table(fit):
    alone = ivvi.plan(fit, REWARD, (-1, 1), horizon=2, method="mpc", compare=False)
    assert alone.to_json()["comparison"] is None
    assert alone.to_json()["rule"]["kind"] == "mpc"
    with pytest.raises(ivvi.InputError, match="compare=True"):
        alone.to_frame()


def test_the_p_value_is_part_of_a_statistic_as_it_is_shown(fit):
    test = fit.wald("a0 = 0")
    assert f"p = {test.p_value:.4g}" in repr(test)


def test_weights_of_dynamics_come_with_the_errors_of_the_fit(fit, tmp_path):
    frame = fit.model.to_frame()
    assert np.allclose(frame["se"], fit.se.ravel())
    assert np.array_equal(frame["coefficient"], fit.W.ravel())
    rows = fit.shard.to_frame().set_index("column")
    assert rows.loc["a0", "mean"] == pytest.approx(fit.moments.mean[2])


def test_kinds_of_intervals_that_do_not_exist_are_refused(results):
    with pytest.raises(ivvi.InputError, match="unknown interval 'normal'"):
        results["one value"].interval_of("normal")


def test_verbs_are_those_of_the_shell():
    """Each word that the command line has for a fit or a policy is a function too."""
    verbs = ("fit", "diagnose", "check", "interval", "plan", "value", "update", "sensitivity")
    for verb in (*verbs, "report", "evaluate"):
        assert callable(getattr(ivvi, verb)), verb
    assert ivvi.fit is ivvi.estimate
    assert len(ivvi.__all__) <= 50


def test_a_plan_takes_a_fit_or_its_model(fit):
    settings = {"horizon": 2, "method": "mpc", "compare": False}
    one, two = (ivvi.plan(s, REWARD, (-1, 1), **settings) for s in (fit, fit.model))
    assert np.array_equal(one([[1.0]]), two([[1.0]]))


def test_diagnosing_a_fit_is_diagnosing_its_log(log, fit):
    assert ivvi.diagnose(log).to_json() == ivvi.diagnose(fit).to_json() == fit.diagnostics.to_json()


@pytest.mark.parametrize("name", ["fit", "diagnostics", "checks", "value", "sensitivity"])
def test_a_verdict_opens_with_three_sentences_and_ends_with_what_to_do(name, results):
    result = results[name]
    words = [word for word, _ in result.brief.items]
    assert len(words) == 3
    assert words[-1] == "Next"
    assert result.summary().startswith(result.brief.text)
    if name != "diagnostics":  # the fit's JSON has them
        assert result.to_json()["brief"] == result.brief.to_json()
    assert result._repr_html_().startswith(f"<p><b>{words[0]}</b>")


def test_the_summary_of_a_log_has_a_line_for_each_column(log):
    lines = log.summary().splitlines()
    assert lines[0] == repr(log)
    assert [line.split()[0] for line in lines[3:]] == ["x0", "a0", "z0", "next_x0"]
    assert float(lines[3].split()[2]) == pytest.approx(log.head().x.mean(), rel=1e-3)
