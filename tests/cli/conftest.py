"""The stand-in takes the place of ``graphfreeze.api``."""

import sys

import pytest

import graphfreeze
from tests.cli.standing_in import FakeApi


@pytest.fixture
def api(monkeypatch):
    fake = FakeApi()
    monkeypatch.setitem(sys.modules, "graphfreeze.api", fake)
    monkeypatch.setattr(graphfreeze, "api", fake, raising=False)
    return fake
