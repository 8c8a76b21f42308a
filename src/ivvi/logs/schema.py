"""Which columns of a table are state, action, instrument, next state, reward, episode, step.

`Schema` is what the user asks for, in patterns (`ivvi.logs.columns.patterns`). `Schema.resolve`
checks it against the existing columns and returns `Roles`, plain lists of names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from ivvi.categories import CodedColumns
from ivvi.errors import ColumnError
from ivvi.logs.columns.patterns import Columns, listing, match_columns, one_column

WEIGHT_KINDS = ("probability", "frequency")
NO_ROLE = (
    *("episode_parts", "where", "carried", "categories", "asked", "groups", "formula"),
    *("weight_kind", "ends", "set_by"),
)
"""Fields of `Roles` that do not assign a role to a column."""


SHARED_COLUMNS = ({"state", "next_state"}, {"state", "step"})
"""Roles that one column may have together: a state that depends on the step is a trend."""
PATH = "path of "
"""Begins the name of a cluster column that is not in the table: groups of episodes in which
the instruments that follow take the same values at all steps
(`ivvi.logs.instruments.shared_by_episodes`)."""


@dataclass(frozen=True, slots=True)
class Schema:
    """What the user asks for; `ivvi.logs.columns.patterns` says in which patterns.

    Attributes
    ----------
    state, action, instrument
        Columns of x, a and z. The state may be empty when `next_state` is given.
    next_state
        Columns of x'. When empty, x' is the state of the next step of the same episode.
    reward
        Column of a reward to be learned with the dynamics, as one more output.
    episode, step
        Columns that say which rows follow each other. ``None`` takes the columns
        ``episode`` and ``step`` if the table has them. Several episode columns make one
        episode of each combination of their values.
    weight
        Column of non-negative row weights.
    weight_kind
        ``probability``: rows are weighted, as survey weights are, and n counts rows.
        ``frequency``: a row stands for that many identical rows, and n counts these.
    context
        Further columns that phi and psi use besides the state, and that are not predicted.
    terminal
        Column that is true where the episode ended for good after the row; one of text that
        names the kind of end there and is empty elsewhere; or a true/false column for each kind.
    categorical
        Numeric columns that are categories.
    lags
        How many earlier rows' states and actions are part of the state.
    lag_padding
        What happens to the first rows of an episode, which have no earlier rows: ``drop`` leaves
        them out; ``first`` assumes that the first state came before too, with no action (0, the
        first level).
    every
        Time between consecutive steps, such as ``7d``; any other spacing is a gap.
    date_format
        How dates in the step column are written, such as ``%d.%m.%Y``, where it is not
        ``2024-03-01``; several formats are separated by semicolons.
    seen
        When the states of a row were seen: ``before`` its action, or ``after`` it. With ``after``,
        the state before an action is that of the previous row, and the row's own state is what
        followed.
    missing
        Values that stand for missing ones, such as ``-9`` or ``-9,999``, in all columns but
        those of episode and step.
    """

    state: Columns = ()
    action: Columns = ()
    instrument: Columns = ()
    next_state: Columns = ()
    reward: str | None = None
    episode: Columns | None = None
    step: str | None = None
    weight: str | None = None
    context: Columns = ()
    terminal: Columns = ()
    categorical: Columns = ()
    lags: int = 0
    lag_padding: str = "drop"
    every: str | None = None
    date_format: str | None = None
    weight_kind: str = WEIGHT_KINDS[0]
    seen: str = "before"
    missing: Any = ()

    def resolve(self, available: Sequence[str]) -> Roles:
        """Match the patterns with the `available` column names of a table."""
        id_columns = match_columns(self.episode or (), available, "episode")
        one = "+".join(id_columns) or None
        context = match_columns(self.context, available, "context")
        state = match_columns(self.state, available, "state")
        if self.is_one_decision(available):
            state, context = (), state + context
        roles = Roles(
            state=state + context,
            action=match_columns(self.action, available, "action"),
            instrument=match_columns(self.instrument, available, "instrument"),
            next_state=match_columns(self.next_state, available, "next-state"),
            reward=one_column(self.reward, available, "reward"),
            episode=one or one_column(None, available, "episode", default="episode"),
            step=one_column(self.step, available, "step", default="step"),
            weight=one_column(self.weight, available, "weight"),
            episode_parts=id_columns if len(id_columns) > 1 else (),
            carried=tuple((name, name) for name in context),
            terminal=match_columns(self.terminal, available, "terminal"),
            weight_kind=self.weight_kind,
        )
        roles.check(available)
        return roles

    def is_one_decision(self, available: Sequence[str]) -> bool:
        """Return whether rows do not follow each other, and what they lead to is a reward."""
        ordered = self.episode or self.step or {"episode", "step"} & set(available)
        return bool(self.reward and not self.next_state and not self.terminal and not ordered)

    def follows(self, state: Sequence[str], available: Sequence[str]) -> bool:
        """Return whether next states are those of the next rows of an episode."""
        return bool(state and not self.next_state and not self.is_one_decision(available))


@dataclass(frozen=True, slots=True)
class Roles:
    """The resolved columns of a log, by role.

    `cluster` columns say which rows belong together in standard errors (`Log.clustered`),
    and `time` is the column of calendar time (`Log.timed`); they may have another role too.
    Where several columns make an episode, these are the `episode_parts`, and `episode` is the
    name of the column that joins them. `where` is the filter of the rows, if there is one.

    The state holds everything that phi and psi may look at. Its `carried` columns are not
    outputs: each is named with the column of state or action whose value it takes on at the next
    step (itself, for a fact that stays; nothing, for one that is drawn anew). `terminal` are the
    columns of 0 and 1, one of which is 1 where the episode ended after the row, and `ends` the
    names of these kinds of end. `categories` are the columns that were turned into indicators, and
    `asked` the words from which all of this can be repeated for another log. `groups` are the
    columns whose values define leave-one-out instruments. `formula` is the formula that opened the
    log, if any. `dates` is the date column that became the steps, if several episodes share dates.
    `set_by` are the columns to cluster by if no instrument varies within the last of them
    (`ivvi.logs.instruments.assignment_level`).
    """

    state: tuple[str, ...]
    action: tuple[str, ...]
    instrument: tuple[str, ...]
    next_state: tuple[str, ...]
    reward: str | None
    episode: str | None
    step: str | None
    weight: str | None
    cluster: tuple[str, ...] = ()
    time: str | None = None
    episode_parts: tuple[str, ...] = ()
    where: str | None = None
    carried: tuple[tuple[str, str], ...] = ()
    terminal: tuple[str, ...] = ()
    categories: CodedColumns = ()
    asked: tuple[tuple[str, tuple[str, ...]], ...] = ()
    groups: tuple[str, ...] = ()
    formula: str = ""
    weight_kind: str = WEIGHT_KINDS[0]
    dates: str | None = None
    ends: tuple[str, ...] = ()
    set_by: tuple[str, ...] = ()

    @property
    def frequency(self) -> bool:
        """Whether a weight counts identical rows (a frequency weight)."""
        return self.weight_kind == "frequency"

    @property
    def usual_clusters(self) -> tuple[str, ...]:
        """Default columns to cluster by: those that instruments were made from or set by."""
        return self.groups[:2] or self.set_by

    @property
    def moment(self) -> str | None:
        """The time column: the date, or else the step."""
        return self.dates or self.step

    @property
    def derived(self) -> bool:
        """Whether x' is the state of the next row of the episode."""
        return not self.next_state and bool(self.predicted)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs y: the next state, the end, and the reward if it is learned."""
        following = self.next_state or tuple(f"next_{name}" for name in self.predicted)
        return following + self.terminal + ((self.reward,) if self.reward else ())

    @property
    def is_moved(self) -> bool:
        """Whether the rows are not those of the user's file: filtered, or in another order."""
        asked = dict(self.asked)
        made = self.where or asked.get("lags") or asked.get("every") or self.groups
        numbered = asked.get("step") and self.step not in (asked.get("step") or ())
        return bool(made or numbered or asked.get("seen") == ("after",))

    @property
    def predicted(self) -> tuple[str, ...]:
        """Columns of the state whose next value is an output: all that are not carried."""
        carried = dict(self.carried)
        return tuple(name for name in self.state if name not in carried)

    @property
    def facts(self) -> tuple[str, ...]:
        """Columns of the state that are carried because they were seen never to change."""
        context = set(dict(self.asked).get("context", ()))
        coded = {name: c.column for c in self.categories for name in c.names}
        stays = [name for name, source in self.carried if source == name and self.derived]
        return tuple(name for name in stays if coded.get(name, name) not in context)

    @property
    def numeric(self) -> tuple[str, ...]:
        """Columns read as numbers, in the order x, a, z, x', end, r, weight."""
        return self.state + self.action + self.instrument + self.next_state + self._of_the_row

    @property
    def of_the_act(self) -> tuple[str, ...]:
        """Columns that a row needs for its own action, and not to be a next state."""
        carried = tuple(name for name in self.state if name not in self.predicted)
        groups = tuple(name for name in self.cluster if name not in self.keys)
        return carried + self.action + self.instrument + self._of_the_row + groups

    @property
    def _of_the_row(self) -> tuple[str, ...]:
        return self.terminal + tuple(name for name in (self.reward, self.weight) if name)

    @property
    def keys(self) -> tuple[str, ...]:
        """The episode and step columns that are present."""
        return tuple(name for name in (self.episode, self.step) if name)

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that is read, once each."""
        time = (self.time,) if self.time else ()
        return tuple(dict.fromkeys(self.keys + self.numeric + self.read_clusters + time))

    @property
    def read_clusters(self) -> tuple[str, ...]:
        """The cluster columns that are in the table."""
        return tuple(name for name in self.cluster if not path_instruments(name, self.instrument))

    def lines(self) -> list[str]:
        """Describe which columns are categories, which are carried along, and any formula."""
        lines = [f"formula {self.formula}"] if self.formula else []
        lines += [
            f"{c.column}: {len(c.levels)} levels, reference {c.levels[0]!r}"
            for c in self.categories
            if not c.boolean
        ]
        stays = [name for name, source in self.carried if source == name]
        drawn = [name for name, source in self.carried if not source]
        if self.weight is not None:
            meaning = (
                "each row stands for that many identical rows"
                if self.frequency
                else "n counts rows"
            )
            lines.append(f"weight {self.weight}, {self.weight_kind}: {meaning}")
        if not (self.predicted or self.next_state):
            lines.append(
                f"single decisions: only {self.reward} is predicted; if rows follow each other, "
                "name episode, step and state (--episode, --step, --state)"
            )
        elif stays:
            lines.append(f"constant within an episode, not predicted: {', '.join(stays)}")
        if drawn:
            lines.append(f"context, drawn anew at every step of a plan: {', '.join(drawn)}")
        return lines

    def to_json(self) -> dict[str, Any]:
        """Describe the columns with JSON values."""
        return {name: _listed(value) for name, value in asdict(self).items()}

    def check(self, available: Sequence[str]) -> None:
        """Refuse a schema with a role left out or a column in two roles."""
        for name in self.columns:
            if (times := available.count(name)) > 1:
                raise ColumnError(f"the log has {times} columns named {name!r}")
        if twice := sorted({name for name in self.state if self.state.count(name) > 1}):
            raise ColumnError(f"column {twice[0]!r} is given both as state and as context")
        for role in ("action", "instrument"):
            if not getattr(self, role):
                raise ColumnError(f"no {role} column is given; columns: {listing(available)}")
        if not (self.predicted or self.next_state or self.reward):
            raise ColumnError(
                "no state column is given; give one, or next-state columns or a reward"
            )
        if self.derived and not (self.episode and self.step):
            missing = "episode" if not self.episode else "step"
            raise ColumnError(
                f"no {missing} column: it is needed to find each row's next state unless "
                f"next-state columns are given; columns: {listing(available)}"
            )
        if self.terminal and self.next_state and len(self.next_state) != len(self.predicted):
            raise ColumnError(
                f"the end of episodes needs the next value of every state: {len(self.predicted)} "
                f"state and {len(self.next_state)} next-state columns are given"
            )
        self._check_weights()
        self._check_disjoint()

    def _check_weights(self) -> None:
        if self.weight_kind not in WEIGHT_KINDS:
            raise ColumnError(
                f"the weight kind is {self.weight_kind!r}; expected {' or '.join(WEIGHT_KINDS)}"
            )
        if self.frequency and self.weight is None:
            raise ColumnError("frequency weights need a weight column; none is given")
        if self.frequency and self.derived:
            raise ColumnError(
                "frequency weights need next-state columns (next_state=, --next-state): a row "
                "that stands for several has no single next row in its episode"
            )

    def _check_disjoint(self) -> None:
        role_of: dict[str, str] = {}
        for field in fields(self):
            if field.name in NO_ROLE:
                continue
            value = getattr(self, field.name)
            for name in (value,) if isinstance(value, str) else value or ():
                earlier = role_of.setdefault(name, field.name)
                pair = {earlier, field.name}
                if len(pair) > 1 and not any(pair <= allowed for allowed in SHARED_COLUMNS):
                    first, second = earlier.replace("_", "-"), field.name.replace("_", "-")
                    raise ColumnError(f"column {name!r} is given both as {first} and as {second}")


def path_instruments(name: str, instruments: Sequence[str]) -> tuple[str, ...]:
    """Return the instruments by whose paths a cluster column groups; none, if it does not."""
    id_columns = tuple(name.removeprefix(PATH).split("+")) if name.startswith(PATH) else ()
    named = [
        [part] if part in instruments else [i for i in instruments if i.startswith(f"{part}[")]
        for part in id_columns
    ]
    return tuple(i for ones in named for i in ones) if all(named) else ()


def columns_once(names: Sequence[str], among: Sequence[str]) -> tuple[str, ...]:
    """Return names with the column of a category for its indicators, where all of them are there.

    Of `names` that are `among` others: ``doctor`` for ``doctor[Dr 2]``, ``doctor[Dr 3]`` and so on.
    """
    roots = {name: name.partition("[")[0] for name in names if "[" in name}
    whole = {
        root
        for root in roots.values()
        if root not in among and {n for n in among if n.startswith(f"{root}[")} <= set(names)
    }
    return tuple(dict.fromkeys(roots[n] if roots.get(n) in whole else n for n in names))


def _listed(value: Any) -> Any:
    """Return a value with lists in place of tuples, as JSON gives it back."""
    if isinstance(value, dict):
        return {name: _listed(item) for name, item in value.items()}
    return [_listed(item) for item in value] if isinstance(value, list | tuple) else value
