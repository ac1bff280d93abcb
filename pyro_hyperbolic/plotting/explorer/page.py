"""One HTML file from a template, its style, its script and its data."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

SCRIPTS = (
    "isometry.js",
    "views.js",
    "raster.js",
    "data.js",
    "scene.js",
    "drawing.js",
    "app.js",
    "controls.js",
    "panel.js",
    "main.js",
)


class Explorer:
    """A page made by :func:`~pyro_hyperbolic.plotting.explore`. In a notebook it shows itself.

    Args:
        content: what the script of the page reads, ready for JSON.
        height: of the frame in a notebook, in pixels.
    """

    def __init__(self, content: dict[str, Any], height: int = 640) -> None:
        self._content = content
        self.height = height
        self.path: Path | None = None

    def __repr__(self) -> str:
        where = "" if self.path is None else f", in {str(self.path)!r}"
        return f"Explorer({self._content['title']!r}{where})"

    @property
    def html(self) -> str:
        """The whole page. It loads nothing, and runs no script but its own."""
        web = resources.files(__package__) / "web"
        script = "\n".join((web / name).read_text("utf-8") for name in SCRIPTS)
        # A block of its own, so that no name meets one of the browser.
        script = f'"use strict";\n{{\n{script}}}\n'
        style = (web / "style.css").read_text("utf-8")
        # JSON inside a script element: no character of the data can end the element.
        data = json.dumps(self._content, allow_nan=False)
        for character in "<>&":
            data = data.replace(character, f"\\u{ord(character):04x}")
        return Template((web / "page.html").read_text("utf-8")).substitute(
            title=html.escape(self._content["title"]),
            style=style,
            style_hash=_hash(style),
            script=script,
            script_hash=_hash(script),
            data=data,
        )

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page; the file appears under its name when it is complete.

        Args:
            path: file name that ends in ``.html``; missing folders are made.

        Returns:
            The path.
        """
        path = Path(path)
        if path.suffix.lower() not in (".html", ".htm"):
            raise ValueError(f"path must end in .html, got {str(path)!r}; for example latent.html.")
        path.parent.mkdir(parents=True, exist_ok=True)
        # In the same folder, so that the renaming is one step of the file system.
        partial = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
        try:
            partial.write_text(self.html, "utf-8")
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
        self.path = path
        return path

    def _repr_html_(self) -> str:
        frame = f'style="width: 100%; height: {self.height}px; border: 0" sandbox="allow-scripts allow-downloads"'
        return f'<iframe {frame} srcdoc="{html.escape(self.html)}"></iframe>'


def _hash(text: str) -> str:
    """As a content security policy names an element."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
