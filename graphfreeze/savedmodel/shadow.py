"""A second model that shares its files with the first: symbolic links for all that is the same.

For tries that need other weights or another graph, next to a model that may be large and must not change.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from graphfreeze.savedmodel.bundle_write import Put, write_bundle
from graphfreeze.savedmodel.container import FINGERPRINT_FILE, PROTO_FILE, TEXT_FILE, VARIABLES_PREFIX, SavedModel
from graphfreeze.savedmodel.container_write import serialize
from graphfreeze.savedmodel.files import reported


def write_shadow(model: SavedModel, target: Path, *, put: Mapping[str, Put] | None = None) -> None:
    """Writes ``model`` to ``target``: its proto as it is in memory, the tensors of ``put`` in place of its own.

    Raises:
        InputOutputError: it cannot be written.
    """
    with reported("write", target):
        target.mkdir(parents=True)
        for file in model.directory.iterdir():
            # A fingerprint would not fit any more.
            if file.name not in (PROTO_FILE, TEXT_FILE, FINGERPRINT_FILE) and (
                put is None or file.name != VARIABLES_PREFIX.parent.name
            ):
                (target / file.name).symlink_to(file.absolute())
        (target / PROTO_FILE).write_bytes(serialize(model.proto))
        if put is not None:
            (target / VARIABLES_PREFIX.parent).mkdir()
            write_bundle(target / VARIABLES_PREFIX, source=model.bundle, put=put)
