"""One linear combination of a row of W, with everything else partialled out.

Of y = W phi + e and theta = c . W_o, write the row W_o as theta times one direction d with
c . d = 1, plus directions n with c . n = 0. Then y_o = theta x + N gamma + (exogenous) + e,
where x = phi . d, the columns of N are the directions in which something endogenous is
left, and the exogenous ones are regressed out of y, x, N and of the instruments. What is
left is a problem with one parameter of interest and endogenous nuisance, of which the
explained and the unexplained second moments are all that the homoskedastic tests need:

    P = T' P_Z T     M = T' M_Z T     T = [y, x, N]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ivvi._io.arrays import Floats
from ivvi._io.result import Compact
from ivvi.errors import DataError, InputError, nearest
from ivvi.estimators.estimate import RANK_TOLERANCE
from ivvi.estimators.whitening import exogenous
from ivvi.features.design import Design
from ivvi.moments import Moments, compress

Combination = str | Mapping[str, float]
"""A feature's name, or weights of several."""


@dataclass(frozen=True, slots=True, repr=False)
class PartialledEffect(Compact):
    """The reduced problem of one effect.

    Attributes
    ----------
    label
        The effect in words, such as ``effect of a0 on next_x1``.
    explained, unexplained
        Second moments P and M of T = [y, x, N], columns of length one, (2 + m, 2 + m).
    into_columns, into_Z
        Linear maps (p, 2 + m) and (p, k) from v - centre to a row of T and of orthonormal
        instruments.
    centre
        The means when a constant was partialled out, else zeros, (p,).
    unit
        What turns the parameter of the scaled columns into theta.
    freedom
        n minus the rank of psi.
    moves
        Whether x varies at all once the rest is held fixed.
    """

    label: str
    explained: Floats
    unexplained: Floats
    into_columns: Floats
    into_Z: Floats
    centre: Floats
    unit: float
    freedom: int
    moves: bool

    @property
    def k(self) -> int:
        """Number of instruments left."""
        return int(self.into_Z.shape[1])

    @property
    def nuisance(self) -> int:
        """Number m of endogenous directions besides the one of interest."""
        return len(self.explained) - 2

    @classmethod
    def of(cls, moments: Moments, output: str, feature: Combination) -> PartialledEffect:
        """Reduce the moments to one effect: `feature` names one, or weighs several."""
        design = moments.design
        at = design.output(output)
        feature = feature_of(design, feature) if isinstance(feature, str) else feature
        c = combination_vector(design, feature)
        keep_constant = design.constant is None or c[design.constant] != 0
        root, centre = compress(moments), np.array(moments.mean)
        if keep_constant:
            root, centre = np.vstack([moments.mean, root]), np.zeros(design.width)
        d, N, exogenous_directions = _directions(design, c, root, set(exogenous(moments)))
        target = np.eye(design.width)[:, [design.y_columns[at]]]
        column_map, Z_map, rank = _partial_out(design, root, exogenous_directions, [target, d, N])
        rank += not keep_constant
        freedom = moments.n - rank - moments.lost()
        if freedom <= 0:
            raise DataError(f"{moments.n} rows are too few for {rank} instrument features")
        size = np.linalg.norm(root @ column_map, axis=0)
        varies = size > RANK_TOLERANCE * np.linalg.norm(root @ np.hstack([target, d, N]), axis=0)
        unit = size[0] / size[1] if varies[:2].all() else 1.0
        into_columns = column_map / np.where(varies, size, 1.0)
        into_columns = np.hstack([into_columns[:, :2], _independent(root, into_columns[:, 2:])])
        columns = root @ into_columns
        fitted = (root @ Z_map).T @ columns
        rest = columns - (root @ Z_map) @ fitted
        moves = bool(varies[1]) and _left(columns[:, 2:], columns[:, 1]) > RANK_TOLERANCE
        return cls(
            label=f"effect of {describe(feature)} on {design.outputs[at]}",
            explained=fitted.T @ fitted,
            unexplained=rest.T @ rest,
            into_columns=into_columns,
            into_Z=Z_map,
            centre=centre,
            unit=float(unit),
            freedom=freedom,
            moves=moves,
        )


def combination_vector(design: Design, feature: Combination) -> Floats:
    """Return the weights (d_phi,) of a feature's name or of a mapping from names."""
    weights = {feature: 1.0} if isinstance(feature, str) else dict(feature)
    c = np.zeros(len(design.phi_names))
    for name, weight in weights.items():
        c[design.phi_names.index(feature_of(design, name))] = weight
    if not np.isfinite(c).all() or not c.any():
        raise InputError(f"the combination {describe(feature)} has no nonzero weight")
    return c


def feature_of(design: Design, name: str) -> str:
    """Return the feature of a name: its own, or that of a yes/no column, ``treated[yes]``."""
    if name in design.phi_names:
        return name
    levels = [one for one in design.phi_names if one.startswith(f"{name}[")]
    if len(levels) == 1:
        return levels[0]
    if levels:
        listed = ", ".join(levels[:12])
        raise InputError(f"{name!r} has {len(levels)} features, one for each level: {listed}")
    hint = nearest(name, design.phi_names)
    advice = hint or f"; there are {', '.join(design.phi_names[:12])}"
    raise InputError(f"there is no feature {name!r}{advice}")


def describe(feature: Combination) -> str:
    """Write the combination in words: ``a0``, ``a0 - 0.5 a1``."""
    if isinstance(feature, str):
        return feature
    words = ""
    for name, weight in feature.items():
        sign = ("-" if weight < 0 else "") if not words else " - " if weight < 0 else " + "
        words += f"{sign}{'' if abs(weight) == 1 else f'{abs(weight):g} '}{name}"
    return words


def _directions(
    design: Design, c: Floats, root: Floats, shared: set[int]
) -> tuple[Floats, Floats, Floats]:
    """Return maps (p, .) of v to x, to the nuisance N and to what is exogenous.

    The pivot is an exogenous feature wherever c touches one, so that as much as possible
    of what is held fixed stays exogenous.
    """
    p, d_phi = design.width, len(c)
    importance = np.abs(c) * np.linalg.norm(root[:, :d_phi], axis=0)
    touched = [j for j in sorted(shared) if c[j] != 0]
    pool = touched or list(range(d_phi))
    pivot = max(pool, key=lambda j: (importance[j], abs(c[j])))
    x = np.zeros((p, 1))
    x[pivot] = 1 / c[pivot]
    nuisance: list[Floats] = []
    fixed: list[Floats] = []
    for j in (j for j in range(d_phi) if j != pivot):
        direction = np.zeros(p)
        direction[j], direction[pivot] = 1.0, -c[j] / c[pivot]
        (fixed if j in shared else nuisance).append(direction)
    return x, _stack(nuisance, p), _stack(fixed, p)


def _partial_out(
    design: Design, root: Floats, exogenous: Floats, targets: list[Floats]
) -> tuple[Floats, Floats, int]:
    """Regress the exogenous directions out; return maps to T and Z, and the rank of psi."""
    inside = _independent(root, exogenous)
    basis = root @ inside
    psi = np.eye(design.width)[:, list(design.psi_columns)]
    scale = np.linalg.norm(root @ psi, axis=0)
    psi = psi / np.where(scale > 0, scale, 1.0)
    Z = _independent(root, psi - inside @ (basis.T @ (root @ psi)), rescale=False)
    columns = np.hstack(targets)
    return columns - inside @ (basis.T @ (root @ columns)), Z, inside.shape[1] + Z.shape[1]


def _independent(root: Floats, maps: Floats, *, rescale: bool = True) -> Floats:
    """Combine maps so that their values on the rows of `root` are orthonormal, (p, rank)."""
    values = root @ maps
    scale = np.linalg.norm(values, axis=0) if rescale else np.ones(maps.shape[1])
    scale = np.where(scale > 0, scale, 1.0)
    _, size, right = np.linalg.svd(values / scale, full_matrices=False)
    strong = size > RANK_TOLERANCE
    combined: Floats = (maps / scale) @ (right[strong].T / size[strong])
    return combined


def _left(basis: Floats, column: Floats) -> float:
    """Length of a column's residual after projection on an orthonormal basis."""
    return float(np.linalg.norm(column - basis @ (basis.T @ column)))


def _stack(columns: list[Floats], p: int) -> Floats:
    return np.array(columns).T if columns else np.zeros((p, 0))
