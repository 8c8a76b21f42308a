"""Which features a row of a log has, and where each stands.

Every transition gives one vector v = [phi(x, a), what psi(x, z) adds, y]. A `Design` knows
the feature maps, the names and the columns, and evaluates v for a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ivvi._io.arrays import Floats
from ivvi._io.result import Compact
from ivvi.errors import InputError, nearest
from ivvi.features.blocks import Block, Constant, Cross, Interactions, Power
from ivvi.features.column_terms import formula_features, is_tensor, tensor_features
from ivvi.features.feature_map import FeatureMap, parse_features
from ivvi.features.products import Monomials
from ivvi.logs import Batch, Log, Roles

PRODUCTS_OF_COLUMNS = (Constant, Power, Interactions, Cross, Monomials)
NAMES = ("phi_names", "psi_names", "outputs", "psi_columns")


@dataclass(frozen=True, repr=False)
class Design(Compact):
    """Which column of v is which feature or output.

    Columns of phi come first, then those of psi that phi does not have, then y. Blocks
    of features that look at the state alone and stand in both maps are shared.

    Attributes
    ----------
    phi, psi
        The feature maps, fitted.
    phi_names, psi_names, outputs
        Names of the columns of phi (d_phi), of psi (d_psi), of y (d_y).
    psi_columns
        Position in v of each column of psi.
    pieces
        Each distinct block, the argument it is evaluated with beside the state, and the
        column of v where its values start.
    """

    phi: FeatureMap
    psi: FeatureMap
    phi_names: tuple[str, ...]
    psi_names: tuple[str, ...]
    outputs: tuple[str, ...]
    psi_columns: tuple[int, ...]
    pieces: tuple[tuple[Block, str, int], ...]

    @classmethod
    def build(cls, phi: FeatureMap, psi: FeatureMap, roles: Roles) -> Design:
        """Lay out fitted feature maps for a log with these roles."""
        pieces: list[tuple[Block, str, int]] = []
        shared: dict[Block, range] = {}
        at = 0
        for block in phi.blocks:
            width = len(block.names(roles.state, roles.action))
            pieces.append((block, "action", at))
            if block.of == "state":
                shared[block] = range(at, at + width)
            at += width
        psi_columns: list[int] = []
        for block in psi.blocks:
            if block in shared:
                psi_columns += shared[block]
                continue
            width = len(block.names(roles.state, roles.instrument))
            pieces.append((block, "instrument", at))
            psi_columns += range(at, at + width)
            at += width
        return cls(
            phi,
            psi,
            phi.names(roles.state, roles.action),
            psi.names(roles.state, roles.instrument),
            roles.outputs,
            tuple(psi_columns),
            tuple(pieces),
        )

    @cached_property
    def phi_columns(self) -> tuple[int, ...]:
        """Positions of phi in v."""
        return tuple(range(len(self.phi_names)))

    @cached_property
    def y_columns(self) -> tuple[int, ...]:
        """Positions of y in v."""
        return tuple(range(self.width - len(self.outputs), self.width))

    @cached_property
    def shared(self) -> tuple[int, ...]:
        """Columns of phi that psi has too: the exogenous ones."""
        return tuple(sorted(set(self.phi_columns) & set(self.psi_columns)))

    @cached_property
    def constant(self) -> int | None:
        """Position of the constant, when phi and psi both have it."""
        for block, _, start in self.pieces:
            if isinstance(block, Constant):
                return start if start in self.shared else None
        return None

    @cached_property
    def width(self) -> int:
        """Number of columns of v."""
        return max(len(self.phi_names), *(c + 1 for c in self.psi_columns)) + len(self.outputs)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Name of each column of v; an instrument's feature or an output by its own name."""
        named = dict(zip(self.psi_columns, self.psi_names, strict=True))
        named |= dict(enumerate(self.phi_names))
        named |= dict(zip(self.y_columns, self.outputs, strict=True))
        return tuple(named[column] for column in range(self.width))

    @cached_property
    def varying(self) -> NDArray[np.int64]:
        """Columns of v other than constants; the moments of constants need no data."""
        constants = {start for block, _, start in self.pieces if isinstance(block, Constant)}
        return np.array([i for i in range(self.width) if i not in constants], dtype=np.int64)

    def output(self, name: str) -> int:
        """Return the position of an output; the name of a state means its next value."""
        outputs = self.outputs
        column = f"next_{name}" if name not in outputs and f"next_{name}" in outputs else name
        if column not in outputs:
            hint = nearest(name, outputs) or f"; there are {', '.join(outputs[:12])}"
            raise InputError(f"there is no output {name!r}{hint}")
        return outputs.index(column)

    @cached_property
    def is_raw(self) -> bool:
        """Whether the varying columns of v are just those of the log: x, a, z, y."""
        varying = [(block, argument) for block, argument, _ in self.pieces if block != Constant()]
        state, inputs = Power(1, "state"), Power(1, "input")
        return varying == [(state, "action"), (inputs, "action"), (inputs, "instrument")]

    @cached_property
    def of_columns(self) -> NDArray[np.bool_]:
        """Which features of phi are products of columns, not pieces of curves or waves, (d_phi)."""
        plain = np.zeros(len(self.phi_names), dtype=bool)
        ends = [start for _, _, start in self.pieces[1:]] + [self.width]
        for (block, argument, start), end in zip(self.pieces, ends, strict=True):
            if argument == "action" and isinstance(block, PRODUCTS_OF_COLUMNS):
                plain[start:end] = True
        return plain

    @cached_property
    def linear_inputs(self) -> bool:
        """Whether actions and instruments stand alone, each once; states may bend."""
        own = [(block, argument) for block, argument, _ in self.pieces if block.of != "state"]
        return own == [(Power(1, "input"), "action"), (Power(1, "input"), "instrument")]

    def rows(self, batch: Batch) -> Floats:
        """Evaluate the varying columns of v for each transition, (n, p), column-major."""
        if batch.table is not None and self.is_raw:
            return batch.table
        V = np.empty((len(self.varying), len(batch))).T
        at = 0
        for block, argument, _ in self.pieces:
            if not isinstance(block, Constant):
                with np.errstate(over="ignore", invalid="ignore"):  # moments look at the sums
                    values = block(batch.x, batch.a if argument == "action" else batch.z)
                V[:, at : at + values.shape[1]] = values
                at += values.shape[1]
        V[:, at:] = batch.y
        return V

    def embed(self, mean: Floats, scatter: Floats) -> tuple[Floats, Floats]:
        """Put the constants back into moments (..., p) and (..., p, p) of the varying columns."""
        lead, at = mean.shape[:-1], self.varying
        whole_mean = np.ones((*lead, self.width))
        whole_mean[..., at] = mean
        whole_scatter = np.zeros((*lead, self.width, self.width))
        whole_scatter[..., at[:, None], at] = scatter
        return whole_mean, whole_scatter

    def to_json(self) -> dict[str, Any]:
        """Describe the design with JSON values."""
        blocks, arguments, starts = zip(*self.pieces, strict=True)
        return {
            "phi": self.phi.to_json(),
            "psi": self.psi.to_json(),
            **{name: list(getattr(self, name)) for name in NAMES},
            "blocks": FeatureMap(blocks).to_json(),
            "arguments": list(arguments),
            "starts": list(starts),
        }

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> Design:
        """Rebuild a design from `to_json`."""
        phi, psi, blocks = (FeatureMap.from_json(facts[key]) for key in ("phi", "psi", "blocks"))
        pieces = tuple(zip(blocks.blocks, facts["arguments"], facts["starts"], strict=True))
        named: dict[str, Any] = {name: tuple(facts[name]) for name in NAMES}
        return cls(phi=phi, psi=psi, pieces=pieces, **named)


def build_design(
    log: Log, phi: FeatureMap | str, psi: FeatureMap | str | None = None, seed: int = 0
) -> Design:
    """Lay out feature words or maps for a log, fitted to its first rows where they need it."""
    return fitted_design(log.roles, log.head, phi, psi, seed)


def _resolved(
    word: str, roles: Roles, head: Callable[[], Batch], seed: int
) -> tuple[FeatureMap, FeatureMap]:
    """Turn a word into phi and psi; one that names columns needs to know them."""
    return tensor_features(word, roles, head()) if is_tensor(word) else parse_features(word, seed)


def fitted_design(
    roles: Roles,
    head: Callable[[], Batch],
    phi: FeatureMap | str,
    psi: FeatureMap | str | None = None,
    seed: int = 0,
) -> Design:
    """Resolve feature words, fit what depends on data to the rows that `head` gives.

    A log that was opened by a formula has the features of the formula.
    """
    if roles.formula and isinstance(phi, str):
        if phi != "linear" or psi not in (None, "linear"):
            raise InputError(
                "a formula defines its own features; remove phi and psi (--features, --phi, "
                "--psi), or name the columns one by one instead"
            )
        phi, psi = formula_features(roles)
    if psi is None:
        if not isinstance(phi, str):
            raise InputError("if phi is a feature map and not a word, psi must be given too")
        psi = phi
    if isinstance(phi, str) and phi.startswith("spline:") and not roles.state:
        raise InputError(
            f"{phi} applies to states, and the log has none; use auto or polyD, which apply to "
            "actions too"
        )
    first, second = (
        _resolved(word, roles, head, seed)[side] if isinstance(word, str) else word
        for side, word in enumerate((phi, psi))
    )
    if first.needs_data or second.needs_data:
        rows = head()
        first, second = first.fitted(rows.x, rows.a), second.fitted(rows.x, rows.z)
    return Design.build(first, second, roles)
