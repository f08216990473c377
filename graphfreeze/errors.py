"""Every way graphfreeze says no, in one tree, so that a caller can catch as much or as little as it likes.

GraphfreezeError                  base; ``exit_code`` is what the CLI returns for it
|- UsageError              (2)    the call or the spec is wrong
|  '- SelectorSyntaxError  (2)    a selector cannot be parsed; points at the column
|- NoMatchError            (3)    a selector matched nothing
|- UnsupportedModelError   (4)    the model holds something that cannot be frozen safely
|- VerificationError       (5)    a check of a rewritten model failed
|- InputOutputError        (6)    a file is missing, broken or cannot be written
|- NothingToTrainError     (7)    the freeze leaves nothing trainable
'- InternalError           (1)    a pass broke an invariant: a bug of graphfreeze

A message says what is wrong, where, what was expected and found, and the next step; names stand in single quotes,
as the user wrote them.
"""

from __future__ import annotations

from typing import Any, ClassVar


class GraphfreezeError(Exception):
    """Base of all errors that graphfreeze raises on purpose."""

    exit_code: ClassVar[int] = 1


class InternalError(GraphfreezeError):
    """A pass left a model that breaks an invariant; never the user's fault."""

    exit_code = 1


class UsageError(GraphfreezeError):
    """The command line, the call or the spec file asks for something that makes no sense."""

    exit_code = 2


class SelectorSyntaxError(UsageError):
    """A selector cannot be parsed. The message shows the text with a caret under the offending column."""

    def __init__(self, text: str, column: int, problem: str) -> None:
        self.text = text
        self.column = column
        self.problem = problem
        super().__init__(f"{problem}, at column {column + 1}\n  {text}\n  {' ' * column}^")


class NoMatchError(GraphfreezeError):
    """A selector names no variable of the model, or no element of one."""

    exit_code = 3


class UnsupportedModelError(GraphfreezeError):
    """The model uses a variable in a way that graphfreeze does not understand or cannot hold."""

    exit_code = 4


class VerificationError(GraphfreezeError):
    """A rewritten model does not keep what it promises; ``report`` holds what was found, if there is something."""

    exit_code = 5

    def __init__(self, message: str, report: Any = None) -> None:
        self.report = report
        super().__init__(message)


class InputOutputError(GraphfreezeError):
    """A file is missing, damaged, of an unknown format, or cannot be written."""

    exit_code = 6


class NothingToTrainError(GraphfreezeError):
    """The freeze leaves no trainable element."""

    exit_code = 7
