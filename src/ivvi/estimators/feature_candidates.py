"""Candidate structures of phi, from small to large: bent states and what varies with them.

A structure is a list of products (`features.products.Term`) that are added to the linear terms,
with as many bends of a column as there is room for. Its psi has the same products with instruments
in place of actions. It always has bent instruments too, because the first stage is learned and not
assumed to be linear.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ivvi.features.products import Monomial

BENDS = (28, 24, 20, 16, 12, 9, 7, 5)
"""Numbers of bends per column to try, until the columns are few enough."""
FEW_BENDS = 5
MANY_STATES = 8
"""With at least this many states, single ones are tried with few bends."""
BENT_ACTION, BENT_INSTRUMENT = 12, 8
"""Bends of an action, and of an instrument of actions that are not bent."""


@dataclass(frozen=True, slots=True)
class CandidateColumns:
    """The columns that can be bent: their names, and whether each has enough values."""

    state: tuple[str, ...]
    action: tuple[str, ...]
    instrument: tuple[str, ...]
    bent_state: tuple[bool, ...]
    bent_action: tuple[bool, ...]
    bent_instrument: tuple[bool, ...]

    @property
    def states(self) -> range:
        """Positions of the states in [x, a] and in [x, z]."""
        return range(len(self.state))

    @property
    def actions(self) -> range:
        """Positions of the actions in [x, a]."""
        return range(len(self.state), len(self.state) + len(self.action))

    @property
    def bendable(self) -> list[int]:
        """Positions of the states that can be bent."""
        return [j for j in self.states if self.bent_state[j]]

    @property
    def acted(self) -> str:
        """The actions in words."""
        return self.action[0] if len(self.action) == 1 else "actions"


@dataclass(frozen=True, slots=True)
class Structure:
    """Products in addition to the linear terms.

    Attributes
    ----------
    label
        In words, such as ``severity bent, dose x severity``.
    terms
        The products of [x, a], given the number of bends of a column.
    of
        The state that it is about, where it is about one.
    most
        The largest number of bends.
    """

    label: str
    terms: Callable[[int], list[Monomial]]
    of: int | None = None
    most: int = BENDS[0]

    def fitted(
        self, columns: CandidateColumns, cap: int
    ) -> tuple[list[Monomial], list[Monomial]] | None:
        """Return the terms of phi and psi, with as many bends as `cap` columns allow."""
        for count in (bends for bends in BENDS if bends <= self.most):
            phi = _distinct(self.terms(count))
            psi = instrument_terms(phi, columns)
            if max(len(phi), len(psi)) + len(columns.state) < cap:
                return phi, psi
        return None


def bend(column: int, count: int) -> list[Monomial]:
    """Bends of one column."""
    return [((column, k),) for k in range(2, count + 2)]


def times(column: int, others: Iterable[tuple[int, ...]], count: int) -> list[Monomial]:
    """A column and its bends, times products of other columns as they are."""
    return [
        tuple(sorted(((column, k), *((o, 1) for o in other))))
        for other in others
        for k in range(1, count + 2)
    ]


def single_states(columns: CandidateColumns) -> list[Structure]:
    """One state bent."""
    few = _most(columns)
    return [
        Structure(f"{columns.state[j]} bent", lambda m, j=j: bend(j, m), j, few)  # type: ignore[misc]
        for j in columns.bendable
    ]


def all_states(columns: CandidateColumns) -> list[Structure]:
    """Every state bent, added up."""
    bendable = columns.bendable
    if len(bendable) < 2:
        return []
    label = f"{' and '.join(columns.state[j] for j in bendable)} bent"
    label = label if len(bendable) == 2 else "every state bent"
    return [Structure(label, lambda m: [t for j in bendable for t in bend(j, m)])]


def single_effects(columns: CandidateColumns) -> list[Structure]:
    """The effect of the actions changes with one state."""
    few = _most(columns)
    return [
        Structure(
            _effect_label(columns, j),
            lambda m, j=j: _effect(columns, j, m),  # type: ignore[misc]
            j,
            few,
        )
        for j in columns.states
    ]


def all_effects(columns: CandidateColumns) -> list[Structure]:
    """The effect of the actions changes with every state."""
    if len(columns.state) < 2:
        return []
    label = f"every state bent, {columns.acted} x every state"
    return [Structure(label, lambda m: [t for j in columns.states for t in _effect(columns, j, m)])]


def crossed(columns: CandidateColumns, state: int) -> list[Structure]:
    """One bent state times all the others, up to three at a time."""
    others = [c for c in (*columns.states, *columns.actions) if c != state]
    if len(others) < 2 or state not in columns.bendable:
        return []
    pairs = list(itertools.combinations(others, 2))
    label = f"{columns.state[state]} bent, times all others"

    def terms(m: int) -> list[Monomial]:
        alone: list[Monomial] = [tuple((o, 1) for o in pair) for pair in pairs]
        return bend(state, m) + times(state, [*((o,) for o in others), *pairs], m) + alone

    return [Structure(label, terms, state)]


def surfaces(columns: CandidateColumns, first: int, second: int) -> list[Structure]:
    """Two states bent together, and times the actions."""
    if not {first, second} <= set(columns.bendable):
        return []
    names = f"{columns.state[first]} and {columns.state[second]} bent together"

    def surface(m: int) -> list[Monomial]:
        side = max(2, int(m**0.5) + 1)
        pairs = itertools.product(range(1, side + 2), repeat=2)
        both: list[Monomial] = [tuple(sorted(((first, k), (second, i)))) for k, i in pairs]
        return bend(first, m) + bend(second, m) + both

    def acted(m: int) -> list[Monomial]:
        plain = surface(m)
        moved = [
            tuple(sorted((*term, (a, 1))))
            for a in columns.actions
            for term in [((first, 1),), ((second, 1),), *plain]
        ]
        return plain + moved

    return [
        Structure(names, surface, most=16),
        Structure(f"{names}, times {columns.acted}", acted, most=16),
    ]


def bent_actions(columns: CandidateColumns, base: Structure | None) -> list[Structure]:
    """The structure chosen so far, with bent actions, and with bent actions times the states."""
    bent = [a for a in columns.actions if columns.bent_action[a - len(columns.state)]]
    if not bent:
        return []
    base_terms: Callable[[int], list[Monomial]] = base.terms if base is not None else lambda m: []
    before = f"{base.label}, " if base is not None else ""
    named = " and ".join(columns.action[a - len(columns.state)] for a in bent)

    def alone(m: int) -> list[Monomial]:
        return base_terms(m) + [t for a in bent for t in bend(a, min(m, BENT_ACTION))]

    def crossed_with_states(m: int) -> list[Monomial]:
        others = [(j,) for j in columns.states]
        return alone(m) + [t for a in bent for t in times(a, others, min(m, BENT_ACTION))]

    structures = [Structure(f"{before}{named} bent", alone)]
    if columns.state:
        structures.append(Structure(f"{before}{named} bent, times states", crossed_with_states))
    return structures


def instrument_terms(phi: Sequence[Monomial], columns: CandidateColumns) -> list[Monomial]:
    """Products of [x, z] for the products of [x, a]: instruments for actions, and bent ones."""
    first, count = len(columns.state), len(columns.instrument)
    places = range(first, first + count)
    terms: list[Monomial] = [term for term in phi if not _acts(term, first)]
    bent_action = any(k > 1 for term in phi for c, k in term if c >= first)
    for term in phi:
        rest = tuple(factor for factor in term if factor[0] < first)
        acting = len(term) - len(rest)
        for chosen in itertools.combinations(places, acting) if acting else ():
            terms.append((*rest, *((z, 1) for z in chosen)))
    most = 20 if bent_action else BENT_INSTRUMENT
    for z in places:
        bends = most if columns.bent_instrument[z - first] else 0
        terms += bend(z, bends)
        terms += [((x, 1), (z, k)) for x in columns.states for k in range(1, bends + 2)]
    straight = {((z, 1),) for z in places}
    return [term for term in _distinct(terms) if term not in straight]


def _acts(term: Monomial, first: int) -> bool:
    return any(column >= first for column, _ in term)


def _effect(columns: CandidateColumns, state: int, count: int) -> list[Monomial]:
    bends = count if columns.bent_state[state] else 0
    return bend(state, bends) + times(state, [(a,) for a in columns.actions], bends)


def _effect_label(columns: CandidateColumns, state: int) -> str:
    name = columns.state[state]
    bent = f"{name} bent, " if columns.bent_state[state] else ""
    return f"{bent}{columns.acted} x {name}"


def _most(columns: CandidateColumns) -> int:
    return FEW_BENDS if len(columns.state) > MANY_STATES else BENDS[0]


def _distinct(terms: Iterable[Monomial]) -> list[Monomial]:
    return list(dict.fromkeys(terms))
