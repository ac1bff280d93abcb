"""One space, two charts: distributions on the ball and on the hyperboloid are the same; so on a class of one's own."""

import pyro
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO
from torch.distributions import biject_to, kl_divergence, transform_to

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import Euclidean, PoincareBall, Product, Sphere, Stereographic
from pyro_hyperbolic.geometry import Lorentz
from pyro_hyperbolic.models import ManifoldVAE
from pyro_hyperbolic.nn import ManifoldModule
from tests.distributions.cases import ON_THE_BALL, NormalCase
from tests.helpers import DTYPES, LOG_PROB, same

every_case = pytest.mark.parametrize("case", ON_THE_BALL, ids=str)


def _both(case, dtype=torch.float64):
    on_hyperboloid = NormalCase(case.distribution, case.kind, case.dim, case.c, Lorentz)
    return case.make((3,), dtype=dtype), on_hyperboloid.make((3,), dtype=dtype)


@every_case
def test_parameters_are_the_same_points(case):
    ball, hyperboloid = _both(case)
    torch.testing.assert_close(hyperboloid.manifold.to_poincare(hyperboloid.loc), ball.loc)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_case
def test_densities_agree(case, dtype):
    ball, hyperboloid = _both(case, dtype)
    z = ball.sample((20,))
    same(hyperboloid.log_prob(hyperboloid.manifold.from_poincare(z)), ball.log_prob(z.clone()), LOG_PROB[dtype])


@every_case
def test_samples_agree(case):
    ball, hyperboloid = _both(case)
    torch.manual_seed(0)
    expected = ball.rsample((20,))
    torch.manual_seed(0)
    torch.testing.assert_close(hyperboloid.manifold.to_poincare(hyperboloid.rsample((20,))), expected)


@every_case
def test_lebesgue_densities_differ_by_the_jacobian_between_the_charts(case):
    # Of the space part of a point of the hyperboloid in its ball coordinates.
    ball, hyperboloid = _both(case)
    z = ball.sample()[0]
    jacobian = torch.autograd.functional.jacobian(lambda b: hyperboloid.manifold.from_poincare(b)[1:], z)
    expected = ball.lebesgue_log_prob(z) - torch.linalg.slogdet(jacobian).logabsdet
    same(hyperboloid.lebesgue_log_prob(hyperboloid.manifold.from_poincare(z)), expected, 1e-9)


def test_supports_differ():
    assert PoincareBall(1.0) != Lorentz(1.0)
    ball, hyperboloid = _both(ON_THE_BALL[0])
    assert ball.support != hyperboloid.support


PARENTS = [
    PoincareBall(0.7),
    Lorentz(0.7),
    Sphere(0.7),
    Stereographic(0.7),
    Euclidean(),
    Product((PoincareBall(0.7), 1), (Sphere(0.7), 1)),
]


def derived(parent):
    """The same space as an object of a class that a user derives."""
    child = parent.with_curvatures(parent.curvatures) if parent.curvatures else Euclidean()
    child.__class__ = type("Own", (type(parent),), {})
    return child


@pytest.mark.parametrize("parent", PARENTS, ids=str)
@pytest.mark.parametrize("distribution", [hdist.WrappedNormal, hdist.RiemannianNormal])
def test_a_derived_manifold_is_one(distribution, parent):
    child = derived(parent)
    loc, v = parent.from_normal_coords(None, torch.tensor([0.3, 0.5])), torch.tensor([0.2, -0.4])
    ours, theirs = distribution(loc, 0.6, child), distribution(loc, 0.6, parent)
    assert ours.support == hdist.constraints.on(child)
    for registry in (biject_to, transform_to):
        torch.testing.assert_close(registry(ours.support)(v), registry(theirs.support)(v))
    z = parent.from_normal_coords(None, v)
    torch.testing.assert_close(ours.log_prob(z), theirs.log_prob(z))
    other = [distribution(loc, 0.9, space) for space in (child, parent)]
    if distribution is hdist.RiemannianNormal or not parent.geodesics_close:
        torch.testing.assert_close(kl_divergence(ours, other[0]), kl_divergence(theirs, other[1]))


@pytest.mark.parametrize("parent", PARENTS, ids=str)
def test_a_model_on_a_derived_manifold(parent):
    vae = ManifoldVAE(ManifoldModule(derived(parent), learnable=True), 2, 4, hidden_dim=5, likelihood="normal")
    svi = SVI(vae.model, vae.guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
    assert svi.step(torch.randn(6, 4)) > 0
    assert type(vae.manifold).__name__ == "Own"
