"""``python -m ivvi``."""

from ivvi.cli import main

if __name__ == "__main__":
    main()
