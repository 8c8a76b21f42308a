"""What a log is: its columns, where it is read from, and its transitions in batches."""

from ivvi.logs.batch import Batch, concatenate
from ivvi.logs.log import Log, Pass, read_logs
from ivvi.logs.sample import Thinned
from ivvi.logs.schema import Roles, Schema
from ivvi.logs.tables import SOURCE_KEY, ArrowTable
from ivvi.logs.transitions import Counts

__all__ = [
    "SOURCE_KEY",
    "ArrowTable",
    "Batch",
    "Counts",
    "Log",
    "Pass",
    "Roles",
    "Schema",
    "Thinned",
    "concatenate",
    "read_logs",
]
