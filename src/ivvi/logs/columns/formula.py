"""Formulas: ``next_severity ~ severity + C(ward) + severity:age | patient | dose ~ doctor``.

The parts are those of fixest: outputs and exogenous terms, columns whose fixed effects are absorbed
(this part may be left out), and actions ~ instruments. A term is a column, ``C(column)`` for a
category that holds numbers, ``I(column**2)``, or a product of these; ``loo(doctor)`` is the
leave-one-out instrument. formulaic reads the algebra (``+ - : * / **`` and brackets); no part of a
formula is evaluated. `Formula.schema` gives the columns their roles, and
`ivvi.features.column_terms` turns the terms into phi and psi.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from ivvi.errors import ColumnError, DataError, InputError, nearest
from ivvi.logs.columns.patterns import Columns
from ivvi.logs.schema import Roles, Schema

MOST_POWER = 9
NEXT, LOO = "next_", "loo:"
QUOTES = "`'\""
CLOSING = {"(": ")", "[": "]", "{": "}", **{sign: sign for sign in QUOTES}}
MARK = "\N{RIGHT DOUBLE WIGGLY FENCE}"
"""The text with which formulaic marks the place of an error."""
SHAPE = "y ~ x | absorbed | action ~ instrument"
CALLS = (
    (re.compile(r"C\(\s*`?([^`,()]+?)`?\s*\)"), "category"),
    (re.compile(r"loo\(\s*`?([^`,()]+?)`?\s*\)"), "loo"),
    (re.compile(r"(?:I\(\s*)?`?([^`,()*]+?)`?\s*\*\*\s*(\d+)\s*\)?"), "power"),
)


@dataclass(frozen=True, slots=True, order=True)
class Factor:
    """A column in a term: as it is, to a power, or as a category."""

    column: str
    power: int = 1
    category: bool = False

    def __str__(self) -> str:
        if self.column.startswith(LOO):
            return f"loo({self.column[len(LOO) :]})"
        if self.power > 1:
            return f"I({self.column}**{self.power})"
        return f"C({self.column})" if self.category else self.column


FormulaTerm = tuple[Factor, ...]
"""A product of factors, in the order of their names; the empty one is the constant."""


def term_text(term: FormulaTerm) -> str:
    """Return a term as a formula has it."""
    return ":".join(map(str, term)) or "1"


@dataclass(frozen=True, slots=True)
class Formula:
    """A parsed formula.

    Attributes
    ----------
    text
        The formula itself.
    outputs
        Names to the left of the first ``~``.
    exogenous
        Terms that phi and psi share.
    absorbed
        Columns whose fixed effects are absorbed.
    endogenous, instruments
        Terms of phi alone, and of psi alone.
    constant
        Whether there is one; ``0 +`` and ``- 1`` take it out.
    """

    text: str
    outputs: tuple[str, ...]
    exogenous: tuple[FormulaTerm, ...]
    absorbed: tuple[str, ...]
    endogenous: tuple[FormulaTerm, ...]
    instruments: tuple[FormulaTerm, ...]
    constant: bool = True

    @property
    def actions(self) -> tuple[str, ...]:
        """Columns of the action: those that stand alone as endogenous, or are not exogenous."""
        return self._moved(self.endogenous, "action")

    @property
    def instrument_columns(self) -> tuple[str, ...]:
        """Columns of the instrument, found in the same way."""
        return self._moved(self.instruments, "instrument")

    def _moved(self, terms: tuple[FormulaTerm, ...], role: str) -> tuple[str, ...]:
        exogenous = _columns(self.exogenous)
        alone = list(dict.fromkeys(t[0].column for t in terms if len(t) == 1))
        for term in terms:
            names = [f.column for f in term]
            if set(names) & set(alone):
                continue
            new = [name for name in names if name not in exogenous]
            if len(new) != 1 and role == "action":
                raise InputError(
                    f"the term {term_text(term)} of the formula does not show which column is the "
                    f"{role}; expected one on its own, as in {names[0]} + {term_text(term)}, or "
                    "the other columns among the exogenous terms"
                )
            alone += new
        return tuple(dict.fromkeys(alone))

    @property
    def conditions(self) -> tuple[str, ...]:
        """Columns that phi and psi use besides actions and instruments."""
        moved = {*self.actions, *self.instrument_columns}
        every = _columns(self.exogenous + self.endogenous + self.instruments)
        return tuple(name for name in every if name not in moved)

    @property
    def categories(self) -> tuple[str, ...]:
        """Columns that are categories though they may hold numbers."""
        terms = self.exogenous + self.endogenous + self.instruments
        return tuple(dict.fromkeys(f.column for term in terms for f in term if f.category))

    def schema(self, asked: Schema, available: Sequence[str]) -> Schema:
        """Give the columns their roles; episode, step, weight and so on are as asked for."""
        self._check_exclusive(asked)
        self._check_terms(available)
        following, derived, others = self._outputs(available)
        conditions = self.conditions
        if not following:
            return replace(asked, **self._roles(asked, conditions, (), others))
        if len(others) > 1 or (others and asked.reward):
            raise InputError(
                f"the formula has the outputs {', '.join(others)} besides next states; expected at "
                "most one, the reward"
            )
        state = tuple(name.removeprefix(NEXT) for name in following)
        context = tuple(name for name in conditions if name not in state)
        roles = self._roles(asked, state, context, () if derived else following)
        return replace(asked, **roles, reward=others[0] if others else asked.reward)

    def _roles(
        self, asked: Schema, state: Columns, context: Columns, next_state: Columns
    ) -> dict[str, Any]:
        own = asked.categorical
        own = [name.strip() for name in own.split(",")] if isinstance(own, str) else list(own)
        return {
            "state": state,
            "context": context,
            "next_state": next_state,
            "action": self.actions,
            "instrument": self.instrument_columns,
            "categorical": [name for name in dict.fromkeys([*own, *self.categories]) if name],
        }

    def _check_exclusive(self, asked: Schema) -> None:
        for role in ("state", "action", "instrument", "next_state", "context", "lags"):
            if getattr(asked, role):
                word = role.replace("_", "-")
                raise InputError(
                    f"--{word} ({role}=) and --formula (formula=) exclude each other: the formula "
                    "already assigns the columns to roles"
                )

    def _check_terms(self, available: Sequence[str]) -> None:
        """Refuse columns that are not there, and those on two sides of the formula."""
        actions, instruments = set(self.actions), set(self.instrument_columns)
        plain = {
            f.column
            for terms in (self.exogenous, self.endogenous, self.instruments)
            for term in terms
            for f in term
            if not f.category
        }
        for name in (
            *_columns(self.exogenous + self.endogenous + self.instruments),
            *self.absorbed,
        ):
            column = name.removeprefix(LOO)
            if column not in available:
                hint = nearest(column, available) or f"; columns: {', '.join(available[:12])}"
                raise ColumnError(f"{column!r} of the formula is not a column of the log{hint}")
        if mixed := sorted(plain & set(self.categories)):
            raise InputError(f"the formula has {mixed[0]!r} as a number and as a category C()")
        for name in _columns(self.exogenous):
            if name in actions or name in instruments:
                kind = "action" if name in actions else "instrument"
                raise InputError(
                    f"the {kind} {name!r} is also among the exogenous terms of the formula; "
                    f"expected it, and its products, only on its own side of the last ~"
                )
        if both := sorted(actions & {n.removeprefix(LOO) for n in _columns(self.instruments)}):
            raise InputError(f"{both[0]!r} is both an action and an instrument of the formula")
        if twice := [t for t in self.instruments + self.endogenous if t in self.exogenous]:
            raise InputError(
                f"the term {term_text(twice[0])} appears twice in the formula; expected it once"
            )
        if not instruments:
            raise InputError(
                "the formula has no excluded instrument: every column right of the last ~ is also "
                "exogenous; add one that is not"
            )
        if own := sorted(set(self.outputs) & {*_columns(self.exogenous), *actions, *instruments}):
            raise InputError(
                f"{own[0]!r} is both an output and a term of the formula; expected one of them"
            )

    def _outputs(self, available: Sequence[str]) -> tuple[tuple[str, ...], bool, tuple[str, ...]]:
        """Return next states, whether they come from the next row, and the other outputs."""
        following: list[str] = []
        others: list[str] = []
        derived: list[str] = []
        for name in self.outputs:
            of_state = name.startswith(NEXT) and name.removeprefix(NEXT) in available
            if name not in available and not of_state:
                hint = nearest(name, available) or f"; columns: {', '.join(available[:12])}"
                raise ColumnError(f"the output {name!r} of the formula is not a column{hint}")
            if name not in available:
                derived.append(name)
            (following if of_state else others).append(name)
        if derived and len(derived) < len(following):
            own = next(name for name in following if name not in derived)
            raise ColumnError(
                f"{own!r} is a column of the log and {derived[0]!r} is not; expected all next "
                "states as columns, or none"
            )
        return tuple(following), bool(derived), tuple(others)

    def check_outputs(self, roles: Roles) -> None:
        """Refuse an output that the log does not have: a state that never changes."""
        made = {n: c.column for c in roles.categories for n in c.names}
        predicted = {made.get(name, name) for name in roles.predicted}
        for name in self.outputs if roles.derived else ():
            state = name.removeprefix(NEXT)
            if name.startswith(NEXT) and name != roles.reward and state not in predicted:
                raise DataError(
                    f"the output {name!r} of the formula is always the same as {state!r}, which "
                    "never changes within an episode"
                )


@lru_cache(maxsize=64)
def parse_formula(text: str) -> Formula:
    """Read a formula; one that cannot be read is refused with the place where it goes wrong."""
    _check_closed(text)
    sections = list(_split(text, 0, "|"))
    sides = [list(_split(part, start, "~")) for part, start in sections]
    for pieces in sides:
        if len(pieces) > 2:
            raise _refusal(text, pieces[2][1] - 1, f"a second ~; expected {SHAPE}")
    if len(sides[0]) != 2 or len(sides) < 2 or len(sides[-1]) != 2:
        where = len(text) if len(sides[0]) == 2 else sides[0][0][1]
        lacks = "actions ~ instruments" if len(sides[0]) == 2 else "an output and a ~"
        raise _refusal(text, where, f"{lacks} missing; expected {SHAPE}")
    if len(sections) > 3 or (len(sections) == 3 and len(sides[1]) != 1):
        where = sections[3][1] - 1 if len(sections) > 3 else sides[1][1][1] - 1
        raise _refusal(text, where, f"too many parts; expected {SHAPE}")
    reader = _Reader(text)
    outputs = reader.names(*sides[0][0], "an output", category=False)
    if not outputs:
        raise _refusal(text, 0, f"an output missing; expected {SHAPE}")
    exogenous, constant = reader.terms(*sides[0][1])
    absorbed: tuple[str, ...] = ()
    if len(sections) == 3:
        absorbed = reader.names(*sections[1], "an absorbed column", category=True)
    endogenous, _ = reader.terms(*sides[-1][0])
    instruments, _ = reader.terms(*sides[-1][1])
    for terms, (_, start), kind in zip(
        (endogenous, instruments), sides[-1], ("action", "instrument"), strict=True
    ):
        if not terms:
            raise _refusal(text, start, f"an {kind} missing; expected {SHAPE}")
    return Formula(
        text, outputs, exogenous, absorbed, endogenous, instruments, constant or bool(absorbed)
    )


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads parts of one formula, so that errors tell where in the whole they are."""

    text: str

    def names(self, part: str, start: int, what: str, *, category: bool) -> tuple[str, ...]:
        """Read a sum of columns, which may be written as categories."""
        columns = []
        for term, at in self._read(part, start):
            forms = (term[0].column, f"C({term[0].column})")[: 1 + category]
            if len(term) > 1 or str(term[0]) not in forms:
                raise _refusal(self.text, at, f"{term_text(term)} is not {what}; expected a column")
            columns.append(term[0].column)
        return tuple(dict.fromkeys(columns))

    def terms(self, part: str, start: int) -> tuple[tuple[FormulaTerm, ...], bool]:
        """Read a sum of terms, and whether the constant is one of them."""
        read = list(self._read(part, start, constant=True))
        distinct = dict.fromkeys(term for term, _ in read if term)
        return tuple(distinct), any(not term for term, _ in read)

    def _read(
        self, part: str, start: int, *, constant: bool = False
    ) -> Iterator[tuple[FormulaTerm, int]]:
        if not part.strip():
            if constant:
                yield (), start
            return
        for term in _formulaic_terms(self.text, part, start):
            read = {self._factor(f, start) for f in term.factors if str(f.expr) != "1"}
            if read or constant:
                yield tuple(sorted(read)), start + min(map(_place, term.factors))

    def _factor(self, factor: Any, start: int) -> Factor:
        """Return one of formulaic's factors as a column; nothing is evaluated."""
        if factor.eval_method.value == "lookup":
            return Factor(str(factor.expr))
        for pattern, kind in CALLS:
            matched = pattern.fullmatch(str(factor.expr))
            if matched is None:
                continue
            if kind == "power" and 1 <= int(matched[2]) <= MOST_POWER:
                return Factor(matched[1], int(matched[2]))
            if kind != "power":
                column = LOO + matched[1] if kind == "loo" else matched[1]
                return Factor(column, category=kind == "category")
        raise _refusal(
            self.text,
            start + _place(factor),
            f"{factor.expr} is not a term; expected columns, C(column), I(column**2), loo(column) "
            "and their products (for other functions, add a column to the log)",
        )


def _place(factor: Any) -> int:
    """Return where one of formulaic's factors begins in its part."""
    return int(getattr(factor.token, "source_start", 0) or 0)


def _formulaic_terms(text: str, part: str, start: int) -> Any:
    """Let formulaic read a part."""
    try:
        from formulaic.errors import FormulaicError
        from formulaic.parser import DefaultFormulaParser
    except ImportError:
        raise InputError("formulas need formulaic: pip install 'ivvi[formula]'") from None
    try:
        return DefaultFormulaParser(include_intercept=True).get_terms(part).root
    except FormulaicError as error:
        first, _, marked = str(error).partition("\n")
        place = max(marked.lstrip("\n").find(MARK), 0)
        why = first.partition(". ")[0].rstrip(".").replace("insuffient", "too few")
        raise _refusal(text, start + place, why[:1].lower() + why[1:]) from None


def _refusal(text: str, place: int, why: str) -> InputError:
    """Return the error for a formula that goes wrong at a place, counted from 0."""
    rest = text[place:].strip()
    near = f" ({rest[:16]}{'...' if len(rest) > 16 else ''})" if rest else " (its end)"
    return InputError(f"the formula does not parse at character {place + 1}{near}: {why}")


def _check_closed(text: str) -> None:
    """Refuse a bracket or a quote that is not closed, or closed without being opened."""
    opened: list[tuple[str, int]] = []
    for i, letter in enumerate(text):
        if opened and letter == opened[-1][0]:
            opened.pop()
        elif opened and opened[-1][0] in QUOTES:
            continue
        elif letter in CLOSING:
            opened.append((CLOSING[letter], i))
        elif letter in CLOSING.values():
            raise _refusal(text, i, f"a {letter} without an opening bracket")
    if opened:
        sign, place = opened[-1]
        raise _refusal(text, place, f"the bracket that opens here is not closed; expected a {sign}")


def _split(text: str, start: int, sign: str) -> Iterator[tuple[str, int]]:
    """Cut text at a sign outside brackets and quotes; each piece with the place where it begins."""
    depth, quote, begin = 0, "", 0
    for i, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in QUOTES:
            quote = letter
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        elif letter == sign and depth <= 0:
            yield text[begin:i], start + begin
            begin = i + 1
    yield text[begin:], start + begin


def _columns(terms: tuple[FormulaTerm, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(f.column for term in terms for f in term))
