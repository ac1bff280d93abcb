"""The support, the map onto it, and what Pyro does with them."""

import copy
import math
import pickle

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.distributions import TransformedDistribution, biject_to, transform_to

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import PoincareBall
from tests.distributions.cases import HYPERBOLIC, NORMALS, ONE_TO_ONE
from tests.helpers import DTYPES, GEOMETRY, each, same

on = hdist.constraints.on
CURVATURES = [0.0, 0.1, 1.0, 4.0]
every_c = each("c", CURVATURES)
every_dim = each("dim", [1, 2, 5])
every_dtype = each("dtype", DTYPES)
# One row for each space: the support knows nothing of the distribution.
SUPPORTS = list({(case.chart, case.dim, case.c): case for case in NORMALS}.values())
every_support = each("case", SUPPORTS)


def _support(case):
    return case.make().support


class TestConstraint:
    @pytest.mark.parametrize("other", [1.0, torch.tensor(1.0), torch.tensor(1.0, requires_grad=True)], ids=str)
    def test_equal_curvature_makes_it_equal(self, other):
        assert on(PoincareBall(1.0)) == on(PoincareBall(other))
        assert hash(on(PoincareBall(1.0))) == hash(on(PoincareBall(other)))

    @pytest.mark.parametrize("other", [on(PoincareBall(0.5)), PoincareBall(1.0), dist.constraints.real_vector, None])
    def test_anything_else_is_different(self, other):
        assert on(PoincareBall(1.0)) != other

    @pytest.mark.parametrize("c", [0.5, torch.tensor(0.5), torch.tensor(0.5, requires_grad=True)], ids=str)
    def test_repr_gives_the_manifold(self, c):
        assert repr(on(PoincareBall(c))) == "on(PoincareBall(c=0.5))"

    def test_it_needs_a_manifold(self):
        with pytest.raises(ValueError, match=r"manifold must be a manifold, got 1.0; pass for example PoincareBall"):
            on(1.0)

    @every_dtype
    @pytest.mark.parametrize("c", [0.1, 1.0, 4.0])
    def test_check_is_about_being_strictly_inside(self, c, dtype):
        radius = torch.tensor([0.0, 0.999, 1.001, math.nan, math.inf], dtype=dtype) / math.sqrt(c)
        points = radius.unsqueeze(-1) * torch.tensor([0.6, 0.8], dtype=dtype)
        assert on(PoincareBall(c)).check(points).tolist() == [True, True, False, False, False]

    def test_the_border_is_outside(self):
        assert not on(PoincareBall(1.0)).check(torch.tensor([1.0, 0.0]))

    def test_it_is_one_event_dimension_and_continuous(self):
        assert on(PoincareBall(1.0)).event_dim == 1
        assert not on(PoincareBall(1.0)).is_discrete

    @pytest.mark.parametrize("copier", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["copy", "pickle"])
    def test_copies_are_equal(self, copier):
        assert copier(on(PoincareBall(0.3))) == on(PoincareBall(0.3))

    @every_support
    def test_support_of_a_distribution_has_its_curvature(self, case):
        assert _support(case) == case.make((3,)).expand((2, 3)).support
        assert _support(case).manifold == case.manifold


@pytest.mark.parametrize("registry", [biject_to, transform_to])
class TestRegistries:
    @every_dtype
    @every_support
    def test_round_trip(self, registry, case, dtype):
        transform = registry(_support(case))
        v = torch.randn(50, case.dim, dtype=dtype)
        points = transform(v)
        assert points.shape == (50, *case.event_shape)
        assert _support(case).check(points).all()
        same(transform.inv(points), v, GEOMETRY[dtype])

    @pytest.mark.parametrize("case", ONE_TO_ONE, ids=str)
    def test_length_of_a_coordinate_is_the_distance_to_the_origin(self, registry, case):
        v = 2 * torch.randn(50, case.dim, dtype=torch.float64)
        same(case.manifold.dist0(registry(_support(case))(v)), v.norm(dim=-1), 1e-9)

    @every_support
    def test_zero_is_the_origin(self, registry, case):
        zero = torch.zeros(case.dim, dtype=torch.float64)
        origin = case.manifold.origin(case.dim, torch.float64)
        torch.testing.assert_close(registry(_support(case))(zero), origin)


class TestJacobian:
    @pytest.mark.parametrize("centred", [True, False], ids=["at the origin", "elsewhere"])
    @every_dim
    @every_c
    def test_against_autograd(self, c, dim, centred):
        # In the Riemannian measure: log|det dz/dv| + d log(lambda_z).
        ball = PoincareBall(c)
        loc = None if centred else torch.full((dim,), 0.15, dtype=torch.float64)
        transform = hdist.ExpMapTransform(ball, loc)
        for v in torch.randn(5, dim, dtype=torch.float64):
            z = transform(v)
            jacobian = torch.autograd.functional.jacobian(transform, v)
            expected = torch.linalg.slogdet(jacobian).logabsdet + dim * torch.log(ball.lambda_x(z))
            same(transform.log_abs_det_jacobian(v, z), expected, 1e-9)

    @pytest.mark.parametrize("case", HYPERBOLIC, ids=str)
    def test_shape_and_formula(self, case):
        v = torch.randn(4, 3, case.dim, dtype=torch.float64)
        transform = biject_to(_support(case))
        s = math.sqrt(case.c) * v.norm(dim=-1)
        expected = (case.dim - 1) * torch.log(torch.sinh(s) / s) if case.c > 0 else torch.zeros_like(s)
        same(transform.log_abs_det_jacobian(v, transform(v)), expected, 1e-9)

    def test_inverse_has_the_opposite_one(self):
        transform = biject_to(on(PoincareBall(1.0)))
        v = torch.randn(4, 2)
        z = transform(v)
        torch.testing.assert_close(
            transform.inv.log_abs_det_jacobian(z, v), -transform.log_abs_det_jacobian(v, z), rtol=0, atol=0
        )

    def test_at_zero_it_is_zero_with_zero_gradient(self):
        v = torch.zeros(3, requires_grad=True)
        transform = biject_to(on(PoincareBall(1.0)))
        log_det = transform.log_abs_det_jacobian(v, transform(v))
        assert log_det == 0
        assert (torch.autograd.grad(log_det, v)[0] == 0).all()


class TestTransform:
    @pytest.mark.parametrize("kind", ["isotropic", "diagonal", "full"])
    def test_transformed_gaussian_is_the_wrapped_normal(self, kind):
        ball, loc = PoincareBall(0.7), torch.tensor([[0.3, -0.2], [0.0, 0.5]], dtype=torch.float64)
        root = torch.tensor([[0.7, 0.0], [0.0, 0.7]], dtype=torch.float64)
        root[1] = {"isotropic": root[1], "diagonal": root[1] * 2, "full": torch.tensor([0.4, 0.3])}[kind]
        wrapped = hdist.WrappedNormal(loc, scale_tril=root, manifold=ball)
        gaussian = dist.MultivariateNormal(torch.zeros(2, 2, dtype=torch.float64), scale_tril=root)
        transformed = TransformedDistribution(gaussian, hdist.ExpMapTransform(ball, loc))
        value = wrapped.sample((20,))
        assert (transformed.batch_shape, transformed.event_shape) == (wrapped.batch_shape, wrapped.event_shape)
        assert transformed.support == wrapped.support
        same(transformed.log_prob(value), wrapped.log_prob(value.clone()), 1e-10)

    def test_transformed_gaussian_draws_what_the_wrapped_normal_draws(self):
        ball, loc = PoincareBall(1.0), torch.tensor([0.3, -0.2])
        transformed = dist.TransformedDistribution(
            dist.Normal(torch.zeros(2), torch.tensor(0.5)).to_event(1), hdist.ExpMapTransform(ball, loc)
        )
        torch.manual_seed(0)
        expected = hdist.WrappedNormal(loc, 0.5, ball).rsample((10,))
        torch.manual_seed(0)
        torch.testing.assert_close(transformed.rsample((10,)), expected)

    def test_with_cache_keeps_the_last_pair(self):
        transform = hdist.ExpMapTransform(PoincareBall(1.0)).with_cache()
        v = torch.tensor([5.0, 1.0])
        assert transform.inv(transform(v)) is v

    def test_without_cache_nothing_is_kept(self):
        transform = hdist.ExpMapTransform(PoincareBall(1.0))
        v = torch.tensor([5.0, 1.0])
        assert transform.inv(transform(v)) is not v

    def test_with_cache_of_the_same_size_is_itself(self):
        transform = hdist.ExpMapTransform(PoincareBall(1.0), cache_size=1)
        assert transform.with_cache(1) is transform
        assert transform.with_cache(0) is not transform
        assert transform.with_cache(0) == transform

    def test_a_copy_forgets_the_cached_pair(self):
        transform = hdist.ExpMapTransform(PoincareBall(1.0), cache_size=1)
        z = transform(torch.ones(2, requires_grad=True))
        assert copy.deepcopy(transform) == transform
        torch.testing.assert_close(copy.deepcopy(transform).inv(z), torch.ones(2))

    LOC = torch.tensor([0.1, 0.2])

    @pytest.mark.parametrize(
        ("other", "equal"),
        [
            (hdist.ExpMapTransform(PoincareBall(1.0), LOC), True),
            (hdist.ExpMapTransform(PoincareBall(1.0), LOC.clone()), True),
            (hdist.ExpMapTransform(PoincareBall(1.0), LOC, cache_size=1), True),
            (hdist.ExpMapTransform(PoincareBall(0.5), LOC), False),
            (hdist.ExpMapTransform(PoincareBall(1.0), 2 * LOC), False),
            (hdist.ExpMapTransform(PoincareBall(1.0)), False),
            (torch.distributions.ExpTransform(), False),
        ],
    )
    def test_equality(self, other, equal):
        assert (hdist.ExpMapTransform(PoincareBall(1.0), self.LOC) == other) is equal

    def test_equality_at_the_origin(self):
        assert hdist.ExpMapTransform(PoincareBall(1.0)) == hdist.ExpMapTransform(PoincareBall(1.0))

    @pytest.mark.parametrize(
        ("loc", "shape", "expected"),
        [((), (4, 2), (4, 2)), ((2,), (4, 2), (4, 2)), ((3, 2), (2,), (3, 2)), ((3, 2), (4, 1, 2), (4, 3, 2))],
        ids=str,
    )
    def test_shapes(self, loc, shape, expected):
        transform = hdist.ExpMapTransform(PoincareBall(1.0), torch.zeros(loc) if loc else None)
        assert transform.forward_shape(torch.Size(shape)) == expected
        assert transform.inverse_shape(torch.Size(shape)) == expected
        assert transform(torch.zeros(shape)).shape == expected

    def test_it_is_a_bijection_from_real_vectors(self):
        transform = hdist.ExpMapTransform(PoincareBall(0.3))
        assert transform.bijective
        assert transform.domain == dist.constraints.real_vector
        assert transform.codomain == on(PoincareBall(0.3))

    def test_gradient_reaches_the_curvature(self):
        c = torch.tensor(0.5, requires_grad=True)
        z = biject_to(on(PoincareBall(c)))(torch.tensor([1.0, 2.0]))
        assert torch.autograd.grad(z.sum(), c)[0] < 0  # the same distance is nearer in a smaller ball


class TestPyroParam:
    def test_descent_stays_in_the_ball_and_reaches_the_minimum(self):
        ball = PoincareBall(1.0)
        target = torch.tensor([0.9, -0.3], dtype=torch.float64)  # the border is at 0.95 of this direction

        def parameter():
            start = torch.zeros(2, dtype=torch.float64)
            return pyro.param("p", start, constraint=on(PoincareBall(1.0)))

        parameter()
        optimiser = torch.optim.Adam([pyro.get_param_store()._params["p"]], lr=0.2)
        for _ in range(150):
            optimiser.zero_grad()
            loss = ball.dist(parameter(), target).square()
            loss.backward()
            optimiser.step()
            assert on(PoincareBall(1.0)).check(parameter())
        assert ball.dist(parameter(), target) < 0.01

    def test_the_store_survives_saving(self, tmp_path):
        value = torch.tensor([0.3, 0.4])
        pyro.param("p", value, constraint=on(PoincareBall(1.0)))
        path = tmp_path / "params"
        pyro.get_param_store().save(path)
        pyro.clear_param_store()
        pyro.get_param_store().load(path)
        torch.testing.assert_close(pyro.param("p"), value)
