"""Networks for models of edges."""

import networkx
import pytest
import torch

from pyro_hyperbolic import datasets
from pyro_hyperbolic.models import LatentSpaceNetwork
from tests.helpers import each


@each(
    ("name", "nodes", "edges", "missing"),
    [("karate", 34, 78, 0), ("les_miserables", 77, 254, 0), ("florentine", 15, 20, 0), ("davis", 32, 89, 244)],
)
def test_built_in_networks(name, nodes, edges, missing):
    found = datasets.network(name)
    assert (found.num_nodes, found.num_edges, len(found.names)) == (nodes, edges, nodes)
    assert int(found.adjacency().isnan().sum()) == 2 * missing
    assert LatentSpaceNetwork("e2", nodes).network(found) is found


def test_pairs_of_davis_are_of_a_woman_and_an_event():
    found = datasets.network("davis")
    women = torch.tensor([not name.startswith("E") or name[1:2].isalpha() for name in found.names])
    assert int(women.sum()) == 18
    assert (women[found.edges[:, 0]] != women[found.edges[:, 1]]).all()
    assert (women[found.missing[:, 0]] == women[found.missing[:, 1]]).all()


def test_edge_list_with_weights(tmp_path):
    path = tmp_path / "a.edges"
    path.write_text("# repeated, with a loop\n7 5 2\n5 7 0.5\n9 9 1\n9 7\n")
    found = datasets.network(path, weight="weight")
    assert found.edges.tolist() == [[0, 1], [1, 2]]
    assert found.values.tolist() == [2.5, 1.0]
    assert found.names == ("5", "7", "9")
    assert datasets.network(path).values is None
    directed = datasets.network(path, weight="weight", directed=True)
    assert directed.edges.tolist() == [[0, 1], [1, 0], [2, 1]]
    assert directed.values.tolist() == [0.5, 2.0, 1.0]


def test_graphml_is_what_was_written(tmp_path):
    graph = networkx.DiGraph([("a", "b", {"n": 3}), ("b", "a", {"n": 1}), ("c", "c", {"n": 4})])
    path = tmp_path / "a.graphml"
    networkx.write_graphml(graph, path)
    found = datasets.network(path, "n")
    assert found.directed
    assert found.names == ("a", "b", "c")
    assert found.adjacency().tolist() == [[0, 3, 0], [1, 0, 0], [0, 0, 0]]


def test_parallel_edges_and_graphs_of_the_package():
    multi = networkx.MultiGraph([(0, 1, {"w": 1}), (0, 1, {"w": 4}), (1, 2, {"w": 2})])
    assert datasets.network(multi, "w").values.tolist() == [5.0, 2.0]
    tree = datasets.graph("balanced_tree:2:2")
    assert datasets.network(tree).edges is tree.edges


def test_wrong_sources(tmp_path):
    with pytest.raises(FileNotFoundError, match="neither a known network"):
        datasets.network("karat")
    path = tmp_path / "a.graphml"
    path.write_text("0 1\n")
    with pytest.raises(ValueError, match="not a GraphML file"):
        datasets.network(path)
    path = tmp_path / "a.edges"
    path.write_text("1 1\n2 2\n")
    with pytest.raises(ValueError, match=r"a\.edges: nothing but self loops"):
        datasets.network(path)
