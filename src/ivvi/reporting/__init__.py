"""Reports: one HTML file that opens from disk, prints, and needs no network."""

from ivvi.reporting.fit_page import report

__all__ = ["report"]
