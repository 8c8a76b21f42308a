"""`Stream`: a fit that goes on as rows come, whose state is one small file."""

from ivvi.streaming.stream import Stream

__all__ = ["Stream"]
