"""Which columns are what: names, globs, ranges, and what is said about mistakes."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ivvi import Schema, read_logs
from ivvi.errors import ColumnError
from ivvi.fitting.incremental.saved_moments import open_like
from ivvi.logs.columns.conventions import with_new_names

NAMES = ["episode", "step", "x0", "x1", "x2", "speed", "a0", "z0", "z1", "reward", "w", "next_x0"]


def resolve(available=NAMES, **columns):
    given = {"state": "x0", "action": "a0", "instrument": "z0"} | columns
    return Schema(**given).resolve(available)


@pytest.mark.parametrize(
    ("pattern", "matched"),
    [
        ("x0", ("x0",)),
        ("x2,x0", ("x2", "x0")),
        (" x2 , x0 ", ("x2", "x0")),
        (["x2", "x0"], ("x2", "x0")),
        ("x*", ("x0", "x1", "x2")),
        ("x[02]", ("x0", "x2")),
        ("x?,speed", ("x0", "x1", "x2", "speed")),
        ("x0:x2", ("x0", "x1", "x2")),
        ("x0..x2", ("x0", "x1", "x2")),
        ("x1:speed", ("x1", "x2", "speed")),
        ("x1:x1", ("x1",)),
        (["x2:speed", "x0"], ("x2", "speed", "x0")),
    ],
)
def test_patterns_match_the_columns_they_mean(pattern, matched):
    assert resolve(state=pattern).state == matched


@pytest.mark.parametrize("odd", ["a:b", "x*", "x..y", "x,y"])
def test_a_column_with_signs_in_its_name_is_found_by_name(odd):
    assert resolve([*NAMES, odd], state=[odd]).state == (odd,)
    assert resolve([*NAMES, odd], state=odd).state == (odd,)


def test_a_whole_schema_gives_each_role_its_columns():
    roles = resolve(state="x*", instrument="z*", next_state="next_x0", reward="reward", weight="w")
    assert roles.outputs == ("next_x0", "reward")
    assert roles.numeric == ("x0", "x1", "x2", "a0", "z0", "z1", "next_x0", "reward", "w")
    assert roles.keys == ("episode", "step")
    assert roles.columns == ("episode", "step", *roles.numeric)
    assert not roles.derived


def test_outputs_of_derived_next_states_are_named_after_the_state():
    roles = resolve(state="speed,x0", reward="reward")
    assert roles.outputs == ("next_speed", "next_x0", "reward")
    assert roles.derived


def test_episode_and_step_have_defaults_and_other_names():
    assert resolve().keys == ("episode", "step")
    renamed = ["user", "day", *NAMES[2:]]
    assert resolve(renamed, episode="user", step="day").keys == ("user", "day")
    assert resolve(renamed, next_state="next_x0").keys == ()


def test_a_cross_section_needs_no_state():
    roles = Schema(action="a0", instrument="z0", next_state="reward").resolve(NAMES[5:])
    assert (roles.state, roles.outputs, roles.keys) == ((), ("reward",), ())


def test_a_state_may_be_its_own_next_state():
    assert resolve(state="x0,x1", next_state="x1").next_state == ("x1",)


@pytest.mark.parametrize(
    ("columns", "facts"),
    [
        ({"state": "sped"}, ("state column 'sped'", "did you mean 'speed'?")),
        ({"state": "x0:sped"}, ("state column 'sped'", "did you mean 'speed'?")),
        ({"action": "x9,speeed"}, ("action column 'x9'", "episode, step, x0")),
        ({"reward": "rewrad"}, ("reward column 'rewrad'", "did you mean 'reward'?")),
        ({"episode": "epsiode"}, ("episode column 'epsiode'", "did you mean 'episode'?")),
        ({"step": "stepp"}, ("step column 'stepp'", "did you mean 'step'?")),
        ({"weight": "q"}, ("weight column 'q'", "columns: episode")),
        ({"next_state": "nextx0"}, ("next-state column 'nextx0'", "did you mean 'next_x0'?")),
        ({"instrument": "q*"}, ("no column matches the instrument pattern 'q*'", "reward")),
        ({"state": "x2:x0"}, ("state range 'x2:x0'", "backwards")),
        ({"state": "x0,x0"}, ("'x0'", "twice as state")),
        ({"state": "x0,x*"}, ("'x0'", "twice as state")),
        ({"instrument": "z0:z1,z1"}, ("'z1'", "twice as instrument")),
        ({"instrument": "a0"}, ("'a0'", "both as action and as instrument")),
        ({"state": "x0,a0"}, ("'a0'", "both as state and as action")),
        ({"reward": "x0"}, ("'x0'", "both as state and as reward")),
        ({"next_state": "z0"}, ("'z0'", "both as instrument and as next-state")),
        ({"weight": "step"}, ("'step'", "both as step and as weight")),
        ({"action": ()}, ("no action column is given", "columns: episode")),
        ({"instrument": ""}, ("no instrument column is given",)),
        ({"state": ()}, ("no state column is given",)),
    ],
)
def test_mistakes_in_a_schema_are_named(columns, facts):
    with pytest.raises(ColumnError) as caught:
        resolve(**columns)
    for fact in facts:
        assert fact in str(caught.value)


@pytest.mark.parametrize("missing", ["episode", "step"])
def test_a_derived_next_state_needs_episode_and_step(missing):
    available = [name for name in NAMES if name != missing]
    with pytest.raises(ColumnError, match=f"no {missing} column"):
        resolve(available)
    assert resolve(available, next_state="next_x0").keys == tuple(
        name for name in ("episode", "step") if name != missing
    )


def test_a_name_that_stands_twice_in_the_table_is_refused_only_when_used():
    with pytest.raises(ColumnError, match="the log has 2 columns named 'x0'"):
        resolve([*NAMES, "x0"])
    assert resolve([*NAMES, "x2"]).state == ("x0",)


def test_long_listings_are_cut():
    many = [f"c{i}" for i in range(40)]
    with pytest.raises(ColumnError, match="c11 and 28 more"):
        resolve(many, state="other")


@pytest.mark.parametrize("kind", ["table", "parquet", "csv"])
def test_columns_get_new_names_as_they_are_read(tmp_path, kind):
    rng = np.random.default_rng(0)
    columns = {"Store no.": np.arange(60) // 12, "step": np.arange(60) % 12}
    columns |= {name: rng.normal(size=60) for name in ("Units sold", "Price paid", "cost")}
    source = pa.table(columns)
    if kind == "parquet":
        pq.write_table(source, tmp_path / "log.parquet")
        source = tmp_path / "log.parquet"
    elif kind == "csv":
        source.to_pandas().to_csv(tmp_path / "log.csv", index=False)
        source = tmp_path / "log.csv"
    log = read_logs(
        source,
        state="sold:Units sold",
        action="price:Price paid",
        instrument="cost",
        episode="store:Store no.",
    )
    assert (log.roles.state, log.roles.action, log.roles.episode) == (
        ("sold",),
        ("price",),
        "store",
    )
    assert np.allclose(log.to_batch().a[:, 0], columns["Price paid"][columns["step"] < 11])
    again = open_like(source, log.roles)
    assert again.roles == log.roles
    assert np.array_equal(again.clustered("Store no.").to_batch().x, log.to_batch().x)


def test_two_columns_do_not_get_one_name():
    with pytest.raises(ColumnError, match="'p' and 'q' are both renamed to 'price'"):
        with_new_names(Schema(state="price:p", action="price:q"), ["p", "q"])
    schema, renamed = with_new_names(Schema(state="p:q", instrument="loo:p"), ["p", "q"])
    assert (schema.state, schema.instrument, renamed) == ("p:q", "loo:p", {})
