"""What a log is: its columns, where it is read from, and its transitions in batches."""

from ivvi.logs.batch import Batch, concatenate
from ivvi.logs.columns.times import Calendar
from ivvi.logs.instruments.shared_by_episodes import InstrumentPaths, SharedPaths
from ivvi.logs.log import Log, Pass
from ivvi.logs.opening import read_logs
from ivvi.logs.row_sample import Sample
from ivvi.logs.scan_position import Counts, Position
from ivvi.logs.schema import Roles, Schema
from ivvi.logs.tables.parquet_files import SOURCE_KEY
from ivvi.logs.tables.table import ArrowTable

__all__ = [
    "SOURCE_KEY",
    "ArrowTable",
    "Batch",
    "Calendar",
    "Counts",
    "InstrumentPaths",
    "Log",
    "Pass",
    "Position",
    "Roles",
    "Sample",
    "Schema",
    "SharedPaths",
    "concatenate",
    "read_logs",
]
