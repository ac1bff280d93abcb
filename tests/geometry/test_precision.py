"""Geometry is computed in float32 or more, whatever a program allows its matrix products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pyro_hyperbolic import Lorentz, PoincareBall
from pyro_hyperbolic.geometry import Manifold
from pyro_hyperbolic.geometry import planes as planes_module
from pyro_hyperbolic.ops import products
from tests.helpers import LargestStorage

both_charts = pytest.mark.parametrize("chart", [PoincareBall, Lorentz])


def points(manifold: Manifold, *shape: int) -> Tensor:
    return manifold.from_normal_coords(None, torch.randn(*shape, 3)).detach().requires_grad_()


# Arguments that broadcast, where inner products could be matrix products.
OPERATIONS: dict[str, Callable[[Manifold], Tensor]] = {
    "dist": lambda m: m.dist(points(m, 4, 1), points(m, 5)),
    "pairwise_dist": lambda m: m.pairwise_dist(points(m, 4), points(m, 5)),
    "to_normal_coords": lambda m: m.to_normal_coords(points(m, 4, 1), points(m, 5)),
    "transp": lambda m: m.transp(x := points(m, 4, 1), points(m, 5), m.frame(x, torch.randn(4, 1, 3))),
    "frame": lambda m: m.frame(points(m, 5), torch.randn(4, 1, 3)),
    "inner": lambda m: m.inner(x := points(m, 5), m.frame(x, torch.randn(5, 3)), m.frame(x, torch.randn(4, 1, 3))),
    "mobius_matvec": lambda m: m.mobius_matvec(torch.randn(2, 3), points(m, 5)),
    "dist2plane": lambda m: m.dist2plane(points(m, 4, 1), p := points(m, 5), m.frame(p, torch.randn(5, 3))),
    "dist2plane0": lambda m: m.dist2plane0(points(m, 4, 1), points(m, 5), torch.randn(5, 3)),
    "geodesic": lambda m: m.geodesic(0.3, points(m, 4, 1), points(m, 5)),
    "frechet_mean": lambda m: m.frechet_mean(points(m, 4, 5)),
}
every_operation = pytest.mark.parametrize("name", OPERATIONS)

PRODUCTS = {getattr(torch.ops.aten, name).default for name in ("mm", "bmm", "addmm", "baddbmm", "mv", "dot")}


class NarrowProducts(TorchDispatchMode):
    """Records the matrix products of less than float64, which autocast and TF32 reach."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in PRODUCTS and any(t.dtype != torch.float64 for t in tree_leaves(args) if isinstance(t, Tensor)):
            self.found.append(str(func))
        return func(*args, **(kwargs or {}))


@both_charts
@every_operation
def test_no_product_is_one_that_tf32_reaches(name, chart):
    with NarrowProducts() as products:
        OPERATIONS[name](chart(0.7)).sum().backward()
    assert products.found == []


def test_a_narrow_product_is_found():
    with NarrowProducts() as products:
        _ = torch.ones(2, 3) @ torch.ones(3, 2)
    assert products.found


@both_charts
@every_operation
def test_autocast_changes_nothing(name, chart):
    torch.manual_seed(0)
    expected = OPERATIONS[name](chart(0.7))
    torch.manual_seed(0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = OPERATIONS[name](chart(0.7))
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


@both_charts
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.complex64, torch.int64], ids=str)
def test_other_dtypes_are_refused(chart, dtype):
    manifold = chart(1.0)
    x = manifold.origin(2).to(dtype)
    calls = [
        lambda: manifold.dist(x, x),
        lambda: manifold.dist0(x),
        lambda: manifold.expmap0(x),
        lambda: manifold.projx(x),
        lambda: manifold.dist2plane(x, x, x),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=f"must be float32 or float64, got {dtype}; convert with .float"):
            call()


@both_charts
def test_a_large_product_is_taken_in_parts(chart, monkeypatch):
    manifold = chart(0.7)
    torch.manual_seed(0)
    x, p, v = points(manifold, 30, 1), points(manifold, 20), torch.randn(20, 3)
    whole = manifold.dist2plane0(x, p, v)
    slopes = torch.autograd.grad(whole.sum(), (x, p))
    monkeypatch.setattr(products, "_CHUNK", 100)
    with LargestStorage() as largest:
        parts = manifold.dist2plane0(x, p, v)
    assert largest.numel <= 30 * 20
    torch.testing.assert_close(parts, whole)
    torch.testing.assert_close(torch.autograd.grad(parts.sum(), (x, p)), slopes)


def test_the_rule_is_one_of_shapes_and_dtypes():
    x, p = torch.zeros(4, 1, 3), torch.zeros(5, 3)
    assert planes_module.needs_double(x, p)
    assert not planes_module.needs_double(x.double(), p.double())
    assert not planes_module.needs_double(p, p)
