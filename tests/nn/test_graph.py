"""Graph convolution against dense matrices."""

import pytest
import torch

from pyro_hyperbolic.nn import GCNConv, GraphAdjacency
from tests.helpers import ROUNDING, LargestStorage, same

EDGES = torch.tensor([[0, 1], [1, 2], [2, 0], [2, 3], [4, 3]])
GRAPHS = {
    "triangle and tail": (5, EDGES),
    "an isolated node": (6, EDGES),
    "one edge": (2, torch.tensor([[1, 0]])),
    "no edge": (3, torch.zeros(0, 2, dtype=torch.long)),
}


def dense(num_nodes, edges):
    matrix = torch.eye(num_nodes, dtype=torch.float64)
    for i, j in edges.tolist():
        matrix[i, j] = matrix[j, i] = 1.0
    degree = matrix.sum(-1).pow(-0.5)
    return degree[:, None] * matrix * degree[None, :]


@pytest.mark.parametrize("name", GRAPHS)
def test_adjacency_is_the_normalised_matrix(name):
    num_nodes, edges = GRAPHS[name]
    adjacency = GraphAdjacency(num_nodes, edges)
    same(adjacency(torch.eye(num_nodes)), dense(num_nodes, edges), ROUNDING[torch.float32])
    x = torch.randn(num_nodes, 3)
    same(adjacency(x), dense(num_nodes, edges) @ x.double(), ROUNDING[torch.float32])


@pytest.mark.parametrize("name", GRAPHS)
def test_convolution(name):
    num_nodes, edges = GRAPHS[name]
    layer, x = GCNConv(4, 3), torch.randn(num_nodes, 4)
    expected = dense(num_nodes, edges) @ x.double() @ layer.weight.double()
    same(layer(x, GraphAdjacency(num_nodes, edges)), expected, ROUNDING[torch.float32])


def test_convolution_without_features_is_that_of_the_identity():
    adjacency, layer = GraphAdjacency(5, EDGES), GCNConv(5, 3)
    same(layer(None, adjacency), layer(torch.eye(5), adjacency), ROUNDING[torch.float32])
    same(layer(None, adjacency), dense(5, EDGES) @ layer.weight.double(), ROUNDING[torch.float32])


def test_weights_start_by_the_rule_of_glorot():
    weight = GCNConv(200, 100).weight
    bound = (6 / 300) ** 0.5
    assert 0.999 * bound < weight.abs().max() <= bound
    same(weight.square().mean(), bound**2 / 3, 0.03)


def test_gradients_reach_features_and_weights():
    adjacency, layer = GraphAdjacency(5, EDGES), GCNConv(4, 3)
    x = torch.randn(5, 4, requires_grad=True)
    layer(x, adjacency).sum().backward()
    matrix = dense(5, EDGES)
    ones = torch.ones(5, 3, dtype=torch.float64)
    same(layer.weight.grad, x.double().T @ matrix @ ones, ROUNDING[torch.float32])
    same(x.grad, matrix @ ones @ layer.weight.double().T, ROUNDING[torch.float32])


def test_adjacency_follows_the_dtype_of_the_model():
    adjacency = GraphAdjacency(5, EDGES).double()
    assert adjacency(torch.eye(5, dtype=torch.float64)).dtype == torch.float64
    torch.set_default_dtype(torch.float64)
    same(GraphAdjacency(5, EDGES)(torch.eye(5)), dense(5, EDGES), ROUNDING[torch.float64])


def test_adjacency_has_no_parameters_and_is_saved_with_the_state():
    adjacency = GraphAdjacency(5, EDGES)
    assert list(adjacency.parameters()) == []
    assert set(adjacency.state_dict()) == {"rows", "cols", "weights"}


def test_memory_is_that_of_the_edges():
    num_nodes, features = 300, 4
    ring = torch.stack([torch.arange(num_nodes), (torch.arange(num_nodes) + 1) % num_nodes], -1)
    x = torch.randn(num_nodes, features)
    with LargestStorage() as largest:
        GraphAdjacency(num_nodes, ring)(x)
    assert largest.numel <= 3 * num_nodes * features < num_nodes**2


BAD_EDGES = {
    "one dimension": (torch.tensor([0, 1]), r"edges must have shape \(E, 2\), got \(2,\)"),
    "a list": ([[0, 1]], r"edges must be a tensor \(E, 2\), got list; use torch.as_tensor"),
    "three columns": (torch.tensor([[0, 1, 2]]), r"edges must have shape \(E, 2\), got \(1, 3\)"),
    "a node too many": (torch.tensor([[0, 5]]), r"edges must join nodes 0 to 4"),
    "a negative node": (torch.tensor([[-1, 0]]), r"edges must join nodes 0 to 4"),
    "not integers": (torch.tensor([[0.0, 1.0]]), r"edges must be integers, got torch.float32"),
    "a loop": (torch.tensor([[0, 1], [2, 2]]), r"edges must join different nodes"),
    "an edge twice": (torch.tensor([[0, 1], [1, 2], [0, 1]]), r"edges must be listed once"),
    "an edge in both directions": (torch.tensor([[0, 1], [1, 2], [1, 0]]), r"edges must be listed once"),
}


@pytest.mark.parametrize("name", BAD_EDGES)
def test_bad_edges(name):
    edges, message = BAD_EDGES[name]
    with pytest.raises(ValueError, match=message):
        GraphAdjacency(5, edges)
