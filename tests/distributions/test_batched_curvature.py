"""A curvature with a batch shape: distributions equal a loop over scalar curvatures; no value of it is an exception."""

from __future__ import annotations

import copy
import pickle

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.distributions import biject_to, kl_divergence, transform_to

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import Lorentz, PoincareBall, Stereographic
from tests.distributions.cases import EUCLIDEAN, NORMALS, WINDING, NormalCase
from tests.helpers import ROUNDING, in_turns, same
from tests.loop import SHAPES, curvatures, equals_loop

D = 3
CHARTS = [PoincareBall, Lorentz]
every_chart = pytest.mark.parametrize("chart", CHARTS)
every_shape = pytest.mark.parametrize(("shape", "batch"), SHAPES, ids=str)
HAVING_CURVATURE = [case for case in NORMALS if case not in EUCLIDEAN]
# One row for each distribution, kind of scale and chart.
CASES = list(
    {
        (case.distribution, case.kind, case.chart, case.dim > 1): case
        for case in HAVING_CURVATURE
        if case.kind != "number"
    }.values()
)
every_case = pytest.mark.parametrize("case", CASES, ids=str)
TOLERANCE = 4 * ROUNDING[torch.float64]


def in_shapes(shapes):
    """All shapes for each distribution and kind of scale on the ball; for the others the one that broadcasts most."""
    on_the_ball = [case for case in CASES if case.chart is PoincareBall and case.dim > 1]
    whole = list({(case.distribution, case.kind): case for case in on_the_ball}.values())
    return [(case, *row) for case in CASES for row in (shapes if case in whole else shapes[2:3])]


every_row = pytest.mark.parametrize(("case", "shape", "batch"), in_shapes(SHAPES), ids=str)


def leaves(case: NormalCase, batch: tuple[int, ...]) -> tuple[list[torch.Tensor], list[int]]:
    """Coordinates of the centre, the scale, coordinates of a value, noise; and their event dimensions."""
    params = list(case.coords(batch).values())
    noise = torch.Generator().manual_seed(5)
    vectors = [torch.randn((*batch, case.dim), generator=noise, dtype=torch.float64) for _ in range(2)]
    radius = torch.randn(batch, generator=noise, dtype=torch.float64)
    tensors = [params[0], params[1], *vectors, radius]
    events = [1, 2 if case.kind == "full" else 1, 1, 1, 0]
    return [t.requires_grad_() for t in tensors], events


def _fitting(draw: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """A draw as large as it is asked for: that of a direction by the number of coordinates of a factor."""
    return draw.expand(shape) if draw.shape[-1:] in (shape[-1:], (1,), ()) else draw[..., : shape[-1]].expand(shape)


def make(case: NormalCase, c, u, scale):
    return case.on({"u": u, "scale_tril" if case.kind == "full" else "scale": scale}, c=c)


@every_row
def test_density_equals_loop(case, shape, batch):
    def f(c, u, scale, v, noise, radius):
        distribution = make(case, c, u, scale)
        return distribution.log_prob(distribution.manifold.from_normal_coords(distribution.loc, v))

    c = curvatures(shape, flat=case.chart is PoincareBall)
    equals_loop(f, c, *leaves(case, batch), TOLERANCE)


@every_row
def test_sample_and_its_density_equal_loop(case, shape, batch, monkeypatch):
    def f(c, u, scale, v, noise, radius):
        distribution = make(case, c, u, scale)
        draws = [noise, radius] * 3
        with monkeypatch.context() as patch:
            patch.setattr(torch, "randn", lambda shape, **_: _fitting(draws.pop(0), shape))
            z = distribution.rsample()
        return torch.cat(
            [z, distribution.log_prob(z).unsqueeze(-1), distribution.lebesgue_log_prob(z).unsqueeze(-1)], -1
        )

    c = curvatures(shape, flat=case.chart is PoincareBall)
    equals_loop(f, c, *leaves(case, batch), TOLERANCE)


@every_case
def test_divergence_and_motion_equal_loop(case):
    def f(c, u, scale, v, noise, radius):
        p = make(case, c, u, scale)
        q = type(p)(
            p.loc, manifold=p.manifold, **{name: 2 * getattr(p, name) for name in p.arg_constraints if name != "loc"}
        )
        motion = p._loc_motion(v.detach().expand(p.batch_shape + (case.dim,)))
        return torch.cat([kl_divergence(p, q).unsqueeze(-1), motion], -1)

    if case in WINDING or (case.chart is Stereographic and case.distribution is hdist.WrappedNormal):
        pytest.skip("the divergence has no closed form")
    c = curvatures((2, 1), flat=case.chart is PoincareBall)
    equals_loop(f, c, *leaves(case, (3,)), TOLERANCE)


@every_chart
@every_shape
def test_transform_equals_loop(chart, shape, batch):
    def f(c, u, v):
        manifold = chart(c)
        loc = manifold.from_normal_coords(None, u)
        parts = []
        for t in (hdist.ExpMapTransform(manifold, loc), biject_to(hdist.constraints.on(manifold))):
            distribution = dist.TransformedDistribution(dist.Normal(torch.zeros_like(v), 1.3).to_event(1), [t])
            point = t(v)
            assert t.forward_shape(v.shape) == distribution.batch_shape + distribution.event_shape == point.shape
            assert t.inverse_shape(point.shape)[-1] == D
            parts += [distribution.log_prob(point), t.log_abs_det_jacobian(v, point)]
        return torch.stack(parts, -1)

    noise = torch.Generator().manual_seed(6)
    u, v = (torch.randn((*batch, D), generator=noise, dtype=torch.float64).requires_grad_() for _ in range(2))
    equals_loop(f, curvatures(shape, flat=chart is PoincareBall), [u, v], [1, 1], TOLERANCE)


BATCHES = [
    ((3,), (3,), (1,), (3,)),
    ((3,), (), (2, 1), (2, 3)),
    ((4, 1, 1), (3,), (2, 1), (4, 2, 3)),
    ((), (3,), (2, 1), (2, 3)),
    ((), (), (3,), (3,)),
]


@pytest.mark.parametrize(("case", "loc", "scale", "c", "expected"), in_shapes(BATCHES), ids=str)
def test_batch_shape(case, loc, scale, c, expected):
    c = curvatures(c, flat=False).detach()
    distribution = case.on(case.coords(loc, scale), c=c)
    assert distribution.batch_shape == expected
    assert distribution.event_shape == case.event_shape
    z = distribution.rsample((2,))
    assert z.shape == (2, *expected, *case.event_shape)
    assert distribution.support.check(z).shape == distribution.log_prob(z).shape == (2, *expected)
    assert distribution.loc.shape == (*expected, *case.event_shape)
    wide = distribution.expand((5, *expected))
    assert wide.batch_shape == wide.log_prob(wide.sample()).shape == (5, *expected)
    same(wide.log_prob(z[0]), distribution.log_prob(z[0].clone()).expand(5, *expected), TOLERANCE)
    twins = [copy.deepcopy(distribution), pickle.loads(pickle.dumps(distribution))] if loc == expected else []
    for twin in twins:
        same(twin.log_prob(z.clone()), distribution.log_prob(z.clone()), TOLERANCE)


def test_shapes_that_do_not_broadcast():
    with pytest.raises(ValueError, match=r"batch shapes \(3,\) of loc and \(2,\) of c do not broadcast"):
        hdist.WrappedNormal(torch.zeros(3, D), 1.0, PoincareBall(torch.ones(2)))


@every_chart
def test_constraints(chart):
    c = torch.tensor([1.0, 4.0])
    support = hdist.constraints.on(chart(c))
    assert support == hdist.constraints.on(chart(c.clone()))
    assert support != hdist.constraints.on(chart(1.0))
    assert hash(support) == hash(hdist.constraints.on(chart(c)))
    assert "c=[1, 4] of shape (2,)" in repr(support)
    assert type(transform_to(support)) is hdist.ManifoldTransform
    x = chart(1.0).from_normal_coords(None, torch.ones(5, 1, D))
    assert support.check(x).tolist() == [[True, False]] * 5


@every_chart
def test_the_worst_of_a_batch_that_does_not_fit_is_named(chart):
    manifold = chart(torch.tensor([1e-2, 100.0, 1.0]))
    distribution = hdist.WrappedNormal(manifold.from_normal_coords(None, torch.ones(3, D)), 4.0, manifold)
    reach = manifold.reach(torch.float32)[1]
    with pytest.raises(ValueError, match=f"mass at distance 20.*float32 coordinates end at {reach:.4g}; use "):
        distribution.rsample()


# --- values of c that are no curvature ----------------------------------------------------------------------------

BAD = {PoincareBall: [-1.0, -1e-3, float("inf"), float("nan"), -float("inf")]}
BAD[Lorentz] = [*BAD[PoincareBall], 0.0]
DISTRIBUTIONS = [hdist.WrappedNormal, hdist.RiemannianNormal]
WRONG = [(distribution, chart, 3, bad) for distribution in DISTRIBUTIONS for chart in CHARTS for bad in BAD[chart]]
WRONG += [(distribution, chart, 1, -1.0) for distribution in DISTRIBUTIONS for chart in CHARTS]


@pytest.mark.parametrize("scored", ["own sample", "a point"])
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize(("distribution", "chart", "dim", "bad"), WRONG, ids=str)
def test_without_validation_a_bad_curvature_has_no_density(distribution, chart, dim, bad, batched, scored):
    good = torch.tensor([0.7, 0.7, 1.2]) if batched else torch.tensor(0.7)
    c = torch.where(torch.tensor([True, False, False]), bad, good) if batched else torch.tensor(bad)
    results = []
    with pyro.validation_enabled(False):
        for values in (c, good):
            values = values.clone().requires_grad_()
            scale = torch.full((3, 1), 0.6, requires_grad=True)
            p = distribution(chart(0.9).origin(dim), scale, chart(values))
            torch.manual_seed(0)
            z = p.rsample() if scored == "own sample" else chart(0.9).from_normal_coords(None, torch.full((dim,), 0.1))
            log_prob = p.log_prob(z)
            log_prob[1:].sum().backward()
            results.append((log_prob.detach(), values.grad, scale.grad))
    (log_prob, *grads), (expected, *expected_grads) = results
    if not batched:
        assert not log_prob.isfinite().any()
        return
    assert not log_prob[0].isfinite()
    same(log_prob[1:], expected[1:], 1e-6)
    for grad, other in zip(grads, expected_grads, strict=True):
        same(grad[1:], other[1:], 1e-6)


@pytest.mark.parametrize("dim", [1, 3])
@pytest.mark.parametrize("bad", BAD[PoincareBall])
def test_radius_of_a_bad_curvature_has_no_density(dim, bad):
    radius = hdist.HyperbolicRadius(dim, torch.ones(2), torch.tensor([bad, 1.0]), validate_args=False)
    log_prob = radius.log_prob(torch.ones(2))
    assert not log_prob[0].isfinite()
    assert log_prob[1].isfinite()
    assert radius.rsample()[1].isfinite()


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_the_ball_is_flat_at_zero(distribution):
    with pyro.validation_enabled(False):
        p = distribution(torch.zeros(D), 1.0, PoincareBall(torch.tensor([0.0, 1.0])))
        same(p.log_prob(torch.full((D,), 0.2))[0], dist.Normal(0.0, 1.0).log_prob(torch.tensor(0.4)) * D, 1e-6)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@every_chart
@pytest.mark.parametrize(("dim", "dtype"), in_turns([1, 2, 5], [torch.float32, torch.float64]))
def test_extreme_curvatures(distribution, chart, dtype, dim):
    # Scales that the coordinates hold: the smaller of 1 and 1/sqrt(c).
    c = torch.logspace(-8, 4, 25, dtype=dtype).requires_grad_()
    scale = (c.detach().rsqrt().clamp(max=1.0) / 2).unsqueeze(-1).requires_grad_()
    u = (0.5 * scale.detach() * torch.ones(dim, dtype=dtype)).requires_grad_()
    manifold = chart(c)
    p = distribution(manifold.from_normal_coords(None, u), scale, manifold)
    z = p.rsample((20,))
    other = chart(c).from_normal_coords(None, 1.5 * u)
    for out in (z, p.log_prob(z), p.log_prob(other), p.lebesgue_log_prob(other), manifold.dist(z, other)):
        assert out.isfinite().all()
        for grad in torch.autograd.grad(out.sum(), [c, scale, u], retain_graph=True, allow_unused=True):
            assert grad is None or grad.isfinite().all()


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_without_validation_a_sample_beyond_the_border_stays_finite(distribution):
    with pyro.validation_enabled(False):
        c = torch.tensor([1.0, 1e4], requires_grad=True)
        p = distribution(torch.zeros(D), 8.0, PoincareBall(c))
        z = p.rsample((100,))
        assert z.isfinite().all()
        assert p.log_prob(z).isfinite().all()
        (grad,) = torch.autograd.grad(p.log_prob(z).sum() + z.sum(), c)
        assert grad.isfinite().all()
        assert p.support.check(z).all()
