"""No test of this folder reaches the network, and none depends on the user's own data."""

from __future__ import annotations

import gzip
import importlib
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

mnist_module = importlib.import_module("pyro_hyperbolic.datasets.mnist")
graphs_module = importlib.import_module("pyro_hyperbolic.datasets.graphs")


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(url: str, target: Path, *, sha256: str) -> None:
        raise OSError(f"{url} is out of reach in the tests")

    monkeypatch.setattr(mnist_module, "reachable", lambda url: False)
    monkeypatch.setattr(graphs_module, "fetch", refuse)
    monkeypatch.setattr(mnist_module, "_notified", False)


@pytest.fixture
def idx() -> Callable[..., bytes]:
    """Bytes of an IDX file, made here from the description of the format alone."""

    def make(*shape: int, payload: bytes, magic: int | None = None, gz: bool = False) -> bytes:
        header = 0x800 + len(shape) if magic is None else magic
        content = struct.pack(f">{1 + len(shape)}I", header, *shape) + payload
        return gzip.compress(content) if gz else content

    return make
