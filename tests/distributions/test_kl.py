"""Divergences in closed form, against Monte Carlo, quadrature and the Gaussian; and where there is none."""

import itertools
import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoNormal, init_to_value
from scipy.integrate import quad
from torch.distributions import kl_divergence, register_kl

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.geometry import Euclidean, Lorentz
from tests.helpers import DTYPES, same

BALL = PoincareBall(0.7)
LOC = torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64)
DIAGONAL = torch.tensor([0.3, 0.5, 0.9], dtype=torch.float64)
FACTOR = torch.tensor([[0.5, 0.0, 0.0], [0.2, 0.7, 0.0], [-0.1, 0.3, 0.4]], dtype=torch.float64)
SCALES = {
    "number": {"scale": 0.8},
    "diagonal": {"scale": DIAGONAL},
    "full": {"scale_tril": FACTOR},
}
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
every_distribution = pytest.mark.parametrize("distribution", [hdist.WrappedNormal, hdist.RiemannianNormal])


def wrapped(kind, factor=1.0, dtype=torch.float64, chart=BALL):
    scale = {name: factor * value for name, value in SCALES[kind].items()}
    scale = {name: value.to(dtype) if isinstance(value, torch.Tensor) else value for name, value in scale.items()}
    return hdist.WrappedNormal(in_chart(chart, dtype), manifold=chart, **scale)


def riemannian(scale, dtype=torch.float64, chart=BALL):
    return hdist.RiemannianNormal(in_chart(chart, dtype), scale, chart)


def in_chart(chart, dtype):
    return chart.from_normal_coords(None, PoincareBall(chart.c).to_normal_coords(None, LOC).to(dtype))


def monte_carlo(p, q, count=40_000):
    torch.manual_seed(0)
    z = p.sample((count,))
    difference = p.log_prob(z) - q.log_prob(z)
    return difference.mean(), difference.std() / math.sqrt(count)


PAIRS = [
    *[(wrapped(a), wrapped(b, 1.3)) for a in SCALES for b in SCALES],
    (wrapped("full", chart=Lorentz(0.7)), wrapped("diagonal", chart=Lorentz(0.7))),
    (riemannian(0.5), riemannian(0.9)),
    (riemannian(1.5), riemannian(0.9)),
    (riemannian(1.5, chart=Lorentz(0.7)), riemannian(0.9, chart=Lorentz(0.7))),
]


@pytest.mark.parametrize("pair", PAIRS, ids=range(len(PAIRS)))
def test_against_monte_carlo(pair):
    mean, error = monte_carlo(*pair)
    assert (kl_divergence(*pair) - mean).abs() < 4 * error


@pytest.mark.parametrize(("dim", "c"), [(1, 1.0), (2, 0.7), (3, 1.4), (3, 0.0)])
@pytest.mark.parametrize(("a", "b"), [(0.5, 0.9), (1.4, 0.6), (0.7, 0.7001)])
def test_riemannian_against_quadrature(dim, c, a, b):
    def area(r):
        return (math.sinh(math.sqrt(c) * r) / math.sqrt(c) if c > 0 else r) ** (dim - 1)

    def integral(f):
        return quad(f, 0, 30, epsabs=1e-12, epsrel=1e-12, limit=500)[0]

    log_z = {s: math.log(integral(lambda r, s=s: math.exp(-r * r / (2 * s * s)) * area(r))) for s in (a, b)}

    def integrand(r):
        log_p, log_q = (-r * r / (2 * s * s) - log_z[s] for s in (a, b))
        return math.exp(log_p) * area(r) * (log_p - log_q)

    ball = PoincareBall(c)
    origin = ball.origin(dim, torch.float64)
    same(
        kl_divergence(hdist.RiemannianNormal(origin, a, ball), hdist.RiemannianNormal(origin, b, ball)),
        integral(integrand),
        1e-9,
    )


@pytest.mark.parametrize(("dim", "a", "b"), [(20, 0.9, 1.1), (20, 2.0, 2.001)])
def test_riemannian_beyond_the_table(dim, a, b):
    # There log Z = n^2 c s^2 / 2 - n log(2 sqrt(c)) + log s + const, and E[r^2] = (n^2 c s^2 + 1) s^2.
    chart, n = Lorentz(1.4), dim - 1
    p, q = (hdist.RiemannianNormal(chart.origin(dim, torch.float64), s, chart) for s in (a, b))
    q2 = n * n * 1.4
    expected = 0.5 * q2 * (b * b - a * a) + math.log(b / a) + 0.5 * (q2 * a**4 + a * a) * (1 / b**2 - 1 / a**2)
    same(kl_divergence(p, q), expected, 1e-6)


@every_dtype
@pytest.mark.parametrize("kinds", [("number", "diagonal"), ("full", "full"), ("diagonal", "full")])
def test_wrapped_is_that_of_the_gaussians(kinds, dtype):
    p, q = wrapped(kinds[0], dtype=dtype), wrapped(kinds[1], 1.3, dtype)
    zero = torch.zeros(3, dtype=dtype)
    gaussians = [dist.MultivariateNormal(zero, distribution.covariance_matrix) for distribution in (p, q)]
    same(kl_divergence(p, q), kl_divergence(*gaussians), 1e-5 if dtype == torch.float32 else 1e-10)


@every_dtype
def test_it_vanishes_for_equal_distributions_and_has_no_slope_there(dtype):
    scale = torch.tensor([0.8], dtype=dtype, requires_grad=True)
    for distribution in (hdist.WrappedNormal, hdist.RiemannianNormal):
        loc = LOC.to(dtype)
        kl = kl_divergence(distribution(loc, scale, BALL), distribution(loc, 0.8, BALL))
        assert kl.dtype == dtype
        assert kl.abs() < 1e-6
        assert torch.autograd.grad(kl, scale)[0].abs() < 1e-5


@every_distribution
def test_gradient(distribution):
    a, b = (torch.tensor([s], dtype=torch.float64, requires_grad=True) for s in (0.7, 1.1))
    c = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)

    def kl(a, b, c):
        return kl_divergence(distribution(LOC, a, PoincareBall(c)), distribution(LOC, b, PoincareBall(c)))

    assert torch.autograd.gradcheck(kl, (a, b, c), eps=1e-5, atol=1e-7, rtol=1e-5)


@every_distribution
def test_shape_is_that_of_the_batch(distribution):
    p = distribution(LOC.expand(4, 3), torch.full((4, 1), 0.5, dtype=torch.float64), BALL)
    q = distribution(LOC, 0.9, BALL)
    assert kl_divergence(p, q).shape == (4,)
    torch.testing.assert_close(kl_divergence(p, q)[0], kl_divergence(distribution(LOC, 0.5, BALL), q))
    assert kl_divergence(p.to_event(1), q.expand((4,)).to_event(1)).shape == ()
    assert kl_divergence(p.expand((2, 4)), q.expand((2, 4))).shape == (2, 4)


@every_distribution
def test_masked(distribution):
    mask = torch.tensor([True, False])
    p, q = (distribution(LOC, s, BALL).expand((2,)) for s in (0.5, 0.9))
    torch.testing.assert_close(kl_divergence(p.mask(mask), q.mask(mask)), kl_divergence(p, q) * mask)


@pytest.mark.parametrize("shape", [(), (4,)])
@pytest.mark.parametrize(("a", "b"), [*itertools.product(SCALES, SCALES), ("radius", "radius")])
def test_flat_ones_are_gaussians_of_any_two_means(a, b, shape):
    def build(kind, shift, factor):
        loc = LOC.expand(*shape, 3) + shift
        if kind == "radius":
            scale = factor * 0.8
            return hdist.RiemannianNormal(loc, scale, Euclidean()), scale * torch.eye(3, dtype=torch.float64), loc
        scale = {name: factor * value for name, value in SCALES[kind].items()}
        tril = {"number": lambda x: x * torch.eye(3, dtype=torch.float64), "diagonal": torch.diag, "full": lambda x: x}
        return hdist.WrappedNormal(loc, manifold=Euclidean(), **scale), tril[kind](*scale.values()), loc

    (p, p_tril, p_loc), (q, q_tril, q_loc) = build(a, 0.0, 1.0), build(b, torch.tensor([0.4, -1.0, 2.0]), 1.3)
    expected = kl_divergence(
        torch.distributions.MultivariateNormal(p_loc, scale_tril=p_tril),
        torch.distributions.MultivariateNormal(q_loc, scale_tril=q_tril),
    )
    same(kl_divergence(p, q), expected, 1e-12)


class TestMeans:
    def kl(self, a, b, distribution=hdist.WrappedNormal):
        return kl_divergence(distribution(a, 0.5, BALL), distribution(b, 0.9, BALL))

    @every_distribution
    def test_two_means_have_no_closed_form(self, distribution):
        with pytest.raises(NotImplementedError, match="different means; use a Monte Carlo estimate"):
            self.kl(LOC, 0.9 * LOC, distribution)

    def test_equal_constants_are_one_mean(self):
        torch.testing.assert_close(self.kl(LOC, LOC.clone()), self.kl(LOC, LOC))

    def test_a_shared_parameter_is_one_mean(self):
        loc = LOC.clone().requires_grad_()
        torch.testing.assert_close(self.kl(loc, loc), self.kl(LOC, LOC))
        torch.testing.assert_close(self.kl(loc.expand(2, 3), loc), self.kl(LOC, LOC).expand(2))

    def test_parameters_that_happen_to_be_equal_are_two(self):
        with pytest.raises(NotImplementedError):
            self.kl(LOC.clone().requires_grad_(), LOC)

    def test_two_rows_of_one_parameter_are_two(self):
        locs = LOC.expand(2, 3).clone().requires_grad_()
        with pytest.raises(NotImplementedError):
            self.kl(locs[0], locs[1])

    @pytest.mark.parametrize("learned", [False, True])
    @every_distribution
    def test_all_pairs_of_rows_are_many(self, distribution, learned):
        locs = torch.stack([LOC, 0.9 * LOC]).requires_grad_(learned)
        for a, b in ((locs.unsqueeze(1), locs.unsqueeze(0)), (locs.unsqueeze(1).expand(2, 2, 3), locs)):
            with pytest.raises(NotImplementedError, match="different means"):
                self.kl(a, b, distribution)
        assert self.kl(locs.unsqueeze(0), locs, distribution).shape == (1, 2)

    def test_values_that_cannot_be_seen_are_two(self):
        def kl(loc):
            try:
                return self.unvalidated(loc, loc.clone())
            except NotImplementedError:
                return loc.new_full((), -1.0)

        assert (torch.vmap(kl)(LOC.expand(2, 3)) == -1).all()

    def unvalidated(self, a, b):
        p, q = (hdist.WrappedNormal(x, s, BALL, validate_args=False) for x, s in ((a, 0.5), (b, 0.9)))
        return kl_divergence(p, q)

    def test_constants_are_seen_under_vmap(self):
        scales = torch.tensor([[0.5], [0.7]], dtype=torch.float64)

        def kl(scale):
            p = hdist.WrappedNormal(LOC, scale, BALL, validate_args=False)
            return kl_divergence(p, hdist.WrappedNormal(LOC, 0.9, BALL, validate_args=False))

        expected = [kl_divergence(*[hdist.WrappedNormal(LOC, s, BALL) for s in (scale, 0.9)]) for scale in scales]
        torch.testing.assert_close(torch.vmap(kl)(scales), torch.stack(expected))


@pytest.mark.parametrize("other", [PoincareBall(0.6), Lorentz(0.7)], ids=repr)
@every_distribution
def test_two_manifolds_are_an_error_that_names_both(distribution, other):
    p, q = distribution(torch.zeros(2), 0.5, PoincareBall(0.7)), distribution(other.origin(2), 0.5, other)
    with pytest.raises(ValueError, match=rf"PoincareBall\(c=0.7\) and {type(other).__name__}\(c=0"):
        kl_divergence(p, q)


def model():
    with pyro.plate("data", 3):
        pyro.sample("z", hdist.RiemannianNormal(torch.zeros(2), 1.0, BALL))


def guide():
    scale = pyro.param("scale", torch.tensor([[0.5], [0.7], [0.9]]))
    with pyro.plate("data", 3):
        pyro.sample("z", hdist.RiemannianNormal(torch.zeros(2), scale, BALL))


@pytest.mark.parametrize("particles", [{}, {"num_particles": 5, "vectorize_particles": True, "max_plate_nesting": 1}])
def test_the_mean_field_bound_takes_the_closed_form(particles):
    pyro.clear_param_store()
    prior = hdist.RiemannianNormal(torch.zeros(2), 1.0, BALL)
    posterior = hdist.RiemannianNormal(torch.zeros(2), torch.tensor([[0.5], [0.7], [0.9]]), BALL)
    loss = TraceMeanField_ELBO(**particles).loss(model, guide)
    assert loss == pytest.approx(kl_divergence(posterior, prior).sum().item(), rel=1e-5)
    assert loss != Trace_ELBO(**particles).loss(model, guide)


def test_the_mean_field_bound_falls_back_to_monte_carlo():
    def centred():
        pyro.sample("z", hdist.WrappedNormal(torch.zeros(2), 1.0, BALL))

    def elsewhere():
        pyro.sample("z", hdist.WrappedNormal(torch.tensor([0.1, 0.2]), 0.5, BALL))

    losses = []
    for loss in (Trace_ELBO, TraceMeanField_ELBO):
        torch.manual_seed(0)
        losses.append(loss().loss(centred, elsewhere))
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_a_delta_keeps_its_density():
    # By which AutoNormal and its like hand over the Jacobian of their map.
    distribution = hdist.WrappedNormal(LOC, 0.5, BALL)
    point = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
    delta = dist.Delta(point, torch.tensor(0.7, dtype=torch.float64), event_dim=1)
    torch.testing.assert_close(kl_divergence(delta, distribution), 0.7 - distribution.log_prob(point))


MASK = torch.tensor([True, False, True])
WRAPPERS = {
    "event": lambda distribution: distribution.to_event(1),
    "mask": lambda distribution: distribution.mask(MASK),
    "event of mask": lambda distribution: distribution.mask(MASK).to_event(1),
    "mask of event": lambda distribution: distribution.to_event(1).mask(torch.tensor(True)),
}


def automatic(wrapper):
    """A model, and a guide that is its distribution but for masks: both are one Gaussian of the normal coordinates."""
    pyro.clear_param_store()
    distribution = wrapper(hdist.WrappedNormal(torch.zeros(3, 2, dtype=torch.float64), 0.5, BALL))

    def points():
        with pyro.plate_stack("plates", distribution.batch_shape):
            pyro.sample("z", distribution)

    start = init_to_value(values={"z": torch.zeros(3, 2, dtype=torch.float64)})
    return points, AutoNormal(points, init_loc_fn=start, init_scale=0.5)


@pytest.mark.parametrize("loss", [Trace_ELBO, TraceMeanField_ELBO])
def test_the_mean_field_bound_of_an_automatic_guide_that_is_the_prior_vanishes(loss):
    torch.manual_seed(0)
    assert loss().loss(*automatic(WRAPPERS["event"])) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("kind", WRAPPERS)
def test_the_mean_field_bound_of_an_automatic_guide_is_the_bound(kind):
    programs = automatic(WRAPPERS[kind])
    losses = []
    for loss in (Trace_ELBO, TraceMeanField_ELBO):
        torch.manual_seed(0)
        losses.append(loss().loss(*programs))
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


@pytest.mark.parametrize(
    "wrapper",
    [
        lambda distribution: distribution.to_event(1),
        lambda distribution: distribution.mask(torch.tensor([True, False])),
    ],
)
def test_a_delta_and_other_distributions_are_left_to_pyro(wrapper):
    distribution = wrapper(dist.LogNormal(torch.zeros(2), 1.0))
    point = torch.tensor([0.5, 2.0])
    delta = dist.Delta(point, torch.full(distribution.batch_shape, 0.7), event_dim=distribution.event_dim)
    torch.testing.assert_close(kl_divergence(delta, distribution), -distribution.log_prob(point))


class OwnDelta(dist.Delta):
    pass


@register_kl(OwnDelta, dist.Distribution)
def _kl_own_delta(p, q):
    return torch.tensor(42.0)


def test_the_divergences_of_other_types_are_left_alone():
    # With an entry for Pyro's wrappers it would be ambiguous which of the two to take.
    for distribution in (dist.Normal(torch.zeros(2), 1.0).to_event(1), dist.Normal(torch.zeros(2), 1.0).mask(True)):
        assert kl_divergence(OwnDelta(torch.zeros(2), event_dim=distribution.event_dim), distribution) == 42
