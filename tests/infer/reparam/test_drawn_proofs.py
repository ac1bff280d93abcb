"""The posterior of a curvature: its prior where there are no data, and that of a reference where there are."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import HMC, MCMC, NUTS, SVI, Trace_ELBO
from pyro.infer.autoguide import AutoMultivariateNormal, AutoNormal, init_to_value
from pyro.infer.mcmc.util import initialize_model
from pyro.ops.stats import effective_sample_size
from pyro.poutine.util import prune_subsample_sites

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import Lorentz, PoincareBall
from pyro_hyperbolic.infer import AutoWrappedNormal, with_drawn_curvature
from pyro_hyperbolic.infer.reparam.manifold_reparam import NormalCoordinates
from tests.helpers import same
from tests.infer.reparam.drawn_models import distances, no_data

pytestmark = pytest.mark.usefixtures("double")

CHARTS = [PoincareBall, Lorentz]
FAMILIES = [hdist.WrappedNormal, hdist.RiemannianNormal]
every_chart = pytest.mark.parametrize("chart", CHARTS)
every_family = pytest.mark.parametrize("family", FAMILIES)
every_centring = pytest.mark.parametrize("centered", [True, False])
every_dim = pytest.mark.parametrize("dim", [1, 2, 5])


def log_prior(u):
    """Of the logarithm of c."""
    return dist.Normal(0.0, 0.5).log_prob(u)


def coordinates(chart, family, c, loc):
    space = chart(torch.tensor(c))
    return NormalCoordinates(family(space.from_normal_coords(None, loc), 0.5, space), space)


# No data, exactly.


@every_chart
@every_family
@pytest.mark.parametrize("c", [1e-4, 1.0, 4.0])
def test_coordinates_have_a_density_of_their_own(chart, family, c):
    # An integral over all coordinates at each curvature: so the potential of a chain has the prior as its marginal.
    side = torch.linspace(-8, 8, 161)
    line = coordinates(chart, family, c, torch.tensor([0.3])).log_prob(side.unsqueeze(-1))
    same(torch.trapezoid(line.exp(), side), 1.0, 1e-6)
    plane = coordinates(chart, family, c, torch.tensor([0.3, -0.2])).log_prob(torch.cartesian_prod(side, side))
    same(plane.exp().sum() * (side[1] - side[0]) ** 2, 1.0, 1e-6)
    ray = torch.zeros(401, 5)
    ray[:, 0] = r = torch.linspace(0, 14, 401)
    density = coordinates(chart, family, c, torch.zeros(5)).log_prob(ray).exp()
    same(torch.trapezoid(density * r**4, r) * 8 * math.pi**2 / 3, 1.0, 1e-6)


@every_chart
@every_family
@every_dim
def test_the_potential_is_the_prior_and_that_density(chart, family, dim):
    potential = initialize_model(with_drawn_curvature(no_data(chart, family, dim)))[1]
    for u in (-1.0, 0.4):
        v = torch.randn(dim)
        density = coordinates(chart, family, math.exp(u), torch.full((dim,), 0.3)).log_prob(v)
        same(potential({"c": torch.tensor(u), "z_coords": v}), -log_prior(torch.tensor(u)) - density, 1e-9)


@every_chart
@every_family
@every_dim
def test_noise_knows_nothing_of_the_curvature(chart, family, dim):
    potential = initialize_model(with_drawn_curvature(no_data(chart, family, dim), centered=False))[1]
    u, noise = torch.tensor(0.7), torch.randn(dim)
    expected = -log_prior(u) - dist.Normal(0.0, 1.0).log_prob(noise).sum()
    same(potential({"c": u, "z_base": noise}), expected, 1e-12)


EXACT = {
    # Guides that hold the prior, so that the ELBO of each draw is 0.
    "AutoNormal": (AutoNormal, False, FAMILIES),
    "AutoMultivariateNormal": (AutoMultivariateNormal, False, FAMILIES),
    "AutoWrappedNormal": (AutoWrappedNormal, None, FAMILIES[:1]),
}


@every_chart
@every_dim
@pytest.mark.parametrize(
    ("name", "family"), [(name, family) for name, (_, _, families) in EXACT.items() for family in families]
)
def test_a_guide_can_be_exact(name, family, chart, dim):
    kind, centered, _ = EXACT[name]
    model = no_data(chart, family, dim)
    model = model if centered is None else with_drawn_curvature(model, centered=centered)
    start = init_to_value(
        values={"c": torch.tensor(1.0), "z": chart(1.0).from_normal_coords(None, torch.full((dim,), 0.3))}
    )
    guide = kind(model, init_loc_fn=start, init_scale=0.5)
    guide()
    if kind is AutoNormal:
        guide.scales.z_base = torch.ones(dim)
    elif kind is AutoMultivariateNormal:
        guide.scale = torch.tensor([0.5] + [1.0] * dim)
    for _ in range(3):
        same(Trace_ELBO().loss(model, guide), 0.0, 1e-9)


def log_weights(model, guide, count):
    """Log-weights of draws from the guide, all at once; the values of the guide."""

    def vectorised(program):
        def run():
            with pyro.plate("draws", count, dim=-2):
                program()

        return run

    with torch.no_grad():
        drawn = poutine.trace(vectorised(guide)).get_trace()
        scored = poutine.trace(poutine.replay(vectorised(model), trace=drawn)).get_trace()
    total = torch.zeros(count)
    for trace, sign in ((scored, 1), (drawn, -1)):
        trace = prune_subsample_sites(trace)
        trace.compute_log_prob()
        for site in trace.nodes.values():
            if site["type"] == "sample":
                total = total + sign * site["log_prob"].expand(count, -1).sum(-1)
    return total, drawn


def summary(log_w, log_c):
    """Log-evidence and the mean of log c, each with its standard error."""
    count = len(log_w)
    w = (log_w - log_w.logsumexp(0)).exp()
    mean = (w * log_c).sum()
    evidence = log_w.logsumexp(0) - math.log(count)
    return evidence, (count * w).var().div(count).sqrt(), mean, (w * (log_c - mean)).square().sum().sqrt()


@every_chart
@every_family
@every_dim
def test_importance_sampling_without_data(chart, family, dim):
    def guide():
        pyro.sample("c", dist.LogNormal(0.2, 0.7))
        pyro.sample("z_coords", dist.MultivariateStudentT(8.0, torch.full((dim,), 0.3), 0.8 * torch.eye(dim)))

    log_w, drawn = log_weights(with_drawn_curvature(no_data(chart, family, dim)), guide, 20_000)
    log_c = drawn.nodes["c"]["value"].log().squeeze(-1)
    evidence, error, mean, mean_error = summary(log_w, log_c)
    assert error < 0.05
    assert evidence.abs() < 4 * error
    assert mean.abs() < 4 * mean_error


# Data.


@every_chart
@every_family
def test_evidence_and_posterior_with_data(chart, family):
    # Reference: draws from the prior, whose weights are the likelihood alone and contain no density of points.
    plain = distances(chart, family)
    reference, drawn = log_weights(plain, lambda: poutine.block(plain, expose=["c", "z"])(), 20_000)
    expected = summary(reference, drawn.nodes["c"]["value"].log().flatten())
    for centered, site in ((True, "z_coords"), (False, "z_base")):

        def guide(site=site):
            pyro.sample("c", dist.LogNormal(0.0, 0.6))
            with pyro.plate("points", 3):
                pyro.sample(site, dist.MultivariateStudentT(8.0, torch.zeros(2), torch.eye(2)))

        log_w, drawn = log_weights(with_drawn_curvature(plain, centered=centered), guide, 20_000)
        actual = summary(log_w, drawn.nodes["c"]["value"].log().flatten())
        for value, error in ((0, 1), (2, 3)):
            assert expected[error] < 0.05
            assert (actual[value] - expected[value]).abs() < 4 * math.hypot(actual[error], expected[error])


# Chains and training.


def chain(kernel, model, samples, warmup):
    mcmc = MCMC(kernel, num_samples=samples, warmup_steps=warmup, disable_progbar=True)
    mcmc.run()
    log_c = mcmc.get_samples()["c"].log()
    return log_c, effective_sample_size(log_c.unsqueeze(0)).item()


@pytest.mark.slow
@every_chart
@every_family
@every_dim
@pytest.mark.parametrize("name", ["nuts-centred", "nuts-noncentred", "hmc-centred"])
def test_chains_without_data(name, chart, family, dim):
    model = with_drawn_curvature(no_data(chart, family, dim), centered=not name.endswith("noncentred"))
    kernel = NUTS(model, max_tree_depth=4) if name.startswith("nuts") else HMC(model, step_size=0.3, num_steps=6)
    log_c, ess = chain(kernel, model, 200, 80)
    print(f"{name} {chart.__name__} {family.__name__} d={dim}: {log_c.mean():+.3f} sd {log_c.std():.3f} ess {ess:.0f}")
    assert ess > 30
    assert log_c.mean().abs() < 4 * 0.5 / math.sqrt(ess)
    assert (log_c.std() - 0.5).abs() < 4 * 0.5 / math.sqrt(ess)


@pytest.mark.slow
@every_chart
@every_family
@every_centring
def test_chains_with_data(chart, family, centered):
    plain = distances(chart, family)
    reference, drawn = log_weights(plain, lambda: poutine.block(plain, expose=["c", "z"])(), 200_000)
    _, _, expected, error = summary(reference, drawn.nodes["c"]["value"].log().flatten())
    model = with_drawn_curvature(plain, centered=centered)
    log_c, ess = chain(NUTS(model, max_tree_depth=4), model, 250, 100)
    print(
        f"{chart.__name__} {family.__name__} {centered}: {log_c.mean():+.3f} ess {ess:.0f},"
        f" reference {expected:+.3f} ± {error:.3f}"
    )
    assert ess > 30
    assert (log_c.mean() - expected).abs() < 4 * math.hypot(log_c.std() / math.sqrt(ess), error)


TRAINED = {
    "AutoNormal": (AutoNormal, False),
    "AutoNormal, centred": (AutoNormal, True),
    "AutoMultivariateNormal": (AutoMultivariateNormal, False),
    "AutoWrappedNormal": (AutoWrappedNormal, None),
}


@pytest.mark.slow
@every_chart
@every_dim
@pytest.mark.parametrize("name", TRAINED)
def test_training_without_data(name, chart, dim):
    # The wrapped normal at the origin is a Gaussian in each of these coordinates, so the guide can hold the prior.
    kind, centered = TRAINED[name]

    def model():
        space = chart(pyro.sample("c", dist.LogNormal(0.0, 0.5)))
        pyro.sample("z", hdist.WrappedNormal(space.origin(dim, torch.float64), 0.5, space))

    model = model if centered is None else with_drawn_curvature(model, centered=centered)
    guide = kind(model, init_loc_fn=init_to_value(values={"c": torch.tensor(2.0)}), init_scale=0.3)
    svi = SVI(model, guide, pyro.optim.ClippedAdam({"lr": 0.03, "lrd": 0.997}), Trace_ELBO(num_particles=2))
    for _ in range(600):
        svi.step()
    log_c = guide.quantiles([0.1586552539, 0.5, 0.8413447461])["c"]
    log_c = torch.as_tensor(log_c).log().flatten()
    print(f"{name} {chart.__name__} d={dim}: {log_c[1]:+.3f}, sd {(log_c[2] - log_c[0]) / 2:.3f}")
    assert log_c[1].abs() < 0.05
    assert ((log_c[2] - log_c[0]) / 2 - 0.5).abs() < 0.05


@pytest.mark.slow
@every_chart
@every_family
@every_centring
def test_twenty_chains_end(chart, family, centered):
    # Precise data and a wide prior make wild first steps. In float32, Pyro's own start.
    torch.set_default_dtype(torch.float32)
    for seed in range(20):
        pyro.set_rng_seed(seed)
        model = with_drawn_curvature(distances(chart, family, dist.LogNormal(0.0, 2.0), noise=0.001), centered=centered)
        chain(NUTS(model, max_tree_depth=3), model, 4, 4)
