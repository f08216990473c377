"""What the package offers to the layers above."""

from graphfreeze import savedmodel


def test_every_name_is_there_once_and_nothing_private():
    assert [name for name in savedmodel.__all__ if not hasattr(savedmodel, name)] == []
    assert len(set(savedmodel.__all__)) == len(savedmodel.__all__)
    assert not [name for name in savedmodel.__all__ if name.startswith("_")]
