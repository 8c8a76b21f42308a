"""Blank cells of text, which are missing values in every kind of table."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ivvi import InputError, estimate, read_logs

ROLES = {"state": "x", "action": "a", "instrument": "z", "episode": "id", "step": "t"}


def visits():
    rng = np.random.default_rng(0)
    n = 120
    frame = pd.DataFrame({"id": [f"p{i // 4:02}" for i in range(n)], "t": np.arange(n) % 4})
    for name in "xz":
        frame[name] = rng.normal(size=n)
    frame["a"] = frame["z"] + rng.normal(size=n)
    frame["ward"] = np.array(["A", "B", "C"])[rng.integers(3, size=n)]
    return frame


def written(frame, folder, kind):
    path = folder / "log.parquet"
    if kind == "frame":
        return frame
    if kind == "polars":
        return pl.DataFrame(frame.to_dict("list"))
    if kind == "csv":
        frame.to_csv(folder / "log.csv", index=False)
        return folder / "log.csv"
    if kind == "parquet without statistics":
        pq.write_table(pa.Table.from_pandas(frame), path, write_statistics=False)
    else:
        frame.to_parquet(path)
    return path


KINDS = ["csv", "parquet", "parquet without statistics", "frame", "polars"]


@pytest.mark.parametrize("blank", ["", "  ", "\t"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_blank_id_is_a_missing_value_in_every_kind_of_table(tmp_path, kind, blank):
    frame = visits()
    frame.loc[frame["id"].isin(["p03", "p07"]), "id"] = blank
    with pytest.raises(InputError, match="8 missing or infinite values in 8 of 120 rows"):
        read_logs(written(frame, tmp_path, kind), **ROLES).to_batch()


@pytest.mark.parametrize("kind", KINDS)
def test_a_blank_cell_of_a_category_is_no_level(tmp_path, kind):
    frame = visits()
    frame.loc[5, "ward"] = ""
    log = read_logs(written(frame, tmp_path, kind), **ROLES, context="ward", drop_missing=True)
    assert {"ward[B]", "ward[C]"} < set(log.roles.state)
    walk = log.batches()
    assert sum(map(len, walk)) == 89
    assert walk.counts.missing == 1


@pytest.mark.parametrize("role", ["cluster", "absorb"])
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_blank_cluster_or_absorbed_effect_is_missing(tmp_path, kind, role):
    frame = visits()
    frame.loc[[5, 6], "ward"] = " "
    log = read_logs(written(frame, tmp_path, kind), **ROLES)
    with pytest.raises(InputError, match=r"2 missing .* 'ward'"):
        estimate(log, **{role: "ward"})
