"""Learn decisions from logs that lie."""
__version__ = "0.1.0"
from ivvi.logs import read_logs
