"""Chromium without a screen, spoken to in its own protocol through two pipes: no driver, no port, no package."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--remote-debugging-pipe",
    "--no-first-run",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--force-device-scale-factor=1",
)
PATIENCE = 60.0


def find_browser() -> str | None:
    """The browser of this machine, if there is one."""
    return next((found for found in map(shutil.which, NAMES) if found), None)


class Browser:
    """One process of the browser."""

    def __init__(self, program: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True)
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        # The protocol is spoken on the descriptors 3 and 4, from copies that are neither.
        copies = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (theirs_in, theirs_out)]
        silent = os.open(os.devnull, os.O_WRONLY)
        self._process = os.posix_spawn(
            program,
            [program, *OPTIONS, f"--user-data-dir={self._folder.name}", "about:blank"],
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, silent, 1),
                (os.POSIX_SPAWN_DUP2, silent, 2),
                (os.POSIX_SPAWN_DUP2, copies[0], 3),
                (os.POSIX_SPAWN_DUP2, copies[1], 4),
            ],
        )
        for fd in (theirs_in, theirs_out, silent, *copies):
            os.close(fd)
        self._in, self._out = ours_in, ours_out
        self._buffer, self._last = b"", 0
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """The answer to one command."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        os.write(self._out, json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        end = time.monotonic() + PATIENCE
        while True:
            answer = self._read(end)
            if answer.get("id") == self._last:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def _read(self, end: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(end - time.monotonic(), 0))
            chunk = os.read(self._in, 1 << 20) if ready else b""
            if not chunk:
                raise RuntimeError("the browser does not answer")
            self._buffer += chunk
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def close(self) -> None:
        with contextlib.suppress(RuntimeError, OSError):
            self.call("Browser.close")
        end = time.monotonic() + 10
        while os.waitpid(self._process, os.WNOHANG) == (0, 0):
            if time.monotonic() > end:
                os.kill(self._process, signal.SIGKILL)
            time.sleep(0.05)
        os.close(self._in)
        os.close(self._out)
        self._folder.cleanup()

    @contextlib.contextmanager
    def page(
        self, file: Path, width: int = 1280, height: int = 800, *, touch: bool = False, dark: bool = False
    ) -> Iterator[Page]:
        """A page that shows a file."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        page.call("Page.enable")
        page.call("Runtime.enable")
        page.call("Network.enable")
        page.call("Log.enable")
        page.call("Performance.enable", timeDomain="threadTicks")
        page.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=touch)
        if touch:
            page.call("Emulation.setTouchEmulationEnabled", enabled=True)
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        page.call("Emulation.setEmulatedMedia", features=features)
        self.events.clear()
        page.call("Page.navigate", url=file.resolve().as_uri())
        page.wait("window.explorer && explorer.frames > 0")
        try:
            yield page
        finally:
            self.call("Target.closeTarget", targetId=target)


class Page:
    """What a hand and an eye do with a page."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **parameters)

    def run(self, script: str) -> Any:
        """The value of an expression, a promise awaited."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script[:200]}: {answer['exceptionDetails']['exception'].get('description')}")
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        end = time.monotonic() + PATIENCE
        while not self.run(f"!!({condition})"):
            if time.monotonic() > end:
                raise TimeoutError(f"never came: {condition}")
            time.sleep(0.02)

    def rest(self) -> None:
        """Until no motion is under way and everything has been drawn."""
        self.wait("!explorer.journey && explorer.wanted === '' && explorer.stride === 1")
        time.sleep(0.2)
        self.wait("!explorer.journey && explorer.wanted === '' && explorer.stride === 1")

    def busy_time(self) -> float:
        """Seconds that the page's own thread has spent on scripts and layout, by the clock."""
        metrics = self.call("Performance.getMetrics")["metrics"]
        return next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration")

    def box(self, selector: str) -> tuple[float, float, float, float]:
        script = f"(r => [r.left, r.top, r.width, r.height])(document.querySelector({json.dumps(selector)})"
        return tuple(self.run(f"{script}.getBoundingClientRect())"))

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **{"button": "none"} | more)

    def hover(self, x: float, y: float) -> None:
        self.mouse("mouseMoved", x, y)

    def click(self, x: float, y: float, count: int = 1) -> None:
        for i in range(1, count + 1):
            self.mouse("mousePressed", x, y, button="left", clickCount=i)
            self.mouse("mouseReleased", x, y, button="left", clickCount=i)

    def press(self, selector: str, count: int = 1) -> None:
        """Click in the middle of an element."""
        self.run(f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'nearest'}})")
        left, top, width, height = self.box(selector)
        self.click(left + width / 2, top + height / 2, count)

    def drag(self, *places: tuple[float, float]) -> None:
        """Along the places, with the button held."""
        self.mouse("mousePressed", *places[0], button="left", clickCount=1)
        for place in places[1:]:
            self.mouse("mouseMoved", *place, button="left", buttons=1)
        self.mouse("mouseReleased", *places[-1], button="left", clickCount=1)

    def wheel(self, x: float, y: float, delta: float) -> None:
        self.mouse("mouseWheel", x, y, deltaX=0, deltaY=delta)

    def touch(self, kind: str, *places: tuple[float, float]) -> None:
        points = [{"x": x, "y": y, "id": i} for i, (x, y) in enumerate(places)]
        self.call("Input.dispatchTouchEvent", type=kind, touchPoints=points)

    def key(self, key: str) -> None:
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def screenshot(self, path: Path) -> None:
        data = self.call("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))

    def troubles(self) -> list[Any]:
        """Exceptions, errors on the console, and requests of anything but the file itself and what is inside of it."""
        self.run("0")
        found: list[Any] = []
        for event in self._browser.events:
            kind, more = event.get("method"), event.get("params", {})
            if kind == "Runtime.exceptionThrown":
                found.append(more["exceptionDetails"])
            elif kind == "Log.entryAdded" and more["entry"]["level"] == "error":
                found.append(more["entry"])
            elif kind == "Network.requestWillBeSent":
                url = more["request"]["url"]
                if not url.startswith(("data:", "blob:")) and more.get("type") != "Document":
                    found.append(url)
        return found
