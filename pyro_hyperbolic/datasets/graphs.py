"""Loading graphs: the networks of the paper, edge lists, and graphs that need no file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from pyro_hyperbolic.datasets.download import fetch
from pyro_hyperbolic.datasets.edgelist import read_edge_list
from pyro_hyperbolic.datasets.paths import ENVIRONMENT_VARIABLE, checked_path, data_root
from pyro_hyperbolic.datasets.simple_graph import Graph, simple_graph


@dataclass(frozen=True)
class _Network:
    """One of the paper's networks: its file, its size, and where to get it."""

    file: str
    num_nodes: int
    num_edges: int
    page: str
    url: str | None = None
    sha256: str = ""


# The edge lists of Sala et al. (2018), which have the sizes that the paper gives. The address names
# a commit, so that its content stays the same. No such address is known to us for the tree.
_COLLECTION = "https://github.com/HazyResearch/hyperbolics (folder data/edges)"
_COMMIT = "2aa7baea0f9f5753666970f25f8e4b6e655dbb9b"
_RAW = f"https://raw.githubusercontent.com/HazyResearch/hyperbolics/{_COMMIT}/data/edges"

_NETWORKS = {
    "phylogenetic": _Network("phylo_tree.edges", 344, 343, _COLLECTION),
    "csphd": _Network(
        "ca-CSphd.edges",
        1025,
        1043,
        _COLLECTION,
        f"{_RAW}/ca-CSphd.edges",
        "26d761c07db457623c1e0be9644f62f188d376335a317b69b4de7f20e7c202ca",
    ),
    "diseases": _Network(
        "bio-diseasome.edges",
        516,
        1188,
        _COLLECTION,
        f"{_RAW}/bio-diseasome.edges",
        "c6f7e0846e0547b5eec989e0f8dff58f66acc4dd86c0af3e0c644981f6a4d80c",
    ),
}
_BUILT_IN = ("karate", "balanced_tree")
_MOST_NODES = 100_000  # of a tree, which networkx keeps in memory


def graph(
    name: str | os.PathLike[str],
    root: str | os.PathLike[str] | None = None,
    *,
    download: bool = True,
) -> Graph:
    """Load or build a graph.

    ==============================  =======================================  =====  =====
    name                            graph                                    nodes  edges
    ==============================  =======================================  =====  =====
    ``"phylogenetic"``              a phylogenetic tree (Hofbauer et al.)      344    343
    ``"csphd"``                     PhD advisors (de Nooy et al.)             1025   1043
    ``"diseases"``                  human disease network (Goh et al.)         516   1188
    ``"karate"``                    Zachary's karate club                       34     78
    ``"balanced_tree"``             the same as ``"balanced_tree:2:6"``        127    126
    ``"balanced_tree:b:h"``         each node has b children, height h
    a path                          any edge list
    ==============================  =======================================  =====  =====

    The first three are the paper's (its appendix exchanges the sizes of the first two). Their
    files, ``phylo_tree.edges``, ``ca-CSphd.edges`` and ``bio-diseasome.edges``, are searched in
    ``root/graphs`` and ``root``, and then downloaded where a lasting address is known. A path is
    taken as it is, and then below the same two folders.

    An edge list has two non-negative integers per line; see
    :func:`pyro_hyperbolic.datasets.edgelist.read_edge_list`. Directions and weights are ignored,
    self-loops and repeated edges dropped and counted. A tree may have up to 100,000 nodes.

    Args:
        name: a name from the table, or a path.
        root: folder of the data. Default: the environment variable ``PYRO_HYPERBOLIC_DATA``, then
            a per-user cache folder.
        download: whether a file that is not there may be downloaded.

    Raises:
        FileNotFoundError: with the places that were searched.
        ValueError: if a file is malformed, or not the one that the paper uses, or if a tree is too large.

    References:
        F. Sala, C. De Sa, A. Gu, C. Ré: Representation tradeoffs for hyperbolic embeddings.
        ICML 2018.

    Example:
        >>> club = graph("karate")
        >>> club.num_nodes, club.num_edges, club.adjacency().sum().item()
        (34, 78, 156.0)
    """
    if isinstance(name, str):
        kind, *parameters = name.split(":")
        if name in _NETWORKS:
            return _paper_network(name, data_root(root), download=download)
        if kind in _BUILT_IN:
            return _built_in(name, kind, parameters)
    own, folder = checked_path("name", name, "karate").expanduser(), data_root(root)
    places = [own, folder / "graphs" / name, folder / name]
    path = _first_file(places)
    if path is None:
        known = ", ".join((*_NETWORKS, *_BUILT_IN))
        raise FileNotFoundError(
            f"name: {os.fspath(name)!r} is neither a known graph ({known}) nor an edge list. " + _searched(places)
        )
    return simple_graph(os.fspath(name), read_edge_list(path), origin=str(path))


def _paper_network(name: str, root: Path, *, download: bool) -> Graph:
    network = _NETWORKS[name]
    places = [root / "graphs" / network.file, root / network.file]
    path = _first_file(places)
    if path is None:
        path, obstacle = places[0], "download=False forbids fetching it"
        if network.url is None:
            obstacle = "no lasting address to download it from is known"
        elif download:
            try:
                fetch(network.url, path, sha256=network.sha256)
                obstacle = ""
            except OSError as error:
                obstacle = f"the download failed ({error})"
        if obstacle:
            raise FileNotFoundError(
                f"the file {network.file} of the graph {name!r} is missing, and {obstacle}. Get "
                f"it from {network.page} and put it into {path.parent}. {_searched(places)}"
            )
    result = simple_graph(name, read_edge_list(path), origin=str(path))
    if (result.num_nodes, result.num_edges) != (network.num_nodes, network.num_edges):
        raise ValueError(
            f"{path}: expected the graph {name!r} of the paper with {network.num_nodes} nodes and "
            f"{network.num_edges} edges, found {result.num_nodes} and {result.num_edges}. The "
            "paper's graph is connected, and other collections hold further components; "
            f"take the file of {network.page}, or load this one by its path"
        )
    return result


def _built_in(name: str, kind: str, parameters: list[str]) -> Graph:
    import networkx

    if kind == "karate" and not parameters:
        made = networkx.karate_club_graph()
    else:
        branching, height = parameters if len(parameters) == 2 else ("2", "6")
        sizes_valid = all(size.isdecimal() and int(size) > 0 for size in (branching, height))
        if kind != "balanced_tree" or len(parameters) not in (0, 2) or not sizes_valid:
            raise ValueError(
                f"name must be 'karate', 'balanced_tree' or 'balanced_tree:BRANCHING:HEIGHT' with "
                f"positive integers, got {name!r}"
            )
        _check_size(name, int(branching), int(height))
        made = networkx.balanced_tree(int(branching), int(height))
    return simple_graph(name, torch.tensor(list(made.edges())), origin=name)


def _check_size(name: str, branching: int, height: int) -> None:
    nodes = level = 1
    for _ in range(height):
        level *= branching
        nodes += level
        if nodes > _MOST_NODES:
            raise ValueError(
                f"name: {name!r} is a tree of more than {_MOST_NODES:,} nodes; take a smaller height or branching"
            )


def _first_file(places: list[Path]) -> Path | None:
    return next((place for place in places if place.is_file()), None)


def _searched(places: list[Path]) -> str:
    return (
        f"Searched: {', '.join(map(str, places))}. The environment variable "
        f"{ENVIRONMENT_VARIABLE} names the folder that data is searched in when root is not given."
    )
