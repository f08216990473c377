"""A model that shares its files with another."""

import numpy as np

from graphfreeze.savedmodel import read_saved_model, write_shadow
from tests.conftest import MODELS


def test_everything_but_what_is_given_is_linked(tmp_path):
    model = read_saved_model(MODELS / "strings")
    write_shadow(model, tmp_path / "same")
    assert (tmp_path / "same" / "variables").is_symlink()
    assert (tmp_path / "same" / "assets").is_symlink()
    assert not (tmp_path / "same" / "fingerprint.pb").exists()
    assert read_saved_model(tmp_path / "same").proto == model.proto


def test_other_weights(tmp_path):
    model = read_saved_model(MODELS / "mlp")
    key = next(k for k in model.bundle.entries if k.endswith("VARIABLE_VALUE"))
    value = np.full(model.bundle.shape(key), 7, np.float32)
    write_shadow(model, tmp_path / "other", put={key: value})
    found = read_saved_model(tmp_path / "other")
    assert (found.bundle.read_tensor(key) == value).all()
    assert set(found.bundle.entries) == set(model.bundle.entries)
    assert not (found.directory / "variables").is_symlink()
