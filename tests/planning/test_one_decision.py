"""Cross-sections: one decision in a row, and the outcome is its reward."""

import numpy as np
import pytest

import ivvi
from ivvi import InputError


def patients(n=3000, seed=7):
    """An operation is worth 0.6 + 0.8 severity; surgeons see who would recover anyway."""
    rng = np.random.default_rng(seed)
    severity, hidden, luck = rng.normal(size=(3, n))
    km = rng.exponential(10, n)
    operated = 0.8 * hidden + 0.5 * severity - 0.08 * (km - 10) + rng.normal(size=n) > 0
    recovery = operated * (0.6 + 0.8 * severity) - hidden - severity + luck
    words = np.where(operated, "yes", "no")
    return {"severity": severity, "km": km, "surgery": words, "recovery": recovery}


ROLES = {"state": "severity", "action": "surgery", "instrument": "km"}


def test_the_policy_of_a_cross_section_is_planned_valued_and_saved(tmp_path):
    log = ivvi.read_logs(patients(), reward="recovery", **ROLES)
    assert log.roles.outputs == ("recovery",)
    assert any("single decisions" in line for line in log.roles.lines())
    fit = ivvi.fit(log, "linear:cross")
    policy = ivvi.plan(fit, "learned", method="value-iteration", compare=False)
    assert policy.problem.horizon == 1
    policy.save(tmp_path / "policy")
    advice = ivvi.load_policy(tmp_path / "policy")({"severity": [-1.5, 0.0, 1.5]})
    assert advice["surgery"] == ["no", "yes", "yes"]
    worth = ivvi.value(policy, fit, against=(), draws=100).values["policy"]
    best = 0.6 * 0.7734 + 0.8 * 0.3011  # E max(0, 0.6 + 0.8 N)
    low, high = worth.interval
    assert low < best < high
    assert high - low < 0.4


@pytest.mark.filterwarnings("ignore:linear features are too simple")
def test_an_outcome_that_is_no_state_says_how_to_plan_for_it():
    fit = ivvi.fit(ivvi.read_logs(patients(), next_state="recovery", **ROLES))
    with pytest.raises(InputError, match="--reward recovery\\), without a next state"):
        ivvi.plan(fit, "recovery")


def test_a_state_times_an_action_of_no_rows_is_no_rows():
    """A plan of one step has no later states, and was refused by a reshape."""
    fit = ivvi.fit(ivvi.read_logs(patients(), next_state="recovery", **ROLES), "linear:cross")
    assert fit.model.mean(np.zeros((0, 5, 1)), np.zeros((0, 5, 1))).shape == (0, 5, 1)
