"""A module whose curvature has a batch shape: layers equal a loop over scalar curvatures."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call

from pyro_hyperbolic import Lorentz, PoincareBall
from pyro_hyperbolic.nn import DECODERS, Exp0, GyroplaneLinear, Log0, ManifoldModule, MobiusLinear, build_decoder
from tests.helpers import ROUNDING, LargestStorage, same
from tests.loop import SHAPES, equals_loop

D = 3
LAYERS = {
    "GyroplaneLinear": lambda manifold: GyroplaneLinear(D, 5, manifold),
    "GyroplaneLinear-along": lambda manifold: GyroplaneLinear(D, 5, manifold, "along"),
    "Log0": Log0,
    "MobiusLinear": lambda manifold: MobiusLinear(D, 5, manifold),
    **{name: lambda manifold, name=name: build_decoder(name, manifold, D, (2, 3), hidden_dim=4) for name in DECODERS},
}
every_chart = pytest.mark.parametrize("chart", [PoincareBall, Lorentz])


@every_chart
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize(("shape", "batch"), SHAPES, ids=str)
def test_layer_equals_loop(name, chart, shape, batch):
    torch.manual_seed(0)
    module = ManifoldModule(chart(1.0), learnable=True)
    net = torch.nn.Sequential(Exp0(module), LAYERS[name](module)).double()
    weights = [parameter for key, parameter in net.named_parameters() if not key.endswith("raw")]
    raw = torch.linspace(-8.0, 1.0, torch.Size(shape).numel(), dtype=torch.float64).reshape(shape).requires_grad_()

    def f(raw, v):
        return functional_call(net, {"0.manifold.raw": raw}, v)

    v = torch.randn((*batch, D), dtype=torch.float64, requires_grad=True)
    equals_loop(f, raw, [v], [1], 4 * ROUNDING[torch.float64], shared=weights)


@every_chart
@pytest.mark.parametrize("learnable", [False, True])
def test_module_keeps_the_shape(chart, learnable):
    c = torch.tensor([[0.5], [2.0]])
    module = ManifoldModule(chart(c), learnable=learnable)
    same(module.c, c, 1e-6)
    assert module().batch_shape == (2, 1)
    other = ManifoldModule(chart(torch.ones(2, 1)), learnable=learnable)
    other.load_state_dict(module.state_dict())
    assert other() == module()


def test_a_learnable_curvature_starts_above_zero():
    with pytest.raises(ValueError, match="must start above 0, got c = 0"):
        ManifoldModule(PoincareBall(torch.tensor([1.0, 0.0])), learnable=True)


@every_chart
def test_planes_of_a_batch(chart):
    layer = GyroplaneLinear(D, 5, chart(torch.tensor([[0.5], [2.0]])))
    p, a = layer.planes()
    size = chart(1.0).ambient_dim(D)
    assert p.shape == a.shape == (2, 1, 5, size)


@every_chart
def test_no_tensor_of_points_times_planes_times_dimension(chart):
    batch, planes, dim, count = 64, 48, 24, 2
    manifold = chart(torch.tensor([[0.5], [2.0]]))
    layer = GyroplaneLinear(dim, planes, manifold)
    z = Exp0(manifold)(torch.randn(batch, dim))
    with LargestStorage() as forward:
        layer(z)
    assert forward.numel <= 2 * count * batch * planes
