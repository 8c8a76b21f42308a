"""Hypotheses about W in words: Wald tests and combinations."""

from dataclasses import replace

import numpy as np
import pytest

import ivvi
from helpers import ROLES, dependent_log, dependent_rows, make_rows
from ivvi import InputError, StandardErrors

pytestmark = pytest.mark.filterwarnings("ignore:weak instruments")


@pytest.mark.peers
@pytest.mark.parametrize("debiased", [False, True])
def test_wald_tests_equal_those_of_linearmodels(debiased):
    data = dependent_rows(14, d_a=2, d_z=3)
    lm = pytest.importorskip("linearmodels.iv")
    fit = ivvi.estimate(dependent_log(data), se=StandardErrors("clustered", debiased=debiased))
    x, a, z, y, episode, _ = data
    model = lm.IV2SLS(y[:, 1], np.column_stack([np.ones(len(y)), x]), a, z)
    other = model.fit(cov_type="clustered", clusters=episode, debiased=debiased)
    R = np.array([[0, 0, 0, 1.0, -1.0], [0, 2.0, 0, 0.5, 0]])
    wanted = other.wald_test(R, np.array([0.0, 3.0]))
    ours = fit.wald(["y1: a0 = a1", "y1: 2 x0 + 0.5 a0 = 3"])
    scale = 2 if debiased else 1
    assert ours.value * scale == pytest.approx(wanted.stat, rel=1e-7)
    assert ours.df == ((2, 59) if debiased else (2,))
    again = fit.wald(np.hstack([0 * R, R]), [0.0, 3.0])
    assert again.value == pytest.approx(ours.value, rel=1e-12)
    value, se = fit.combination("y1: a0 - a1 + 1")
    assert value[0] == pytest.approx(fit.W[1, 3] - fit.W[1, 4] + 1)
    assert ((value[0] - 1) / se[0]) ** 2 == pytest.approx(fit.wald("y1: a0 = a1").value)


def test_a_hypothesis_that_names_no_output_is_about_every_one():
    log = dependent_log(dependent_rows(15))
    fit = ivvi.estimate(log, se=ivvi.StandardErrors(debiased=False))
    corrected = ivvi.estimate(log)  # by default clusters are, for as many as count
    fewest = corrected.estimate.freedoms[:, [3]].min()
    assert corrected.wald("a0 = 0").df == (2, int(fewest))
    assert fewest < 59
    both = fit.wald("a0 = 0")
    assert both.df == (2,)
    at = [3, 7]
    covariance = fit.estimate.covariance.joint[np.ix_(at, at)]
    w = fit.W[:, 3]
    assert both.value == pytest.approx(w @ np.linalg.solve(covariance, w))
    assert fit.wald("const = 0").df == (2,)


def test_a_state_stands_for_its_next_value_in_hypotheses_too():
    fit = ivvi.estimate(ivvi.read_logs(make_rows(), **ROLES))
    assert fit.wald("x1: a0 = 0") == replace(fit.wald("next_x1: a0 = 0"), null="x1: a0 = 0")
    assert fit.combination("x0: a0 - a1") == fit.combination("next_x0: a0 - a1")


@pytest.mark.parametrize(
    ("hypothesis", "said"),
    [
        ("y7: a0 = 0", "there is no output 'y7'"),
        ("a9 = 0", "'a9' in .* is not a feature; choose from 1, x0, x1, a0"),
        ("a0 = 1 = 2", "2 equals signs"),
        ("1 = 1", "names no coefficient"),
        (["a0 = 0", "2 a0 = 0"], "are linearly dependent"),
        (np.ones((1, 3)), "restriction has 3 columns; expected 8"),
    ],
)
def test_hypotheses_that_make_no_sense_are_refused(hypothesis, said):
    fit = ivvi.estimate(dependent_log(dependent_rows(16)))
    with pytest.raises(InputError, match=said):
        fit.wald(hypothesis)


@pytest.mark.filterwarnings("ignore:not identified")
@pytest.mark.parametrize("unit", [1e-8, 1.0, 1e8])
def test_what_is_not_identified_is_refused_in_any_unit(unit, confounded, log_of):
    x, a, z, y = confounded(3, d_a=2, d_z=1)
    log = log_of(x, a * [1.0, unit], z, y)
    fit = ivvi.estimate(log, allow_unidentified=True, se="robust")
    assert np.isnan(fit.se[:, 3:]).all()
    for name in ("a0", "a1"):
        with pytest.raises(InputError, match="is not identified"):
            fit.wald(f"y0: {name} = 0")
