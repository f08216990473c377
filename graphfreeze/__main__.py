"""``python -m graphfreeze``."""

from graphfreeze.cli import main

if __name__ == "__main__":
    main()
