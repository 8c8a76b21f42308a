"""Feature maps phi(x, a) and psi(x, z): named columns, for both NumPy and JAX.

A `FeatureMap` is a tuple of blocks. A block looks at the state, at the other argument
(the *input*: the action in phi, the instrument in psi), or at both; blocks of phi and
psi that look at the state alone and are equal are computed once (`design.Design`).
Blocks that depend on the data (knots, scales, categories) are unfitted until
`FeatureMap.fitted` has seen some rows, and are frozen values afterwards.

The paper's choices are one word each (`parse_features`): ``linear`` for [1, x, a] with
[1, x, z], ``poly2`` for [1, x, a, x^2, a^2] with [1, x, z, x^2, z^2].
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ivvi._io.arrays import Array
from ivvi._io.memory import check_memory
from ivvi._io.serialization import unpack_fields
from ivvi.errors import FileError, InputError, hint
from ivvi.features.blocks import (
    Block,
    Constant,
    Cross,
    Fourier,
    Interactions,
    OneHot,
    Power,
    Spline,
)
from ivvi.features.custom_block import Custom, import_saved
from ivvi.features.products import Monomials, Products, Varying
from ivvi.option_values import FEATURES

BLOCKS: dict[str | None, type] = {
    kind.__name__: kind
    for kind in (
        *(Constant, Power, Cross, Interactions, Spline, Varying, Products, Fourier),
        *(Monomials, OneHot, Custom),
    )
}
MOST_DEGREE = 50
"""Highest degree of polynomials; higher powers are collinear in double precision."""
MOST_DIGITS = 18
BYTES_OF_FEATURE = 512
"""Memory that one feature takes at least: names, frequencies, columns of the first rows."""
AUTO = "auto"
"""The word for features that are chosen from the data."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class FeatureMap:
    """The concatenation of blocks, as a function of (state, input).

    Examples
    --------
    >>> import numpy as np
    >>> phi = linear()
    >>> phi(np.array([[2.0]]), np.array([[3.0]])).tolist()
    [[1.0, 2.0, 3.0]]
    >>> (phi + polynomial(2)).names(["x0"], ["a0"])
    ('1', 'x0', 'a0', 'x0^2', 'a0^2')
    """

    blocks: tuple[Block, ...]

    def __call__(self, x: Array, u: Array) -> Array:
        """Evaluate on states (..., d_x) and inputs (..., d_u); returns (..., d)."""
        xp = u.__array_namespace__()
        return xp.concatenate([block(x, u) for block in self.blocks], axis=-1)

    def __add__(self, other: FeatureMap) -> FeatureMap:
        """Concatenate, and keep only one of equal blocks."""
        return FeatureMap(tuple(dict.fromkeys(self.blocks + other.blocks)))

    def names(self, state: Sequence[str], inputs: Sequence[str]) -> tuple[str, ...]:
        """Name the columns, given the names of the state's and the input's."""
        return tuple(name for block in self.blocks for name in block.names(state, inputs))

    @property
    def needs_data(self) -> bool:
        """Whether some block has knots, scales or categories still to be taken from data."""
        return any(block.needs_data for block in self.blocks)

    def fitted(self, x: Array, u: Array) -> FeatureMap:
        """Return the map with everything that depends on data taken from these rows."""
        blocks = (block.fitted(x, u) if block.needs_data else block for block in self.blocks)
        return FeatureMap(tuple(blocks))

    @property
    def numbers(self) -> tuple[Array, ...]:
        """The knots that data put into the blocks, as arrays to give to a compiled program."""
        splines = (block for block in self.blocks if isinstance(block, Spline))
        return tuple(np.array(grid) for block in splines for grid in block.grids or ())

    @property
    def shape(self) -> Hashable:
        """The map without its `numbers`."""
        return tuple(
            (block.knots, block.of, tuple(map(len, block.grids or ())))
            if isinstance(block, Spline)
            else block
            for block in self.blocks
        )

    def with_numbers(self, numbers: Sequence[Array]) -> FeatureMap:
        """Return the map with other `numbers`, which JAX may trace."""
        rest = iter(numbers)
        blocks = (
            dataclasses.replace(block, grids=tuple(next(rest) for _ in block.grids or ()))
            if isinstance(block, Spline)
            else block
            for block in self.blocks
        )
        return FeatureMap(tuple(blocks))

    def to_json(self) -> dict[str, Any]:
        """Describe the map with JSON values only."""
        return {"blocks": [_settings(block) for block in self.blocks]}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> FeatureMap:
        """Rebuild a map from `to_json`."""
        blocks: list[Block] = []
        for entry in value.get("blocks", ()):
            settings = {k: v for k, v in entry.items() if k != "kind"}
            kind = BLOCKS.get(entry.get("kind"))
            if kind is None:
                raise FileError(f"unknown feature block {entry.get('kind')!r} in a saved model")
            if "function" in settings:
                raise FileError("invalid: a feature block holds a function itself")
            if kind is Custom:
                import_saved(settings.get("path"))
            try:
                blocks.append(kind(**unpack_fields(kind, settings)))
            except TypeError as error:
                raise FileError(
                    f"feature block {entry['kind']!r} cannot be rebuilt: {error}"
                ) from error
        return cls(tuple(blocks))


def linear(*, cross: bool = False) -> FeatureMap:
    """Return [1, x, u]; with `cross`, also every state times every input."""
    products = (Cross(),) if cross else ()
    return FeatureMap((Constant(), Power(1, "state"), Power(1, "input"), *products))


def polynomial(degree: int = 2, *, cross: bool = False) -> FeatureMap:
    """Return [1, x, u, x^2, u^2, ...]; with `cross`, also all mixed monomials."""
    if not 1 <= degree <= MOST_DEGREE:
        raise InputError(f"the degree of the polynomial is {degree}; expected 1 to {MOST_DEGREE}")
    powers = [Power(d, of) for d in range(1, degree + 1) for of in ("state", "input")]
    mixed = (Interactions(degree),) if cross and degree > 1 else ()
    return FeatureMap((Constant(), *powers, *mixed))


def fourier(count: int, *, bandwidth: float = 1.0, seed: int = 0) -> FeatureMap:
    """Return [1, x, u] and `count` random Fourier features of (x, u)."""
    return linear() + FeatureMap((Fourier(count, bandwidth, seed),))


def spline(knots: int, *, of_input: int = 0, vary: bool = False) -> FeatureMap:
    """Return [1, B-splines of each state, u], or B-splines of `of_input` knots of each u.

    With `vary` also the products of the states' splines with each u.
    """
    inputs: Block = Spline(of_input, of="input") if of_input else Power(1, "input")
    products = (Varying(knots),) if vary else ()
    return FeatureMap((Constant(), Spline(knots, of="state"), inputs, *products))


def one_hot(of: str = "both") -> FeatureMap:
    """Return [1, indicator of each value but the first of each column]."""
    return FeatureMap((Constant(), OneHot(of)))


def custom(function: Any, names: Sequence[str]) -> FeatureMap:
    """Return a user's function of rows (n, d_x), (n, d_u) to (n, d), written with plain operators
    or `x.__array_namespace__()` so that it works on NumPy and JAX arrays; saved by its import path.
    """  # noqa: D205
    return FeatureMap((Custom.of_function(function, names),))


def state_features(phi: FeatureMap) -> FeatureMap:
    """Return the blocks of a map that look at the state alone; [1, x] if there are none."""
    of_state = tuple(block for block in phi.blocks if block.of == "state")
    return FeatureMap(of_state or (Constant(), Power(1, "state")))


def parse_features(word: str, seed: int = 0) -> tuple[FeatureMap, FeatureMap]:
    """Turn a feature word into the pair (phi, psi).

    ``linear`` (``linear:cross`` with state times action), ``polyD`` (``polyD:cross`` with all
    mixed terms), ``fourier:M``,
    ``spline:K``: K knots of each state, actions linear, psi with splines of z too;
    ``spline:K:vary`` adds the products of those splines with actions, and with instruments;
    ``spline:K:severity*dose`` those of the columns that it names (`features.column_terms`).
    The `seed` draws the frequencies of Fourier features.
    """
    kind, _, argument = word.partition(":")
    if word == AUTO:
        raise InputError("auto features are chosen by a fit; use linear or another word here")
    if word == "linear":
        return linear(), linear()
    if word == "linear:cross":
        return linear(cross=True), linear(cross=True)
    if kind.startswith("poly") and kind[4:].isdecimal() and argument in ("", "cross"):
        if len(kind) > MOST_DIGITS:
            raise InputError(
                f"the degree of the polynomial has {len(kind) - 4} digits; expected 1 to "
                f"{MOST_DEGREE}"
            )
        both = polynomial(int(kind[4:]), cross=argument == "cross")
        return both, both
    if kind == "fourier":
        both = fourier(_count(word, argument), seed=seed)
        return both, both
    if kind == "spline":
        count, _, vary = argument.partition(":")
        knots = _count(word, count)
        if vary not in ("", "vary"):
            raise InputError(
                f"unknown features {word!r}; did you mean spline:{knots}:vary, or products of "
                f"columns as in spline:{knots}:severity*dose?"
            )
        return (
            spline(knots, vary=bool(vary)),
            spline(knots, of_input=min(knots, 5), vary=bool(vary)),
        )
    raise InputError(f"unknown features {word!r}{hint(word, FEATURES)}")


def describe_direction(
    weights: Sequence[float],
    names: Sequence[str],
    spread: Sequence[float] | None = None,
    most: int = 6,
) -> str:
    """Write a linear combination of features in words, such as ``a1 - 0.8 a3``.

    The most important weight is scaled to 1, and those of less than 1% of its importance
    are left out. Importance is size, or with `spread` size times the feature's spread; the
    constant, which has none, then comes last, as a number.
    """
    units = [1.0] * len(names) if spread is None else list(spread)
    largest = max(abs(w) * unit for w, unit in zip(weights, units, strict=True)) or 1.0
    rank = sorted(  # equals stay in order, whatever the rounding
        range(len(names)), key=lambda i: -round(abs(weights[i]) * units[i] / largest, 6)
    )
    terms = [i for i in rank if abs(weights[i]) * units[i] > 0.01 * largest]
    words = ""
    for i in terms[:most]:
        weight = weights[i] / weights[rank[0]]
        sign = (" - " if weight < 0 else " + ") if words else ""
        size = "" if abs(abs(weight) - 1) < 0.005 else f"{abs(weight):.2g} "
        words += f"{sign}{f'{abs(weight):.2g}' if names[i] == '1' else size + names[i]}"
    words += f" and {len(terms) - most} more" if len(terms) > most else ""
    for i, name in enumerate(names):
        if name == "1" and i not in terms and abs(weights[i]) > 0.01 * largest:
            constant = weights[i] / weights[rank[0]]
            words += f" {'-' if constant < 0 else '+'} {abs(constant):.2g}"
    return words


def _count(word: str, argument: str) -> int:
    if len(argument) > MOST_DIGITS:
        raise InputError(f"the number of features has more than {MOST_DIGITS} digits")
    if not argument.isdecimal() or int(argument) < 2:
        raise InputError(
            f"features {word!r} need a whole number of at least 2, as in {word.split(':')[0]}:5"
        )
    check_memory(int(argument) * BYTES_OF_FEATURE, f"a map of {argument} features")
    return int(argument)


def _settings(block: Block) -> dict[str, Any]:
    """Return the kind and the settings of a block; a function is identified by its path alone."""
    if isinstance(block, Custom):
        block.check_importable()
    fields = (f.name for f in dataclasses.fields(block) if f.name != "function")  # type: ignore[arg-type]
    return {"kind": type(block).__name__, **{name: getattr(block, name) for name in fields}}
