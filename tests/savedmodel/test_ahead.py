"""Copies that begin before the rest is known: complete, told of, and gone when nobody takes them."""

import errno
import threading

import numpy as np
import pytest

from graphfreeze.errors import InputOutputError
from graphfreeze.savedmodel import ahead, files, read_bundle, write_bundle
from graphfreeze.savedmodel.ahead import ShardCopies

VALUES = np.arange(5000, dtype=np.float32)


@pytest.fixture
def bundle(make_bundle):
    return make_bundle(a=VALUES)


def written(bundle, folder, copies, **options):
    folder.mkdir(parents=True, exist_ok=True)
    write_bundle(folder / "variables", source=bundle, put={"b": VALUES[:3]}, copies=copies, **options)
    return read_bundle(folder / "variables")


def test_a_copy_is_whole_and_counted(bundle, tmp_path):
    told = []
    copies = ShardCopies(bundle, tmp_path / "out")
    result = written(bundle, tmp_path / "staging", copies, progress=lambda done, total: told.append((done, total)))
    copies.close()
    assert result.read_tensor("a").tobytes() == VALUES.tobytes()
    assert result.read_tensor("b").tobytes() == VALUES[:3].tobytes()
    assert told[-1] == (VALUES.nbytes + 12, VALUES.nbytes + 12)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert {p.name for p in tmp_path.iterdir()} == {"staging", "variables"}


def test_what_nobody_takes_goes_away(bundle, tmp_path, monkeypatch):
    halfway = threading.Event()

    def slowly(source, target, tick):
        target.write_bytes(b"x")
        halfway.set()
        while True:
            tick(0)

    monkeypatch.setattr(ahead, "copy_file", slowly)
    copies = ShardCopies(bundle, tmp_path / "out")
    assert halfway.wait(10)
    assert len(list(tmp_path.glob(".out.graphfreeze-*-weights/0"))) == 1
    copies.close()
    assert {p.name for p in tmp_path.iterdir()} == {"variables"}


def test_a_failure_reaches_who_takes_the_copy(bundle, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "_kernel_copy", full)
    copies = ShardCopies(bundle, tmp_path / "out")
    with pytest.raises(
        InputOutputError, match=r"^cannot copy to '.*-weights/0': No space left on device. Free some space"
    ):
        copies.take(0, tmp_path / "shard", lambda _: None)
    copies.close()


def test_a_folder_that_is_missing_is_not_made_ahead(bundle, tmp_path):
    copies = ShardCopies(bundle, tmp_path / "missing" / "out")
    assert not (tmp_path / "missing").exists()
    assert written(bundle, tmp_path / "staging", copies).read_tensor("a").tobytes() == VALUES.tobytes()
    copies.close()
