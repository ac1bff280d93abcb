"""Identities of geometry that hold in every space."""

import copy
import math
import pickle

import pytest
import torch
from torch.autograd import gradcheck

from pyro_hyperbolic import Euclidean, Lorentz, PoincareBall, Product, Sphere, Stereographic
from tests.geometry.spaces import CURVED, SPACES
from tests.helpers import DTYPES, GEOMETRY, ROUNDING, same
from tests.loop import curvatures, equals_loop

every_space = pytest.mark.parametrize("case", SPACES, ids=str)
every_curved = pytest.mark.parametrize("case", CURVED, ids=str)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
EXACT = 1e-12


@every_dtype
@every_space
class TestIdentities:
    def test_logarithm_inverts_the_exponential_map(self, case, dtype):
        space, x, v = case.space, case.points(20, dtype=dtype), case.coords(20, seed=1, dtype=dtype)
        y = space.from_normal_coords(x, v)
        assert y.dtype == dtype
        assert space.contains(y).all()
        same(space.to_normal_coords(x, y), v, GEOMETRY[dtype])
        same(space.to_normal_coords(None, space.from_normal_coords(None, v)), v, GEOMETRY[dtype])

    def test_length_of_normal_coordinates_is_the_distance(self, case, dtype):
        space, x, y = case.space, case.points(20, dtype=dtype), case.points(20, seed=1, dtype=dtype)
        same(space.dist(x, y), space.to_normal_coords(x, y).norm(dim=-1), GEOMETRY[dtype])
        same(space.dist0(x), space.to_normal_coords(None, x).norm(dim=-1), GEOMETRY[dtype])

    def test_distance_is_a_metric(self, case, dtype):
        space, x, y, z = case.space, *(case.points(20, seed=seed, dtype=dtype) for seed in range(3))
        same(space.dist(x, y), space.dist(y, x), ROUNDING[dtype])
        assert (space.dist(x, x) == 0).all()
        assert (space.dist(x, z) <= (space.dist(x, y) + space.dist(y, z)) * (1 + ROUNDING[dtype])).all()
        same(space.dist0(x), space.dist(space.origin(case.dim, dtype), x), GEOMETRY[dtype])

    def test_pairwise(self, case, dtype):
        space, x, y = case.space, case.points(2, 4, dtype=dtype), case.points(2, 5, seed=1, dtype=dtype)
        expected = space.dist(x.unsqueeze(-2), y.unsqueeze(-3))
        same(space.pairwise_dist(x, y), expected, GEOMETRY[dtype])

    def test_projx_leaves_points_alone(self, case, dtype):
        x = case.points(20, dtype=dtype)
        same(case.space.projx(x), x, GEOMETRY[dtype])


@every_space
class TestTangentVectors:
    def test_frame_is_orthonormal(self, case):
        space, x = case.space, case.points(4)
        u, v = (case.coords(4, seed=seed) for seed in (1, 2))
        a, b = space.frame(x, u), space.frame(x, v)
        same(space.coframe(x, a), u, EXACT)
        same(space.inner(x, a, b), (u * v).sum(-1), EXACT)
        same(space.norm(x, a), u.norm(dim=-1), EXACT)

    def test_expmap_and_logmap(self, case):
        space, x, y = case.space, case.points(4), case.points(4, seed=1)
        same(space.expmap(x, space.logmap(x, y)), y, EXACT)
        same(space.expmap0(space.logmap0(y)), y, EXACT)
        same(space.norm(x, space.logmap(x, y)), space.dist(x, y), EXACT)

    def test_transport_along_a_geodesic_turns_nothing(self, case):
        space, x, y = case.space, case.points(4), case.points(4, seed=1)
        same(space.transp(x, y, space.logmap(x, y)), -space.logmap(y, x), 1e-10)
        u = space.frame(x, case.coords(4, seed=2))
        same(space.transp(y, x, space.transp(x, y, u)), u, 1e-10)
        same(space.norm(y, space.transp(x, y, u)), space.norm(x, u), EXACT)
        same(space.transp(x, x, u), u, EXACT)

    def test_transport_from_the_origin_is_the_frame(self, case):
        space, y, v = case.space, case.points(4), case.coords(4, seed=1)
        origin = space.origin(case.dim, torch.float64)
        w = space.frame(origin.expand(y.shape), v)
        same(space.transp0(y, w), space.frame(y, v), EXACT)
        same(space.transp(origin.expand(y.shape), y, w), space.frame(y, v), 1e-10)

    def test_geodesic(self, case):
        space, x, y = case.space, case.points(4), case.points(4, seed=1)
        t = torch.linspace(-0.2, 1.2, 8, dtype=torch.float64).unsqueeze(-1)
        path = space.geodesic(t, x, y)
        same(space.dist(x, path), t.abs() * space.dist(x, y), 1e-10)
        same(space.dist(path[1:], path[:-1]), (0.2 * space.dist(x, y)).expand(7, -1), 1e-10)

    def test_base_point_variation(self, case):
        space, m, v = case.space, case.coords(4), case.coords(4, seed=1)
        dm = case.coords(4, seed=2)

        def coords(step):
            there = space.from_normal_coords(None, m + step * dm)
            return space.to_normal_coords(space.from_normal_coords(None, m), space.from_normal_coords(there, v))

        h = 1e-5
        same(space.base_point_variation(m, v, dm), (coords(h) - coords(-h)) / (2 * h), 1e-8)

    def test_plane(self, case):
        space, x, p = case.space, case.points(6), case.points(seed=1)
        a = space.frame(p, case.coords(seed=2))
        if not case.has_planes:
            with pytest.raises(
                ValueError, match="has no distances to geodesic hyperplanes; use its normal coordinates"
            ):
                space.dist2plane(x, p, a)
            return
        distance = space.dist2plane(x, p, a)
        same(space.dist2plane(x, p, a, signed=False), distance.abs(), EXACT)
        same(space.dist2plane(x, p, -3 * a), -distance, EXACT)
        # Along the normal the distance to the plane is that to its foot, in each factor by its share.
        foot = space.expmap(p, 0.1 * a)
        same(space.dist2plane(foot, p, a), 0.1 * space.norm(p, a), 1e-10)
        assert (space.dist2plane(x, p, torch.zeros_like(a)) == 0).all()
        many = space.dist2plane(x.unsqueeze(-2), p.expand(3, -1), a.expand(3, -1))
        same(many, distance.unsqueeze(-1).expand(6, 3), EXACT)


@every_space
class TestVolume:
    def test_log_det_exp(self, case):
        """Against autograd: the Gram determinant of the derivative of the exponential map."""
        space, x = case.space, case.points()
        for v in case.coords(4, seed=1, size=1.2):
            jacobian = torch.autograd.functional.jacobian(lambda v: space.from_normal_coords(x, v), v)
            y = space.from_normal_coords(x, v)
            columns = torch.stack([space.coframe(y, column) for column in jacobian.mT], -1)
            same(space.log_det_exp(v), torch.linalg.slogdet(columns).logabsdet, 1e-9)

    def test_unconstrained_coordinates(self, case):
        space = case.space
        for v in case.coords(4, seed=1, size=1.5):
            x = space.from_unconstrained(v)
            assert space.contains(x)
            same(space.to_unconstrained(x), v, 1e-10)
            jacobian = torch.autograd.functional.jacobian(space.from_unconstrained, v)
            columns = torch.stack([space.coframe(x, column) for column in jacobian.mT], -1)
            same(space.log_det_unconstrained(v), torch.linalg.slogdet(columns).logabsdet, 1e-9)

    def test_log_volume_element(self, case):
        """The volumes of a cell of coordinates and of normal coordinates agree."""
        space, v = case.space, case.coords(size=0.4)

        def free(v):
            parts = torch.split(
                space.from_normal_coords(None, v), [s.ambient_dim(d) for s, d in space.leaves(case.dim)]
            )
            leaves = zip(parts, space.leaves(case.dim), strict=True)
            return torch.cat([part[s.ambient_dim(d) - d :] for part, (s, d) in leaves])

        jacobian = torch.autograd.functional.jacobian(free, v)
        expected = space.log_det_exp(v) - torch.linalg.slogdet(jacobian).logabsdet
        same(space.log_volume_element(space.from_normal_coords(None, v)), expected, 1e-9)


@every_space
def test_frechet_mean(case):
    space, x = case.space, case.points(3, 6)
    weights = torch.rand(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mean = space.frechet_mean(x, weights)
    towards = (weights.unsqueeze(-1) * space.to_normal_coords(mean.unsqueeze(-2), x)).sum(-2)
    assert towards.abs().max() < 1e-12


@pytest.mark.parametrize("seed", range(5))
def test_frechet_mean_on_a_sphere_of_spread_points_is_a_minimum(seed):
    sphere = Sphere(1.0)
    x = sphere.projx(torch.randn(7, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)))
    mean = sphere.frechet_mean(x)

    def value(m):
        return sphere.dist(m, x).square().mean()

    nearby = sphere.from_normal_coords(mean, 1e-3 * torch.eye(3, dtype=torch.float64))
    assert all(value(mean) <= value(m) for m in nearby)


@every_curved
def test_derivatives(case):
    v = case.coords(seed=1).requires_grad_()
    c = torch.tensor(case.c, dtype=torch.float64, requires_grad=True)

    def f(v, c):
        space = case.of(c)
        x = space.from_normal_coords(None, case.coords())
        y = space.from_normal_coords(x, v)
        out = [space.dist(x, space.from_normal_coords(None, v)), space.dist0(y), space.log_det_exp(v)]
        return torch.cat([torch.stack(out), space.to_normal_coords(None, y)])

    assert gradcheck(f, (v, c))


@every_dtype
@every_curved
def test_derivatives_are_finite_at_the_origin_and_where_points_coincide(case, dtype):
    zero = torch.zeros(case.dim, dtype=dtype, requires_grad=True)
    kappa = torch.tensor(case.c, dtype=dtype, requires_grad=True)
    space = case.of(kappa)
    x = space.from_normal_coords(None, zero)
    for out in (space.dist(x, x.clone()), space.dist0(x), space.to_normal_coords(x, x.clone()).sum()):
        for grad in torch.autograd.grad(out, (zero, kappa), retain_graph=True, allow_unused=True):
            assert grad is None or grad.isfinite().all()


OPS = {
    "from_normal_coords": lambda M, x, y, v: M.from_normal_coords(x, v),
    "to_normal_coords": lambda M, x, y, v: M.to_normal_coords(x, y),
    "dist": lambda M, x, y, v: M.dist(x, y),
    "transp": lambda M, x, y, v: M.transp(x, y, M.frame(x, v)),
    "dist2plane": lambda M, x, y, v: M.dist2plane(x, y, M.frame(y, v)),
    "log_det_exp": lambda M, x, y, v: M.log_det_exp(v),
    "from_unconstrained": lambda M, x, y, v: M.from_unconstrained(v),
    "log_det_unconstrained": lambda M, x, y, v: M.log_det_unconstrained(M.to_unconstrained(x)),
    "variation": lambda M, x, y, v: M.base_point_variation(v, M.to_normal_coords(None, x), v.flip(-1)),
    "contains": lambda M, x, y, v: M.contains(x).double(),
}


# One of two shapes for each operation and space, in turns. Ball and hyperboloid have a table of their own.
LOOPS = [
    (case, name, *[((2,), ()), ((2, 1), (2,))][(i + j) // 2 % 2])
    for i, case in enumerate(CURVED)
    for j, name in enumerate(OPS)
    if (i + j) % 2 == 0
    and (
        case.of not in (PoincareBall, Lorentz) or name in ("log_det_exp", "from_unconstrained", "log_det_unconstrained")
    )
]


@pytest.mark.parametrize(("case", "name", "shape", "batch"), LOOPS, ids=str)
def test_batch_of_curvatures_equals_loop(case, name, shape, batch):
    op = OPS[name]

    def f(c, x, y, v):
        space = case.of(c)
        return op(space, space.from_normal_coords(None, x), space.from_normal_coords(None, y), v)

    leaves = [case.coords(*batch, seed=seed).requires_grad_() for seed in range(3)]
    equals_loop(f, curvatures(shape, flat=False), leaves, [1, 1, 1], 4 * ROUNDING[torch.float64])


@every_curved
def test_batch_of_curvatures_on_sets_equals_loop(case):
    def f(c, x, y):
        space = case.of(c.unsqueeze(-1))
        x, y = space.from_normal_coords(None, x), space.from_normal_coords(None, y)
        return torch.cat([space.pairwise_dist(x, y).flatten(-2), space.frechet_mean(x)], -1)

    x, y = (case.coords(n, seed=n).requires_grad_() for n in (4, 5))
    equals_loop(f, curvatures((2,), flat=False), [x, y], [2, 2], 10 * ROUNDING[torch.float64])
    space = case.of(torch.ones(4))
    with pytest.raises(ValueError, match="size 1 in its last dimension"):
        space.pairwise_dist(case.points(4), case.points(4))


@every_space
def test_object(case):
    space = case.space
    for twin in (copy.deepcopy(space), pickle.loads(pickle.dumps(space)), case.space):
        assert twin == space
        assert hash(twin) == hash(space)
    assert space != PoincareBall(17.0)
    assert space.intrinsic_dim(space.ambient_dim(case.dim)) == case.dim
    assert space.origin(case.dim, torch.float32).dtype == torch.float32
    assert (space.dist0(space.origin(case.dim)) == 0).all()
    assert sum(dim for _, dim in space.leaves(case.dim)) == case.dim
    assert sum(space.parts(case.dim)) == case.dim
    assert type(space.with_curvatures(space.curvatures)) is type(space)
    assert space.with_curvatures(space.curvatures) == space
    assert len(space.signed_curvatures) == len(space.curvatures)
    assert space.features(case.points(4)).shape == (4, space.num_features(case.dim))
    assert space.assume_valid() == space


SIZES = r"\d coordinates|number of coordinates, got \d and \d"
POINTS = ["dist", "pairwise_dist", "logmap", "to_normal_coords", "coframe", "expmap", "norm", "transp0"]


@pytest.mark.parametrize("other", [1, 4])
@every_space
def test_points_of_another_dimension(case, other):
    if case.dim == other:
        return
    space, x, v = case.space, case.points(2, 3), case.coords(2, 3)
    y, w = torch.full((2, 3, x.shape[-1] + other - case.dim), 0.1, dtype=x.dtype), v.new_zeros(2, 3, other)
    for name in POINTS:
        for pair in ((x, y), (y, x)):
            with pytest.raises(ValueError, match=SIZES):
                getattr(space, name)(*pair)
    for call in (
        lambda: space.inner(x, x, y),
        lambda: space.transp(x, x, y),
        lambda: space.geodesic(0.5, x, y),
        *([lambda: space.dist2plane(x, y, y), lambda: space.dist2plane0(x, x, w)] if case.has_planes else []),
        lambda: space.from_normal_coords(x, w),
        lambda: space.frame(x, w),
        lambda: space.recentre(v, w),
        lambda: space.base_point_variation(v, v, w),
        *([lambda: space.mobius_pointwise_mul(w, x)] if hasattr(space, "mobius_pointwise_mul") else []),
    ):
        with pytest.raises(ValueError, match=f"{SIZES}|has dimension"):
            call()


@every_space
def test_what_is_no_point(case):
    x = case.points()
    for value in (x.tolist(), 0.3, x[0]):
        with pytest.raises(ValueError, match=r"points and vectors must be tensors of shape \(\.\.\., d\), got"):
            case.space.dist(value, x)
        with pytest.raises(ValueError, match=r"points and vectors must be tensors of shape \(\.\.\., d\), got"):
            case.space.dist0(value)


@pytest.mark.parametrize("dim", [-1, 0, 2.0, True])
@pytest.mark.parametrize("chart", [PoincareBall, Lorentz, Sphere, Stereographic, lambda c: Euclidean()])
def test_origin_of_a_dimension_that_is_none(chart, dim):
    with pytest.raises(ValueError, match="dim must be a positive integer, got"):
        chart(1.0).origin(dim)


@every_curved
def test_curvatures(case):
    c = torch.tensor(case.c, dtype=torch.float64, requires_grad=True)
    space = case.of(c)
    assert space.moves
    assert not space.detach().moves
    assert not case.space.moves
    assert space.detach() == space
    assert all(value is c for value in space.curvatures)
    assert case.of(torch.ones(3)).unsqueeze().batch_shape == (3, 1)
    assert case.of(torch.ones(3, 1)).squeeze().batch_shape == (3,)
    assert case.of(2.0) != case.of(1.0)


class TestSphere:
    @every_dtype
    def test_antipode(self, dtype):
        sphere = Sphere(4.0)
        x = torch.tensor([0.5, 0.0, 0.0], dtype=dtype, requires_grad=True)
        y = torch.tensor([-0.5, 0.0, 0.0], dtype=dtype, requires_grad=True)
        v = sphere.to_normal_coords(x, y)
        same(v, torch.tensor([math.pi / 2, 0.0]), 1e-6)
        u = torch.tensor([0.0, 0.3, 0.4], dtype=dtype)
        outs = [v.sum(), sphere.dist(x, y), sphere.transp(x, y, u).sum(), sphere.to_normal_coords(None, y).sum()]
        for out in outs:
            for grad in torch.autograd.grad(out, (x, y), allow_unused=True, retain_graph=True):
                assert grad is None or grad.isfinite().all()
        same(sphere.transp(x, y, u), u, 0)

    @every_dtype
    def test_distances_keep_their_digits_near_the_antipode(self, dtype):
        sphere = Sphere(1.0)
        gaps = torch.logspace(-6, 0, 13, dtype=dtype) if dtype == torch.float64 else torch.logspace(-3, 0, 7)
        v = torch.stack([math.pi - gaps, torch.zeros_like(gaps)], -1)
        x = sphere.from_normal_coords(None, v)
        same(math.pi - sphere.dist0(x).double(), gaps.double(), ROUNDING[dtype])
        same(math.pi - sphere.dist(sphere.origin(2, dtype), x).double(), gaps.double(), ROUNDING[dtype])

    @every_dtype
    def test_steps_from_near_antipodes_of_the_origin_end_on_the_sphere(self, dtype):
        """Where the frame comes from a sum of the point and the origin that is as short as their rounding."""
        generator = torch.Generator().manual_seed(0)
        sphere, gaps = Sphere(1.4), torch.logspace(-9, 0, 400, dtype=torch.float64).unsqueeze(-1)
        around, v, far = torch.randn(3, 400, 3, generator=generator, dtype=torch.float64)
        around, k = around / around.norm(dim=-1, keepdim=True), math.sqrt(1.4)
        x = (torch.cat([-gaps.cos(), gaps.sin() * around], -1) / k).to(dtype)
        v = (v / v.norm(dim=-1, keepdim=True)).to(dtype)
        y = sphere.from_normal_coords(x, v)
        assert sphere.contains(y).all()
        same(sphere.dist(x, y), torch.ones(400), ROUNDING[dtype])
        same(sphere.to_normal_coords(x, y), v, ROUNDING[dtype])
        start = sphere.from_normal_coords(None, far.to(dtype))
        end = sphere.from_normal_coords(start, (math.pi / k - gaps).to(dtype) * v)
        u = sphere.frame(start, v)
        assert (sphere.transp(start, end, u) * end).sum(-1).abs().max() < ROUNDING[dtype]

    def test_a_closed_geodesic_has_the_length_of_the_period(self):
        sphere, v = Sphere(0.3), torch.tensor([0.3, -1.0], dtype=torch.float64)
        period = sphere.period(v)
        for m in (-2, -1, 1, 3):
            again = v + m * period * v / v.norm()
            same(sphere.from_normal_coords(None, again), sphere.from_normal_coords(None, v), EXACT)

    def test_the_largest_distance_to_a_plane_has_a_finite_derivative(self):
        x = torch.tensor([0.0, 0.0, 1.0], requires_grad=True)
        p, a = torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0.0, 0.0, 2.0])
        distance = Sphere(1.0).dist2plane(x, p, a)
        same(distance, math.pi / 2, 1e-6)
        assert torch.autograd.grad(distance, x)[0].isfinite().all()

    @pytest.mark.parametrize(("c", "match"), [(0.0, "use Euclidean"), (-1.0, "positive and finite"), (math.nan, "nan")])
    def test_bad_curvature(self, c, match):
        for value in (c, torch.tensor(c)):
            with pytest.raises(ValueError, match=match):
                Sphere(value)

    def test_points_off_the_sphere(self):
        x = torch.tensor([[1.0, 0.0], [1.1, 0.0], [math.nan, 0.0], [math.inf, 0.0]])
        assert Sphere(1.0).contains(x).tolist() == [True, False, False, False]


class TestProduct:
    def test_needs_a_factor(self):
        with pytest.raises(ValueError, match="at least one factor"):
            Product()

    @pytest.mark.parametrize("factor", [Sphere(1.0), (Sphere(1.0),), (2, Sphere(1.0)), (Sphere(1.0), 0), "s2"])
    def test_bad_factor(self, factor):
        with pytest.raises(ValueError, match="factor"):
            Product(factor)

    def test_wrong_sizes(self):
        space = Product((PoincareBall(1.0), 2), (Sphere(1.0), 2))
        with pytest.raises(ValueError, match=r"5 coordinates, 2 \+ 3, got 4"):
            space.dist0(torch.zeros(4))
        with pytest.raises(ValueError, match=r"dimension 4, 2 \+ 2, got 5"):
            space.from_normal_coords(None, torch.zeros(5))
        with pytest.raises(ValueError, match="has dimension 4"):
            Product((space, 3))

    def test_curvatures_that_do_not_broadcast(self):
        with pytest.raises(ValueError, match=r"\[\(2,\), \(3,\)\].*do not broadcast"):
            Product((PoincareBall(torch.ones(2)), 2), (Sphere(torch.ones(3)), 2))

    def test_period_is_that_of_a_leaf(self):
        """A product with a sphere does not pass for an open space, and has no sign of its own."""
        space = Product((PoincareBall(1.0), 2), Product((Sphere(4.0), 2)))
        assert space.geodesics_close
        with pytest.raises(ValueError, match=r"has no one period; ask each of its leaves\(dim\)"):
            space.period(torch.zeros(1))
        assert [leaf.period(torch.zeros(1)) for leaf, _ in space.leaves(4)] == [None, math.pi]
        assert not hasattr(space, "sign")
        assert not hasattr(space, "opposite")
        flat = Product((PoincareBall(1.0), 2), (Euclidean(), 2))
        assert not flat.geodesics_close
        assert flat.period(torch.zeros(1)) is None

    def test_factors(self):
        ball, sphere = PoincareBall(2.0), Sphere(0.5)
        space = Product((ball, 2), Product((sphere, 1), (Euclidean(), 3)))
        assert space.leaves(6) == [(ball, 2), (sphere, 1), (Euclidean(), 3)]
        assert space.curvatures == (2.0, 0.5)
        assert space.with_curvatures([1.0, 3.0]).curvatures == (1.0, 3.0)
        assert repr(Product((sphere, 1))) == "Product((Sphere(c=0.5), 1))"
        v = torch.randn(6, dtype=torch.float64)
        x, y, z = (
            space.split(space.from_normal_coords(None, v))[0],
            *space.factors[1][0].split(space.split(space.from_normal_coords(None, v))[1]),
        )
        same(x, ball.from_normal_coords(None, v[:2]), EXACT)
        same(y, sphere.from_normal_coords(None, v[2:3]), EXACT)
        same(z, v[3:], EXACT)


def test_closed_space_without_a_bijection():
    """The exponential map is no bijection there, so it must not pass for one."""

    class Closed(Euclidean):
        geodesics_close = True

    for call in (Closed().from_unconstrained, Closed().to_unconstrained, Closed().log_det_unconstrained):
        with pytest.raises(NotImplementedError, match="its class has to give from_unconstrained"):
            call(torch.zeros(2))
