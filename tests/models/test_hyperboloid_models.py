"""Models on the hyperboloid: those of the ball through the isometry, and trained where the ball fails."""

from __future__ import annotations

import math

import pyro
import pytest
import torch
from pyro.infer import SVI, RenyiELBO, Trace_ELBO
from pyro.optim import Adam

from pyro_hyperbolic import Lorentz, PoincareBall
from pyro_hyperbolic.distributions import HyperbolicRadius
from pyro_hyperbolic.infer import log_marginal_likelihood
from pyro_hyperbolic.models import DISTRIBUTIONS, EmbeddingClassifier, HyperbolicVAE, HyperbolicVGAE
from pyro_hyperbolic.nn import DECODERS, ManifoldModule
from tests.helpers import same
from tests.models.cases import EDGES, NUM_NODES

CHARTS = (PoincareBall, Lorentz)
C = 1.3

# --- the same model in both charts ------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _float64():
    torch.set_default_dtype(torch.float64)  # the one of conftest puts it back
    with pyro.validation_enabled(True):  # torch.compile turns it off, for the whole process
        yield


def parameters(model):
    """By name; the curvature is shared, and its name that of the first part which has it."""
    return {"c" if name.endswith("raw") else name: p for name, p in model.named_parameters()}


def twins(build, learnable=False):
    """A model on either chart, with the same parameters."""
    models = []
    for chart in CHARTS:
        torch.manual_seed(0)
        models.append(build(ManifoldModule(chart(torch.tensor(C)), learnable)))
    ball, hyperboloid = (parameters(model) for model in models)
    # The gyroplanes and the networks have the same shapes in both charts.
    assert {name: p.shape for name, p in ball.items()} == {name: p.shape for name, p in hyperboloid.items()}
    with torch.no_grad():
        for name, parameter in ball.items():
            if name.endswith("bias"):
                parameter.normal_(std=0.3)  # that of the Möbius layer starts at 0
            hyperboloid[name].copy_(parameter)
    return models


def losses_and_gradients(model, loss, *args, **kwargs):
    model.zero_grad()
    pyro.clear_param_store()
    pyro.set_rng_seed(1)
    value = loss.loss_and_grads(model.model, model.guide, *args, **kwargs)
    return torch.tensor(value), {name: p.grad.clone() for name, p in parameters(model).items()}


def assert_same_training(models, loss, *args, **kwargs):
    (value, slopes), (other, other_slopes) = (losses_and_gradients(model, loss, *args, **kwargs) for model in models)
    assert value.isfinite()
    same(other, value, 1e-9)
    assert slopes.keys() == other_slopes.keys()
    for name, slope in slopes.items():
        assert slope.abs().max() > 0, name
        same(other_slopes[name], slope, 1e-9, scale=slope.abs().max())


def images(count=7):
    return torch.rand(count, 2, 3, generator=torch.Generator().manual_seed(2))


def build_vae(manifold, **options):
    return HyperbolicVAE(manifold, **{"latent_dim": 3, "data_shape": (2, 3), "hidden_dim": 8, **options})


OPTIONS = [
    pytest.param({"decoder": decoder, "prior": prior, "posterior": posterior}, id=f"{decoder}-{prior}-{posterior}")
    for decoder in DECODERS
    for prior in DISTRIBUTIONS
    for posterior in DISTRIBUTIONS
    if prior == posterior or decoder == "gyroplane"
] + [
    pytest.param({"posterior_scale": "diagonal", "likelihood": "normal"}, id="diagonal-normal"),
    pytest.param({"learn_prior_scale": True, "prior": "riemannian"}, id="learned-prior-scale"),
]
every_option = pytest.mark.parametrize("options", OPTIONS)


@every_option
def test_vae_trains_as_on_the_ball(options):
    models = twins(lambda manifold: build_vae(manifold, **options))
    assert_same_training(models, Trace_ELBO(), images())


@pytest.mark.parametrize("decoder", DECODERS)
def test_vae_learns_the_curvature_as_on_the_ball(decoder):
    models = twins(lambda manifold: build_vae(manifold, decoder=decoder, posterior="riemannian"), learnable=True)
    assert "c" in parameters(models[1])
    loss = RenyiELBO(alpha=0, num_particles=3, vectorize_particles=True, max_plate_nesting=1)
    assert_same_training(models, loss, images())


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_vae_gives_the_same_outputs(distribution, decoder):
    ball, hyperboloid = twins(
        lambda manifold: build_vae(manifold, decoder=decoder, prior=distribution, posterior=distribution)
    )
    x = images()
    move = hyperboloid.manifold.from_poincare
    same(hyperboloid.encode(x).mean, move(ball.encode(x).mean), 1e-9)
    same(hyperboloid.encode(x).scale, ball.encode(x).scale, 0.0)
    z = ball.encode(x).sample((5,))
    same(hyperboloid.decode(move(z)).mean, ball.decode(z).mean, 1e-9)
    same(hyperboloid.prior().log_prob(move(z)), ball.prior().log_prob(z), 1e-9)
    same(hyperboloid.reconstruct(x), ball.reconstruct(x), 1e-9)
    generated = []
    for model in (ball, hyperboloid):
        torch.manual_seed(3)
        generated.append(model.generate(6))
    same(generated[1], generated[0], 1e-9)
    evidence = []
    for model in (ball, hyperboloid):
        pyro.set_rng_seed(4)
        evidence.append(log_marginal_likelihood(model.model, model.guide, x, num_samples=20))
    same(evidence[1], evidence[0], 1e-9)


GRAPHS = [
    {"prior": prior, "posterior": posterior, "posterior_scale": "isotropic"}
    for prior in DISTRIBUTIONS
    for posterior in DISTRIBUTIONS
] + [{"posterior_scale": "diagonal"}]


@pytest.mark.parametrize("kwargs", [{}, {"num_negatives": 12}], ids=["matrix", "negatives"])
@pytest.mark.parametrize("options", GRAPHS, ids=str)
def test_vgae_trains_as_on_the_ball(options, kwargs):
    models = twins(lambda manifold: HyperbolicVGAE(manifold, NUM_NODES, EDGES, hidden_dim=8, **options))
    assert_same_training(models, Trace_ELBO(), **kwargs)
    scores = [model.edge_scores(torch.cartesian_prod(torch.arange(4), torch.arange(5, 9))) for model in models]
    same(scores[1], scores[0], 1e-9)


def test_classifier_gives_the_same_scores():
    models = twins(build_vae)
    x = images()
    scores = []
    for model in models:
        torch.manual_seed(5)
        scores.append(EmbeddingClassifier(model.decoder, 4)(model.encode(x).mean))
    same(scores[1], scores[0], 1e-9)


# --- where the ball fails ---------------------------------------------------------------------------------------

# Dimension and curvature of the cells that the paper could not fill: Riemannian prior and posterior, prior scale 1.
CELLS = [(20, 0.7), (20, 1.4), (10, 1.4)]
every_cell = pytest.mark.parametrize(("dim", "c"), CELLS)
RIEMANNIAN = {"prior": "riemannian", "posterior": "riemannian"}


def small_vae(chart, dim, c, latent_dtype):
    """A float32 network, whatever the latents."""
    torch.set_default_dtype(torch.float32)
    pyro.set_rng_seed(0)
    return HyperbolicVAE(chart(c), dim, 12, hidden_dim=16, latent_dtype=latent_dtype, **RIEMANNIAN)


def clusters(count):
    noise = torch.Generator().manual_seed(6)
    centre = torch.where(torch.randn(count, 1, generator=noise) > 0, 1.5, -1.5)
    return (centre + torch.randn(count, 12, generator=noise)).sigmoid()


@pytest.mark.slow
@pytest.mark.parametrize(("dim", "c"), CELLS)
def test_hyperboloid_trains_where_the_ball_fails(dim, c):
    vae = small_vae(Lorentz, dim, c, torch.float64)
    x = clusters(32)
    svi = SVI(vae.model, vae.guide, Adam({"lr": 5e-3}), Trace_ELBO())
    gradients = []  # of every parameter at every step: Pyro sets them to zero afterwards
    for parameter in vae.parameters():
        parameter.register_hook(lambda gradient: gradients.append(bool(gradient.isfinite().all())))
    losses = [svi.step(x) / len(x) for _ in range(200)]
    assert all(math.isfinite(loss) for loss in losses)
    assert len(gradients) == 200 * len(list(vae.parameters()))
    assert all(gradients)
    assert sum(losses[-20:]) < sum(losses[:20]) - 20 * 0.5  # it learns
    x = x[:12]
    with torch.no_grad():
        q = vae.encode(x)
        z = q.rsample((2000,))
        log_ratio = q.log_prob(z) - vae.prior().log_prob(z)
        elbo = vae.decode(z).log_prob(x) - log_ratio
    assert z.dtype == torch.float64
    assert (vae.manifold.dist0(z) > PoincareBall(c).reach(torch.float32)).any()  # a float32 ball ends before
    # The divergence from the prior is positive, for every datum to the error of its estimate and clearly on average.
    error = log_ratio.std(0) / math.sqrt(len(z))
    assert (log_ratio.mean(0) > -3 * error).all()
    assert log_ratio.mean() > 10 * error.mean() / math.sqrt(len(x))
    # The bound is one: the estimate of the evidence from many samples is above it.
    evidence = log_marginal_likelihood(vae.model, vae.guide, x, num_samples=2000)
    error = elbo.std(0) / math.sqrt(len(z))
    assert (evidence > elbo.mean(0) - 3 * error).all()
    assert (evidence - elbo.mean(0)).mean() > 10 * error.mean() / math.sqrt(len(x))
    assert vae.generate(100).isfinite().all()


@every_cell
def test_prior_of_these_cells_is_refused_by_a_float32_ball(dim, c):
    vae = small_vae(PoincareBall, dim, c, None)
    message = r"torch\.float32 coordinates end at .*use float64 .* or the hyperboloid, Lorentz\(c\)"
    with pytest.raises(ValueError, match=message):
        vae.generate(10)
    with pytest.raises(ValueError, match=message):
        vae.prior().rsample()


@every_cell
def test_prior_of_these_cells_is_held_by_a_float32_hyperboloid(dim, c):
    vae = small_vae(Lorentz, dim, c, None)
    prior = vae.prior()
    z = prior.rsample((1000,))
    assert z.dtype == torch.float32
    same(prior.manifold.dist0(z).mean(), HyperbolicRadius(dim, 1.0, c).mean, 0.02)
    assert vae.generate(100).isfinite().all()


def test_a_prior_beyond_a_float32_ball_is_an_error_that_names_the_remedy():
    # The posterior grows towards the prior, whose mass the coordinates do not hold, as far as they reach.
    vae = small_vae(PoincareBall, 20, 1.4, None)
    x = clusters(32)
    svi = SVI(vae.model, vae.guide, Adam({"lr": 5e-2}), Trace_ELBO())
    assert all(math.isfinite(svi.step(x)) for _ in range(30))
    with pytest.raises(ValueError, match=r"use float64 .* or the hyperboloid"):
        vae.generate(10)
