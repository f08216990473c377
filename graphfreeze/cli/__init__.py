"""The command line: words in, one call of ``graphfreeze.api``, a report or JSON out. No logic lives here.

A command is one file and one row in ``program.COMMANDS``; options that several share stand in ``options``. Data goes to
stdout, everything else to stderr. What slows the start (numpy, protobuf, rich) is imported inside the commands, so that
``--help`` answers at once; ``tests/cli/test_help.py`` holds that.
"""

from graphfreeze.cli.program import main, run

__all__ = ["main", "run"]
