"""One space, two charts: a law on the ball and on the hyperboloid is the same law."""

import pytest
import torch

from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.geometry import Lorentz
from tests.distributions.cases import ON_THE_BALL, NormalCase
from tests.helpers import DTYPES, LOG_PROB, same

every_case = pytest.mark.parametrize("case", ON_THE_BALL, ids=str)


def _both(case, dtype=torch.float64):
    on_hyperboloid = NormalCase(case.law, case.kind, case.dim, case.c, Lorentz)
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
