"""The automatic guide of wrapped normals: its distributions, its parameters, and what Pyro does with it."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, Predictive, RenyiELBO, Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import (
    AutoGuideList,
    AutoNormal,
    init_to_sample,
    init_to_value,
)
from torch.distributions import kl_divergence

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic.infer import AutoWrappedNormal, DReG_ELBO, FastSVI
from tests.helpers import in_turns, same
from tests.infer.guided import BALL, CHARTS, POINTS, X, every_chart, programs

LOSSES = [Trace_ELBO, TraceMeanField_ELBO, RenyiELBO, DReG_ELBO]


@every_chart
def test_every_latent_has_its_distribution_under_its_own_name(chart):
    guide = AutoWrappedNormal(programs(chart), init_scale=0.2)
    guide(X)
    trace = poutine.trace(guide).get_trace(X)
    assert trace.stochastic_nodes == ["data", "width", "shift", "pair", "top", "z"]
    for name, shape in POINTS.items():
        assert getattr(guide.locs, name).shape == shape
        assert getattr(guide.scales, name).shape == shape
        distribution = trace.nodes[name]["fn"]
        distribution = distribution.base_dist if name == "pair" else distribution
        assert isinstance(distribution, hdist.WrappedNormal)
        assert distribution.manifold == chart
        same(chart.dist0(distribution.mean), getattr(guide.locs, name).norm(dim=-1), 1e-5)
        assert chart.contains(trace.nodes[name]["value"]).all()
    assert isinstance(trace.nodes["shift"]["fn"], dist.Normal)
    assert trace.nodes["width"]["value"] > 0


@every_chart
def test_a_wrapped_normal_is_approximated_exactly(chart):
    loc = chart.from_normal_coords(None, torch.tensor([0.8, -0.4]))

    def model():
        pyro.sample("z", hdist.WrappedNormal(loc, 0.5, chart))

    guide = AutoWrappedNormal(model, init_loc_fn=init_to_value(values={"z": loc}), init_scale=0.5)
    assert abs(Trace_ELBO(num_particles=20).loss(model, guide)) < 1e-5
    same(guide.median()["z"], loc, 1e-5)


def test_it_has_one_shape_everywhere_as_AutoNormal_has_not():
    # Far out AutoNormal is wide across the radius.
    loc = BALL.from_normal_coords(None, torch.tensor([4.0, 0.0]))

    def spread(kind):
        pyro.clear_param_store()
        start = init_to_value(values={"z": loc})
        guide = kind(lambda: pyro.sample("z", hdist.WrappedNormal(loc, 0.5, BALL)), init_loc_fn=start, init_scale=0.3)
        guide()
        with pyro.plate("draws", 2000, dim=-1):
            return BALL.to_normal_coords(loc, guide()["z"]).std(0)

    assert ((spread(AutoWrappedNormal) - 0.3).abs() < 0.03).all()
    assert spread(AutoNormal)[1] > 0.7


def test_other_latents_are_those_of_AutoNormal():
    def model():
        pyro.sample("a", dist.LogNormal(0.0, 1.0))
        pyro.sample("b", dist.Beta(2.0, 3.0).expand([2]).to_event(1))
        pyro.sample("c", dist.Dirichlet(torch.ones(3)))
        with pyro.plate("data", 4):
            pyro.sample("d", dist.Normal(0.0, 1.0))

    losses = []
    for kind in (AutoNormal, AutoWrappedNormal):
        pyro.clear_param_store()
        torch.manual_seed(1)
        guide = kind(model, init_scale=0.3)
        guide()
        torch.manual_seed(2)
        losses.append(Trace_ELBO(num_particles=3).loss(model, guide))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize(
    ("loss", "vectorised", "chart"),
    [(loss, vectorised, BALL) for loss, vectorised in in_turns(LOSSES, (False, True))]
    + [(DReG_ELBO, True, chart) for chart in CHARTS[1:]],
)
def test_losses(loss, vectorised, chart):
    model = programs(chart)
    guide = AutoWrappedNormal(model)
    elbo = loss(num_particles=2, vectorize_particles=vectorised, max_plate_nesting=1)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), elbo)
    assert math.isfinite(svi.step(X))
    for name, p in guide.named_parameters():
        assert p.grad is not None, name
    before = {name: p.clone() for name, p in guide.named_parameters()}
    svi.step(X)
    assert all((p != before[name]).any() for name, p in guide.named_parameters())


def test_the_mean_field_bound_uses_the_closed_form_of_a_gaussian():
    def model():
        with pyro.plate("data", 3):
            pyro.sample("a", dist.Normal(0.5, 1.0))

    guide = AutoWrappedNormal(model, init_scale=0.3)
    guide()
    expected = 3 * kl_divergence(dist.Normal(guide.locs.a[0], 0.3), dist.Normal(0.5, 1.0))
    assert TraceMeanField_ELBO().loss(model, guide) == pytest.approx(expected.item(), rel=1e-5)


def test_the_mean_field_bound_of_all_else_is_the_usual_one():
    # AutoNormal loses the Jacobians there.
    model = programs(BALL)
    guide = AutoWrappedNormal(poutine.block(model, hide=["shift"]), init_loc_fn=init_to_sample)
    guide(X)
    losses = []
    for loss in (Trace_ELBO(), TraceMeanField_ELBO()):
        torch.manual_seed(1)
        losses.append(loss.loss(poutine.condition(model, {"shift": torch.tensor(0.1)}), guide, X))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_fast_svi_takes_the_same_steps():
    losses = []
    for kind in (SVI, FastSVI):
        pyro.clear_param_store()
        torch.manual_seed(1)
        model = programs(BALL)
        svi = kind(model, AutoWrappedNormal(model), pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
        losses.append([float(svi.step(X)) for _ in range(5)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_predictive():
    model = programs(BALL)
    guide = AutoWrappedNormal(model)
    guide(X)
    for parallel in (False, True):
        samples = Predictive(model, guide=guide, num_samples=6, parallel=parallel)(X)
        assert samples["z"].shape[0] == 6
        assert samples["z"].shape[-2:] == (4, 2)
        assert BALL.contains(samples["z"]).all()


def test_in_a_list_of_guides():
    model = programs(BALL)
    guide = AutoGuideList(model)
    guide.append(AutoNormal(poutine.block(model, expose=["width", "shift"])))
    guide.append(AutoWrappedNormal(poutine.block(model, hide=["width", "shift"])))
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
    assert math.isfinite(svi.step(X))
    assert guide.median(X).keys() == {"width", "shift", "pair", "top", "z"}
    assert guide.quantiles([0.5], X)["z"].shape == (1, 4, 2)
