"""Tensor products of chosen columns, such as ``spline:5:severity*dose,age*severity``.

Beside the splines of every state (``spline:5``) stand, for each product that is named, all products
of functions of its columns: of a state the column itself and its bends (`features.margins`), K - 1
functions in all, of an action the column alone. psi has the same products with each instrument in
the place of each action.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from ivvi.errors import InputError, nearest
from ivvi.features.feature_map import FeatureMap, parse_features
from ivvi.features.products import Products, Term, column_scales
from ivvi.logs import Batch, Roles

FEWEST_KNOTS = 5
FEWEST_VALUES = 10
INSIDE = (0.005, 0.995)


def is_tensor(word: object) -> bool:
    """Whether a feature word names products of columns."""
    return isinstance(word, str) and word.startswith("spline:") and "*" in word


def tensor_features(word: str, roles: Roles, rows: Batch) -> tuple[FeatureMap, FeatureMap]:
    """Return phi(x, a) and psi(x, z) of a word, with knots of these rows."""
    base, _, named = word.removeprefix("spline:").partition(":")
    phi, psi = parse_features(f"spline:{base}")
    products = [_columns(product, roles, word) for product in named.split(",")]
    bends = max(int(base) - 2, 0)
    grids = [_grid(column, int(base)) for column in rows.x.T]
    acted = [term for product in products for term in _terms(product, grids, bends)]
    moved = [
        term
        for product in products
        for one in _instrumented(product, roles)
        for term in _terms(one, grids, bends)
    ]
    blocks = (
        _block(terms, np.concatenate([rows.x, own], axis=1), grids)
        for terms, own in ((acted, rows.a), (moved, rows.z))
    )
    own_phi, own_psi = blocks
    return phi + FeatureMap((own_phi,)), psi + FeatureMap((own_psi,))


def _columns(product: str, roles: Roles, word: str) -> tuple[int, ...]:
    """Positions in [x, a] of the columns of a product."""
    known = (*roles.state, *roles.action)
    names = [name.strip() for name in product.split("*")]
    for name in names:
        if name not in known:
            raise InputError(
                f"features {word!r} name {name!r}, which is no state or action"
                f"{nearest(name, known)}"
            )
    if len(names) < 2 or len(set(names)) < len(names):
        raise InputError(
            f"features {word!r} have the product {product!r}; expected two or more different "
            "columns, as in spline:5:severity*dose"
        )
    return tuple(sorted(known.index(name) for name in names))


def _instrumented(product: Sequence[int], roles: Roles) -> list[tuple[int, ...]]:
    """Put instruments in the place of actions, each choice of them."""
    first = len(roles.state)
    states = [column for column in product if column < first]
    places = range(first, first + len(roles.instrument))
    chosen = itertools.combinations(places, len(product) - len(states))
    return [(*states, *one) for one in chosen]


def _terms(product: Sequence[int], grids: Sequence[tuple[float, ...]], bends: int) -> list[Term]:
    """Return all products of functions of these columns."""
    counts = [1 + bends if c < len(grids) and grids[c] else 1 for c in product]
    choices = itertools.product(*(range(1, count + 1) for count in counts))
    return [tuple(zip(product, chosen, strict=True)) for chosen in choices]


def _grid(column: np.ndarray, knots: int) -> tuple[float, ...]:
    """Knots at quantiles; none for a column with few different values."""
    if len(np.unique(column)) < FEWEST_VALUES:
        return ()
    count = max(knots, FEWEST_KNOTS)
    found = np.unique(np.quantile(column, np.linspace(*INSIDE, count)))
    return tuple(found.tolist()) if len(found) == count else ()


def _block(
    terms: Sequence[Term], values: np.ndarray, grids: Sequence[tuple[float, ...]]
) -> Products:
    centre, scale = column_scales(values)
    free: list[tuple[float, ...]] = [()] * (values.shape[1] - len(grids))
    return Products(tuple(dict.fromkeys(terms)), centre, scale, (*grids, *free))
