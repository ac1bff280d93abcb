"""Distributions on spheres, and on products with them."""

import itertools
import json
import math
from pathlib import Path

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats
from torch.distributions import kl_divergence

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import Euclidean, Lorentz, PoincareBall, Product, Sphere, Stereographic
from pyro_hyperbolic.distributions.windings import WIDEST, count_windings
from tests.helpers import DTYPES, LOG_PROB, gauss_legendre, same

ROWS = json.loads((Path(__file__).parents[1] / "oracle" / "spheres.json").read_text())
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
LEAST_P = 1e-4


def make(name, sphere, dim, scale, dtype=torch.float64, loc=None):
    """A distribution by the name of its column in the oracle; of those with a concentration it is 1/tau^2."""
    loc = sphere.origin(dim, dtype) if loc is None else loc
    concentration = 1 / (sphere.c * scale**2)
    return {
        "wrapped": lambda: hdist.WrappedNormal(loc, scale, sphere),
        "riemannian": lambda: hdist.RiemannianNormal(loc, scale, sphere),
        "fisher": lambda: hdist.VonMisesFisher(loc, concentration, sphere),
        "power": lambda: hdist.PowerSpherical(loc, concentration, sphere),
    }[name]()


NAMES = ["wrapped", "riemannian", "fisher", "power"]
every_name = pytest.mark.parametrize("name", NAMES)


@every_dtype
@every_name
def test_oracle(name, dtype):
    for (dim, radius, scale), rows in itertools.groupby(ROWS, lambda row: (row["dim"], row["radius"], row["scale"])):
        rows = list(rows)
        sphere = Sphere(radius**-2)
        v = torch.zeros(len(rows), dim, dtype=torch.float64)
        v[:, -1] = radius * torch.tensor([row["angle"] for row in rows], dtype=torch.float64)
        x = sphere.from_normal_coords(None, v).to(dtype)
        for actual, row in zip(make(name, sphere, dim, scale, dtype).log_prob(x), rows, strict=True):
            # Near the antipode the Jacobian is a power of the distance to it, which rounding moves by eps.
            lost = 64 * dim * torch.finfo(dtype).eps / (math.pi - row["angle"])
            same(actual, row[name], LOG_PROB[dtype] + lost)


def _angles(count=300):
    nodes, weights = gauss_legendre(count)
    return torch.tensor((1 + nodes) * math.pi / 2), torch.tensor(weights * math.pi / 2)


@pytest.mark.parametrize("tau", [0.3, 1.0, 4.9])
@pytest.mark.parametrize("dim", [1, 2, 3, 10, 50])
@every_name
def test_normalisation(name, dim, tau):
    radius = 1.3
    sphere = Sphere(radius**-2)
    angle, weight = _angles()
    v = torch.zeros(len(angle), dim, dtype=torch.float64)
    v[:, 0] = radius * angle
    density = make(name, sphere, dim, tau * radius).log_prob(sphere.from_normal_coords(None, v)).exp()
    area = math.exp(hdist.HypersphericalUniform(dim).log_area) * radius**dim
    total = area * (density * angle.sin() ** (dim - 1) * weight).sum()
    # The power spherical distribution has a power of the distance to the antipode, which is not smooth there.
    assert total.item() == pytest.approx(1, abs=1e-6 if name == "power" and dim == 1 else 1e-10)


@pytest.mark.parametrize("tau", [0.3, 1.0, 4.9])
@pytest.mark.parametrize("dim", [1, 2, 10])
def test_radius(dim, tau):
    """Distribution function, quantiles and moments by quadrature of the density."""
    radius = 1.3
    distribution = hdist.SphericalRadius(dim, torch.tensor(tau * radius, dtype=torch.float64), radius**-2)
    angle, weight = _angles()
    r = radius * angle
    mass = radius * weight * distribution.log_prob(r).exp()
    assert mass.sum().item() == pytest.approx(1, abs=1e-10)
    same(distribution.mean, (mass * r).sum(), 1e-10)
    same(distribution.variance, (mass * (r - distribution.mean).square()).sum(), 1e-10)
    same(
        distribution.entropy(), -(mass * distribution.log_prob(r)).sum(), 1e-6
    )  # r log r at 0 is hard for both quadratures
    quarter = r[angle < math.pi / 4]
    slope = torch.func.vmap(
        torch.func.grad(hdist.SphericalRadius(dim, distribution.scale, distribution.c, validate_args=False).cdf)
    )
    same(slope(quarter), distribution.log_prob(quarter).exp(), 1e-9)
    u = torch.linspace(0.001, 0.999, 21, dtype=torch.float64)
    same(distribution.cdf(distribution.icdf(u)), u, 1e-8)


@pytest.mark.parametrize("kind", ["diagonal", "full"])
def test_normalisation_of_anisotropic_windings(kind):
    """On the sphere of two dimensions, over its points."""
    sphere = Sphere(0.8)
    loc = sphere.from_normal_coords(None, torch.tensor([0.7, -1.0], dtype=torch.float64))
    root = torch.tensor([[1.5, 0.0], [0.0 if kind == "diagonal" else 0.8, 0.5]], dtype=torch.float64)
    distribution = hdist.WrappedNormal(loc, manifold=sphere, scale_tril=root)
    angle, weight = _angles(200)
    turn = 2 * math.pi * torch.arange(200, dtype=torch.float64) / 200
    directions = torch.stack([turn.cos(), turn.sin()], -1)
    v = angle[:, None, None] * directions / math.sqrt(0.8)
    density = distribution.log_prob(sphere.from_normal_coords(loc, v)).exp()
    total = (density * (angle.sin() * weight)[:, None]).sum() * 2 * math.pi / 200 / 0.8
    assert total.item() == pytest.approx(1, abs=1e-8)


@pytest.mark.parametrize("coupled", [True, False])
def test_normalisation_on_a_product(coupled):
    """Circle times line, with a covariance that couples them: the density of a cylinder."""
    space = Product((Sphere(1.0), 1), (Euclidean(), 1))
    root = torch.tensor([[1.7, 0.0], [0.9 if coupled else 0.0, 0.5]], dtype=torch.float64)
    distribution = hdist.WrappedNormal(space.origin(2, torch.float64), manifold=space, scale_tril=root)
    theta = 2 * math.pi * torch.arange(100, dtype=torch.float64) / 100 - math.pi
    height = torch.linspace(-12, 12, 400, dtype=torch.float64)
    v = torch.stack(torch.broadcast_tensors(theta[:, None], height), -1)
    density = distribution.log_prob(space.from_normal_coords(None, v)).exp()
    assert (density.sum() * (2 * math.pi / 100) * (24 / 399)).item() == pytest.approx(1, abs=1e-9)
    # The sum by hand.
    plane = torch.distributions.MultivariateNormal(torch.zeros(2, dtype=torch.float64), scale_tril=root)
    shifts = 2 * math.pi * torch.arange(-6, 7, dtype=torch.float64)
    moved = v.unsqueeze(-2) + torch.stack([shifts, torch.zeros_like(shifts)], -1)
    same(density, plane.log_prob(moved).exp().sum(-1), 1e-12)


def test_two_spheres_are_coupled():
    space = Product((Sphere(1.0), 1), (Sphere(4.0), 1))
    root = torch.tensor([[1.2, 0.0], [0.7, 0.5]], dtype=torch.float64)
    distribution = hdist.WrappedNormal(space.origin(2, torch.float64), manifold=space, scale_tril=root)
    v = torch.tensor([[0.4, -0.3], [3.0, 1.5], [-2.0, 0.1]], dtype=torch.float64)
    plane = torch.distributions.MultivariateNormal(torch.zeros(2, dtype=torch.float64), scale_tril=root)
    m = torch.arange(-12, 13, dtype=torch.float64)
    shifts = torch.stack(torch.broadcast_tensors(2 * math.pi * m[:, None], math.pi * m), -1)
    expected = plane.log_prob(v[:, None, None] + shifts).exp().sum((-2, -1)).log()
    same(distribution.log_prob(space.from_normal_coords(None, v)), expected, 1e-12)


@pytest.mark.parametrize("dim", [1, 2, 10])
@every_name
def test_goodness_of_fit(name, dim):
    sphere = Sphere(0.6)
    loc = sphere.from_normal_coords(None, torch.linspace(-1, 1.3, dim, dtype=torch.float64))
    distribution = make(name, sphere, dim, 1.6, loc=loc)
    angle = sphere.dist(distribution.loc, distribution.sample((20_000,))) * math.sqrt(0.6)
    grid = torch.linspace(0, math.pi, 2001, dtype=torch.float64)
    v = torch.zeros(2001, dim, dtype=torch.float64)
    v[:, 0] = grid / math.sqrt(0.6)
    density = distribution.log_prob(sphere.from_normal_coords(loc, v)).exp() * grid.sin() ** (dim - 1)
    density[[0, -1]] = 0 if dim > 1 else density[[0, -1]] / 2
    cdf = density.cumsum(0) - density / 2
    cdf = (cdf / density.sum()).numpy()
    p = stats.kstest(angle.numpy(), lambda t: np.interp(t, grid.numpy(), cdf)).pvalue
    assert p > LEAST_P


@pytest.mark.parametrize("distribution", [hdist.VonMisesFisher, hdist.PowerSpherical])
@pytest.mark.parametrize("dim", [1, 4])
def test_gradient_of_the_mean_in_the_concentration(distribution, dim):
    """d/dkappa E[mu.x] by samples and by quadrature; the sampler by rejection gives 0.1277 in place of 0.1474."""
    origin = Sphere(1.0).origin(dim, torch.float64)
    kappa = torch.full((100_000,), 2.0, dtype=torch.float64, requires_grad=True)
    height = distribution(origin, kappa).rsample()[:, 0]
    (slopes,) = torch.autograd.grad(height.sum(), kappa)
    angle, weight = _angles()
    points = torch.stack([angle.cos(), angle.sin(), *[torch.zeros_like(angle)] * (dim - 1)], -1)
    one = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    area = math.exp(hdist.HypersphericalUniform(dim).log_area)
    density = distribution(origin, one).log_prob(points).exp() * angle.sin() ** (dim - 1) * weight * area
    mean = (density * angle.cos()).sum()
    (exact,) = torch.autograd.grad(mean, one)
    if distribution is hdist.VonMisesFisher and dim == 4:
        assert exact.item() == pytest.approx(0.1474, abs=5e-5)
    assert (height.mean() - mean).abs() < 5 * height.std() / math.sqrt(len(kappa))
    assert (slopes.mean() - exact).abs() < 5 * slopes.std() / math.sqrt(len(kappa))


def test_von_mises_fisher_against_bessel_functions():
    from scipy.special import ive

    for p, kappa in [(2, 0.5), (3, 4.0), (5, 2.0), (11, 30.0)]:
        distribution = hdist.VonMisesFisher(Sphere(1.0).origin(p - 1, torch.float64), kappa)
        log_c = (p / 2 - 1) * math.log(kappa) - p / 2 * math.log(2 * math.pi) - math.log(ive(p / 2 - 1, kappa))
        same(distribution.log_prob(distribution.mean), log_c, 1e-12)
        same(distribution.mean_resultant_length, ive(p / 2, kappa) / ive(p / 2 - 1, kappa), 1e-12)


def test_wrapped_normal_on_the_circle_is_a_theta_function():
    angle = torch.linspace(-3, 3, 13, dtype=torch.float64)
    distribution = hdist.WrappedNormal(Sphere(1.0).origin(1, torch.float64), 0.8, Sphere(1.0))
    density = distribution.log_prob(torch.stack([angle.cos(), angle.sin()], -1)).exp()
    n = torch.arange(1, 30, dtype=torch.float64)
    series = 1 + 2 * (torch.exp(-0.32 * n * n) * torch.cos(n * angle.unsqueeze(-1))).sum(-1)
    same(density, series / (2 * math.pi), 1e-13)


class TestLimits:
    def test_concentration_zero_is_uniform(self):
        x = Sphere(1.0).projx(torch.randn(5, 4, dtype=torch.float64))
        for distribution in (hdist.VonMisesFisher, hdist.PowerSpherical):
            log_prob = distribution(Sphere(1.0).origin(3, torch.float64), 0.0).log_prob(x)
            same(log_prob, torch.full((5,), -hdist.HypersphericalUniform(4).log_area, dtype=torch.float64), 1e-12)

    @pytest.mark.parametrize("distribution", [hdist.WrappedNormal, hdist.RiemannianNormal])
    def test_a_large_sphere_is_flat(self, distribution):
        sphere, v = Sphere(1e-8), torch.tensor([0.3, -1.0, 0.4], dtype=torch.float64)
        near = distribution(sphere.origin(3, torch.float64), 0.7, sphere).log_prob(sphere.from_normal_coords(None, v))
        flat = distribution(torch.zeros(3, dtype=torch.float64), 0.7, Euclidean()).log_prob(v)
        same(near, flat, 1e-7)

    def test_wide_riemannian_normal_is_uniform(self):
        x = Sphere(1.0).projx(torch.randn(5, 3, dtype=torch.float64))
        distribution = hdist.RiemannianNormal(Sphere(1.0).origin(2, torch.float64), 1e5, Sphere(1.0))
        same(distribution.log_prob(x), torch.full((5,), -math.log(4 * math.pi), dtype=torch.float64), 1e-8)

    def test_too_wide_a_wrapped_normal(self):
        origin = Sphere(4.0).origin(2)
        with pytest.raises(ValueError, match=r"at most 5 radii of a sphere, got 6\.2; .*RiemannianNormal"):
            hdist.WrappedNormal(origin, 3.1, Sphere(4.0))
        distribution = hdist.WrappedNormal(origin, torch.tensor([[3.1], [0.4]]), Sphere(4.0), validate_args=False)
        assert distribution.log_prob(distribution.sample()).isfinite().tolist() == [False, True]

    @pytest.mark.parametrize("dim", [1, 2, 20, 50])
    def test_the_number_of_windings_is_enough(self, dim):
        """Also for samples, whose coordinates have gone around already: the widest, against many more terms."""
        torch.manual_seed(dim)
        sphere, count = Sphere(0.25), 200
        distribution = hdist.WrappedNormal(sphere.origin(dim, torch.float64), WIDEST * 2.0, sphere)
        z = distribution.sample((1000,))
        r = sphere.dist0(z).numpy()
        s = r[:, None] + 4 * math.pi * np.arange(-count, count + 1)
        log_ratio = np.log(np.abs(s) / (2 * np.sin(r / 2))[:, None])
        terms = (dim - 1) * log_ratio + stats.norm.logpdf(s, scale=10) + (dim - 1) * stats.norm.logpdf(0, scale=10)
        same(distribution.log_prob(z), np.logaddexp.reduce(terms, -1), 1e-9)
        same(distribution.log_prob(z.clone()), distribution.log_prob(z), 1e-9)
        assert count_windings(dim) < 13

    @every_name
    def test_at_loc_and_antipode_gradients_are_finite(self, name):
        distribution = make(name, Sphere(1.0), 2, 1.0)
        for x in (distribution.loc, -distribution.loc):
            value = x.clone().requires_grad_()
            log_prob = distribution.log_prob(value)
            assert not log_prob.isnan()
            assert torch.autograd.grad(log_prob, value)[0].isfinite().all() or name == "power"

    @every_dtype
    @pytest.mark.parametrize("vectorised", [False, True], ids=["loop", "vmap"])
    def test_draws_at_the_end_of_the_stereographic_chart(self, vectorised, dtype):
        """As in training: a posterior's draws near the antipode of the origin, scored by both; one curvature each."""
        gaps = torch.logspace(-10, 0, 200, dtype=dtype).unsqueeze(-1)
        axis = torch.tensor([0.6, 0.8], dtype=dtype)
        centre = torch.linspace(-1.2, 1.2, 200, dtype=dtype).unsqueeze(-1) * axis
        noise = 2 * ((math.pi - gaps) * axis - 2 * centre)

        def bound(k, centre):
            space = Stereographic(k)
            q = hdist.WrappedNormal(space.from_normal_coords(None, 2 * centre), 0.5, space, validate_args=False)
            z = q.from_noise(noise)
            p = hdist.WrappedNormal(torch.zeros_like(axis), 1.0, space, validate_args=False)
            return p.log_prob(z) - q.log_prob(z)

        value_and_slopes = torch.func.grad_and_value(lambda *args: bound(*args).sum(), argnums=(0, 1))
        curvatures = torch.tensor([-1.0, 0.0, 1.0], dtype=dtype)
        if vectorised:
            found = [torch.func.vmap(value_and_slopes, (0, None))(curvatures, centre)]
        else:
            found = [value_and_slopes(k, centre) for k in curvatures]
        for (slope_k, slope_centre), value in found:
            assert all(part.isfinite().all() for part in (slope_k, slope_centre, value))


def spread_around(point, dim, sigma, cosine):
    """The mean squared distance to a point at an angle from ``loc``, of the mass on one line through ``loc``."""
    nodes, weights = gauss_legendre(400)
    low, high = max(0.0, sigma * (math.sqrt(dim) - 9)), sigma * (math.sqrt(dim) + 9)
    s, ends = [], np.linspace(low, high, 40)
    s = (ends[:-1, None] + np.diff(ends)[:, None] * (1 + nodes) / 2).ravel()
    mass = stats.chi.pdf(s / sigma, dim) * np.tile(weights, 39)
    both = [np.cos(point) * np.cos(s) + sign * cosine * np.sin(point) * np.sin(s) for sign in (1, -1)]
    squares = [np.arccos(x.clip(-1, 1)) ** 2 for x in both]
    return (mass * (squares[0] + squares[1]) / 2).sum() / mass.sum()


class TestCentre:
    @pytest.mark.parametrize("dim", [2, 3, 5, 20, 200])
    def test_the_mean_is_loc_wherever_it_is_one(self, dim):
        """On every line through loc, whatever its own scale: so loc is nearest whatever the covariance."""
        widest = math.pi / 2 / math.sqrt(dim + 2)
        for share, cosine in itertools.product((0.3, 0.7, 0.9, 1.0), (0.0, 0.5, 1.0)):
            spreads = [spread_around(t, dim, share * widest, cosine) for t in (0.0, 0.02, 0.3, 1.0, 2.0, 3.0, math.pi)]
            assert min(spreads) == spreads[0]
        sphere = Sphere(0.25)
        scale = torch.full((dim,), 1.999 * widest, dtype=torch.float64)
        for scales in ({"scale": scale}, {"scale_tril": scale.diag()}):
            distribution = hdist.WrappedNormal(sphere.origin(dim, torch.float64), manifold=sphere, **scales)
            assert torch.equal(distribution.mean, distribution.loc)

    @pytest.mark.parametrize(("dim", "scale"), [(2, 1.5), (5, 1.0), (20, 0.5)])
    def test_a_wide_one_is_nearer_to_its_antipode_and_has_no_mean(self, dim, scale):
        sphere = Sphere(1.0)
        distribution = hdist.WrappedNormal(sphere.origin(dim, torch.float64), scale, sphere)
        z = distribution.sample((5000,))
        assert sphere.dist(z, -distribution.loc).square().mean() < sphere.dist(z, distribution.loc).square().mean()
        with pytest.raises(NotImplementedError, match=r"on Sphere\(c=1.0\): loc need not be the Fréchet mean.*use loc"):
            _ = distribution.mean

    def test_there_is_no_mode_from_two_dimensions_on(self):
        sphere = Sphere(1.0)
        distribution = hdist.WrappedNormal(sphere.origin(2, torch.float64), 0.5, sphere)
        near = sphere.from_normal_coords(
            -distribution.loc, torch.tensor([[1e-10, 0.0], [1e-12, 0.0]], dtype=torch.float64)
        )
        low, high = distribution.log_prob(near)
        assert high > low + 4
        with pytest.raises(NotImplementedError, match=r"no mode.*infinite at loc.*use loc"):
            _ = distribution.mode

    def test_a_circle_has_both(self):
        distribution = hdist.WrappedNormal(Sphere(1.0).origin(1), 4.0, Sphere(1.0))
        assert torch.equal(distribution.mean, distribution.loc)
        assert torch.equal(distribution.mode, distribution.loc)

    def test_curvatures_of_either_sign(self):
        k = torch.tensor([-1.0, 0.0, 0.01, 1.0])
        distribution = hdist.WrappedNormal(torch.zeros(2), 0.8, Stereographic(k))
        unread = torch.func.vmap(
            lambda k: hdist.WrappedNormal(torch.zeros(2), 0.8, Stereographic(k), validate_args=False).mean
        )
        assert unread(k).isnan().all(-1).tolist() == [False, False, False, True]
        with pytest.raises(NotImplementedError, match="Fréchet"):
            _ = distribution.mean
        assert torch.equal(hdist.WrappedNormal(torch.zeros(2), 0.8, Stereographic(k[:3])).mean, torch.zeros(3, 2))
        assert torch.equal(hdist.WrappedNormal(torch.zeros(2), 0.8, Stereographic(k[:2])).mode, torch.zeros(2, 2))

    def test_a_product_asks_its_factors(self):
        space = Product((Sphere(1.0), 2), (Lorentz(1.0), 2))
        scales = [torch.tensor([0.5, 0.7, 3.0, 3.0]), torch.tensor([0.5, 0.9, 0.1, 0.1])]
        distributions = [hdist.WrappedNormal(space.origin(4), scale, space) for scale in scales]
        assert torch.equal(distributions[0].mean, distributions[0].loc)
        with pytest.raises(NotImplementedError, match="Fréchet"):
            _ = distributions[1].mean


class TestLargeConcentrations:
    @every_dtype
    @pytest.mark.parametrize("dim", [1, 2, 10])
    def test_normaliser_of_the_power_spherical_distribution(self, dim, dtype):
        """In closed form, with fifty digits: value, derivative and entropy."""
        with mpmath.workdps(50):
            for number in (0.0, 0.5, 10.0, 1e3, 1e5, 1e6, 1e10):
                kappa = torch.tensor(number, dtype=dtype, requires_grad=True)
                distribution = hdist.PowerSpherical(Sphere(1.0).origin(dim, dtype), kappa)
                half, k = mpmath.mpf(dim) / 2, mpmath.mpf(kappa.item())
                log_beta = mpmath.loggamma(half + k) + mpmath.loggamma(half) - mpmath.loggamma(dim + k)
                slope = mpmath.digamma(half + k) - mpmath.digamma(dim + k)
                log_z = log_beta + (dim - 1) * mpmath.log(2) + hdist.HypersphericalUniform(dim).log_area
                found = distribution.log_normalizer
                same(found, float(log_z), 8 * torch.finfo(dtype).eps)
                same(distribution.entropy(), float(log_z - k * slope), 8 * torch.finfo(dtype).eps)
                (found,) = torch.autograd.grad(found, kappa)
                same(found, float(slope), 8 * torch.finfo(dtype).eps, scale=0)

    @pytest.mark.parametrize("distribution", [hdist.VonMisesFisher, hdist.PowerSpherical])
    def test_own_samples_in_float32(self, distribution):
        p = distribution(Sphere(1.0).origin(3), 1e6)
        sample = p.sample((1000,))
        angle = p._coords(sample).double().norm(dim=-1)
        energy = (
            2 * torch.sin(angle / 2).square()
            if distribution is hdist.VonMisesFisher
            else -2 * torch.cos(angle / 2).log()
        )
        same(p.log_prob(sample), -1e6 * energy - p.log_normalizer, 1e-6)

    @every_dtype
    @pytest.mark.parametrize("distribution", [hdist.VonMisesFisher, hdist.PowerSpherical])
    def test_divergence_from_itself(self, distribution, dtype):
        a = Sphere(1.0).projx(torch.randn(4, dtype=dtype))
        for kappa in (0.0, 1.0, 1e6, 1e12):
            assert kl_divergence(distribution(a, kappa), distribution(a.clone(), kappa)) == 0

    @pytest.mark.parametrize("distribution", [hdist.VonMisesFisher, hdist.PowerSpherical])
    def test_an_infinite_one_is_refused(self, distribution):
        with pytest.raises(ValueError, match=r"concentration must be finite, got inf; .*Delta"):
            distribution(Sphere(1.0).origin(2), torch.tensor([1.0, math.inf]))


@every_dtype
@pytest.mark.parametrize("c", [1.0, 3.7])
def test_the_power_spherical_distribution_at_the_antipode(c, dtype):
    """The uniform density at concentration 0, none above."""
    torch.manual_seed(0)
    sphere = Sphere(c)
    loc = sphere.projx(torch.randn(200, 4, dtype=dtype))
    uniform = 1.5 * math.log(c) - hdist.HypersphericalUniform(4).log_area
    for concentration, expected in ((0.0, uniform), (0.5, -math.inf)):
        kappa = torch.tensor(concentration, dtype=dtype, requires_grad=True)
        value = (-loc).clone().requires_grad_()
        log_prob = hdist.PowerSpherical(loc, kappa, sphere).log_prob(value)
        torch.testing.assert_close(log_prob, torch.full_like(log_prob, expected))
        assert all(slope.isfinite().all() for slope in torch.autograd.grad(log_prob.sum(), (value, kappa)))


@every_dtype
@pytest.mark.parametrize("distribution", [hdist.VonMisesFisher, hdist.PowerSpherical])
def test_noise(distribution, dtype):
    torch.manual_seed(0)
    sphere = Sphere(0.6)
    loc = sphere.projx(torch.randn(3, 4, dtype=dtype))
    kappa = torch.tensor([0.0, 2.0, 1e4], dtype=dtype, requires_grad=True)
    p = distribution(loc, kappa, sphere)
    noise = torch.randn(1000, 3, 3, dtype=dtype)
    z = p.from_noise(noise)
    same(p.to_noise(z.detach()), noise, 1e4 * torch.finfo(dtype).eps)
    # The same distribution as that of samples: the angle by its quantiles.
    others = sphere.dist(loc, p.sample((1000,)))
    for own, other in zip(sphere.dist(loc, z).T.tolist(), others.T.tolist(), strict=True):
        assert stats.ks_2samp(own, other).pvalue > LEAST_P
    (slope,) = torch.autograd.grad(sphere.dist(loc, z).sum(), kappa)
    assert (slope < 0).all()


class TestDivergence:
    def _estimate(self, p, q):
        x = p.sample((40_000,))
        ratio = p.log_prob(x) - q.log_prob(x)
        return ratio.mean(), 5 * ratio.std() / 200

    def test_von_mises_fisher_of_any_means(self):
        a, b = Sphere(1.0).projx(torch.randn(2, 4, dtype=torch.float64))
        p, q = hdist.VonMisesFisher(a, 3.0), hdist.VonMisesFisher(b, 1.5)
        estimate, error = self._estimate(p, q)
        assert (kl_divergence(p, q) - estimate).abs() < error

    @pytest.mark.parametrize("distribution", [hdist.PowerSpherical, hdist.VonMisesFisher])
    def test_one_mean_and_uniform(self, distribution):
        a = Sphere(1.0).projx(torch.randn(4, dtype=torch.float64))
        p = distribution(a, 3.0)
        for q in (distribution(a, 1.5), hdist.HypersphericalUniform(4)):
            estimate, error = self._estimate(p, q)
            assert (kl_divergence(p, q) - estimate).abs() < error
        with pytest.raises(ValueError, match="unit sphere in 3 dimensions"):
            kl_divergence(p, hdist.HypersphericalUniform(3))

    def test_riemannian_on_sphere_and_product(self):
        space = Product((Sphere(1.0), 2), (PoincareBall(1.0), 2), (Euclidean(), 1))
        origin = space.origin(5, torch.float64)
        p, q = (hdist.RiemannianNormal(origin, scale, space) for scale in (0.8, 1.3))
        estimate, error = self._estimate(p, q)
        assert (kl_divergence(p, q) - estimate).abs() < error

    def test_wrapped_normals_that_wind_have_none(self):
        origin = Sphere(1.0).origin(2)
        with pytest.raises(NotImplementedError, match="windings"):
            kl_divergence(*[hdist.WrappedNormal(origin, scale, Sphere(1.0)) for scale in (0.5, 1.0)])


@pytest.mark.parametrize("space", [PoincareBall(1.2), Lorentz(0.7), Sphere(0.5), Euclidean()], ids=repr)
def test_rotated(space):
    """The first axis of the covariance is along the radius, the second in the plane of it and the first axis."""
    u = torch.tensor([[-0.6, 0.8, 0.3], [0.0, 0.0, 0.0], [-2.0, 0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    scale = torch.tensor([0.9, 0.4, 0.2], dtype=torch.float64)
    distribution = hdist.WrappedNormal.rotated(space.from_normal_coords(None, u), scale, space)
    covariance = distribution.covariance_matrix
    radial = u[0] / u[0].norm()
    same(covariance[0] @ radial, 0.81 * radial, 1e-12)
    same(torch.linalg.eigvalsh(covariance[0]), scale.square().flip(0), 1e-12)
    same(covariance[1:], torch.diag(scale.square()).expand(2, 3, 3), 1e-12)
    assert torch.autograd.grad(distribution.log_prob(distribution.rsample()).sum(), u)[0].isfinite().all()


def test_rotated_errors():
    space = Product((PoincareBall(1.0), 2))
    two = Product((PoincareBall(1.0), 1), (Euclidean(), 1))
    assert hdist.WrappedNormal.rotated(torch.zeros(2), torch.ones(2), space).batch_shape == ()
    with pytest.raises(ValueError, match="no product"):
        hdist.WrappedNormal.rotated(torch.zeros(2), torch.ones(2), two)
    with pytest.raises(ValueError, match=r"scale must be a tensor \(\.\.\., 2\), got \(1,\)"):
        hdist.WrappedNormal.rotated(torch.zeros(2), torch.ones(1), PoincareBall(1.0))


class TestErrors:
    def test_point_off_the_sphere(self):
        distribution = hdist.VonMisesFisher(torch.tensor([1.0, 0.0]), 1.0)
        with pytest.raises(ValueError, match="support"):
            distribution.log_prob(torch.tensor([1.1, 0.0]))
        with pytest.raises(ValueError, match="loc"):
            hdist.WrappedNormal(torch.tensor([2.0, 0.0]), 1.0, Sphere(1.0))

    def test_other_manifold(self):
        with pytest.raises(ValueError, match=r"must be a Sphere, got PoincareBall"):
            hdist.VonMisesFisher(torch.zeros(2), 1.0, PoincareBall(1.0))

    def test_scale_of_the_wrong_size_for_a_product(self):
        space = Product((PoincareBall(1.0), 2), (Sphere(1.0), 2))
        with pytest.raises(ValueError, match=r"scale must be a number, \(\.\.\., 1\) or \(\.\.\., 4\), got \(5,\)"):
            hdist.WrappedNormal(space.origin(4), torch.ones(5), space)

    def test_reach_is_that_of_each_factor(self):
        space = Product((PoincareBall(1.0), 2), (Euclidean(), 2))
        scale = torch.tensor([1.0, 1.0, 100.0, 100.0])
        hdist.WrappedNormal(space.origin(4), scale, space).sample()
        with pytest.raises(ValueError, match=r"on PoincareBall\(c=1\.0\).*use float64"):
            hdist.WrappedNormal(space.origin(4), scale.flip(0).clamp(max=5.0), space).sample()


def test_uniform_without_validation():
    value = torch.tensor([[1.0, 0.0], [torch.nan, 0.0], [torch.inf, 0.0]])
    log_prob = hdist.HypersphericalUniform(2, validate_args=False).expand([2, 1]).log_prob(value)
    expected = torch.tensor([-math.log(2 * math.pi), torch.nan, -torch.inf]).expand(2, 3)
    torch.testing.assert_close(log_prob, expected, equal_nan=True)
