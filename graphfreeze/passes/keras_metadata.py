"""Pass ``keras_metadata``: keeps tf_keras from ignoring the freeze in silence.

tf_keras ``load_model`` rebuilds the layers it knows from ``keras_metadata.pb`` and never runs the edited functions.
Without that file it fails with a clear message instead; the file is kept aside, where ``finalize`` finds it.
"""

from __future__ import annotations

from graphfreeze.passes.state import Work

METADATA = "keras_metadata.pb"
KEPT = "assets.extra/graphfreeze/keras_metadata.pb"


def set_keras_metadata_aside(work: Work) -> None:
    """Moves the file within the model."""
    source = work.draft.model.directory / METADATA
    if source.is_file():
        work.draft.omit.add(METADATA)
        work.draft.extra_files[KEPT] = source.read_bytes()
