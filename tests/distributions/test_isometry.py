"""Isotropic distributions move with the isometries of the space."""

import pytest
import torch

from pyro_hyperbolic import Euclidean, PoincareBall, Product, Sphere, Stereographic
from tests.distributions.cases import ISOTROPIC, PRODUCTS
from tests.helpers import DTYPES, LOG_PROB, same


def _draw(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(8), dtype=torch.float64)


def _translation(ball, x):
    a = ball.expmap0(0.4 * _draw(x.shape[-1]).to(x.dtype))
    return ball.mobius_add(a, x)


def _rotation(ball, x):
    orthogonal = -torch.linalg.qr(_draw(x.shape[-1], x.shape[-1]))[0].to(x.dtype)
    return x @ orthogonal.mT


def _reflection(ball, x):
    return torch.cat([-x[..., :1], x[..., 1:]], -1)


ISOMETRIES = {"translation": _translation, "rotation": _rotation, "reflection": _reflection}


def _move_on_sphere(name, x):
    size = x.shape[-1]
    if name == "reflection":
        return torch.cat([-x[..., :1], x[..., 1:]], -1)
    orthogonal = torch.linalg.qr(_draw(size, size))[0].to(x.dtype)
    return x @ (orthogonal if name == "translation" else -orthogonal).mT


def _move(name, manifold, x):
    """An isometry of the ball, carried to the other chart where the point is one of it; those of other spaces."""
    if isinstance(manifold, Product):
        parts = zip(manifold.factors, manifold.split(x), strict=True)
        return torch.cat([_move(name, space, part) for (space, _), part in parts], -1)
    if isinstance(manifold, Sphere):
        return _move_on_sphere(name, x)
    if isinstance(manifold, Stereographic):
        return ISOMETRIES[name](manifold, x)
    if isinstance(manifold, Euclidean):
        return ISOMETRIES[name](PoincareBall(0.0), x)
    if isinstance(manifold, PoincareBall):
        return ISOMETRIES[name](manifold, x)
    return manifold.from_poincare(ISOMETRIES[name](PoincareBall(manifold.c), manifold.to_poincare(x)))


@pytest.mark.parametrize("name", list(ISOMETRIES))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", ISOTROPIC, ids=str)
def test_density_is_invariant(case, dtype, name):
    distribution = case.make(dtype=dtype)
    points = distribution.sample((50,))
    there = case.on({**case.params(dtype=dtype), "loc": _move(name, distribution.manifold, distribution.loc)})
    assert not torch.allclose(there.loc, distribution.loc)
    same(
        there.log_prob(_move(name, distribution.manifold, points)),
        distribution.log_prob(points.clone()),
        LOG_PROB[dtype],
    )


# Of a product it depends on the distance in each factor.
@pytest.mark.parametrize("case", [case for case in ISOTROPIC if case not in PRODUCTS], ids=str)
def test_density_depends_on_the_distance_alone(case):
    distribution = case.make()
    direction = _draw(40, case.dim)
    v = direction / direction.norm(dim=-1, keepdim=True)
    log_prob = distribution.log_prob(distribution.manifold.from_normal_coords(distribution.loc, v))
    same(log_prob, log_prob[:1].expand(40), 1e-12)
