"""Downloads that fail fast and never leave half a file behind."""

from __future__ import annotations

import hashlib
import http.client
import os
import tempfile
import threading
import urllib.error
import urllib.request
from pathlib import Path

#: Seconds within which a server must answer before it counts as out of reach.
PROBE_SECONDS = 3.0
#: Seconds without a byte after which a transfer that has begun is given up.
STALL_SECONDS = 20.0


def reachable(url: str, *, seconds: float = PROBE_SECONDS) -> bool:
    """Whether the server behind ``url`` answers, with whatever status, within ``seconds``.

    The request goes through :mod:`urllib`, so that proxy settings count.
    """
    answers: list[str] = []

    def probe() -> None:
        request = urllib.request.Request(url, method="HEAD")
        try:
            with urllib.request.urlopen(request, timeout=seconds):
                pass
        except urllib.error.HTTPError as error:
            error.close()  # "forbidden" and "not found" are answers too
        except (OSError, http.client.HTTPException):
            return
        answers.append(url)

    # A socket timeout does not bound the name lookup, which can take most of a minute without a
    # network; a daemon thread that nobody waits for any longer does.
    thread = threading.Thread(target=probe, daemon=True)
    thread.start()
    thread.join(seconds)
    return bool(answers)


def fetch(url: str, target: Path, *, sha256: str) -> None:
    """Download ``url`` to ``target``: either the whole, verified file appears there or nothing.

    Args:
        url: what to download; small enough for memory.
        target: the file to make; missing folders are made as well.
        sha256: hexadecimal digest that the content must have.

    Raises:
        OSError: if the server is out of reach, refuses, breaks off, or sends other content.
    """
    if not reachable(url):
        raise OSError(f"{url} cannot be reached")
    try:
        with urllib.request.urlopen(url, timeout=STALL_SECONDS) as response:
            content = response.read()
    except http.client.HTTPException as error:
        raise OSError(f"{url} broke off: {error!r}") from error
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise OSError(f"{url} sent {len(content)} bytes with SHA-256 {found}, expected {sha256}")
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}-")
    partial = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
