"""Pass ``keras_metadata``: keeps tf_keras from ignoring the freeze in silence.

tf_keras ``load_model`` rebuilds the layers it knows from ``keras_metadata.pb`` and never runs the edited functions.
Without that file it fails with a clear message instead; the file is kept aside, where ``finalize`` finds it.
"""

from __future__ import annotations

from graphfreeze.passes.state import Work
from graphfreeze.planning.model import KERAS_METADATA

METADATA = KERAS_METADATA
KEPT = f"assets.extra/graphfreeze/{METADATA}"


def set_keras_metadata_aside(work: Work) -> None:
    """Moves the file within the model, also where taking an earlier freeze off has just put it back."""
    draft = work.draft
    source = draft.model.directory / METADATA
    found = draft.extra_files.pop(METADATA, None)
    if source.is_file():
        draft.omit.add(METADATA)
        found = source.read_bytes() if found is None else found
    if found is not None:
        draft.extra_files[KEPT] = found
