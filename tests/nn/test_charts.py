"""Layers do not depend on the chart: points that the isometry joins have the same image."""

import pytest
import torch
from pyro.infer import Trace_ELBO

from pyro_hyperbolic import Lorentz, PoincareBall
from pyro_hyperbolic.models import HyperbolicVAE
from pyro_hyperbolic.nn import Exp0, GyroplaneLinear, Log0, ManifoldModule, MobiusLinear
from tests.helpers import DTYPES, GEOMETRY, LargestStorage, same

every_c = pytest.mark.parametrize("c", [0.1, 1.0, 1.4])
both = pytest.mark.parametrize("chart", [PoincareBall, Lorentz])
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


@pytest.mark.parametrize("name", ["GyroplaneLinear", "GyroplaneLinear-along", "Log0"])
@both
def test_autocast_does_not_reach_the_geometry(name, chart):
    layer = LAYERS[name](chart(1.4))
    z = chart(1.4).from_normal_coords(None, 2 * torch.randn(20, 3))
    expected = layer(z)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = layer(z)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


@both
def test_layers_take_half_precision_to_float32(chart):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        v = torch.nn.Linear(4, 3)(torch.randn(20, 4))
        assert v.dtype == torch.bfloat16
        z = Exp0(chart(1.4))(v)
        outputs = [z, MobiusLinear(3, 3, chart(1.4))(z), Log0(chart(1.4))(z), GyroplaneLinear(3, 5, chart(1.4))(z)]
    assert all(out.dtype == torch.float32 for out in outputs)


@both
@pytest.mark.parametrize("decoder", ["gyroplane", "mobius", "logmap", "mlp"])
def test_model_under_autocast(chart, decoder):
    vae = HyperbolicVAE(chart(1.0), 2, 6, hidden_dim=8, decoder=decoder)
    x = torch.rand(12, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert vae.encode(x).mean.dtype == torch.float32
        loss = Trace_ELBO().differentiable_loss(vae.model, vae.guide, x)
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad.isfinite().all() for p in vae.parameters())


@pytest.mark.slow
@both
@every_dtype
def test_gyroplanes_compile_with_dynamic_shapes(chart, dtype):
    torch._dynamo.reset()
    layer = GyroplaneLinear(3, 5, chart(0.7)).to(dtype)
    compiled = torch.compile(layer, dynamic=True, fullgraph=True, backend="aot_eager")
    for rows in (4, 6):
        z = chart(0.7).from_normal_coords(None, torch.randn(rows, 3, dtype=dtype)).requires_grad_()
        slopes = []
        for function in (layer, compiled):
            out = function(z)
            slopes.append((out, *torch.autograd.grad(out.square().sum(), [z, *layer.parameters()])))
        torch.testing.assert_close(*slopes)
