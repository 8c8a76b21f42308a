"""``python -m ivvi``."""

from ivvi.cli.main import main

if __name__ == "__main__":
    main()
