"""Coverage of value intervals, what caution reaches, and what draws cost: the docs' tables."""

import time

import numpy as np
import pytest

import ivvi
from ivvi_reproduction import cautious_planning, world_coverage
from ivvi_reproduction.value_coverage import DESIGNS, measure, table

BY_NAME = {design.name: design for design in DESIGNS}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in BY_NAME if "strong" in name])
def test_intervals_cover_within_three_deviations_over_200_logs(name):
    record = measure(BY_NAME[name], 200)
    for method in ("asymptotic", "bootstrap"):
        for target in ("value", "gain"):
            share = record.coverage[f"{method} {target} split"]
            assert abs(share - 0.95) <= 3 * record.deviation, table([record])
    assert set(record.verdicts) == {"strong"}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in BY_NAME if "weak" in name])
def test_where_intervals_may_fail_the_verdict_is_not_strong(name):
    record = measure(BY_NAME[name], 60)
    assert record.verdicts.get("strong", 0) <= 0.05 * record.logs, table([record])


@pytest.mark.slow
def test_caution_saves_the_worst_plans_and_costs_the_good_ones_little():
    weak = cautious_planning.measure("weak", 100, levels=(0.0, 0.95))
    floor = weak.behaviour - 0.05 * abs(weak.behaviour)
    assert weak.worst(0.95) >= floor
    assert weak.worst(0.0) < floor
    strong = cautious_planning.measure("strong", 30, levels=(0.0, 0.95))
    assert abs(strong.mean(0.95) - strong.mean(0.0)) <= 0.02 * abs(strong.mean(0.0))


@pytest.mark.slow
def test_500_replicates_cost_at_most_twenty_fits_and_evaluations(simulator):
    env = simulator("linear", 5)
    log = env.collect(seed=0)
    begun = time.process_time()
    fit = ivvi.estimate(log, episodes=True)
    policy = ivvi.plan(fit.model, "quadratic:weight=0.05", (-1, 1), horizon=1000, method="mpc")
    ivvi.evaluate(policy, env, against=())
    once = time.process_time() - begun
    begun = time.process_time()
    worth = ivvi.value(policy, fit, against=(), draws=500)
    assert time.process_time() - begun <= 20 * once
    assert len(worth.value.draws) == 500
    assert np.isfinite(worth.value.draws).all()


@pytest.mark.slow
@pytest.mark.parametrize("world", world_coverage.WORLDS, ids=lambda world: world.name)
def test_intervals_cover_with_categories_and_endings(world):
    record = world_coverage.measure(world, 200)
    told = world_coverage.table([record])
    assert abs(record.coverage["bootstrap"] - 0.95) <= 3 * record.deviation, told
    assert record.outside == 0


@pytest.mark.slow
def test_an_estimate_lies_within_its_own_interval():
    record = world_coverage.measure(world_coverage.WORLDS[0], 2)
    assert record.outside == 0
    assert all(0 < length < 20 for length in record.length.values())
