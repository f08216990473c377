"""The only giver of fresh names."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

_FUNCTION = re.compile(r"(?P<stem>.*?)(?P<number>_\d+)?")
_ILLEGAL = re.compile(r"[^A-Za-z0-9_./\\>-]")
_MARK = "_graphfreeze_"


class FreshNames:
    """Gives names that are not taken yet; the same calls give the same names."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)

    def fresh(self, wanted: str) -> str:
        """``wanted``, or ``wanted_1``, ``wanted_2``, ..."""
        name, n = wanted, 0
        while name in self._taken:
            n += 1
            name = f"{wanted}_{n}"
        self._taken.add(name)
        return name

    def take(self, name: str) -> None:
        """A name that is in use from now on."""
        self._taken.add(name)


def legal_name(name: str) -> str:
    """The nearest name that a node may have (and a variable, which becomes one when it is saved).

    >>> legal_name("_blocks/0/my kernel")
    'blocks/0/my_kernel'
    """
    return _ILLEGAL.sub("_", name).lstrip("_-/\\>") or "variable"


def changed_function_name(name: str, content: bytes) -> str:
    """The name of a changed function: the old one with a hash of what changed.

    The loader of TensorFlow expects ``__inference_NAME_NUMBER``, so the hash goes before the number.

    >>> changed_function_name("__inference_call_12", b"")
    '__inference_call_graphfreeze_e3b0c442_12'
    """
    match = _FUNCTION.fullmatch(name)
    stem, number = (name, "") if match is None else (match["stem"], match["number"] or "")
    return f"{stem}{_MARK}{hashlib.sha256(content).hexdigest()[:8]}{number}"


def original_function_name(name: str) -> str:
    """Undoes ``changed_function_name``; saving again may have appended numbers.

    >>> original_function_name("__inference_call_graphfreeze_e3b0c442_12")
    '__inference_call_12'
    >>> original_function_name("__inference_while_body_graphfreeze_e3b0c442_12_345")
    '__inference_while_body_12_345'
    """
    return re.sub(_MARK + r"[0-9a-f]{8}(?=(_\d+)*$)", "", name)
