"""``python -m ivvi``, and the command ``ivvi``."""

from __future__ import annotations


def main() -> None:
    """Run the command line; signals are looked after before anything large is imported."""
    from ivvi._io.signals import end_on_signals, ignore_signals

    end_on_signals()
    from ivvi.cli.main import main as run

    try:
        run()
    finally:
        ignore_signals()


if __name__ == "__main__":
    main()
