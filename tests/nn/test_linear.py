"""Layers on the ball against the formulas they stand for."""

import math

import pytest
import torch
from torch.autograd import gradcheck

from pyro_hyperbolic import Lorentz, PoincareBall
from pyro_hyperbolic.nn import Exp0, GyroplaneLinear, Log0, ManifoldModule, MobiusLinear
from tests.helpers import DTYPES, GEOMETRY, ROUNDING, LargestStorage, each, same

CURVATURES = [0.0, 1e-6, 0.1, 1.0, 1.4]
OFFSETS = ["free", "along"]

every_c = each("c", CURVATURES)
every_dtype = each("dtype", DTYPES)
every_offset = each("offset", OFFSETS)


def points(c, *shape, distance=8.0):
    """Points up to ``distance`` from the origin; 4 at most in the flat space, where nothing stops them."""
    v = torch.randn(shape, dtype=torch.float64)
    radius = torch.rand((*shape[:-1], 1), dtype=torch.float64) * (distance if c > 0 else 4.0)
    return PoincareBall(c).expmap0(v / v.norm(dim=-1, keepdim=True) * radius / 2)


def ball(c):
    """The ball whose curvature a module keeps in float64: a float would be kept in the default dtype."""
    return PoincareBall(torch.tensor(c, dtype=torch.float64))


def gyroplanes(c, dim, count, offset="free", dtype=torch.float64):
    return GyroplaneLinear(dim, count, ball(c), offset).to(dtype)


def paper_formula(z, p, a, c):
    """sign(<a, log_p z>_p) |a|_p d(z, H) for one plane, d(z, H) in the form of Ganea et al. (2018)."""
    space = PoincareBall(c)
    sign = torch.sign(space.inner(p, a, space.logmap(p, z)))
    difference = space.mobius_add(-p, z)
    lean = 2 * (difference @ a).abs() / ((1 - c * difference.square().sum(-1)) * a.norm())
    distance = torch.asinh(math.sqrt(c) * lean) / math.sqrt(c) if c > 0 else lean
    return sign * space.norm(p, a) * distance


class TestGyroplaneLinear:
    @every_dtype
    @every_offset
    @pytest.mark.parametrize("dim", [1, 2, 5])
    @every_c
    def test_is_the_formula_of_the_paper(self, c, dim, offset, dtype):
        layer = gyroplanes(c, dim, 7, offset)
        z = points(c, 20, dim).to(dtype)
        p, a = layer.planes()
        expected = torch.stack([paper_formula(z.double(), p[k], a[k], c) for k in range(7)], -1)
        same(layer.to(dtype)(z), expected, GEOMETRY[dtype])

    @every_offset
    @every_c
    def test_grows_as_the_length_along_a_geodesic_from_the_plane(self, c, offset):
        layer = gyroplanes(c, 3, 4, offset)
        p, a = layer.planes()
        t = torch.linspace(-3, 3, 7, dtype=torch.float64).reshape(-1, 1, 1)
        z = PoincareBall(c).from_normal_coords(p, t * a / a.norm(dim=-1, keepdim=True))
        slope = 2 * layer.normal.norm(dim=-1)
        along_own_plane = layer(z).diagonal(dim1=-2, dim2=-1)
        same(along_own_plane, t.squeeze(-1) * slope, GEOMETRY[torch.float64])

    @every_offset
    def test_at_c_0_it_is_affine(self, offset):
        layer = gyroplanes(0.0, 3, 5, offset)
        p, a = layer.planes()
        z = points(0.0, 50, 3)
        # The normal carried to p from the origin keeps its coordinates, and the metric is 4 dz^2.
        weight, bias = 4 * a, -4 * (a * p).sum(-1)
        same(layer(z), z @ weight.T + bias, ROUNDING[torch.float64], scale=20.0)

    def test_at_c_0_second_differences_vanish(self):
        layer = gyroplanes(0.0, 3, 5)
        x, y, z = points(0.0, 3, 50, 3)
        mixed = layer(x + y + z) - layer(x + y) - layer(x + z) + layer(x)
        same(mixed, torch.zeros(50, 5), ROUNDING[torch.float64], scale=20.0)

    def test_at_c_1_second_differences_do_not_vanish(self):
        layer = gyroplanes(1.0, 3, 5)
        x, y, z = points(1.0, 3, 50, 3) / 3
        assert (layer(x + y + z) - layer(x + y) - layer(x + z) + layer(x)).abs().max() > 0.1

    @pytest.mark.parametrize("dim", [1, 3])
    @every_c
    def test_offset_along_the_normal_is_a_free_offset(self, c, dim):
        along = gyroplanes(c, dim, 6, "along")
        free = gyroplanes(c, dim, 6, "free")
        with torch.no_grad():
            along.offset.uniform_(0.1, 1.0)
            free.normal.copy_(along.normal)
            free.offset.copy_(along.offset * along.normal / along.normal.norm(dim=-1, keepdim=True))
        same(along.planes()[0], free.planes()[0], ROUNDING[torch.float64])
        z = points(c, 20, dim)
        same(along(z), free(z), GEOMETRY[torch.float64])

    @every_offset
    @every_dtype
    def test_continuous_as_c_vanishes(self, dtype, offset):
        torch.manual_seed(3)
        flat = gyroplanes(0.0, 3, 5, offset, dtype)
        z = (points(0.0, 20, 3) / 4).to(dtype)
        errors = []
        for c in [1e-2, 1e-4, 1e-6]:
            curved = gyroplanes(c, 3, 5, offset, dtype)
            curved.load_state_dict(flat.state_dict() | {"manifold.fixed": torch.tensor(c)})
            errors.append((curved(z) - flat(z)).abs().max().item())
        floor = 100 * torch.finfo(dtype).eps
        assert 1e-4 < errors[0] < 0.5
        # The difference is of first order in c, down to rounding.
        assert errors[1] < 0.02 * errors[0] + floor
        assert errors[2] < 0.02 * errors[1] + floor

    @every_offset
    @every_c
    def test_derivatives(self, c, offset):
        layer = gyroplanes(c, 2, 3, offset)
        z = (points(c, 4, 2) / 2).requires_grad_()
        curvature = torch.tensor(c if c > 0 else 0.3, dtype=torch.float64, requires_grad=True)

        def forward(z, normal, offset, curvature):
            state = {"normal": normal, "offset": offset, "manifold.fixed": curvature}
            return torch.func.functional_call(layer, state, (z,))

        inputs = (z, layer.normal.detach().requires_grad_(), layer.offset.detach().requires_grad_(), curvature)
        assert gradcheck(forward, inputs)

    @pytest.mark.parametrize("zero", ["z", "normal", "offset", "all"])
    @every_offset
    @every_dtype
    @every_c
    def test_derivatives_are_finite_at_zero(self, c, dtype, offset, zero):
        manifold = ManifoldModule(PoincareBall(torch.tensor(max(c, 1e-6), dtype=dtype)), learnable=True)
        layer = GyroplaneLinear(2, 3, manifold if c > 0 else PoincareBall(0.0), offset).to(dtype)
        z = (points(c, 4, 2) / 2).to(dtype).requires_grad_()
        targets = {"z": z, "normal": layer.normal, "offset": layer.offset}
        with torch.no_grad():
            for name, target in targets.items():
                if zero in (name, "all"):
                    target.zero_()
        out = layer(z)
        out.sum().backward()
        assert out.isfinite().all()
        gradients = [z.grad, *(p.grad for p in layer.parameters())]
        assert all(g is not None and g.isfinite().all() for g in gradients)
        if zero in ("z", "offset"):
            assert layer.normal.grad.abs().max() > 0
        if zero in ("normal", "all"):
            assert (out == 0).all()

    def test_latents_may_be_float64_in_a_float32_layer(self):
        layer = gyroplanes(1.0, 3, 5, dtype=torch.float32)
        # Further out than float32 coordinates reach.
        z = points(1.0, 50, 3, distance=30.0)
        out = layer(z)
        assert out.dtype == torch.float32
        wide = layer.double()(z)
        assert wide.dtype == torch.float64
        assert wide.abs().max() > 5
        same(out, wide, ROUNDING[torch.float32])

    def test_the_float64_latents_keep_their_graph(self):
        layer = gyroplanes(1.0, 3, 5, dtype=torch.float32)
        z = points(1.0, 4, 3).requires_grad_()
        layer(z).sum().backward()
        assert z.grad.dtype == torch.float64
        assert z.grad.abs().min() > 0

    @pytest.mark.parametrize("batch", [(), (4,), (2, 4), (0,)], ids=str)
    @every_offset
    def test_shapes(self, offset, batch):
        layer = gyroplanes(1.0, 3, 5, offset, torch.float32)
        assert layer(torch.zeros(*batch, 3)).shape == (*batch, 5)
        assert [t.shape for t in layer.planes()] == [(5, 3), (5, 3)]

    @every_offset
    def test_initialisation(self, offset):
        dim, count = 4, 40_000
        layer = gyroplanes(0.0, dim, count, offset)
        zero = layer(torch.zeros(dim, dtype=torch.float64))
        weight = layer(torch.eye(dim, dtype=torch.float64) / 2) - zero  # v = 2z is a basis vector
        bound = 2 / math.sqrt(dim)
        assert 0.999 * bound < weight.abs().max() <= bound * (1 + 1e-6)
        # Uniform on +-b has the moments b^2/3 and b^4/5; both are known here to about one percent.
        same(weight.square().mean(), bound**2 / 3, 0.02)
        same(weight.pow(4).mean(), bound**4 / 5, 0.03)
        p, a = layer.planes()
        distance = 2 * (p * a).sum(-1) / a.norm(dim=-1)
        assert 0.999 * math.sqrt(3 / dim) < distance.abs().max() <= math.sqrt(3 / dim) * (1 + 1e-6)
        same(distance.square().mean(), 1 / dim, 0.03)
        assert abs(distance.mean()) < 5 * distance.std() / math.sqrt(count)
        same(p.norm(dim=-1), distance.abs() / 2, 1e-6)  # offsets start along the normals

    @every_offset
    def test_no_tensor_of_batch_times_planes_times_dimension(self, offset):
        batch, planes, dim = 64, 48, 24
        layer = gyroplanes(1.0, dim, planes, offset, torch.float32)
        z = torch.zeros(batch, dim, requires_grad=True)
        with LargestStorage() as forward:
            out = layer(z)
        with LargestStorage() as backward:
            out.sum().backward()
        assert batch * planes <= forward.numel <= 2 * batch * planes
        assert planes * dim <= backward.numel <= 2 * batch * planes

    def test_unknown_offset(self):
        with pytest.raises(ValueError, match=r"offset must be one of .*'free', 'along'.*'nowhere'"):
            GyroplaneLinear(2, 3, PoincareBall(1.0), "nowhere")

    @pytest.mark.parametrize("layer", [GyroplaneLinear, MobiusLinear])
    @pytest.mark.parametrize("sizes", [(0, 3), (2, 2.5), (2, -1), (True, 3)], ids=str)
    def test_sizes_that_are_none(self, layer, sizes):
        with pytest.raises(ValueError, match=r"(in|out)_features must be a positive integer, got"):
            layer(*sizes, PoincareBall(1.0))

    @pytest.mark.parametrize("space", ["h2,s2", "h2", ManifoldModule("h2")], ids=str)
    def test_a_space_of_another_dimension(self, space):
        with pytest.raises(ValueError, match=r"in_features must be the dimension [24] of '.*', got 3"):
            GyroplaneLinear(3, 5, space)

    @pytest.mark.parametrize("layer", [GyroplaneLinear, MobiusLinear])
    @pytest.mark.parametrize("chart", [PoincareBall, Lorentz])
    def test_points_of_another_dimension(self, layer, chart):
        with pytest.raises(ValueError, match="number of coordinates, got"):
            layer(2, 5, chart(1.0))(chart(1.0).origin(3).expand(7, -1))

    def test_prints_its_size(self):
        assert "2, 3" in repr(GyroplaneLinear(2, 3, PoincareBall(1.0)))


def exp0(v, c):
    if c == 0:
        return v
    root = math.sqrt(c) * v.norm(dim=-1, keepdim=True)
    return torch.tanh(root) * v / root


def log0(y, c):
    if c == 0:
        return y
    root = math.sqrt(c) * y.norm(dim=-1, keepdim=True)
    return torch.atanh(root) * y / root


def mobius_sum(x, y, c):
    """The textbook form, with both coefficients."""
    xy = (x * y).sum(-1, keepdim=True)
    x2, y2 = x.square().sum(-1, keepdim=True), y.square().sum(-1, keepdim=True)
    return ((1 + 2 * c * xy + c * y2) * x + (1 - c * x2) * y) / (1 + 2 * c * xy + c * c * x2 * y2)


class TestMobiusLinear:
    @every_dtype
    @every_c
    def test_is_the_affine_map_of_the_gyrovector_space(self, c, dtype):
        layer = MobiusLinear(3, 4, ball(c)).to(dtype)
        torch.nn.init.normal_(layer.bias)
        x = points(c, 20, 3, distance=3.0).to(dtype)
        weight, bias, x64 = layer.weight.double(), layer.bias.double(), x.double()
        expected = mobius_sum(exp0(log0(x64, c) @ weight.T, c), exp0(bias, c), c)
        same(layer(x), expected, GEOMETRY[dtype])

    def test_at_c_0_it_is_affine(self):
        layer = MobiusLinear(3, 4, PoincareBall(0.0)).double()
        torch.nn.init.normal_(layer.bias)
        x = points(0.0, 20, 3)
        same(layer(x), torch.nn.functional.linear(x, layer.weight, layer.bias), ROUNDING[torch.float64])

    def test_starts_as_a_linear_layer_without_bias(self):
        layer = MobiusLinear(16, 5000, PoincareBall(1.0))
        assert (layer.bias == 0).all()
        assert 0.999 / 4 < layer.weight.abs().max() <= 1 / 4
        same(layer.weight.square().mean(), 1 / 48, 0.02)

    def test_computes_and_returns_in_the_dtype_of_the_points(self):
        layer = MobiusLinear(3, 4, PoincareBall(1.0))
        x = points(1.0, 20, 3, distance=20.0)
        assert layer(x).dtype == torch.float64
        same(layer(x), layer.double()(x), 0.0)

    @every_c
    def test_derivatives_are_finite_at_the_origin(self, c):
        layer = MobiusLinear(3, 4, PoincareBall(c))
        x = torch.zeros(2, 3, requires_grad=True)
        layer(x).sum().backward()
        # The bias is 0 too; at the origin the layer is linear with the matrix W.
        same(x.grad, layer.weight.sum(0).expand(2, 3), 1e-5)
        same(layer.bias.grad, torch.full((4,), 2.0), 1e-5)

    def test_prints_its_size(self):
        assert "3, 4" in repr(MobiusLinear(3, 4, PoincareBall(1.0)))


class TestMaps:
    @every_dtype
    @every_c
    def test_exp0_is_the_exponential_map(self, c, dtype):
        v = torch.randn(20, 3, dtype=dtype)
        same(Exp0(ball(c))(v), exp0(v.double(), c), GEOMETRY[dtype])

    @every_dtype
    @every_c
    def test_log0_undoes_exp0(self, c, dtype):
        shared = ManifoldModule(ball(c))
        v = torch.randn(20, 3, dtype=dtype)
        same(Log0(shared)(Exp0(shared)(v)), v, GEOMETRY[dtype])

    @every_c
    def test_exp0_undoes_log0(self, c):
        shared = ManifoldModule(ball(c))
        x = points(c, 20, 3)
        same(Exp0(shared)(Log0(shared)(x)), x, GEOMETRY[torch.float64])
