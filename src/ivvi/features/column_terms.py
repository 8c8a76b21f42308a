"""phi and psi from terms that name columns: formulas and tensor products.

The terms of a formula become blocks, so that plans and saved models know them. Tensor products such
as ``spline:5:severity*dose,age*severity`` add, to the splines of every state (``spline:5``) and for
each named product, all products of functions of its columns: for a state the column itself and its
bends (`features.splines`), K - 1 functions in all, for an action only the column. psi has the same
products with each instrument in place of each action.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from ivvi.errors import InputError, nearest
from ivvi.features.blocks import Block, Constant, Power
from ivvi.features.feature_map import FeatureMap, parse_features
from ivvi.features.products import Monomial, Monomials, Products, column_scales
from ivvi.logs import Batch, Roles
from ivvi.logs.columns.formula import LOO, Formula, FormulaTerm, parse_formula, term_text

Positions = tuple[int, ...]
FEWEST_KNOTS = 5
FEWEST_VALUES = 10
INSIDE = (0.005, 0.995)


def formula_features(roles: Roles) -> tuple[FeatureMap, FeatureMap]:
    """Return phi(x, a) and psi(x, z) of the formula by which a log was opened.

    Where the terms are all columns once, these are the maps of the feature word ``linear``.
    """
    formula = parse_formula(roles.formula)
    for own in (formula.endogenous, formula.instruments):
        _check_margins(formula, own, roles)
    constant: tuple[Block, ...] = (Constant(),) if formula.constant else ()
    shared = tuple(_blocks(formula.exogenous, roles, ()))
    phi = _blocks(formula.endogenous, roles, roles.action)
    psi = _blocks(formula.instruments, roles, roles.instrument)
    return FeatureMap((*constant, *shared, *phi)), FeatureMap((*constant, *shared, *psi))


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
        for instrumented in _instrumented(product, roles)
        for term in _terms(instrumented, grids, bends)
    ]
    blocks = (
        _block(terms, np.concatenate([rows.x, own], axis=1), grids)
        for terms, own in ((acted, rows.a), (moved, rows.z))
    )
    own_phi, own_psi = blocks
    return phi + FeatureMap((own_phi,)), psi + FeatureMap((own_psi,))


def _blocks(terms: Sequence[FormulaTerm], roles: Roles, inputs: tuple[str, ...]) -> Iterator[Block]:
    """Yield the columns of x or of u that stand alone, then the other products."""
    names, width = (*roles.state, *inputs), len(roles.state)
    positions = dict.fromkeys(at for term in terms for at in _positions(term, roles, names))
    alone = [at for at in positions if len(at) == 1]
    own = range(width, len(names)) if inputs else range(width)
    if {at[0] for at in alone} == set(own) and (own or not inputs):
        yield Power(1, "input" if inputs else "state")
        positions = dict.fromkeys(at for at in positions if at not in alone)
    of_state = tuple(at for at in positions if max(at) < width)
    of_both = tuple(at for at in positions if max(at) >= width)
    if of_state:
        yield Monomials(of_state, "state")
    if of_both:
        yield Monomials(of_both, "both")


def _positions(term: FormulaTerm, roles: Roles, names: Sequence[str]) -> Iterator[Positions]:
    """Yield the products of columns that a term stands for: categories have several columns."""
    choices = []
    for factor in term:
        columns = _expanded(factor.column, roles)
        choices.append([(names.index(column),) * factor.power for column in columns])
    for chosen in itertools.product(*choices):
        yield tuple(sorted(at for part in chosen for at in part))


def _expanded(column: str, roles: Roles) -> tuple[str, ...]:
    """Return the numeric columns of a column: indicators, or leave-one-out means."""
    if column.startswith(LOO):
        ending = f"_by_{column.removeprefix(LOO)}"
        return tuple(name for name in roles.instrument if name.endswith(ending))
    made = {category.column: category.names for category in roles.categories}
    return made.get(column, (column,))


def _check_margins(formula: Formula, own: tuple[FormulaTerm, ...], roles: Roles) -> None:
    """Refuse a category without the term that its reference level belongs to.

    Indicators leave the first level out, so that ``C(ward):age`` alone would force the slope of
    that ward to 0; formulaic then takes all levels, which spans the same as ``age + C(ward):age``.
    Effects that are absorbed need no term of their own.
    """
    coded = {c.column for c in roles.categories if not c.boolean}
    terms = {*formula.exogenous, *own, *([()] if formula.constant else [])}
    for term in (*formula.exogenous, *own):
        for factor in term:
            rest = tuple(f for f in term if f != factor)
            absorbed = len(rest) == 1 and rest[0].column in formula.absorbed
            if factor.column in coded and rest not in terms and not absorbed:
                raise InputError(
                    f"the formula has {term_text(term)} without {term_text(rest)}, so the "
                    f"reference level of {factor.column} would have no {term_text(rest)} term; "
                    f"expected {term_text(rest)} + {term_text(term)}"
                )


def _columns(product: str, roles: Roles, word: str) -> tuple[int, ...]:
    """Positions in [x, a] of the columns of a product."""
    columns = (*roles.state, *roles.action)
    names = [name.strip() for name in product.split("*")]
    for name in names:
        if name not in columns:
            raise InputError(
                f"features {word!r} name {name!r}, which is not a state or action"
                f"{nearest(name, columns)}"
            )
    if len(names) < 2 or len(set(names)) < len(names):
        raise InputError(
            f"features {word!r} have the product {product!r}; expected two or more different "
            "columns, as in spline:5:severity*dose"
        )
    return tuple(sorted(columns.index(name) for name in names))


def _instrumented(product: Sequence[int], roles: Roles) -> list[tuple[int, ...]]:
    """Return a product with instruments in place of actions, for each choice of them."""
    first = len(roles.state)
    states = [column for column in product if column < first]
    places = range(first, first + len(roles.instrument))
    chosen = itertools.combinations(places, len(product) - len(states))
    return [(*states, *instruments) for instruments in chosen]


def _terms(
    product: Sequence[int], grids: Sequence[tuple[float, ...]], bends: int
) -> list[Monomial]:
    """Return all products of functions of these columns."""
    counts = [1 + bends if c < len(grids) and grids[c] else 1 for c in product]
    choices = itertools.product(*(range(1, count + 1) for count in counts))
    return [tuple(zip(product, chosen, strict=True)) for chosen in choices]


def _grid(column: np.ndarray, knots: int) -> tuple[float, ...]:
    """Knots at quantiles; none for a column with few different values."""
    if len(np.unique(column)) < FEWEST_VALUES:
        return ()
    count = max(knots, FEWEST_KNOTS)
    grid = np.unique(np.quantile(column, np.linspace(*INSIDE, count)))
    return tuple(grid.tolist()) if len(grid) == count else ()


def _block(
    terms: Sequence[Monomial], values: np.ndarray, grids: Sequence[tuple[float, ...]]
) -> Products:
    centre, scale = column_scales(values)
    free: list[tuple[float, ...]] = [()] * (values.shape[1] - len(grids))
    return Products(tuple(dict.fromkeys(terms)), centre, scale, (*grids, *free))
