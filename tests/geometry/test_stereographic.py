"""The stereographic chart of either curvature, near its end and through 0."""

import math

import mpmath
import pytest
import torch
from torch.autograd import gradcheck

from pyro_hyperbolic import PoincareBall, Sphere, Stereographic
from tests.helpers import DTYPES, ROUNDING, same

every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
EXACT = 1e-12
MP = mpmath.mp.clone()
MP.dps = 50


def _sphere_step(x, v, k):
    """The point of the sphere at the end of the normal coordinates ``v`` at the stereographic ``x``, with 50 digits."""
    x, v = ([MP.mpf(number) for number in vector] for vector in (x, v))
    root, gap = MP.sqrt(k), 1 + k * MP.fdot(x, x)
    along, angle = MP.fdot(x, v), MP.sqrt(k) * MP.sqrt(MP.fdot(v, v))
    place = [(2 - gap) / gap / root, *(2 * a / gap for a in x)]
    step = [-2 * root * along / gap, *(b - 2 * k * along * a / gap for a, b in zip(x, v, strict=True))]
    return [float(MP.cos(angle) * p + MP.sinc(angle) * u) for p, u in zip(place, step, strict=True)]


class TestStereographic:
    X, Y = (torch.tensor(p, dtype=torch.float64) for p in ([0.3, -0.4, 0.2], [-0.5, 0.1, 0.4]))

    @pytest.mark.parametrize("kind", [float, torch.tensor], ids=["float", "tensor"])
    def test_negative_half_is_the_ball(self, kind):
        ours, ball = Stereographic(kind(-1.3)), PoincareBall(1.3)
        v = torch.tensor([0.4, 0.3, -0.2], dtype=torch.float64)
        for name, arguments in {
            "dist": (self.X, self.Y),
            "expmap": (self.X, v),
            "logmap": (self.X, self.Y),
            "transp": (self.X, self.Y, v),
            "dist2plane": (self.X, self.Y, v),
            "log_det_exp": (v,),
            "log_volume_element": (self.X,),
            "from_unconstrained": (v,),
        }.items():
            same(getattr(ours, name)(*arguments), getattr(ball, name)(*arguments), 1e-6 if kind is not float else EXACT)

    @pytest.mark.parametrize("scale", [1.0, 5.0])
    def test_positive_half_is_the_sphere(self, scale):
        k = torch.tensor(1.3, dtype=torch.float64)
        ours, sphere = Stereographic(k), Sphere(k)
        x, y = scale * self.X, -2 * scale * self.Y
        p, q = (sphere.from_unconstrained(2 * z) for z in (x, y))
        same(ours.dist(x, y), sphere.dist(p, q), EXACT)
        same(ours.dist0(x), sphere.dist0(p), EXACT)
        same(ours.dist(torch.zeros_like(y), y), ours.dist0(y), EXACT)
        same(ours.to_normal_coords(torch.zeros_like(y), y), ours.to_normal_coords(None, y), EXACT)
        same(ours.pairwise_dist(x[None], y[None]), sphere.pairwise_dist(p[None], q[None]), 1e-8)
        same(ours.to_normal_coords(x, y), sphere.to_normal_coords(p, q), 1e-11)

    def test_derivatives_in_k_through_zero(self):
        def f(k):
            space = Stereographic(k)
            v = space.to_normal_coords(self.X, self.Y)
            y = space.from_normal_coords(self.X, v.flip(-1))
            return torch.stack(
                [space.dist(self.X, self.Y), space.dist2plane(self.X, y, v), space.log_det_exp(v), y.sum()]
            )

        for k in (-1e-2, -1e-9, 0.0, 1e-9, 1e-2):
            assert gradcheck(f, torch.tensor(k, dtype=torch.float64, requires_grad=True))

    def test_antipodes(self):
        k = torch.tensor(4.0, dtype=torch.float64, requires_grad=True)
        space = Stereographic(k)
        x = torch.tensor([0.5, 0.0], dtype=torch.float64, requires_grad=True)
        y = torch.tensor([-0.5, 0.0], dtype=torch.float64, requires_grad=True)
        v = space.to_normal_coords(x, y)
        same(v, torch.tensor([math.pi / 2, 0.0]), 1e-6)
        for out in (v.sum(), space.dist(x, y), space.pairwise_dist(x[None], y[None]).sum()):
            same(out, math.pi / 2, 1e-6)
            assert all(g.isfinite().all() for g in torch.autograd.grad(out, (x, y, k), retain_graph=True))

    @every_dtype
    @pytest.mark.parametrize("kind", [float, torch.tensor], ids=["float", "tensor"])
    @pytest.mark.parametrize("start", [0.0, 1e-30, 0.7, 2.5, math.pi - 1e-3, math.pi - 1e-7])
    def test_steps_to_the_antipode_of_the_origin(self, start, kind, dtype):
        """Coordinates end there; 50 digits say where a step leads, and a plane how fast."""
        space, sphere = Stereographic(kind(1.25)), Sphere(1.25)
        x, v = self._steps(space, sphere, start, torch.logspace(-17, 0, 60, dtype=torch.float64), dtype)
        z = space.from_normal_coords(x, v)
        steps = [_sphere_step(*pair, 1.25) for pair in zip(x.tolist(), v.tolist(), strict=True)]
        same(sphere.from_unconstrained(2 * z.double()), steps, 32 * torch.finfo(dtype).eps)
        same(space.projx(z), z, ROUNDING[dtype])
        height = space.dist2plane(z, 0.1 * torch.ones_like(z), torch.ones_like(z))
        slope_x, slope_v = torch.autograd.grad(height.sum(), (x, v))
        assert slope_v.norm(dim=-1).max() < 1.2
        assert space.coframe(x, slope_x).isfinite().all()

    def _steps(self, space, sphere, start, gaps, dtype):
        """Points at the angle ``start``, and normal coordinates of points at some angles from the antipode."""
        noise = torch.Generator().manual_seed(0)
        first, second = torch.randn(2, len(gaps), 2, generator=noise, dtype=torch.float64)
        first, second = (u / u.norm(dim=-1, keepdim=True) for u in (first, second))
        radius = sphere.period(first) / (2 * math.pi)
        x = space.from_normal_coords(None, (start * radius * first).to(dtype))
        ends = sphere.from_normal_coords(None, radius * (math.pi - gaps.unsqueeze(-1)) * second)
        v = sphere.to_normal_coords(sphere.from_unconstrained(2 * x.double()), ends).to(dtype)
        return x.requires_grad_(), v.requires_grad_()

    @every_dtype
    def test_an_antipode_has_no_coordinates_but_near_ones(self, dtype):
        space, x = Stereographic(4.0), torch.tensor([[0.5, 0.0], [0.0, 0.5]], dtype=dtype)
        z = space.mobius_add(x, x)
        assert z.isfinite().all()
        assert z.norm(dim=-1).min() > 1e5
        same(space.dist0(z), torch.full((2,), math.pi / 2), 1e-5)
        same(space.projx(1e3 * z) / z.norm(dim=-1, keepdim=True), torch.tensor([[1.0, 0.0]] * 2), ROUNDING[dtype])

    @every_dtype
    @pytest.mark.parametrize("start", [0.7, 2.5, math.pi - 1e-3, math.pi - 1e-6])
    def test_logarithm_at_far_points(self, start, dtype):
        """Of points at less than half a turn."""
        space, sphere = Stereographic(torch.tensor(1.25)), Sphere(1.25)
        x, v = self._steps(space, sphere, start, torch.linspace(0.7, math.pi, 20, dtype=torch.float64), dtype)
        y = space.from_normal_coords(x, (v * (2 / v.norm(dim=-1, keepdim=True)).clamp(max=1)))
        truth = sphere.to_normal_coords(*(sphere.from_unconstrained(2 * z.detach().double()) for z in (x, y)))
        same(space.to_normal_coords(x, y), truth, 32 * torch.finfo(dtype).eps)

    @every_dtype
    @pytest.mark.parametrize("gap", [1e-1, 1e-3, 1e-5])
    def test_transport_between_near_antipodes(self, gap, dtype):
        space = Stereographic(torch.tensor(1.3, dtype=dtype))
        x = torch.tensor([[0.3, -0.4], [3.0, 1.0], [100.0, 20.0]], dtype=dtype)
        y = space.from_normal_coords(x, (math.pi / math.sqrt(1.3) - gap) * torch.tensor([0.6, 0.8], dtype=dtype))
        carried = space.transp(x, y, space.logmap(x, y))
        tolerance = 32 * torch.finfo(dtype).eps / gap
        same(space.coframe(y, carried), -space.coframe(y, space.logmap(y, x)), tolerance)

    def test_object(self):
        assert repr(Stereographic(torch.tensor([-1.0, 2.0]))) == "Stereographic(k=[-1, 2] of shape (2,))"
        assert Stereographic(1.0) == Stereographic(torch.tensor(1.0)) != Stereographic(-1.0)
        assert [Stereographic(k).sign for k in (-1.0, 0.0, 1.0, torch.tensor(1.0))] == [1, 1, -1, 0]
        for bad in (math.nan, math.inf, -math.inf):
            for value in (bad, torch.tensor(bad)):
                with pytest.raises(ValueError, match="k must be finite"):
                    Stereographic(value)
        for bad in (True, "1", None, torch.tensor(1)):
            with pytest.raises(ValueError, match=r"k must be a (number|floating tensor), got .*k \(the curvature\)"):
                Stereographic(bad)
