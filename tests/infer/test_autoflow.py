"""The automatic guide that is a flow: its density, what it fits, and what Pyro does with it."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, Predictive, RenyiELBO, Trace_ELBO
from pyro.infer.autoguide import AutoNormal, init_to_value
from pyro.infer.importance import vectorized_importance_weights

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import Lorentz, PoincareBall, Product, Sphere, Stereographic
from pyro_hyperbolic.infer import (
    AutoManifoldFlow,
    AutoWrappedNormal,
    DReG_ELBO,
    FastSVI,
    check_model_guide,
    pareto_k,
    sample_posterior,
)
from tests.helpers import each, same
from tests.infer.guided import CHARTS, Curved, X, programs

SMALL = {"layers": 2, "hidden_dims": (8,), "bins": 4}


def _shaken(guide, *args):
    guide(*args)
    with torch.no_grad():
        for parameter in guide.flow.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return guide


@each("chart", [PoincareBall(0.7), Lorentz(1.3), Sphere(0.7), Stereographic(0.7)])
def test_its_density_is_that_of_its_draws(chart):
    """Weights of a model without data are 1 on average, if the density of the guide is one in the same volume."""
    mixed = Product((chart, 2), (Sphere(2.0), 1))
    loc = mixed.from_normal_coords(None, torch.tensor([0.4, -0.3, 0.2]))

    def model():
        pyro.sample("a", dist.LogNormal(0.0, 0.2))
        pyro.sample("z", hdist.WrappedNormal(loc.expand(1, -1), 0.2, mixed).to_event(1))

    start = init_to_value(values={"a": torch.tensor(1.0), "z": loc.expand(1, -1)})
    guide = _shaken(AutoManifoldFlow(model, init_loc_fn=start, init_scale=0.3, **SMALL))
    with torch.no_grad():
        log_weights, _, _ = vectorized_importance_weights(
            model, guide, num_samples=20_000, max_plate_nesting=0, normalized=False
        )
    weights = log_weights.exp()
    assert abs(weights.mean() - 1) < 5 * weights.std() / math.sqrt(len(weights)) < 0.3


def test_it_starts_as_wrapped_normals():
    ball = PoincareBall(1.0)
    loc = ball.from_normal_coords(None, torch.tensor([0.8, -0.4]))

    def model():
        pyro.sample("z", hdist.WrappedNormal(loc, 0.5, ball))

    guide = AutoManifoldFlow(model, init_loc_fn=init_to_value(values={"z": loc}), init_scale=0.5, **SMALL)
    assert abs(Trace_ELBO(num_particles=20).loss(model, guide)) < 1e-4
    same(guide.median()["z"], loc, 1e-5)


@each("chart", CHARTS[::3])
def test_losses(chart):
    model = programs(chart)
    guide = AutoManifoldFlow(model, **SMALL)
    check_model_guide(model, guide, X)
    for loss, vectorised in ((Trace_ELBO, True), (RenyiELBO, False), (DReG_ELBO, True)):
        elbo = loss(num_particles=2, vectorize_particles=vectorised, max_plate_nesting=1)
        assert math.isfinite(SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), elbo).step(X))
    trace = poutine.trace(guide).get_trace(X)
    for name, value in guide.median(X).items():
        assert value.shape == trace.nodes[name]["value"].shape
    assert all(p.grad is not None for p in guide.parameters())
    assert Predictive(model, guide=guide, num_samples=3)(X)["z"].shape == (3, 4, chart.ambient_dim(2))


@each(("how", "chart"), [("module", PoincareBall), ("param", Sphere), ("drawn", PoincareBall)])
def test_a_curvature_that_moves(how, chart):
    model = Curved(how, chart)
    guide = AutoManifoldFlow(model, **SMALL)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.05}), Trace_ELBO())
    losses = [svi.step(X) for _ in range(3)]
    assert all(map(math.isfinite, losses))
    if how != "drawn":
        assert abs(model.curvature().item() - 0.7) > 0.01


@each("model", [programs(Sphere(0.7)), Curved("drawn", PoincareBall)])
def test_a_program_in_its_coordinates(model):
    """The density of the noise is that of white noise times the weight of the guide, in plates as outside."""
    guide = _shaken(AutoManifoldFlow(model, **SMALL), X)
    program = guide.reparam(model)
    drawn = poutine.trace(guide).get_trace(X)
    base = guide.flow.inv(drawn.nodes["_AutoManifoldFlow_latent"]["value"])
    joint = poutine.trace(poutine.replay(model, drawn)).get_trace(X).log_prob_sum()
    trace = poutine.trace(poutine.condition(program, {"flow_base": base})).get_trace(X)
    white = dist.Normal(0.0, 1.0).log_prob(base).sum()
    same(trace.log_prob_sum(), joint - drawn.log_prob_sum() + white, 1e-4)
    same(trace.nodes["z"]["value"], drawn.nodes["z"]["value"], 1e-4)
    parameters = [p.detach().clone() for p in guide.parameters()]
    elbo = Trace_ELBO(num_particles=2, vectorize_particles=True, max_plate_nesting=1)
    assert math.isfinite(SVI(program, AutoNormal(program), pyro.optim.Adam({"lr": 0.1}), elbo).step(X))
    assert all(torch.equal(p, before) for p, before in zip(guide.parameters(), parameters, strict=True))


def _ring():
    ball = Lorentz(1.0)
    z = pyro.sample("z", hdist.WrappedNormal(ball.origin(2), 1.0, ball))
    pyro.sample("x", dist.Normal(ball.dist0(z), 0.1), obs=torch.tensor(1.5))


@pytest.mark.slow
def test_a_band_is_fitted():
    """A circle around the origin: a wrapped normal covers a piece of it, the flow most of it."""
    bounds, tails = {}, {}
    for kind in (AutoWrappedNormal, AutoManifoldFlow):
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        guide = kind(_ring)
        elbo = Trace_ELBO(num_particles=32, vectorize_particles=True, max_plate_nesting=0)
        svi = SVI(_ring, guide, pyro.optim.Adam({"lr": 0.01}), elbo)
        losses = [svi.step() for _ in range(400)]
        bounds[kind], tails[kind] = sum(losses[-50:]) / 50, pareto_k(_ring, guide, num_samples=4000)
    assert bounds[AutoManifoldFlow] < bounds[AutoWrappedNormal] - 0.8
    assert tails[AutoManifoldFlow] < tails[AutoWrappedNormal]


@pytest.mark.slow
def test_it_is_a_start_of_chains_and_compiles():
    guide = AutoManifoldFlow(_ring, **SMALL)
    svi = FastSVI(_ring, guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO(), compile=True)
    assert all(math.isfinite(float(svi.step())) for _ in range(3))
    posterior = sample_posterior(_ring, num_chains=8, num_samples=50, warmup=50, seed=0, start=guide)
    radius = Lorentz(1.0).dist0(torch.as_tensor(posterior.samples["z"]))
    assert abs(radius.mean().item() - 1.5) < 0.1


def test_what_it_refuses():
    def empty():
        pyro.sample("x", dist.Normal(0.0, 1.0), obs=torch.tensor(0.0))

    def subsampled():
        with pyro.plate("data", 10, subsample_size=2):
            pyro.sample("z", dist.Normal(0.0, 1.0))

    with pytest.raises(ValueError, match="needs a latent, but the model has none"):
        AutoManifoldFlow(empty)()
    with pytest.raises(ValueError, match="plate 'data' is subsampled, but AutoManifoldFlow draws"):
        AutoManifoldFlow(subsampled)()
    with pytest.raises(NotImplementedError, match="quantiles of a flow have no closed form; draw with"):
        AutoManifoldFlow(_ring).quantiles([0.5])
    guide = AutoManifoldFlow(_ring, **SMALL)
    guide()
    with pytest.raises(ValueError, match="the guide has a latent 'z', but the model has none in this run; pass the"):
        guide.reparam(empty)()
    with pytest.raises(ValueError, match="site 'z' is a latent of the guide, but is observed in the model; condition"):
        guide.reparam(poutine.condition(_ring, {"z": torch.tensor([1.0, 0.0, 0.0])}))()
    with pytest.raises(ValueError, match="num_samples must be an integer of at least 25, got 3"):
        pareto_k(_ring, AutoManifoldFlow(_ring), num_samples=3)


def test_pareto_k_of_a_program_with_plates():
    def model():
        with pyro.plate("data", 3):
            pyro.sample("z", hdist.WrappedNormal(torch.zeros(2), 0.5, PoincareBall(1.0)))

    guide = AutoManifoldFlow(model, init_scale=0.5, **SMALL)
    assert pareto_k(model, guide) < 0.5
    pyro.clear_param_store()
    assert pareto_k(model, AutoManifoldFlow(model, init_scale=0.1, **SMALL)) > 0.7
