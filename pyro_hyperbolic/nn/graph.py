"""Graph convolution."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pyro_hyperbolic.ops.checks import checked_integer, inspectable


class GraphAdjacency(nn.Module):
    r"""The symmetrically normalised adjacency :math:`\hat A = D^{-1/2}(A + I)D^{-1/2}` as a sparse linear map.

    Kipf and Welling, *Variational graph auto-encoders* (2016). It is stored as the list of its entries, so a product
    with ``(N, k)`` costs O(E k).

    :param num_nodes: number ``N`` of nodes.
    :param edges: undirected edges, each once, ``(E, 2)``.
    """

    rows: Tensor
    cols: Tensor
    weights: Tensor

    def __init__(self, num_nodes: int, edges: Tensor) -> None:
        super().__init__()
        num_nodes = checked_integer("num_nodes", num_nodes, least=1)
        check_pairs("edges", edges, num_nodes)
        if bool((edges[:, 0] == edges[:, 1]).any()):
            raise ValueError("edges must join different nodes; drop the loops, every node has one already.")
        if len(edges.sort(-1).values.unique(dim=0)) < len(edges):
            raise ValueError("edges must be listed once, in one direction; drop the repeated ones.")
        self.num_nodes = num_nodes
        loops = torch.arange(num_nodes, device=edges.device)
        rows = torch.cat([edges[:, 0], edges[:, 1], loops])
        cols = torch.cat([edges[:, 1], edges[:, 0], loops])
        degree = torch.bincount(rows, minlength=num_nodes).to(torch.get_default_dtype())
        self.register_buffer("rows", rows)
        self.register_buffer("cols", cols)
        self.register_buffer("weights", (degree[rows] * degree[cols]).rsqrt())

    def forward(self, x: Tensor) -> Tensor:
        messages = self.weights.unsqueeze(-1) * x[self.cols]
        return torch.zeros_like(x).index_add(0, self.rows, messages)


def check_pairs(name: str, pairs: Tensor, num_nodes: int) -> None:
    """Refuse what are no pairs of nodes ``(E, 2)``."""
    if not isinstance(pairs, Tensor):
        raise ValueError(f"{name} must be a tensor (E, 2), got {type(pairs).__name__}; use torch.as_tensor({name}).")
    if pairs.dim() != 2 or pairs.shape[-1] != 2:
        raise ValueError(f"{name} must have shape (E, 2), got {tuple(pairs.shape)}.")
    if pairs.is_floating_point() or pairs.is_complex() or pairs.dtype == torch.bool:
        raise ValueError(f"{name} must be integers, got {pairs.dtype}; use {name}.long().")
    if inspectable(pairs) and pairs.numel() and not (int(pairs.min()) >= 0 and int(pairs.max()) < num_nodes):
        raise ValueError(f"{name} must join nodes 0 to {num_nodes - 1}; renumber them, or raise num_nodes.")


class GCNConv(nn.Module):
    r"""One graph convolution :math:`X \mapsto \hat A X W`, with :math:`W` initialised by Glorot's uniform rule.

    :param in_features: size of a node's features. For a graph without features it is the number of nodes, and
        ``forward(None, adjacency)`` is the convolution of the identity, :math:`\hat A W`.
    :param out_features: size of the result.
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        in_features = checked_integer("in_features", in_features, least=1)
        out_features = checked_integer("out_features", out_features, least=1)
        self.weight = nn.Parameter(torch.empty(in_features, out_features))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x: Tensor | None, adjacency: GraphAdjacency) -> Tensor:
        return adjacency(self.weight if x is None else x @ self.weight)
