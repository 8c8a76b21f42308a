"""Minari data sets as logs, and logs as Minari data sets.

Minari has no field for an instrument, so it is looked for in `infos` (key ``z`` or ``instrument``)
or in a Dict observation (same keys, beside ``x``, ``state`` or ``observation``). Entry h is the
instrument in force when action h was chosen; infos that also hold an entry for the last observation
are cut to the actions.

Minari knows neither weights nor gaps in an episode. A log that is written puts the weight, the
number of the episode and the step of each row into `infos` too (``weight``, ``episode``,
``step``), where the reader finds them again: the pieces of an episode with gaps are one episode.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ivvi.errors import ColumnError, FileError, InputError
from ivvi.logs.batch import Batch
from ivvi.logs.schema import Roles

PREFIX = "minari:"
INSTRUMENT_KEYS = ("z", "instrument")
STATE_KEYS = ("x", "state", "observation")
EPISODES_AT_ONCE = 64


def is_minari(source: Any) -> bool:
    """Whether `source` is a Minari data set or the name of one (``minari:NAME``)."""
    if isinstance(source, str):
        return source.startswith(PREFIX)
    return type(source).__module__.split(".")[0] == "minari"


def open_minari(source: Any) -> MinariTable:
    """Open a Minari data set by object or by ``minari:NAME``."""
    if not isinstance(source, str):
        return MinariTable(source)
    minari = _import_minari()
    try:
        dataset = minari.load_dataset(source.removeprefix(PREFIX))
    except (FileNotFoundError, ValueError) as error:
        raise FileError(f"{source} is not a local Minari data set: {error}") from error
    return MinariTable(dataset)


class MinariTable:
    """The steps of a Minari data set as a table with columns x*, a*, z*, reward, next_x*."""

    in_memory = False
    files: Sequence[Path] = ()

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self.label = f"{PREFIX}{dataset.spec.dataset_id}"
        self.num_rows: int | None = int(dataset.total_steps)
        first = next(iter(dataset.iterate_episodes()), None)
        if first is None:
            raise InputError(f"{self.label} has no episodes")
        self.schema = self._episode_table(first).schema

    def batches(
        self, columns: Sequence[str], numeric: Sequence[str], size: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield steps, episode by episode."""
        for episode in self._dataset.iterate_episodes():
            yield from self._episode_table(episode).select(list(columns)).to_batches(size)

    def _episode_table(self, episode: Any) -> pa.Table:
        steps = len(episode.rewards)
        state, instrument = self._state_and_instrument(episode)
        infos = episode.infos or {}
        columns: dict[str, Any] = {
            "episode": _column(infos, "episode", steps, np.full(steps, int(episode.id))),
            "step": _column(infos, "step", steps, np.arange(steps)),
        }
        if "weight" in infos:
            columns["weight"] = _column(infos, "weight", steps, np.ones(steps))
        columns |= _named("x", state[:steps])
        columns |= _named("a", _matrix(episode.actions)[:steps])
        columns |= _named("z", instrument[:steps])
        columns["reward"] = np.asarray(episode.rewards, dtype=np.float64)
        columns |= _named("next_x", state[1 : steps + 1])
        return pa.table(columns)

    def _state_and_instrument(self, episode: Any) -> tuple[np.ndarray, np.ndarray]:
        observations, infos = episode.observations, episode.infos or {}
        if isinstance(observations, dict):
            state = _first_of(STATE_KEYS, observations, self.label)
            if any(key in observations for key in INSTRUMENT_KEYS):
                return state, _first_of(INSTRUMENT_KEYS, observations, self.label)
        else:
            state = _matrix(observations)
        return state, _first_of(INSTRUMENT_KEYS, infos, f"infos of {self.label}")


def write_minari(
    batches: Iterable[Batch], roles: Roles, dataset_id: str, *, description: str
) -> Any:
    """Write the batches of a log (episodes numbered) as a Minari data set and return it.

    The instrument is in ``infos["z"]``; weight, episode and step are beside it.

    An episode ends with the next state of its last transition, so a log whose next
    states are derived from the next row keeps all its transitions. Where a next state is
    not the state of the next row (a gap in the steps), another Minari episode starts, with the
    same number in ``infos["episode"]``.
    """
    minari = _import_minari()
    from gymnasium.spaces import Box

    if len(roles.outputs) - bool(roles.reward) != len(roles.state):
        raise ColumnError(
            "cannot write a Minari data set: the next state must have the same columns as the state"
        )
    buffers = _buffers(batches, roles)
    first = [buffer for _, buffer in zip(range(EPISODES_AT_ONCE), buffers, strict=False)]
    space = {"low": -np.inf, "high": np.inf, "dtype": np.float64}
    try:
        with warnings.catch_warnings():  # Minari misses an author, which is for publishing
            warnings.simplefilter("ignore", UserWarning)
            dataset = minari.create_dataset_from_buffers(
                dataset_id,
                first,
                observation_space=Box(shape=(len(roles.state),), **space),
                action_space=Box(shape=(len(roles.action),), **space),
                description=description,
                algorithm_name="behaviour policy",
                data_format="arrow",
            )
    except ValueError as error:
        raise FileError(f"cannot write the Minari data set {dataset_id!r}: {error}") from error
    while more := [buffer for _, buffer in zip(range(EPISODES_AT_ONCE), buffers, strict=False)]:
        dataset.update_dataset_from_buffer(more)
    return dataset


def _buffers(batches: Iterable[Batch], roles: Roles) -> Iterator[Any]:
    """Yield one Minari episode buffer for each unbroken run of an episode, in order."""
    from minari.data_collector import EpisodeBuffer

    d_x = len(roles.state)
    for number, rows in enumerate(_episodes(batches, d_x)):
        x, a, z, y = (np.concatenate([getattr(b, name) for b in rows]) for name in "xazy")
        steps = len(y)
        infos = {"z": np.concatenate([z, z[-1:]])}
        for name in ("weight", "episode", "step"):
            if getattr(rows[0], name) is not None:
                values = np.concatenate([getattr(b, name) for b in rows])
                infos[name] = np.append(values, values[-1:])[:, None]
        yield EpisodeBuffer(
            id=number,
            observations=np.concatenate([x, y[-1:, :d_x]]),
            actions=a,
            rewards=(y[:, d_x] if roles.reward else np.zeros(steps)).tolist(),
            terminations=[False] * steps,
            truncations=[False] * (steps - 1) + [True],
            infos=infos,
        )


def _episodes(batches: Iterable[Batch], d_x: int) -> Iterator[list[Batch]]:
    """Group batches into runs of one episode in which each state leads on."""
    rows: list[Batch] = []
    current = -1
    for batch in batches:
        number = np.asarray(batch.episode)
        broken = (batch.x[1:] != batch.y[:-1, :d_x]).any(axis=1) | (np.diff(number) != 0)
        cuts = [0, *(np.flatnonzero(broken) + 1).tolist(), len(number)]
        for start, stop in itertools.pairwise(cuts):
            leads_on = rows and np.array_equal(batch.x[start], rows[-1].y[-1, :d_x])
            if rows and not (leads_on and number[start] == current):
                yield rows
                rows = []
            current = int(number[start])
            part = slice(start, stop)
            names = ("x", "a", "z", "y", "weight", "episode", "step")
            values: dict[str, Any] = {name: getattr(batch, name) for name in names}
            values = {name: v if v is None else v[part] for name, v in values.items()}
            rows.append(Batch(**values))
    if rows:
        yield rows


def _column(infos: dict[str, Any], key: str, steps: int, default: np.ndarray) -> np.ndarray:
    """Return one number per step from the infos, or the default."""
    return np.asarray(infos[key]).reshape(-1)[:steps] if key in infos else default


def _named(prefix: str, values: np.ndarray) -> dict[str, np.ndarray]:
    return {f"{prefix}{i}": np.ascontiguousarray(values[:, i]) for i in range(values.shape[1])}


def _matrix(values: Any) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    return array.reshape(len(array), -1)


def _first_of(keys: Iterable[str], values: dict[str, Any], where: str) -> np.ndarray:
    for key in keys:
        if key in values:
            return _matrix(values[key])
    expected = " or ".join(repr(key) for key in keys)
    raise ColumnError(f"{where} holds {sorted(values)}; expected {expected}")


def _import_minari() -> Any:
    try:
        import minari
    except ImportError as error:
        raise InputError("Minari is not installed; run pip install 'ivvi[minari]'") from error
    return minari
