"""The worlds of benchmarks/zoo: weights that are exact, optima that other methods confirm."""

import dataclasses
import itertools
import sys

import numpy as np
import pytest

from helpers import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

from zoo import WORLDS, collect, noise_of, reference, run, true_model, true_weights
from zoo.bounds import hull_bound
from zoo.fitted import one_step
from zoo.optimum import normal_nodes, solve_grid, solve_levels
from zoo.riccati import riccati, riccati_policy


@pytest.mark.parametrize("world", WORLDS.values(), ids=lambda world: world.name)
def test_the_true_dynamics_are_linear_in_the_features(world):
    assert true_weights(world)[1] < 1e-10


@pytest.mark.parametrize("world", WORLDS.values(), ids=lambda world: world.name)
def test_a_log_is_confounded_and_its_instrument_is_not(world):
    log = collect(world, 4000, seed=1)
    x, a, z, y = (
        np.column_stack([log[f"{letter}{i}"] for i in range(d)])
        for letter, d in (
            ("x", world.d_x),
            ("a", world.d_a),
            ("z", world.d_a),
            ("next_x", world.d_x),
        )
    )
    hidden = (y - world.mean(x, a)) @ np.ones(world.d_x)
    n = len(hidden)
    assert max(abs(np.corrcoef(z[:, j], hidden)[0, 1]) for j in range(world.d_a)) < 5 / n**0.5
    assert max(abs(np.corrcoef(a[:, j], hidden)[0, 1]) for j in range(world.d_a)) > 5 / n**0.5
    assert min(np.corrcoef(z[:, j], a[:, j])[0, 1] for j in range(world.d_a)) > 0.2


def test_the_true_model_predicts_what_the_world_does():
    world = WORLDS["van-der-pol"]
    model = true_model(world, collect(world, 600, seed=0))
    x, a = world.start(np.random.default_rng(0), 50), np.linspace(-1, 1, 50)[:, None]
    assert np.abs(model.mean(x, a) - world.mean(x, a)).max() < 1e-10
    assert np.allclose(np.sqrt(np.diag(model.next_cov)), world.spread)


def brute_force(world, x, steps, nodes=17):
    """Value of x (n, d_x) by listing actions and noise of all remaining steps (one state)."""
    if steps == 0:
        return np.zeros(len(x))
    points, weights = normal_nodes(nodes)
    best = np.full(len(x), -np.inf)
    for a in world.actions.choices:
        acts = np.tile(a, (len(x), 1))
        mean, q = world.mean(x, acts), np.zeros(len(x))
        for t, w in zip(points, weights, strict=True):
            after = mean + world.spread[0] * t
            later = np.where(world.is_over(after), 0, brute_force(world, after, steps - 1, nodes))
            q += w * (world.reward(x, acts, after, 0) + world.discount * later)
        best = np.maximum(best, q)
    return best


@pytest.mark.parametrize("name", ["threshold", "bistable", "inventory"])
def test_dynamic_programming_agrees_with_listing_everything(name):
    world = dataclasses.replace(WORLDS[name], horizon=2)
    x = world.start(np.random.default_rng(0), 8)
    found, listed = solve_grid(world).claimed(x), brute_force(world, x, 2)
    assert np.abs(found - listed).max() < 0.01 * np.abs(listed).max()


def test_finite_levels_agree_with_listing_all_rules():
    world = dataclasses.replace(WORLDS["machine"], horizon=2)
    levels = np.eye(4)[:, 1:]
    best = np.full(4, -np.inf)
    for rules in itertools.product((0.0, 1.0), repeat=8):
        value = np.zeros(4)
        for rule in np.array(rules).reshape(2, 4, 1):
            later = world.mean(levels, rule)
            chances = np.column_stack([1 - later.sum(axis=1), later])
            value = world.reward(levels, rule, None, 0) + chances @ value
        best = np.maximum(best, value)
    assert np.allclose(solve_levels(world).claimed(levels), best)


@pytest.mark.parametrize("name", ["threshold", "bistable", "survival", "machine", "inventory"])
def test_the_optimum_earns_what_dynamic_programming_says(name):
    world, seed = WORLDS[name], 3
    found = reference(world)
    earned = run(world, found.policy, 300, seed) - found.claimed(noise_of(world, 300, seed)[0])
    assert abs(earned.mean()) < 4.5 * earned.std() / 300**0.5


def test_a_finer_grid_gives_the_same_value():
    world = WORLDS["dosing"]
    coarse = dataclasses.replace(world, grid=tuple((a, b, n // 2 + 1) for a, b, n in world.grid))
    x = world.start(np.random.default_rng(0), 50)
    fine, half = (solve_grid(w).claimed(x) for w in (world, coarse))
    assert np.abs(fine - half).max() < 0.01 * np.abs(fine).max()


def test_no_policy_beats_the_bound_of_the_hull():
    world = dataclasses.replace(WORLDS["items300"], horizon=6)
    bound, error = hull_bound(world, 40, seed=2)
    earned = run(world, one_step(world, riccati(world)), 40, 2).mean()
    assert earned - 3 * error < bound < earned + 0.1 * abs(earned)


def test_the_hull_of_a_box_and_a_switch_bounds_dynamic_programming():
    world = dataclasses.replace(WORLDS["mixed"], horizon=5)
    bound, error = hull_bound(world, 40, seed=2)
    exact = solve_grid(world).claimed(noise_of(world, 40, 2)[0]).mean()
    assert exact - 3 * error < bound < exact + 0.2 * abs(exact)


def test_unconstrained_values_are_what_their_policy_earns():
    world, seed = WORLDS["unstable"], 4
    policy, claimed = riccati_policy(world, riccati(world))
    earned = run(world, policy, 300, seed) - claimed(noise_of(world, 300, seed)[0])
    assert abs(earned.mean()) < 4.5 * earned.std() / 300**0.5
