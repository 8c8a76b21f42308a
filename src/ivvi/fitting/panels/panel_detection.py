"""Use two absorbed columns as unit and time of a panel, if the user named neither.

With `y ~ 1 | firm + year | a ~ z` and one row of each firm in a year, the firm is the episode and
the year the step: rows are clustered by firm and, where firms share the instrument of a year, by
year too, and what the order of rows shows can be tested. Outcomes stay those that are named: next
states are not derived.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ivvi.errors import InputError
from ivvi.estimators.covariance.standard_errors_for_log import FEWEST_WILD
from ivvi.logs import Log, Roles
from ivvi.logs.columns.category_encoding import without_indicators
from ivvi.logs.columns.patterns import Columns, match_columns
from ivvi.logs.instruments.leave_out import original
from ivvi.logs.instruments.unit_and_time_columns import FEWEST_UNITS, PanelColumns, panel_columns
from ivvi.logs.opening import reopened


@dataclass(frozen=True, slots=True)
class UnnamedPanel:
    """A log, whose episodes and steps may be columns that were only named to be absorbed.

    `columns` says which absorbed columns are unit and time, and `taken` whether they became
    episode and step.
    """

    log: Log
    columns: PanelColumns | None = None
    taken: bool = False

    @property
    def note(self) -> str:
        """A note on the unit and time of the rows; '' if there is nothing to say."""
        if (columns := self.columns) is None:
            return ""
        if self.taken:
            return (
                f"{columns.unit} and {columns.time} are taken for episode and step, since each "
                "comes once with the other; name others if they are not (episode=, step=, "
                "--episode, --step)"
            )
        if columns.units >= FEWEST_UNITS:
            return ""
        text = (
            f"{columns.unit} has {columns.units} values, too few to cluster by: if its rows are "
            f"correlated from one {columns.time} to the next, errors are too small"
        )
        if columns.units < FEWEST_WILD:
            return text
        return (
            f"{text}; compare with clusters by {columns.unit} and their few degrees of freedom "
            f"(cluster={columns.unit!r}, --cluster {columns.unit})"
        )


def as_panel(log: Log, absorb: Columns) -> UnnamedPanel:
    """Return the log with unit and time as episode and step, if the user named neither.

    Of a panel with fewer units than `FEWEST_UNITS`, or of repeated cross-sections, rows stay as
    they are.
    """
    roles, table = log.roles, original(log.table)
    if roles.episode is not None or roles.step is not None or roles.groups:
        return UnnamedPanel(log)
    columns = panel_columns(table, match_columns(absorb, list(table.schema.names), "absorb"))
    if columns is None or not columns.is_panel or columns.units < FEWEST_UNITS or roles.frequency:
        return UnnamedPanel(log, columns)
    if columns.unit in roles.numeric or columns.time in roles.numeric:
        return UnnamedPanel(log, columns)
    named = _named(roles, columns)
    if not columns.is_dated:
        return UnnamedPanel(log.replaced(log.table, named), columns, taken=True)
    words = tuple((name, ones) for name, ones in named.asked if name != "renamed")
    like = replace(named, where=None, asked=words)  # the table has its new names, and is filtered
    try:
        dated = reopened(without_indicators(table, roles.categories), like)
    except InputError:  # text that is no date, such as 2024Q1
        return UnnamedPanel(log, columns)
    as_asked: dict[str, Any] = {n: getattr(named, n) for n in ("where", "ends", "set_by", "asked")}
    dated_log = log.replaced(dated.table, replace(dated.roles, **as_asked))
    return UnnamedPanel(dated_log, columns, taken=True)


def _named(roles: Roles, columns: PanelColumns) -> Roles:
    """Return the roles with unit and time as episode and step, as if they had been named."""
    unit, time = columns.unit, columns.time
    words = dict(roles.asked) | {"episode": (unit,), "step": (time,)}
    set_by = (unit, *roles.set_by) if roles.set_by else ()
    return replace(roles, episode=unit, step=time, asked=tuple(words.items()), set_by=set_by)
