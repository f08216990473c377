"""What the tests of this layer share: models that others made, and small bundles and models made without TensorFlow."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from graphfreeze.savedmodel import Bundle, protos, read_bundle, write_bundle
from graphfreeze.savedmodel.table import build_table

REAL_MODELS = Path(__file__).resolve().parents[2].parent / "shared" / "models"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Gives a test that asks for ``real_model`` every model there is."""
    if "real_model" in metafunc.fixturenames:
        found = sorted(p for p in REAL_MODELS.iterdir() if p.is_dir()) if REAL_MODELS.is_dir() else []
        metafunc.parametrize("real_model", found or [None], ids=[p.name for p in found] or ["missing"], indirect=True)


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files need not outlive a power cut here, and waiting for the disk takes most of the time."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def real_model(request: pytest.FixtureRequest) -> Path:
    if request.param is None:
        if os.environ.get("CI"):
            pytest.fail(f"the models of others are missing: '{REAL_MODELS}'")
        pytest.skip(f"the models of others are missing: '{REAL_MODELS}'")
    return request.param


@pytest.fixture
def make_bundle(tmp_path: Path) -> Callable[..., Bundle]:
    """Writes a bundle from arrays and opens it."""

    def make(name: str = "variables", **tensors: object) -> Bundle:
        folder = tmp_path / name
        folder.mkdir()
        write_bundle(folder / "variables", source=None, put={k: np.asarray(v) for k, v in tensors.items()})
        return read_bundle(folder / "variables")

    return make


@pytest.fixture
def raw_bundle(tmp_path: Path) -> Callable[..., Path]:
    """Writes an index with any entries, right or wrong, over one shard of zeros; returns the prefix."""

    def make(entries: Mapping[bytes, object], shard_size: int = 64, **header: object) -> Path:
        prefix = tmp_path / "bundle"
        rows = [(b"", protos.BundleHeaderProto(**({"num_shards": 1} | header)).SerializeToString())]
        rows += [
            (key, entry if isinstance(entry, bytes) else entry.SerializeToString())
            for key, entry in sorted(entries.items())
        ]
        prefix.with_name("bundle.index").write_bytes(build_table(rows))
        prefix.with_name("bundle.data-00000-of-00001").write_bytes(bytes(shard_size))
        return prefix

    return make


@pytest.fixture
def make_model(tmp_path: Path) -> Callable[..., Path]:
    """Writes a directory that has all the parts of a SavedModel, but an empty graph."""

    def make(name: str = "model", **tensors: object) -> Path:
        root = tmp_path / name
        (root / "variables").mkdir(parents=True)
        proto = protos.SavedModel(saved_model_schema_version=1)
        proto.meta_graphs.add().meta_info_def.tags.append("serve")
        (root / "saved_model.pb").write_bytes(proto.SerializeToString())
        put = {key: np.asarray(value) for key, value in (tensors or {"x": np.arange(4.0)}).items()}
        write_bundle(root / "variables" / "variables", source=None, put=put)
        (root / "assets").mkdir()
        (root / "assets" / "words.txt").write_text("one\ntwo\n")
        (root / "assets.extra").mkdir()
        (root / "fingerprint.pb").write_bytes(b"old")
        (root / "keras_metadata.pb").write_bytes(b"metadata")
        return root

    return make
