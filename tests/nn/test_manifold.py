"""The curvature as part of a module."""

import pytest
import torch
from torch import nn

from pyro_hyperbolic import Euclidean, PoincareBall, Sphere, Stereographic
from pyro_hyperbolic.distributions import RiemannianNormal, WrappedNormal
from pyro_hyperbolic.geometry import from_signature
from pyro_hyperbolic.nn import DECODERS, Exp0, GyroplaneLinear, Log0, ManifoldModule, MobiusLinear, build_decoder
from pyro_hyperbolic.nn.manifold import as_module
from tests.helpers import DTYPES, ROUNDING, same

every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
both = pytest.mark.parametrize("learnable", [False, True])


def test_fixed_curvature_is_a_buffer():
    module = ManifoldModule(PoincareBall(1.4))
    assert list(module.parameters()) == []
    assert list(module.state_dict()) == ["fixed"]
    assert module.c.item() == pytest.approx(1.4)
    assert not module.c.requires_grad


def test_learnable_curvature_is_a_parameter():
    module = ManifoldModule(PoincareBall(1.4), learnable=True)
    assert [name for name, _ in module.named_parameters()] == ["raw"]
    assert list(module.buffers()) == []
    assert module.c.requires_grad


@both
def test_gives_the_manifold_of_the_present_curvature(learnable):
    module = ManifoldModule(PoincareBall(0.5), learnable)
    assert isinstance(module(), PoincareBall)
    x = torch.tensor([0.3, 0.4])
    same(module().dist0(x), PoincareBall(0.5).dist0(x), ROUNDING[torch.float32])
    with torch.no_grad():
        next(iter(module.state_dict(keep_vars=True).values())).fill_(2.0)
    expected = torch.nn.functional.softplus(torch.tensor(2.0)).item() if learnable else 2.0
    same(module().dist0(x), PoincareBall(expected).dist0(x), ROUNDING[torch.float32])


@every_dtype
@pytest.mark.parametrize("c", [1e-3, 1e-2, 0.1, 1.0, 1.4, 10.0, 20.0, 21.0, 100.0])
def test_curvature_survives_softplus(c, dtype):
    module = ManifoldModule(PoincareBall(torch.tensor(c, dtype=dtype)), learnable=True)
    assert module.c.dtype == dtype
    # torch's softplus is the identity above 20, where exp(-20) = 2e-9 is left out.
    same(module.c / c, 1.0, max(ROUNDING[dtype], 2e-9 / 20))


@pytest.mark.parametrize("c", [1e-3, 1.0, 30.0])
def test_gradient_is_that_of_the_curvature_through_softplus(c):
    x = torch.tensor([0.1, 0.05], dtype=torch.float64)
    plain = torch.tensor(c, dtype=torch.float64, requires_grad=True)
    PoincareBall(plain).dist0(x).backward()
    module = ManifoldModule(PoincareBall(torch.tensor(c, dtype=torch.float64)), learnable=True)
    module().dist0(x).backward()
    same(module.raw.grad / (plain.grad * torch.sigmoid(module.raw)), 1.0, 1e-7)


def test_stays_positive_whatever_the_optimiser_does():
    module = ManifoldModule(PoincareBall(1.0), learnable=True)
    optimiser = torch.optim.SGD(module.parameters(), lr=5.0)
    for _ in range(20):
        optimiser.zero_grad()
        module.c.backward()
        optimiser.step()
    assert 0 < module.c.item() < 0.1


def test_the_curvature_is_a_copy():
    c = torch.tensor(1.0, requires_grad=True)
    module = ManifoldModule(PoincareBall(c))
    assert not module.c.requires_grad
    with torch.no_grad():
        c.fill_(2.0)
    assert module.c.item() == 1.0


@both
def test_state_dict_carries_the_curvature(learnable):
    trained = ManifoldModule(PoincareBall(0.7), learnable)
    other = ManifoldModule(PoincareBall(1.0), learnable)
    other.load_state_dict(trained.state_dict())
    assert torch.equal(other.c, trained.c)
    assert other.c.item() == pytest.approx(0.7)


@both
def test_to_float64(learnable):
    module = ManifoldModule(PoincareBall(0.5), learnable).to(torch.float64)
    assert module.c.dtype == torch.float64
    assert module().c.dtype == torch.float64
    same(module.c, 0.5, ROUNDING[torch.float32])


@both
def test_device(learnable):
    module = ManifoldModule(PoincareBall(0.5), learnable).to("meta")
    assert module.c.device.type == "meta"


LAYERS = {
    "Exp0": Exp0,
    "GyroplaneLinear": lambda manifold: GyroplaneLinear(2, 3, manifold),
    "Log0": Log0,
    "MobiusLinear": lambda manifold: MobiusLinear(2, 3, manifold),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_keeps_the_module_it_is_given(name):
    shared = ManifoldModule(PoincareBall(1.0), learnable=True)
    assert LAYERS[name](shared).manifold is shared


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_makes_a_module_of_a_manifold(name):
    layer = LAYERS[name](PoincareBall(0.3))
    assert isinstance(layer.manifold, ManifoldModule)
    assert layer.manifold.c.item() == pytest.approx(0.3)
    assert "manifold.fixed" in layer.state_dict()


def test_shared_between_parts_it_is_one_parameter():
    shared = ManifoldModule(PoincareBall(1.0), learnable=True)
    parts = nn.ModuleList([*(build(shared) for build in LAYERS.values()), shared])
    parts += [build_decoder(name, shared, 2, (4,), hidden_dim=3) for name in DECODERS]
    curvatures = [p for name, p in parts.named_parameters() if name.endswith("raw")]
    assert len(curvatures) == 1
    assert curvatures[0] is shared.raw


def test_as_module():
    shared = ManifoldModule(PoincareBall(1.0))
    assert as_module(shared) is shared
    assert as_module(PoincareBall(2.0)).c.item() == 2.0


@pytest.mark.parametrize("value", [1.0, None, PoincareBall])
def test_refuses_what_is_no_manifold(value):
    with pytest.raises(ValueError, match=r"manifold must be a manifold, got .*PoincareBall\(c=1.0\)"):
        ManifoldModule(value)


@pytest.mark.parametrize("c", [0.0, torch.tensor(0.0)])
def test_a_learnable_curvature_cannot_start_at_0(c):
    with pytest.raises(ValueError, match=r"must start above 0, got c = 0.0"):
        ManifoldModule(PoincareBall(c), learnable=True)


def test_a_learned_sphere_may_grow_flat():
    # Down to where the square of its radius overflows; then it is an error, and the remedy is in the docstring.
    module = ManifoldModule(Sphere(1.0), learnable=True)
    v, expected = torch.tensor([0.3, -0.8]), torch.distributions.Normal(0.0, 0.5)
    for raw in (-10.0, -20.0, -80.0):
        nn.init.constant_(module.raw, raw)
        for distribution in (WrappedNormal, RiemannianNormal):
            space = module()
            log_prob = distribution(space.origin(2), 0.5, space).log_prob(space.from_normal_coords(None, v))
            same(log_prob, expected.log_prob(v).sum(), 1e-4)
            (slope,) = torch.autograd.grad(log_prob, module.raw)
            assert slope.abs() < 1e-4
    nn.init.constant_(module.raw, -120.0)
    with pytest.raises(ValueError, match=r"on\(Sphere\(c=0.0\)\)"):
        WrappedNormal(module().origin(2), 0.5, module())


def test_prints_chart_and_kind():
    assert repr(ManifoldModule(PoincareBall(1.0), learnable=True)) == "ManifoldModule(PoincareBall, learnable=True)"


class TestSeveralCurvatures:
    def test_each_is_learned(self):
        module = ManifoldModule("h2,s2,u1,e1", learnable=True)
        assert [name for name, _ in module.named_parameters()] == ["raw_0", "raw_1", "raw_2"]
        manifold = module()
        assert manifold == from_signature("h2,s2,u1,e1")
        manifold.dist0(manifold.from_unconstrained(torch.ones(6))).square().backward()
        assert all(parameter.grad is not None for parameter in module.parameters())

    def test_curvature_of_either_sign_is_kept_as_it_is(self):
        module = ManifoldModule(Stereographic(-0.5), learnable=True)
        assert module.raw.item() == module.c.item() == -0.5
        with torch.no_grad():
            module.raw.fill_(0.75)
        assert module() == Stereographic(0.75)

    def test_fixed_ones_are_saved(self):
        module, other = (ManifoldModule(from_signature("h2,s2", c)) for c in ([0.3, 0.6], 1.0))
        other.load_state_dict(module.state_dict())
        assert other() == module()
        assert other.double()().curvatures[0].dtype == torch.float64

    def test_flat_space_has_none(self):
        module = ManifoldModule(Euclidean(), learnable=True)
        assert not list(module.parameters())
        assert module() == Euclidean()

    def test_repr(self):
        assert repr(ManifoldModule("h2,e2")) == "ManifoldModule(Lorentz x Euclidean, learnable=False)"

    def test_layers_of_a_product(self):
        manifold = from_signature("h2,s2,e2")
        z = manifold.from_unconstrained(torch.randn(5, 6, dtype=torch.float64))
        torch.testing.assert_close(Exp0(manifold)(Log0(manifold)(z)), z)
        assert GyroplaneLinear(6, 3, manifold)(z).shape == (5, 3)
        with pytest.raises(ValueError, match="a product has its dimensions"):
            MobiusLinear(6, 3, manifold)

    def test_affine_layer_of_a_product_is_the_sum_of_those_of_its_factors(self):
        whole = from_signature("p2,s1,e2")
        layer = GyroplaneLinear(5, 3, whole).double()
        z = whole.from_unconstrained(torch.randn(4, 5, dtype=torch.float64))
        total, start = 0, 0
        for (factor, dim), part in zip(whole.factors, whole.split(z), strict=True):
            own = GyroplaneLinear(dim, 3, factor).double()
            with torch.no_grad():
                own.normal.copy_(layer.normal[:, start : start + dim])
                own.offset.copy_(layer.offset[:, start : start + dim])
            total, start = total + own(part), start + dim
        torch.testing.assert_close(layer(z), total)
