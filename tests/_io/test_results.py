"""Every result is told alike: summary, frame, JSON, notebook; and `repr` is one short line."""

import json

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
    return {
        "fit": fit,
        "diagnostics": ivvi.diagnose(fit),
        "checks": ivvi.check(log),
        "interval": ivvi.interval(fit, "next_x0", "a0", log=log),
        "curve": ivvi.curve(fit, "a0", "next_x0"),
        "comparison": policy.comparison,
        "value": ivvi.value(policy, fit, draws=20, against=("zero",)),
        "stability": ivvi.stability(policy, fit, states=[[1.0]], draws=10),
        "sensitivity": ivvi.sensitivity(policy, fit, against=("zero",), draws=0, episodes=16),
        "evaluation": ivvi.evaluate(policy, ivvi.make_env("linear", dim=1), episodes=8, horizon=5),
    }


NAMES = (
    *("fit", "diagnostics", "checks", "interval", "curve", "comparison", "value", "stability"),
    *("sensitivity", "evaluation"),
)


@pytest.mark.parametrize("name", NAMES)
def test_a_result_has_a_summary_json_and_a_page_for_notebooks(name, results):
    result = results[name]
    assert len(result.summary()) > 40
    assert str(result) == result.summary()
    json.dumps(result.to_json(), allow_nan=False)
    page = result._repr_html_()
    assert page.endswith(("</pre>", "</pre></details>"))
    assert page.count("<table>") == page.count("</table>")
    assert "\n" not in repr(result)
    assert len(repr(result)) < 200
    assert "array(" not in repr(result)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "interval"])
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


def test_objects_that_hold_arrays_do_not_print_them(fit):
    for held in (fit.model, fit.estimate, fit.estimate.W_cov, fit.moments, fit.sample):
        assert "\n" not in repr(held)
        assert len(repr(held)) < 200


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
