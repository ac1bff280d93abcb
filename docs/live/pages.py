"""The live pages of the documentation: made while it is built, so that none is older than the package."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import tree_embedding

from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.plotting import Explorer

HERE = Path(__file__).resolve().parent


def write(folder: Path) -> None:
    """The tree of the front page, and what docs/live/make.py has kept of the examples."""
    ball = PoincareBall(1.0)
    points, parents = tree_embedding.embed_tree(3, 5, tree_embedding.shortest_edge(3, ball), ball)
    tree_embedding.explore_tree(points, parents, ball, folder / "tree.html")
    for path in sorted(HERE.glob("*.json.gz")):
        content = json.loads(gzip.decompress(path.read_bytes()))
        Explorer(content).save(folder / f"{path.name.removesuffix('.json.gz')}.html")
