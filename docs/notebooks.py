"""The tutorials are notebooks, kept in docs/tutorials together with what they showed when they were last run.

    python docs/notebooks.py             # run those whose code has changed since
    python docs/notebooks.py --all
    python docs/notebooks.py first_vae links

The pages are built from what is kept, so that building them takes no longer. The tests run every notebook at a small
size: the metadata of a notebook has the values under "small", for names of the cell that is tagged "parameters". They
also fail where the code is no longer the one that was run.

As an extension of Sphinx this file puts a link to the notebook on the page that is made of it.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "tutorials"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
COLOURS = 128
LINK = '<p class="notebook"><a href="{name}" download>Download this notebook</a></p>'


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def fingerprint(notebook: dict[str, Any]) -> str:
    """Of the code, whatever the text around it."""
    code = "\n\n".join("".join(cell["source"]) for cell in code_cells(notebook))
    return hashlib.sha256(code.encode()).hexdigest()[:16]


def is_current(notebook: dict[str, Any]) -> bool:
    """Whether what is kept is what the code gave."""
    return notebook["metadata"].get("executed") == fingerprint(notebook)


def execute(path: Path) -> None:
    """Run a notebook from its first cell, in a process of its own, and keep what it shows."""
    import nbformat
    from nbclient import NotebookClient

    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
    os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found"  # tqdm, of a package that nobody needs here
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, timeout=None, record_timing=False, resources={"metadata": {"path": str(path.parent)}}
    )
    client.extra_arguments = ["--InlineBackend.figure_formats={'retina'}"]
    client.execute()
    make_lean(notebook)
    notebook.metadata["language_info"] = {"name": "python"}
    notebook.metadata["executed"] = fingerprint(notebook)
    nbformat.write(notebook, path)


def make_lean(notebook: dict[str, Any]) -> None:
    """Pictures with a palette are a third as large, and look the same."""
    from PIL import Image

    for cell in code_cells(notebook):
        for data in (output["data"] for output in cell["outputs"] if "image/png" in output.get("data", {})):
            picture = Image.open(io.BytesIO(base64.b64decode(data["image/png"])))
            if picture.mode != "P":
                white = Image.new("RGB", picture.size, "white")
                white.paste(picture, mask=picture.convert("RGBA").getchannel("A"))
                target = io.BytesIO()
                white.quantize(COLOURS, dither=Image.Dither.NONE).save(target, "png", optimize=True)
                data["image/png"] = base64.b64encode(target.getvalue()).decode()


def setup(app: Any) -> dict[str, Any]:
    """The extension."""

    def link(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
        source = Path(app.env.doc2path(page)) if doctree is not None else Path()
        if source.suffix == ".ipynb":
            context["body"] = LINK.format(name=source.name) + context["body"]

    def copy(app: Any, error: Exception | None) -> None:
        if error is None and app.builder.format == "html":
            for path in NOTEBOOKS:
                shutil.copy(path, Path(app.outdir, "tutorials"))

    app.connect("html-page-context", link)
    app.connect("build-finished", copy)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def main() -> None:
    names = [path.stem for path in NOTEBOOKS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(names)}; by default those whose code has changed")
    parser.add_argument("--all", action="store_true", help="run all of them")
    args = parser.parse_args()
    if unknown := set(args.names) - set(names):
        parser.error(f"no notebook has the name {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    for path in NOTEBOOKS:
        if args.all or path.stem in args.names or not (args.names or is_current(json.loads(path.read_text("utf-8")))):
            print(path.stem, flush=True)
            execute(path)


if __name__ == "__main__":
    main()
