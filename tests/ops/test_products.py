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
