"""Actions that the log gives only one by one: what is planned, said and simulated of them."""

import warnings
from functools import cache

import jax.numpy as jnp
import numpy as np
import pytest

import ivvi
from ivvi import Actions
from ivvi.dynamics.range_warnings import decision_doubts, unseen_together
from ivvi.errors import PlanningWarning
from ivvi.planning.allowed_actions import only_seen
from ivvi.planning.behaviour_policy import BehaviourPolicy


@cache
def fitted(exclusive=True, seed=0):
    """Fit 1,500 decisions on two drugs: one of them or none, or each by itself."""
    rng = np.random.default_rng(seed)
    x, u, noise = rng.normal(size=(3, 1500))
    z = rng.integers(0, 3, 1500)
    arm = np.where(rng.random(1500) < 0.7, z, np.where(u > 0, 1, 2))
    a, b, z1, z2 = arm == 1, arm == 2, z == 1, z == 2
    if not exclusive:
        z1, z2 = rng.integers(0, 2, (2, 1500))
        a, b = (rng.random(1500) < 0.2 + 0.6 * each for each in (z1, z2))
    y = 0.8 * x - 0.4 * a - 0.35 * b + 0.6 * u + noise
    table = {"x": x, "a": 1 * a, "b": 1 * b, "z1": 1 * z1, "z2": 1 * z2, "y": y}
    roles = {"state": "x", "action": ["a", "b"], "instrument": ["z1", "z2"], "next_state": "y"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ivvi.fit(ivvi.read_logs(table, **roles)).model


def test_drugs_never_given_together_are_not_planned_together():
    with pytest.warns(PlanningWarning, match="no row of the log has a = 1 and b = 1 at once"):
        actions = only_seen(fitted(), Actions.binary(2))
    assert actions.choices.tolist() == [[0, 0], [0, 1], [1, 0]]


def test_a_decision_for_a_combination_that_the_log_never_has_is_doubted():
    (sentence,) = decision_doubts(fitted(), np.zeros((1, 1)), np.ones((1, 2)))
    assert "a = 1 and b = 1" in sentence
    assert decision_doubts(fitted(), np.zeros((1, 1)), np.array([[0.0, 1.0]])) == ()


def test_all_combinations_of_drugs_given_independently_are_allowed():
    model = fitted(exclusive=False)
    assert unseen_together(model) == []
    assert only_seen(model, Actions.binary(2)).count == 4


@pytest.mark.parametrize("exclusive", [True, False])
def test_the_behaviour_draws_the_combinations_of_the_log(exclusive):
    model = fitted(exclusive)
    policy = BehaviourPolicy.of(model)
    rng, n = np.random.default_rng(1), 4000
    row = rng.integers(len(model.acted), size=n)
    x = jnp.asarray(model.states[row])
    drawn = np.asarray(policy.draw(x, row, row, jnp.asarray(rng.random((n, 2)))))
    assert (len(policy.combinations) > 0) == exclusive
    for combination in ([0, 0], [0, 1], [1, 0], [1, 1]):
        shares = [(rows == combination).all(axis=1).mean() for rows in (drawn, model.acted)]
        error = np.sqrt(shares[1] * (1 - shares[1]) * (1 / n + 1 / len(model.acted)))
        assert abs(shares[0] - shares[1]) <= 4 * error
