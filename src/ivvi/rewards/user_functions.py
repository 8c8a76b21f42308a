"""Functions that a user writes: the reward of a step, and the end of an episode.

They are always called with rows, whatever the shape of the batch. A reward may use more than states
and actions, by the names of its parameters: ``context`` holds the columns that are not predicted
(age, weather); ``instrument`` holds the instruments, such as a cost that belongs in a profit.
Tomorrow's instrument is not known, so the reward is an expectation over the log's,

    r(x, a, x', h) = sum_k share_k f(x, a, x', h, instrument=z_k),

unless its value is given.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from ivvi._io.arrays import Array
from ivvi.categories import encode_rows, raw_columns
from ivvi.errors import ColumnError, InputError, nearest
from ivvi.features.custom_block import import_function, import_path

CONTEXT, INSTRUMENT = "context", "instrument"
PLACES: tuple[tuple[str, ...], ...] = (
    ("x", "s", "state", "states"),
    ("a", "u", "action", "actions"),
    ("x_next", "xn", "next_x", "next_state"),
    ("h", "t", "step"),
)
"""Usual names of a reward's arguments, by place."""
GIVEN = ("states", "actions", "next states", "the step")
NODES = 16
"""Most values of the instrument that represent those of the log."""
FloatRows = tuple[tuple[float, ...], ...]


class NamedColumns:
    """Columns of rows by name: ``columns["cost"]`` is (n,).

    Examples
    --------
    >>> rows = np.array([[70.0, 0.0], [60.0, 1.0]])
    >>> NamedColumns("context", ("age", "rain"), rows)["age"].tolist()
    [70.0, 60.0]
    """

    def __init__(self, label: str, names: Sequence[str], values: Array) -> None:
        self.label, self.names, self.values = label, tuple(names), values

    def __getitem__(self, name: str) -> Array:
        """Return a column, (n,)."""
        if name not in self.names:
            near = nearest(name, self.names) if isinstance(name, str) else ""
            raise ColumnError(
                f"the reward asks for {self.label}[{name!r}]{near or '; known: '}"
                f"{'' if near else ', '.join(self.names)}"
            )
        return self.values[:, self.names.index(name)]


@dataclass(frozen=True)
class Function:
    """A user's function of (x, a), (x, a, x') or (x, a, x', h), named by ``module:name``.

    Its arguments are rows, (n, d_x), (n, d_a), (n, d_x) and the step, and it returns (n,).
    Parameters named ``context`` and ``instrument`` are passed as `NamedColumns`.

    Attributes
    ----------
    path, arguments, function
        Its import path, the number of its arguments without those passed by name, and the
        function itself if it cannot be imported.
    asks
        Which of ``context`` and ``instrument`` it asks for.
    given
        The instrument if its value is given, (d_z,).
    context
        NamedColumns of the context with their places in the state.
    instrument, nodes, shares
        Names of the instrument's columns, and values (k, d_z) that represent the log's, with
        their shares (k,).
    """

    kind: ClassVar[str] = "function"
    path: str
    arguments: int = 2
    function: Callable[..., Any] | None = None
    asks: tuple[str, ...] = ()
    given: tuple[float, ...] | None = None
    context: tuple[tuple[str, int], ...] = ()
    instrument: tuple[str, ...] = ()
    nodes: FloatRows = ()
    shares: tuple[float, ...] = ()

    @classmethod
    def of(cls, function: Callable[..., Any] | str) -> Function:
        """Return the reward of a function or import path; without a path it cannot be saved."""
        if isinstance(function, str):
            path, target, unimportable = function, import_function(function), None
        else:
            target, (path, imported) = function, import_path(function)
            unimportable = None if imported else function
        arguments, asks = _parameters(target, path)
        return cls(path, arguments, unimportable, asks)

    def in_model(self, model: Any, instrument: Mapping[str, Any] | None = None) -> Function:
        """Return the reward with its context and instrument taken from a model.

        `instrument` gives the value of each of the instrument's columns, as the log has them.
        """
        if instrument is not None and INSTRUMENT not in self.asks:
            raise InputError(
                f"an instrument is given, but the reward {self.path!r} has no parameter "
                "'instrument'"
            )
        bound = self
        if CONTEXT in self.asks:
            if not model.context:
                raise InputError(
                    f"the reward {self.path!r} uses the context, but the model has none: fit with "
                    "context (--context)"
                )
            places = tuple((name, model.state.index(name)) for name in model.context)
            bound = replace(bound, context=places)
        if INSTRUMENT in self.asks and (instrument is not None or not self.nodes):
            bound = bound._with_instrument(model, instrument)
        return bound

    def _with_instrument(self, model: Any, instrument: Mapping[str, Any] | None) -> Function:
        names = model.instrument
        if not names:
            raise InputError(
                f"the reward {self.path!r} uses the instrument, but the model has none"
            )
        value = self.given if instrument is None else _values(instrument, names, model.coded)
        if value is not None:
            return replace(self, given=value, instrument=names, nodes=(value,), shares=(1.0,))
        rows = model.instruments
        if not len(rows):
            raise InputError(
                f"the reward {self.path!r} uses the instrument, but the model holds no rows of the "
                f"log to draw it from: give its value (instrument=, --instrument {names[0]}=6)"
            )
        whole = replace(self, instrument=names)
        nodes, shares = typical_rows(rows)
        if len(nodes) > 1 and whole.is_affine_in_instrument(model):
            nodes, shares = rows.mean(axis=0)[None], np.ones(1)
        node_rows = tuple(map(tuple, nodes.tolist()))
        return replace(whole, nodes=node_rows, shares=tuple(shares.tolist()))

    def __call__(self, x: Array, a: Array, x_next: Array, h: Array) -> Array:
        """Return the function of as many arguments as it takes, (...)."""
        if INSTRUMENT not in self.asks:
            return self._called(x, a, x_next, h, None)
        if len(self.nodes) == 1:
            return self._called(x, a, x_next, h, np.asarray(self.nodes[0]))
        lead = np.broadcast_shapes(x.shape[:-1], a.shape[:-1])
        nodes = np.asarray(self.nodes).reshape(len(self.nodes), *(1 for _ in lead), -1)
        shares = np.asarray(self.shares).reshape(-1, *(1 for _ in lead))
        return (shares * self._called(x, a, x_next, h, nodes)).sum(axis=0)

    def observed(self, x: Array, a: Array, x_next: Array, h: Array, z: Array) -> Array:
        """Return the rewards of rows of a log, whose instruments z (n, d_z) are known."""
        return self._called(x, a, x_next, h, z if INSTRUMENT in self.asks else None)

    def _called(self, x: Array, a: Array, x_next: Array, h: Array, z: Array | None) -> Array:
        function = self.function or import_function(self.path)
        step = (h,) if self.arguments > 3 else ()
        named: dict[str, tuple[tuple[str, ...], Array]] = {}
        if self.context:
            names, places = zip(*self.context, strict=True)
            named[CONTEXT] = names, x[..., list(places)]
        if z is not None:
            named[INSTRUMENT] = self.instrument, z
        return by_rows(function, (x, a, x_next)[: self.arguments], step, "the reward", named)

    def is_affine_in_instrument(self, model: Any) -> bool:
        """Return whether only the instrument's mean matters: the derivative is constant in it."""
        import jax

        widths = len(model.state), len(model.action), len(model.state), len(self.instrument)

        def slope(x: Array, a: Array, x_next: Array, h: Array, z: Array, dz: Array) -> Array:
            return jax.jvp(lambda z: self._called(x, a, x_next, h, z), (z,), (dz,))[1]

        with jax.enable_x64(True):
            x, a, x_next, z = (jax.ShapeDtypeStruct((2, d), np.float64) for d in widths)
            h = jax.ShapeDtypeStruct((), np.int64)
            try:
                return 4 not in arguments_used(slope, x, a, x_next, h, z, z)
            except Exception:  # reported when the reward is tried
                return False

    def check_importable(self) -> None:
        """Raise an error if the function cannot be imported, and so cannot be saved."""
        if self.function is not None:
            raise InputError(
                f"the reward {self.path!r} cannot be saved: it cannot be imported; define it "
                "at the top of a module"
            )


@dataclass(frozen=True)
class Ending:
    """A user's function that says which states end an episode, from rows (n, d_x) to (n,)."""

    function: Callable[..., Any]

    def __call__(self, x: Array) -> Array:
        """Return 1 for states that end an episode, else 0, (...)."""
        return 1.0 * by_rows(self.function, (x,), (), "terminal")


def make_ending(terminal: Any) -> Ending | None:
    """Return the `Ending` of a user's function, or None."""
    if terminal is None or isinstance(terminal, Ending):
        return terminal
    if not callable(terminal):
        raise InputError(f"terminal is {terminal!r}; expected a function of states")
    return Ending(terminal)


def typical_rows(rows: np.ndarray, most: int = NODES) -> tuple[np.ndarray, np.ndarray]:
    """Return at most `most` rows (k, d) that stand for many (m, d), and their shares (k,).

    Their mean is that of all rows. They are the distinct rows if these are few, the means of
    quantile groups of a single column, or else rows spread over the log and shifted to the mean.

    Examples
    --------
    >>> typical_rows(np.array([[0.0], [1.0], [1.0], [1.0]]))[1].tolist()
    [0.25, 0.75]
    """
    distinct, counts = np.unique(rows, axis=0, return_counts=True)
    if len(distinct) <= most:
        return distinct, counts / len(rows)
    if rows.shape[1] == 1:
        groups = np.array_split(np.sort(rows[:, 0]), most)
        shares = np.array([len(group) for group in groups]) / len(rows)
        return np.array([[group.mean()] for group in groups]), shares
    spread = rows[np.linspace(0, len(rows) - 1, most).astype(int)]
    return spread + rows.mean(axis=0) - spread.mean(axis=0), np.full(most, 1 / most)


def by_rows(
    function: Callable[..., Any],
    batches: tuple[Array, ...],
    extra: tuple[Any, ...],
    label: str,
    named: Mapping[str, tuple[tuple[str, ...], Array]] | None = None,
) -> Array:
    """Return a function of rows (n, d) for batches (..., d) of any shape, (...).

    `named` batches are passed by keyword, as `NamedColumns`.
    """
    everything = *batches, *(values for _, values in (named or {}).values())
    lead = np.broadcast_shapes(*(batch.shape[:-1] for batch in everything))
    n = math.prod(lead)
    rows = []
    for batch in everything:
        xp, width = batch.__array_namespace__(), batch.shape[-1]
        rows.append(xp.broadcast_to(batch, (*lead, width)).reshape(n, width))
    keywords = {
        word: NamedColumns(word, names, values)
        for (word, (names, _)), values in zip(
            (named or {}).items(), rows[len(batches) :], strict=True
        )
    }
    answer = function(*rows[: len(batches)], *extra, **keywords)
    try:
        values = answer if hasattr(answer, "aval") else np.asarray(answer)
    except ValueError:
        values = np.empty(0, dtype=object)
    if values.dtype.kind not in "biuf":
        raise InputError(f"{label} returned {_shortly(answer)} for {n} states; expected numbers")
    if values.shape != (n,):
        raise InputError(
            f"{label} returned shape {values.shape} for {n} states; expected one number for "
            "each, (n,) for states (n, d_x)"
        )
    return values.reshape(lead)


def _values(instrument: Mapping[str, Any], names: tuple[str, ...], coded: Any) -> tuple[float, ...]:
    """Return the instrument (d_z,) from a user's values by column of the log."""
    expected = raw_columns(names, coded)
    if not isinstance(instrument, Mapping):
        raise InputError(
            f"the instrument is {instrument!r}; expected a value by name ({', '.join(expected)})"
        )
    for name in expected:
        if name not in instrument:
            raise ColumnError(
                f"the instrument has no value for {name!r}; expected {', '.join(expected)}"
            )
    if unknown := [name for name in instrument if name not in expected]:
        raise ColumnError(
            f"{unknown[0]!r} is not an instrument of the model; expected {', '.join(expected)}"
        )
    rows = encode_rows({name: [instrument[name]] for name in expected}, names, coded, "instrument")
    return tuple(rows[0].tolist())


def _shortly(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _parameters(function: Callable[..., Any], path: str) -> tuple[int, tuple[str, ...]]:
    """Return the number of a reward's arguments, and the names of those that it asks for by name.

    2 arguments are (x, a), 3 include x', and 4 include the step too.
    """
    try:
        parameters = tuple(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return 2, ()
    asks = tuple(p.name for p in parameters if p.name in (CONTEXT, INSTRUMENT))
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    count = sum(p.kind in kinds and p.default is p.empty and p.name not in asks for p in parameters)
    for at, parameter in enumerate(parameters[:count]):
        place = next((i for i, names in enumerate(PLACES) if parameter.name in names), at)
        if place != at:
            raise InputError(
                f"the reward {path!r} calls its argument {at + 1} {parameter.name!r}, but it is "
                f"given {GIVEN[at]} there; arguments come in the order x, a, x', h"
            )
    if not 2 <= count <= 4:
        raise InputError(
            f"the reward {path!r} takes {count} arguments; expected x, a, then optionally x', h, "
            "and by name context and instrument"
        )
    return count, asks


def arguments_used(function: Callable[..., Any], *arguments: Any) -> tuple[int, ...]:
    """Return the places of the arguments (arrays or their shapes) on which the result depends.

    The program that JAX traces is followed back from its result. An argument that is accepted but
    does not affect the result is not used.
    """
    import jax

    program = jax.make_jaxpr(function)(*arguments).jaxpr
    needed = {id(v) for v in program.outvars}
    for equation in reversed(program.eqns):
        if any(id(v) in needed for v in equation.outvars):
            needed |= {id(v) for v in equation.invars}
    return tuple(i for i, variable in enumerate(program.invars) if id(variable) in needed)
