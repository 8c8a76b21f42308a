"""The best action of all."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ivvi import Actions
from ivvi.planning import best_action as best_action_module
from ivvi.planning.best_action import best_action


@pytest.mark.parametrize("at_once", [1 << 22, 7, 100])
def test_the_best_action_is_the_best_of_all(monkeypatch, at_once):
    monkeypatch.setattr(best_action_module, "AT_ONCE", at_once)
    rng = np.random.default_rng(2)
    table, x, M = rng.normal(size=(23, 2)), rng.normal(size=(11, 3)), rng.normal(size=(3, 2))
    with jax.enable_x64(True):
        q = lambda x, a: jnp.sum((x @ M) * a, axis=1) - jnp.sum(a**3, axis=1)  # noqa: E731
        a, value = best_action(q, jnp.asarray(x), Actions.finite(table), width=3)
    scores = (x @ M) @ table.T - (table**3).sum(axis=1)
    np.testing.assert_array_equal(a, table[scores.argmax(axis=1)])
    np.testing.assert_allclose(value, scores.max(axis=1), rtol=1e-12)


@pytest.mark.parametrize("at_once", [1 << 22, 50])
def test_the_best_of_a_box_and_choices_is_that_of_a_dense_grid(monkeypatch, at_once):
    monkeypatch.setattr(best_action_module, "AT_ONCE", at_once)
    actions = Actions.product(Actions.binary(1), Actions.box(-1.0, 2.0))
    x = np.linspace(-2, 2, 9)[:, None]
    dense = np.linspace(-1, 2, 30001)

    def q(x, a):
        return jnp.sin(3 * a[:, 1] + x[:, 0]) + a[:, 0] * (x[:, 0] - 0.3 * a[:, 1])

    with jax.enable_x64(True):
        a, value = map(np.asarray, best_action(q, jnp.asarray(x), actions, width=5))
    for i in range(9):
        scores = [np.sin(3 * dense + x[i]) + b * (x[i] - 0.3 * dense) for b in (0.0, 1.0)]
        assert value[i] == pytest.approx(np.max(scores), abs=1e-7)
        assert a[i, 0] == np.argmax(np.max(scores, axis=1))
