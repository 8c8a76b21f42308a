"""``python -m ivvi``, and the command ``ivvi``."""

from __future__ import annotations

import gc
import os

FEW_COLLECTIONS = 50_000
"""New objects before garbage is looked for: loading the libraries makes many, and none of it."""
SHORT_WAIT = "10"
"""Binary logarithm of the cycles that a thread of OpenBLAS waits busily for its next task. By
default it is 26: each command would waste a fifth of a second of every processor."""


def main() -> None:
    """Run the command line; signals are looked after before anything large is imported."""
    gc.set_threshold(FEW_COLLECTIONS)
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", SHORT_WAIT)
    from ivvi._io.signals import end_on_signals, ignore_signals

    end_on_signals()
    from ivvi.cli.main import main as run

    try:
        run()
    finally:
        ignore_signals()


if __name__ == "__main__":
    main()
