from __future__ import annotations

import hashlib
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from pyro_hyperbolic.datasets.download import fetch, reachable

CONTENT = b"0 1\n1 2\n"
DIGEST = hashlib.sha256(CONTENT).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """/good is whole, /short breaks off, everything else is not found."""

    def _answer(self, body: bytes) -> None:
        known = self.path in ("/good", "/short")
        self.send_response(200 if known else 404)
        extra = 10 if self.path == "/short" else 0
        self.send_header("Content-Length", str(len(CONTENT) + extra if known else 0))
        self.end_headers()
        self.wfile.write(body if known else b"")

    def do_HEAD(self) -> None:
        self._answer(b"")

    def do_GET(self) -> None:
        self._answer(CONTENT)

    def log_message(self, *args: object) -> None:
        """Keep the output of the tests clean."""


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("no_proxy", "*")
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_any_answer_counts_as_reachable(address: str) -> None:
    assert reachable(f"{address}/good")
    assert reachable(f"{address}/absent")


def test_closed_port_is_out_of_reach(address: str) -> None:
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        port = server.server_port
    assert not reachable(f"http://127.0.0.1:{port}/good")


def test_probe_gives_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def stuck(*args: object, **keywords: object) -> None:
        released.wait(30)  # like a name lookup, which no timeout bounds
        raise OSError

    monkeypatch.setattr(urllib.request, "urlopen", stuck)
    start = time.perf_counter()
    assert not reachable("https://example.org/", seconds=0.1)
    assert time.perf_counter() - start < 5
    released.set()


def test_fetch(address: str, tmp_path: Path) -> None:
    target = tmp_path / "new" / "file"
    fetch(f"{address}/good", target, sha256=DIGEST)
    assert target.read_bytes() == CONTENT
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize(
    ("page", "digest", "message"),
    [
        ("/absent", DIGEST, "404"),
        ("/short", DIGEST, "broke off"),
        ("/good", "0" * 64, f"8 bytes with SHA-256 {DIGEST}, expected 0000"),
    ],
)
def test_failed_fetch_leaves_nothing(address: str, tmp_path: Path, page: str, digest: str, message: str) -> None:
    with pytest.raises(OSError, match=message):
        fetch(address + page, tmp_path / "file", sha256=digest)
    assert list(tmp_path.iterdir()) == []


def test_fetch_from_a_dead_server(address: str, tmp_path: Path) -> None:
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        port = server.server_port
    with pytest.raises(OSError, match="cannot be reached"):
        fetch(f"http://127.0.0.1:{port}/good", tmp_path / "file", sha256=DIGEST)
