"""Fixed effects of units, years or both, absorbed before anything else is computed.

With y = W phi(x, a) + alpha_g + e, where alpha may be correlated with anything in the log,
least squares of every column of v = [phi, psi, y] on dummies of the groups removes alpha. The
residuals, around the mean of all rows, are a log of their own: their moments give W, and every
standard error, first stage, test and robust set follows, with the degrees of freedom that the
effects cost.

The effects themselves are alpha_jg = theta_jg(y) - W theta_jg(phi), with theta those of
`ivvi.moments.fixed_effects`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ivvi._io.arrays import Floats, Ints
from ivvi._io.result import Records, TableResult
from ivvi.errors import DataError, InputError
from ivvi.estimators import Estimate
from ivvi.features.blocks import Constant, Power
from ivvi.features.design import Design
from ivvi.features.feature_map import FeatureMap
from ivvi.logs import Batch, Counts, Log, Roles
from ivvi.logs.columns.patterns import Columns, match_columns
from ivvi.logs.instruments.leave_out import left_out
from ivvi.logs.tables.arrow import as_arrow
from ivvi.logs.tables.table import BatchSource
from ivvi.moments import Absorbed
from ivvi.moments.fixed_effects import Effects, EffectTally
from ivvi.moments.welford import run_starts


@dataclass(frozen=True, slots=True, repr=False)
class FixedEffects(TableResult):
    """The effects of one absorbed column, around their mean.

    Attributes
    ----------
    column
        The column.
    labels
        Its values, (G,): whole numbers, or text.
    values
        Effects on each output, (G, d_y).
    weight
        Rows (or their weight) of each value, (G,).
    outputs
        Names of the outputs.
    """

    column: str
    labels: np.ndarray
    values: Floats
    weight: Floats
    outputs: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, label: Any) -> Floats:
        """Return the effects of one value on each output, (d_y,)."""
        asked: Any = str(label)
        if self.labels.dtype.kind == "i" and _is_whole(asked):
            asked = int(asked)
        at = np.flatnonzero(self.labels == asked)
        if not len(at):
            raise InputError(f"this fit has no effect of {label!r} in column {self.column!r}")
        effects: Floats = self.values[at[0]]
        return effects

    def summary(self) -> str:
        """Return how large the effects are, as text."""
        mass = self.weight / self.weight.sum()
        spread = np.sqrt(mass @ (self.values - mass @ self.values) ** 2)
        spreads = ", ".join(f"{o} {s:.4g}" for o, s in zip(self.outputs, spread, strict=True))
        return f"effects of {len(self):,} values of {self.column}; standard deviation: {spreads}"

    def records(self) -> Records:
        """Return one row per value: its effect on each output."""
        labels = map(str, self.labels.tolist())
        rows = zip(labels, self.values.tolist(), self.weight.tolist(), strict=True)
        return [
            {self.column: label, **dict(zip(self.outputs, values, strict=True)), "weight": weight}
            for label, values, weight in rows
        ]


class AbsorbedTable:
    """The rows of a log less the effects of groups, computed as they are read.

    Columns: the episode, the step and the clusters; then phi, psi, y and the weight. Features
    that phi and psi share are its states, the others its actions and instruments.

    Parameters
    ----------
    log, design
        The rows, with the cluster columns that are needed, and their features.
    columns
        The columns whose effects are absorbed; of these and of clusters, `values_of` has values.
    lengths, halved
        Rows of each value of an absorbed column, (G,), and this column, by default the episode:
        the first and the second half of each then have effects of their own, and the row in the
        middle, where there is one, stands in both.
    """

    in_memory = False
    num_rows: int | None = None
    copies_are_meant = True
    """Columns that differed only between groups may be equal within them."""
    files: Sequence[Path]

    def __init__(
        self,
        log: Log,
        design: Design,
        columns: Columns,
        lengths: Ints | None = None,
        halved: str | None = None,
    ) -> None:
        names = match_columns(columns, list(log.table.schema.names), "absorb")
        if not names:
            raise InputError("name at least one column to absorb")
        _check_columns(names, log.roles)
        self._lengths, self._halved = lengths, halved or str(log.roles.episode)
        self._layout, self.names, self._clusters = design, names, log.roles.cluster
        read = dict.fromkeys((*log.roles.cluster, *names))
        self._log = Log(
            left_out(log.table, log.roles, names),
            replace(log.roles, cluster=tuple(read)),
            drop_missing=log.drop_missing,
            progress=log.progress,
        )
        self.label, self.files = f"{log.label}, {' and '.join(names)} absorbed", log.table.files
        self.order, self.roles = _roles(log.roles, design)
        self.in_order = log.roles.step is not None and log.ordered
        self.effects, self.labels, self.counts = self._pass()
        self._check_within()
        self._check_freedom()
        keys: dict[Any, pa.DataType] = {self.roles.episode: pa.int64()}
        keys |= dict.fromkeys(self._clusters, pa.int64())
        listed = dict.fromkeys((*self.roles.columns, *self._clusters))
        self.schema = pa.schema([(n, keys.get(n, pa.float64())) for n in listed])

    @property
    def source(self) -> BatchSource:
        """The table of the rows, its leave-one-out instruments adjusted for the effects."""
        return self._log.table

    @property
    def absorbed(self) -> Absorbed:
        """How many effects there are."""
        return self.effects.absorbed

    @property
    def group_counts(self) -> dict[str, int]:
        """How many values each absorbed column has."""
        return dict(zip(self.names, map(len, self.labels), strict=True))

    def _pass(self) -> tuple[Effects, list[np.ndarray], Counts]:
        """Add up the groups in one pass over the log."""
        episode, step = self._log.roles.episode, self._log.roles.step
        inside = dict.fromkeys(n for n in (episode, step, *self._clusters) if n is not None)
        tally = EffectTally(self.names, tuple(inside))
        walk, groups = self._log.batches(episodes=True), self._group_reader()
        for read in walk:
            batch, codes = groups(read)
            V = self._layout.rows(batch)
            clusters = [self._codes_of(batch, name) for name in inside]
            tally.add(V, batch.weight, codes, clusters)
        self.values_of = dict(zip(self._log.roles.cluster, walk.clusters, strict=True))
        labels = [_labels(self.values_of[name]) for name in self.names]
        return tally.solve(), labels, walk.counts

    def _group_reader(self) -> Callable[[Batch], tuple[Batch, list[Ints]]]:
        """Return a function that gives the groups of batches; these come in order, each once.

        It gives the rows, some of them twice where episodes are halved, and their groups.
        """
        places = [self._log.roles.cluster.index(name) for name in self.names]
        lengths = self._lengths
        if lengths is None:
            return lambda batch: (batch, [batch.clusters[place] for place in places])
        rows_before = np.zeros(len(lengths), dtype=np.int64)
        halved = self.names.index(self._halved)

        def groups(batch: Batch) -> tuple[Batch, list[Ints]]:
            own = batch.clusters[places[halved]]
            place = np.argsort(own, kind="stable")
            starts = run_starts(own[place])
            runs = np.diff(np.append(starts, len(own)))
            position = np.empty(len(own), dtype=np.int64)
            position[place] = np.arange(len(own)) - np.repeat(starts, runs)
            position += rows_before[own]
            rows_before[own[place][starts]] += runs
            in_middle = 2 * position + 1 == lengths[own]
            rows = np.repeat(np.arange(len(own)), 1 + in_middle)
            again = np.append(False, rows[1:] == rows[:-1])
            batch = batch.chosen(rows)
            codes = [batch.clusters[place] for place in places]
            second = again | (2 * position[rows] >= lengths[own[rows]])
            codes[halved] = 2 * codes[halved] + second
            return batch, codes

        return groups

    def first_rows(self) -> tuple[Batch, dict[str, Ints]]:
        """Return the first rows of the log itself, and their groups in each absorbed column."""
        head, read = self._log.watched(None).head(episodes=True), self._log.roles.cluster
        return head, {name: head.clusters[read.index(name)] for name in self.names}

    def _codes_of(self, batch: Batch, name: str) -> Ints:
        """Return the cluster codes of a column, from 0 on."""
        roles = self._log.roles
        if name in roles.cluster:
            return batch.clusters[roles.cluster.index(name)]
        if name == roles.episode:
            return np.asarray(batch.episode)
        step = np.asarray(batch.step, dtype=np.float64)
        return step.view(np.int64) & np.int64(np.iinfo(np.int64).max)

    def _check_freedom(self) -> None:
        d, n = len(self._layout.phi_names), int(self.counts.transitions) - self.absorbed.singletons
        if n <= d + self.absorbed.freedom():
            raise DataError(
                f"{n:,} rows cannot estimate {d} coefficients and "
                f"{self.absorbed.freedom() + 1:,} effects of {' and '.join(self.names)}; expected "
                "more rows than these"
            )

    def batches(
        self, columns: Sequence[str], numeric: Sequence[str], size: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield the columns asked for, about `size` rows at a time."""
        groups = self._group_reader()
        for batch in self._log.batches(size=size, episodes=True):
            block = self._block(*groups(batch))
            if block.num_rows:
                yield block.select(list(columns))

    def _block(self, batch: Batch, codes: list[Ints]) -> pa.RecordBatch:
        V = self.effects.within(self._layout.rows(batch), codes)
        columns = (V[:, i] for i in self.order)
        columns_by_name: dict[str, Any] = dict(zip(self._names(), columns, strict=True))
        roles = self.roles
        if roles.episode is not None:
            columns_by_name[roles.episode] = batch.episode
        if roles.step is not None:
            columns_by_name[roles.step] = np.asarray(batch.step, dtype=np.float64)
        if roles.weight is not None:
            columns_by_name[roles.weight] = batch.weight
        at = self._log.roles.cluster
        columns_by_name |= {name: batch.clusters[at.index(name)] for name in self._clusters}
        arrays = [as_arrow(np.asarray(columns_by_name[field.name])) for field in self.schema]
        block = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        stays = self.effects.keeps(codes)
        return block if stays.all() else block.filter(as_arrow(stays))

    def _names(self) -> tuple[str, ...]:
        roles = self.roles
        return (*roles.state, *roles.action, *roles.instrument, *roles.next_state)

    @property
    def features(self) -> tuple[FeatureMap, FeatureMap]:
        """Features of the rows: they are features already, and the constant."""
        state = (Power(1, "state"),) if self.roles.state else ()
        both = FeatureMap((Constant(), *state, Power(1, "input")))
        return both, both

    def _check_within(self) -> None:
        """Refuse a column of v that the groups determine, by its name."""
        roles = self.roles
        kinds = ["feature"] * (len(roles.state) + len(roles.action))
        kinds += ["instrument"] * len(roles.instrument) + ["output"] * len(roles.next_state)
        for name, kind, at in zip(self._names(), kinds, self.order, strict=True):
            if self.effects.determined[at]:
                raise InputError(
                    f"the {kind} {name!r} does not vary within the groups of "
                    f"{' and '.join(self.names)}: the absorbed effects explain it entirely; remove "
                    f"{name!r}, or absorb other columns"
                )

    def check_nested(self, clusters: Sequence[str | None]) -> None:
        """Refuse effects that clusters share: corrections of single clusters do not know them."""
        for name, inside in zip(self.names, self.absorbed.nested, strict=True):
            if not set(inside) & set(clusters):
                raise InputError(
                    f"the groups of {name!r} span several clusters: cr2 and wild standard "
                    "errors need absorbed effects nested in clusters; use clustered ones"
                )

    def _at(self, names: Sequence[str]) -> list[int]:
        """Return where each feature of the log stands among the features of these rows."""
        design, own = self._layout, _unique(self._layout)
        return [names.index("1" if c == design.constant else own[c]) for c in design.phi_columns]

    def in_levels(self, W: Floats) -> Floats:
        """Return weights of these rows (d_y, d_phi) in the order of the log's features."""
        ordered: Floats = W[:, self._at(("1", *self.roles.state, *self.roles.action))]
        return ordered

    def levels(self, estimate: Estimate) -> Estimate:
        """Return an estimate of the rows with the features of the log itself."""
        design, names = self._layout, estimate.design.phi_names
        at = self._at(names)
        covariance = estimate.covariance
        if covariance is not None:
            joint = None
            if covariance.joint is not None:
                rows = [len(names) * i + j for i in range(len(estimate.W)) for j in at]
                joint = covariance.joint[np.ix_(rows, rows)]
            blocks = covariance.blocks[:, at][:, :, at]
            parts = {
                n: None if (values := getattr(covariance, n)) is None else values[:, at]
                for n in ("effective", "freedom")
            }
            covariance = replace(covariance, blocks=blocks, joint=joint, **parts)  # type: ignore[arg-type]
        return replace(
            estimate,
            design=replace(estimate.design, phi=design.phi, phi_names=design.phi_names),
            W=estimate.W[:, at],
            bread=estimate.bread[np.ix_(at, at)],
            null=estimate.null[:, at],
            spread=estimate.spread[at],
            covariance=covariance,
        )

    def effects_of(self, W: Floats) -> tuple[FixedEffects, ...]:
        """Return the effects that go with the weights W (d_y, d_phi) of the log's features."""
        design, effects = self._layout, []
        place = {int(column): i for i, column in enumerate(design.varying)}
        phi = [place[c] for c in design.phi_columns if c in place]
        slopes = W[:, [c for c in design.phi_columns if c in place]]
        y = [place[c] for c in design.y_columns]
        parts = zip(self.names, self.labels, self.effects.theta, self.effects.mass, strict=True)
        for name, labels, theta, mass in parts:
            values = theta[:, y] - theta[:, phi] @ slopes.T
            values = values - mass @ values / mass.sum()
            used = mass > 0
            effects.append(
                FixedEffects(
                    name, labels[: len(mass)][used], values[used], mass[used], design.outputs
                )
            )
        return tuple(effects)


def _labels(values: Sequence[Any]) -> np.ndarray:
    """Return the values of a column as whole numbers, or as text."""
    numbers = np.array(values) if values and type(values[0]) is int else np.empty(0)
    return numbers if numbers.dtype.kind == "i" else np.array([str(value) for value in values])


def _is_whole(text: str) -> bool:
    """Whether a text is a whole number as Python writes it."""
    return text.removeprefix("-").isdecimal() and str(int(text)) == text


def _check_columns(names: Sequence[str], roles: Roles) -> None:
    for name in names:
        used = {"state", "action", "instrument", "next_state", "reward", "weight"}
        for role in sorted(used):
            columns = getattr(roles, role)
            if name == columns or (isinstance(columns, tuple) and name in columns):
                raise InputError(
                    f"column {name!r} is both absorbed and given as {role.replace('_', '-')}; "
                    "expected one of them"
                )


def _unique(design: Design) -> list[str]:
    """Return the names of the columns of v; the second of a name is numbered."""
    counts: dict[str, int] = {}
    names = []
    for name in design.names:
        counts[name] = counts.get(name, 0) + 1
        names.append(name if counts[name] == 1 else f"{name} ({counts[name]})")
    return names


def _roles(roles: Roles, design: Design) -> tuple[list[int], Roles]:
    """Assign roles to the varying columns of v; return their order and the roles."""
    names, shared, psi = _unique(design), set(design.shared), set(design.psi_columns)
    varying = [int(c) for c in design.varying]
    y = set(design.y_columns)
    kinds = (
        [c for c in varying if c in shared],
        [c for c in varying if c not in shared and c not in psi and c not in y],
        [c for c in varying if c in psi and c not in shared],
        [c for c in varying if c in y],
    )
    order = [varying.index(c) for kind in kinds for c in kind]
    state, action, instrument, outputs = (tuple(names[c] for c in kind) for kind in kinds)
    kept_roles = Roles(
        *(state, action, instrument, outputs, None, roles.episode, roles.step),
        weight=None if roles.frequency else roles.weight,  # rows are repeated already
        cluster=roles.cluster,
        groups=roles.groups,
        set_by=roles.set_by,
        dates=roles.dates if roles.dates in roles.cluster else None,
    )
    return order, kept_roles
