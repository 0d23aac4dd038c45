"""``python -m topomask``."""

from topomask.cli import main

if __name__ == "__main__":
    main()
