"""Layers do not depend on the chart: points that the isometry joins have the same image."""

import pytest
import torch

from pyro_hyperbolic import Lorentz, PoincareBall
from pyro_hyperbolic.nn import Exp0, GyroplaneLinear, Log0, ManifoldModule, MobiusLinear
from tests.helpers import DTYPES, GEOMETRY, LargestStorage, same

every_c = pytest.mark.parametrize("c", [0.1, 1.0, 1.4])
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)

# Each maps points to vectors, or vectors to points and back.
LAYERS = {
    "GyroplaneLinear": lambda manifold: GyroplaneLinear(3, 5, manifold),
    "GyroplaneLinear-along": lambda manifold: GyroplaneLinear(3, 5, manifold, "along"),
    "Log0": Log0,
    "MobiusLinear": lambda manifold: torch.nn.Sequential(MobiusLinear(3, 5, manifold), Log0(manifold)),
}


def charts(c, dtype):
    return [chart(torch.tensor(c, dtype=dtype)) for chart in (PoincareBall, Lorentz)]


@every_dtype
@every_c
@pytest.mark.parametrize("name", LAYERS)
def test_same_image_in_both_charts(name, c, dtype):
    ball, hyperboloid = charts(c, dtype)
    layer, other = (LAYERS[name](manifold).to(dtype) for manifold in (ball, hyperboloid))
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    other.load_state_dict(layer.state_dict())
    v = torch.randn(20, 3, dtype=dtype)
    same(other(Exp0(hyperboloid)(v)), layer(Exp0(ball)(v)), GEOMETRY[dtype])


@every_c
def test_exp0_goes_to_the_same_point(c):
    ball, hyperboloid = charts(c, torch.float64)
    v = torch.randn(20, 3, dtype=torch.float64)
    same(hyperboloid.to_poincare(Exp0(hyperboloid)(v)), Exp0(ball)(v), GEOMETRY[torch.float64])


def test_no_tensor_of_batch_times_planes_times_dimension():
    batch, planes, dim = 64, 48, 24
    layer = GyroplaneLinear(dim, planes, Lorentz(1.0))
    z = Exp0(Lorentz(1.0))(torch.randn(batch, dim)).requires_grad_()
    with LargestStorage() as forward:
        out = layer(z)
    with LargestStorage() as backward:
        out.sum().backward()
    assert batch * planes <= forward.numel <= 2 * batch * planes
    assert planes * dim <= backward.numel <= 2 * batch * planes


def test_curvature_module_keeps_the_chart():
    module = ManifoldModule(Lorentz(0.5), learnable=True)
    assert type(module()) is Lorentz
    assert repr(module) == "ManifoldModule(Lorentz, learnable=True)"
    module().dist0(Exp0(Lorentz(0.5))(torch.ones(3))).backward()
    assert module.raw.grad.isfinite()


def test_far_latents():
    # Distance 60, which no ball of float32 holds.
    layer = GyroplaneLinear(2, 5, Lorentz(1.0))
    v = torch.tensor([[30.0, 0.0], [0.0, -30.0]], requires_grad=True)
    out = layer(Exp0(Lorentz(1.0))(v))
    out.sum().backward()
    assert out.isfinite().all()
    assert v.grad.isfinite().all()
    wide = GyroplaneLinear(2, 5, Lorentz(1.0)).double()
    wide.load_state_dict(layer.state_dict())
    same(out, wide(Exp0(Lorentz(1.0))(v.detach().double())), 1e-3)
