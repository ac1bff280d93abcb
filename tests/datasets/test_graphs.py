from __future__ import annotations

import importlib
import os
from pathlib import Path

import networkx
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyro_hyperbolic.datasets import Graph, graph

graphs_module = importlib.import_module("pyro_hyperbolic.datasets.graphs")


def write(folder: Path, text: str, name: str = "some.edges") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def check_simple(result: Graph) -> None:
    assert result.edges.dtype == torch.int64
    assert result.edges.shape == (result.num_edges, 2)
    pairs = [tuple(pair) for pair in result.edges.tolist()]
    assert pairs == sorted(set(pairs))
    assert all(0 <= i < j < result.num_nodes for i, j in pairs)
    assert len(result.node_ids) == result.num_nodes


def test_karate() -> None:
    club = graph("karate")
    check_simple(club)
    assert (club.num_nodes, club.num_edges) == (34, 78)
    assert networkx.utils.graphs_equal(
        networkx.Graph(club.to_networkx().edges), networkx.Graph(networkx.karate_club_graph().edges)
    )


@pytest.mark.parametrize(
    ("name", "nodes"), [("balanced_tree", 127), ("balanced_tree:3:2", 13), ("balanced_tree:1:4", 5)]
)
def test_balanced_tree(name: str, nodes: int) -> None:
    tree = graph(name)
    check_simple(tree)
    assert tree.num_nodes == nodes
    assert networkx.is_tree(tree.to_networkx())


@pytest.mark.parametrize(
    "name",
    ["balanced_tree:2", "balanced_tree:2:0", "balanced_tree:a:b", "balanced_tree:", "karate:1"],
)
def test_built_in_with_wrong_parameters(name: str) -> None:
    with pytest.raises(ValueError, match=r"name must be 'karate'.*got"):
        graph(name)


@pytest.mark.parametrize("name", ["balanced_tree:9:9", "balanced_tree:9:999999999", "balanced_tree:1:100000"])
def test_tree_that_is_too_large(name: str) -> None:
    with pytest.raises(ValueError, match=rf"name: '{name}' is a tree of more than 100,000 nodes; take a smaller"):
        graph(name)


def test_adjacency() -> None:
    club = graph("karate")
    dense = club.adjacency()
    assert dense.dtype == torch.float32
    expected = networkx.to_numpy_array(networkx.karate_club_graph(), weight=None)
    assert torch.equal(dense, torch.as_tensor(expected, dtype=torch.float32))
    sparse = club.sparse_adjacency(torch.float64)
    assert sparse.is_coalesced()
    assert torch.equal(sparse.to_dense(), club.adjacency(torch.float64))


@pytest.mark.parametrize(
    "text",
    [
        "10 20\n20 30\n10 30\n",
        "10,20\n20, 30\n10 ,30",
        "# head\n% other\n\n10\t20 0.5\n  20   30  1e-3  \n30 10 -2\n",
        "10 20\r\n20 30\r\n10 30\r\n",
        "\ufeff10 20\n20 30\n10 30\n",
        "%%MatrixMarket matrix coordinate pattern symmetric\n40 40 3\n10 20\n20 30\n10 30\n",
    ],
)
def test_formats(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, text)
    result = graph(path)
    check_simple(result)
    assert result.name == str(path)
    assert result.node_ids.tolist() == [10, 20, 30]
    assert result.edges.tolist() == [[0, 1], [0, 2], [1, 2]]
    assert result.to_networkx().nodes[1]["id"] == 20


def test_matrix_market_by_suffix(tmp_path: Path) -> None:
    with_sizes = write(tmp_path, "3 3 2\n2 1\n3 1\n", "a.mtx")
    without = write(tmp_path, "2 1\n3 1\n", "b.mtx")
    assert graph(with_sizes).edges.tolist() == graph(without).edges.tolist() == [[0, 1], [0, 2]]
    weighted = write(tmp_path, "3 3 2\n2 1\n3 1\n", "c.edges")  # there: an edge 3-3 of weight 2
    assert graph(weighted).num_self_loops == 1


def test_truncated_matrix_market_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path, "3 3 3\n2 1\n3 1\n", "a.mtx")
    with pytest.raises(ValueError, match="announces 3 edges, found 2"):
        graph(path)


def test_self_loops_and_duplicates_are_dropped_and_counted(tmp_path: Path) -> None:
    result = graph(write(tmp_path, "0 1\n1 0\n0 1 3.0\n2 2\n4 4\n1 2\n"))
    check_simple(result)
    assert result.edges.tolist() == [[0, 1], [1, 2]]
    assert (result.num_self_loops, result.num_duplicates) == (2, 2)
    assert result.node_ids.tolist() == [0, 1, 2, 4]  # a node with a mere self-loop stays a node


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("0 1\n2\n", 2),
        ("0 1\n\n# c\n1 2 3 4\n", 4),
        ("0 1 heavy\n", 1),
        ("0 -1\n", 1),
        ("0 1\na b\n", 2),
        ("0 1.0\n", 1),
        ("0 1_000\n", 1),
        ("0 ٣\n", 1),
        ("0,,1\n", 1),
        ("0 99999999999999999999\n", 1),
        ("source,target\n0,1\n", 1),
    ],
)
def test_malformed_lines(tmp_path: Path, text: str, line: int) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ValueError, match=f"line {line}: expected") as caught:
        graph(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n"])
def test_no_edge_is_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match=r"some\.edges has no edges"):
        graph(write(tmp_path, text))


def test_nothing_but_self_loops_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"some\.edges: nothing but self-loops"):
        graph(write(tmp_path, "1 1\n2 2\n"))


def test_binary_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "some.edges"
    path.write_bytes(b"\x1f\x8b\xff\xfe")
    with pytest.raises(ValueError, match=r"some\.edges: not a text file"):
        graph(path)


@pytest.mark.parametrize("folder", ["", "graphs"])
def test_a_file_name_is_searched_below_the_root(tmp_path: Path, folder: str) -> None:
    write(tmp_path / folder, "0 1\n", "mine.edges")
    assert graph("mine.edges", root=tmp_path).num_edges == 1


def test_missing_file_says_where_was_searched(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="karate, balanced_tree") as caught:
        graph("mine.edges", root=tmp_path)
    for part in ("mine.edges", str(tmp_path / "graphs" / "mine.edges"), "PYRO_HYPERBOLIC_DATA"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("name", "file", "reason"),
    [
        ("phylogenetic", "phylo_tree.edges", "no lasting address"),
        ("csphd", "ca-CSphd.edges", "the download failed.*out of reach"),
        ("diseases", "bio-diseasome.edges", "the download failed.*out of reach"),
    ],
)
def test_missing_network_of_the_paper(tmp_path: Path, name: str, file: str, reason: str) -> None:
    with pytest.raises(FileNotFoundError, match=reason) as caught:
        graph(name, root=tmp_path)
    for part in (str(tmp_path / "graphs" / file), str(tmp_path / file), "PYRO_HYPERBOLIC_DATA"):
        assert part in str(caught.value)


def test_download_can_be_forbidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs_module, "fetch", lambda *args, **kw: pytest.fail("downloaded"))
    with pytest.raises(FileNotFoundError, match="download=False forbids fetching it"):
        graph("csphd", root=tmp_path, download=False)


def test_download_goes_below_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    star = "".join(f"0 {leaf}\n" for leaf in range(1, 1025))
    cycle = "".join(f"{leaf} {leaf + 1}\n" for leaf in range(1, 20))

    def fetch(url: str, target: Path, *, sha256: str) -> None:
        assert url.startswith("https://")
        assert len(sha256) == 64
        write(target.parent, star + cycle, target.name)

    monkeypatch.setattr(graphs_module, "fetch", fetch)
    result = graph("csphd", root=tmp_path)
    assert (result.num_nodes, result.num_edges) == (1025, 1043)
    assert (tmp_path / "graphs" / "ca-CSphd.edges").is_file()


@pytest.mark.parametrize("folder", ["", "graphs"])
def test_size_of_a_network_of_the_paper_is_checked(tmp_path: Path, folder: str) -> None:
    write(tmp_path / folder, "0 1\n1 2\n", "phylo_tree.edges")
    with pytest.raises(ValueError, match="344 nodes and 343 edges, found 3 and 2"):
        graph("phylogenetic", root=tmp_path)


@pytest.mark.parametrize(
    ("name", "nodes", "edges", "tree"),
    [
        ("phylogenetic", 344, 343, True),
        ("csphd", 1025, 1043, False),
        ("diseases", 516, 1188, False),
    ],
)
def test_networks_of_the_paper(name: str, nodes: int, edges: int, tree: bool) -> None:
    if not os.environ.get("PYRO_HYPERBOLIC_DATA"):
        pytest.skip("needs the edge lists of the paper in PYRO_HYPERBOLIC_DATA")
    try:
        result = graph(name, download=False)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    check_simple(result)
    assert (result.num_nodes, result.num_edges) == (nodes, edges)
    assert networkx.is_connected(result.to_networkx())
    assert networkx.is_tree(result.to_networkx()) == tree


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pairs=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1))
def test_agrees_with_networkx(tmp_path: Path, pairs: list[tuple[int, int]]) -> None:
    reference = networkx.Graph(pairs)
    loops = sum(i == j for i, j in pairs)
    reference.remove_edges_from([(i, i) for i in range(10)])
    path = write(tmp_path, "".join(f"{7 * i} {7 * j}\n" for i, j in pairs))
    if reference.number_of_edges() == 0:
        with pytest.raises(ValueError, match="nothing but self-loops"):
            graph(path)
        return
    result = graph(path)
    check_simple(result)
    assert result.node_ids.tolist() == [7 * node for node in sorted(reference)]
    edges = {frozenset(pair) for pair in result.node_ids[result.edges].tolist()}
    assert edges == {frozenset((7 * i, 7 * j)) for i, j in reference.edges}
    assert result.num_self_loops == loops
    assert result.num_duplicates == len(pairs) - loops - reference.number_of_edges()
