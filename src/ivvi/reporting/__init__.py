"""Reports: one HTML file that opens from disk, prints, and needs no network."""

from ivvi.reporting.write import report

__all__ = ["report"]
