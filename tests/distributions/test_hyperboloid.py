"""Distributions on the hyperboloid: those of the ball by the isometry, exact far out, and sites like others to Pyro."""

from __future__ import annotations

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from mpmath import mp
from pyro.infer import MCMC, NUTS, SVI, RenyiELBO, Trace_ELBO, TraceGraph_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoDelta, AutoMultivariateNormal, AutoNormal
from pyro.infer.mcmc.util import initialize_model
from torch.distributions import biject_to, constraints, transform_to

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import Lorentz, PoincareBall
from tests.geometry import hyperboloid_reference as ref
from tests.helpers import DTYPES, LOG_PROB, same

every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
FAR = {torch.float32: 60.0, torch.float64: 300.0}  # sqrt(c) times the distance to the origin
FAR_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-9}
CHARTS = {"ball": PoincareBall, "hyperboloid": Lorentz}
DISTRIBUTIONS = [hdist.WrappedNormal, hdist.RiemannianNormal]
every_distribution = pytest.mark.parametrize("distribution", DISTRIBUTIONS)


# --- the same distribution as on the ball -----------------------------------------------------------------------

SCALES = {
    "isotropic": lambda dim: {"scale": torch.tensor([0.8])},
    "diagonal": lambda dim: {"scale": torch.linspace(0.3, 1.2, dim)},
    "full": lambda dim: {"scale_tril": 0.2 * torch.ones(dim, dim).tril(-1) + torch.diag(torch.linspace(0.4, 1.1, dim))},
    "riemannian": lambda dim: {"scale": torch.tensor([0.6])},
}


def on_both(kind, dim, c, dtype=torch.float64):
    """The distribution on each chart, from parameters that are leaves: coordinates of the mean, scale, curvature."""
    distribution = hdist.RiemannianNormal if kind == "riemannian" else hdist.WrappedNormal
    noise = torch.Generator().manual_seed(1)
    made = {}
    for name, chart in CHARTS.items():
        leaves = {"u": 0.6 * torch.randn(dim, generator=noise.manual_seed(1), dtype=torch.float64)}
        leaves |= SCALES[kind](dim) | {"c": torch.tensor(c)}
        leaves = {key: value.to(dtype).requires_grad_() for key, value in leaves.items()}
        manifold = chart(leaves["c"])
        params = {key: value for key, value in leaves.items() if key.startswith("scale")}
        made[name] = (
            leaves,
            distribution(loc=manifold.from_normal_coords(None, leaves["u"]), manifold=manifold, **params),
        )
    return made["ball"], made["hyperboloid"]


@pytest.mark.parametrize("c", [0.01, 0.7, 1.4])
@pytest.mark.parametrize("dim", [1, 2, 5])
@pytest.mark.parametrize("kind", SCALES)
def test_density_and_gradients_are_those_of_the_ball(kind, dim, c):
    (ball_leaves, ball), (leaves, hyperboloid) = on_both(kind, dim, c)
    with torch.no_grad():
        z = ball.sample((20,))
        x = hyperboloid.manifold.from_poincare(z)
    expected, actual = ball.log_prob(z), hyperboloid.log_prob(x)
    same(actual, expected, LOG_PROB[torch.float64])
    # Derivatives at a fixed point of the ball, which in c is not a fixed point of the hyperboloid.
    moving = hyperboloid.manifold.from_poincare(z)
    slopes = torch.autograd.grad(hyperboloid.log_prob(moving).sum(), leaves.values())
    for slope, other in zip(slopes, torch.autograd.grad(expected.sum(), ball_leaves.values()), strict=True):
        scale = 20.0 * max(1.0, other.abs().max().item())  # a sum of twenty
        same(slope, other, 1e-9, scale=scale)


@pytest.mark.parametrize("kind", SCALES)
def test_samples_and_their_gradients_are_those_of_the_ball(kind):
    results = []
    for leaves, distribution in on_both(kind, 3, 0.7):
        torch.manual_seed(2)
        z = distribution.rsample((50,))
        assert distribution.support.check(z).all()
        log_prob = distribution.log_prob(z)
        z = distribution.manifold.to_poincare(z) if isinstance(distribution.manifold, Lorentz) else z
        weights = torch.randn(z.shape, generator=torch.Generator().manual_seed(3), dtype=z.dtype)
        results.append([z, log_prob, *torch.autograd.grad((weights * z).sum() + log_prob.sum(), leaves.values())])
    for ball, hyperboloid in zip(*results, strict=True):
        same(hyperboloid, ball, 1e-9, scale=ball.abs().max())


def test_there_is_no_second_implementation():
    for distribution in DISTRIBUTIONS:
        on_ball = distribution(torch.zeros(2), 1.0, PoincareBall(1.0))
        on_hyperboloid = distribution(Lorentz(1.0).origin(2), 1.0, Lorentz(1.0))
        assert type(on_ball) is type(on_hyperboloid) is distribution
        assert (on_ball.event_shape, on_hyperboloid.event_shape) == ((2,), (3,))


@every_distribution
def test_mean_and_mode_are_loc(distribution):
    h = Lorentz(0.7)
    loc = h.from_normal_coords(None, torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64))
    p = distribution(loc, 0.5, h)
    assert torch.equal(p.mean, loc)
    around = h.from_normal_coords(loc, 0.1 * torch.randn(50, 3, dtype=torch.float64))
    assert (p.log_prob(p.mode) > p.log_prob(around)).all()
    sample = p.sample((4000,))
    # Five standard errors: a wrapped normal coordinate has the scale 0.5, a Riemannian one about that.
    assert h.dist(h.frechet_mean(sample), loc) < 5 * 0.6 * math.sqrt(3 / 4000)


# --- constraint and transform -----------------------------------------------------------------------------------


def test_support_is_the_hyperboloid():
    support = hdist.constraints.on(Lorentz(0.7))
    assert support == hdist.constraints.on(Lorentz(torch.tensor(0.7, dtype=torch.float64)))
    assert support != hdist.constraints.on(Lorentz(0.8))
    assert support != hdist.constraints.on(PoincareBall(0.7))
    assert len({support, hdist.constraints.on(Lorentz(0.7)), hdist.constraints.on(PoincareBall(0.7))}) == 2
    assert repr(support) == "on(Lorentz(c=0.7))"
    assert (support.event_dim, support.is_discrete) == (1, False)
    x = Lorentz(0.7).from_normal_coords(None, torch.randn(4, 3))
    x = torch.cat([x, 1.01 * x, -x, torch.full_like(x, math.nan)])
    assert support.check(x).tolist() == [True] * 4 + [False] * 12
    with pytest.raises(ValueError, match="c must be positive"):
        hdist.constraints.on(Lorentz(0.0))
    assert distribution_at_origin(0.7).support == support


def distribution_at_origin(c, dim=3, scale=1.0, distribution=hdist.WrappedNormal, dtype=torch.float64):
    return distribution(Lorentz(c).origin(dim, dtype), scale, Lorentz(c))


@pytest.mark.parametrize("registry", [biject_to, transform_to], ids=["biject_to", "transform_to"])
def test_registered_transform_maps_all_of_space_onto_the_hyperboloid(registry):
    transform = registry(hdist.constraints.on(Lorentz(0.7)))
    assert transform.domain == constraints.real_vector
    assert transform.codomain == hdist.constraints.on(Lorentz(0.7))
    assert transform.bijective
    v = torch.logspace(-8, 2.5, 40, dtype=torch.float64).unsqueeze(-1) * torch.tensor([0.6, 0.0, -0.8])
    x = transform(v)
    assert transform.codomain.check(x).all()
    same(transform.inv(x), v, 1e-9, scale=v.norm(dim=-1, keepdim=True))
    same(Lorentz(0.7).dist0(x), v.norm(dim=-1), 1e-9, scale=0)
    assert transform.forward_shape((5, 3)) == (5, 4)
    assert transform.inverse_shape((5, 4)) == (5, 3)


@pytest.mark.parametrize("dim", [1, 2, 4])
def test_jacobian_is_that_of_the_riemannian_volume(dim):
    transform = biject_to(hdist.constraints.on(Lorentz(0.7)))
    metric = torch.diag(torch.tensor([-1.0] + [1.0] * dim, dtype=torch.float64))
    for v in torch.randn(5, dim, dtype=torch.float64) * torch.logspace(-3, 0.7, 5, dtype=torch.float64).unsqueeze(-1):
        jacobian = torch.func.jacrev(transform)(v)
        expected = 0.5 * torch.linalg.slogdet(jacobian.mT @ metric @ jacobian)[1]
        same(transform.log_abs_det_jacobian(v, transform(v)), expected, 1e-9)


def test_transformed_gaussian_is_the_wrapped_normal():
    base = dist.Normal(torch.zeros(3, dtype=torch.float64), 0.7).to_event(1)
    pushed = dist.TransformedDistribution(base, [biject_to(hdist.constraints.on(Lorentz(1.4)))])
    wrapped = distribution_at_origin(1.4, scale=0.7)
    z = wrapped.sample((30,))
    assert pushed.event_shape == wrapped.event_shape == (4,)
    same(pushed.log_prob(z), wrapped.log_prob(z.clone()), 1e-9)


# --- far out ----------------------------------------------------------------------------------------------------

far_out = pytest.mark.parametrize("c", [0.01, 1.0, 1.4])


def with_coordinates(distribution, *sample_shape):
    """A sample and the normal coordinates it was made of."""
    torch.manual_seed(4)
    v = distribution._rsample_coords(torch.Size(sample_shape))
    torch.manual_seed(4)
    return distribution.rsample(sample_shape), v


@every_dtype
@far_out
def test_wrapped_density_of_its_own_samples_far_out(dtype, c):
    # Mean at four fifths of the way, and a scale that makes up for the rest.
    h = Lorentz(c)
    far = FAR[dtype] / math.sqrt(c)
    loc = h.from_normal_coords(None, (0.8 * far * torch.tensor([0.6, 0.0, 0.0, -0.8])).to(dtype))
    scale = torch.tensor([0.1 * far], dtype=dtype, requires_grad=True)
    curvature = torch.tensor(c, dtype=torch.float64, requires_grad=True)
    distribution = hdist.WrappedNormal(loc, scale, Lorentz(curvature))
    z, v = with_coordinates(distribution)
    assert h.contains(z)
    log_prob = distribution.log_prob(z)
    noise = ref.vector((v / scale).detach())

    def textbook(scale, c):
        return ref.wrapped_log_prob([scale * e for e in noise], scale, c)

    exact = ref.number(scale.detach()), ref.number(curvature.detach())
    same(log_prob, ref.tensor(ref.exact(textbook)(*exact)), FAR_TOLERANCE[dtype], scale=0)
    slopes = torch.autograd.grad(log_prob, (scale, curvature))
    for slope, expected in zip(slopes, ref.gradient(textbook, *exact), strict=True):
        same(slope.squeeze(), ref.tensor(expected), FAR_TOLERANCE[dtype], scale=0)


@every_dtype
@far_out
def test_riemannian_density_of_its_own_samples_far_out(dtype, c):
    # (d - 1) c scale^2 is where the mass lies, in units of 1/sqrt(c).
    dim = 11
    scale = torch.tensor([math.sqrt(FAR[dtype] / (dim - 1) / c)], dtype=dtype, requires_grad=True)
    distribution = distribution_at_origin(c, dim, scale, hdist.RiemannianNormal, dtype)
    with torch.no_grad():
        z, v = with_coordinates(distribution)
    assert 0.7 < distribution.manifold.dist0(z) * math.sqrt(c) / FAR[dtype] < 1.3
    log_prob = distribution.log_prob(z)
    exact = ref.vector(v), ref.number(scale.detach()), ref.number(c)
    same(log_prob, ref.tensor(ref.exact(ref.riemannian_log_prob)(*exact)), FAR_TOLERANCE[dtype], scale=0)
    (slope,) = torch.autograd.grad(log_prob, scale)
    (expected,) = ref.gradient(lambda scale: ref.riemannian_log_prob(exact[0], scale, exact[2]), exact[1])
    # A sum of two terms that are each as large as the distance squared over scale cubed.
    size = v.square().sum().item() / scale.item() ** 3
    same(slope.squeeze(), ref.tensor(expected), FAR_TOLERANCE[dtype], scale=size)


@every_dtype
@far_out
@every_distribution
def test_prior_density_of_a_posteriors_far_sample(distribution, dtype, c):
    # What an ELBO needs: log p(z) of z from q, with its derivatives in the parameters of q.
    far, dim = FAR[dtype] / math.sqrt(c), 3
    u = (0.9 * far * torch.tensor([0.6, 0.0, -0.8])).to(dtype).requires_grad_()
    scale = torch.tensor([0.02 * far], dtype=dtype, requires_grad=True)
    h = Lorentz(c)
    z, v = with_coordinates(hdist.WrappedNormal(h.from_normal_coords(None, u), scale, h))
    prior_scale = 0.4 * far
    log_prob = distribution_at_origin(c, dim, prior_scale, distribution, dtype).log_prob(z)
    noise = ref.vector((v / scale).detach())
    constant = ref.exact(ref.riemannian_log_normalizer)(dim, ref.number(prior_scale), ref.number(c))

    def textbook(u, scale):
        curvature, sigma = ref.number(c), ref.number(prior_scale)
        there = ref.from_normal_coords(None, u, curvature)
        there = ref.from_normal_coords(there, [scale * e for e in noise], curvature)
        coords = ref.to_normal_coords(None, there, curvature)
        if distribution is hdist.WrappedNormal:
            return ref.wrapped_log_prob(coords, sigma, curvature)
        return -(ref.length(coords) ** 2) / (2 * sigma**2) - constant

    exact = ref.vector(u.detach()), ref.number(scale.detach())
    same(log_prob, ref.tensor(ref.exact(textbook)(*exact)), FAR_TOLERANCE[dtype], scale=0)
    slopes = torch.autograd.grad(log_prob, (u, scale))
    for slope, expected in zip(slopes, ref.gradient(textbook, *exact), strict=True):
        expected = ref.tensor(expected).reshape(slope.shape)
        same(slope, expected, FAR_TOLERANCE[dtype], scale=expected.abs().max())


LIMIT = r"e^{2\sqrt{c}\,d(0, loc)}"


@every_distribution
def test_docstring_states_what_foreign_points_lose(distribution):
    assert LIMIT in distribution.log_prob.__doc__
    assert r"e^{2\sqrt{c}\,d(0, x)}" in Lorentz.__doc__


@every_dtype
@pytest.mark.parametrize("distance", [1.0, 3.0, 5.0])
@every_distribution
def test_foreign_points_lose_no_more_than_that(distribution, distance, dtype):
    c = 0.7
    h = Lorentz(c)
    loc = h.from_normal_coords(None, (distance / math.sqrt(c) * torch.tensor([0.6, 0.0, -0.8])).to(dtype))
    p = distribution(loc, 0.5, h)
    z, v = with_coordinates(p, 300)
    own, foreign = p.log_prob(z), p.log_prob(z.clone())
    # How the density changes when the coordinates change by a relative error.
    weight = (v / 0.5).square().sum(-1) + math.sqrt(c) * v.norm(dim=-1)
    loss = ((foreign - own).abs() / (1 + weight)).max().item()
    bound = torch.finfo(dtype).eps * math.exp(2 * distance)
    assert loss <= 4 * bound
    if distance > 1:
        assert loss > 1e-3 * bound  # the loss is there: own samples are better


@pytest.mark.parametrize(("distribution", "scale"), [(hdist.WrappedNormal, 60.0), (hdist.RiemannianNormal, 12.0)])
def test_mass_beyond_reach_is_refused(distribution, scale):
    h = Lorentz(1.0)
    with pytest.raises(ValueError, match=r"torch\.float32 coordinates end at 87\.\d+; use float64"):
        distribution(h.origin(3), scale, h, validate_args=True).rsample()
    wide = distribution(h.origin(3, torch.float64), 1000.0, h, validate_args=True)
    with pytest.raises(ValueError, match="reduce scale or the curvature"):
        wide.rsample()


# --- sites in Pyro ----------------------------------------------------------------------------------------------

C = 2.0
ANCHORS = torch.tensor([[2.0, 0.5, 0.0], [1.0, -1.0, 0.5], [2.0, 1.0, -0.5]], dtype=torch.float64)
DISTANCES = torch.tensor([1.0, 1.3, 1.2], dtype=torch.float64)
NOISE, PRIOR_SCALE = 2.0, 1.5


def make_model(chart, distribution=hdist.WrappedNormal):
    manifold = chart(C)
    anchors = manifold.from_normal_coords(None, ANCHORS)
    centre = manifold.from_normal_coords(None, torch.tensor([0.3, 0.0, -0.2], dtype=torch.float64))

    def model():
        z = pyro.sample("z", distribution(centre, PRIOR_SCALE, manifold))
        return pyro.sample("x", dist.Normal(manifold.dist(z, anchors), NOISE).to_event(1), obs=DISTANCES)

    return manifold, model


def grid_moments(statistic, volume=True):
    """Mean and standard deviation of a function of the normal coordinates under the posterior, by brute force."""
    axis = torch.linspace(-6, 6, 61, dtype=torch.float64)
    v = torch.cartesian_prod(axis, axis, axis)
    ball = PoincareBall(C)
    z = ball.from_normal_coords(None, v)
    centre = ball.from_normal_coords(None, torch.tensor([0.3, 0.0, -0.2], dtype=torch.float64))
    anchors = ball.from_normal_coords(None, ANCHORS)
    likelihood = dist.Normal(ball.dist(z.unsqueeze(-2), anchors), NOISE).log_prob(DISTANCES).sum(-1)
    log_weight = hdist.WrappedNormal(centre, PRIOR_SCALE, ball).log_prob(z) + likelihood
    if volume:
        s = math.sqrt(C) * v.norm(dim=-1).clamp(min=1e-9)
        log_weight = log_weight + 2 * torch.log(torch.sinh(s) / s)
    weight, values = log_weight.softmax(0), statistic(v)
    mean = (weight @ values).item()
    return mean, (weight @ (values - mean).square()).sqrt().item()


STATISTICS = {"radius": lambda v: v.norm(dim=-1), "first": lambda v: v[..., 0]}


@pytest.mark.slow
@pytest.mark.parametrize("chart", ["hyperboloid", "ball"])
def test_nuts_agrees_with_the_grid(chart):
    manifold, model = make_model(CHARTS[chart])
    kernel = NUTS(model, step_size=0.8, adapt_step_size=False, max_tree_depth=2)
    mcmc = MCMC(kernel, num_samples=160, warmup_steps=15, disable_progbar=True)
    with pyro.validation_enabled(False):
        mcmc.run()
    z = mcmc.get_samples()["z"]
    assert z.shape == (160, manifold.ambient_dim(3))
    assert manifold.contains(z).all()
    v = manifold.to_normal_coords(None, z)
    for name, statistic in STATISTICS.items():
        mean, sd = grid_moments(statistic)
        assert abs(statistic(v).mean() - mean) < 0.3 * sd, name
        assert abs(statistic(v).std() - sd) < 0.3 * sd, name
    # Without the volume of the coordinates the posterior would be another one, by more than that.
    mean, sd = grid_moments(STATISTICS["radius"])
    assert abs(grid_moments(STATISTICS["radius"], volume=False)[0] - mean) > 0.6 * sd


@every_distribution
def test_potential_energy_is_that_of_the_ball(distribution):
    energies = []
    v = 1.5 * torch.randn(20, 3, dtype=torch.float64)
    for chart in CHARTS.values():
        _, potential, *_ = initialize_model(make_model(chart, distribution)[1])
        leaves = [row.clone().requires_grad_() for row in v]
        values = torch.stack([potential({"z": leaf}) for leaf in leaves])
        energies.append((values, torch.stack(torch.autograd.grad(values.sum(), leaves))))
    for ball, hyperboloid in zip(*energies, strict=True):
        same(hyperboloid, ball, 1e-9, scale=ball.abs().max())


@pytest.mark.parametrize(
    "autoguide", [AutoNormal, *(pytest.param(g, marks=pytest.mark.slow) for g in (AutoMultivariateNormal, AutoDelta))]
)
def test_autoguides_do_as_on_the_ball(autoguide):
    results = []
    for chart in CHARTS.values():
        pyro.clear_param_store()
        pyro.set_rng_seed(5)
        manifold, model = make_model(chart)
        start = manifold.from_normal_coords(None, torch.tensor([0.5, 0.1, -0.4], dtype=torch.float64))
        guide = autoguide(model, init_loc_fn=pyro.infer.autoguide.init_to_value(values={"z": start}))
        svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.05}), Trace_ELBO())
        losses = [svi.step() for _ in range(40)]
        z = guide()["z"]
        assert manifold.contains(z)
        results.append((torch.tensor(losses), manifold.to_normal_coords(None, z)))
        median = guide.median()["z"]
        assert manifold.contains(median)
    for ball, hyperboloid in zip(*results, strict=True):
        same(hyperboloid, ball, 1e-6)


def test_autodelta_finds_the_mode():
    manifold, model = make_model(Lorentz)
    guide = AutoDelta(model)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.05}), Trace_ELBO())
    for _ in range(150):
        svi.step()
    z = guide.median()["z"].detach().requires_grad_()
    # The mode of the density with respect to the Riemannian volume: its gradient vanishes along the hyperboloid.
    v = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    trace = pyro.poutine.trace(pyro.poutine.condition(model, data={"z": manifold.from_normal_coords(z.detach(), v)}))
    (slope,) = torch.autograd.grad(trace.get_trace().log_prob_sum(), v)
    assert slope.norm() < 0.02


ELBOS = {
    "Trace_ELBO": lambda: Trace_ELBO(num_particles=4, vectorize_particles=True, max_plate_nesting=1),
    "Trace_ELBO-looped": lambda: Trace_ELBO(num_particles=2, max_plate_nesting=1),
    "TraceMeanField_ELBO": lambda: TraceMeanField_ELBO(num_particles=4, vectorize_particles=True, max_plate_nesting=1),
    "TraceGraph_ELBO": lambda: TraceGraph_ELBO(num_particles=2, max_plate_nesting=1),
    "RenyiELBO": lambda: RenyiELBO(alpha=0, num_particles=4, vectorize_particles=True, max_plate_nesting=1),
}


@pytest.mark.parametrize("posterior", DISTRIBUTIONS)
@pytest.mark.parametrize("loss", ELBOS)
def test_losses_and_their_gradients_are_those_of_the_ball(loss, posterior):
    results = []
    data = torch.tensor([0.5, 1.5, 2.5, 0.8], dtype=torch.float64)
    for chart in CHARTS.values():
        manifold = chart(C)
        pyro.clear_param_store()

        def model(manifold=manifold):
            with pyro.plate("data", 4):
                z = pyro.sample("z", hdist.RiemannianNormal(manifold.origin(2, torch.float64), 1.1, manifold))
                pyro.sample("x", dist.Normal(manifold.dist0(z), 0.5), obs=data)

        def guide(manifold=manifold):
            u = pyro.param("u", 0.3 * torch.arange(8.0, dtype=torch.float64).reshape(4, 2) - 1)
            scale = pyro.param("scale", torch.full((4, 1), 0.4, dtype=torch.float64), constraint=constraints.positive)
            with pyro.plate("data", 4):
                pyro.sample("z", posterior(manifold.from_normal_coords(None, u), scale, manifold))

        pyro.set_rng_seed(6)
        value = ELBOS[loss]().loss_and_grads(model, guide)
        store = pyro.get_param_store()
        results.append([torch.tensor(value), *(store._params[name].grad for name in ("u", "scale"))])
    for ball, hyperboloid in zip(*results, strict=True):
        same(hyperboloid, ball, 1e-9, scale=ball.abs().max())


def test_the_reference_is_the_oracles():
    # The closed form of the normaliser, against the quadrature of the package where both are exact.
    with mp.workdps(ref.DIGITS):
        expected = float(ref.riemannian_log_normalizer(5, ref.number(0.8), ref.number(0.7)))
    p = distribution_at_origin(0.7, 5, 0.8, hdist.RiemannianNormal)
    same(p.log_normalizer.squeeze(), expected, 1e-10)
