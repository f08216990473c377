"""``python -m graphfreeze``."""

from graphfreeze.cli import run

if __name__ == "__main__":
    run()
