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


@pytest.mark.parametrize(("dim", "products_of_matrices"), [(3, 0), (17, 1)])
def test_a_traced_product_is_not_taken_in_parts(factors, dim, products_of_matrices):
    """With nodes for each part a compiled evaluation of many samples would be a graph of thousands.

    A thin product is written out term by term.
    """
    x, y = (factor.repeat_interleave(6, -1)[..., :dim] for factor in factors)

    def called(rows):
        graph = make_fx(lambda x, y: products.rounded_dot(x, y, torch.float32), tracing_mode="fake")(x[:rows], y)
        return [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]

    assert sum("mm" in name for name in called(5)) == products_of_matrices
    assert called(5) == called(1)
