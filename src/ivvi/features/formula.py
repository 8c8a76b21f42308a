"""phi and psi of a formula: its terms as blocks, so that plans and saved models know them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from ivvi.errors import InputError
from ivvi.features.blocks import Block, Constant, Power
from ivvi.features.feature_map import FeatureMap
from ivvi.features.products import Monomials
from ivvi.logs.formula import LOO, Formula, Term, parse_formula, term_text
from ivvi.logs.schema import Roles

Positions = tuple[int, ...]


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


def _blocks(terms: Sequence[Term], roles: Roles, inputs: tuple[str, ...]) -> Iterator[Block]:
    """Yield the columns of x or of u that stand alone, then the other products."""
    names, width = (*roles.state, *inputs), len(roles.state)
    positions = dict.fromkeys(at for term in terms for at in _positions(term, roles, names))
    alone = [at for at in positions if len(at) == 1]
    own = range(width, len(names)) if inputs else range(width)
    if len(own) and {at[0] for at in alone} == set(own):
        yield Power(1, "input" if inputs else "state")
        positions = dict.fromkeys(at for at in positions if at not in alone)
    of_state = tuple(at for at in positions if max(at) < width)
    of_both = tuple(at for at in positions if max(at) >= width)
    if of_state:
        yield Monomials(of_state, "state")
    if of_both:
        yield Monomials(of_both, "both")


def _positions(term: Term, roles: Roles, names: Sequence[str]) -> Iterator[Positions]:
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


def _check_margins(formula: Formula, own: tuple[Term, ...], roles: Roles) -> None:
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
                    f"reference level of {factor.column} would have none; expected "
                    f"{term_text(rest)} + {term_text(term)}"
                )
