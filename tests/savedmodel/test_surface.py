"""What the package offers to the layers above."""

import subprocess
import sys

from graphfreeze import savedmodel


def test_every_name_is_there_once_and_nothing_private():
    assert [name for name in savedmodel.__all__ if not hasattr(savedmodel, name)] == []
    assert len(set(savedmodel.__all__)) == len(savedmodel.__all__)
    assert not [name for name in savedmodel.__all__ if name.startswith("_")]


def test_it_imports_nothing_of_the_layers_above():
    code = (
        "import sys, graphfreeze.savedmodel\n"
        "print(*sorted(name for name in sys.modules if name.startswith('graphfreeze.')))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not [n for n in loaded if n.split(".")[1] not in ("savedmodel", "errors")]
