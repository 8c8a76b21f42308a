"""The rows of a log that a model keeps."""

import numpy as np

import ivvi
from helpers import make_rows


def test_the_sample_of_a_log_knows_where_episodes_start(simulated):
    sample = simulated("linear", 2, episodes=5, horizon=7, seed=0).sample()
    assert sample.starts.shape == (5, 2)
    assert (sample.starts == 10.0).all()
    assert sample.x.shape == sample.a.shape == sample.z.shape == (35, 2)
    assert not sample.global_instrument
    rows = make_rows(4, 5)
    rows["z0"] = rows["z1"] = np.repeat(np.arange(4.0), 5)
    order = np.random.default_rng(0).permutation(20)
    shuffled = {name: values[order] for name, values in rows.items()}
    log = ivvi.read_logs(shuffled, state="x*", action="a*", instrument="z*")
    taken = log.sample()
    assert taken.global_instrument
    np.testing.assert_array_equal(taken.starts[:, 0], rows["x0"][::5])
