"""Checkpoints by prefix: what is found, what is refused, what stays when something fails. No TensorFlow."""

import numpy as np
import pytest

from graphfreeze.errors import InputOutputError
from graphfreeze.savedmodel import StreamedTensor, check_prefix, open_checkpoint, write_bundle, write_checkpoint


@pytest.fixture
def prefix(tmp_path):
    values = {"a": np.arange(4, dtype=np.float32), "b": np.ones(3, np.int64)}
    write_bundle(tmp_path / "ckpt-1", source=None, put=values)
    return tmp_path / "ckpt-1"


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("end", ["", ".index", ".data-00000-of-00001"])
def test_a_file_stands_for_its_checkpoint(prefix, end):
    assert open_checkpoint(prefix.with_name(prefix.name + end)).prefix == prefix


def test_written_whole(prefix, tmp_path):
    source = open_checkpoint(prefix)
    write_checkpoint(tmp_path / "more" / "new", source, put={"c": np.zeros(2, np.float32)}, drop={"b"})
    written = open_checkpoint(tmp_path / "more" / "new")
    assert list(written.entries) == ["a", "c"]
    assert written.read_bytes("a") == source.read_bytes("a")
    assert written.entries["a"].crc32c == source.entries["a"].crc32c
    assert names(tmp_path / "more") == ["new.data-00000-of-00001", "new.index"]


def test_overwritten(prefix, tmp_path):
    source = open_checkpoint(prefix)
    write_bundle(tmp_path / "new", source=source, put={"more": np.zeros(2)})
    assert "new.data-00001-of-00002" in names(tmp_path)
    with pytest.raises(InputOutputError, match=r"'.*new' exists already. Give --overwrite to replace it"):
        write_checkpoint(tmp_path / "new", source, put={})
    write_checkpoint(tmp_path / "new", source, put={}, overwrite=True)
    assert [n for n in names(tmp_path) if n.startswith("new")] == ["new.data-00000-of-00001", "new.index"]


def test_a_failure_leaves_what_was_there(prefix, tmp_path):
    source = open_checkpoint(prefix)
    write_checkpoint(tmp_path / "new", source, put={})

    def fails():
        raise OSError(28, "No space left on device")

    with pytest.raises(InputOutputError, match="No space left on device"):
        write_checkpoint(tmp_path / "new", source, put={"x": StreamedTensor(1, (1,), fails)}, overwrite=True)
    assert list(open_checkpoint(tmp_path / "new").entries) == ["a", "b"]
    assert not [n for n in names(tmp_path) if n.startswith(".")]


def test_names_that_a_pattern_would_expand(prefix, tmp_path):
    source = open_checkpoint(prefix)
    write_checkpoint(tmp_path / "x[1]*", source, put={})
    assert list(open_checkpoint(tmp_path / "x[1]*").entries) == ["a", "b"]
    check_prefix(source.prefix, tmp_path / "x1")


def test_what_is_no_checkpoint(prefix, tmp_path):
    def words(path):
        with pytest.raises(InputOutputError) as error:
            open_checkpoint(path)
        return str(error.value).replace(str(tmp_path), "T")

    assert words(tmp_path / "ckpt-2") == (
        "'T/ckpt-2' is no checkpoint: there is no file 'T/ckpt-2.index'. There are: 'T/ckpt-1'"
    )
    assert words(tmp_path / "no" / "x") == (
        "'T/no/x' is no checkpoint: there is no file 'T/no/x.index'. There is no folder 'T/no'"
    )
    (tmp_path / "empty").mkdir()
    assert words(tmp_path / "empty").endswith("There is none in 'T/empty'")
    (tmp_path / "model" / "variables").mkdir(parents=True)
    (tmp_path / "model" / "variables" / "variables.index").write_bytes(b"")
    assert words(tmp_path / "model").endswith("The checkpoint of the SavedModel there is 'T/model/variables/variables'")


def test_a_target_that_cannot_be(prefix, tmp_path):
    with pytest.raises(InputOutputError, match=r"is the name of a file of a checkpoint. Give its prefix, '.*/new'"):
        check_prefix(prefix, tmp_path / "new.index")
    with pytest.raises(InputOutputError, match=r"is a folder. Give a prefix in it, such as '.*/ckpt-1'"):
        check_prefix(prefix, tmp_path)
