"""Writing SavedModel directories: all of it or nothing, whatever fails, and never the source."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from graphfreeze.errors import InputOutputError, InternalError
from graphfreeze.savedmodel import container_write, digest, read_saved_model, write_saved_model


def snapshot(root: Path) -> dict[str, object]:
    """Every name under ``root`` with content and mode."""
    return {
        str(path.relative_to(root)): (path.read_bytes() if path.is_file() else None, path.stat().st_mode)
        for path in sorted(root.rglob("*"))
    }


@pytest.fixture
def model(make_model):
    return read_saved_model(make_model())


@pytest.fixture
def target(tmp_path):
    return tmp_path / "out" / "target"


def test_real_model_round_trip(real_model, tmp_path):
    source = read_saved_model(real_model)
    for name, options in {"plain": {}, "packed": {"repack": True}}.items():
        write_saved_model(source, tmp_path / name, **options)
        copy = read_saved_model(tmp_path / name)
        assert copy.proto == source.proto
        assert copy.other_files() == source.other_files()
        assert copy.empty_folders() == source.empty_folders()
        for path in source.other_files():
            assert (copy.directory / path).read_bytes() == (real_model / path).read_bytes()
        assert not (copy.directory / "fingerprint.pb").exists()
        if source.bundle is None:
            assert copy.bundle is None
            continue
        assert list(copy.bundle.entries) == list(source.bundle.entries)
        assert all(copy.bundle.read_bytes(key) == source.bundle.read_bytes(key) for key in source.bundle.entries)
        if name == "plain":
            assert copy.bundle.entries == source.bundle.entries


def test_whole_directory(model, target):
    before = snapshot(model.directory)
    model.proto.meta_graphs[0].meta_info_def.tags.append("train")
    write_saved_model(
        model,
        target,
        put={"y": np.arange(3)},
        drop=["x"],
        extra_files={"assets.extra/spec.toml": b"new", "keras_metadata.pb": b"replaced"},
        omit=["assets/words.txt"],
    )
    names = [name for name, (content, _) in snapshot(target).items() if content is not None]
    assert names == [
        "assets.extra/spec.toml",
        "keras_metadata.pb",
        "saved_model.pb",
        "variables/variables.data-00000-of-00002",
        "variables/variables.data-00001-of-00002",
        "variables/variables.index",
    ]
    result = read_saved_model(target)
    assert list(result.proto.meta_graphs[0].meta_info_def.tags) == ["serve", "train"]
    assert list(result.bundle.entries) == ["y"]
    assert (target / "keras_metadata.pb").read_bytes() == b"replaced"
    assert snapshot(model.directory) == before
    assert [path.name for path in target.parent.iterdir()] == ["target"]


def test_the_same_bytes_twice(model, tmp_path):
    write_saved_model(model, tmp_path / "a", put={"y": np.arange(3)})
    write_saved_model(model, tmp_path / "b", put={"y": np.arange(3)})
    assert snapshot(tmp_path / "a") == snapshot(tmp_path / "b")


def test_text_proto_becomes_binary(make_model, target):
    from google.protobuf import text_format

    root = make_model()
    expected = read_saved_model(root).proto
    (root / "saved_model.pb").unlink()
    (root / "saved_model.pbtxt").write_text(text_format.MessageToString(expected))
    write_saved_model(read_saved_model(root), target)
    assert read_saved_model(target).proto == expected
    assert not (target / "saved_model.pbtxt").exists()


def test_a_model_without_variables_can_get_some(make_model, target):
    import shutil

    root = make_model()
    shutil.rmtree(root / "variables")
    write_saved_model(read_saved_model(root), target, put={"y": np.arange(3)})
    assert read_saved_model(target).bundle.read_tensor("y").tolist() == [0, 1, 2]


def test_leftover_shards_are_not_taken_along(make_model, target):
    root = make_model()
    (root / "variables" / "variables.data-00001-of-00002").write_bytes(b"stale")
    (root / "variables" / "notes.txt").write_bytes(b"kept")
    write_saved_model(read_saved_model(root), target, put={"y": np.arange(3)})
    assert read_saved_model(target).bundle.read_tensor("y").tolist() == [0, 1, 2]
    assert (target / "variables" / "notes.txt").read_bytes() == b"kept"


def test_symbolic_links_become_files(make_model, target, tmp_path):
    root = make_model()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "f").write_bytes(b"far")
    (root / "assets" / "link").symlink_to(tmp_path / "elsewhere" / "f")
    (root / "linked").symlink_to(tmp_path / "elsewhere")
    write_saved_model(read_saved_model(root), target)
    assert (target / "assets" / "link").read_bytes() == b"far"
    assert not (target / "assets" / "link").is_symlink()
    assert (target / "linked" / "f").read_bytes() == b"far"
    assert not (target / "linked").is_symlink()


@pytest.mark.parametrize("kind", ["broken", "pipe"])
def test_files_that_cannot_be_copied(make_model, target, kind):
    root = make_model()
    odd = root / "assets" / "odd"
    odd.symlink_to("nowhere") if kind == "broken" else os.mkfifo(odd)
    with pytest.raises(InputOutputError) as caught:
        write_saved_model(read_saved_model(root), target)
    assert str(caught.value) == f"'{odd}' is neither a file nor a folder, or a broken link. Remove it first"
    assert not list(target.parent.iterdir())


def test_permissions_follow_the_umask(model, target):
    old = os.umask(0o027)
    try:
        write_saved_model(model, target)
    finally:
        os.umask(old)
    assert target.stat().st_mode & 0o777 == 0o750
    assert (target / "saved_model.pb").stat().st_mode & 0o777 == 0o640


def test_links(model, target):
    write_saved_model(model, target, put={"y": np.arange(3)}, weights="link")
    shard = target / "variables" / "variables.data-00000-of-00002"
    assert shard.samefile(model.bundle.shard_path(0))
    assert shard.stat().st_mode & 0o222 == 0
    assert read_saved_model(target).bundle.read_tensor("x").tolist() == [0, 1, 2, 3]


def refusal(model, target, **options):
    before = snapshot(model.directory.parent)
    with pytest.raises(InputOutputError) as caught:
        write_saved_model(model, target, **options)
    assert snapshot(model.directory.parent) == before
    return str(caught.value)


def test_existing_target(model, make_model):
    target = make_model("other")
    assert refusal(model, target) == f"'{target}' exists already. Give --overwrite to replace it"


@pytest.mark.parametrize("overwrite", [False, True])
def test_targets_in_and_around_the_source(model, overwrite, tmp_path):
    root = model.directory
    assert refusal(model, root, overwrite=overwrite) == (
        f"'{root}' is the model being read. Write to another directory"
    )
    assert refusal(model, root / "assets", overwrite=overwrite) == (
        f"'{root}/assets' lies inside the model being read, '{root}'. Write beside it"
    )
    assert refusal(model, root.parent, overwrite=overwrite) == (
        f"'{root.parent}' holds the model being read, '{root}'. Write elsewhere"
    )
    (tmp_path / "alias").symlink_to(root)
    assert refusal(model, tmp_path / "alias", overwrite=overwrite) == (
        f"'{tmp_path}/alias' is the model being read. Write to another directory"
    )


def test_overwrite(model, make_model):
    target = make_model("other", old=np.arange(2))
    write_saved_model(model, target, overwrite=True)
    assert list(read_saved_model(target).bundle.entries) == ["x"]
    assert sorted(path.name for path in target.parent.iterdir()) == ["model", "other"]


def test_overwrite_where_nothing_is(model, target):
    write_saved_model(model, target, overwrite=True)
    assert read_saved_model(target).proto == model.proto


def test_overwrite_through_a_link_keeps_the_link(model, make_model, tmp_path):
    real = make_model("other", old=np.arange(2))
    (tmp_path / "alias").symlink_to(real)
    write_saved_model(model, tmp_path / "alias", overwrite=True)
    assert (tmp_path / "alias").is_symlink()
    assert list(read_saved_model(real).bundle.entries) == ["x"]


def test_overwrite_replaces_only_models(model, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter").write_text("dear")
    assert refusal(model, tmp_path / "home", overwrite=True) == (
        f"'{tmp_path}/home' exists and is not a SavedModel. --overwrite replaces only a SavedModel"
    )
    assert refusal(model, tmp_path / "home" / "letter", overwrite=True) == (
        f"'{tmp_path}/home/letter' exists and is not a directory. Remove it first"
    )


def test_a_target_that_appears_meanwhile(model, target):
    def appear(*_):
        target.mkdir(parents=True, exist_ok=True)

    with pytest.raises(InputOutputError) as caught:
        write_saved_model(model, target, progress=appear)
    assert str(caught.value) == f"'{target}' appeared during the write. Give --overwrite to replace it"
    assert [path.name for path in target.parent.iterdir()] == ["target"]


def test_extra_files_stay_inside(model, target):
    with pytest.raises(InternalError) as caught:
        write_saved_model(model, target, extra_files={"../x": b""})
    assert str(caught.value) == "the extra file '../x' would lie outside the model"


@pytest.mark.parametrize("weights", ["copy", "link"])
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("call", ["fsync", "rename", "mkdir", "chmod"])
def test_a_failure_at_any_step_leaves_everything_as_it_was(
    model, make_model, tmp_path, monkeypatch, weights, overwrite, error, call
):
    """Lets the first, second, ... call of one kind fail until the write goes through."""
    target = make_model("other") if overwrite else tmp_path / "new"
    before = snapshot(tmp_path)
    owner = os if call == "fsync" else Path
    original = getattr(owner, call)
    for fatal in range(100):
        count = -1

        def fail(*args, fatal=fatal, **options):
            nonlocal count
            count += 1
            if count == fatal:
                raise error
            return original(*args, **options)

        monkeypatch.setattr(owner, call, fail)
        try:
            options = {"put": {"y": np.arange(3)}, "weights": weights, "overwrite": overwrite}
            write_saved_model(model, target, **options)
        except (InputOutputError, KeyboardInterrupt) as caught:
            monkeypatch.undo()
            after_swap = call == "fsync" and read_ok(target) == ["x", "y"]
            if after_swap:  # the very last sync, of the parent folder: the model is in place already
                return
            assert snapshot(tmp_path) == before
            if isinstance(caught, InputOutputError):
                assert "No space left on device. Free some space or write elsewhere" in str(caught)  # noqa: PT017
        else:
            monkeypatch.undo()
            break
    assert fatal > 0 or (call == "chmod" and weights == "copy")
    assert read_ok(target) == ["x", "y"]


def read_ok(target):
    return list(read_saved_model(target).bundle.entries) if target.exists() else None


def test_the_proto_is_written_last(model, target, monkeypatch):
    seen = []
    original = container_write.write_file

    def watch(path, data):
        if path.name == "saved_model.pb":
            seen.extend(sorted(str(p.relative_to(path.parent)) for p in path.parent.rglob("*") if p.is_file()))
        original(path, data)

    monkeypatch.setattr(container_write, "write_file", watch)
    write_saved_model(model, target)
    assert seen == [
        "assets/words.txt",
        "keras_metadata.pb",
        "variables/variables.data-00000-of-00001",
        "variables/variables.index",
    ]


KILLED = """
import os, signal, sys
from pathlib import Path
from graphfreeze.savedmodel import files, read_saved_model, write_saved_model
files._clone = lambda *_: False
files._STEP = 1 << 16
die = lambda done, total: os.kill(os.getpid(), signal.SIGKILL) if done > total // 2 else None
write_saved_model(read_saved_model(Path(sys.argv[1])), Path(sys.argv[2]), progress=die, overwrite=True)
"""


@pytest.mark.parametrize("overwrite", [False, True])
def test_killed_while_copying(make_model, tmp_path, overwrite):
    source = make_model(x=np.zeros(1 << 20))
    target = make_model("other") if overwrite else tmp_path / "new"
    before = {path: digest(read_saved_model(path)) for path in (source, target) if path.exists()}
    done = subprocess.run([sys.executable, "-c", KILLED, str(source), str(target)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert {path: digest(read_saved_model(path)) for path in (source, target) if path.exists()} == before
    left = [path for path in tmp_path.iterdir() if path.name not in ("model", "other")]
    assert all(path.name.startswith(".") for path in left)
    assert not [path for folder in left for path in folder.rglob("saved_model.pb*")]


def test_a_folder_that_cannot_be_written(model, tmp_path):
    (tmp_path / "file").write_text("x")
    target = tmp_path / "file" / "out"
    with pytest.raises(InputOutputError, match=r"cannot create '.*/file/out': .* A file stands where a folder"):
        write_saved_model(model, target)
