"""Sums of several deliveries: episodes of one id are one cluster."""

import numpy as np
import pytest

import ivvi
import ivvi.errors
from helpers import run, write_table

COLUMNS = {"state": "x", "action": "a", "instrument": "z", "next_state": "y"}
KEYS = {"episode": "id", "step": "t"}


def visits(seed=1, patients=40, steps=6, names=True):
    """Visits of patients whose noise and instrument last; those of a month come in one file."""
    rng = np.random.default_rng(seed)
    lasting, z = rng.normal(size=(2, patients, 1))
    u, x, e = rng.normal(size=(3, patients, steps))
    a = z + u + e
    y = -0.5 * a + u + lasting + x
    number, step = np.divmod(np.arange(patients * steps), steps)
    ids = np.char.add("patient ", number.astype(str)) if names else number
    columns = {"x": x, "a": a, "z": np.broadcast_to(z, u.shape), "y": y}
    return {"id": ids, "t": step} | {name: values.ravel() for name, values in columns.items()}


def months(rows, restart=False):
    for month in range(3):
        part = {name: values[rows["t"] // 2 == month] for name, values in rows.items()}
        yield part | {"t": part["t"] - 2 * month * restart}


def updated(rows, keys, **how):
    first, *others = (ivvi.read_logs(part, **COLUMNS, **keys) for part in months(rows, **how))
    fit = ivvi.fit(first, episodes=True, se="clustered")
    for log in others:
        fit = ivvi.update(fit, log)
    return fit


@pytest.mark.parametrize("keys", [KEYS, {"episode": "id"}])
@pytest.mark.parametrize("names", [True, False])
def test_patients_who_come_again_in_each_delivery_stay_one_cluster_each(keys, names):
    rows = visits(names=names)
    whole = ivvi.fit(ivvi.read_logs(rows, **COLUMNS, **keys), episodes=True, se="clustered")
    fit = updated(rows, keys)
    assert fit.estimate.W_cov.clusters == whole.estimate.W_cov.clusters == (("id", 40),)
    np.testing.assert_allclose(fit.se, whole.se, rtol=1e-8)
    assert fit.counts.episodes == 40


def test_named_patients_stay_one_cluster_each_though_steps_begin_anew():
    fit = updated(visits(), KEYS, restart=True)
    assert fit.estimate.W_cov.clusters == (("id", 40),)


def test_mere_numbers_and_steps_that_begin_anew_count_as_others_with_a_warning():
    with pytest.warns(
        ivvi.errors.IvviWarning, match="starts numbering id and steps from the beginning again"
    ):
        fit = updated(visits(names=False), KEYS, restart=True)
    assert fit.estimate.W_cov.clusters == (("id", 120),)


def test_merged_sums_of_the_same_patients_give_the_errors_of_all_rows(tmp_path):
    rows, options = visits(), ["--episode", "id", "--step", "t", "--next-state", "y"]
    options += ["--state", "x", "--action", "a", "--instrument", "z"]
    for i, part in enumerate(months(rows)):
        log = write_table(part, tmp_path / f"{i}.parquet")
        assert run("moments", log, *options, "--by-episode", "--out", tmp_path / f"m{i}").code == 0
    sources = [tmp_path / f"m{i}" for i in range(3)]
    assert run("merge", *sources, "--out", tmp_path / "m").code == 0
    merged = ivvi.fit(ivvi.Shard.load(tmp_path / "m"), se="clustered")
    whole = ivvi.fit(ivvi.read_logs(rows, **COLUMNS, **KEYS), se="clustered")
    np.testing.assert_allclose(merged.se, whole.se, rtol=1e-8)
    assert not any(b"patient 7" in file.read_bytes() for file in (tmp_path / "m").iterdir())


def test_the_shell_warns_of_numbers_that_begin_anew(tmp_path):
    logs = [
        write_table(part, tmp_path / f"{i}.parquet")
        for i, part in enumerate(months(visits(names=False), restart=True))
    ]
    options = ["--state", "x", "--action", "a", "--instrument", "z", "--next-state", "y"]
    options += ["--episode", "id", "--step", "t", "--keep-episodes", "--out", tmp_path / "model"]
    assert run("fit", logs[0], *options).code == 0
    result = run("update", tmp_path / "model", logs[1])
    assert result.code == 0
    assert "starts numbering id and steps from the beginning again" in " ".join(result.err.split())
