"""Products that are wider than their factors."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from pyro_hyperbolic.ops import products


@pytest.fixture
def factors(monkeypatch):
    monkeypatch.setattr(products, "_CHUNK", 64)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, 9, 1, 3, generator=generator, dtype=torch.float64)
    return x, torch.randn(7, 3, generator=generator, dtype=torch.float64)


def test_parts_make_the_whole(factors):
    x, y = factors
    whole = (x.squeeze(-2) @ y.mT).float()
    torch.testing.assert_close(products.rounded_dot(x, y, torch.float32), whole)


def test_a_traced_product_is_one_node(factors):
    """With a node for each part a compiled evaluation of many samples would be a graph of thousands."""
    graph = make_fx(lambda x, y: products.rounded_dot(x, y, torch.float32), tracing_mode="fake")(*factors)
    called = [node for node in graph.graph.nodes if node.op == "call_function" and "mm" in str(node.target)]
    assert len(called) == 1


@pytest.mark.parametrize("size", [1, 2, 4, 5])
def test_small_systems_are_solved_number_by_number(size):
    generator = torch.Generator().manual_seed(0)
    tril = torch.randn(3, size, size, generator=generator, dtype=torch.float64).tril()
    v = torch.randn(7, 1, size, generator=generator, dtype=torch.float64)
    expected = torch.linalg.solve_triangular(tril, v.unsqueeze(-1), upper=False).squeeze(-1)
    torch.testing.assert_close(products.solve_lower(tril, v), expected)
