"""Chains and trainers on programs whose curvature is drawn."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import NUTS, SVI, Predictive, Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from pyro.infer.mcmc.util import initialize_model
from pyro.ops.integrator import potential_grad
from torch import nn

from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.infer import (
    EnsembleSVI,
    FastSVI,
    with_drawn_curvature,
)
from tests.helpers import same
from tests.infer.reparam.drawn_models import distances, every_chart, every_family, of_groups, run

every_centring = pytest.mark.parametrize("centered", [True, False])


@every_chart
@every_family
@every_centring
def test_no_curvature_is_an_exception(chart, family, centered):
    model = with_drawn_curvature(distances(chart, family), centered=centered)
    params, potential, _, _ = initialize_model(model)
    with pyro.validation_enabled(False):  # as chains run
        for u in (-800.0, -100.0, 100.0, 800.0, torch.inf, -torch.inf, torch.nan):
            value = potential({**params, "c": torch.tensor(u)})
            assert value.shape == ()
            assert -100 <= u <= 100 or not value.isfinite()


@every_chart
@every_family
@every_centring
def test_the_range_of_curvatures(chart, family, centered):
    double = {"dtype": torch.float64}
    model = with_drawn_curvature(
        distances(chart, family, dist.LogNormal(torch.zeros((), **double), 4.0), scale=0.02), centered=centered
    )
    torch.set_default_dtype(torch.float64)
    try:
        params, potential, _, _ = initialize_model(model)
        for c in (1e-8, 1e-4, 1.0, 1e4):
            grads, value = potential_grad(potential, params | {"c": torch.tensor(c, **double).log()})
            assert value.isfinite()
            assert all(grad.isfinite().all() for grad in grads.values())
    finally:
        torch.set_default_dtype(torch.float32)


@every_chart
@every_centring
def test_chains_end(chart, centered):
    # Precise data make wild first steps; test_drawn_proofs has twenty seeds of each.
    pyro.set_rng_seed(0)
    run(NUTS, with_drawn_curvature(distances(chart, noise=0.001), centered=centered), max_tree_depth=2)


@every_centring
@pytest.mark.parametrize("parallel", [False, True])
def test_predictions(centered, parallel):
    model = with_drawn_curvature(distances(), centered=centered)
    prior = Predictive(model, num_samples=4, parallel=parallel)()
    site = "z_coords" if centered else "z_base"
    assert prior["z"].shape == (4, 3, 2)
    assert PoincareBall(prior["c"]).contains(prior["z"]).all()
    samples = {name: prior[name] for name in ("c", site)}
    posterior = Predictive(model, samples, parallel=parallel, return_sites=["z", "x"])()
    same(posterior["z"], prior["z"], 1e-6)
    chain = {name: value.squeeze(1) if name == "c" else value for name, value in samples.items()}
    same(Predictive(model, chain, parallel=parallel, return_sites=["z"])()["z"], prior["z"], 1e-6)


@pytest.mark.parametrize("parallel", [False, True])
@every_chart
def test_predictions_of_the_program_as_it_is(chart, parallel):
    model = distances(chart)
    prior = Predictive(model, num_samples=4, parallel=parallel)()
    again = Predictive(model, {"c": prior["c"]}, parallel=parallel)()
    assert chart(prior["c"]).contains(again["z"]).all()


@every_centring
def test_a_draw_beyond_the_dtype(centered):
    model = with_drawn_curvature(distances(prior=dist.LogNormal(4.0, 0.1)), centered=centered)
    message = r"float32 coordinates end at .* use float64 .* or the hyperboloid"
    for _ in range(2):  # the first run and those after it
        with pyro.validation_enabled(False):
            assert Predictive(model, num_samples=2)()["x"].isfinite().all()
        with pytest.raises(ValueError, match=message):
            Predictive(model, num_samples=2)()


@every_centring
def test_fast_svi_does_the_same_steps(centered):
    losses = []
    for trainer in (SVI, FastSVI):
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        model = with_drawn_curvature(distances(), centered=centered)
        svi = trainer(model, AutoNormal(model), pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
        losses.append(torch.tensor([float(svi.step()) for _ in range(3)]))
    same(losses[0], losses[1], 1e-4)


class Member(nn.Module):
    def __init__(self):
        super().__init__()
        self.loc = nn.Parameter(torch.zeros(7))
        self.model = with_drawn_curvature(distances())

    def guide(self):
        pyro.module("member", self)
        pyro.sample("c", dist.LogNormal(self.loc[0], 0.1))
        with pyro.plate("points", 3):
            pyro.sample("z_coords", dist.Normal(self.loc[1:].reshape(3, 2), 0.1).to_event(1))


def test_ensembles():
    members = [Member(), Member()]
    svi = EnsembleSVI([(m.model, m.guide) for m in members], pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
    assert all(svi.step(shared=True).isfinite().all() for _ in range(2))


def test_a_curvature_of_each_group():
    x = torch.tensor([1.0, 0.5, 2.0])

    @with_drawn_curvature
    def model():
        z = of_groups()
        space = PoincareBall(torch.ones(()))
        pyro.sample("x", dist.Normal(space.dist0(z), 0.3).to_event(1), obs=x)

    run(NUTS, model, max_tree_depth=3)
    guide = AutoNormal(model)
    loss = Trace_ELBO(num_particles=2, vectorize_particles=True, max_plate_nesting=1)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), loss)
    assert torch.tensor([svi.step() for _ in range(2)]).isfinite().all()
